"""Writing segments: the entries of a sealed journal that are still live go there.

`N.idx` has the entries of positions `N * 16384` to `N * 16384 + 16383`, in the order in which they
were written. An entry is a record (see `format.records`):

    kind    5 entry: payload is a block | 11 stored entry: payload is a table of references
    number  first position   epoch   generation of the journal that it came from
    flags   bit 0 transient

Acks are not in segments: the journal's checkpoint says which positions are live. So an ack costs
nothing here, and a segment without a live position is deleted whole. If a crash comes between the
writing here and the deletion of the journal, an entry is in both, and may be written here again.
Readers find entries by position and take each position once.

Small blocks that follow one another are joined into one record. So a queue that was filled message
by message is recovered and read back at the speed of batches.

Everything but `parts_of` runs in threads and takes what it needs from the `FlushItem`: the loop may
change the entry meanwhile.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue.block import Block
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import CorruptError, CorruptionReport, ReadError
from ringmq_node.storage.format import references
from ringmq_node.storage.format.formats import SEGMENT
from ringmq_node.storage.format.queue_folder import NEW_SUFFIX, SEGMENT_POSITIONS
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    FLAG_TRANSIENT,
    RecordKind,
    file_header,
    owner_of,
    record_header,
)
from ringmq_node.storage.format.references import RecordLocation, Reference
from ringmq_node.storage.queue.blocks import read_record
from ringmq_node.storage.queue.entries import IndexEntry, QueueFile

# The limits of a record that is joined from several blocks.
JOINED_BYTES_MAX = 64 << 10
JOINED_MESSAGES_MAX = 1024


@dataclass(slots=True, eq=False)
class FlushItem:
    """Positions `first..last` of `entry`, which all belong in `segment`."""

    entry: IndexEntry
    first: int
    last: int
    segment: QueueFile
    block: Block | None
    # Only of entries whose bodies are in the message store.
    location: RecordLocation | None
    sizes: array[int] | None

    @property
    def start(self) -> int:
        """The number, within its block, of the message at `first`."""
        return self.first - self.entry.first + self.entry.start

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Placed:
    """The place of an item's new record; or, with `corruption`, why its bodies are lost; or, with
    `unread`, why they can't be read just now.

    The message at the item's first position is number `start` of the record's block.
    """

    item: FlushItem
    offset: int = 0
    length: int = 0
    start: int = 0
    # The record's block; None if it has references.
    block: Block | None = None
    corruption: CorruptionReport | None = None
    unread: str = ""


def parts_of(entry: IndexEntry, live: RangeSet) -> list[Range]:
    """The pieces of an entry that are written: each within one segment, and mostly live.

    Cutting a block costs a copy and a header for each piece; carrying dead bodies along costs
    disk. Dead bodies are carried up to one half. References cost nothing to carry.
    """
    if 2 * entry.live >= entry.count or entry.location is not None:
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


def write_items(disk: Disk, items: list[FlushItem], *, sync: bool = True) -> list[Placed]:
    """Writes `items` into their segments, durably if `sync`. Raises `OSError`."""
    by_segment: dict[QueueFile, list[FlushItem]] = {}
    for item in items:
        by_segment.setdefault(item.segment, []).append(item)
    placed: list[Placed] = []
    blocks: dict[IndexEntry, Block] = {}
    for segment, its_items in by_segment.items():
        placed += _write_segment(disk, segment, its_items, blocks, sync=sync)
    return placed


def _write_segment(
    disk: Disk,
    segment: QueueFile,
    items: list[FlushItem],
    blocks: dict[IndexEntry, Block],
    *,
    sync: bool,
) -> list[Placed]:
    buffers: list[bytes | memoryview] = []
    placed: list[Placed] = []
    start = offset = segment.end
    if start == 0:
        owner = owner_of(segment.path.parent)
        buffers.append(file_header(SEGMENT, segment.marker, segment.number, owner))
        offset = FILE_HEADER.size
    readable: list[tuple[FlushItem, Block | None]] = []
    for item in items:
        try:
            readable.append((item, _part(disk, item, blocks)))
        except CorruptError as error:
            placed.append(Placed(item, corruption=error.report))
        except ReadError as error:
            placed.append(Placed(item, unread=str(error)))
    for group in _groups(readable):
        first = group[0][0]
        stored = first.location is not None
        payload, block = _payload(group)
        header = record_header(
            segment.marker,
            offset,
            RecordKind.STORED_ENTRY if stored else RecordKind.ENTRY,
            payload,
            flags=FLAG_TRANSIENT if first.entry.transient else 0,
            number=first.first,
            epoch=first.entry.generation,
            synced=segment.synced,
        )
        buffers += (header, payload)
        length = len(header) + len(payload)
        for item, _ in group:
            place = item.start if stored else item.first - first.first
            placed.append(Placed(item, offset, length, place, block))
        offset += length
    if start == 0:
        # Under another name until it is whole: a segment that a start finds was durable once, so
        # garbage at its beginning is damage and no torn tail.
        new = segment.path.with_name(segment.path.name + NEW_SUFFIX)
        disk.write(new, 0, buffers, sync=sync)
        disk.rename(new, segment.path)
        if sync:
            disk.sync(segment.path.parent)
    elif buffers:
        disk.write(segment.path, start, buffers, sync=sync)
    segment.end = segment.synced = offset
    return placed


def _part(disk: Disk, item: FlushItem, blocks: dict[IndexEntry, Block]) -> Block | None:
    """The bodies of an item; None if they are in the message store. Raises `CorruptError`,
    `ReadError`."""
    if item.location is not None:
        return None
    entry = item.entry
    block = item.block or blocks.get(entry) or read_record(disk, entry)
    blocks[entry] = block
    return block.slice(item.start, item.start + item.count)


def _groups(
    items: list[tuple[FlushItem, Block | None]],
) -> Iterator[list[tuple[FlushItem, Block | None]]]:
    """The items by record: those of one record follow one another and are alike."""
    group: list[tuple[FlushItem, Block | None]] = []
    size = count = 0
    for item, block in items:
        size += block.size_bytes if block is not None else 0
        count += item.count
        if group:
            last = group[-1][0]
            alike = (
                item.first == last.last + 1
                and (item.location is None) == (last.location is None)
                and item.entry.transient == last.entry.transient
                and item.entry.generation == last.entry.generation
            )
            if not alike or size > JOINED_BYTES_MAX or count > JOINED_MESSAGES_MAX:
                yield group
                group = []
                size = block.size_bytes if block is not None else 0
                count = item.count
        group.append((item, block))
    if group:
        yield group


def _payload(
    group: list[tuple[FlushItem, Block | None]],
) -> tuple[bytes | memoryview, Block | None]:
    if group[0][0].location is None:
        block = Block.join([block for _, block in group if block is not None])
        return block.view, block
    table: list[Reference] = []
    for item, _ in group:
        assert item.location is not None
        assert item.sizes is not None
        table.append(Reference(item.location, item.start, item.sizes))
    return references.encode(table), None
