"""The data file of a message store, `N.rdq`: its format, and reading it record by record.

    file header    as of every file of records (see `records`), magic b"RINGMQ-B"
    record         kind 7, message: the payload is a block
                   kind 8, hole: a record that was released before it was written. Its `length`
                   bytes of payload were skipped: they may be anything, they have no checksum
                   (0), and they may go beyond the file's end

    number, epoch  the two halves of the 16-byte message id, 0 if there is none
    synced         the file was known to be durable up to here when this record was framed; 0
                   in a file that compaction wrote: the maps that lead to it prove it durable

A record's ordinal is its place among all records and holes of the file, from 0.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from isal.isal_zlib import crc32

from ringmq_node.storage.format.formats import MESSAGE_FILE
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    RECORD_HEADER_BYTES,
    RECORD_PREFIX,
    RECORD_REST,
    Header,
    RecordKind,
    parse_header,
)

Read = Callable[[int, int], bytes]

_WINDOW_BYTES_MIN = 4 << 10
_WINDOW_BYTES_MAX = 1 << 20
_MESSAGE_ID = struct.Struct("<QQ")
_KINDS = (RecordKind.MESSAGE, RecordKind.HOLE)


class GrowingWindow:
    """Reads a file forwards: in larger pieces the longer it goes on without a jump.

    So a file with few live records costs few bytes, and a file full of them few reads.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._offset = 0
        self._data = b""
        self._size = _WINDOW_BYTES_MIN

    def get(self, offset: int, size: int) -> bytes:
        """`size` bytes at `offset`; fewer only at the end of the file."""
        start = offset - self._offset
        if start >= 0 and start + size <= len(self._data):
            return self._data[start : start + size]
        if 0 <= start <= len(self._data):
            self._size = min(2 * self._size, _WINDOW_BYTES_MAX)
        else:
            # A jump over a long record: more such records may follow, so begin small again.
            self._size = _WINDOW_BYTES_MIN
        self._offset = offset
        self._data = self._read(offset, max(size, self._size))
        return self._data[:size]


@dataclass(frozen=True, slots=True)
class FileHeader:
    marker: int
    number: int


def parse_file_header(name: str, data: bytes) -> FileHeader | None:
    """None if it is damaged. Raises `UnsupportedFormatError` for another version."""
    if len(data) < FILE_HEADER.size:
        return None
    magic, version, _, marker, number, crc, _ = FILE_HEADER.unpack_from(data)
    # With a marker of 0 each run of zeros would look like the beginning of a record.
    if magic != MESSAGE_FILE.magic or crc != crc32(data[:24]) or not marker:
        return None
    MESSAGE_FILE.check_version(name, version)
    return FileHeader(marker, number)


def marker_of_record(data: bytes) -> int:
    """The marker in a record: for a file whose own header is damaged.

    Only for a record at an offset where a location says that there is one. Anywhere else the
    bytes may be those of a body, which anybody may have made to look like a record.
    """
    return int(RECORD_PREFIX.unpack_from(data)[0]) if len(data) >= RECORD_PREFIX.size else 0


def read_record_header(window: GrowingWindow, marker: int, offset: int) -> Header | None:
    """The header of the message or hole at `offset`; None if there is no valid one."""
    header = parse_header(marker, offset, window.get(offset, RECORD_HEADER_BYTES))
    return header if header is not None and header.kind in _KINDS else None


def hole_header(marker: int, offset: int, length: int, message_id: bytes, synced: int) -> bytes:
    """The header of a hole of `length` bytes, which are not written and have no checksum."""
    number, epoch = split_id(message_id)
    rest = RECORD_REST.pack(0, length, RecordKind.HOLE, 0, 0, number, epoch, synced)
    return RECORD_PREFIX.pack(marker, crc32(rest, marker ^ offset)) + rest


def split_id(message_id: bytes) -> tuple[int, int]:
    """As the two numbers that a record has room for; no id is 0, 0."""
    if not message_id:
        return 0, 0
    number, epoch = _MESSAGE_ID.unpack(message_id)
    return int(number), int(epoch)


def join_id(header: Header) -> bytes:
    return _MESSAGE_ID.pack(header.number, header.epoch)
