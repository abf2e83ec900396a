"""The core of a queue's master: it gives messages to consumers, and confirms to publishers.

Pure: the caller tells it facts (a publish was enqueued, watermarks moved, a consumer settles)
and carries out the effects that it answers with (`effects`), in order. Here the parts are
joined; each decides one thing and says why in its own module:

    confirms    which publishes are safe: confirmed, and visible
    ready       the messages that nobody has, given out from the front
    consumers   the messages that each consumer has, prefetch, turns
    requeues    the messages on their way back to their places
    departures  the messages that leave: letters, and removals that aren't safe yet
    keeping     the ready messages that it doesn't keep: expired, or beyond its length
    barriers    who waits for a trip around the ring that begins now

Every live message is in one place: ready, damaged, outstanding with one consumer, a dead letter,
gathered or in hand for a `Remove`, or on its way back in a `Requeue`. It leaves the last two when
the op is applied, not before: each replica has to hear of it, and the ring may refuse the op for
a while. So a requeued message can't reach another consumer before every replica is told,
ahead of it, that a delivery from then on is a repeat.

Invariants (`check`):
* these places are disjoint, and together they are the live messages;
* those of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from ringmq_base.ranges import Range, RangeSet, numbers_in
from ringmq_node.model.rules import QueueRules
from ringmq_node.queue.barriers import Barriers
from ringmq_node.queue.confirms import Confirms
from ringmq_node.queue.consumers import ConsumerTerms, Subscriptions
from ringmq_node.queue.deliveries import deliver, pull
from ringmq_node.queue.departures import Departures
from ringmq_node.queue.effects import DeliverMore, Effect, EndConsumer, EndReason, MulticastOp
from ringmq_node.queue.inheritance import Inheritance
from ringmq_node.queue.keeping import Keeping
from ringmq_node.queue.leases import ChangeLease
from ringmq_node.queue.leaving import LeaveReason, Leaving
from ringmq_node.queue.ops import AskedOp, Barrier, Doom, NoteGone, Publish, Remove, Requeue
from ringmq_node.queue.ready import Ready
from ringmq_node.queue.requeues import Requeues
from ringmq_node.queue.run import Messages, Run
from ringmq_node.queue.state import ReplicatedState


class QueueMaster:
    """Of one mastership. Begins with `state` as the last master left it, and with what this
    replica knows of its confirms (default: nothing)."""

    def __init__(
        self,
        state: ReplicatedState,
        messages: Messages,
        inheritance: Inheritance | None = None,
        *,
        has_dead_letters: bool = False,
        durable: bool = True,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """`durable`: whether the queue is. `now_ms` says the time, in milliseconds since 1970; it
        is asked only while messages may expire."""
        self.state = state
        # How long a consumer may hold a message. None: for ever.
        self.consumer_timeout_ms: int | None = None
        self.consumers = Subscriptions(messages)
        self.published_total = 0
        self._confirms = Confirms(
            inheritance or Inheritance(state.last_number, state.next_position), durable=durable
        )
        doomed = state.doomed
        live = state.live if doomed is None else state.live.without(doomed.positions)
        self._ready = Ready(live, messages, state.priorities)
        if doomed is not None:
            # Between its first and its last message there are letters, whose bytes it counted too.
            self._ready.recount()
        self.departures = Departures(
            state, messages, self._ready.is_given_up, has_dead_letters=has_dead_letters
        )
        self._removals = self.departures.removals
        self.keeping = Keeping(state.expiries, self._ready, now_ms)
        self._barriers = Barriers()
        self.requeues = Requeues(state.counts, self.departures)

    # --- publishers ---

    def published(self, number: int, op: Publish, publisher: int) -> list[Effect]:
        """A publish of this master has been applied here; `publisher` waits for its confirm."""
        confirms, transient = self._confirms, op.transient
        self.published_total += op.count
        # Ready at once, though hidden: a purge removes it too. Its publisher is confirmed all
        # the same, when every disk has the publish.
        self._ready.add(op.first_position, op.last_position, op.block.body_bytes())
        if op.expires_at_ms is not None:
            self.keeping.expiry.add(op.first_position, op.last_position, op.expires_at_ms)
        confirms.wait(number, publisher, (op.first_sequence, op.last_sequence), transient=transient)
        return self._hide(number, op)

    def refused(self, number: int, op: Publish, publisher: int | None = None) -> list[Effect]:
        """Messages that the queue had no room for are there, born doomed. `publisher`: it waits
        for its confirm, as they are letters that go on (`replica.refusing`)."""
        if publisher is not None:
            sequences = op.first_sequence, op.last_sequence
            self._confirms.wait(number, publisher, sequences, transient=op.transient)
        return [*self.departures.born_doomed(number, op), *self._hide(number, op)]

    def _hide(self, number: int, op: Publish) -> list[Effect]:
        confirms = self._confirms
        if not confirms.hide(number, op.last_position + 1, transient=op.transient):
            return []
        # In a ring of one the watermark comes while the op is being multicast, before this
        # call. No other may follow: the publisher would wait until somebody publishes again.
        return self.watermarks(confirms.received, confirms.persisted)

    def repeated(self, publisher: int, sequences: Range, *, transient: bool) -> list[Effect]:
        """`publisher` has sent these again. They were enqueued before, by an op whose number
        nobody remembers; no later than the last one, so they are safe when that is."""
        self._confirms.wait(self.state.last_number, publisher, sequences, transient=transient)
        return [*self._confirms.due()]

    # --- barriers ---

    def wait_barrier(self, waiter: int) -> list[Effect]:
        """`ReportBarrier` tells `waiter`, a number of its own, when an op that is sent from now
        on is safe: then so is all that the state says now."""
        self._barriers.wait(waiter, self.state.last_number)
        return [*self._barriers.next_op(self.state.last_number, self._confirms.received)]

    def leave_barrier(self, waiter: int) -> None:
        """It doesn't wait any more; it may have been told."""
        self._barriers.leave(waiter)

    # --- consumers ---

    def consumer_opened(self, consumer: int, terms: ConsumerTerms) -> list[Effect]:
        """It is there, and is given nothing before it has begun. An older stream of the same
        consumer is ended. Raises `NotAloneError`, and then nothing has changed."""
        self.consumers.check_open(terms)
        former = self.consumers.former(terms)
        effects = [] if former is None else self._end_consumer(former, EndReason.REPLACED)
        self.consumers.open(consumer, terms)
        return effects

    def consumer_begun(self, consumer: int) -> list[Effect]:
        return [*self.consumers.begin(consumer), *self._dispatch()]

    def prefetch_changed(self, consumer: int, messages: int, size_bytes: int) -> list[Effect]:
        self.consumers.change_prefetch(consumer, messages, size_bytes)
        return self._dispatch()

    def consumer_cancelled(self, consumer: int) -> list[Effect]:
        """It is given nothing more; its outstanding messages stay with it."""
        told = self.consumers.cancel(consumer)
        return [*told, *self._dispatch()] if told else []

    def consumer_held(self, consumer: int, *, held: bool) -> list[Effect]:
        """Its stream is full of deliveries, or has sent them all. To hold one has no effects."""
        self.consumers.hold(consumer, held=held)
        return [] if held else self._dispatch()

    def consumer_closed(self, consumer: int) -> list[Effect]:
        """It is gone; the messages that it had go back to their places."""
        ranges, told = self.consumers.close(consumer)
        # With nothing to wait for, the consumer that is active now begins.
        return [*told, *(self._requeue(ranges) if ranges or not told else self._dispatch())]

    def _end_consumer(self, consumer: int, reason: EndReason) -> list[Effect]:
        return [EndConsumer(consumer, reason), *self.consumer_closed(consumer)]

    def follow(self, rules: QueueRules) -> list[Effect]:
        """The rules that hold from now on. A shorter queue lets go of messages at once."""
        self.keeping.follow(rules)
        self.requeues.delivery_limit = rules.delivery_limit
        self.consumer_timeout_ms = rules.consumer_timeout_ms
        self.consumers.set_timeout(on=rules.consumer_timeout_ms is not None)
        letters = self.departures.dead_letter(enabled=rules.dead_letter_exchange is not None)
        told = self.consumers.set_single_active(single=bool(rules.single_active_consumer))
        return [*letters, *told, *self._dispatch()]

    def tick(self, now_ms: int) -> list[Effect]:
        """It is this time, on a clock that doesn't go back: consumers that have held a message for
        too long lose what they have."""
        effects: list[Effect] = []
        if self.consumer_timeout_ms is not None:
            for consumer in self.consumers.overdue(now_ms, self.consumer_timeout_ms):
                effects += self._end_consumer(consumer, EndReason.TIMED_OUT)
        return effects

    def settle(
        self,
        consumer: int,
        *,
        acked: Sequence[Range] = (),
        rejected: Sequence[Range] = (),
        requeued: Sequence[Range] = (),
    ) -> list[Effect]:
        """Removes what is acked or rejected, and requeues: all of it, or nothing and
        `NotOutstandingError`."""
        if not acked and not rejected and not requeued:
            return []
        told = self.consumers.settle(consumer, (*acked, *rejected, *requeued))
        if acked:
            self.leave(Leaving(LeaveReason.ACKNOWLEDGED, tuple(acked), consumer))
        if rejected:
            self.leave(Leaving(LeaveReason.REJECTED, tuple(rejected), consumer))
        effects = [*told, *self._requeue(requeued), *self.departures.next_ops()]
        # A requeued message is in front of any that could be delivered now. `applied`
        # dispatches when it is back in its place.
        return effects if self.requeues.in_hand else effects + self._dispatch()

    def _requeue(self, ranges: RangeSet | Sequence[Range]) -> list[Effect]:
        self.requeues.add(ranges)
        return self._next_requeue()

    def _next_requeue(self) -> list[Effect]:
        if not self.requeues.is_due:
            return []
        effects = self.requeues.next_op()
        # If none comes back, no op that is applied goes on with deliveries.
        return effects if self.requeues.in_hand else effects + self._dispatch()

    # --- messages that leave ---

    def expire(self) -> list[Effect]:
        """Lets go of messages that have expired; some of them, if there are many."""
        return self._dispatch()

    def leave(self, leaving: Leaving) -> None:
        """These messages, which nobody has any more, leave the queue: see `leaving`. The caller
        asks for the next ops then (`departures.next_ops`)."""
        self.departures.leave(leaving)

    # --- without a subscription ---

    def take(self, taker: int, messages_max: int, bytes_max: int) -> tuple[list[Run], list[Effect]]:
        """Takes messages off the front for `taker`, a number of its own. At least one if any is
        visible, of any size.

        They are handed out when `ReportSettled` says so, not before (see `removals`). If there
        are none, nobody is told.
        """
        runs = self._ready.take(
            self._confirms.visible_below,
            messages_max=messages_max,
            bytes_max=bytes_max,
            first_bytes_max=None,
        )
        if not runs:
            return [], []
        self._removals.gather_whole(taker, [run.positions for run in runs])
        # The message in front may have been too large for any consumer's room, and those
        # behind it, which have come to the front, may fit.
        return runs, [*self.departures.next_ops(), *self._dispatch()]

    def pull(
        self, consumer: int, messages_max: int, bytes_max: int
    ) -> tuple[list[Run], list[Effect]]:
        """Gives messages off the front to a consumer that asks for them (`ConsumerTerms.pulls`), as
        far as its prefetch has room. They are outstanding with it from now on. Raises
        `PrefetchUsedError` if it has room for none."""
        below = self._deliverable_below
        runs = pull(self._ready, self.consumers, consumer, messages_max, bytes_max, below)
        # As in `take`.
        return runs, self._dispatch() if runs else []

    @property
    def is_requeuing(self) -> bool:
        """Whether messages are on their way back, which a pull would miss."""
        return bool(self.requeues)

    def peek(self, messages_max: int, bytes_max: int) -> list[Run]:
        """The messages that `take` would give. They stay ready."""
        return self._ready.peek(
            self._confirms.visible_below, messages_max=messages_max, bytes_max=bytes_max
        )

    def purge(self, taker: int) -> tuple[int, list[Effect]]:
        """Removes every ready message, visible or not: how many. `ReportSettled` for `taker`
        says when that is safe."""
        taken = self._ready.take_all()
        note: list[Effect] = []
        if taken:
            # First: a reader by position is told of the purge, and not of an empty range.
            note.append(MulticastOp(NoteGone(purged_end=taken[-1][1] + 1)))
        count, effects = self._remove_whole(taker, taken)
        return count, note + effects

    def held_below(self, end: int) -> list[Range]:
        """The messages below `end` that consumers have, or that are on their way back."""
        held = RangeSet(self.requeues.positions.intersection(0, end - 1))
        for consumer in self.consumers:
            held.update(consumer.outstanding.intersection(0, end - 1))
        return held.ranges()

    def acknowledge_below(self, taker: int, end: int) -> tuple[int, list[Effect]]:
        """Removes every ready message below `end`, which are all visible: how many. If there are
        any, `ReportSettled` for `taker` says when that is safe."""
        assert end <= self.visible_below, (end, self.visible_below)
        note = [MulticastOp(NoteGone(acked_end=end))] if end > self.state.acked_end else []
        count, effects = self._remove_whole(taker, self._ready.take_below(end))
        return count, [*note, *effects, *self._dispatch()]

    def discard_damaged(self, taker: int) -> tuple[int, list[Effect]]:
        """Removes every damaged message: how many. `ReportSettled` for `taker` says when that
        is safe."""
        damaged = [*self._ready.take_damaged(), *self.departures.take_damaged()]
        return self._remove_whole(taker, damaged)

    def _remove_whole(self, taker: int, ranges: list[Range]) -> tuple[int, list[Effect]]:
        if ranges:
            self._removals.gather_whole(taker, ranges)
        return numbers_in(ranges), self.departures.next_ops()

    # --- the ring ---

    def applied(self, number: int, op: AskedOp) -> list[Effect]:
        """The op of a `MulticastOp` has been applied here, as `number`."""
        match op:
            case Remove(ranges):
                self._removals.sent(number)
                self._ready.removed(ranges)
                return []
            case Requeue(ranges, _):
                self.requeues.applied(ranges)
                self._ready.put_back(ranges)
                self.keeping.expiry.watch(ranges)
                # First what is back: the next op brings those behind it.
                return [*self._dispatch(), *self._next_requeue()]
            case Doom():
                return self.departures.doomed(number, op)
            case Barrier():
                self._barriers.sent(number)
                # In a ring of one the watermark has come before this call, and no other follows.
                return [*self._barriers.reached(self._confirms.persisted)]
            case NoteGone() | ChangeLease():
                # Their waiters wait for a barrier.
                return []

    def change_lease(self, waiter: int, op: ChangeLease) -> list[Effect]:
        """`ReportBarrier` tells `waiter` when the change is safe; the state says its outcome."""
        return [MulticastOp(op), *self.wait_barrier(waiter)]

    def watermarks(self, received: int, persisted: int) -> list[Effect]:
        """Every synchronised member has received, and persisted, the ops up to these."""
        effects: list[Effect] = []
        effects += self._confirms.advance(received, persisted)
        effects += self.departures.watermarks(received, persisted)
        effects += self._barriers.reached(persisted)
        effects += self._barriers.next_op(self.state.last_number, received)
        return effects + self._dispatch()

    # --- damage ---

    def lost(self) -> list[Effect]:
        """More bodies are missing. Their bytes leave room with consumers that have them."""
        self._ready.recount()
        self.consumers.recount()
        return self._dispatch()

    def filled(self, first: int, last: int) -> list[Effect]:
        """Live messages that were missing until now have their bodies again."""
        self._ready.filled(first, last)
        self.keeping.expiry.watch([(first, last)])
        self.consumers.filled(first, last)
        return [*self.departures.filled(first, last), *self._dispatch()]

    def give_up(self, ranges: Iterable[Range]) -> list[Effect]:
        """No replica has the bodies of these missing messages: deliveries go on without."""
        self._ready.give_up(ranges)
        return [*self.departures.given_up(), *self._dispatch()]

    # --- deliveries ---

    def _dispatch(self) -> list[Effect]:
        """Gives visible messages to consumers, and lets go of those that the queue doesn't keep."""
        keeping = self.keeping
        if not keeping.is_active:
            return self._deliver()
        for leaving in keeping.take_expired():
            self.leave(leaving)
        if keeping.is_overdue:
            # What could be delivered now may have expired.
            return [*self.departures.next_ops(), DeliverMore()]
        effects = self._deliver()
        if not (effects and isinstance(effects[-1], DeliverMore)):
            excess = keeping.take_excess(self._confirms.visible_below)
            for leaving in excess:
                self.leave(leaving)
            if excess:
                # The message in front may have been too large for any consumer's room.
                effects += self._deliver()
        return [*self.departures.next_ops(), *effects]

    def _deliver(self) -> list[Effect]:
        return deliver(self._ready, self.consumers, self._deliverable_below)

    @property
    def _deliverable_below(self) -> int:
        below, requeues = self._confirms.visible_below, self.requeues
        if not requeues.are_many and not (self.consumers.single_active and requeues):
            return below
        # Whoever comes next would get what is behind them first, before some of them. With
        # priorities, those in front of them in the queue may be behind them in the line.
        return 0 if self.state.priorities else min(below, requeues.positions.first)

    def deliver_more(self) -> list[Effect]:
        """Goes on with deliveries: a `DeliverMore` asked for it."""
        return self._dispatch()

    # --- depths and totals ---

    @property
    def ready(self) -> RangeSet:
        """Messages for consumers, visible or not. Not to be changed."""
        return self._ready.positions

    @property
    def ready_bytes(self) -> int:
        return self._ready.body_bytes

    @property
    def damaged(self) -> RangeSet:
        """Messages whose bodies no replica has. Not to be changed."""
        return self._ready.damaged

    @property
    def visible_below(self) -> int:
        return self._confirms.visible_below

    @property
    def hides_inheritance(self) -> bool:
        return self._confirms.hides_inheritance

    @property
    def is_held(self) -> bool:
        """Whether the next message is missing, so that nothing can be delivered."""
        return self._ready.is_held(self._confirms.visible_below)

    @property
    def unacknowledged(self) -> int:
        return self.consumers.unacknowledged

    @property
    def unacknowledged_bytes(self) -> int:
        return self.consumers.unacknowledged_bytes

    @property
    def acknowledged_total(self) -> int:
        return self._removals.settled_total

    @property
    def messages(self) -> int:
        """All live messages but those that somebody has asked to remove."""
        held = len(self.ready) + len(self.damaged) + self.unacknowledged + len(self.requeues)
        return held + self.departures.letters

    def check(self) -> None:
        """Asserts the invariants, those of the parts too. Costs a look at every message."""
        self._confirms.check(self.state.next_position)
        self._ready.check()
        self.consumers.check(self.visible_below)
        self.departures.check()
        self._barriers.check(self._confirms.persisted)
        self.keeping.check()
        self.requeues.check()
        seen = RangeSet()
        for first, last in chain(
            self.ready,
            self.damaged,
            *(consumer.outstanding for consumer in self.consumers),
            self.requeues.positions,
            self.departures.places(),
        ):
            assert not seen.intersection(first, last), "a message is in two places"
            seen.add(first, last)
        assert seen == self.state.live
