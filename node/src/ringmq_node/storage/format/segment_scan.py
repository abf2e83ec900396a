"""A segment, read by its headers and tables.

Bodies are passed over, but for those of records that nothing proves durable: these are
checked whole, since they may be what a crash cut short, and then their journal has them. What
proves a record durable is a later one that says so (see `records`), or that the journal from
which it came is gone: journals are removed when all in them that is live is in segments,
synced. (But for transient messages: these come when memory is short, whenever that is.)

A body of a proven record that is damaged is found when it is read. A table of references is
always checked whole: it is all that its record has.

A record whose tables don't add up, or that has positions of another segment, counts as damaged.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path

from ringmq_base.ranges import RangeSet
from ringmq_node.queue import block
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import CorruptionReport
from ringmq_node.storage.format import tables
from ringmq_node.storage.format.checkpoint import Cut
from ringmq_node.storage.format.formats import SEGMENT
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    FLAG_TRANSIENT,
    RECORD_HEADER_BYTES,
    SPARSE_BYTES,
    WINDOW_BYTES,
    Header,
    RecordFile,
    RecordKind,
    owner_of,
)
from ringmq_node.storage.format.tables import Body, Choice
from ringmq_node.storage.queue.index import SEGMENT_POSITIONS, IndexEntry, QueueFile

# Records that are longer are passed over, not read through: another call costs less.
_DENSE_BYTES_MAX = 32 << 10

# A record's header, and the tables of a block of one message without properties.
_SINGLE = struct.Struct("<IIIIBBHQQQHBBII")
_SINGLE_TABLES_BYTES = _SINGLE.size - RECORD_HEADER_BYTES
_SINGLE_KIND = (RecordKind.ENTRY, 0, 1, block.PROPERTIES_NONE)
_BLOCK_VERSION = (block.MAGIC, block.VERSION)


@dataclass(slots=True)
class SegmentScan:
    """What is in a segment. `marker` is 0 if it is `unreadable`."""

    marker: int
    unreadable: str
    bodies: list[Body] = field(default_factory=list)
    corruptions: list[CorruptionReport] = field(default_factory=list)
    # Where the valid part ends, and how much there is behind it.
    end: int = 0
    torn_bytes: int = 0


def scan_segment(
    disk: Disk,
    path: Path,
    number: int,
    size: int,
    *,
    proven: int = 0,
    journals: Container[int] = (),
) -> SegmentScan:
    """Reads the first `size` bytes, of which `proven` are known to have been durable.

    `journals` are the generations of those that are still there. Raises `OSError`, and
    `UnsupportedFormatError`.
    """

    def read(offset: int, length: int) -> bytes:
        return disk.read(path, offset, length)

    file = RecordFile(str(path), SEGMENT, size, read, owner_of(path.parent))
    if file.marker and file.number not in (None, number):
        file.marker, file.unreadable = 0, f"this is segment {file.number}"
    found = SegmentScan(file.marker, file.unreadable)
    if not file.marker:
        return found
    found.corruptions = file.corruptions
    holes, proven = _collect(file, number, found.bodies, proven, journals)
    found.end = size
    for start, end, what in holes:
        if start >= proven:
            found.bodies = [body for body in found.bodies if body.offset < start]
            found.end, found.torn_bytes = start, size - start
            break
        found.corruptions.append(CorruptionReport(file.name, start, end - start, what))
    return found


def _collect(
    file: RecordFile, number: int, bodies: list[Body], proven: int, journals: Container[int]
) -> tuple[list[tuple[int, int, str]], int]:
    """Adds what is there to `bodies`. Returns what is no valid record, and how far it is proven."""
    size = file.size
    holes: list[tuple[int, int, str]] = []
    unproven: list[Header] = []
    offset = FILE_HEADER.size
    ahead = WINDOW_BYTES
    low = number * SEGMENT_POSITIONS
    high = low + SEGMENT_POSITIONS - 1
    while offset < size:
        passed = _pass_single(file, offset, low, high, bodies, journals)
        if passed > offset:
            offset = proven = passed
            continue
        header, what = file.header_at(offset, ahead)
        if header is not None:
            if header.synced > proven:
                proven = header.synced
                unproven = [header for header in unproven if header.end > proven]
            if not what:
                try:
                    _add_bodies(file, header, low, high, bodies)
                except ValueError as error:
                    what = str(error)
                else:
                    transient = header.flags & FLAG_TRANSIENT != 0
                    if header.epoch not in journals and not transient:
                        proven = header.end
                    elif header.end > proven:
                        unproven.append(header)
                    ahead = SPARSE_BYTES if header.length > _DENSE_BYTES_MAX else WINDOW_BYTES
        if what:
            after = file.end_of(header, offset)
            holes.append((offset, after, what))
            offset = after
        else:
            assert header is not None
            offset = header.end
    for header in unproven:
        if header.end <= proven:
            continue
        what = file.payload_fault(header)
        if what:
            holes.append((header.offset, header.end, what))
            break
    return sorted(holes), proven


def _pass_single(
    file: RecordFile,
    offset: int,
    low: int,
    high: int,
    bodies: list[Body],
    journals: Container[int],
) -> int:
    """Adds the records of one message each that are in the window, and proven by their journal.

    Returns the offset of the first that is not, or that has anything wrong with it. Only to be
    fast: all of it is in `header_at` and `_add_bodies` as well, in several times the time.
    """
    data, start, marker = file.window.data, file.window.start, file.marker
    at = offset - start
    stop = len(data) - _SINGLE.size
    while 0 <= at <= stop:
        (
            found,
            crc,
            _,
            length,
            kind,
            flags,
            _,
            number,
            epoch,
            _,
            magic,
            version,
            properties,
            count,
            body_bytes,
        ) = _SINGLE.unpack_from(data, at)
        seed = marker ^ (offset & 0xFFFF_FFFF) ^ (offset >> 32)
        if (
            found != marker
            or length != body_bytes + _SINGLE_TABLES_BYTES
            or crc != zlib.crc32(data[at + 8 : at + RECORD_HEADER_BYTES], seed)
            or (kind, flags, count, properties) != _SINGLE_KIND
            or (magic, version) != _BLOCK_VERSION
            or not low <= number <= high
            or epoch in journals
            or epoch >= tables.NUMBER_MAX
            or offset + RECORD_HEADER_BYTES + length > file.size
        ):
            break
        length += RECORD_HEADER_BYTES
        bodies.append(Body(number, number, 0, body_bytes, None, None, False, epoch, offset, length))
        at += length
        offset += length
    return offset


def _add_bodies(file: RecordFile, header: Header, low: int, high: int, bodies: list[Body]) -> None:
    """Raises `ValueError` unless the tables are sane, and the positions in `low..high`."""
    first = header.number
    if header.kind == RecordKind.ENTRY:
        window = file.window
        begin = header.offset + RECORD_HEADER_BYTES
        length = header.length
        at = window.place(begin, min(length, 16), SPARSE_BYTES)
        size = tables.tables_bytes(window.data, at)
        if size > length:
            raise ValueError(f"block of {length} bytes ends within its tables")
        at = window.place(begin, size, SPARSE_BYTES)
        body = tables.embedded(header, window.data, at, length, first, header.epoch)
        last = body.last
        found = [body]
    elif header.kind == RecordKind.STORED_ENTRY:
        what = file.payload_fault(header)
        if what:
            raise ValueError(what)
        found = tables.stored(header, file.payload(header, header.length), first, header.epoch)
        last = found[-1].last
    elif header.kind == RecordKind.END and not header.length:
        # Where recovery has cut off a torn tail: it only says what was durable before.
        return
    else:
        raise ValueError(f"record of kind {header.kind} in a segment")
    if not low <= first <= last <= high:
        raise ValueError(f"record of positions {first} to {last}, which are not of this segment")
    if header.epoch >= tables.NUMBER_MAX:
        raise ValueError(f"record of generation {header.epoch}")
    bodies += found


def load_segment(
    disk: Disk,
    file: QueueFile,
    live: RangeSet,
    missing: RangeSet,
    cuts: tuple[Cut, ...],
    *,
    end: int | None = None,
) -> tuple[list[IndexEntry], list[CorruptionReport]]:
    """The entries of a segment, up to `end` if given, for its positions that are `live` and not
    `missing`.

    In order, and not overlapping; as recovery chooses them. Positions for which there is none
    are for the caller to see. Only reads; may run in a thread. Raises `OSError`.
    """
    # What is in a file that is in use was written, or found to be whole, by this process.
    size = file.end if end is None else end
    found = scan_segment(disk, file.path, file.number, size, proven=min(size, file.synced))
    if not found.marker:
        report = CorruptionReport(str(file.path), 0, file.end, found.unreadable)
        return [], [report]
    choices = tables.choose(lasting(found.bodies, file.found), live, missing, RangeSet(), cuts)
    return entries_of(choices, file), found.corruptions


def lasting(bodies: list[Body], end: int) -> list[Body]:
    """Those that count: not what a transient message store had, before `end`, at an earlier start.

    It was emptied since, and the positions may have been given out again. In an order in which
    of several for a position the one that was logged last comes first.
    """
    found = [
        body
        for body in bodies
        if not (body.transient and body.location is not None and body.offset < end)
    ]
    return found if _disjoint(found) else _newest_first(found)


def _disjoint(bodies: list[Body]) -> bool:
    """Whether no position is in two of these, which are in ascending order."""
    behind = 0
    for body in bodies:
        if body.first < behind:
            return False
        behind = body.last + 1
    return True


def _newest_first(bodies: list[Body]) -> list[Body]:
    """Bodies that were lost, or removed and put back, have been filled in again."""
    ascending = sorted(bodies, key=lambda body: body.first)
    if _disjoint(ascending):
        return ascending
    return sorted(bodies, key=lambda body: (body.generation, body.offset), reverse=True)


def entries_of(choices: list[Choice], file: QueueFile) -> list[IndexEntry]:
    entries = [body.entry(file, first, last, live) for body, first, last, live in choices]
    entries.sort(key=lambda entry: entry.first)
    return entries
