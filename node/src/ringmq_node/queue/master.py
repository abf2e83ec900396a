"""What only the master of a queue knows and decides: who gets which message, and
who is told that something is safe. Pure; no I/O but the `Messages` it is given.

A message becomes *visible*, to be delivered, when its publish is confirmed: on
disk at every synchronised member (a transient one: received). If it were
delivered earlier and the master died, the publisher's retry would enqueue it
again at another position, and a consumer would see it twice without a sign.

Every live message is in one place: ready, damaged, outstanding with one consumer,
to be removed, or to be requeued; the last two until the op that says so is applied.
Acks leave as one op at a time: while a `Remove` is on its way around the ring,
the next acks gather.

A body may be found damaged at any time; the caller has it repaired. Until then what
is before it is delivered, and nothing behind it. When nobody has it (`give_up`) the
message is put aside as *damaged*, and deliveries go on without it.

Invariants (`check`):
* these places are disjoint, and together they are the live messages;
* what is damaged was given up and has no body; what was given up isn't ready;
* a consumer has no more outstanding than its prefetch, but for one message that
  is larger than its bytes and alone, or of which the body was missing meanwhile;
* what is outstanding is visible.

The caller carries out the effects in order; a `MulticastOp` comes back through
`applied` before its effect is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue.ops import Op, Publish, Remove, Requeue
from ringmq_node.queue.run import Run
from ringmq_node.queue.state import ReplicatedState

# What one consumer is given at a time, so that several take turns.
TURN_MESSAGES_MAX = 1000
TURN_BYTES_MAX = 512 * 1024
# Ranges in one Remove or Requeue op, so that one op is never above 160 kB.
OP_RANGES_MAX = 10_000


class NotOutstandingError(ValueError):
    """A consumer settles a position that it has not been given, or has settled already."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__(f"positions {first} to {last} are not outstanding on this stream")
        self.first = first
        self.last = last


class Messages(Protocol):
    """The bodies, wherever they are. `bytes_max` is of bodies and properties together."""

    @property
    def missing(self) -> RangeSet:
        """Live positions whose bodies are not here."""
        ...

    def fetch(self, first: int, last: int, *, bytes_max: int, messages_max: int) -> Sequence[Run]:
        """As `read`, by whom the next ones will be wanted too."""
        ...

    def read(self, first: int, last: int, *, bytes_max: int, messages_max: int) -> Sequence[Run]:
        """Live messages of `first..last` from the first on; at least one, however large. Up to
        the first that is missing, and none if that is the first."""
        ...

    def bytes_in(self, first: int, last: int) -> int:
        """Bytes of the bodies of the live messages of `first..last` that are not missing."""
        ...


# --- effects ---


@dataclass(frozen=True, slots=True)
class MulticastOp:
    """Send this op around the ring."""

    op: Op


@dataclass(frozen=True, slots=True)
class DeliverRuns:
    """Give these messages to a consumer."""

    consumer: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class ConfirmSequences:
    """Tell a publisher that these sequences are safe."""

    publisher: int
    sequences: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class ReportSettled:
    """Tell a consumer that these positions will not come again. To `take` and `purge` it
    is said once, of all of theirs."""

    consumer: int
    positions: tuple[Range, ...]


Effect = MulticastOp | DeliverRuns | ConfirmSequences | ReportSettled


@dataclass(slots=True)
class Subscription:
    """A stream that takes messages."""

    id: int
    prefetch_messages: int
    prefetch_bytes: int
    outstanding: RangeSet = field(default_factory=RangeSet)
    outstanding_bytes: int = 0
    cancelled: bool = False
    # Of what it has, some bodies went missing here and did not count for a while.
    had_lost: bool = False

    @property
    def room_messages(self) -> int:
        return 0 if self.cancelled else self.prefetch_messages - len(self.outstanding)

    @property
    def room_bytes(self) -> int | None:
        """None: any size, because it has nothing."""
        return self.prefetch_bytes - self.outstanding_bytes if self.outstanding else None


@dataclass(slots=True)
class Removal:
    """What a `take` or a `purge` removes, and how much of it isn't safe yet."""

    ranges: tuple[Range, ...]
    messages_left: int


@dataclass(frozen=True, slots=True)
class PendingPublish:
    number: int
    publisher: int
    first_sequence: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class PendingVisible:
    number: int
    next_position: int
    transient: bool


class QueueMaster:
    """Begins with the state as the last master left it; see the module."""

    def __init__(self, state: ReplicatedState, messages: Messages) -> None:
        self.state = state
        self.ready = state.live.copy()
        # Nobody has their bodies: not delivered until they are filled, or discarded.
        self.damaged = RangeSet()
        # Those, and what a consumer has that would come to be one of them.
        self._given_up = RangeSet()
        self.ready_bytes = 0
        self.unacknowledged_bytes = 0
        self.published_total = 0
        self.acknowledged_total = 0
        self.consumers: dict[int, Subscription] = {}
        # Attempts to delete the queue as it is: meanwhile nobody may publish or consume.
        self.deletions = 0
        self._messages = messages
        self._turn: deque[int] = deque()
        self._received = 0
        self._persisted = 0
        # Positions below this have been confirmed.
        self.visible_below = 0
        self._inherited_below = state.next_position
        self._hidden: deque[PendingVisible] = deque()
        self._unconfirmed: deque[PendingPublish] = deque()
        self._unconfirmed_transient: deque[PendingPublish] = deque()
        # Acks by consumer: those that gather, those in the op that is being handed over,
        # and those on their way with the number of their op.
        self._gathered: dict[int, RangeSet] = {}
        self._removals: dict[int, Removal] = {}
        self._in_hand: dict[int, list[Range]] = {}
        self._removing: deque[tuple[int, dict[int, list[Range]]]] = deque()
        # In Requeue ops that have not been applied.
        self._requeuing = RangeSet()
        if state.next_position:
            self._hidden.append(PendingVisible(state.last_number, state.next_position, False))
            if state.live:
                self.ready_bytes = messages.bytes_in(state.live.first, state.live.last)

    @property
    def hides_inheritance(self) -> bool:
        """What was there when this master took over is not confirmed again yet."""
        return self.visible_below < self._inherited_below

    # --- publishers ---

    def published(self, number: int, op: Publish, publisher: int) -> None:
        """The op has been applied; `publisher` waits for it."""
        self.published_total += op.block.count
        self._wait(number, publisher, op.first_sequence, op.last_sequence, op.transient)

    def repeated(
        self, publisher: int, first_sequence: int, last_sequence: int, *, transient: bool
    ) -> list[Effect]:
        """These were enqueued before; they are safe when all that is enqueued now is."""
        self._wait(self.state.last_number, publisher, first_sequence, last_sequence, transient)
        return self._confirms()

    def _wait(self, number: int, publisher: int, first: int, last: int, transient: bool) -> None:
        pending = self._unconfirmed_transient if transient else self._unconfirmed
        pending.append(PendingPublish(number, publisher, first, last))

    # --- consumers ---

    def consumer_opened(
        self, consumer: int, prefetch_messages: int, prefetch_bytes: int
    ) -> list[Effect]:
        self.consumers[consumer] = Subscription(consumer, prefetch_messages, prefetch_bytes)
        self._turn.append(consumer)
        return self._dispatch()

    def consumer_cancelled(self, consumer: int) -> None:
        """No more deliveries; what is outstanding stays so."""
        self.consumers[consumer].cancelled = True

    def consumer_closed(self, consumer: int) -> list[Effect]:
        """What it had goes back to its place."""
        gone = self.consumers.pop(consumer)
        self._turn.remove(consumer)
        self.unacknowledged_bytes -= gone.outstanding_bytes
        return self._requeue(tuple(gone.outstanding.ranges()))

    def settle(
        self,
        consumer_id: int,
        *,
        removed: Sequence[Range],
        requeued: Sequence[Range],
    ) -> list[Effect]:
        """Acknowledges (or discards) and requeues; all of it, or nothing and
        `NotOutstandingError`."""
        consumer = self._check_outstanding(consumer_id, [*removed, *requeued])
        if consumer is None:
            return []
        for first, last in (*removed, *requeued):
            size = self._messages.bytes_in(first, last)
            consumer.outstanding.remove(first, last)
            consumer.outstanding_bytes -= size
            self.unacknowledged_bytes -= size
        if removed:
            self._gathered.setdefault(consumer_id, RangeSet()).update(removed)
        effects = self._requeue(tuple(requeued))
        effects += self._flush_removes()
        # What goes back comes before what is behind it: `applied` dispatches then.
        return effects if requeued else effects + self._dispatch()

    def _check_outstanding(self, consumer_id: int, ranges: Sequence[Range]) -> Subscription | None:
        """The consumer, who has all of these, each once; None if there are none."""
        consumer = self.consumers.get(consumer_id)
        seen = RangeSet()
        for first, last in ranges:
            if (
                consumer is None
                or not consumer.outstanding.contains_all(first, last)
                or seen.intersection(first, last)
            ):
                raise NotOutstandingError(first, last)
            seen.add(first, last)
        return consumer if ranges else None

    def _requeue(self, ranges: tuple[Range, ...]) -> list[Effect]:
        self._requeuing.update(ranges)
        return [
            MulticastOp(Requeue(ranges[at : at + OP_RANGES_MAX]))
            for at in range(0, len(ranges), OP_RANGES_MAX)
        ]

    # --- without a subscription ---

    def take(self, taker: int, messages_max: int, bytes_max: int) -> list[Run]:
        """Removes the first ready messages for `taker`, who isn't a consumer; a Remove op
        follows with `flush`, and `ReportSettled` says when they may be handed out. At least one
        message if there is any, however large; if there is none, nothing follows."""
        runs = self._take(messages_max, bytes_max, None)
        if runs:
            self._remove_for(taker, [run.positions for run in runs])
        return runs

    def flush(self) -> list[Effect]:
        """Call after `take`. What was taken may have been too large for who waits."""
        return self._flush_removes() + self._dispatch()

    def peek(self, messages_max: int, bytes_max: int) -> list[Run]:
        """The first ready messages, which stay where they are; at least one, however large."""
        runs: list[Run] = []
        for first, last in self._ready_visible():
            while first <= last:
                too_large = runs and self._messages.bytes_in(first, first) > bytes_max
                if messages_max <= 0 or too_large:
                    return runs
                part = self._messages.read(
                    first, last, bytes_max=bytes_max, messages_max=messages_max
                )
                if not part:
                    self._assert_missing(first)
                    return runs
                for run in part:
                    messages_max -= run.block.count
                    bytes_max -= run.block.sent_bytes()
                first = part[-1].last_position + 1
                runs += part
        return runs

    def purge(self, taker: int) -> tuple[int, list[Effect]]:
        """Removes every ready message, visible or not. `ReportSettled` for `taker` says when
        that is safe."""
        count = len(self.ready)
        if count:
            self._remove_for(taker, self.ready.ranges())
            self.ready.clear()
            self.ready_bytes = 0
        return count, self._flush_removes()

    def discard_damaged(self, taker: int) -> tuple[int, list[Effect]]:
        """Removes what is damaged; `ReportSettled` for `taker` says when that is safe."""
        count = len(self.damaged)
        if count:
            self._remove_for(taker, self.damaged.ranges())
            self.damaged.clear()
        return count, self._flush_removes()

    def _remove_for(self, taker: int, ranges: list[Range]) -> None:
        self._removals[taker] = Removal(tuple(ranges), _messages_in(ranges))
        self._gathered[taker] = RangeSet(ranges)

    # --- the ring ---

    def applied(self, number: int, op: Op, size_bytes: int = 0) -> list[Effect]:
        """An op of this master has been applied to the state. `size_bytes`: its bodies."""
        match op:
            case Publish():
                self.ready.add(op.first_position, op.last_position)
                self.ready_bytes += size_bytes
                self._hidden.append(PendingVisible(number, op.last_position + 1, op.transient))
                return []
            case Remove(ranges):
                if self._given_up:
                    self._given_up.subtract(ranges)
                return []
            case Requeue(ranges):
                for first, last in ranges:
                    self._requeuing.remove(first, last)
                    self.ready.add(first, last)
                    self.ready_bytes += self._messages.bytes_in(first, last)
                    self._put_aside(self._given_up.intersection(first, last))
                return self._dispatch()

    def removal_sent(self, number: int) -> None:
        """The Remove that `_flush_removes` asked for has got this number."""
        self._removing.append((number, self._in_hand))
        self._in_hand = {}

    def watermarks(self, received: int, persisted: int) -> list[Effect]:
        """Ops up to these numbers are safe."""
        self._received = received
        self._persisted = persisted
        effects = self._confirms()
        while self._removing and self._removing[0][0] <= persisted:
            for consumer, ranges in self._removing.popleft()[1].items():
                effects += self._settled(consumer, ranges)
        while self._hidden:
            head = self._hidden[0]
            if head.number > (received if head.transient else persisted):
                break
            self.visible_below = head.next_position
            self._hidden.popleft()
        effects += self._flush_removes()
        return effects + self._dispatch()

    def _settled(self, consumer: int, ranges: list[Range]) -> list[Effect]:
        count = _messages_in(ranges)
        self.acknowledged_total += count
        removal = self._removals.get(consumer)
        if removal is None:
            return [ReportSettled(consumer, tuple(ranges))]
        removal.messages_left -= count
        if removal.messages_left:
            return []
        del self._removals[consumer]
        return [ReportSettled(consumer, removal.ranges)]

    def _confirms(self) -> list[Effect]:
        ranges: dict[int, list[Range]] = {}
        for pending, mark in (
            (self._unconfirmed, self._persisted),
            (self._unconfirmed_transient, self._received),
        ):
            while pending and pending[0].number <= mark:
                entry = pending.popleft()
                mine = ranges.setdefault(entry.publisher, [])
                if mine and mine[-1][1] + 1 == entry.first_sequence:
                    mine[-1] = (mine[-1][0], entry.last_sequence)
                else:
                    mine.append((entry.first_sequence, entry.last_sequence))
        return [ConfirmSequences(publisher, tuple(mine)) for publisher, mine in ranges.items()]

    def _flush_removes(self) -> list[Effect]:
        """One Remove at a time is on its way to the mirrors; meanwhile acks gather."""
        if not self._gathered or self._in_hand:
            return []
        if self._removing and self._removing[-1][0] > self._received:
            return []
        room = OP_RANGES_MAX
        for consumer, ranges in [*self._gathered.items()]:
            if room <= 0:
                break
            self._in_hand[consumer] = ranges.take_first(room)
            if not ranges:
                del self._gathered[consumer]
            room -= len(self._in_hand[consumer])
        merged = RangeSet(pair for ranges in self._in_hand.values() for pair in ranges)
        return [MulticastOp(Remove(tuple(merged.ranges())))]

    # --- damage ---

    @property
    def is_held(self) -> bool:
        """Whether what comes next is missing, so that nothing is delivered."""
        if not self.ready or self.ready.first >= self.visible_below:
            return False
        return self.ready.first in self._messages.missing

    def _assert_missing(self, position: int) -> None:
        assert position in self._messages.missing, f"ready position {position} has no body"

    def lost(self) -> list[Effect]:
        """More bodies are missing. They don't count as bytes any more."""
        self.ready_bytes = self._bytes_of(self.ready)
        self.unacknowledged_bytes = 0
        for consumer in self.consumers.values():
            before, consumer.outstanding_bytes = (
                consumer.outstanding_bytes,
                self._bytes_of(consumer.outstanding),
            )
            consumer.had_lost |= consumer.outstanding_bytes < before
            self.unacknowledged_bytes += consumer.outstanding_bytes
        return self._dispatch()

    def filled(self, first: int, last: int) -> list[Effect]:
        """Live messages that were missing until now have their bodies again."""
        self._given_up.remove(first, last)
        parts = self.damaged.intersection(first, last)
        self.damaged.remove(first, last)
        self.ready.update(parts)
        for part in self.ready.intersection(first, last):
            self.ready_bytes += self._messages.bytes_in(*part)
        for consumer in self.consumers.values():
            for part in consumer.outstanding.intersection(first, last):
                size = self._messages.bytes_in(*part)
                consumer.outstanding_bytes += size
                self.unacknowledged_bytes += size
        return self._dispatch()

    def give_up(self, ranges: Iterable[Range]) -> list[Effect]:
        """Nobody has the bodies of these, which are missing: it goes on without them."""
        for first, last in ranges:
            self._given_up.add(first, last)
            self._put_aside(self.ready.intersection(first, last))
        return self._dispatch()

    def _put_aside(self, parts: list[Range]) -> None:
        """From ready to damaged."""
        self.ready.subtract(parts)
        self.damaged.update(parts)

    # --- dispatch ---

    def _ready_visible(self) -> list[Range]:
        if not self.visible_below or not self.ready:
            return []
        return self.ready.intersection(0, self.visible_below - 1)

    def _take(self, messages_max: int, bytes_max: int, first_bytes_max: int | None) -> list[Run]:
        """Takes runs off the front of what is ready and visible.

        The first message may have `first_bytes_max` (None: any size), whatever `bytes_max`.
        """
        taken: list[Run] = []
        limit = first_bytes_max
        while messages_max > 0 and self.ready and self.ready.first < self.visible_below:
            first = self.ready.first
            if limit is not None and self._messages.bytes_in(first, first) > limit:
                break
            last = min(next(iter(self.ready))[1], self.visible_below - 1)
            runs = self._messages.fetch(
                first, last, bytes_max=max(bytes_max, 0), messages_max=messages_max
            )
            if not runs:
                self._assert_missing(first)
                break
            for run in runs:
                self.ready.remove(*run.positions)
                self.ready_bytes -= run.block.body_bytes()
                bytes_max -= run.block.sent_bytes()
                messages_max -= run.block.count
            taken += runs
            limit = bytes_max
        return taken

    def _dispatch(self) -> list[Effect]:
        """Gives what is ready to those who have room, in turns."""
        effects: list[Effect] = []
        idle = 0
        while idle < len(self._turn) and self.ready and self.ready.first < self.visible_below:
            consumer = self.consumers[self._turn[0]]
            self._turn.rotate(-1)
            idle += 1
            room = consumer.room_bytes
            runs = self._take(
                min(consumer.room_messages, TURN_MESSAGES_MAX),
                min(consumer.prefetch_bytes if room is None else room, TURN_BYTES_MAX),
                room,
            )
            if not runs:
                continue
            idle = 0
            for run in runs:
                consumer.outstanding.add(*run.positions)
                given = run.block.body_bytes()
                consumer.outstanding_bytes += given
                self.unacknowledged_bytes += given
            effects.append(DeliverRuns(consumer.id, tuple(runs)))
        return effects

    @property
    def unacknowledged(self) -> int:
        return sum(len(consumer.outstanding) for consumer in self.consumers.values())

    @property
    def messages(self) -> int:
        """All that live, but those whose removal has been asked for."""
        requeuing, damaged = len(self._requeuing), len(self.damaged)
        return len(self.ready) + self.unacknowledged + requeuing + damaged

    def check(self) -> None:
        """Asserts the invariants at the top. Costs a look at every message."""
        self.ready.check()
        seen = RangeSet()
        places: list[Iterable[Range]] = [self.ready, self.damaged, self._requeuing]
        places += [consumer.outstanding for consumer in self.consumers.values()]
        places += [*self._gathered.values(), *self._in_hand.values()]
        for place in places:
            for first, last in place:
                assert not seen.intersection(first, last), "a message is in two places"
                seen.add(first, last)
        assert seen == self.state.live
        for first, last in self.damaged:
            assert self._given_up.contains_all(first, last)
        for first, last in self._given_up:
            assert self._messages.missing.contains_all(first, last)
            assert not self.ready.intersection(first, last)
        assert self.ready_bytes == self._bytes_of(self.ready)
        outstanding_bytes = 0
        for consumer in self.consumers.values():
            count, size = len(consumer.outstanding), consumer.outstanding_bytes
            assert size == self._bytes_of(consumer.outstanding)
            assert count <= consumer.prefetch_messages
            assert count <= 1 or size <= consumer.prefetch_bytes or consumer.had_lost
            assert not count or consumer.outstanding.last < self.visible_below
            outstanding_bytes += size
        assert self.unacknowledged_bytes == outstanding_bytes
        assert sorted(self._turn) == sorted(self.consumers)

    def _bytes_of(self, ranges: RangeSet) -> int:
        return sum(self._messages.bytes_in(first, last) for first, last in ranges)


def _messages_in(ranges: Iterable[Range]) -> int:
    return sum(last - first + 1 for first, last in ranges)
