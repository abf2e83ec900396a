"""The ranges, marks and doomed runs of a state as bytes, for a joiner and for checkpoints.

A checkpoint is encoded in one piece of work, as it says what the state is at one moment. Most of
that work is to pack ranges: 10 ms for 200 000 of them, in each of up to 20 sets. A state that a
joiner has fetched is nobody else's until it is installed, so `packed_in_pieces` packs its ranges
before that, and the checkpoint only joins the bytes. Epochs, producers, gaps of their sequences and
leases are not among them: these are bounded, by ten thousand at most.
"""

from __future__ import annotations

from ringmq_base.pieces import Pieces
from ringmq_base.ranges import RangeSet, SummedRangeSet
from ringmq_node.queue.doomed import Doomed
from ringmq_node.queue.marks import Marks
from ringmq_node.queue.state import ReplicatedState

# Ranges, or marks, that are packed in one piece: some 0.6 ms.
RANGES_PACKED_MAX = 20_000
# Doomed runs that are packed in one piece: some 3 ms.
RUNS_PACKED_MAX = 5000

Part = RangeSet | Marks | Doomed


class PackedParts:
    """Parts of one state as bytes.

    Parts that are equal are packed once. After a take-over all live messages count as redelivered,
    and when they have come back once, they all have the same count. To see that costs a tenth of
    packing them.
    """

    def __init__(self) -> None:
        # Each part with its sums at the time of its packing, and its bytes.
        self._parts: list[tuple[Part, tuple[object, ...], bytes]] = []

    def find(self, part: Part) -> bytes | None:
        """What this part, or another one that is the same, was packed to."""
        sums = _sums(part)
        for other, sums_then, data in self._parts:
            # The sums: a part that has changed since it was packed is still equal to itself.
            if sums_then == sums and other == part:
                return data
        return None

    def note(self, part: Part, data: bytes) -> None:
        """`data` is what `part` has just been packed to."""
        self._parts.append((part, _sums(part), data))

    def of(self, part: Part) -> bytes:
        """`part.pack()`, in one piece of work unless it was packed before."""
        data = self.find(part)
        if data is None:
            data = part.pack()
            self.note(part, data)
        return data


def _sums(part: Part) -> tuple[object, ...]:
    assert isinstance(part, SummedRangeSet | Marks | Doomed)
    return part.sums


async def packed_in_pieces(state: ReplicatedState) -> PackedParts:
    """All of a state that may be long, for `checkpoint.encode`. Nobody may change it meanwhile."""
    packed = PackedParts()
    parts: list[Part] = [state.live, state.redelivered, state.transient, *state.counts.planes]
    parts += [state.expiries, *(positions for _, positions in state.priorities.levels())]
    parts += [] if state.doomed is None else [state.doomed]
    # Of all parts together: many parts that are no piece each are one too long.
    pieces = Pieces()
    for part in parts:
        if packed.find(part) is None:
            packed.note(part, await _pack(part, pieces))
    return packed


async def _pack(part: Part, pieces: Pieces) -> bytes:
    """`part.pack()`, in pieces of work."""
    count, step = _length(part)
    packed: list[bytes] = []
    for start in range(0, count, step):
        packed.append(part.pack(start, start + step))
        await pieces.step()
    return b"".join(packed)


def _length(part: Part) -> tuple[int, int]:
    """Of how many elements it is, and how many of them are packed in one piece."""
    if isinstance(part, Doomed):
        return len(part.runs), RUNS_PACKED_MAX
    return len(part) if isinstance(part, Marks) else part.range_count, RANGES_PACKED_MAX
