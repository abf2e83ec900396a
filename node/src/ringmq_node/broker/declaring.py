"""Creating queues, and changing their records: commits to the registry, then the watch.

Declares that come while a commit is on its way go into the next one, up to `BATCH_MAX` of them. A
commit costs a sync of the registry's disk, whatever it has in it; one for each of ten thousand
queues would take a minute. Nothing waits for a batch to fill.

A queue that this node doesn't know is taken for new, and the guards of the commit tell if it isn't.
Then the registry is read: those of the batch that exist are answered, and the others go into the
next batch.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ringmq_gm import View, first_view, ring_key
from ringmq_gm.registry.base import (
    COMMIT_BYTES_MAX,
    OPERATIONS_MAX,
    CommitUnknownError,
    Guard,
    Put,
    Registry,
    RegistryUnavailableError,
)
from ringmq_node.broker.arguments import QueueArguments, check_equivalent, check_possible
from ringmq_node.broker.catalogue import QueueCatalogue, registry_away
from ringmq_node.broker.cluster import Cluster
from ringmq_node.broker.cluster_settings import ClusterSettings
from ringmq_node.broker.ownership import check_owner
from ringmq_node.broker.placement import Fleet, place
from ringmq_node.broker.transient import TransientQueues
from ringmq_node.model.names import vhost_of
from ringmq_node.model.reasons import BrokerError, Reason, quarantined
from ringmq_node.model.records import (
    QueueMode,
    QueueRecord,
    RecordError,
    decode_entry,
    new_queue_id,
    queue_key,
)
from ringmq_node.replica.hosting import Spawn

# A commit that loses a race, or whose outcome is unknown, is tried again so often.
COMMIT_TRIES = 5
# Queues in one commit: each is a record and a ring.
BATCH_MAX = OPERATIONS_MAX // 2
# Of their records and views; the rest of what a commit may have is for keys and guards.
BATCH_BYTES_MAX = COMMIT_BYTES_MAX // 2


class Vhosts(Protocol):
    """What a declare has to know of vhosts (`topology.topology.Topology`)."""

    def vhost_guards(self, name: str) -> list[Guard]:
        """They hold as long as the vhost is there. Raises `BrokerError` if it isn't."""
        ...


@dataclass(slots=True, eq=False)
class _Wanted:
    """A queue that somebody declares. The outcome is whether it is new, and the revision of the
    registry that shows it; or a `BrokerError`."""

    name: str
    arguments: QueueArguments
    outcome: asyncio.Future[tuple[bool, int]]
    tries: int = 0
    # Of the records that commits without a known success have had for it. One that is found in
    # the registry was written by this declare: its queue is new.
    ids: set[str] = field(default_factory=set)


# With the record and the first view that it is to have.
_New = tuple[_Wanted, QueueRecord, View]


class Declaring:
    """Writes queue records. Each method raises `BrokerError`; the caller has the deadline."""

    def __init__(
        self,
        registry: Registry,
        catalogue: QueueCatalogue,
        settings: ClusterSettings,
        cluster: Cluster,
        transient: TransientQueues,
        delete_orphan: Callable[[QueueRecord], Awaitable[bool]],
        spawn: Spawn,
        vhosts: Vhosts,
    ) -> None:
        self._registry = registry
        self._catalogue = catalogue
        self._settings = settings
        self._cluster = cluster
        self._transient = transient
        # Deletes an exclusive queue if its connection is over; whether it did.
        self._delete_orphan = delete_orphan
        self._spawn = spawn
        self._vhosts = vhosts
        self._waiting: deque[_Wanted] = deque()
        self._runs = False

    async def declare(self, name: str, arguments: QueueArguments) -> bool:
        """Creates the queue and its first ring in one commit; returns whether it is new.

        Returns once this node's watch has shown the queue.
        """
        outcome: asyncio.Future[tuple[bool, int]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Wanted(name, arguments, outcome))
        if not self._runs:
            self._runs = True
            self._spawn(self._run(), "declares")
        created, revision = await outcome
        if created:
            # Waiting for the name would not do: the watch may still show a queue of this name
            # that was deleted before.
            await self._catalogue.wait_shown(revision)
        else:
            await self._catalogue.wait_present(name)
        return created

    # -- batches

    async def _run(self) -> None:
        """Declares what waits, as many queues as fit in one commit at a time."""
        try:
            while self._waiting:
                batch: dict[str, _Wanted] = {}
                # One key can't be written twice by one commit: a namesake is for the next one.
                while (
                    self._waiting and len(batch) < BATCH_MAX and self._waiting[0].name not in batch
                ):
                    wanted = self._waiting.popleft()
                    # Nobody waits for it any more: a commit now would surprise its caller.
                    if not wanted.outcome.done():
                        batch[wanted.name] = wanted
                if batch:
                    await self._declare_batch(batch)
        finally:
            self._runs = False
            # Cancelled: the node stops.
            for wanted in self._waiting:
                wanted.outcome.cancel()
            self._waiting.clear()

    async def _declare_batch(self, batch: dict[str, _Wanted]) -> None:
        """Each of the batch is decided when this returns, or waits again."""
        try:
            known = self._catalogue.records
            # Those that have failed before, too: somebody else may have declared them.
            await self._settle_existing(
                [each for each in batch.values() if each.tries or each.name in known]
            )
            new = await self._new_records(
                [each for each in batch.values() if not each.outcome.done()]
            )
            if not new:
                return
            new, left = _fitting(new)
            guards = [Guard(record.key, 0) for _, record, _ in new]
            # Those of "/" have none.
            for vhost in dict.fromkeys(vhost_of(record.name) for _, record, _ in new):
                guards += self._vhosts.vhost_guards(vhost)
            puts: list[Put] = []
            for _, record, view in new:
                puts.append(Put(record.key, record.encode()))
                puts.append(Put(ring_key(record.id), view.encode()))
            try:
                revision = await self._registry.commit(guards, puts)
            except CommitUnknownError:
                revision = None
        except RegistryUnavailableError:
            for wanted in batch.values():
                _refuse(wanted, registry_away())
            return
        except BaseException:
            # The task ends here: nobody is left to answer them.
            for wanted in batch.values():
                wanted.outcome.cancel()
            raise
        again: list[_Wanted] = []
        for wanted, record, _ in new:
            if wanted.outcome.done():
                continue
            wanted.tries += 1
            wanted.ids.add(record.id)
            if revision is not None:
                wanted.outcome.set_result((True, revision))
            elif wanted.tries < COMMIT_TRIES:
                # Some of them exist, or the outcome is unknown: a read of the registry shows.
                again.append(wanted)
            else:
                _refuse(wanted, registry_away())
        # In front: of two declares of one name, the first is to find the queue new.
        again += [wanted for wanted, _, _ in left]
        self._waiting.extendleft(reversed(again))

    async def _settle_existing(self, suspects: Sequence[_Wanted]) -> None:
        """Decides those that exist. Raises `RegistryUnavailableError`."""
        keys = [queue_key(each.name) for each in suspects]
        entries = await asyncio.gather(*map(self._registry.get, keys))
        for wanted, entry in zip(suspects, entries, strict=True):
            if entry is None:
                continue
            try:
                existing = decode_entry(entry.key, entry.value)
                if not existing.durable and await self._delete_if_gone(existing):
                    continue
                if existing.owner and await self._delete_orphan(existing):
                    continue
                check_owner(existing, wanted.arguments.owner)
                check_equivalent(existing, self._settings.wanted_of(existing), wanted.arguments)
            except RecordError as error:
                _refuse(wanted, quarantined(wanted.name, str(error)))
            except BrokerError as error:
                _refuse(wanted, error)
            else:
                if not wanted.outcome.done():
                    wanted.outcome.set_result((existing.id in wanted.ids, entry.revision))

    async def _delete_if_gone(self, record: QueueRecord) -> bool:
        try:
            return await self._transient.delete_if_gone(record)
        except CommitUnknownError:
            # Judged anew by the next declare; until then the queue exists.
            return False

    async def _new_records(self, wanted: Sequence[_Wanted]) -> Sequence[_New]:
        """Records and first views. A queue that can't be placed is refused alone.

        Raises `RegistryUnavailableError`.
        """
        if not wanted:
            return ()
        alive = await self._cluster.registered_members()
        fleet = self._cluster.fleet_of(alive, self._settings.nodes)
        masters, mirrors = Counter(fleet.masters), Counter(fleet.mirrors)
        fleet = replace(fleet, masters=masters, mirrors=mirrors)
        new: list[_New] = []
        for each in wanted:
            try:
                if self._cluster.me not in alive:
                    # The registry was away for longer than the leases. Nodes are still registering
                    # again, and a ring that is made now would leave them out for good.
                    raise registry_away()
                record, view = self._new_record(each, fleet)
            except BrokerError as error:
                _refuse(each, error)
                continue
            # The watch shows this batch later; the rest of it has to go elsewhere now.
            masters[view.master.node] += 1
            mirrors.update(member.id.node for member in view.members[1:])
            new.append((each, record, view))
        return new

    def _new_record(self, new: _Wanted, fleet: Fleet) -> tuple[QueueRecord, View]:
        arguments = new.arguments
        self._vhosts.vhost_guards(vhost_of(new.name))
        check_possible(arguments, fleet.nodes)
        record = QueueRecord(
            new.name,
            new_queue_id(),
            (),
            arguments.min_insync,
            mode=arguments.mode,
            durable=arguments.durable is not False,
            replicas=arguments.replicas,
            master_locator=arguments.master_locator,
            rules=arguments.rules,
            auto_delete=bool(arguments.auto_delete),
            owner=arguments.owner if arguments.exclusive else "",
            opaque=arguments.opaque,
        )
        wanted = self._settings.wanted_among(record, fleet.nodes)
        members = place(wanted, fleet, local=self._cluster.me.node, choice=random.choice)
        record = record.with_replicas(tuple(member.node for member in members), ())
        # With nodes that are down these may be fewer than `min_insync`. Then nothing is confirmed
        # before there are enough: a message would be on fewer disks than was asked for.
        return record, first_view(members, wanted.min_insync)

    async def set_mode(self, name: str, mode: QueueMode) -> QueueMode:
        """Changes the record; every replica hears of it through its node's watch.

        Returns the mode before, once the replica here has the new one.
        """
        record = self._catalogue.record_of(name)
        before: QueueMode | None = None
        for _ in range(COMMIT_TRIES):
            try:
                entry = await self._registry.get(record.key)
                existing = None if entry is None else decode_entry(entry.key, entry.value)
                if entry is None or existing is None or existing.id != record.id:
                    raise BrokerError(
                        Reason.QUEUE_NOT_FOUND, f"queue {name!r} was deleted", queue=name
                    )
                # If an earlier try has succeeded without an answer, the record has the new mode.
                before = before or self._settings.wanted_of(existing).mode
                revision: int | None = entry.revision
                if existing.mode is not mode:
                    changed = replace(existing, mode=mode)
                    revision = await self._registry.commit(
                        [Guard(entry.key, entry.revision)], [Put(entry.key, changed.encode())]
                    )
            except RecordError as error:
                raise quarantined(name, str(error)) from error
            except RegistryUnavailableError as error:
                raise registry_away() from error
            except CommitUnknownError:
                continue
            if revision is not None:
                await self._catalogue.wait_revision(name, revision)
                return before
        raise registry_away()


def _fitting(new: Sequence[_New]) -> tuple[Sequence[_New], Sequence[_New]]:
    """Those that one commit takes, which is the first at least, and the rest."""
    size = 0
    for index, (_, record, view) in enumerate(new):
        size += len(record.encode()) + len(view.encode())
        if index and size > BATCH_BYTES_MAX:
            return new[:index], new[index:]
    return new, ()


def _refuse(wanted: _Wanted, error: BrokerError) -> None:
    if not wanted.outcome.done():
        wanted.outcome.set_exception(error)
