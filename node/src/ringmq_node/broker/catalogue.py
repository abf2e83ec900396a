"""The queues of the cluster, and this node's replicas of them.

Level-triggered: the registry's queue records say which replicas should be here, and
`_reconcile` makes it so, whatever was before. A queue that is declared or deleted on any
node reaches the others through their watch of `queues/`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from ringmq.v1 import common_pb2 as common
from ringmq_gm import LogEnd, MemberId, Role, View, first_view, ring_key
from ringmq_gm.registry.base import (
    Change,
    Changed,
    CommitUnknownError,
    Delete,
    Guard,
    KeyValue,
    Put,
    RegistryError,
    RegistryUnavailableError,
    Removed,
    Reset,
)
from ringmq_node.broker.transient import is_gone
from ringmq_node.model.reasons import BrokerError
from ringmq_node.model.records import (
    QUEUES,
    REPLICAS_MAX,
    QueueMode,
    QueueRecord,
    new_queue_id,
    queue_key,
)
from ringmq_node.replica.pieces import Pace
from ringmq_node.replica.replica import Replica
from ringmq_node.storage import StoreError

if TYPE_CHECKING:
    from ringmq_node.node import Node

logger = logging.getLogger(__name__)

REPLICAS_DEFAULT_MAX = 3
COMMIT_TRIES = 5
# How often it is looked for transient queues of which nothing is left.
GONE_POLL_S = 0.5
# How far the watch of a node may be behind the registry.
WATCH_LAG_S_MAX = 5.0


class Directory:
    """`records` by name: what the registry says. `replicas` by id: what is here."""

    def __init__(self, node: Node) -> None:
        self.records: dict[str, QueueRecord] = {}
        self.replicas: dict[str, Replica] = {}
        self._node = node
        self._keys: dict[str, str] = {}
        # By name, of the record that is here.
        self._revisions: dict[str, int] = {}
        # How far the watch is, in revisions of the registry.
        self._shown = 0
        self._changed = asyncio.Event()
        # The registry has said which queues there are; those of this node are open.
        self.answered = asyncio.Event()
        self.loaded = asyncio.Event()

    async def run(self) -> None:
        """Follows the registry until cancelled."""
        async for changes in self._node.registry.watch(QUEUES):
            for change in changes:
                self._learn_change(change)
            self.answered.set()
            await self._reconcile()
            self.loaded.set()
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    def _learn_change(self, change: Change) -> None:
        match change:
            case Reset(snapshot):
                self.records.clear()
                self._keys.clear()
                self._revisions.clear()
                for entry in snapshot.entries:
                    self._learn(entry)
                self._shown = max(self._shown, snapshot.revision)
            case Changed(entry):
                self._learn(entry)
                self._shown = max(self._shown, entry.revision)
            case Removed(key, revision):
                self._forget(key)
                self._shown = max(self._shown, revision)

    def _learn(self, entry: KeyValue) -> None:
        self._forget(entry.key)
        record = QueueRecord.decode(entry.value)
        self.records[record.name] = record
        self._keys[entry.key] = record.name
        self._revisions[record.name] = entry.revision

    def _forget(self, key: str) -> None:
        name = self._keys.pop(key, None)
        if name is not None:
            del self.records[name], self._revisions[name]

    # --- replicas ---

    async def _reconcile(self) -> None:
        if self._node.failed is not None:
            return
        wanted = {
            record.id: record
            for record in self.records.values()
            if self._node.config.node in record.nodes
        }
        for queue_id in [each for each in self.replicas if each not in wanted]:
            await self._close(queue_id)
        for queue_id, replica in self.replicas.items():
            replica.update(wanted[queue_id])
        missing = [each for queue_id, each in wanted.items() if queue_id not in self.replicas]
        if not missing:
            return
        pace = Pace("opening", len(missing))
        await pace.turn()
        for record in missing:
            # Either may have come about since the last one.
            if self._node.failed is not None or self._node.draining:
                return
            self._open(record)
            await pace.step()
        pace.end()

    def _open(self, record: QueueRecord) -> None:
        node = self._node
        try:
            store = node.store.open_queue(record.id, durable=record.durable, label=record.name)
        except StoreError as error:
            node.store_failed(error)
            return
        replica = Replica(record, store, node)
        state = store.state
        log = LogEnd(state.epoch, state.last_number)
        # Bodies that are missing don't make the log less whole: every op is there, and they
        # are fetched from whoever has them (docs/decisions/0014-damage-is-repaired-in-place.md).
        # Of a transient queue there is nothing here: it is to be fetched, never begun again.
        whole = record.durable and not store.damaged
        replica.attach(node.group.open(record.id, replica, log, log_is_whole=whole))
        self.replicas[record.id] = replica
        replica.ring.want(True)
        if store.corruptions:
            # The store has said where.
            logger.error(
                "queue %s is %r: damage in %d places, %d bodies missing%s",
                record.name,
                record.id,
                len(store.corruptions),
                len(store.missing),
                ", and ops were lost" if store.damaged else "",
            )

    async def _close(self, queue_id: str) -> None:
        replica = self.replicas.pop(queue_id)
        replica.close(common.REASON_QUEUE_NOT_FOUND)
        await self._node.group.close_ring(queue_id)
        try:
            # A node that is just starting may have removed it as a leftover meanwhile.
            if queue_id in self._node.store.queue_names():
                self._node.store.delete_queue(queue_id)
        except StoreError as error:
            self._node.store_failed(error)
        logger.info("queue %s: deleted", replica.record.name)

    def drop_leftovers(self) -> None:
        """Removes what is on disk of queues that were deleted while this node was away."""
        known = {record.id for record in self.records.values()}
        for queue_id in self._node.store.queue_names():
            if queue_id not in known:
                self._node.store.delete_queue(queue_id)

    # --- transient queues ---

    async def delete_gone(self) -> None:
        """Deletes the transient queues of which nothing is left; until cancelled."""
        while True:
            await asyncio.sleep(GONE_POLL_S)
            outside = [
                replica.record
                for replica in self.replicas.values()
                if not replica.record.durable and replica.ring.role is Role.OUTSIDE
            ]
            for record in outside:
                try:
                    await self._delete_if_gone(record)
                except RegistryError as error:
                    logger.info("queue %s: not deleted yet: %s", record.name, error)
                    break

    async def _delete_if_gone(self, record: QueueRecord) -> bool:
        """Deletes a transient queue that has nobody left (see `transient`); whether it did.

        Raises `RegistryError`.
        """
        group, registry = self._node.group, self._node.registry
        known = group.view(record.id)
        if known is None or not is_gone(known, group.known_incarnation):
            return False
        ring = await registry.get(ring_key(record.id))
        entry = await registry.get(record.key)
        if ring is None or entry is None or QueueRecord.decode(entry.value).id != record.id:
            return False
        # What was known may be old: a member may have joined, and been synchronised.
        view = View.decode(ring.value)
        if not is_gone(view, group.known_incarnation):
            return False
        revision = await registry.commit(
            [Guard(ring.key, ring.revision), Guard(entry.key, entry.revision)],
            [Delete(entry.key), Delete(ring.key)],
        )
        if revision is None:
            return False
        logger.warning(
            "queue %s: transient, and %s are gone: deleted", record.name, [*map(str, view.synced)]
        )
        return True

    # --- looking up ---

    def record_of(self, name: str) -> QueueRecord:
        record = self.records.get(name)
        if record is None:
            raise BrokerError(
                common.REASON_QUEUE_NOT_FOUND, f"there is no queue {name!r}", queue=name
            )
        return record

    def view_of(self, name: str) -> View:
        """The newest view: a replica here may know it before the watch does."""
        record = self.record_of(name)
        replica = self.replicas.get(record.id)
        known = [
            view
            for view in (
                self._node.group.view(record.id),
                replica.ring.view if replica is not None else None,
            )
            if view is not None
        ]
        if not known:
            raise BrokerError(
                common.REASON_NO_MASTER, f"queue {name!r} has no ring yet", queue=name
            )
        return max(known, key=lambda view: view.epoch)

    async def ensure_known(self, name: str) -> None:
        """Returns once this node knows of a queue that was declared before, at any node.

        What the watch has not shown yet, the registry says: a queue is not found only if
        it isn't there. Raises if the registry does not answer, or the watch lags on.
        """
        if name in self.records:
            return
        try:
            there = await self._node.registry.get(queue_key(name)) is not None
        except RegistryUnavailableError as error:
            raise registry_away() from error
        if there:
            try:
                async with asyncio.timeout(WATCH_LAG_S_MAX):
                    await self._wait_for(name, present=True)
            except TimeoutError:
                raise registry_away() from None

    def master_of(self, name: str) -> MemberId:
        """Who is master in the newest view, if that life of its node is still there."""
        master = self.view_of(name).master
        if master != self._node.me and not self._node.is_alive(master):
            raise BrokerError(
                common.REASON_NO_MASTER,
                f"queue {name!r}: its master {master} is down",
                queue=name,
            )
        return master

    def replica_of(self, name: str) -> Replica:
        replica = self.replicas.get(self.record_of(name).id)
        if replica is None:
            raise BrokerError(
                common.REASON_NO_MASTER, f"queue {name!r} is not open here yet", queue=name
            )
        return replica

    def count_roles(self) -> tuple[Counter[str], Counter[str]]:
        """How many masters and mirrors each node has, by the views that this one knows."""
        masters: Counter[str] = Counter()
        mirrors: Counter[str] = Counter()
        for view in self._node.group.views().values():
            masters[view.master.node] += 1
            mirrors.update(member.id.node for member in view.members[1:])
        return masters, mirrors

    def masters_here(self) -> list[Replica]:
        return [r for r in self.replicas.values() if r.ring.role is Role.MASTER]

    # --- declaring and deleting ---

    async def declare(
        self,
        name: str,
        replicas: int,
        min_insync: int,
        mode: QueueMode | None,
        durable: bool | None = None,
    ) -> bool:
        """Creates the queue and its first ring in one commit; returns whether it is new.

        0 and None: as it is, or the default if it is new.
        """
        for _ in range(COMMIT_TRIES):
            try:
                entry = await self._node.registry.get(queue_key(name))
                if entry is not None:
                    there = QueueRecord.decode(entry.value)
                    if not there.durable and await self._delete_if_gone(there):
                        continue
                    self._check_equivalent(there, replicas, min_insync, mode, durable)
                    await self._wait_for(name, present=True)
                    return False
                record, view = await self._place(name, replicas, min_insync)
                record = replace(
                    record, mode=mode or QueueMode.DEFAULT, durable=durable is not False
                )
                revision = await self._node.registry.commit(
                    [Guard(record.key, 0)],
                    [Put(record.key, record.encode()), Put(ring_key(record.id), view.encode())],
                )
            except RegistryUnavailableError as error:
                raise registry_away() from error
            except CommitUnknownError:
                continue
            if revision is not None:
                # Not until there is one of that name: it may be one that was deleted.
                await self.wait_shown(revision)
                return True
        raise registry_away()

    async def _place(self, name: str, replicas: int, min_insync: int) -> tuple[QueueRecord, View]:
        """The nodes with the fewest masters come first."""
        alive = await self._node.registered_members()
        if self._node.me not in alive:
            # The registry was away for longer than the leases: who is up isn't known yet.
            raise registry_away()
        wanted = replicas or min(len(alive), REPLICAS_DEFAULT_MAX)
        if wanted > min(len(alive), REPLICAS_MAX):
            raise BrokerError(
                common.REASON_LIMIT_EXCEEDED,
                f"{wanted} replicas are wanted; {len(alive)} nodes are up, "
                f"and a ring has at most {REPLICAS_MAX}",
                limit="replicas",
            )
        insync = min_insync or wanted // 2 + 1
        if insync > wanted:
            raise BrokerError(
                common.REASON_BAD_REQUEST,
                f"min_insync {insync} is above the {wanted} replicas",
                field="min_insync",
            )
        masters, mirrors = self.count_roles()
        order = sorted(alive, key=lambda m: (masters[m.node], mirrors[m.node], m.node))[:wanted]
        record = QueueRecord(name, new_queue_id(), tuple(m.node for m in order), insync)
        return record, first_view(order, insync)

    def _check_equivalent(
        self,
        record: QueueRecord,
        replicas: int,
        min_insync: int,
        mode: QueueMode | None,
        durable: bool | None,
    ) -> None:
        there: dict[str, object] = {
            "replicas": len(record.nodes),
            "min_insync": record.min_insync,
            "mode": record.mode.value,
            "durable": _yes_or_no(record.durable),
        }
        asked: dict[str, object] = {
            "replicas": replicas,
            "min_insync": min_insync,
            "mode": mode and mode.value,
            "durable": None if durable is None else _yes_or_no(durable),
        }
        for field, value in asked.items():
            if value and value != there[field]:
                raise BrokerError(
                    common.REASON_QUEUE_EXISTS,
                    f"queue {record.name!r} exists with {field} {there[field]}, not {value}",
                    queue=record.name,
                    field=field,
                )

    async def set_mode(self, name: str, mode: QueueMode) -> QueueMode:
        """Changes the record; every replica hears of it by its node's watch.

        Returns the mode that it had, once the replica here has the new one.
        """
        record = self.record_of(name)
        before: QueueMode | None = None
        for _ in range(COMMIT_TRIES):
            try:
                entry = await self._node.registry.get(record.key)
                there = None if entry is None else QueueRecord.decode(entry.value)
                if entry is None or there is None or there.id != record.id:
                    raise BrokerError(
                        common.REASON_QUEUE_NOT_FOUND, f"queue {name!r} was deleted", queue=name
                    )
                before = before or there.mode
                revision: int | None = entry.revision
                if there.mode is not mode:
                    changed = replace(there, mode=mode)
                    revision = await self._node.registry.commit(
                        [Guard(entry.key, entry.revision)], [Put(entry.key, changed.encode())]
                    )
            except RegistryUnavailableError as error:
                raise registry_away() from error
            except CommitUnknownError:
                continue
            if revision is not None:
                await self._wait_revision(name, revision)
                return before
        raise registry_away()

    async def delete(self, name: str) -> None:
        """Removes the record and the ring; every node drops its replica on hearing of it."""
        record = self.record_of(name)
        for _ in range(COMMIT_TRIES):
            try:
                entry = await self._node.registry.get(record.key)
                if entry is None or QueueRecord.decode(entry.value).id != record.id:
                    await self.wait_gone(record)
                    return
                revision = await self._node.registry.commit(
                    [Guard(record.key, entry.revision)],
                    [Delete(record.key), Delete(ring_key(record.id))],
                )
            except RegistryUnavailableError as error:
                raise registry_away() from error
            except CommitUnknownError as error:
                raise BrokerError(
                    common.REASON_OUTCOME_UNKNOWN,
                    f"queue {name!r} may have been deleted",
                    queue=name,
                ) from error
            if revision is not None:
                # Not until there is none of that name: it may have been declared again.
                await self.wait_shown(revision)
                return
        raise registry_away()

    async def _wait_for(self, name: str, *, present: bool) -> None:
        """Until the watch has shown it; the caller has the deadline."""
        while (name in self.records) is not present:
            await self._changed.wait()

    async def wait_shown(self, revision: int) -> None:
        """Until the watch has come to this revision; the caller has the deadline."""
        while self._shown < revision:
            await self._changed.wait()

    async def wait_gone(self, record: QueueRecord) -> None:
        """Until the watch has shown that this queue was deleted; the caller has the deadline."""
        while (shown := self.records.get(record.name)) is not None and shown.id == record.id:
            await self._changed.wait()

    async def _wait_revision(self, name: str, revision: int) -> None:
        """Until the watch has shown this record or a later one, or that the queue is gone."""
        while self._revisions.get(name, revision) < revision:
            await self._changed.wait()


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


def registry_away() -> BrokerError:
    """The refusal of what needs the registry, while it is away."""
    return BrokerError(
        common.REASON_REGISTRY_UNAVAILABLE, "the registry does not answer; data goes on"
    )
