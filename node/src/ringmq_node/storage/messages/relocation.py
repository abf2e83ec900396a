"""The relocation map `N.map`: the new places of the records that were in `N.rdq`.

    file header, 32 bytes
      magic        8 bytes   b"RINGMQ-R"
      version      u16       1
      reserved     u16       0
      count        u32       entries
      number       u64       of the old file
      crc          u32       of the bytes before
      entries crc  u32       of all that follows

    entry, sorted by old ordinal
      ordinal      u32       of the record in the old file
      file         u32       the new file; 0xffffffff: the record was damaged when it was to
                             be moved, and is lost
      new ordinal  u32
      new offset   u32

Little endian; CRC-32 as in zlib. A record's length does not change when it is moved. Made as
`N.map.new`, synced, renamed. The file that a map names is never one that has a map itself:
when moved records are moved again, the map that leads to them is written anew (see `compaction`).

A `Table` is the map in memory: 16 bytes an entry, and never changed, so that any thread may
look things up in it.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from isal.isal_zlib import crc32

from ringmq_node.storage.format.formats import RELOCATION_MAP
from ringmq_node.storage.format.records import FILE_HEADER

LOST = 0xFFFF_FFFF
ENTRY_BYTES = 16
_CRCS = struct.Struct("<II")
# The header's bytes before the checksums.
_SUMMED_BYTES = 24


class MapError(ValueError):
    """These bytes are not a whole map. Says which part is wrong."""


@dataclass(frozen=True, slots=True)
class Table:
    """Four columns; row by row where a record was, and where it is. Immutable."""

    ordinals: array[int]
    files: array[int]
    new_ordinals: array[int]
    offsets: array[int]

    def __len__(self) -> int:
        return len(self.ordinals)

    def find(self, ordinal: int) -> int:
        """The row of a record, or -1."""
        row = bisect_left(self.ordinals, ordinal)
        if row < len(self.ordinals) and self.ordinals[row] == ordinal:
            return row
        return -1

    def select(self, rows: Sequence[int]) -> Table:
        return Table(
            *(
                array("I", [column[row] for row in rows])
                for column in (self.ordinals, self.files, self.new_ordinals, self.offsets)
            )
        )

    @property
    def memory_bytes(self) -> int:
        return ENTRY_BYTES * len(self.ordinals) + 4 * 80


def encode(number: int, table: Table) -> bytes:
    entries = array("I", bytes(ENTRY_BYTES * len(table)))
    entries[0::4] = table.ordinals
    entries[1::4] = table.files
    entries[2::4] = table.new_ordinals
    entries[3::4] = table.offsets
    if sys.byteorder == "big":
        entries.byteswap()
    payload = entries.tobytes()
    head = FILE_HEADER.pack(
        RELOCATION_MAP.magic, RELOCATION_MAP.version, 0, len(table), number, 0, 0
    )[:_SUMMED_BYTES]
    return head + _CRCS.pack(crc32(head), crc32(payload)) + payload


def decode(name: str, number: int, data: bytes) -> Table:
    """Raises `MapError`, or `UnsupportedFormatError` for another version."""
    if len(data) < FILE_HEADER.size:
        raise MapError(f"map has {len(data)} bytes, its header alone has {FILE_HEADER.size}")
    magic, version, _, count, found, crc, entries_crc = FILE_HEADER.unpack_from(data)
    if magic != RELOCATION_MAP.magic:
        raise MapError(f"map begins with {magic!r}, expected {RELOCATION_MAP.magic!r}")
    actual = crc32(data[:_SUMMED_BYTES])
    if crc != actual:
        raise MapError(f"map's header has checksum {actual:#010x}, expected {crc:#010x}")
    # After the checksum: a flipped bit in the version is damage, not another version.
    RELOCATION_MAP.check_version(name, version)
    payload = data[FILE_HEADER.size :]
    # A map under another file's name would lead to records that are valid, and other ones.
    if found != number:
        raise MapError(f"map is of file {found}, expected {number}")
    if len(payload) != ENTRY_BYTES * count:
        raise MapError(f"map's {count} entries have {len(payload)} bytes, not {ENTRY_BYTES} each")
    actual = crc32(payload)
    if actual != entries_crc:
        raise MapError(f"map's entries have checksum {actual:#010x}, expected {entries_crc:#010x}")
    entries = array("I", payload)
    if sys.byteorder == "big":
        entries.byteswap()
    table = Table(entries[0::4], entries[1::4], entries[2::4], entries[3::4])
    # `find` bisects: in a map that isn't sorted it would miss records that are there.
    if any(a >= b for a, b in pairwise(table.ordinals)):
        raise MapError("map is not sorted by the old ordinals")
    return table
