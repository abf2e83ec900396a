"""Reading a segment by its headers and tables.

Bodies are passed over. Only records that nothing proves durable are checked whole: a crash may
have cut them short, and then their journal still has them. Two things prove a record durable: a
later record whose `synced` says so (see `record_file`), or the absence of the journal from which
the record came. A journal is removed only when all its live bodies are in segments, synced. (That
doesn't hold for transient messages: they come from memory, whenever memory is short.)

Damage to the body of a proven record is found when somebody reads that body. A table of references
is always checked whole, as its record has nothing else.

A record whose tables don't add up, or that has positions of another segment, counts as damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from pathlib import Path

from isal.isal_zlib import crc32

from ringmq_node.queue import block
from ringmq_node.storage.errors import CorruptionReport
from ringmq_node.storage.format import tables
from ringmq_node.storage.format.formats import SEGMENT
from ringmq_node.storage.format.queue_folder import SEGMENT_POSITIONS
from ringmq_node.storage.format.record_file import (
    DENSE_BYTES_MAX,
    SPARSE_BYTES,
    WINDOW_BYTES,
    RecordFile,
)
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    FLAG_TRANSIENT,
    RECORD_HEADER_BYTES,
    Header,
    RecordKind,
    owner_of,
)
from ringmq_node.storage.format.tables import BodyRange

# A record's header, and the tables of a block of one message without properties.
_SINGLE = struct.Struct("<IIIIBBHQQQHBBII")
_SINGLE_TABLES_BYTES = _SINGLE.size - RECORD_HEADER_BYTES
_SINGLE_KIND = (RecordKind.ENTRY, 0, 1, block.PROPERTIES_NONE)
_BLOCK_VERSION = (block.MAGIC, block.VERSION)


@dataclass(slots=True)
class SegmentScan:
    """The contents of a segment. `marker` is 0 if it can't be read, for the reason `unreadable`."""

    marker: int
    unreadable: str
    bodies: list[BodyRange] = field(default_factory=list)
    corruptions: list[CorruptionReport] = field(default_factory=list)
    # Where the valid part ends, and how many bytes lie behind it.
    end: int = 0
    torn_bytes: int = 0


def scan_segment(
    path: Path,
    number: int,
    size: int,
    read: Callable[[int, int], bytes],
    *,
    proven: int = 0,
    journals: Container[int] = (),
) -> SegmentScan:
    """Reads the first `size` bytes, of which `proven` are known to have been durable.

    `read(offset, size)` reads from the file at `path`. `journals` are the generations of the
    journals that are still there. Raises what `read` does, and `UnsupportedFormatError`.
    """
    file = RecordFile(str(path), SEGMENT, size, read, owner_of(path.parent))
    if file.marker and file.number not in (None, number):
        file.marker, file.unreadable = 0, f"this is segment {file.number}"
    found = SegmentScan(file.marker, file.unreadable)
    if not file.marker:
        return found
    found.corruptions = file.corruptions
    holes, proven = _collect(file, number, found.bodies, proven, journals)
    found.end = size
    # Bad bytes that were durable are damage. The first that nothing proves begin the torn tail.
    for start, end, what in holes:
        if start >= proven:
            found.bodies = [body for body in found.bodies if body.offset < start]
            found.end, found.torn_bytes = start, size - start
            break
        found.corruptions.append(CorruptionReport(file.name, start, end - start, what))
    return found


def _collect(
    file: RecordFile, number: int, bodies: list[BodyRange], proven: int, journals: Container[int]
) -> tuple[list[tuple[int, int, str]], int]:
    """Adds all that the records have to `bodies`.

    Returns the ranges of bytes that are no valid record, each with its fault, in order, and the
    offset up to which the file is proven to have been durable.
    """
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
                    ahead = SPARSE_BYTES if header.length > DENSE_BYTES_MAX else WINDOW_BYTES
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
    bodies: list[BodyRange],
    journals: Container[int],
) -> int:
    """Adds the records of one small message each that lie in the window.

    Stops at the first record that is of another kind, is not proven by the absence of its journal,
    or has any fault, and returns its offset. This is here for speed alone: `header_at` and
    `_add_bodies` do the same in several times the time, and a queue that was filled message by
    message has nothing but such records.
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
            or crc != crc32(data[at + 8 : at + RECORD_HEADER_BYTES], seed)
            or (kind, flags, count, properties) != _SINGLE_KIND
            or (magic, version) != _BLOCK_VERSION
            or not low <= number <= high
            or epoch in journals
            or epoch >= tables.NUMBER_MAX
            or offset + RECORD_HEADER_BYTES + length > file.size
        ):
            break
        length += RECORD_HEADER_BYTES
        bodies.append(
            BodyRange(number, number, 0, body_bytes, None, None, False, epoch, offset, length)
        )
        at += length
        offset += length
    return offset


def _add_bodies(
    file: RecordFile, header: Header, low: int, high: int, bodies: list[BodyRange]
) -> None:
    """Adds the bodies of one record. Raises `ValueError` if its tables are wrong, or if it has a
    position outside of `low..high`."""
    first = header.number
    if header.kind == RecordKind.ENTRY:
        body = tables.read_embedded(file, header, first, header.epoch)
        last = body.last
        found = [body]
    elif header.kind == RecordKind.STORED_ENTRY:
        what = file.payload_fault(header)
        if what:
            raise ValueError(what)
        found = tables.stored(header, file.payload(header, header.length), first, header.epoch)
        last = found[-1].last
    elif header.kind == RecordKind.END and not header.length:
        # Recovery has cut off a torn tail here. The record's `synced` is all that it says.
        return
    else:
        raise ValueError(f"record of kind {header.kind} in a segment")
    if not low <= first <= last <= high:
        raise ValueError(f"record of positions {first} to {last}, which are not of this segment")
    if header.epoch >= tables.NUMBER_MAX:
        raise ValueError(f"record of generation {header.epoch}")
    bodies += found
