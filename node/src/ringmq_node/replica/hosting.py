"""This node's replicas: opened and closed until they match the catalogue.

Level-triggered: `reconcile` gets the queue records that have changed, as they are now, compares
them with the open replicas, and makes these match. After a start, and after a gap in the watch,
these are all records. So a record that changed twice while the watch was away, or a restart half
way, needs no case of its own.

A replica whose ring has failed, or that can't be opened, is quarantined: it is closed, its files
stay as they are, and the node's other replicas go on. `failed` says which and why, until the node
is started again or the queue is deleted. If it leaves this node meanwhile, its files go. When it
comes back in the same life of the node, it is quarantined at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from ringmq_base.limits import GIB
from ringmq_base.pieces import Pieces
from ringmq_gm import Group, LogEnd, Role
from ringmq_node.model.policies import Wanted
from ringmq_node.model.reasons import BrokerError, Reason, quarantined
from ringmq_node.model.records import QueueRecord
from ringmq_node.replica.fetching import Sources
from ringmq_node.replica.interleaver import Interleaver
from ringmq_node.replica.leftovers import Leftovers
from ringmq_node.replica.letter_desk import LetterDesk, LetterPublisher
from ringmq_node.replica.replica import Replica
from ringmq_node.replica.set_asides import SetAsides
from ringmq_node.replica.turns import CatchUpTurns, TakeOverTurns
from ringmq_node.resources.garbage import Garbage
from ringmq_node.storage import QueueStore, Store, StoreError
from ringmq_node.storage.errors import UnsupportedFormatError, is_of_one_queue

logger = logging.getLogger(__name__)

# More records than this that come at once aren't those of a batch of declares: a node is starting.
DECLARED_AT_ONCE_MAX = 100

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Hosting:
    """The replicas of one node, by queue id. It is each replica's `ReplicaHost`."""

    def __init__(
        self,
        store: Store,
        group: Group,
        *,
        sources: Sources,
        spawn: Spawn,
        store_failed: Callable[[StoreError], None],
        disk_is_trusted: bool,
        leftover_s: float,
        set_aside_s: float,
        set_aside_bytes_max: int = GIB,
        wanted_of: Callable[[QueueRecord], Wanted] | None = None,
        time_step_ms: int = 60_000,
        now_ms: Callable[[], int] = _now_ms,
    ) -> None:
        """`disk_is_trusted`: every message that this node has confirmed is on its disk.
        `wanted_of` says what policies want of a queue; without it there are none.

        `spawn` starts a task whose failure is the node's. `store_failed` is told once of an error
        after which nothing may be promised any more.
        """
        self.time_step_ms = time_step_ms
        self.now_ms = now_ms
        self.replicas: dict[str, Replica] = {}
        # Those of transient queues: few, and looked at again and again.
        self.transient: dict[str, Replica] = {}
        # Why a replica is quarantined here, with its queue's record, by queue id.
        self.failed: dict[str, tuple[QueueRecord, str]] = {}
        # Queues whose replicas are about to be opened here, or deleted.
        self._under_way: set[str] = set()
        # Whoever opens and closes replicas.
        self._turn = asyncio.Lock()
        self.leftovers = Leftovers(store, keep_s=leftover_s, disk_is_trusted=disk_is_trusted)
        self.set_asides = SetAsides(
            store.disk,
            store.errands,
            store.directory,
            node=group.me.node,
            keep_s=set_aside_s,
            bytes_max=set_aside_bytes_max,
        )
        self.sources = sources
        self.catch_up_turns = CatchUpTurns()
        self.take_over_turns = TakeOverTurns()
        self._store = store
        self._group = group
        self._spawn = spawn
        self._store_failed = store_failed
        self._disk_is_trusted = disk_is_trusted
        self._wanted_of = wanted_of
        self._garbage = Garbage()
        self._opens = True
        self._closed = False
        self.letter_desk: LetterDesk
        # Told of a queue whose record or view has changed here, by its id.
        self.on_changed: Callable[[str], None] = lambda queue_id: None
        # Told of a queue whose master is here and that nobody has used for its `expires_ms`.
        self.on_unused: Callable[[Replica], object] = lambda replica: None

    def begin(self, publisher: LetterPublisher, properties_bytes_max: int) -> None:
        """What dead letters leave by. Before any replica is opened."""
        self.letter_desk = LetterDesk(publisher, properties_bytes_max, self.now_ms)

    # --- for replicas (`ReplicaHost`) ---

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._spawn(work, name)

    def store_failed(self, error: StoreError) -> None:
        self._store_failed(error)

    def mark_whole(self, store: QueueStore) -> None:
        try:
            self._store.mark_whole(store)
        except StoreError as error:
            self._store_failed(error)

    def replica_failed(self, replica: Replica, reason: str) -> None:
        record = replica.record
        if self.replicas.get(record.id) is replica:
            self._forget(record.id)
            self._store.abandon(replica.store)
            self._quarantine(record, reason)

    def _forget(self, queue_id: str) -> Replica:
        self.transient.pop(queue_id, None)
        return self.replicas.pop(queue_id)

    def _quarantine(self, record: QueueRecord, reason: str) -> None:
        self.failed[record.id] = (record, reason)
        logger.error(
            "queue %s is %r: quarantined on this node until it is started again or the queue is "
            "deleted: %s",
            record.name,
            record.id,
            reason,
        )

    async def sync_store(self) -> None:
        await self._store.sync()

    def view_changed(self, replica: Replica) -> None:
        self._garbage.view_entered()
        self.on_changed(replica.record.id)
        if self._is_left(replica):
            self._spawn(self._close_left(replica), f"leaving {replica.record.name}")

    def queue_unused(self, replica: Replica) -> None:
        self.on_unused(replica)

    # --- opening and closing ---

    async def reconcile(self, touched: Mapping[str, QueueRecord | None]) -> None:
        """Opens, updates and closes replicas. `touched` by queue id: the record as it is now, of
        any queue of the cluster, or None if it is gone."""
        async with self._turn:
            await self._reconcile(touched)

    async def _reconcile(self, touched: Mapping[str, QueueRecord | None]) -> None:
        if self._closed:
            return
        me = self._group.me.node
        missing: list[QueueRecord] = []
        pieces = Pieces()
        for queue_id, record in touched.items():
            replica = self.replicas.get(queue_id)
            if record is not None and replica is not None and self._stays(replica, record):
                replica.update(record)
                self.on_changed(queue_id)
            elif record is None or me not in record.nodes:
                self._under_way.add(queue_id)
                if replica is not None:
                    await self._close(queue_id, record)
                elif queue_id in self.failed:
                    await self._remove_failed(queue_id)
                self._under_way.discard(queue_id)
            elif replica is not None:
                if replica.record != record:
                    replica.update(record)
                    self._configure(replica)
                    self.on_changed(queue_id)
            elif queue_id not in self.failed:
                self._under_way.add(queue_id)
                missing.append(record)
            await pieces.step()
        if missing:
            await self._open_all(missing)
        self._under_way.clear()

    def _stays(self, replica: Replica, record: QueueRecord) -> bool:
        """Whether a replica that its record doesn't name is in its ring all the same.

        It may have everything that was confirmed, and count as such, so it has to leave the ring
        before its files go (docs/decisions/0253-a-replica-leaves-before-it-is-deleted.md):
        1. b isn't in the ring, so the record is changed to name a and c only, 2. b, which hasn't
        heard of it, joins and is synchronised, 3. b hears, and deletes its replica, 4. a and c
        die, and b is named again: it begins the ring from nothing.
        """
        me = self._group.me
        if me.node in record.nodes:
            return False
        view = self._group.view(record.id)
        return view is not None and (me in view.ids or me in view.candidates)

    async def _close_left(self, replica: Replica) -> None:
        """The replica, which its record doesn't name, is out of its ring."""
        async with self._turn:
            record = replica.record
            is_open = self.replicas.get(record.id) is replica and not self._closed
            if is_open and self._is_left(replica):
                self._under_way.add(record.id)
                await self._close(record.id, record)
                self._under_way.discard(record.id)

    def _is_left(self, replica: Replica) -> bool:
        is_named = self._group.me.node in replica.record.nodes
        return not is_named and not self._stays(replica, replica.record)

    async def _open_all(self, records: list[QueueRecord]) -> None:
        interleaver = Interleaver("opening", len(records))
        if len(records) > DECLARED_AT_ONCE_MAX:
            await interleaver.turn()
        for record in records:
            # The store may have failed, or the node begun to stop, since the last piece.
            if self._closed or not self._opens:
                return
            try:
                await self._open(record)
            except Exception as error:
                # One queue's files, or a bug that they meet: no reason to serve no other queue.
                logger.exception("queue %s can't be opened", record.name)
                self._quarantine(record, f"it can't be opened: {error!r}")
            await interleaver.step()
        interleaver.end()

    async def _open(self, record: QueueRecord) -> None:
        if self._group.has_failed(record.id):
            # The others would put it out of the ring as often as it joined.
            self._quarantine(record, "it has failed before, and left the node since")
            return
        try:
            found = await self._store.recover(record.id) if record.durable else None
            if self._closed or not self._opens:
                return
            store = self._store.open_queue(
                record.id,
                durable=record.durable,
                label=record.name,
                partial=not self._disk_is_trusted,
                found=found,
            )
        except UnsupportedFormatError as error:
            self._quarantine(record, str(error))
            return
        except StoreError as error:
            if is_of_one_queue(error):
                self._quarantine(record, str(error))
            else:
                self._store_failed(error)
            return
        self.leftovers.claim(record.id)
        replica = Replica(record, store, self)
        state = store.state
        log = LogEnd(state.epoch, state.last_number)
        # Missing bodies don't make the log less whole: every op is there, and the bodies are
        # fetched from members that have them (docs/decisions/0014-damage-is-repaired-in-place.md).
        # A transient queue has nothing on disk. This replica has to fetch its state, and may
        # never begin the ring again from nothing. The same holds for one on a disk that was lost
        # or restored, until the ring has counted it as synchronised.
        whole = record.durable and not store.damaged and not store.partial
        self._configure(replica)
        replica.attach(self._group.open(record.id, replica, log, log_is_whole=whole))
        self.replicas[record.id] = replica
        if not record.durable:
            self.transient[record.id] = replica
        self._garbage.opened()
        replica.ring.want(self._group.me.node not in record.leaving)
        if store.corruptions:
            # The store has logged the places.
            logger.error(
                "queue %s is %r: damage in %d places, %d bodies missing%s",
                record.name,
                record.id,
                len(store.corruptions),
                len(store.missing),
                ", and ops were lost" if store.damaged else "",
            )

    def configure_all(self) -> None:
        """The policies have changed, or which nodes there are."""
        for replica in self.replicas.values():
            self._configure(replica)

    def _configure(self, replica: Replica) -> None:
        if self._wanted_of is not None:
            replica.configure(self._wanted_of(replica.record))

    async def _close(self, queue_id: str, record: QueueRecord | None) -> None:
        """The queue was deleted, or its replica here: then the ring goes on elsewhere."""
        replica = self._forget(queue_id)
        replica.close(Reason.QUEUE_NOT_FOUND)
        self.on_changed(queue_id)
        # Whoever has moved it away takes the end of a joiner's log for worthless.
        may_be_missed = record is not None and self._may_be_missed(replica)
        await self._group.close_ring(queue_id)
        try:
            if may_be_missed:
                self.leftovers.keep_back(queue_id)
                return
            if self._store.knows(queue_id):
                self._store.delete_queue(queue_id)
        except StoreError as error:
            self._store_failed(error)
        logger.info("queue %s: the replica is deleted", replica.record.name)

    def _may_be_missed(self, replica: Replica) -> bool:
        """Whether the ring was begun again without the end of this replica's log, and that end was
        not cut yet, so not set aside."""
        state, view = replica.store.state, self._group.view(replica.record.id)
        if view is None or not replica.record.durable or not state.live:
            return False
        return view.overrules(state.epoch, state.last_number) is not None

    async def _remove_failed(self, queue_id: str) -> None:
        record, _ = self.failed.pop(queue_id)
        await self._group.close_ring(queue_id)
        try:
            if self._store.knows(queue_id):
                self._store.delete_queue(queue_id)
        except StoreError as error:
            self._store_failed(error)
        logger.info("queue %s: deleted", record.name)

    async def drop_leftovers(self, records: Iterable[QueueRecord]) -> None:
        """Keeps the data of queues that no record names here for a while; see `leftovers`."""
        me = self._group.me.node
        known = {record.id for record in records if me in record.nodes}
        try:
            left = [each for each in self._store.queue_names() if each not in known]
            await self.leftovers.keep(left, self.is_used)
        except StoreError as error:
            self._store_failed(error)

    def is_used(self, queue_id: str) -> bool:
        """Whether a queue's files here are no leftover, or not to be touched now."""
        return (
            self._closed
            or queue_id in self.replicas
            or queue_id in self.failed
            or queue_id in self._under_way
        )

    def trust_disk(self) -> None:
        """Every replica of a disk that wasn't trusted has been opened, and marked as partial."""
        self._disk_is_trusted = True

    def stop_opening(self) -> None:
        """The node stops: a replica that is opened now would join rings only to leave them."""
        self._opens = False

    def close_all(self, reason: Reason) -> None:
        """Ends every replica's service, and opens none any more."""
        self._closed = True
        for replica in self.replicas.values():
            replica.close(reason)

    async def close_in_pieces(self, reason: Reason) -> None:
        """`close_all` of a node that stops in good order: others still hear its heartbeats."""
        self._closed = True
        pieces = Pieces()
        for replica in [*self.replicas.values()]:
            replica.close(reason)
            await pieces.step()

    def durable(self, queue: QueueStore) -> None:
        """The store has more of this queue on disk."""
        replica = self.replicas.get(queue.queue)
        if replica is not None:
            try:
                replica.durable()
            except Exception as error:
                # Called by the loop: nobody else would end the replica, and its ring would wait.
                replica.ring.fail(error)

    # --- looking up ---

    def replica_of(self, record: QueueRecord) -> Replica:
        """Raises `BrokerError` while the queue isn't open here."""
        replica = self.replicas.get(record.id)
        if replica is None and record.id in self.failed:
            raise quarantined(
                record.name, f"on node {self._group.me.node!r}: {self.failed[record.id][1]}"
            )
        if replica is None:
            raise BrokerError(
                Reason.NO_MASTER,
                f"queue {record.name!r} is not open here yet",
                queue=record.name,
            )
        return replica

    def masters(self) -> list[Replica]:
        """The replicas here that are their ring's master."""
        return [replica for replica in self.replicas.values() if replica.ring.role is Role.MASTER]
