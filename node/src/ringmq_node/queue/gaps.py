"""The sequences that a queue has not, below the last one of their producer: replicated.

A producer that publishes through an exchange gives each queue only what is routed there, so its
sequences have gaps in a queue. With the last sequence alone a repeat is misjudged:

1. 5 is routed to q1 only, and lost with q1's master. 6 is routed to q2.
2. A binding is added. The producer repeats 5, which goes to q1 and q2 now.
3. q2 says "I have all up to 6", and confirms 5, which it hasn't.

So the gaps are kept, as ranges. They are bounded, for each producer and for the queue. What is
above a bound is forgotten, the oldest first, and leaves a *floor*: up to there the queue can't tell
any more, and says so (`FORGOTTEN`). It neither confirms such a sequence nor enqueues it.

Publishes without gaps cost nothing here: a producer with neither gaps nor floor has no entry.

Invariants (`check`): no producer has an empty set; its gaps are above its floor; the bounds hold.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum, auto

from ringmq_base.limits import PRODUCER_ID_BYTES_MAX
from ringmq_base.ranges import RangeSet

# Of one producer: more than the runs that a routed session may have on their way.
PRODUCER_GAPS_MAX = 4096
# Of one queue: some 2 MB of memory, 160 kB of a checkpoint.
GAPS_MAX = 10_000

_HEAD = struct.Struct("<II")
_FLOOR = struct.Struct("<QH")
_HOLDER = struct.Struct("<IH")
_PAIR_BYTES = 16


class SequenceStanding(Enum):
    """What a queue knows of a sequence."""

    STORED = auto()
    #: It surely doesn't have it.
    ABSENT = auto()
    #: It can't tell.
    FORGOTTEN = auto()


class SequenceGaps:
    """Mutable. Of all producers of one queue."""

    def __init__(self) -> None:
        # Of each producer that has any; the one whose gaps have changed last comes last.
        self._gaps: dict[bytes, RangeSet] = {}
        self._floors: dict[bytes, int] = {}
        self._count = 0

    def __eq__(self, other: object) -> bool:
        # Which gaps are forgotten next depends on the order, which `==` of dicts doesn't look at.
        return isinstance(other, SequenceGaps) and self.pack() == other.pack()

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self._gaps or self._floors)

    def __contains__(self, producer_id: bytes) -> bool:
        """Whether a sequence of this producer below its last one may be absent."""
        return producer_id in self._gaps or producer_id in self._floors

    def __repr__(self) -> str:
        return f"SequenceGaps({self._gaps!r}, floors {self._floors!r})"

    def copy(self) -> SequenceGaps:
        twin = SequenceGaps()
        twin._gaps = {key: gaps.copy() for key, gaps in self._gaps.items()}
        twin._floors = self._floors.copy()
        twin._count = self._count
        return twin

    def published(self, producer_id: bytes, known: int, first: int, last: int) -> None:
        """The queue has these sequences now; `known` was the last one before. Not to be called
        for those that follow it: nothing changes then."""
        gaps = self._gaps.pop(producer_id, None) or RangeSet()
        self._count -= gaps.range_count
        if first > known:
            gaps.add(known + 1, first - 1)
        else:
            gaps.remove(first, last)
        excess = gaps.range_count - PRODUCER_GAPS_MAX
        if excess > 0:
            self._floors[producer_id] = gaps.take_first(excess)[-1][1]
        if gaps:
            self._gaps[producer_id] = gaps
            self._count += gaps.range_count
        while self._count > GAPS_MAX:
            oldest = next(iter(self._gaps))
            forgotten = self._gaps.pop(oldest)
            self._floors[oldest] = forgotten.last
            self._count -= forgotten.range_count

    def forget(self, producer_id: bytes) -> None:
        """The queue knows nothing of this producer any more."""
        gaps = self._gaps.pop(producer_id, None)
        if gaps is not None:
            self._count -= gaps.range_count
        self._floors.pop(producer_id, None)

    def judge(
        self, producer_id: bytes, known: int, first: int, last: int
    ) -> Iterator[tuple[int, int, SequenceStanding]]:
        """`first..last` cut where the standing changes, in order. `known`: the producer's last
        sequence here, 0 if there is none."""
        at, end = first, min(known, last)
        floor = min(self._floors.get(producer_id, 0), end)
        if at <= floor:
            yield at, floor, SequenceStanding.FORGOTTEN
            at = floor + 1
        gaps = self._gaps.get(producer_id)
        for low, high in gaps.intersection(at, end) if gaps is not None and at <= end else ():
            if at < low:
                yield at, low - 1, SequenceStanding.STORED
            yield low, high, SequenceStanding.ABSENT
            at = high + 1
        if at <= end:
            yield at, end, SequenceStanding.STORED
            at = end + 1
        if at <= last:
            yield at, last, SequenceStanding.ABSENT

    def pack(self) -> bytes:
        """For a checkpoint, a joiner and the digest.

        floors u32, holders u32; (floor u64, size of the id u16) each; (ranges u32, size of the id
        u16) each, the one whose gaps have changed last at the end; their ids, back to back, in
        the same order; their ranges (first u64, last u64). Little endian.
        """
        pieces = [_HEAD.pack(len(self._floors), len(self._gaps))]
        pieces += [_FLOOR.pack(floor, len(key)) for key, floor in self._floors.items()]
        pieces += [_HOLDER.pack(gaps.range_count, len(key)) for key, gaps in self._gaps.items()]
        pieces += self._floors
        pieces += self._gaps
        pieces += [gaps.pack() for gaps in self._gaps.values()]
        return b"".join(pieces)

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> SequenceGaps:
        """Raises `ValueError` if the bytes aren't such."""
        view = memoryview(data)
        found = cls()
        try:
            floors, holders = _HEAD.unpack_from(view)
            at = _HEAD.size
            floors_end = at + floors * _FLOOR.size
            holders_end = floors_end + holders * _HOLDER.size
            of_floors = [*_FLOOR.iter_unpack(view[at:floors_end])]
            of_holders = [*_HOLDER.iter_unpack(view[floors_end:holders_end])]
        except struct.error as error:
            raise ValueError(f"gaps of {len(view)} bytes: {error}") from error
        if len(of_floors) != floors or len(of_holders) != holders:
            raise ValueError(f"gaps of {len(view)} bytes end early")
        at = holders_end
        for floor, size in of_floors:
            found._floors[bytes(view[at : at + size])] = floor
            at += size
        ids: list[bytes] = []
        for _, size in of_holders:
            ids.append(bytes(view[at : at + size]))
            at += size
        for (count, _), key in zip(of_holders, ids, strict=True):
            gaps = found._gaps[key] = RangeSet()
            gaps.extend_packed(view[at : at + count * _PAIR_BYTES])
            at += count * _PAIR_BYTES
            found._count += gaps.range_count
        if at != len(view) or len(found._floors) != floors or len(found._gaps) != holders:
            raise ValueError(f"gaps have {len(view)} bytes, by their counts {at}")
        return found

    def check(self) -> None:
        assert self._count == sum(gaps.range_count for gaps in self._gaps.values()) <= GAPS_MAX
        for producer_id, gaps in self._gaps.items():
            gaps.check()
            assert 0 < len(producer_id) <= PRODUCER_ID_BYTES_MAX
            assert 0 < gaps.range_count <= PRODUCER_GAPS_MAX
            assert gaps.first > self._floors.get(producer_id, 0)

    def check_known(self, producers: dict[bytes, int]) -> None:
        """`producers`: the last sequence of each producer."""
        for producer_id, gaps in self._gaps.items():
            assert gaps.last < producers[producer_id], producer_id
        assert all(floor < producers[producer_id] for producer_id, floor in self._floors.items())
