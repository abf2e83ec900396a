"""Segments: where the bodies of a sealed journal go that are still live.

`N.idx` holds entries for positions `N * 16384` to `N * 16384 + 16383`, in the order in
which they came. An entry is a record (see `records`) whose payload is a block:

    kind    5 entry          flags   bit 0 transient
    number  first position   epoch   generation of the journal that it came from

Acks are not in segments: which positions are live is in the journal's checkpoint. So
an ack costs nothing here, and a segment in which nothing is live is deleted whole. An
entry may be there twice, or be in a journal as well, after a crash between the
writing here and the deletion there: entries are found by position, and equal ones are one.

All here runs in the flush thread, but for `parts_of`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringmq.ranges import Range, RangeSet
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.storage.disk import Disk
from ringmq_node.storage.errors import CorruptError, CorruptionReport
from ringmq_node.storage.index import SEGMENT_POSITIONS, DataFile, Entry
from ringmq_node.storage.journal import NEW_SUFFIX
from ringmq_node.storage.records import (
    FILE_HEADER,
    FLAG_TRANSIENT,
    SEGMENT_MAGIC,
    Kind,
    file_header,
    parse_payload,
    record_header,
)

SUFFIX = ".idx"


def segment_name(number: int) -> str:
    return f"{number}{SUFFIX}"


@dataclass(slots=True, eq=False)
class FlushItem:
    """Positions `first..last` of `entry`, which all belong in `segment`."""

    entry: Entry
    first: int
    last: int
    segment: DataFile
    block: Block | None


@dataclass(frozen=True, slots=True)
class Placed:
    """Where an item's bodies are now; or, with `corruption`, that they can't be read."""

    item: FlushItem
    offset: int = 0
    length: int = 0
    block: Block | None = None
    corruption: CorruptionReport | None = None


def parts_of(entry: Entry, live: RangeSet) -> list[Range]:
    """The pieces of an entry that are written: within one segment each, and mostly live.

    Cutting a block costs a copy and a header for each piece, carrying dead bodies
    along costs disk: below one half dead, they are carried.
    """
    if 2 * entry.live >= entry.count:
        ranges = [(entry.first, entry.last)]
    else:
        ranges = live.intersection(entry.first, entry.last)
    parts: list[Range] = []
    for first, last in ranges:
        while first <= last:
            boundary = (first // SEGMENT_POSITIONS + 1) * SEGMENT_POSITIONS - 1
            parts.append((first, min(last, boundary)))
            first = boundary + 1
    return parts


def write_items(disk: Disk, items: list[FlushItem]) -> list[Placed]:
    """Writes `items` into their segments, durably. Raises `OSError`."""
    by_segment: dict[DataFile, list[FlushItem]] = {}
    for item in items:
        by_segment.setdefault(item.segment, []).append(item)
    placed: list[Placed] = []
    blocks: dict[Entry, Block] = {}
    for segment, its_items in by_segment.items():
        placed += _write_segment(disk, segment, its_items, blocks)
    return placed


def _write_segment(
    disk: Disk, segment: DataFile, items: list[FlushItem], blocks: dict[Entry, Block]
) -> list[Placed]:
    buffers: list[bytes] = []
    placed: list[Placed] = []
    start = offset = segment.end
    if start == 0:
        buffers.append(file_header(SEGMENT_MAGIC, segment.marker, segment.number))
        offset = FILE_HEADER.size
    for item in items:
        entry = item.entry
        try:
            block = item.block or blocks.get(entry) or read_block(disk, entry)
        except CorruptError as error:
            placed.append(Placed(item, corruption=error.report))
            continue
        blocks[entry] = block
        first = item.first - entry.first + entry.start
        part = block.slice(first, first + item.last - item.first + 1)
        header = record_header(
            segment.marker,
            offset,
            Kind.ENTRY,
            part.data,
            flags=FLAG_TRANSIENT if entry.transient else 0,
            number=item.first,
            epoch=entry.generation,
            synced=segment.synced,
        )
        buffers += (header, part.data)
        length = len(header) + len(part.data)
        placed.append(Placed(item, offset, length, part))
        offset += length
    if start == 0:
        # Whole from the first moment, as a journal is.
        new = segment.path.with_name(segment.path.name + NEW_SUFFIX)
        disk.write(new, 0, buffers, sync=True)
        disk.rename(new, segment.path)
        disk.sync(segment.path.parent)
    elif buffers:
        disk.write(segment.path, start, buffers, sync=True)
    segment.end = segment.synced = offset
    return placed


def read_block(disk: Disk, entry: Entry) -> Block:
    """The block of an entry, from its file. Raises `CorruptError`."""
    file = entry.file
    assert file is not None
    try:
        with file.lock:
            data = disk.read(file.path, entry.offset, entry.length)
    except OSError as error:
        raise _corrupt(entry, f"can't be read: {error}") from error
    header, payload, what = parse_payload(file.marker, entry.offset, data)
    if header is None or what:
        raise _corrupt(entry, what)
    try:
        block, _ = body_of(header.kind, payload)
    except ValueError as error:
        raise _corrupt(entry, str(error)) from error
    if block is None:
        raise _corrupt(entry, "record has no bodies")
    return block


def body_of(kind: int, payload: bytes) -> tuple[Block | None, ops.Op | None]:
    """The block of a record, if it has one, and the op, if it is one. Raises `ValueError`."""
    if kind == Kind.OP:
        op = ops.decode(payload)
        return (op.block if isinstance(op, ops.Publish) else None), op
    if kind in (Kind.FILL, Kind.ENTRY):
        return Block(payload), None
    return None, None


def _corrupt(entry: Entry, what: str) -> CorruptError:
    assert entry.file is not None
    return CorruptError(CorruptionReport(str(entry.file.path), entry.offset, entry.length, what))
