"""Segments: where the index entries of a sealed journal go that are still live.

`N.idx` holds entries for positions `N * 16384` to `N * 16384 + 16383`, in the order in
which they came. An entry is a record (see `records`):

    kind    5 entry: payload is a block | 11 stored entry: payload is a table of references
    number  first position   epoch   generation of the journal that it came from
    flags   bit 0 transient

Acks are not in segments: which positions are live is in the journal's checkpoint. So
an ack costs nothing here, and a segment in which nothing is live is deleted whole. An
entry may be there twice, or be in a journal as well, after a crash between the
writing here and the deletion there: entries are found by position, and equal ones are one.

Small blocks that follow one another become one record: a queue that was filled message
by message is read back, and recovered, at the speed of batches.

All here runs in threads, but for `parts_of`. What is needed of an entry is in the item: the
entry itself may change meanwhile.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue import ops
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
    parse_payload,
    record_header,
)
from ringmq_node.storage.format.references import RecordLocation, Reference
from ringmq_node.storage.messages import MessageStore
from ringmq_node.storage.queue.entries import IndexEntry, QueueFile

# Records that are joined from several blocks have no more than this.
JOINED_BYTES_MAX = 64 << 10
JOINED_MESSAGES_MAX = 1024


class MessagesOf(Protocol):
    def __call__(self, *, transient: bool) -> MessageStore:
        """The message store of persistent or of transient messages."""


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
        """Which message of its block the first one is."""
        return self.first - self.entry.first + self.entry.start

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Placed:
    """Where an item's record is now, and which message of its block is the item's first; or,
    with `corruption`, that its bodies can't be read."""

    item: FlushItem
    offset: int = 0
    length: int = 0
    start: int = 0
    # What is in the record; None if it is references.
    block: Block | None = None
    corruption: CorruptionReport | None = None


def parts_of(entry: IndexEntry, live: RangeSet) -> list[Range]:
    """The pieces of an entry that are written: within one segment each, and mostly live.

    Cutting a block costs a copy and a header for each piece, carrying dead bodies
    along costs disk: below one half dead, they are carried.
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
    buffers: list[bytes] = []
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
        # Whole from the first moment, as a journal is.
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
    """The bodies of an item; None if they are in the message store. Raises `CorruptError`."""
    if item.location is not None:
        return None
    entry = item.entry
    block = item.block or blocks.get(entry) or _read_record(disk, entry)
    blocks[entry] = block
    return block.slice(item.start, item.start + item.count)


def _groups(
    items: list[tuple[FlushItem, Block | None]],
) -> Iterator[list[tuple[FlushItem, Block | None]]]:
    """Items that go into one record: they follow one another, are alike, and not too large."""
    group: list[tuple[FlushItem, Block | None]] = []
    size = count = 0
    for item, block in items:
        size += len(block.data) if block is not None else 0
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
                size = len(block.data) if block is not None else 0
                count = item.count
        group.append((item, block))
    if group:
        yield group


def _payload(group: list[tuple[FlushItem, Block | None]]) -> tuple[bytes, Block | None]:
    if group[0][0].location is None:
        block = Block.join([block for _, block in group if block is not None])
        return block.data, block
    table: list[Reference] = []
    for item, _ in group:
        assert item.location is not None
        assert item.sizes is not None
        table.append(Reference(item.location, item.start, item.sizes))
    return references.encode(table), None


def read_block(disk: Disk, entry: IndexEntry, messages: MessagesOf) -> Block:
    """The block of an entry, from its record or the message store. Raises `CorruptError`."""
    if entry.location is not None:
        block = messages(transient=entry.transient).read(entry.location)
        stop = entry.start + entry.count
        if stop > block.count:
            what = f"refers to messages {entry.start} to {stop - 1} of a block of {block.count}"
            raise _corrupt(entry, what)
        return block
    return _read_record(disk, entry)


def read_blocks(
    disk: Disk, entries: Sequence[IndexEntry], messages: MessagesOf
) -> list[Block | CorruptionReport | None]:
    """The blocks of all `entries`; None where one can't be read just now.

    Records that follow one another are read in one go.
    """
    found: list[Block | CorruptionReport | None] = []
    index = 0
    while index < len(entries):
        stop = index + 1
        while stop < len(entries) and _follows(entries[stop - 1], entries[stop]):
            stop += 1
        found += _read_run(disk, entries[index:stop], messages)
        index = stop
    return found


def _follows(before: IndexEntry, entry: IndexEntry) -> bool:
    """Whether an entry's record is the one behind, or the same."""
    return (
        entry.file is before.file
        and entry.location is None
        and before.location is None
        and entry.offset in (before.offset, before.offset + before.length)
    )


def _read_run(
    disk: Disk, entries: Sequence[IndexEntry], messages: MessagesOf
) -> list[Block | CorruptionReport | None]:
    found: list[Block | CorruptionReport | None] = []
    data = b""
    start = entries[0].offset
    if len(entries) > 1 and entries[0].file is not None:
        file = entries[0].file
        try:
            with file.lock:
                data = disk.read(file.path, start, entries[-1].offset + entries[-1].length - start)
        except OSError:
            data = b""
    parsed: tuple[int, Block] | None = None
    for entry in entries:
        if parsed is not None and parsed[0] == entry.offset:
            found.append(parsed[1])
            continue
        at = entry.offset - start
        try:
            if at + entry.length <= len(data):
                block = _parse_record(entry, data[at : at + entry.length])
            else:
                block = read_block(disk, entry, messages)
        except CorruptError as error:
            found.append(error.report)
            continue
        except ReadError:
            found.append(None)
            continue
        parsed = None if entry.location is not None else (entry.offset, block)
        found.append(block)
    return found


def _read_record(disk: Disk, entry: IndexEntry) -> Block:
    file = entry.file
    assert file is not None
    try:
        with file.lock:
            data = disk.read(file.path, entry.offset, entry.length)
    except FileNotFoundError as error:
        raise _corrupt(entry, "file is not there") from error
    except OSError as error:
        raise ReadError(f"{file.path}: can't be read: {error}") from error
    return _parse_record(entry, data)


def _parse_record(entry: IndexEntry, data: bytes) -> Block:
    assert entry.file is not None
    header, payload, what = parse_payload(entry.file.marker, entry.offset, data)
    if header is None or what:
        raise _corrupt(entry, what)
    try:
        block, _ = body_of(header.kind, payload)
    except ValueError as error:
        raise _corrupt(entry, str(error)) from error
    if block is None:
        raise _corrupt(entry, "record has no bodies")
    if block.count < entry.start + entry.count:
        raise _corrupt(entry, f"record has {block.count} bodies")
    return block


def body_of(kind: int, payload: bytes) -> tuple[Block | None, ops.Op | None]:
    """The block of a record, if it has one, and the op, if it is one. Raises `ValueError`."""
    if kind == RecordKind.OP:
        op = ops.decode(payload)
        return (op.block if isinstance(op, ops.Publish) else None), op
    if kind in (RecordKind.FILL, RecordKind.ENTRY):
        return Block(payload), None
    return None, None


def _corrupt(entry: IndexEntry, what: str) -> CorruptError:
    assert entry.file is not None
    return CorruptError(CorruptionReport(str(entry.file.path), entry.offset, entry.length, what))
