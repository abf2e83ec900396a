"""How often each message has come back: replicated, and free for those that never have.

A message *comes back* when the consumer that has it requeues it, or goes without settling it.
The counts are kept as bits: plane `i` has the positions whose count has bit `i` set. So to count
a requeue of any number of messages is a few operations on ranges, and messages that never come
back are in no plane. (A dict by position would cost an entry for each message of a prefetch that
a consumer leaves behind; a range map of counts would need bulk operations of its own.)

Invariants (`check`): the last plane isn't empty; no count is above `COUNT_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from ringmq_base.ranges import Range, RangeSet, SummedRangeSet

PLANES_MAX = 16
# Where a count stays.
COUNT_MAX = (1 << PLANES_MAX) - 1


class DeliveryCounts:
    """Mutable. `planes`: the positions whose count has bit 0 set, then bit 1, and so on."""

    def __init__(self, planes: Iterable[SummedRangeSet] = ()) -> None:
        self.planes = [*planes]
        self._trim()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeliveryCounts) and self.planes == other.planes

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        """Whether any message has come back."""
        return bool(self.planes)

    def __repr__(self) -> str:
        return f"DeliveryCounts({self.planes!r})"

    def copy(self) -> DeliveryCounts:
        return DeliveryCounts(plane.copy() for plane in self.planes)

    def count_of(self, position: int) -> int:
        return sum((position in plane) << bit for bit, plane in enumerate(self.planes))

    def came_back(self, ranges: Sequence[Range]) -> None:
        """One more for each position of `ranges`, which don't overlap."""
        carried: Sequence[Range] = ranges
        if len(self.planes) == PLANES_MAX:
            full = self._in_all(carried)
            if full:
                carried = RangeSet(carried).without(full).ranges()
        for plane in self.planes:
            if not carried:
                return
            overflow = [part for each in carried for part in plane.intersection(*each)]
            plane.update(carried)
            plane.subtract(overflow)
            carried = overflow
        if carried:
            self.planes.append(SummedRangeSet(carried))

    def forget(self, ranges: Iterable[Range]) -> None:
        """These are live no more."""
        if not self.planes:
            return
        gone = [*ranges]
        for plane in self.planes:
            plane.subtract(gone)
        self._trim()

    def parts(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """`first..last` cut where the count changes: first, last, count of each part."""
        if not self.planes:
            yield first, last, 0
            return
        cuts = {first}
        for plane in self.planes:
            for low, high in plane.intersection(first, last):
                cuts.add(low)
                cuts.add(high + 1)
        cuts.add(last + 1)
        for low, end in pairwise(sorted(cuts)):
            yield low, end - 1, self.count_of(low)

    def at_least(self, count: int, ranges: Iterable[Range]) -> list[Range]:
        """The parts of `ranges` that have come back `count` times or more."""
        if not self.planes and count > 0:
            return []
        found = (part for each in ranges for part in self.parts(*each))
        return [(low, high) for low, high, times in found if times >= count]

    def check(self) -> None:
        assert len(self.planes) <= PLANES_MAX
        assert not self.planes or self.planes[-1]
        for plane in self.planes:
            plane.check()

    def _in_all(self, ranges: Sequence[Range]) -> list[Range]:
        for plane in self.planes:
            ranges = [part for each in ranges for part in plane.intersection(*each)]
        return [*ranges]

    def _trim(self) -> None:
        while self.planes and not self.planes[-1]:
            self.planes.pop()
