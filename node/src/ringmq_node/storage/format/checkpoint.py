"""A queue's state as the first record of a journal.

    generation      u64   of the journal
    flags           u32   bit 0 damaged: ops were lost, the state is a guess; bit 1 has counts;
                          bit 2 has expiries or priorities; bit 3 has gaps of sequences; bit 4 has
                          doomed messages; bit 7 the queue has had a consumer (of auto-delete ones)
    epochs          u32   this and the next six are counts of the items below
    live            u32   ranges
    redelivered     u32   ranges
    transient       u32   ranges
    cuts            u32
    producers       u32
    leases          u32
    last number     u64
    next position   u64
    time            u64   milliseconds since 1970, as a master has said it last
    acked end       u64   readers by position have acknowledged all below
    purged end      u64   a purge has removed messages below
    epochs          (epoch u64, first number u64, first position u64) each
    ranges          (first u64, last u64) each; live, redelivered, transient
    cuts            (generation u64, keep below u64) each
    producers       (last sequence u64, time of the last publish u64, size of the id u16) each, by
                    their last publish
    producer ids    back to back
    counts          with flag bit 1: planes u32 (1 to 16), ranges u32 of each plane, then their
                    ranges (`ringmq_node.queue.counts`)
    with flag bit 2 count of expiries u32, bytes of the priorities u32, then
    expiries        (first u64, last u64, milliseconds since 1970 u64) each
    priorities      (priority u8, count of ranges u32, ranges as above) each, the highest first
    gaps            with flag bit 3: size u32, then as `ringmq_node.queue.gaps` packs them
    doomed          with flag bit 4: next letter u64, runs u32, then the runs
                    (`ringmq_node.queue.doomed`)
    leases          (token u64, time to live u64, until u64, sizes of the texts u16 u16 u16, name,
                    holder, instance) each; times in milliseconds

Little endian. A journal begins with two equal copies, so that damage to one of them loses nothing.
Bodies are not in a checkpoint: they stay in the records that have them, in older journals and in
segments.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ringmq_base.ranges import SummedRangeSet
from ringmq_node.queue import leases
from ringmq_node.queue.counts import DeliveryCounts
from ringmq_node.queue.doomed import RUN_BYTES, Doomed
from ringmq_node.queue.gaps import SequenceGaps
from ringmq_node.queue.marks import MARK_BYTES, Marks
from ringmq_node.queue.priorities import Priorities
from ringmq_node.queue.state import EpochStart, ReplicatedState
from ringmq_node.storage.format.packing import PackedParts

_HEAD = struct.Struct("<QIIIIIIIIQQQQQ")
_EPOCH = struct.Struct("<QQQ")
_PAIR = struct.Struct("<QQ")
_PRODUCER = struct.Struct("<QQH")

_COUNT = struct.Struct("<I")
_ATTRIBUTES = struct.Struct("<II")
_DOOMED = struct.Struct("<QI")

_DAMAGED = 1
_HAS_COUNTS = 2
_HAS_ATTRIBUTES = 4
_HAS_GAPS = 8
_HAS_DOOMED = 16
_USED = 128


class CheckpointError(ValueError):
    """These bytes are not a checkpoint."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Bodies logged in journals before `generation` count only below position `keep_below`.

    When a replica's diverged tail is cut off, its positions are given out anew, for other messages.
    Their old bodies stay in the files for a while, and must not come back under the new messages.
    """

    generation: int
    keep_below: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    generation: int
    state: ReplicatedState
    cuts: tuple[Cut, ...] = ()
    damaged: bool = False
    # Parts of `state` that were packed beforehand. The bytes are the same without them.
    packed: PackedParts = field(default_factory=PackedParts, compare=False, repr=False)


def add_cut(cuts: Iterable[Cut], cut: Cut) -> tuple[Cut, ...]:
    """`cuts` and a later one, without those that the later one makes superfluous."""
    return (*(old for old in cuts if old.keep_below < cut.keep_below), cut)


def keep_below(cuts: Iterable[Cut], generation: int) -> int | None:
    """The position below which bodies of `generation` count; None if all of them do."""
    return min((cut.keep_below for cut in cuts if cut.generation > generation), default=None)


def encode(checkpoint: Checkpoint) -> bytes:
    state, packed = checkpoint.state, checkpoint.packed
    sets = (state.live, state.redelivered, state.transient)
    head = _HEAD.pack(
        checkpoint.generation,
        _flags(checkpoint),
        len(state.epochs),
        *(ranges.range_count for ranges in sets),
        len(checkpoint.cuts),
        len(state.producers),
        len(state.leases),
        state.last_number,
        state.next_position,
        state.time_ms,
        state.acked_end,
        state.purged_end,
    )
    pieces = [head]
    pieces += [_EPOCH.pack(e.epoch, e.first_number, e.first_position) for e in state.epochs]
    pieces += map(packed.of, sets)
    pieces += [_PAIR.pack(cut.generation, cut.keep_below) for cut in checkpoint.cuts]
    pieces += [
        _PRODUCER.pack(sequence, used_ms, len(key))
        for (key, sequence), used_ms in zip(
            state.producers.items(), state.producer_times.values(), strict=True
        )
    ]
    pieces += state.producers
    if state.counts:
        planes = state.counts.planes
        pieces += map(_COUNT.pack, (len(planes), *(plane.range_count for plane in planes)))
        pieces += map(packed.of, planes)
    if state.expiries or state.priorities:
        priorities = state.priorities.pack(packed.of)
        pieces.append(_ATTRIBUTES.pack(len(state.expiries), len(priorities)))
        pieces += [packed.of(state.expiries), priorities]
    if state.gaps:
        gaps = state.gaps.pack()
        pieces += (_COUNT.pack(len(gaps)), gaps)
    if state.doomed is not None:
        pieces.append(_DOOMED.pack(state.doomed.next_letter, len(state.doomed.runs)))
        pieces.append(packed.of(state.doomed))
    pieces.append(leases.encode_leases(state.leases.values()))
    return b"".join(pieces)


def _flags(checkpoint: Checkpoint) -> int:
    state = checkpoint.state
    return (
        (_DAMAGED if checkpoint.damaged else 0)
        | (_HAS_COUNTS if state.counts else 0)
        | (_HAS_ATTRIBUTES if state.expiries or state.priorities else 0)
        | (_HAS_GAPS if state.gaps else 0)
        | (0 if state.doomed is None else _HAS_DOOMED)
        | (_USED if state.used else 0)
    )


def decode(payload: bytes) -> Checkpoint:
    """The checkpoint in a payload. Raises `CheckpointError` if it is none."""
    try:
        return _decode(payload)
    except CheckpointError:
        raise
    except (struct.error, AssertionError, ValueError) as error:
        raise CheckpointError(f"checkpoint of {len(payload)} bytes: {error}") from error


def _decode(payload: bytes) -> Checkpoint:
    generation, flags, *numbers = _HEAD.unpack_from(payload)
    counts, (last_number, next_position, time_ms, acked_end, purged_end) = numbers[:7], numbers[7:]
    reader = _Reader(payload, _HEAD.size)
    epochs = [EpochStart(*fields) for fields in reader.take(_EPOCH, counts[0])]
    live, redelivered, transient = (reader.ranges(count) for count in counts[1:4])
    cuts = tuple(Cut(*fields) for fields in reader.take(_PAIR, counts[4]))
    producers: dict[bytes, int] = {}
    producer_times: dict[bytes, int] = {}
    sizes = [*reader.take(_PRODUCER, counts[5])]
    for sequence, used_ms, size in sizes:
        producer_id = payload[reader.offset : reader.offset + size]
        producers[producer_id] = sequence
        producer_times[producer_id] = used_ms
        reader.offset += size
    planes: list[SummedRangeSet] = []
    if flags & _HAS_COUNTS:
        [(size,)] = reader.take(_COUNT, 1)
        planes += [reader.ranges(count) for (count,) in [*reader.take(_COUNT, size)]]
    expiries, priorities = Marks(), Priorities()
    if flags & _HAS_ATTRIBUTES:
        [(count, size)] = reader.take(_ATTRIBUTES, 1)
        expiries, priorities = reader.marks(count), reader.priorities(size)
    gaps = SequenceGaps()
    if flags & _HAS_GAPS:
        [(size,)] = reader.take(_COUNT, 1)
        gaps = reader.gaps(size)
    doomed: Doomed | None = None
    if flags & _HAS_DOOMED:
        [(next_letter, size)] = reader.take(_DOOMED, 1)
        doomed = Doomed.unpack(next_letter, reader.next(RUN_BYTES * size))
    held, end = leases.decode_leases(payload, reader.offset, counts[6])
    if end != len(payload):
        raise CheckpointError(f"checkpoint has {len(payload)} bytes, by its counts {end}")
    state = ReplicatedState(
        last_number=last_number,
        next_position=next_position,
        epochs=epochs,
        live=live,
        redelivered=redelivered,
        transient=transient,
        producers=producers,
        producer_times=producer_times,
        time_ms=time_ms,
        counts=DeliveryCounts(planes),
        acked_end=acked_end,
        purged_end=purged_end,
        leases=held,
        expiries=expiries,
        priorities=priorities,
        gaps=gaps,
        doomed=doomed,
        used=bool(flags & _USED),
    )
    state.check()
    return Checkpoint(generation, state, cuts, bool(flags & _DAMAGED))


class _Reader:
    """Takes one array of structs after another from a payload."""

    def __init__(self, payload: bytes, offset: int) -> None:
        self._payload = payload
        self.offset = offset

    def take(self, shape: struct.Struct, count: int) -> Iterator[tuple[int, ...]]:
        """The next `count` structs of this shape. Raises `CheckpointError` if there are fewer."""
        return shape.iter_unpack(self.next(shape.size * count))

    def ranges(self, count: int) -> SummedRangeSet:
        """The next `count` ranges. Raises `CheckpointError` if there are fewer, or no ranges."""
        ranges = SummedRangeSet()
        try:
            ranges.extend_packed(self.next(_PAIR.size * count))
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        return ranges

    def marks(self, count: int) -> Marks:
        """The next `count` marks. Raises `CheckpointError` if there are fewer, or no marks."""
        marks = Marks()
        try:
            marks.extend_packed(self.next(MARK_BYTES * count))
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        return marks

    def priorities(self, size: int) -> Priorities:
        """Of the next `size` bytes. Raises `CheckpointError` if they are none."""
        try:
            return Priorities.unpack(self.next(size))
        except ValueError as error:
            raise CheckpointError(str(error)) from error

    def gaps(self, size: int) -> SequenceGaps:
        """The gaps in the next `size` bytes. Raises `CheckpointError` if there are none."""
        try:
            return SequenceGaps.unpack(self.next(size))
        except ValueError as error:
            raise CheckpointError(str(error)) from error

    def next(self, size: int) -> memoryview:
        """The next bytes. Raises `CheckpointError` if there are fewer."""
        start, self.offset = self.offset, self.offset + size
        if self.offset > len(self._payload):
            raise CheckpointError(f"checkpoint of {len(self._payload)} bytes ends early")
        return memoryview(self._payload)[start : self.offset]
