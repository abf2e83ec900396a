"""Framed records in append-only files: how they are written, and what a reader believes.

    file header, 32 bytes
      magic        8 bytes   b"RINGMQ-J" journal | b"RINGMQ-S" segment | b"RINGMQ-B" bodies
      version      u16       1
      reserved     u16       0
      marker       u32       drawn at random for each file, no byte of it 0
      number       u64       the journal's generation | the segment's number
      crc          u32       of the bytes before, begun with the owner
      owner        u32       from the name of the queue's folder; 0: not said

    record
      marker       u32       the file's
      header crc   u32       of the header's bytes after this one, begun with marker ^ offset
      payload crc  u32
      length       u32       of the payload, in bytes
      kind         u8        1 checkpoint | 2 op | 3 epoch | 4 fill | 5 entry | 6 end |
                             7 message | 8 hole | 9, 10, 11 op, fill, entry whose bodies are
                             in the message store | 12, 13 op, fill whose bodies are nowhere |
                             14 op whose messages were removed before it was written
      flags        u8        fill, entry: bit 0 transient
      reserved     u16       0
      number       u64       by kind, see docs/formats.md
      epoch        u64       by kind
      synced       u64       the file was known to be durable up to here when this was written
      payload      `length` bytes

Little endian; CRC-32 as in zlib. The marker and the offset are in the checksum, so
that a record that is at another place, or in another file, or inside a message
body (a published journal file, say) is no record here, and a run of zeros never is.

What a reader makes of bytes that are no valid record, at offset `o`:

* If any record header after `o` is valid and has `synced > o`, these bytes were durable
  once: it is **corruption**. It is reported, and reading goes on behind it.
* If none has, nobody was ever told that these bytes are durable: it is a **torn
  tail**. The log ends at `o`. Valid records behind it are no part of the log either:
  a power cut may keep a later write and lose an earlier one.

* A publish without its bodies counts only if the log reaches the end of its round (see
  `elision`): else the log ends before it.

So a damaged last sync round looks like a torn tail, whatever one does; a clean stop
ends the journal with an `end` record, after which there is no such doubt.

Reading is linear in the file's size: the marker is found at C speed, and no payload
is looked at before its header's own checksum holds. It takes one window of memory, or
one record. What was visited is part of the log, whatever comes behind it: at the first
bad bytes the headers of all the rest are looked at, to tell one case from the other.

A file's header also says to which queue it belongs (`owner`), so that a file that was
put into another queue's folder isn't taken for that queue's.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

from ringmq_node.storage.errors import CorruptionReport
from ringmq_node.storage.format.formats import Format

FILE_HEADER: Final = struct.Struct("<8sHHIQII")

RECORD_PREFIX: Final = struct.Struct("<II")
RECORD_REST: Final = struct.Struct("<IIBBHQQQ")
RECORD_HEADER_BYTES: Final = RECORD_PREFIX.size + RECORD_REST.size
# Of an end record: the next position.
END_PAYLOAD: Final = struct.Struct("<Q")
PAYLOAD_BYTES_MAX: Final = 0xFFFF_FFFF

FLAG_TRANSIENT: Final = 1

_WHOLE: Final = struct.Struct(RECORD_PREFIX.format + RECORD_REST.format[1:])

# What is read at a time, where records are small; and where all but headers and tables is
# passed over.
WINDOW_BYTES: Final = 1 << 20
SPARSE_BYTES: Final = 4 << 10
# The tables of any block are shorter, and so is any op that isn't a publish.
HEAD_BYTES_MAX: Final = 17 << 20

NO_HEADER: Final = "no valid record header"

T = TypeVar("T")


class RecordKind(IntEnum):
    CHECKPOINT = 1
    OP = 2
    EPOCH = 3
    FILL = 4
    ENTRY = 5
    END = 6
    MESSAGE = 7
    HOLE = 8
    STORED_OP = 9
    STORED_FILL = 10
    STORED_ENTRY = 11
    HOLLOW_OP = 12
    HOLLOW_FILL = 13
    ELIDED_OP = 14


_KINDS = frozenset(int(kind) for kind in RecordKind)
# Kinds whose payload may be a block, of which only the tables are looked at.
_HEADED = frozenset((RecordKind.OP, RecordKind.FILL, RecordKind.ENTRY, RecordKind.MESSAGE))


class Header(NamedTuple):
    """A record's header, and where in the file the record begins."""

    offset: int
    kind: int
    flags: int
    number: int
    epoch: int
    synced: int
    length: int
    payload_crc: int

    @property
    def end(self) -> int:
        return self.offset + RECORD_HEADER_BYTES + self.length


def new_marker() -> int:
    """Random, without a zero byte: so that no run of zeros or of one byte looks like it."""
    while True:
        drawn = os.urandom(4)
        if 0 not in drawn and len(set(drawn)) == 4:
            return int.from_bytes(drawn, "little")


def owner_of(directory: Path) -> int:
    """What files in a queue's folder have in their headers; never 0, which says nothing.

    The folder of a deleted queue has a suffix; what is in it stays the same.
    """
    name, _, _ = directory.name.partition(".")
    return zlib.crc32(name.encode()) or 1


def file_header(format: Format, marker: int, number: int, owner: int = 0) -> bytes:
    head = FILE_HEADER.pack(format.magic, format.version, 0, marker, number, 0, 0)[:24]
    return head + struct.pack("<II", zlib.crc32(head, owner), owner)


def record_header(
    marker: int,
    offset: int,
    kind: int,
    payload: bytes,
    *,
    flags: int = 0,
    number: int = 0,
    epoch: int = 0,
    synced: int = 0,
) -> bytes:
    """What goes before `payload` when it is written at `offset`."""
    rest = RECORD_REST.pack(
        zlib.crc32(payload), len(payload), kind, flags, 0, number, epoch, synced
    )
    return RECORD_PREFIX.pack(marker, zlib.crc32(rest, _seed(marker, offset))) + rest


def moved_header(marker: int, offset: int, header: bytes) -> bytes:
    """The same record's header, for when it is written at `offset`."""
    rest = header[RECORD_PREFIX.size :]
    return RECORD_PREFIX.pack(marker, zlib.crc32(rest, _seed(marker, offset))) + rest


def parse_header(marker: int, offset: int, data: bytes, at: int = 0) -> Header | None:
    """The header at `at` in `data`, which was read at `offset`; None if it is not valid."""
    end = at + RECORD_HEADER_BYTES
    if len(data) < end:
        return None
    found, crc, payload_crc, length, kind, flags, _, number, epoch, synced = _WHOLE.unpack_from(
        data, at
    )
    # The seed as in `_seed`; this is the innermost loop of recovery.
    seed = marker ^ (offset & 0xFFFF_FFFF) ^ (offset >> 32)
    if found != marker or crc != zlib.crc32(data[at + 8 : end], seed) or kind not in _KINDS:
        return None
    return Header(offset, kind, flags, number, epoch, synced, length, payload_crc)


def _seed(marker: int, offset: int) -> int:
    return marker ^ (offset & 0xFFFF_FFFF) ^ (offset >> 32)


def parse_payload(marker: int, offset: int, data: bytes) -> tuple[Header | None, bytes, str]:
    """A whole record, read at `offset`: header, payload, what is wrong (empty if nothing)."""
    header = parse_header(marker, offset, data)
    if header is None:
        return None, b"", NO_HEADER
    payload = data[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + header.length]
    crc = zlib.crc32(payload)
    if crc != header.payload_crc or len(payload) != header.length:
        return header, payload, _wrong_checksum(header, crc)
    return header, payload, ""


def _wrong_checksum(header: Header, crc: int) -> str:
    return f"payload has checksum {crc:#010x}, expected {header.payload_crc:#010x}"


class FileWindow:
    """Reads a file forwards, in pieces. `data` is what is at `start` of the file."""

    __slots__ = ("_read", "data", "size", "start")

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self.size = size
        self.start = 0
        self.data = b""

    def place(self, offset: int, size: int, ahead: int = WINDOW_BYTES) -> int:
        """Where in `data` the byte at `offset` is, with all of the `size` bytes from there on.

        Fewer are there only at the end of the file. What has to be read is at least `ahead`.
        """
        at = offset - self.start
        if at < 0 or at + size > len(self.data):
            wanted = min(max(size, ahead), self.size - offset)
            self.data = self._read(offset, wanted) if wanted > 0 else b""
            self.start = offset
            return 0
        return at


@dataclass(slots=True)
class Scan(Generic[T]):
    """What was found in a file. `records` is what `visit` has kept, in order."""

    marker: int
    # The number in the file's header, or None where the header is damaged.
    number: int | None
    records: list[tuple[Header, T]]
    corruptions: list[CorruptionReport]
    # Where the valid part ends, and how much there is behind it.
    end: int
    torn_bytes: int
    # Whether something was lost that isn't the torn tail.
    damaged: bool = False


class RecordFile:
    """A file of records that is being read.

    `marker` is 0 where the file can't be read at all, for the reason `unreadable`; `number`
    is None where the header is damaged. Without `owner` any queue's file is read. Raises
    `UnsupportedFormatError` for another version.
    """

    def __init__(
        self,
        name: str,
        format: Format,
        size: int,
        read: Callable[[int, int], bytes],
        owner: int = 0,
    ) -> None:
        self.name = name
        self.size = size
        self.window = FileWindow(read, size)
        self.corruptions: list[CorruptionReport] = []
        self.number: int | None = None
        self.unreadable = "no readable record"
        self.marker = self._read_file_header(format, owner)

    def scan(self, visit: Callable[[Header, bytes], T | None]) -> Scan[T]:
        """Reads and checks all records, in order. `visit` says what is kept of one, if anything.

        Of a payload with a block that is above `HEAD_BYTES_MAX` it gets only as many bytes:
        the tables are in these. It may raise `ValueError` for a payload that it
        can't make sense of, which then counts as damaged, if it has done nothing yet.
        """
        offset = min(FILE_HEADER.size, self.size)
        result: Scan[T] = Scan(self.marker, self.number, [], self.corruptions, offset, 0)
        proven: int | None = None
        while self.marker and offset < self.size:
            header, payload, what = self._read_record(offset)
            if header is not None and not what:
                try:
                    kept = visit(header, payload)
                except ValueError as error:
                    what = str(error)
                else:
                    if kept is not None:
                        result.records.append((header, kept))
                    offset = result.end = header.end
                    continue
            if proven is None:
                proven = self._proven_behind(offset)
            if offset >= proven:
                break
            after = self.end_of(header, offset)
            self.corruptions.append(CorruptionReport(self.name, offset, after - offset, what))
            offset = after
            result.end = max(result.end, offset)
        result.torn_bytes = self.size - result.end
        result.damaged = bool(self.corruptions)
        return result

    def header_at(self, offset: int, ahead: int = WINDOW_BYTES) -> tuple[Header | None, str]:
        """The header at `offset`, and what is wrong (empty if nothing)."""
        window = self.window
        at = window.place(offset, RECORD_HEADER_BYTES, ahead)
        header = parse_header(self.marker, offset, window.data, at)
        if header is None:
            return None, NO_HEADER
        if header.end > self.size:
            return header, "record goes beyond the end of the file"
        return header, ""

    def end_of(self, header: Header | None, offset: int) -> int:
        """Where reading goes on behind bad bytes at `offset`."""
        if header is not None and header.end <= self.size:
            return header.end
        return self.find_header(offset + 1)

    def find_header(self, offset: int) -> int:
        """Where the next valid header is, at `offset` or after; the file's size if nowhere."""
        window = self.window
        needle = self.marker.to_bytes(4, "little")
        while offset + RECORD_HEADER_BYTES <= self.size:
            at = window.place(offset, min(2 * RECORD_HEADER_BYTES, self.size - offset))
            data, start = window.data, window.start
            if len(data) - at < RECORD_HEADER_BYTES:
                break
            while (at := data.find(needle, at)) >= 0 and at + RECORD_HEADER_BYTES <= len(data):
                if parse_header(self.marker, start + at, data, at) is not None:
                    return start + at
                at += 1
            # A header may lie across the end of the window.
            offset = start + len(data) - RECORD_HEADER_BYTES + 1
        return self.size

    def payload_fault(self, header: Header) -> str:
        """Reads a payload, in pieces; says what is wrong with it (empty if nothing)."""
        crc = 0
        offset = header.offset + RECORD_HEADER_BYTES
        while offset < header.end:
            size = min(header.end - offset, WINDOW_BYTES)
            at = self.window.place(offset, size)
            piece = memoryview(self.window.data)[at : at + size]
            if not piece:
                break
            crc = zlib.crc32(piece, crc)
            offset += len(piece)
        return _wrong_checksum(header, crc) if crc != header.payload_crc else ""

    def payload(self, header: Header, size: int) -> bytes:
        """The first `size` bytes of a payload, or all if that is less."""
        size = min(size, header.length)
        at = self.window.place(header.offset + RECORD_HEADER_BYTES, size)
        return self.window.data[at : at + size]

    def _read_record(self, offset: int) -> tuple[Header | None, bytes, str]:
        header, what = self.header_at(offset)
        if header is None or what:
            return header, b"", what
        if header.kind == RecordKind.HOLE:
            return header, b"", ""
        if header.length > HEAD_BYTES_MAX:
            what = self.payload_fault(header)
            size = HEAD_BYTES_MAX if header.kind in _HEADED else header.length
            return header, b"" if what else self.payload(header, size), what
        at = self.window.place(offset, RECORD_HEADER_BYTES + header.length)
        payload = self.window.data[at + RECORD_HEADER_BYTES : at + header.end - offset]
        crc = zlib.crc32(payload)
        return header, payload, "" if crc == header.payload_crc else _wrong_checksum(header, crc)

    def _proven_behind(self, offset: int) -> int:
        """How far the headers from `offset` on say that the file was durable."""
        proven = 0
        while offset < self.size:
            header, _ = self.header_at(offset, SPARSE_BYTES)
            if header is not None:
                proven = max(proven, header.synced)
            offset = self.end_of(header, offset)
        return proven

    def _read_file_header(self, format: Format, owner: int) -> int:
        """The marker, or 0 if there is none."""
        window = self.window
        at = window.place(0, min(self.size, FILE_HEADER.size))
        if len(window.data) - at >= FILE_HEADER.size:
            found, version, _, marker, number, crc, owned = FILE_HEADER.unpack_from(window.data, at)
            seeds = {zlib.crc32(window.data[at : at + 24], seed): seed for seed in (owned, owner)}
            if crc in seeds:
                if found != format.magic or (owner and seeds[crc] not in (0, owner)):
                    self.unreadable = "a file of another kind, or of another queue"
                    return 0
                format.check_version(self.name, version)
                self.number = number
                return int(marker)
        # Each record has the marker too. If the first one is valid with it, only the
        # file's header is damaged. Whose the file is, is in no record.
        at = window.place(0, min(self.size, FILE_HEADER.size + RECORD_HEADER_BYTES))
        head = window.data[at : at + FILE_HEADER.size + RECORD_HEADER_BYTES]
        if len(head) == FILE_HEADER.size + RECORD_HEADER_BYTES:
            owned = FILE_HEADER.unpack_from(head)[6]
            marker = RECORD_PREFIX.unpack_from(head, FILE_HEADER.size)[0]
            first = parse_header(marker, FILE_HEADER.size, head, FILE_HEADER.size)
            if marker and first is not None and owner in (0, owned):
                what = "file header is damaged"
                self.corruptions.append(CorruptionReport(self.name, 0, FILE_HEADER.size, what))
                return int(marker)
        return 0


def scan(
    name: str,
    format: Format,
    size: int,
    read: Callable[[int, int], bytes],
    visit: Callable[[Header, bytes], T | None],
) -> Scan[T]:
    """Reads a whole file: see `RecordFile.scan`."""
    return RecordFile(name, format, size, read).scan(visit)
