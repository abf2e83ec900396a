"""A number for each of some positions: when their messages expire. Pure.

A *mark* is a range of positions with one value. Most queues have none; a queue whose messages come
in with equal values has few, whatever the number of its messages. Three parallel lists, in order of
positions, and found by bisection.

A mark stays until its last live position has gone, and its positions that went before mean nothing:
whoever asks for a value asks for that of a live position. So an ack in the middle of a mark costs
nothing, and replicas agree on their marks because they agree on the ops.

Invariant (`check`): marks are in order and disjoint; two that touch have different values; each has
a live position.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from operator import mul

from ringmq_base.ranges import Range, RangeSet

Mark = tuple[int, int, int]
MARK_BYTES = 24
# Marks that are packed in one step: buffers of megabytes are new pages each time, which cost more
# than the rest.
_PACKED_STEP = 4096


class Marks:
    """Mutable. Iterates over `(first, last, value)`. It keeps sums, so a digest costs nothing."""

    __slots__ = ("_firsts", "_lasts", "_sums", "_values")

    def __init__(self, marks: Iterable[Mark] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._values: list[int] = []
        # Of lasts, of values, and of both multiplied by firsts.
        self._sums = (0, 0, 0, 0)
        for first, last, value in marks:
            self.add(first, last, value)

    def __iter__(self) -> Iterator[Mark]:
        return zip(self._firsts, self._lasts, self._values, strict=True)

    def __len__(self) -> int:
        """How many marks there are."""
        return len(self._firsts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Marks):
            return NotImplemented
        return (self._firsts, self._lasts, self._values) == (
            other._firsts,
            other._lasts,
            other._values,
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Marks({[*self]!r})"

    @property
    def sums(self) -> tuple[int, int, int, int, int]:
        return (len(self._firsts), *self._sums)

    def copy(self) -> Marks:
        twin = Marks()
        twin._firsts = self._firsts.copy()
        twin._lasts = self._lasts.copy()
        twin._values = self._values.copy()
        twin._sums = self._sums
        return twin

    def add(self, first: int, last: int, value: int) -> None:
        """These positions, which are behind all that have a mark, get this value."""
        assert first <= last, (first, last)
        if self._firsts:
            before = self._lasts[-1]
            assert first > before, (first, before)
            if before + 1 == first and self._values[-1] == value:
                self._change_sums(-1, len(self._firsts) - 1)
                self._lasts[-1] = last
                self._change_sums(1, len(self._firsts) - 1)
                return
        self._firsts.append(first)
        self._lasts.append(last)
        self._values.append(value)
        self._change_sums(1, len(self._firsts) - 1)

    def prune(self, gone: Iterable[Range], live: RangeSet) -> None:
        """`gone` are no longer live: marks that have no live position any more are dropped."""
        dead: dict[int, None] = {}
        for first, last in gone:
            low, high = self._span(first, last)
            for index in range(low, high):
                if not live.meets(self._firsts[index], self._lasts[index]):
                    dead[index] = None
        if dead:
            self._drop(sorted(dead))

    def _drop(self, dead: list[int]) -> None:
        low, high = dead[0], dead[-1] + 1
        self._change_sums(-1, low, high)
        kept: list[int] = []
        if high - low > len(dead):
            holes = set(dead)
            kept = [index for index in range(low, high) if index not in holes]
        for values in (self._firsts, self._lasts, self._values):
            values[low:high] = [values[index] for index in kept]
        self._change_sums(1, low, low + len(kept))

    def parts(self, first: int, last: int) -> list[Mark]:
        """The marks of `first..last`, cut to it, in order."""
        low, high = self._span(first, last)
        return [
            (max(first, self._firsts[i]), min(last, self._lasts[i]), self._values[i])
            for i in range(low, high)
        ]

    def _span(self, first: int, last: int) -> tuple[int, int]:
        return bisect_left(self._lasts, first), bisect_right(self._firsts, last)

    def _change_sums(self, sign: int, low: int, high: int | None = None) -> None:
        high = low + 1 if high is None else high
        firsts, lasts = self._firsts[low:high], self._lasts[low:high]
        values = self._values[low:high]
        by_last, by_value = map(mul, firsts, lasts), map(mul, firsts, values)
        changes = (sum(lasts), sum(values), sum(by_last), sum(by_value))
        of_lasts, of_values, of_both, of_marks = self._sums
        self._sums = (
            of_lasts + sign * changes[0],
            of_values + sign * changes[1],
            of_both + sign * changes[2],
            of_marks + sign * changes[3],
        )

    # -- as bytes: first, last and value of each, unsigned, 64 bits, little-endian

    def pack(self, start: int = 0, stop: int | None = None) -> bytes:
        """The marks from index `start` to before `stop`; some 60 ns apiece."""
        start, stop, _ = slice(start, stop).indices(len(self._firsts))
        return b"".join(
            self._packed(at, min(at + _PACKED_STEP, stop))
            for at in range(start, stop, _PACKED_STEP)
        )

    def _packed(self, start: int, stop: int) -> bytes:
        packed = array("Q", bytes(MARK_BYTES * (stop - start)))
        packed[0::3] = array("Q", self._firsts[start:stop])
        packed[1::3] = array("Q", self._lasts[start:stop])
        packed[2::3] = array("Q", self._values[start:stop])
        if sys.byteorder == "big":
            packed.byteswap()
        return packed.tobytes()

    def extend_packed(self, data: bytes | memoryview) -> None:
        """Adds packed marks behind all that are in. Raises `ValueError` if they are no such
        marks; some of them may be in then."""
        if len(data) % MARK_BYTES:
            raise ValueError(f"marks of {len(data)} bytes, not of a multiple of {MARK_BYTES}")
        packed = array("Q")
        packed.frombytes(data)
        if sys.byteorder == "big":
            packed.byteswap()
        at = self._lasts[-1] + 1 if self._lasts else 0
        before = self._values[-1] if self._values else None
        for first, last, value in zip(packed[0::3], packed[1::3], packed[2::3], strict=True):
            if first < at or last < first or (at and first == at and value == before):
                raise ValueError("marks that overlap, touch with one value, or are out of order")
            self.add(first, last, value)
            at, before = last + 1, value

    def check(self, live: RangeSet) -> None:
        for before, behind in pairwise(self):
            assert before[1] < behind[0], (before, behind)
            assert before[1] + 1 < behind[0] or before[2] != behind[2], (before, behind)
        for first, last, _ in self:
            assert first <= last, (first, last)
            assert live.meets(first, last), (first, last)
        assert self.sums == Marks(self).sums
