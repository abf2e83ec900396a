"""Journals and segments made by hand, record by record, and the views of a recovered queue."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

from node.tests.storage.simulated_disk import SimulatedDisk

from ringmq_base.ranges import RangeSet
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Publish, Remove
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage.format import checkpoint, references
from ringmq_node.storage.format.checkpoint import Checkpoint, Cut
from ringmq_node.storage.format.formats import JOURNAL, SEGMENT, Format
from ringmq_node.storage.format.records import (
    FLAG_TRANSIENT,
    RecordKind,
    file_header,
    new_marker,
    owner_of,
    record_header,
)
from ringmq_node.storage.format.references import RecordLocation, Reference
from ringmq_node.storage.queue.entries import IndexEntry
from ringmq_node.storage.queue.loading import load_segment
from ringmq_node.storage.queue.recovery import Recovered, recover

HERE = Path("/data/queues/1c168adb00d208e42f93314529f1fa9c")


class FileOfRecords:
    """A journal or a segment, record by record."""

    def __init__(self, format: Format, number: int, owner: int = owner_of(HERE)) -> None:
        self.marker = new_marker()
        self.data = bytearray(file_header(format, self.marker, number, owner))
        # The `synced` of the records from here on.
        self.synced = 0

    def add(
        self, kind: RecordKind, payload: bytes, *, number: int = 0, epoch: int = 0, flags: int = 0
    ) -> int:
        """Returns where the record begins."""
        offset = len(self.data)
        self.data += record_header(
            self.marker,
            offset,
            kind,
            payload,
            flags=flags,
            number=number,
            epoch=epoch,
            synced=self.synced,
        )
        self.data += payload
        return offset


class Segment(FileOfRecords):
    def __init__(self, number: int = 0, owner: int = owner_of(HERE)) -> None:
        super().__init__(SEGMENT, number, owner)

    def entry(self, first: int, *bodies: bytes, generation: int = 1, flags: int = 0) -> int:
        data = Block.of(bodies).data
        return self.add(RecordKind.ENTRY, data, number=first, epoch=generation, flags=flags)

    def stored(self, first: int, *places: Reference, generation: int = 1, flags: int = 0) -> int:
        table = references.encode(places)
        return self.add(RecordKind.STORED_ENTRY, table, number=first, epoch=generation, flags=flags)


class Journal(FileOfRecords):
    """Begins with the state that `live` says, at op 10, of which all is published."""

    def __init__(
        self,
        generation: int = 5,
        live: Sequence[tuple[int, int]] = (),
        *,
        next_position: int | None = None,
        transient: Sequence[tuple[int, int]] = (),
        cuts: tuple[Cut, ...] = (),
        owner: int = owner_of(HERE),
    ) -> None:
        super().__init__(JOURNAL, generation, owner)
        state = ReplicatedState(last_number=10, live=RangeSet(live), transient=RangeSet(transient))
        state.next_position = max((last + 1 for _, last in live), default=0)
        if next_position is not None:
            state.next_position = next_position
        self.start = checkpoint.encode(Checkpoint(generation, state, cuts))
        self.number = 10
        for _ in range(2):
            self.add(RecordKind.CHECKPOINT, self.start, number=self.number)

    def op(self, kind: RecordKind, payload: bytes, *, flags: int = 0) -> int:
        self.number += 1
        return self.add(kind, payload, number=self.number, flags=flags)

    def publish(self, first: int, *bodies: bytes, transient: bool = False) -> int:
        op = Publish(first, Block.of(bodies), transient)
        return self.op(RecordKind.OP, ops.encode(op), flags=FLAG_TRANSIENT if transient else 0)

    def remove(self, *ranges: tuple[int, int]) -> int:
        return self.op(RecordKind.OP, ops.encode(Remove(ranges)))


def folder(files: dict[str, FileOfRecords | bytes]) -> SimulatedDisk:
    disk = SimulatedDisk()
    for name, file in files.items():
        data = file if isinstance(file, bytes) else bytes(file.data)
        disk.write(HERE / name, 0, [data])
    disk.sync_all(HERE)
    disk.log.clear()
    return disk


def stored_at(ordinal: int, count: int, *, start: int = 0, size: int = 10) -> Reference:
    place = RecordLocation(file=3, ordinal=ordinal, offset=32 + 1000 * ordinal, length=1000)
    return Reference(place, start, array("I", range(size, size + count)))


def entries(found: Recovered) -> list[tuple[int, int]]:
    return [(entry.first, entry.last) for entry in found.index]


def deltas(found: Recovered) -> dict[int, tuple[int, int, bool]]:
    return {
        number: (delta.live, delta.live_bytes, delta.stored)
        for number, delta in found.index.deltas.items()
    }


def check(found: Recovered) -> None:
    found.state.check()
    found.index.check(found.state.live, found.missing)


def recovered(disk: SimulatedDisk) -> Recovered:
    found = recover(disk, HERE)
    check(found)
    return found


def unfolded(
    disk: SimulatedDisk, found: Recovered, number: int = 0
) -> list[tuple[int, int, int, int]]:
    """The entries of a delta: first, last, live, and the offset of the record."""
    file = found.segments[number]
    loaded, reports = load_segment(disk, file, found.state.live, found.missing, found.cuts)
    assert reports == []
    delta = found.index.deltas[number]
    assert delta.live == sum(entry.live for entry in loaded)
    assert delta.live_bytes == sum(live_bytes(entry, found.state.live) for entry in loaded)
    found.index.unfold(delta, loaded)
    check(found)
    return [(entry.first, entry.last, entry.live, entry.offset) for entry in loaded]


def live_bytes(entry: IndexEntry, live: RangeSet) -> int:
    return sum(entry.bytes_of(*part) for part in live.intersection(entry.first, entry.last))
