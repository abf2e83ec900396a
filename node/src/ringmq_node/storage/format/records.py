"""Framed records in append-only files: the bytes, written and parsed one record at a time.

    file header, 32 bytes
      magic        8 bytes   by format: see `formats`
      version      u16       by format
      reserved     u16       0
      marker       u32       drawn at random for each file, no byte of it 0
      number       u64       the journal's generation | the segment's number | the message file's
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
                             14 op whose messages were removed before it was written |
                             15 what a set-aside file is about | 16 pieces of journals
      flags        u8        fill, entry: bit 0 transient
      reserved     u16       0
      number       u64       by kind, see docs/formats.md
      epoch        u64       by kind
      synced       u64       the file was known to be durable up to here when this was written
      payload      `length` bytes

Little endian; CRC-32 as in zlib. Marker and offset are part of the header's checksum. So a record
that lies at another offset, in another file, or inside a message body (somebody may publish a
journal file) is no record here, and neither is a run of zeros, which a power cut may leave.

The owner in a file's header names the queue, so that a file which was copied into another queue's
folder isn't taken for that queue's.

`record_file` reads a whole file of such records, and tells a torn tail from corruption.
"""

from __future__ import annotations

import os
import struct
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

from isal.isal_zlib import crc32

from ringmq_node.storage.format.formats import Format

FILE_HEADER: Final = struct.Struct("<8sHHIQII")

RECORD_PREFIX: Final = struct.Struct("<II")
RECORD_REST: Final = struct.Struct("<IIBBHQQQ")
RECORD_HEADER_BYTES: Final = RECORD_PREFIX.size + RECORD_REST.size
# The payload of an end record: the queue's next position.
END_PAYLOAD: Final = struct.Struct("<Q")
PAYLOAD_BYTES_MAX: Final = 0xFFFF_FFFF

FLAG_TRANSIENT: Final = 1

_WHOLE: Final = struct.Struct(RECORD_PREFIX.format + RECORD_REST.format[1:])

NO_HEADER: Final = "no valid record header"


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
    SET_ASIDE = 15
    REDO = 16


_KINDS: Final = frozenset(int(kind) for kind in RecordKind)


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
    """Random: four different bytes, none of them zero.

    Blocks that a power cut has left unwritten are often filled with one byte. A marker of such
    bytes would be found in all of them.
    """
    while True:
        drawn = os.urandom(4)
        if 0 not in drawn and len(set(drawn)) == 4:
            return int.from_bytes(drawn, "little")


def owner_of(directory: Path) -> int:
    """The owner that the headers of a queue's files name; never 0, which stands for "not said".

    The folder of a deleted queue is renamed, with a suffix. Its files keep their owner, so the
    suffix doesn't count.
    """
    name, _, _ = directory.name.partition(".")
    return crc32(name.encode()) or 1


def file_header(format: Format, marker: int, number: int, owner: int = 0) -> bytes:
    head = FILE_HEADER.pack(format.magic, format.version, 0, marker, number, 0, 0)[:24]
    return head + struct.pack("<II", crc32(head, owner), owner)


def record_header(
    marker: int,
    offset: int,
    kind: int,
    payload: bytes | memoryview,
    *,
    flags: int = 0,
    number: int = 0,
    epoch: int = 0,
    synced: int = 0,
    payload_crc: int | None = None,
) -> bytes:
    """The header of a record that is written at `offset`. `payload_crc`: if it is known."""
    crc = crc32(payload) if payload_crc is None else payload_crc
    rest = RECORD_REST.pack(crc, len(payload), kind, flags, 0, number, epoch, synced)
    # `_seed`, written out: once for each record.
    seed = marker ^ (offset & 0xFFFF_FFFF) ^ (offset >> 32)
    return RECORD_PREFIX.pack(marker, crc32(rest, seed)) + rest


def moved_header(marker: int, offset: int, header: bytes) -> bytes:
    """The header of the same record, written at `offset` instead."""
    rest = header[RECORD_PREFIX.size :]
    return RECORD_PREFIX.pack(marker, crc32(rest, _seed(marker, offset))) + rest


def parse_header(marker: int, offset: int, data: bytes, at: int = 0) -> Header | None:
    """The header at `data[at:]`, which was read from `offset` of the file; None if not valid."""
    end = at + RECORD_HEADER_BYTES
    if len(data) < end:
        return None
    found, crc, payload_crc, length, kind, flags, _, number, epoch, synced = _WHOLE.unpack_from(
        data, at
    )
    # `_seed`, written out: recovery runs this once for each record, and a call costs a fifth.
    seed = marker ^ (offset & 0xFFFF_FFFF) ^ (offset >> 32)
    if found != marker or crc != crc32(data[at + 8 : end], seed) or kind not in _KINDS:
        return None
    return Header(offset, kind, flags, number, epoch, synced, length, payload_crc)


def _seed(marker: int, offset: int) -> int:
    return marker ^ (offset & 0xFFFF_FFFF) ^ (offset >> 32)


def parse_record(marker: int, offset: int, data: bytes) -> tuple[Header | None, str]:
    """The header of the record that `data` is, read from `offset`, and its fault, or "". Without a
    fault, its payload is all of `data` from `RECORD_HEADER_BYTES` on: a copy would be of 1 MiB."""
    header = parse_header(marker, offset, data)
    if header is None:
        return None, NO_HEADER
    payload = memoryview(data)[RECORD_HEADER_BYTES:]
    crc = crc32(payload[: header.length])
    if crc != header.payload_crc or len(payload) < header.length:
        return header, wrong_checksum(header, crc)
    if len(payload) > header.length:
        return header, f"is a record with {header.length} bytes of payload"
    return header, ""


def wrong_checksum(header: Header, crc: int) -> str:
    return f"payload has checksum {crc:#010x}, expected {header.payload_crc:#010x}"
