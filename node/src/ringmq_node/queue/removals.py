"""Removals: from the wish to remove a message until no master can deliver it any more.

Consumers acknowledge or discard; `take`, `purge` and `discard_damaged` remove for a caller of
their own. Each of them is an *owner* here, a number. A position goes through these stages,
one way, and is in one of them at a time:

    stage       still live  leaves it when
    gathered    yes         a `Remove` op is made (`next_op`): when no other one is on its way
    in hand     yes         the ring has taken the op and given it a number (`sent`)
    in flight   no          the op is persisted by all (`settled`); then its owner is told

Why one `Remove` at a time: a consumer may ack message by message. If each ack made an op,
ops would cost as much as messages. While an op is on its way to the mirrors, acks gather, so
their number follows the trips around the ring. The next op leaves as soon as all have
*received* the one before it; it needn't wait for their disks.

Why "in hand": the ring may refuse an op for a while (its cache is full, there is no quorum).
Then the op waits with the caller, its positions are still live, and a second `Remove` made
from later acks would only lengthen that line.

Why an owner is told only at `persisted`, even of transient messages: if `take` handed out
its messages earlier and the master died, a successor that never received the `Remove` would
deliver them to somebody else; a member that received it and lost its power would do so too.

Dead letters are doomed in the same stages, by `Doom` ops (`deadletters`).

Invariants (`check`):
* ops in flight are in order of their numbers, and each removes something;
* no stage holds an owner without positions;
* an owner that is told once has as many messages left as the stages hold of it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from ringmq_base.ranges import Range, RangeSet, numbers_in
from ringmq_node.queue import ops
from ringmq_node.queue.effects import MulticastOp, ReportSettled
from ringmq_node.queue.leaving import NOBODY
from ringmq_node.queue.ops import AskedOp, Remove


@dataclass(slots=True)
class Whole:
    """A removal whose owner is told once, of all of it."""

    positions: tuple[Range, ...]
    messages_left: int


@dataclass(frozen=True, slots=True)
class RemoveInFlight:
    """The op `number` removes these positions, by owner."""

    number: int
    by_owner: dict[int, list[Range]]


class Removals:
    """Of one mastership."""

    def __init__(self, make_op: Callable[[tuple[Range, ...]], AskedOp] = Remove) -> None:
        """`make_op`: of the positions that leave together."""
        self._make_op = make_op
        # Messages whose removal somebody has asked for and is safe, since this mastership began.
        self.settled_total = 0
        self._gathered: dict[int, RangeSet] = {}
        # Empty, or the op that the caller is trying to multicast.
        self._in_hand: dict[int, list[Range]] = {}
        self._in_flight: deque[RemoveInFlight] = deque()
        self._wholes: dict[int, Whole] = {}

    def gather(self, owner: int, ranges: Sequence[Range]) -> None:
        """`owner` removes these; it is told of each part that becomes safe."""
        self._gathered.setdefault(owner, RangeSet()).update(ranges)

    def gather_whole(self, owner: int, ranges: Sequence[Range]) -> None:
        """`owner` removes these, and nothing else ever; it is told once, of all of them."""
        # The count of an owner that is used twice would mix two removals: it would be told
        # of the one while a part of the other is not safe.
        assert owner not in self._gathered, owner
        assert owner not in self._wholes, owner
        self._wholes[owner] = Whole(tuple(ranges), numbers_in(ranges))
        self._gathered[owner] = RangeSet(ranges)

    def next_op(self, received: int) -> list[MulticastOp]:
        """The next `Remove`, if there is anything to remove and no other is on its way."""
        if not self._gathered or self._in_hand:
            return []
        if self._in_flight and self._in_flight[-1].number > received:
            return []
        # Ranges beyond the limit stay gathered, for the op after this one.
        room = ops.RANGES_SENT_MAX
        for owner, ranges in [*self._gathered.items()]:
            if room <= 0:
                break
            self._in_hand[owner] = ranges.take_first(room)
            if not ranges:
                del self._gathered[owner]
            room -= len(self._in_hand[owner])
        merged: list[Range] = next(iter(self._in_hand.values()))
        if len(self._in_hand) > 1:
            # Consumers that take turns ack neighbouring ranges.
            merged = RangeSet(chain.from_iterable(self._in_hand.values())).ranges()
        return [MulticastOp(self._make_op(tuple(merged)))]

    def sent(self, number: int) -> None:
        """The ring has taken the op of the last `next_op`, which is now applied here."""
        # If nothing were in hand the owners of an op would never be told.
        assert self._in_hand, number
        self._in_flight.append(RemoveInFlight(number, self._in_hand))
        self._in_hand = {}

    def settled(self, persisted: int) -> list[ReportSettled]:
        """The owners to be told, now that all members have persisted the ops so far."""
        effects: list[ReportSettled] = []
        while self._in_flight and self._in_flight[0].number <= persisted:
            for owner, ranges in self._in_flight.popleft().by_owner.items():
                count = numbers_in(ranges)
                self.settled_total += count if owner != NOBODY else 0
                whole = self._wholes.get(owner)
                if whole is None:
                    effects.append(ReportSettled(owner, tuple(ranges)))
                    continue
                whole.messages_left -= count
                if not whole.messages_left:
                    del self._wholes[owner]
                    effects.append(ReportSettled(owner, whole.positions))
        return effects

    def still_live(self) -> Iterator[Range]:
        """Positions whose `Remove` hasn't been applied here yet."""
        return chain(chain.from_iterable(self._gathered.values()), *self._in_hand.values())

    def check(self) -> None:
        left: Counter[int] = Counter()
        for owner, gathered in self._gathered.items():
            gathered.check()
            left[owner] += len(gathered)
        for by_owner in (self._in_hand, *(op.by_owner for op in self._in_flight)):
            for owner, ranges in by_owner.items():
                left[owner] += numbers_in(ranges)
        assert all(left.values()), left
        assert all(op.by_owner for op in self._in_flight)
        assert all(a.number < b.number for a, b in pairwise(self._in_flight))
        for owner, whole in self._wholes.items():
            assert whole.messages_left == left[owner], (owner, whole, left[owner])
