"""Priorities of messages: which ones have one, and the line in which they are given out.

`Priorities` is replicated: the priority of each live message, as its publish op said it. Only the
master of a priority queue puts one in its ops, no higher than the queue's highest. So a replica
needs no setting to agree with the others, and every later master gives out in the same order.
Messages of priority 0 are not in it: a queue without priorities has nothing here.

`Line` is the master's: the ready positions, the highest priority first, and within one priority
in the order of positions. So a message that is requeued is back in its place of its own priority,
whatever came behind it meanwhile. The obvious alternative, a heap of messages, would cost Python
for each message; here it is one set of ranges for each priority.

A message may be hidden behind one of lower priority: what is visible ends at a position
(`queue.confirms`), whatever the priority. Nor is a waiting message of low priority ever moved up:
as long as higher ones come, it waits.

Invariants (`check`):
* no set of a priority is empty, none is of priority 0, and they are disjoint;
* the line's levels are disjoint, and together they are its positions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence

from ringmq_base.ranges import Range, RangeSet, SummedRangeSet

# The highest priority that a queue may have; a message's is one byte.
PRIORITY_MAX = 255
_LEVEL = struct.Struct("<BI")
_RANGE_BYTES = 16


class Priorities:
    """Positions by priority, those of priority 0 left out. Truthy if any message has one."""

    __slots__ = ("_sets",)

    def __init__(self) -> None:
        self._sets: dict[int, SummedRangeSet] = {}

    def __bool__(self) -> bool:
        return bool(self._sets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Priorities) and self._sets == other._sets

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"Priorities({self._sets!r})"

    def levels(self) -> list[tuple[int, SummedRangeSet]]:
        """The sets, the highest priority first. Not to be changed."""
        return sorted(self._sets.items(), reverse=True)

    def copy(self) -> Priorities:
        twin = Priorities()
        twin._sets = {priority: ranges.copy() for priority, ranges in self._sets.items()}
        return twin

    def add(self, priority: int, first: int, last: int) -> None:
        """The messages `first..last`, which had none so far, have this priority."""
        assert 0 < priority <= PRIORITY_MAX, priority
        self.of(priority).add(first, last)

    def of(self, priority: int) -> SummedRangeSet:
        """The set of one priority, to be filled by the caller at once."""
        return self._sets.setdefault(priority, SummedRangeSet())

    def pack(self, packed: Callable[[SummedRangeSet], bytes] = SummedRangeSet.pack) -> bytes:
        """Of each priority, the highest first: itself (u8), how many ranges (u32), and these as
        `RangeSet.pack` has them, or `packed` if they were packed before. Little endian."""
        return b"".join(
            _LEVEL.pack(priority, positions.range_count) + packed(positions)
            for priority, positions in self.levels()
        )

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Priorities:
        """Raises `ValueError` for other bytes than `pack` makes."""
        found = cls()
        for priority, ranges in cls.packed_levels(memoryview(data)):
            found.of(priority).extend_packed(ranges)
        return found

    @staticmethod
    def packed_levels(data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Each priority of `pack`, with its packed ranges. Raises `ValueError` for other bytes."""
        at, before = 0, PRIORITY_MAX + 1
        while at < len(data):
            if at + _LEVEL.size > len(data):
                raise ValueError(f"priorities of {len(data)} bytes end early")
            priority, count = _LEVEL.unpack_from(data, at)
            at += _LEVEL.size
            end = at + _RANGE_BYTES * count
            if not 0 < priority < before or not count or end > len(data):
                raise ValueError(f"priority {priority} with {count} ranges behind {before}")
            yield priority, data[at:end]
            at, before = end, priority

    def subtract(self, ranges: Sequence[Range]) -> None:
        """These messages are gone."""
        for priority, positions in [*self._sets.items()]:
            positions.subtract(ranges)
            if not positions:
                del self._sets[priority]

    def at(self, position: int) -> int:
        """The priority of one message."""
        for priority, positions in self._sets.items():
            if position in positions:
                return priority
        return 0

    def split(self, ranges: Iterable[Range]) -> Iterator[tuple[int, list[Range]]]:
        """The parts of `ranges` by priority, those of priority 0 too; none is empty.

        `ranges` are disjoint and in order.
        """
        rest: Iterable[Range] = ranges
        for priority, positions in self._sets.items():
            whole = [*rest]
            parts = [part for each in whole for part in positions.intersection(*each)]
            if parts:
                yield priority, parts
                rest = RangeSet(whole).without(parts)
            else:
                rest = whole
        rest = [*rest]
        if rest:
            yield 0, rest

    def sums(self) -> bytes:
        """Tells any two of them apart, but for chance; costs nothing for each position."""
        return b"".join(
            struct.pack("<B", priority) + repr(positions.sums).encode()
            for priority, positions in self.levels()
        )

    def check(self, live: RangeSet) -> None:
        seen = RangeSet()
        for priority, positions in self._sets.items():
            assert 0 < priority <= PRIORITY_MAX
            positions.check()
            assert positions
            for first, last in positions:
                assert live.contains_all(first, last)
                assert not seen.intersection(first, last), "a message has two priorities"
                seen.add(first, last)


class Line:
    """The ready positions of a queue. `priorities` is that of its state, which knows of a message
    before it comes here, and until after it has left."""

    def __init__(self, positions: RangeSet, priorities: Priorities) -> None:
        # All of them; to be changed by the methods of this class alone.
        self.positions = positions.copy()
        self._priorities = priorities
        # By priority, 0 too. Empty: all messages here have priority 0, and `positions` will do.
        self._levels: dict[int, RangeSet] = {}
        # The same sets, the highest first.
        self._ordered: list[RangeSet] = []
        if priorities:
            self._update_levels(self.positions.ranges())

    # --- in and out ---

    def add(self, first: int, last: int) -> None:
        if self._levels or self._priorities:
            self.update([(first, last)])
        else:
            self.positions.add(first, last)

    def update(self, ranges: Sequence[Range]) -> None:
        """`ranges` are disjoint and in order."""
        if self._priorities:
            if not self._levels:
                # The first message with a priority, maybe one of `ranges`.
                self._update_levels(self.positions.ranges())
            self._update_levels(ranges)
        elif self._levels:
            self._drop_levels()
        self.positions.update(ranges)

    def subtract(self, ranges: Sequence[Range]) -> None:
        self.positions.subtract(ranges)
        for positions in self._ordered:
            positions.subtract(ranges)

    def clear(self) -> None:
        self.positions.clear()
        self._drop_levels()

    def _drop_levels(self) -> None:
        self._levels.clear()
        self._ordered.clear()

    def _update_levels(self, ranges: Sequence[Range]) -> None:
        for priority, parts in self._priorities.split(ranges):
            if priority not in self._levels:
                self._levels[priority] = RangeSet()
                self._ordered = [
                    positions for _, positions in sorted(self._levels.items(), reverse=True)
                ]
            self._levels[priority].update(parts)

    # --- in order ---

    def next_part(self, below: int) -> Range | None:
        """The messages at consecutive positions that are next, of those below `below`."""
        for positions in self._ordered or (self.positions,):
            if positions:
                first, last = positions.first_range
                if first < below:
                    return (first, last) if last < below else (first, below - 1)
        return None

    def next_parts(self, below: int, parts_max: int) -> list[Range]:
        """`next_part` and those behind it, at most `parts_max`."""
        found: list[Range] = []
        for positions in self._ordered or (self.positions,):
            if len(found) == parts_max:
                break
            if positions and positions.first < below:
                found += positions.ranges_from(0, parts_max - len(found))
                while found[-1][0] >= below:
                    del found[-1]
                found[-1] = (found[-1][0], min(found[-1][1], below - 1))
        return found

    def parts(self, below: int) -> Iterator[Range]:
        """All of them below `below`, in order. They must not change meanwhile."""
        if below:
            for positions in self._ordered or (self.positions,):
                yield from positions.intersection(0, below - 1)

    def cheapest_first(self) -> Iterator[Range]:
        """All of them, the lowest priority first, and of each the oldest first: the order in which
        a full queue lets go of them. They must not change meanwhile."""
        # From the head, as RabbitMQ does it, the most urgent message would be the first to go.
        for positions in reversed(self._ordered or [self.positions]):
            yield from positions

    def check(self) -> None:
        self.positions.check()
        seen = RangeSet()
        for priority, positions in self._levels.items():
            positions.check()
            for first, last in positions:
                assert not seen.intersection(first, last), "a message is in two levels"
                seen.add(first, last)
                if priority:
                    assert all(
                        self._priorities.at(position) == priority for position in (first, last)
                    )
        assert not self._levels or seen == self.positions
        assert self._levels or not any(
            priority for priority, _ in self._priorities.split(self.positions.ranges())
        )
