"""One replica of a queue on this node: the ring's member, the store and the queue, joined.

A shell: it passes what comes from one to the others and carries out their effects.
What is decided is decided in `ringmq_gm.core.member` (who is master, what is safe),
`queue.state` (what the ops add up to) and `queue.master` (who gets which message).

    publish  -> ring.multicast -> deliver -> store.append -> on_durable -> ring.persisted
             -> watermarks -> QueueMaster -> confirms and deliveries to the sessions

A replica serves clients while it is the master and has sent its first op, the
`Requeue` of all that is live: what its predecessor had given out may have been
processed, and every replica has to know (the op that RabbitMQ's promotion lacked
for twelve years, issue 7579).
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Protocol

from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_base.ranges import Range
from ringmq_gm import MemberId, Ring, RingClosedError, RingFailedError, Role, View
from ringmq_node.model.reasons import BrokerError
from ringmq_node.model.records import QueueMode, QueueRecord, mode_to_wire
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.consumers import NotOutstandingError
from ringmq_node.queue.effects import (
    ConfirmSequences,
    DeliverRuns,
    Effect,
    MulticastOp,
    ReportSettled,
)
from ringmq_node.queue.master import QueueMaster
from ringmq_node.queue.ops import Op, Publish, Remove, Requeue
from ringmq_node.queue.run import Run
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.replica.fetching import Fetched
from ringmq_node.replica.joining import Joining
from ringmq_node.replica.reading import MasterBodies
from ringmq_node.replica.repair import Repair
from ringmq_node.storage import QueueStore, StoreError

logger = logging.getLogger(__name__)

# How often a master that hands over looks whether that came to nothing.
HAND_OVER_POLL_S = 0.05
# How long a get waits for the first confirm after a take-over.
INHERITANCE_WAIT_S = 1.0
# And for the repair of a message that is the next one.
REPAIR_WAIT_S = 5.0


class PublisherSession(Protocol):
    """A publish stream, as its queue sees it."""

    def confirmed(self, sequences: Sequence[Range]) -> None: ...
    def moved(self, reason: common.Reason.ValueType) -> None: ...


class ConsumerSession(Protocol):
    """A consume stream, as its queue sees it."""

    def delivered(self, runs: Sequence[Run]) -> None: ...
    def settled(self, positions: Sequence[Range]) -> None: ...
    def moved(self, reason: common.Reason.ValueType) -> None: ...


class Host(Protocol):
    """What a replica wants of its node."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]: ...
    def store_failed(self, error: StoreError) -> None: ...
    async def sync_store(self) -> None: ...
    async def fetch_state(
        self, queue_id: str, source: MemberId, number_min: int
    ) -> ReplicatedState: ...
    def fetch_messages(
        self, queue_id: str, source: MemberId, ranges: Sequence[Range]
    ) -> AsyncIterator[Fetched]: ...


class Replica:
    """Created with the queue's store opened; `attach` gives it its ring."""

    ring: Ring

    def __init__(self, record: QueueRecord, store: QueueStore, host: Host) -> None:
        self.record = record
        self.store = store
        self.master: QueueMaster | None = None
        self._host = host
        self._ids = count(1)
        self._publishers: dict[int, PublisherSession] = {}
        # By producer id, the only session that publishes for it.
        self._producers: dict[bytes, int] = {}
        self._consumers: dict[int, ConsumerSession] = {}
        self._waiting: dict[int, asyncio.Future[None]] = {}
        # Ops that the ring could not take at once.
        self._held_ops: deque[Remove | Requeue] = deque()
        self._sending = False
        self._waiting_to_send = False
        # The op that this node is about to deliver to itself, decoded already.
        self._own_op: Op | None = None
        self._watermarks = (0, 0)
        self._was_master = False
        self._joining: Joining | None = None
        self._repair = Repair(store, self)
        self._changed = asyncio.Event()
        self._number_waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        if record.mode is not QueueMode.DEFAULT:
            store.set_lazy(record.mode is QueueMode.LAZY)

    def attach(self, ring: Ring) -> None:
        self.ring = ring

    def update(self, record: QueueRecord) -> None:
        """The registry's record of this queue, changed or not."""
        before, self.record = self.record, record
        if record.mode is not before.mode:
            self.store.set_lazy(record.mode is QueueMode.LAZY)
            logger.info("queue %s: mode %s", record.name, record.mode.value)

    @property
    def view(self) -> View:
        """The newest view; only once there is one."""
        view = self.ring.view
        assert view is not None, self.record
        return view

    # --- what the ring says (ringmq_gm.Application) ---

    def deliver(self, number: int, epoch: int, payload: bytes) -> None:
        if self._joining is not None and self._joining.holds_back(number, epoch, payload):
            return
        self.apply(number, epoch, payload)

    def apply(self, number: int, epoch: int, payload: bytes) -> None:
        """Applies the op to the state and begins to write it."""
        op, self._own_op = self._own_op, None
        try:
            if epoch > self.store.state.epoch:
                self.store.begin_epoch(epoch)
            self.store.append(number, ops.decode(payload) if op is None else op, payload)
        except StoreError as error:
            self._host.store_failed(error)
        while self._number_waiters and self._number_waiters[0][0] <= number:
            waiter = heapq.heappop(self._number_waiters)[2]
            if not waiter.done():
                waiter.set_result(None)

    def durable(self) -> None:
        """The store says that more is on disk."""
        self.ring.persisted(self.store.durable_number)

    def watermarks(self, received: int, persisted: int) -> None:
        self._watermarks = (received, persisted)
        if self.master is not None:
            hidden = self.master.hides_inheritance
            self._carry_out(self.master.watermarks(received, persisted))
            self._send_held_ops()
            if hidden:
                self._wake()

    def role_changed(self, role: Role, view: View) -> None:
        if role is Role.MASTER:
            if not self._was_master:
                self._was_master = True
                self._host.spawn(self._take_over(view.epoch), f"take over {self.record.name}")
        else:
            self._step_down()
        if role is Role.OUTSIDE:
            self._stop_joining()
        self._repair.view_changed(active=role in (Role.MASTER, Role.MIRROR))
        self._wake()

    def start_catch_up(self, number: int, source: MemberId) -> None:
        self._stop_joining()
        self._watermarks = (0, 0)
        self._joining = Joining(self.store, number, apply=self.apply, sync=self._host.sync_store)
        self._host.spawn(self._catch_up(self._joining), f"catch up {self.record.name}")

    def ring_deleted(self) -> None:
        self.close(common.REASON_QUEUE_NOT_FOUND)

    # --- becoming and ceasing to be master ---

    async def _take_over(self, epoch: int) -> None:
        """Everything that is live may have been delivered by the one before."""
        if not await self._wait_taking() or self.master is not None:
            return
        live = self.store.state.live
        if live:
            self._multicast(Requeue(((live.first, live.last),)))
        bodies = MasterBodies(self.store, self._host.store_failed)
        self.master = QueueMaster(self.store.state, bodies)
        self._carry_out(self.master.give_up(self._repair.given_up))
        self._carry_out(self.master.watermarks(*self._watermarks))
        self._wake()
        logger.info("queue %s: master since epoch %d", self.record.name, epoch)

    async def _wait_taking(self) -> bool:
        """Until the ring takes ops; False if this is not its master any more."""
        try:
            while self.ring.role is Role.MASTER:
                await self.ring.wait_writable()
                if self.ring.refusal() is None:
                    return True
                await asyncio.sleep(HAND_OVER_POLL_S)
        except (RingClosedError, RingFailedError):
            logger.info("queue %s: its ring has ended", self.record.name)
        return False

    def _step_down(self) -> None:
        self._was_master = False
        self._end_sessions(common.REASON_NOT_MASTER)

    def _end_sessions(self, reason: common.Reason.ValueType) -> None:
        self.master = None
        self._held_ops.clear()
        publishers, self._publishers = self._publishers, {}
        self._producers.clear()
        consumers, self._consumers = self._consumers, {}
        waiting, self._waiting = self._waiting, {}
        for publisher in publishers.values():
            publisher.moved(reason)
        for consumer in consumers.values():
            consumer.moved(reason)
        for future in waiting.values():
            if not future.done():
                future.set_exception(
                    BrokerError(
                        common.REASON_OUTCOME_UNKNOWN,
                        f"queue {self.record.name!r}: the master changed meanwhile",
                        queue=self.record.name,
                    )
                )

    def close(self, reason: common.Reason.ValueType) -> None:
        """No more is served from this replica."""
        self._stop_joining()
        self._repair.stop()
        self._end_sessions(reason)
        self._wake()

    # --- catching up ---

    def _stop_joining(self) -> None:
        if self._joining is not None:
            self._joining.cancelled = True
            self._joining = None

    async def _catch_up(self, joining: Joining) -> None:
        await joining.run(
            fetch_state=lambda number: self._host.fetch_state(
                self.record.id, self.view.master, number
            ),
            fetch_messages=lambda ranges: self.fetch_from(self.view.master, ranges),
            others=lambda: [
                partial(self.fetch_from, source)
                for source in self.synchronised_others()
                if source != self.view.master
            ],
        )
        if not joining.cancelled:
            self._joining = None
            self.ring.caught_up(self.store.durable_number)
            logger.info("queue %s: caught up", self.record.name)

    # --- damaged bodies (`repair.Owner`) ---

    @property
    def queue_name(self) -> str:
        return self.record.name

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._host.spawn(work, name)

    def synchronised_others(self) -> list[MemberId]:
        return [member for member in self.view.synced if member != self.ring.me]

    def fetch_from(self, source: MemberId, ranges: Sequence[Range]) -> AsyncIterator[Fetched]:
        return self._host.fetch_messages(self.record.id, source, ranges)

    def bodies_lost(self) -> None:
        if self.master is not None:
            self._carry_out(self.master.lost())

    def bodies_filled(self, first: int, last: int) -> None:
        if self.master is not None:
            self._carry_out(self.master.filled(first, last))
            self._wake()

    def bodies_given_up(self, ranges: Sequence[Range]) -> None:
        if self.master is not None:
            self._carry_out(self.master.give_up(ranges))
            self._wake()

    async def _wait_repaired(self) -> None:
        """While the message that comes next is being repaired; raises if that takes too long."""
        try:
            async with asyncio.timeout(REPAIR_WAIT_S):
                while self.master is not None and self.master.is_held:
                    await self._changed.wait()
        except TimeoutError:
            raise BrokerError(
                common.REASON_REPAIRING,
                f"queue {self.record.name!r}: its next message is damaged here, and is being "
                "fetched from another replica",
                queue=self.record.name,
            ) from None

    # --- ops of this master ---

    def _multicast(self, op: Op) -> int:
        self._own_op = op
        # In a transient queue "persisted" is no later than "received": nobody is to say both.
        urgent = isinstance(op, Publish) and op.transient and self.record.durable
        try:
            return self.ring.multicast(ops.encode(op), urgent=urgent)
        finally:
            # If it was not taken, the next op that is delivered is another one.
            self._own_op = None

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case MulticastOp(op):
                    self._held_ops.append(op)
                    self._send_held_ops()
                case DeliverRuns(consumer, runs):
                    self._consumers[consumer].delivered(runs)
                case ConfirmSequences(publisher, sequences):
                    session = self._publishers.get(publisher)
                    if session is not None:
                        session.confirmed(sequences)
                case ReportSettled(consumer, positions):
                    self._settled(consumer, positions)

    def _settled(self, consumer: int, positions: Sequence[Range]) -> None:
        session = self._consumers.get(consumer)
        if session is not None:
            session.settled(positions)
        future = self._waiting.pop(consumer, None)
        if future is not None and not future.done():
            future.set_result(None)

    def _send_held_ops(self) -> None:
        """Removes and requeues, in their order, as far as the ring takes them."""
        if self._sending:
            return
        self._sending = True
        try:
            while self._held_ops and self.master is not None and self.ring.refusal() is None:
                op = self._held_ops.popleft()
                number = self._multicast(op)
                self._carry_out(self.master.applied(number, op))
        finally:
            self._sending = False
        if self._held_ops and not self._waiting_to_send:
            self._waiting_to_send = True
            self._host.spawn(self._send_when_taken(), f"held ops of {self.record.name}")

    async def _send_when_taken(self) -> None:
        """Nothing else may happen on this queue that would send them."""
        taking = await self._wait_taking()
        self._waiting_to_send = False
        if taking:
            self._send_held_ops()

    # --- what sessions ask ---

    def serving(self) -> QueueMaster:
        """The master's core; raises if this replica can't serve now."""
        if self.master is None or self.ring.role is not Role.MASTER:
            raise BrokerError(
                common.REASON_NO_MASTER
                if self.ring.role is Role.MASTER
                else common.REASON_NOT_MASTER,
                f"queue {self.record.name!r}: this node is not its master now",
                queue=self.record.name,
            )
        return self.master

    async def wait_serving(self) -> None:
        """Returns when this replica serves as master; the caller has the deadline."""
        while self.master is None:
            changed = self._changed
            await changed.wait()

    async def wait_number(self, number: int) -> None:
        """Returns when the op has been applied here; the caller has the deadline."""
        if self.store.state.last_number < number:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._number_waiters, (number, next(self._ids), waiter))
            await waiter

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def open_publisher(self, session: PublisherSession, producer_id: bytes) -> tuple[int, int]:
        """Returns the session's number, and the last sequence of its producer.

        That holds until this session publishes: an earlier one of the producer is ended. What is
        still on its way there comes to nothing, or its client, who has been told what there is,
        would send it once more.
        """
        self.serving()
        number = next(self._ids)
        self._publishers[number] = session
        if producer_id:
            earlier = self._producers.get(producer_id)
            self._producers[producer_id] = number
            fenced = self._publishers.pop(earlier, None) if earlier is not None else None
            if fenced is not None:
                fenced.moved(common.REASON_PRODUCER_FENCED)
        return number, self.store.state.producers.get(producer_id, 0)

    def close_publisher(self, number: int, producer_id: bytes) -> None:
        self._publishers.pop(number, None)
        if self._producers.get(producer_id) == number:
            del self._producers[producer_id]

    def publish(
        self,
        publisher: int,
        producer_id: bytes,
        first_sequence: int,
        bodies: Sequence[bytes],
        properties: Sequence[bytes],
        *,
        transient: bool,
    ) -> None:
        """Enqueues a batch, without what was enqueued before; confirms come to the session."""
        master = self.serving()
        self._check_writable()
        if publisher not in self._publishers:
            raise BrokerError(
                common.REASON_PRODUCER_FENCED,
                f"queue {self.record.name!r}: a newer stream has this producer id",
                queue=self.record.name,
            )
        transient = transient or not self.record.durable
        last_sequence = first_sequence + len(bodies) - 1
        known = self._last_sequence(producer_id, first_sequence)
        if known >= first_sequence:
            repeated = min(known, last_sequence)
            self._carry_out(
                master.repeated(publisher, (first_sequence, repeated), transient=transient)
            )
            skip = repeated - first_sequence + 1
            bodies = bodies[skip:]
            properties = properties[skip:] if len(properties) > 1 else properties
            first_sequence = repeated + 1
        if not bodies:
            return
        op = Publish(
            first_position=self.store.state.next_position,
            block=Block.of(bodies, properties),
            transient=transient,
            producer_id=producer_id,
            first_sequence=first_sequence,
        )
        number = self._multicast(op)
        self._carry_out(master.published(number, op, publisher))

    def _last_sequence(self, producer_id: bytes, first_sequence: int) -> int:
        """What the queue has of this producer; raises unless the batch follows it or repeats."""
        if not producer_id:
            return 0
        known = self.store.state.producers.get(producer_id)
        if known is None and first_sequence != 1:
            raise BrokerError(
                common.REASON_UNKNOWN_PRODUCER,
                f"queue {self.record.name!r} knows nothing of this producer, "
                f"whose batch begins with {first_sequence}",
                queue=self.record.name,
            )
        if first_sequence > (known or 0) + 1:
            raise BrokerError(
                common.REASON_SEQUENCE_GAP,
                f"the batch begins with {first_sequence}, {(known or 0) + 1} is next",
                queue=self.record.name,
                expected=(known or 0) + 1,
            )
        return known or 0

    def _check_writable(self) -> None:
        view = self.view
        if not self.ring.has_quorum:
            raise BrokerError(
                common.REASON_TOO_FEW_SYNCHRONISED,
                f"queue {self.record.name!r}: {len(view.synced)} replicas are synchronised, "
                f"{view.min_insync} are wanted",
                queue=self.record.name,
                synchronised=len(view.synced),
                min_insync=view.min_insync,
            )
        refusal = self.ring.refusal()
        if refusal is not None:
            raise BrokerError(
                common.REASON_DRAINING,
                f"queue {self.record.name!r} takes nothing now: {refusal.value}",
                queue=self.record.name,
            )

    def open_consumer(
        self, session: ConsumerSession, prefetch_messages: int, prefetch_bytes: int
    ) -> tuple[int, Callable[[], None]]:
        """Returns the session's number and what begins the deliveries."""
        master = self.serving()
        number = next(self._ids)
        self._consumers[number] = session

        def begin() -> None:
            if self.master is master:
                self._carry_out(master.consumer_opened(number, prefetch_messages, prefetch_bytes))

        return number, begin

    def settle(self, consumer: int, *, removed: Sequence[Range], requeued: Sequence[Range]) -> None:
        master = self.serving()
        try:
            self._carry_out(master.settle(consumer, removed=removed, requeued=requeued))
        except NotOutstandingError as error:
            raise BrokerError(
                common.REASON_UNKNOWN_DELIVERY,
                str(error),
                queue=self.record.name,
                first=error.first,
                last=error.last,
            ) from error

    def cancel_consumer(self, consumer: int) -> None:
        if self.master is not None and consumer in self.master.consumers:
            self.master.consumer_cancelled(consumer)

    def close_consumer(self, consumer: int) -> None:
        self._consumers.pop(consumer, None)
        if self.master is not None and consumer in self.master.consumers:
            self._carry_out(self.master.consumer_closed(consumer))

    # --- without a stream ---

    async def take(self, messages_max: int, bytes_max: int) -> list[Run]:
        """Removes messages from the queue, and returns them when that is safe."""
        await self._wait_inheritance()
        while True:
            master = self.serving()
            self._check_writable()
            number = next(self._ids)
            runs = master.take(number, messages_max, bytes_max)
            if runs:
                await self._wait_settled(number, master.flush())
            elif master.is_held:
                await self._wait_repaired()
                continue
            return runs

    async def _wait_inheritance(self) -> None:
        """A queue whose master has just changed is not empty: a trip around the ring, and what
        was there can be seen. (Without a quorum there is no such trip.)"""
        with suppress(TimeoutError):
            async with asyncio.timeout(INHERITANCE_WAIT_S):
                while self.master is not None and self.master.hides_inheritance:
                    await self._changed.wait()

    async def peek(self, messages_max: int, bytes_max: int) -> list[Run]:
        await self._wait_inheritance()
        while True:
            master = self.serving()
            runs = master.peek(messages_max, bytes_max)
            if runs or not master.is_held:
                return runs
            await self._wait_repaired()

    async def purge(self) -> int:
        return await self._remove_all(self.serving().purge)

    async def discard_damaged(self) -> int:
        """Removes the messages whose bodies nobody has; returns how many."""
        return await self._remove_all(self.serving().discard_damaged)

    async def _remove_all(self, remove: Callable[[int], tuple[int, list[Effect]]]) -> int:
        self._check_writable()
        number = next(self._ids)
        removed, effects = remove(number)
        if removed:
            self._wake()
            await self._wait_settled(number, effects)
        return removed

    async def _wait_settled(self, number: int, effects: list[Effect]) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._carry_out(effects)
        try:
            await future
        finally:
            self._waiting.pop(number, None)

    def info(self) -> broker.QueueInfo:
        """As this replica sees the queue; depths and consumers only if it is the master."""
        ring, state, master = self.ring, self.store.state, self.master
        marks = ring.marks()
        info = broker.QueueInfo(
            queue=self.record.name,
            id=self.record.id,
            replicas_wanted=len(self.record.nodes),
            min_insync=self.record.min_insync,
            mode=mode_to_wire(self.record.mode),
            durable=self.record.durable,
            next_position=state.next_position,
            digest=state.digest(),
            stable=min((mark.received for mark in marks.values()), default=0),
            epoch=self.view.epoch,
            state=self._queue_state(),
        )
        for member in self.view.members:
            mark = marks.get(member.id)
            info.ring.add(
                node=member.id.node,
                incarnation=member.id.incarnation,
                synchronised=member.synced,
                received=mark.received if mark else 0,
                persisted=mark.persisted if mark else 0,
            )
        if master is not None:
            info.messages_ready = len(master.ready)
            info.messages_unacknowledged = master.unacknowledged
            info.messages_damaged = len(master.damaged)
            info.bytes_ready = master.ready_bytes
            info.bytes_unacknowledged = master.unacknowledged_bytes
            info.consumers = len(master.consumers)
            info.publishers = len(self._publishers)
            info.published_total = master.published_total
            info.acknowledged_total = master.acknowledged_total
        return info

    def _queue_state(self) -> broker.QueueState.ValueType:
        if self.master is None:
            return broker.QUEUE_STATE_DOWN
        if not self.ring.has_quorum:
            return broker.QUEUE_STATE_MINORITY
        if self.ring.refusal() is not None:
            return broker.QUEUE_STATE_FLOW
        return broker.QUEUE_STATE_RUNNING
