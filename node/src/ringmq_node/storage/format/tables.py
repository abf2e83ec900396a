"""The bodies that a record stands for, by its tables alone: how many, how long, and where.

A `BodyRange` stands for consecutive messages of one record that are in one block. The block is in
the record itself (`embedded`) or in the message store (`stored`). Recovery chooses among such
ranges, and makes an entry of the index of each that it takes: see `queue.choice`.

Tables that don't add up to the record's length, or that have a number out of bounds, raise
`ValueError`: the reader takes the record for damaged.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Final, NamedTuple

from ringmq_node.queue import block
from ringmq_node.storage.format import references
from ringmq_node.storage.format.record_file import SPARSE_BYTES, RecordFile
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    FLAG_TRANSIENT,
    RECORD_HEADER_BYTES,
    Header,
)
from ringmq_node.storage.format.references import RecordLocation

# Positions, op numbers and generations are below. A damaged record that claims more is refused,
# and whoever adds a count to such a number stays within the 64 bits of a checkpoint's fields.
NUMBER_MAX: Final = 1 << 62

_ONE_BODY = struct.Struct("<HBBII")
_MAGIC_AND_VERSION = (block.MAGIC, block.VERSION)


class BodyRange(NamedTuple):
    """The bodies of positions `first..last`; the first is message number `start` of its block."""

    first: int
    last: int
    start: int
    body_bytes: int
    # Of each body, from `first` on. None: all are of one size.
    sizes: array[int] | None
    location: RecordLocation | None
    transient: bool
    # Of the journal in which these messages were logged.
    generation: int
    # Where the record begins in its file, and its length with the header.
    offset: int
    length: int

    def bytes_of(self, first: int, last: int) -> int:
        """Bytes of the bodies of `first..last`, which must be within this range."""
        if first == self.first and last == self.last:
            return self.body_bytes
        if self.sizes is None:
            return self.body_bytes // (self.last - self.first + 1) * (last - first + 1)
        return sum(self.sizes[first - self.first : last - self.first + 1])


def embedded(
    header: Header, payload: bytes, at: int, length: int, first: int, generation: int
) -> BodyRange:
    """The bodies of a block of `length` bytes, of which `payload[at:]` has at least the tables."""
    if length < block.HEADER.size + 4 or len(payload) < at + block.HEADER.size + 4:
        raise ValueError(f"block of {length} bytes is shorter than its header")
    magic, version, kind, count, size = _ONE_BODY.unpack_from(payload, at)
    if (magic, version) != _MAGIC_AND_VERSION:
        raise ValueError(f"block begins with magic {magic:#x}, version {version}")
    sizes: array[int] | None = None
    if count == 1 and kind == block.PROPERTIES_NONE:
        end = _ONE_BODY.size + size
    else:
        sizes, size, end = _sizes(payload, at, kind, count)
    if end != length:
        raise ValueError(f"block has {length} bytes, by its tables {end}")
    if first + count > NUMBER_MAX:
        raise ValueError(f"message at position {first}")
    return BodyRange(
        first,
        first + count - 1,
        0,
        size,
        sizes,
        None,
        bool(header.flags & FLAG_TRANSIENT),
        generation,
        header.offset,
        header.end - header.offset,
    )


def read_embedded(
    file: RecordFile, header: Header, first: int = 0, generation: int = 0
) -> BodyRange:
    """The messages, from position `first` on, of a record whose payload is a block.

    Reads the tables only, not the bodies.
    """
    begin = header.offset + RECORD_HEADER_BYTES
    at = file.window.place(begin, min(header.length, 16), SPARSE_BYTES)
    size = tables_bytes(file.window.data, at)
    if size > header.length:
        raise ValueError(f"block of {header.length} bytes ends within its tables")
    at = file.window.place(begin, size, SPARSE_BYTES)
    return embedded(header, file.window.data, at, header.length, first, generation)


def tables_bytes(payload: bytes, at: int) -> int:
    """The length of the header and the tables of the block at `payload[at:]`."""
    if len(payload) < at + block.HEADER.size:
        return block.HEADER.size
    _, _, kind, count = block.HEADER.unpack_from(payload, at)
    return block.HEADER.size + 4 * _table_count(kind, count)


def _table_count(kind: int, count: int) -> int:
    if not 1 <= count <= block.COUNT_MAX or kind > block.PROPERTIES_EACH:
        raise ValueError(f"block with {count} messages, properties kind {kind}")
    return count + (0, 1, count)[kind]


def _sizes(payload: bytes, at: int, kind: int, count: int) -> tuple[array[int], int, int]:
    """The sizes of the bodies, their sum, and the block's length as its tables have it."""
    begin = at + block.HEADER.size
    tables = _table_count(kind, count)
    if len(payload) < begin + 4 * tables:
        raise ValueError(f"block of {len(payload) - at} bytes ends within its tables")
    sizes = _numbers(payload[begin : begin + 4 * count])
    total = sum(sizes)
    end = block.HEADER.size + 4 * tables + total
    if tables > count:
        end += sum(_numbers(payload[begin + 4 * count : begin + 4 * tables]))
    return sizes, total, end


def _numbers(data: bytes) -> array[int]:
    numbers = array("I", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def stored(header: Header, table: bytes, first: int, generation: int) -> list[BodyRange]:
    """The bodies that a table of references, which is all of `table`, refers to."""
    bodies: list[BodyRange] = []
    for reference in references.decode(table):
        count = len(reference.sizes)
        if first + count > NUMBER_MAX or reference.start + count > block.COUNT_MAX:
            raise ValueError(f"reference to message {reference.start} for position {first}")
        place = reference.location
        before = FILE_HEADER.size + place.ordinal * RECORD_HEADER_BYTES
        if place.offset < before or place.length <= RECORD_HEADER_BYTES:
            # The message store keeps one count for each record before this one, so a made-up
            # ordinal would cost memory. Each of those records takes at least its header's bytes.
            raise ValueError(f"reference to record {place.ordinal} at {place.offset}")
        bodies.append(
            BodyRange(
                first,
                first + count - 1,
                reference.start,
                sum(reference.sizes),
                reference.sizes,
                reference.location,
                bool(header.flags & FLAG_TRANSIENT),
                generation,
                header.offset,
                header.end - header.offset,
            )
        )
        first += count
    return bodies
