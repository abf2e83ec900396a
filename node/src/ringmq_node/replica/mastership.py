"""One replica's time as master of its queue: sessions, ops, and waits that end with it.

A `Mastership` is made when the take-over op has been sent, and ended (`end`) when another member
becomes master, or the queue is deleted, or the node leaves its rings. It is never revived: a
replica that becomes master again gets a new one. So no field here means "not master yet", and
nothing that a client asked of one mastership can be answered by the next.

    publish  -> multicast -> (replica: deliver, append, persisted) -> watermarks
             -> QueueMaster -> confirms and deliveries to the sessions

It decides nothing about messages: `queue.master` does. It decides nothing about limits or
deletion either: those checks are the broker's (`broker.publishing`), which every door goes through.

Invariants:
* a session is registered from its opening to its close, its `moved`, or the end;
* ops leave in the order in which the core asked for them (`AskedOps`), also when the ring refuses
  one;
* each future in `_waits` is resolved by `ReportSettled` or `ReportBarrier`, or fails when the
  mastership ends: an opening with the reason, all others with OUTCOME_UNKNOWN.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from ringmq_base.notifier import Notifier
from ringmq_base.ranges import Range
from ringmq_gm import Role
from ringmq_node.model.reasons import Reason
from ringmq_node.model.rules import QueueRules
from ringmq_node.queue.consumers import ConsumerTerms
from ringmq_node.queue.effects import (
    ConfirmSequences,
    DeliverMore,
    DeliverRuns,
    Effect,
    EndConsumer,
    MulticastOp,
    ReportBarrier,
    ReportSettled,
    SendLetters,
    TellActive,
    TellShort,
)
from ringmq_node.queue.inheritance import Inheritance
from ringmq_node.queue.master import QueueMaster
from ringmq_node.queue.ops import AskedOp, Op, Publish, Requeue
from ringmq_node.queue.run import Run
from ringmq_node.replica import taking
from ringmq_node.replica.asked_ops import AskedOps
from ringmq_node.replica.master_replica import MasterReplica
from ringmq_node.replica.outbox import Outbox, is_of_letters
from ringmq_node.replica.publishers import OpeningSession, Publishers
from ringmq_node.replica.reading import MasterBodies
from ringmq_node.replica.refusals import (
    no_trip,
    not_serving,
    takes_nothing,
    too_few_synchronised,
)
from ringmq_node.replica.refusing import RefusedSender, fitting, refuse
from ringmq_node.replica.room import QueueRoom
from ringmq_node.replica.sequences import (
    block_of_part,
    blocks_of,
    check_numbering,
    check_sequence,
    parts_with_gaps,
    parts_without_gaps,
)
from ringmq_node.replica.sessions import ConsumerSession, PublisherSession
from ringmq_node.replica.subscribers import Subscribers
from ringmq_node.replica.upkeep import Upkeep
from ringmq_node.replica.waits import Waits

# How long the opening of a publisher waits for a trip around the ring. A client gives the node up
# after 5 s; it should hear the reason before that, also behind a take-over.
OPENING_WAIT_S = 2.5


class Mastership:
    """See the module. Used on the event loop's thread."""

    def __init__(
        self,
        replica: MasterReplica,
        *,
        rules: QueueRules,
        inheritance: Inheritance,
        given_up: Sequence[Range],
        received: int,
        persisted: int,
    ) -> None:
        """`rules`: those of this moment. `inheritance`: the messages that are here, as far as they
        are known to be safe. `given_up`: positions whose bodies no member has. `received` and
        `persisted`: how far the ring's watermarks are."""
        self._replica = replica
        self._store = replica.store
        self._ring = replica.ring
        self.queue = QueueMaster(
            replica.store.state,
            MasterBodies(replica.store, replica.store_failed),
            inheritance,
            has_dead_letters=rules.dead_letter_exchange is not None,
            durable=replica.record.durable,
            now_ms=replica.now_ms,
        )
        self.queue.departures.letter_window_bytes = replica.letter_desk.memory.window_bytes
        self.upkeep = Upkeep(self.queue, rules, replica.now_ms, self._expire, replica.unused)
        # None before the first dead letter.
        self._outbox: Outbox | None = None
        self.ended = False
        self.room = QueueRoom(replica.ring, self.queue.departures.backlog)
        # Notified when the core's state changes in a way that somebody may wait for.
        self.changed = Notifier()
        self._ids = count(1)
        self.publish_sessions = Publishers(replica.record.name)
        self.subscribers = Subscribers(
            self.name,
            self.queue,
            ring=self._ring,
            carry_out=self.carry_out,
            spawn=replica.spawn,
        )
        self._waits = Waits()
        # Whether `_deliver_more` is about to run, an op is asked for, or effects are carried out;
        # and what has come about meanwhile.
        self._delivers_more = self._asks = self._carries_out = False
        self._marks: tuple[int, int] | None = None
        self._later: list[Effect] = []
        # Ops that the core asked for and the ring hasn't taken yet.
        task = f"held ops of {self.name}"
        self._held_ops = AskedOps(
            self._ring,
            send=self._send,
            wait_taking=replica.wait_taking,
            spawn=lambda work: replica.spawn(work, task),
        )
        self.configure(rules)
        self.carry_out(self.queue.give_up(given_up))
        self.carry_out(self.queue.watermarks(received, persisted))

    # --- its life ---

    def end(self, reason: Reason) -> None:
        """Tells every session that the queue has moved, and fails every wait."""
        assert not self.ended
        self.ended = True
        self._held_ops.end()
        if self._outbox is not None:
            self._outbox.end()
        self.upkeep.end()
        self.room.end()
        self.publish_sessions.end(reason)
        self.subscribers.end(reason)
        self._waits.end(self.name)
        self.changed.notify()

    def configure(self, rules: QueueRules) -> None:
        """Takes over the rules that hold from now on, changed or not."""
        self.rules = rules
        if self._outbox is not None:
            self._outbox.rules_changed()
        self.upkeep.configure(rules)
        self.carry_out(self.queue.follow(rules))
        self.room.holds_for_letters = not self.queue.keeping.limits.rejects
        self.room.look()
        self.subscribers.keep_time()

    @property
    def name(self) -> str:
        return self._replica.record.name

    @property
    def queue_id(self) -> str:
        return self._replica.record.id

    @property
    def epoch(self) -> int:
        return self._replica.view.epoch

    def check_serving(self) -> None:
        """Raises if this mastership has ended, or its ring has just given another one the role."""
        if self.ended or self._ring.role is not Role.MASTER:
            raise not_serving(self.name, self._ring.role)

    # --- events of the ring and of the store ---

    def watermarks(self, received: int, persisted: int) -> None:
        """Ops up to these numbers are on every synchronised member: received, and on disk."""
        if self._asks:
            self._marks = (received, persisted)
            return
        hidden = self.queue.hides_inheritance
        self.carry_out(self.queue.watermarks(received, persisted))
        self._held_ops.send()
        if hidden:
            self.changed.notify()

    def bodies_lost(self) -> None:
        self.carry_out(self.queue.lost())

    def bodies_filled(self, first: int, last: int) -> None:
        self.carry_out(self.queue.filled(first, last))
        self.changed.notify()

    def bodies_given_up(self, ranges: Sequence[Range]) -> None:
        self.carry_out(self.queue.give_up(ranges))
        self.changed.notify()

    # --- publishing ---

    async def open_publisher(
        self, session: PublisherSession, producer_id: bytes, *, with_gaps: bool = False
    ) -> tuple[int, int]:
        """Returns the session's number, and the last sequence that the queue has of its producer.

        The answer is true, whichever member is master next, and holds until this session
        publishes: see `publishers`. A publisher without a producer id doesn't wait for it.
        `with_gaps`: the queue gets a part of what this producer publishes.
        """
        self.check_serving()
        number = self.next_number()
        if not producer_id:
            self.publish_sessions.open(number, session, producer_id)
            return number, 0
        self._check_quorum()
        opening = OpeningSession(self.name)
        self.publish_sessions.open(number, opening, producer_id)
        try:
            self._waits.keep(number, opening.reached)
            self.carry_out(self.queue.wait_barrier(number))
            async with asyncio.timeout(OPENING_WAIT_S):
                await opening.reached
            # Both may have changed since the trip ended, before this task was woken.
            self.check_serving()
            self.publish_sessions.check_current(number)
            check_numbering(self.name, self._store.state, producer_id, with_gaps=with_gaps)
        except BaseException as error:
            self.publish_sessions.close(number, producer_id)
            if isinstance(error, TimeoutError):
                self._check_quorum()
                raise no_trip(self.name, self.epoch, OPENING_WAIT_S) from None
            raise
        finally:
            self._waits.leave(number)
            self.queue.leave_barrier(number)
        self.publish_sessions.opened(number, session)
        return number, self._store.state.producers.get(producer_id, 0)

    def close_publisher(self, number: int, producer_id: bytes, *, ended: bool = False) -> None:
        self.publish_sessions.close(number, producer_id, has_ended=ended)

    def publish(
        self,
        publisher: int,
        producer_id: bytes,
        first_sequence: int,
        bodies: Sequence[bytes],
        properties: Sequence[bytes],
        *,
        transient: bool,
        with_gaps: bool = False,
        message_id: bytes = b"",
        ttl_ms: int | None = None,
        priority: int = 0,
    ) -> None:
        """Enqueues a batch, without its messages that were enqueued before.

        `with_gaps`: as the session was opened. `message_id`: the same batch goes to other queues.
        Confirms go to the session. Raises `BrokerError` if nothing was enqueued; `with_gaps`,
        then a retryable one may follow a part that was. A `FullQueueRefusal` says which messages
        it is about; the others were enqueued.
        """
        self.check_serving()
        self.check_writable()
        self.publish_sessions.check_current(publisher)
        last_sequence = first_sequence + len(bodies) - 1
        state = self._store.state
        if with_gaps:
            parts = parts_with_gaps(self.name, state, producer_id, first_sequence, last_sequence)
        else:
            known = check_sequence(self.name, state.producers, producer_id, first_sequence)
            parts = parts_without_gaps(known, first_sequence, last_sequence)
        refused: list[Range] = []
        of_letters = with_gaps and is_of_letters(producer_id)
        for first, last, is_repeat in parts:
            if is_repeat:
                repeats = self.queue.repeated(publisher, (first, last), transient=transient)
                self.carry_out(repeats)
                continue
            start, count = first - first_sequence, last - first + 1
            # Behind one that was refused none is taken: it would overtake.
            fits = 0 if refused else fitting(self, bodies, start, count, of_letters=of_letters)
            if fits < count:
                refused.append((first + fits, last))
            if not fits:
                continue
            if len(parts) > 1:
                # An op before this one may have made the ring full.
                self.check_writable()
            block = block_of_part(bodies, properties, start, fits)
            op = Publish(
                first_position=state.next_position,
                block=block,
                transient=transient,
                producer_id=producer_id,
                first_sequence=first,
                # The message store would compare the bodies, and keep each all the same.
                message_id=message_id if block.count == len(bodies) else b"",
                expires_at_ms=self.upkeep.deadline(ttl_ms),
                # Here, so that replicas need no rule to agree.
                priority=min(priority, self.rules.max_priority or 0),
            )
            number = self.ask(op)
            self.carry_out(self.queue.published(number, op, publisher))
            self.asked()
        if refused:
            sender = RefusedSender(publisher, producer_id if of_letters else b"")
            blocks = blocks_of(bodies, properties, first_sequence, refused)
            refuse(self, self._ring, sender, blocks, transient=transient)

    def check_writable(self) -> None:
        """Raises while no op could be confirmed, or the ring takes none."""
        self._check_quorum()
        refusal = self._ring.refusal()
        if refusal is not None:
            raise takes_nothing(self.name, refusal)

    def _check_quorum(self) -> None:
        if not self._ring.has_quorum:
            raise too_few_synchronised(self.name, self._replica.view)

    # --- consuming ---

    def open_consumer(
        self, session: ConsumerSession, terms: ConsumerTerms
    ) -> tuple[int, Callable[[], None]]:
        """Returns the session's number, and the function that begins its deliveries. All else is
        for `subscribers`. Raises `BrokerError`."""
        number = self.next_number()
        self.subscribers.open(number, session, terms)
        return number, lambda: self.subscribers.begin(number)

    # --- for those who ask (`taking`) ---

    async def pull(self, consumer: int, messages_max: int, bytes_max: int) -> tuple[list[Run], int]:
        return await taking.pull(self, consumer, messages_max, bytes_max)

    async def take(self, messages_max: int, bytes_max: int) -> list[Run]:
        return await taking.take(self, messages_max, bytes_max)

    async def peek(self, messages_max: int, bytes_max: int) -> list[Run]:
        return await taking.peek(self, messages_max, bytes_max)

    async def purge(self) -> int:
        """Removes the ready messages; returns how many, once their removal is safe."""
        return await self._remove_all(self.queue.purge)

    async def discard_damaged(self) -> int:
        """Removes the messages whose bodies no member has; returns how many."""
        return await self._remove_all(self.queue.discard_damaged)

    async def _remove_all(self, remove: Callable[[int], tuple[int, list[Effect]]]) -> int:
        self.check_serving()
        self.check_writable()
        number = self.next_number()
        removed, effects = remove(number)
        if removed:
            self.changed.notify()
            await self.wait_settled(number, effects)
        else:
            self.carry_out(effects)  # Of those who removed something before.
        return removed

    def next_number(self) -> int:
        """For an owner or a waiter of the core."""
        return next(self._ids)

    async def wait_settled(self, number: int, effects: list[Effect]) -> None:
        """Carries these out, and returns when they have reported to `number`."""
        told = self._waits.new(number)
        self.carry_out(effects)
        try:
            await told
        finally:
            self._waits.leave(number)

    @property
    def has_held_ops(self) -> bool:
        """Whether ops that were asked for before are not in the state yet."""
        return len(self._held_ops) > 0

    async def reported(self, ask: Callable[[int], list[Effect]]) -> None:
        """Gives `ask` a number, and returns when its effects have reported to that number."""
        number = self.next_number()
        try:
            await self.wait_settled(number, ask(number))
        finally:
            self.queue.leave_barrier(number)

    # --- description ---

    @property
    def is_deleting(self) -> bool:
        """Whether a conditional deletion may still take effect: then publishes and new consumers
        are refused."""
        return bool(self._replica.deletion_holds)

    @property
    def publishers(self) -> int:
        return len(self.publish_sessions)

    # --- effects of the core ---

    def carry_out(self, effects: list[Effect]) -> None:
        """Those of a call that is made meanwhile, as a ring of one confirms an op at once, come
        behind these: they would overtake what is decided."""
        if self._carries_out:
            self._later += effects
            return
        self._carries_out = True
        try:
            while effects:
                self._carry_out_all(effects)
                effects, self._later = self._later, []
        finally:
            self._carries_out, self._later = False, []
        self.room.look()
        if self.queue.keeping.expiry.next_ms != self.upkeep.set_to_ms:
            self.upkeep.set_timer()
        if self.upkeep.counts_use:
            self.upkeep.look_at_consumers()

    def _carry_out_all(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                # The most frequent first: each case before it costs a look.
                case ConfirmSequences(publisher, sequences):
                    session = self.publish_sessions.get(publisher)
                    if session is not None:
                        session.confirmed(sequences)
                case MulticastOp(op):
                    self._held_ops.add(op)
                case DeliverRuns(consumer, runs):
                    self.subscribers.delivered(consumer, runs)
                case DeliverMore():
                    if not self._delivers_more:
                        self._delivers_more = True
                        self._replica.spawn(self._deliver_more(), f"deliveries of {self.name}")
                case SendLetters(letters):
                    if self._outbox is None:
                        self._outbox = Outbox(
                            self._replica, self.queue.departures, self.carry_out, lambda: self.rules
                        )
                    self._outbox.send(letters)
                case ReportSettled(consumer, positions):
                    self.subscribers.settled(consumer, positions)
                    self._waits.told(consumer)
                case ReportBarrier(waiter):
                    self._waits.told(waiter)
                case TellActive(consumer, active):
                    self.subscribers.tell_active(consumer, active=active)
                case TellShort(consumer, short, needs_bytes):
                    self.subscribers.tell_short(consumer, short=short, needs_bytes=needs_bytes)
                case EndConsumer(consumer, reason):
                    self.subscribers.end_one(consumer, reason)

    def _expire(self) -> None:
        if not self.ended:
            self.carry_out(self.queue.expire())

    async def _deliver_more(self) -> None:
        """In another turn of the loop, as a task has its first turn then."""
        self._delivers_more = False
        if not self.ended:
            self.carry_out(self.queue.deliver_more())

    def ask(self, op: Op) -> int:
        """Multicasts an op; returns its number. In a ring of one it is safe by then: the core is
        told by `asked`, once it has heard of the op."""
        self._asks = True
        try:
            return self._replica.multicast(op)
        finally:
            self._asks = False

    def asked(self) -> None:
        marks, self._marks = self._marks, None
        if marks is not None:
            self.watermarks(*marks)

    def _send(self, op: AskedOp) -> None:
        number = self.ask(op)
        self.carry_out(self.queue.applied(number, op))
        self.asked()
        if type(op) is Requeue:
            self.changed.notify()
