"""What only the master of a queue knows and decides: who gets which message, and
who is told that something is safe. Pure; no I/O but the `Messages` it is given.

A message becomes *visible*, to be delivered, when its publish is confirmed: on
disk at every synchronised member (a transient one: received). If it were
delivered earlier and the master died, the publisher's retry would enqueue it
again at another position, and a consumer would see it twice without a sign.

Every visible live message is either ready or outstanding with one consumer.
Acks leave as one op at a time: while a `Remove` is on its way around the ring,
the next acks gather.

Invariants (`check`):
* ready and the consumers' outstanding sets are disjoint, and together with what is
  being removed they are the live messages;
* a consumer has no more outstanding than its prefetch, but for one message that
  is larger than its bytes.

The caller carries out the effects in order; a `Multicast` comes back through
`applied` before its effect is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove, Requeue
from ringmq_node.queue.ranges import Range, RangeSet
from ringmq_node.queue.state import QueueState

# What one consumer is given at a time, so that several take turns.
TURN_MESSAGES_MAX = 1000
TURN_BYTES_MAX = 512 * 1024
# Ranges in one Remove or Requeue op.
OP_RANGES_MAX = 10_000


class UnknownDeliveryError(ValueError):
    """A consumer settles a position that it has not been given, or has settled already."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__(f"positions {first} to {last} are not outstanding on this stream")
        self.first = first
        self.last = last


class Run(Protocol):
    """Consecutive live messages that share a block and what is said about them."""

    @property
    def first_position(self) -> int: ...
    @property
    def block(self) -> Block: ...
    @property
    def redelivered(self) -> bool: ...


class Messages(Protocol):
    """The bodies, wherever they are."""

    def read(
        self, first: int, last: int, *, bytes_max: int, messages_max: int
    ) -> Sequence[Run]: ...

    def bytes_in(self, first: int, last: int) -> int: ...


# --- effects ---


@dataclass(frozen=True, slots=True)
class Multicast:
    """Send this op around the ring."""

    op: Op


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give these messages to a consumer."""

    consumer: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Confirm:
    """Tell a publisher that these sequences are safe."""

    publisher: int
    sequences: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """Tell a consumer that these positions will not come again."""

    consumer: int
    positions: tuple[Range, ...]


Effect = Multicast | Deliver | Confirm | Settled


@dataclass(slots=True)
class Consumer:
    """A stream that takes messages."""

    id: int
    prefetch_messages: int
    prefetch_bytes: int
    outstanding: RangeSet = field(default_factory=RangeSet)
    outstanding_bytes: int = 0
    cancelled: bool = False

    @property
    def has_room(self) -> bool:
        return (
            not self.cancelled
            and len(self.outstanding) < self.prefetch_messages
            and (not self.outstanding or self.outstanding_bytes < self.prefetch_bytes)
        )


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

    def __init__(self, state: QueueState, messages: Messages) -> None:
        self.state = state
        self.ready = state.live.copy()
        self.ready_bytes = 0
        self.unacknowledged_bytes = 0
        self.published_total = 0
        self.acknowledged_total = 0
        self.consumers: dict[int, Consumer] = {}
        self._messages = messages
        self._turn: deque[int] = deque()
        self._received = 0
        self._persisted = 0
        # Positions below this have been confirmed.
        self.visible_below = 0
        self._hidden: deque[PendingVisible] = deque()
        self._unconfirmed: deque[PendingPublish] = deque()
        self._unconfirmed_transient: deque[PendingPublish] = deque()
        # Acks by consumer: those that gather, those in the op that is being handed over,
        # and those on their way with the number of their op.
        self._gathered: dict[int, list[Range]] = {}
        self._in_hand: dict[int, list[Range]] = {}
        self._removing: deque[tuple[int, dict[int, list[Range]]]] = deque()
        if state.next_position:
            self._hidden.append(PendingVisible(state.last_number, state.next_position, False))
            if state.live:
                self.ready_bytes = messages.bytes_in(state.live.first, state.live.last)

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
        self.consumers[consumer] = Consumer(consumer, prefetch_messages, prefetch_bytes)
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
        return self._requeue(tuple(gone.outstanding))

    def settle(
        self,
        consumer_id: int,
        *,
        removed: Sequence[Range],
        requeued: Sequence[Range],
    ) -> list[Effect]:
        """Acknowledges (or discards) and requeues; all of it, or, with an error, nothing."""
        consumer = self.consumers[consumer_id]
        self._check_outstanding(consumer, [*removed, *requeued])
        for first, last in (*removed, *requeued):
            size = self._messages.bytes_in(first, last)
            consumer.outstanding.remove(first, last)
            consumer.outstanding_bytes -= size
            self.unacknowledged_bytes -= size
        if removed:
            self._gathered.setdefault(consumer_id, []).extend(removed)
        effects = self._requeue(tuple(requeued))
        effects += self._flush_removes()
        return effects + self._dispatch()

    def _check_outstanding(self, consumer: Consumer, ranges: Iterable[Range]) -> None:
        seen = RangeSet()
        for first, last in ranges:
            if not consumer.outstanding.contains_all(first, last) or seen.intersection(first, last):
                raise UnknownDeliveryError(first, last)
            seen.add(first, last)

    def _requeue(self, ranges: tuple[Range, ...]) -> list[Effect]:
        return [
            Multicast(Requeue(ranges[at : at + OP_RANGES_MAX]))
            for at in range(0, len(ranges), OP_RANGES_MAX)
        ]

    # --- without a subscription ---

    def take(self, consumer: int, messages_max: int, bytes_max: int) -> list[Run]:
        """Removes the first ready messages for `consumer`, who isn't a subscriber; a Remove
        op follows with `flush`, and `Settled` says when they may be handed out."""
        runs = self._take(messages_max, bytes_max)
        self._gathered.setdefault(consumer, []).extend(_range_of(run) for run in runs)
        return runs

    def flush(self) -> list[Effect]:
        return self._flush_removes()

    def peek(self, messages_max: int, bytes_max: int) -> list[Run]:
        """The first ready messages, which stay where they are."""
        runs: list[Run] = []
        for first, last in self._ready_visible():
            if messages_max <= 0 or (runs and bytes_max <= 0):
                break
            for run in self._messages.read(
                first, last, bytes_max=bytes_max, messages_max=messages_max
            ):
                runs.append(run)
                messages_max -= run.block.count
                bytes_max -= run.block.body_bytes()
        return runs

    def purge(self, consumer: int) -> tuple[int, list[Effect]]:
        """Removes what is ready; `Settled` for `consumer` says when that is safe."""
        ranges = list(self.ready)
        count = len(self.ready)
        if ranges:
            self._gathered.setdefault(consumer, []).extend(ranges)
            self.ready.clear()
            self.ready_bytes = 0
        return count, self._flush_removes()

    # --- the ring ---

    def applied(self, number: int, op: Op, size_bytes: int = 0) -> list[Effect]:
        """An op of this master has been applied to the state. `size_bytes`: its bodies."""
        match op:
            case Publish():
                self.ready.add(op.first_position, op.last_position)
                self.ready_bytes += size_bytes
                self._hidden.append(PendingVisible(number, op.last_position + 1, op.transient))
                return []
            case Remove():
                return []
            case Requeue(ranges):
                for first, last in ranges:
                    for part in self.state.live.intersection(first, last):
                        if not self.ready.contains_all(*part):
                            self.ready.add(*part)
                            self.ready_bytes += self._messages.bytes_in(*part)
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
                self.acknowledged_total += sum(last - first + 1 for first, last in ranges)
                effects.append(Settled(consumer, tuple(ranges)))
        while self._hidden:
            head = self._hidden[0]
            if head.number > (received if head.transient else persisted):
                break
            self.visible_below = head.next_position
            self._hidden.popleft()
        effects += self._flush_removes()
        return effects + self._dispatch()

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
        return [Confirm(publisher, tuple(mine)) for publisher, mine in ranges.items()]

    def _flush_removes(self) -> list[Effect]:
        """One Remove at a time is on its way to the mirrors; meanwhile acks gather."""
        if not self._gathered or self._in_hand:
            return []
        if self._removing and self._removing[-1][0] > self._received:
            return []
        self._in_hand, self._gathered = self._gathered, {}
        merged = RangeSet(pair for ranges in self._in_hand.values() for pair in ranges)
        return [Multicast(Remove(tuple(merged)))]

    # --- dispatch ---

    def _ready_visible(self) -> list[Range]:
        if not self.visible_below or not self.ready:
            return []
        return self.ready.intersection(0, self.visible_below - 1)

    def _take(self, messages_max: int, bytes_max: int) -> list[Run]:
        """Takes runs off the front of what is ready and visible; at least one message."""
        taken: list[Run] = []
        while messages_max > 0 and (bytes_max > 0 or not taken):
            if not self.ready or self.ready.first >= self.visible_below:
                break
            first = self.ready.first
            last = next(iter(self.ready))[1]
            runs = self._messages.read(
                first,
                min(last, self.visible_below - 1),
                bytes_max=max(bytes_max, 1),
                messages_max=messages_max,
            )
            assert runs, f"ready positions {first} to {last} have no bodies"
            for run in runs:
                size = run.block.body_bytes()
                self.ready.remove(*_range_of(run))
                self.ready_bytes -= size
                messages_max -= run.block.count
                bytes_max -= size
                taken.append(run)
        return taken

    def _dispatch(self) -> list[Effect]:
        """Gives what is ready to those who have room, in turns."""
        effects: list[Effect] = []
        idle = 0
        while idle < len(self._turn) and self.ready and self.ready.first < self.visible_below:
            consumer = self.consumers[self._turn[0]]
            self._turn.rotate(-1)
            if not consumer.has_room:
                idle += 1
                continue
            idle = 0
            messages = min(
                consumer.prefetch_messages - len(consumer.outstanding), TURN_MESSAGES_MAX
            )
            size = min(consumer.prefetch_bytes - consumer.outstanding_bytes, TURN_BYTES_MAX)
            runs = self._take(messages, size)
            for run in runs:
                consumer.outstanding.add(*_range_of(run))
                given = run.block.body_bytes()
                consumer.outstanding_bytes += given
                self.unacknowledged_bytes += given
            effects.append(Deliver(consumer.id, tuple(runs)))
        return effects

    @property
    def unacknowledged(self) -> int:
        return sum(len(consumer.outstanding) for consumer in self.consumers.values())

    def check(self) -> None:
        self.ready.check()
        seen = self.ready.copy()
        for consumer in self.consumers.values():
            for first, last in consumer.outstanding:
                assert not seen.intersection(first, last), "a message is in two places"
                seen.add(first, last)
            assert len(consumer.outstanding) <= consumer.prefetch_messages
        for first, last in seen:
            assert self.state.live.contains_all(first, last), (first, last)
        assert sorted(self._turn) == sorted(self.consumers)


def _range_of(run: Run) -> Range:
    return run.first_position, run.first_position + run.block.count - 1
