"""Sets of 64-bit numbers as sorted, disjoint, non-adjacent ranges.

Sets of positions are kept as ranges, so that an ack of a million messages costs as much as an ack
of one. A `RangeSet` keeps two parallel lists (firsts and lasts, both ends included) and finds its
place by bisection: every operation is O(log n) in the number of *ranges*, plus the ranges that it
touches. A queue that is consumed in order has one range. The worst case is every other position:
then a range costs two list entries, twice as much as a plain list of positions would.

Invariant (`check`): `firsts[i] <= lasts[i]` and `lasts[i] + 1 < firsts[i + 1]`.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import le, lt, mul

Range = tuple[int, int]

_next = (1).__add__

# From so many ranges on, an update or a subtraction may take them all together; unless there are
# so many times as many others among them.
_MANY = 8
_SPARSE = 64
# Ranges that are packed together.
_PACKED_STEP = 4096
# Ranges that are compared together where two sets may be alike.
_ALIKE_STEP = 64


def numbers_in(ranges: Iterable[Range]) -> int:
    """How many numbers disjoint ranges hold together."""
    return sum(last - first + 1 for first, last in ranges)


def _are_disjoint(ranges: Iterable[Range]) -> bool:
    """Whether they are in order, and none overlaps the next one."""
    return all(before[1] < behind[0] for before, behind in pairwise(ranges))


def _packed(firsts: list[int], lasts: list[int]) -> bytes:
    both = array("Q", bytes(2 * 8 * len(firsts)))
    both[0::2] = array("Q", firsts)
    both[1::2] = array("Q", lasts)
    if sys.byteorder == "big":
        both.byteswap()
    return both.tobytes()


def _note_changes(
    mine: tuple[list[int], list[int]],
    theirs: tuple[list[int], list[int]],
    only_mine: list[Range],
    only_theirs: list[Range],
) -> None:
    """Which ranges, given as firsts and lasts, only one of the two has."""
    # No tuple of each range: thousands of them would have the garbage collector look around.
    here, there = dict(zip(*mine, strict=True)), dict(zip(*theirs, strict=True))
    only_mine += [(first, last) for first, last in here.items() if there.get(first) != last]
    only_theirs += [(first, last) for first, last in there.items() if here.get(first) != last]


class RangeSet:
    """A mutable set of numbers >= 0, kept as ranges with both ends included."""

    __slots__ = ("_count", "_firsts", "_lasts")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._count = 0
        # Of a queue's sets most are empty at first.
        if ranges != ():
            self.update(ranges)

    def __iter__(self) -> Iterator[Range]:
        return zip(self._firsts, self._lasts, strict=True)

    def __len__(self) -> int:
        """How many numbers (not ranges) it holds."""
        return self._count

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._firsts == other._firsts and self._lasts == other._lasts

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._firsts, number) - 1
        return index >= 0 and number <= self._lasts[index]

    def __repr__(self) -> str:
        return f"RangeSet({self.ranges()!r})"

    def ranges(self) -> list[Range]:
        """Its ranges, in order.

        Use this and not `list(ranges)`: `list` asks `len` how much memory to reserve, and `len`
        counts numbers. A set of one range with a billion numbers would reserve 8 GB.
        """
        return [*zip(self._firsts, self._lasts, strict=True)]

    @property
    def range_count(self) -> int:
        return len(self._firsts)

    def firsts(self, step: int) -> list[int]:
        """Where every `step`th range begins, from the first one on."""
        return self._firsts[::step]

    @property
    def first(self) -> int:
        """The smallest number. Only of a set that isn't empty."""
        return self._firsts[0]

    @property
    def first_range(self) -> Range:
        """The range with the smallest numbers. Only of a set that isn't empty."""
        return self._firsts[0], self._lasts[0]

    @property
    def last(self) -> int:
        """The greatest number. Only of a set that isn't empty."""
        return self._lasts[-1]

    def copy(self) -> RangeSet:
        twin = RangeSet()
        twin.assign(self)
        return twin

    def assign(self, other: RangeSet) -> None:
        """Makes this set equal to `other`: two copies of lists, whatever was in it."""
        self._firsts = other._firsts.copy()
        self._lasts = other._lasts.copy()
        self._count = other._count

    def clear(self) -> None:
        self._splice(0, len(self._firsts), [], [])
        self._count = 0

    def _splice(self, low: int, high: int, firsts: list[int], lasts: list[int]) -> None:
        """Puts ranges in the place of those from index `low` to before `high`."""
        self._firsts[low:high] = firsts
        self._lasts[low:high] = lasts

    def _extend_last(self, last: int) -> None:
        """The last range goes on to `last`."""
        self._count += last - self._lasts[-1]
        self._lasts[-1] = last

    # -- as bytes: each range is its first and its last number, unsigned, 64 bits, little-endian

    def pack(self, start: int = 0, stop: int | None = None) -> bytes:
        """The ranges from index `start` to before `stop`; some 30 ns apiece."""
        start, stop, _ = slice(start, stop).indices(len(self._firsts))
        # In steps: buffers of megabytes are new pages each time, which cost as much as the rest.
        return b"".join(
            _packed(*self._slices(at, min(at + _PACKED_STEP, stop)))
            for at in range(start, stop, _PACKED_STEP)
        )

    def extend_packed(self, data: bytes | memoryview) -> None:
        """Adds packed ranges that lie behind all that are in; some 150 ns apiece.

        Raises `ValueError`, and adds none, if they are no such ranges.
        """
        if len(data) % 16:
            raise ValueError(f"packed ranges of {len(data)} bytes, not of a multiple of 16")
        both = array("Q")
        both.frombytes(data)
        if sys.byteorder == "big":
            both.byteswap()
        firsts, lasts = both[0::2].tolist(), both[1::2].tolist()
        before = [self._lasts[-1], *lasts[:-1]] if self._lasts else lasts[:-1]
        behind = firsts if self._lasts else firsts[1:]
        in_order = all(map(le, firsts, lasts)) and all(map(lt, map(_next, before), behind))
        if not in_order:
            raise ValueError("packed ranges that overlap, touch, or are out of order")
        end = len(self._firsts)
        self._splice(end, end, firsts, lasts)
        self._count += sum(lasts) - sum(firsts) + len(firsts)

    def add(self, first: int, last: int) -> None:
        """Adds `first..last`, of which some or all may be in already."""
        assert 0 <= first <= last, (first, last)
        if self._lasts and first == self._lasts[-1] + 1:
            # Positions and sequences come in order: most adds make the last range longer.
            self._extend_last(last)
            return
        # All ranges that overlap the new one or touch it become one with it: two ranges that
        # touch would break the invariant, on which `contains_all` relies.
        low = bisect_left(self._lasts, first - 1)
        high = bisect_right(self._firsts, last + 1)
        removed = 0
        if low < high:
            first = min(first, self._firsts[low])
            last = max(last, self._lasts[high - 1])
            for index in range(low, high):
                removed += self._lasts[index] - self._firsts[index] + 1
        self._splice(low, high, [first], [last])
        self._count += last - first + 1 - removed

    def remove(self, first: int, last: int) -> int:
        """Takes `first..last` out; returns how many of these numbers were in."""
        assert 0 <= first <= last, (first, last)
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        if low >= high:
            return 0
        new_firsts: list[int] = []
        new_lasts: list[int] = []
        if self._firsts[low] < first:
            new_firsts.append(self._firsts[low])
            new_lasts.append(first - 1)
        if self._lasts[high - 1] > last:
            new_firsts.append(last + 1)
            new_lasts.append(self._lasts[high - 1])
        before = sum(self._lasts[i] - self._firsts[i] + 1 for i in range(low, high))
        after = sum(b - a + 1 for a, b in zip(new_firsts, new_lasts, strict=True))
        self._splice(low, high, new_firsts, new_lasts)
        self._count -= before - after
        return before - after

    def take_first(self, ranges_max: int) -> list[Range]:
        """Takes out the first ranges, at most `ranges_max` of them, and returns them."""
        taken = [*zip(self._firsts[:ranges_max], self._lasts[:ranges_max], strict=True)]
        self._splice(0, len(taken), [], [])
        self._count -= numbers_in(taken)
        return taken

    def update(self, ranges: Iterable[Range]) -> None:
        if isinstance(ranges, RangeSet) and (not self or not ranges or self.last < ranges.first):
            # All at once, but for the first one, which may touch what is in.
            if ranges:
                self.add(ranges._firsts[0], ranges._lasts[0])
                end = len(self._firsts)
                self._splice(end, end, ranges._firsts[1:], ranges._lasts[1:])
                self._count += len(ranges) - (ranges._lasts[0] - ranges._firsts[0] + 1)
            return
        added = ranges if isinstance(ranges, list | tuple) else [*ranges]
        span = self._span_of_many(added)
        if span is not None:
            self._merge(added, *span)
            return
        for first, last in added:
            self.add(first, last)

    def subtract(self, ranges: Iterable[Range]) -> int:
        """Takes all of `ranges` out; returns how many numbers were in."""
        removed = ranges if isinstance(ranges, list | tuple) else [*ranges]
        span = self._span_of_many(removed)
        if span is None or not _are_disjoint(removed):
            return sum(self.remove(first, last) for first, last in removed)
        low, high = span
        if low >= high:
            return 0
        old = self.part(self._firsts[low], self._lasts[high - 1])
        new = old.without(removed)
        self._splice(low, high, new._firsts, new._lasts)
        self._count -= len(old) - len(new)
        return len(old) - len(new)

    def _span_of_many(self, ranges: Sequence[Range]) -> tuple[int, int] | None:
        """The indexes of the ranges here among which `ranges` lie, or None if it is better to
        take these one by one: they are few, or far apart.

        Each one that is added or removed moves all that lies behind it: of 30 000 that came one
        by one, the moves were most of the work.
        """
        if len(ranges) < _MANY:
            return None
        first = min(first for first, _ in ranges)
        last = max(last for _, last in ranges)
        low = bisect_left(self._lasts, first - 1)
        high = bisect_right(self._firsts, last + 1)
        return (low, high) if high - low < _SPARSE * len(ranges) else None

    def _merge(self, ranges: Sequence[Range], low: int, high: int) -> None:
        """Adds `ranges`, which lie among those from index `low` to before `high`."""
        old_firsts, old_lasts = self._firsts[low:high], self._lasts[low:high]
        # Two sorted runs, as a rule: the sort only merges them.
        both = [*zip(old_firsts, old_lasts, strict=True), *ranges]
        both.sort()
        firsts: list[int] = []
        lasts: list[int] = []
        end = -2
        for first, last in both:
            assert 0 <= first <= last, (first, last)
            if first > end + 1:
                firsts.append(first)
                lasts.append(last)
                end = last
            elif last > end:
                lasts[-1] = end = last
        self._count += sum(lasts) - sum(firsts) + len(firsts)
        self._count -= sum(old_lasts) - sum(old_firsts) + len(old_firsts)
        self._splice(low, high, firsts, lasts)

    def intersection(self, first: int, last: int) -> list[Range]:
        """The parts of this set that lie in `first..last`, in order."""
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        return [
            (max(first, self._firsts[index]), min(last, self._lasts[index]))
            for index in range(low, high)
        ]

    def ranges_from(self, first: int, ranges_max: int) -> list[Range]:
        """The parts of this set that lie at `first` or above it: the first `ranges_max` of them."""
        low = bisect_left(self._lasts, first)
        high = min(low + ranges_max, len(self._lasts))
        return [(max(first, self._firsts[index]), self._lasts[index]) for index in range(low, high)]

    def bounds(self, first: int, last: int) -> tuple[list[int], list[int]]:
        """The firsts and the lasts of `intersection(first, last)`, which takes six times as long:
        it makes a tuple of each."""
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        firsts, lasts = self._firsts[low:high], self._lasts[low:high]
        if firsts:
            firsts[0] = max(firsts[0], first)
            lasts[-1] = min(lasts[-1], last)
        return firsts, lasts

    def count_in(self, first: int, last: int) -> int:
        """How many numbers of `first..last` are in; some 20 ns for each range there."""
        firsts, lasts = self.bounds(first, last)
        return sum(lasts) - sum(firsts) + len(firsts)

    def part(self, first: int, last: int) -> RangeSet:
        """Another set, of the numbers of `first..last` that are in."""
        part = RangeSet()
        part._extend(self, first, last)
        return part

    def without(self, ranges: Iterable[Range]) -> RangeSet:
        """Another set, of the numbers that are in none of `ranges`: disjoint, in order.

        It costs a bisection for each of `ranges`, and a copy of what is left. To `remove` one
        after the other from a copy moves all that lies behind, each time: with 200 000 ranges
        that took 12 s.
        """
        rest = RangeSet()
        at = 0
        for first, last in ranges:
            assert at <= first <= last, (at, first, last)
            # They may touch, with nothing in between.
            if at < first:
                rest._extend(self, at, first - 1)
            at = last + 1
        if self and at <= self.last:
            rest._extend(self, at, self.last)
        return rest

    def changes_to(self, other: RangeSet) -> tuple[RangeSet, RangeSet]:
        """The numbers that only this set has, and those that only the other one has.

        Where they are alike it costs 20 ns for each range; within `_ALIKE_STEP` of a difference,
        some 150 ns for each range of both, and 2 us for each one that only one of them has.
        """
        only_mine: list[Range] = []
        only_theirs: list[Range] = []
        at = there = 0
        while at < len(self._firsts) and there < len(other._firsts):
            mine = self._slices(at, at + _ALIKE_STEP)
            theirs = other._slices(there, there + _ALIKE_STEP)
            if mine != theirs:
                # Both up to the same number, so that they are side by side again behind it.
                theirs = other._slices(there, bisect_right(other._firsts, mine[0][-1], there))
                _note_changes(mine, theirs, only_mine, only_theirs)
            at += len(mine[0])
            there += len(theirs[0])
        only_mine += zip(*self._slices(at, len(self._firsts)), strict=True)
        only_theirs += zip(*other._slices(there, len(other._firsts)), strict=True)
        return (
            RangeSet(only_mine).without(only_theirs),
            RangeSet(only_theirs).without(only_mine),
        )

    def _slices(self, start: int, stop: int) -> tuple[list[int], list[int]]:
        return self._firsts[start:stop], self._lasts[start:stop]

    def _extend(self, other: RangeSet, first: int, last: int) -> None:
        """Adds what `other` has in `first..last`, which lies behind all that is in, and does not
        touch it."""
        firsts, lasts = other.bounds(first, last)
        self._firsts += firsts
        self._lasts += lasts
        self._count += sum(lasts) - sum(firsts) + len(firsts)

    def meets(self, first: int, last: int) -> bool:
        """Whether any number of `first..last` is in."""
        index = bisect_left(self._lasts, first)
        return index < len(self._firsts) and self._firsts[index] <= last

    def contains_all(self, first: int, last: int) -> bool:
        """Whether every number of `first..last` is in."""
        index = bisect_right(self._firsts, first) - 1
        return index >= 0 and last <= self._lasts[index]

    def check(self) -> None:
        assert len(self._firsts) == len(self._lasts)
        assert all(a <= b for a, b in self)
        assert all(self._lasts[i] + 1 < self._firsts[i + 1] for i in range(len(self._firsts) - 1))
        assert self._count == sum(b - a + 1 for a, b in self)


class SummedRangeSet(RangeSet):
    """A `RangeSet` that keeps sums over its ranges, which tell sets apart without a look at them.

    A digest of the whole set costs nothing then; an add or a remove costs half a microsecond more.
    The sums are of firsts, of lasts, and of their products: a set that lacks a number, or has one
    too many, or has a range in another place, has other sums. They are no protection against
    somebody who looks for two sets with equal sums.
    """

    __slots__ = ("_sum_of_firsts", "_sum_of_lasts", "_sum_of_products")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._sum_of_firsts = self._sum_of_lasts = self._sum_of_products = 0
        super().__init__(ranges)

    @property
    def sums(self) -> tuple[int, int, int, int, int]:
        """The number of ranges and of numbers, and the sums."""
        return (
            len(self._firsts),
            self._count,
            self._sum_of_firsts,
            self._sum_of_lasts,
            self._sum_of_products,
        )

    def copy(self) -> SummedRangeSet:
        twin = SummedRangeSet()
        twin.assign(self)
        return twin

    def assign(self, other: RangeSet) -> None:
        super().assign(other)
        if isinstance(other, SummedRangeSet):
            self._sum_of_firsts = other._sum_of_firsts
            self._sum_of_lasts = other._sum_of_lasts
            self._sum_of_products = other._sum_of_products
        else:
            self._sum_of_firsts, self._sum_of_lasts, self._sum_of_products = _sums(
                self._firsts, self._lasts
            )

    def _splice(self, low: int, high: int, firsts: list[int], lasts: list[int]) -> None:
        if low < high:
            out = _sums(self._firsts[low:high], self._lasts[low:high])
            self._sum_of_firsts -= out[0]
            self._sum_of_lasts -= out[1]
            self._sum_of_products -= out[2]
        if firsts:
            new = _sums(firsts, lasts)
            self._sum_of_firsts += new[0]
            self._sum_of_lasts += new[1]
            self._sum_of_products += new[2]
        super()._splice(low, high, firsts, lasts)

    def _extend_last(self, last: int) -> None:
        more = last - self._lasts[-1]
        self._sum_of_lasts += more
        self._sum_of_products += more * self._firsts[-1]
        super()._extend_last(last)

    def check(self) -> None:
        super().check()
        assert self.sums[2:] == _sums(self._firsts, self._lasts)


def _sums(firsts: list[int], lasts: list[int]) -> tuple[int, int, int]:
    return sum(firsts), sum(lasts), sum(map(mul, firsts, lasts))
