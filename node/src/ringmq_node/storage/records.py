"""Framed records in append-only files: how they are written, and what a reader believes.

    file header, 32 bytes
      magic        8 bytes   b"RINGMQ-J" journal | b"RINGMQ-S" segment | b"RINGMQ-B" bodies
      version      u16       1
      reserved     u16       0
      marker       u32       drawn at random for each file, no byte of it 0
      number       u64       the journal's generation | the segment's number
      crc          u32       of the bytes before
      reserved     u32       0

    record
      marker       u32       the file's
      header crc   u32       of the header's bytes after this one, begun with marker ^ offset
      payload crc  u32
      length       u32       of the payload, in bytes
      kind         u8        1 checkpoint | 2 op | 3 epoch | 4 fill | 5 entry | 6 end |
                             7 message | 8 hole | 9, 10, 11 op, fill, entry whose bodies are
                             in the message store | 12, 13 op, fill whose bodies are nowhere
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

* If any valid record after `o` has `synced > o`, these bytes were durable once:
  it is **corruption**. It is reported, and reading goes on behind it.
* If none has, nobody was ever told that these bytes are durable: it is a **torn
  tail**. The log ends at `o`. Valid records behind it are no part of the log either:
  a power cut may keep a later write and lose an earlier one.

So a damaged last sync round looks like a torn tail, whatever one does; a clean stop
ends the journal with an `end` record, after which there is no such doubt.

Reading is linear in the file's size: the marker is found at C speed, and no payload
is looked at before its header's own checksum holds.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Generic, TypeVar

from ringmq_node.storage.errors import CorruptionReport, UnsupportedFormatError

VERSION: Final = 1
JOURNAL_MAGIC: Final = b"RINGMQ-J"
SEGMENT_MAGIC: Final = b"RINGMQ-S"
BODIES_MAGIC: Final = b"RINGMQ-B"
FILE_HEADER: Final = struct.Struct("<8sHHIQII")

RECORD_PREFIX: Final = struct.Struct("<II")
RECORD_REST: Final = struct.Struct("<IIBBHQQQ")
RECORD_HEADER_BYTES: Final = RECORD_PREFIX.size + RECORD_REST.size
# Of an end record: the next position.
END_PAYLOAD: Final = struct.Struct("<Q")
PAYLOAD_BYTES_MAX: Final = 0xFFFF_FFFF

FLAG_TRANSIENT: Final = 1

_WINDOW_BYTES = 1 << 20

T = TypeVar("T")


class Kind(IntEnum):
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


_KINDS = frozenset(int(kind) for kind in Kind)


@dataclass(frozen=True, slots=True)
class Header:
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


def file_header(magic: bytes, marker: int, number: int) -> bytes:
    head = FILE_HEADER.pack(magic, VERSION, 0, marker, number, 0, 0)[:24]
    return head + struct.pack("<II", zlib.crc32(head), 0)


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


def parse_header(marker: int, offset: int, data: bytes) -> Header | None:
    """The header at the start of `data`, which was read at `offset`; None if it is not valid."""
    if len(data) < RECORD_HEADER_BYTES:
        return None
    found, crc = RECORD_PREFIX.unpack_from(data)
    rest = data[RECORD_PREFIX.size : RECORD_HEADER_BYTES]
    if found != marker or crc != zlib.crc32(rest, _seed(marker, offset)):
        return None
    payload_crc, length, kind, flags, _, number, epoch, synced = RECORD_REST.unpack(rest)
    if kind not in _KINDS:
        return None
    return Header(offset, kind, flags, number, epoch, synced, length, payload_crc)


def _seed(marker: int, offset: int) -> int:
    return marker ^ (offset & 0xFFFF_FFFF) ^ (offset >> 32)


@dataclass(slots=True)
class Scan(Generic[T]):
    """What was found in a file. `records` are all that count, in order."""

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


class _Window:
    """Reads a file in pieces, forwards."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self.size = size
        self._offset = 0
        self._data = b""

    def get(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`."""
        start = offset - self._offset
        if start >= 0 and start + size <= len(self._data):
            return self._data[start : start + size]
        if size >= _WINDOW_BYTES:
            return self._read(offset, size)
        self._offset = offset
        self._data = self._read(offset, _WINDOW_BYTES)
        return self._data[:size]


def scan(
    name: str,
    magic: bytes,
    size: int,
    read: Callable[[int, int], bytes],
    visit: Callable[[Header, bytes], T],
) -> Scan[T]:
    """Reads a whole file. `visit` turns a record into what is kept of it.

    `visit` may raise `ValueError` for a payload that it can't make sense of: it
    then counts as damaged. Raises `UnsupportedFormatError` for another version.
    """
    window = _Window(read, size)
    reports: list[CorruptionReport] = []
    marker, number = _read_file_header(name, magic, window, reports)
    found: list[tuple[Header, T]] = []
    holes: list[tuple[int, int, str]] = []
    offset = FILE_HEADER.size
    while marker and offset < size:
        header, payload, what = _read_record(window, marker, offset)
        if header is not None and not what:
            try:
                found.append((header, visit(header, payload)))
            except ValueError as error:
                holes.append((offset, header.end, str(error)))
            offset = header.end
            continue
        after = _find_record(window, marker, offset + 1)
        holes.append((offset, after, what))
        offset = after
    result = Scan(marker, number, found, reports, min(FILE_HEADER.size, size), 0, bool(reports))
    _judge(name, result, holes, size)
    return result


def _judge(name: str, result: Scan[T], holes: list[tuple[int, int, str]], size: int) -> None:
    """Tells corruption from a torn tail, by the rule at the top of this module."""
    proven = max((header.synced for header, _ in result.records), default=0)
    for start, end, what in holes:
        if start >= proven:
            result.records = [item for item in result.records if item[0].offset < start]
            result.end = start
            result.torn_bytes = size - start
            return
        result.corruptions.append(CorruptionReport(name, start, end - start, what))
        result.damaged = True
    if result.marker:
        result.end = max(size, result.end)
    else:
        result.torn_bytes = size - result.end


def _read_file_header(
    name: str, magic: bytes, window: _Window, reports: list[CorruptionReport]
) -> tuple[int, int | None]:
    """The marker (0 if there is none) and the number (None if it is not known)."""
    data = window.get(0, FILE_HEADER.size)
    if len(data) == FILE_HEADER.size:
        found, version, _, marker, number, crc, _ = FILE_HEADER.unpack(data)
        if crc == zlib.crc32(data[:24]):
            if found != magic:
                return 0, None
            if version != VERSION:
                raise UnsupportedFormatError(
                    f"{name} has format version {version}; this RingMQ reads version {VERSION}"
                )
            return marker, number
    # Each record has the marker too. If the first one is valid with it, only the
    # file's header is damaged.
    first = window.get(FILE_HEADER.size, RECORD_HEADER_BYTES)
    if len(first) == RECORD_HEADER_BYTES:
        marker = RECORD_PREFIX.unpack_from(first)[0]
        if marker and parse_header(marker, FILE_HEADER.size, first) is not None:
            reports.append(CorruptionReport(name, 0, FILE_HEADER.size, "file header is damaged"))
            return marker, None
    return 0, None


def parse_payload(marker: int, offset: int, data: bytes) -> tuple[Header | None, bytes, str]:
    """A whole record, read at `offset`: header, payload, what is wrong (empty if nothing)."""
    header = parse_header(marker, offset, data)
    if header is None:
        return None, b"", "no valid record header"
    payload = data[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + header.length]
    return header, payload, _payload_fault(header, payload)


def _payload_fault(header: Header, payload: bytes) -> str:
    crc = zlib.crc32(payload)
    if crc != header.payload_crc or len(payload) != header.length:
        return f"payload has checksum {crc:#010x}, expected {header.payload_crc:#010x}"
    return ""


def _read_record(window: _Window, marker: int, offset: int) -> tuple[Header | None, bytes, str]:
    """Header and payload at `offset`, and what is wrong with them (empty if nothing)."""
    header = parse_header(marker, offset, window.get(offset, RECORD_HEADER_BYTES))
    if header is None:
        return None, b"", "no valid record header"
    if header.end > window.size:
        return None, b"", "record goes beyond the end of the file"
    payload = window.get(offset + RECORD_HEADER_BYTES, header.length)
    return header, payload, _payload_fault(header, payload)


def _find_record(window: _Window, marker: int, offset: int) -> int:
    """Where the next valid record begins, at `offset` or after; the file's size if nowhere."""
    needle = RECORD_PREFIX.pack(marker, 0)[:4]
    while offset + RECORD_HEADER_BYTES <= window.size:
        data = window.get(offset, min(_WINDOW_BYTES - 1, window.size - offset))
        start = 0
        while (start := data.find(needle, start)) >= 0:
            header, _, what = _read_record(window, marker, offset + start)
            if header is not None and not what:
                return offset + start
            start += 1
        if len(data) <= 3:
            break
        offset += len(data) - 3
    return window.size
