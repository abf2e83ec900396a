"""Tables of references: how an index record says that its bodies are in the message store.

Such a record of a journal or a segment ends with this table in the place of a block:

    count       u32   references, at least 1
    references  (file u32, ordinal u32, offset u32, length u32, start u32, messages u32) each
    sizes       u32   size of each body; sum of `messages` many

Little endian. A reference stands for `messages` consecutive messages of a stored block, the first
of which is message number `start` of that block. The references of one table are for consecutive
positions.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

COUNT = struct.Struct("<I")
REFERENCE = struct.Struct("<IIIIII")
REFERENCES_MAX = 1 << 20
MESSAGES_MAX = 1 << 20


class ReferencesError(ValueError):
    """These bytes are not a table of references."""


@dataclass(frozen=True, slots=True)
class RecordLocation:
    """The place at which a record of a message store was written.

    Compaction may have moved the record since. The message store keeps a map from each old place
    to the new one, so nobody has to rewrite the references in journals and segments.
    """

    # A file's number is never used twice, so that an old location never names a newer record.
    file: int
    # The number of the record in its file, from 0.
    ordinal: int
    offset: int
    # Of the record, with its header.
    length: int


@dataclass(frozen=True, slots=True)
class Reference:
    """`len(sizes)` messages of the block at `location`, from number `start` on."""

    location: RecordLocation
    start: int
    sizes: array[int]


def encode(references: Sequence[Reference]) -> bytes:
    pieces = [COUNT.pack(len(references))]
    for reference in references:
        place = reference.location
        pieces.append(
            REFERENCE.pack(
                place.file,
                place.ordinal,
                place.offset,
                place.length,
                reference.start,
                len(reference.sizes),
            )
        )
    sizes = [*chain.from_iterable(reference.sizes for reference in references)]
    pieces.append(struct.pack(f"<{len(sizes)}I", *sizes))
    return b"".join(pieces)


def decode(table: bytes | memoryview) -> list[Reference]:
    """The references of a table. Raises `ReferencesError` unless it is whole, and nothing more."""
    if len(table) < COUNT.size:
        raise ReferencesError(f"table of references has {len(table)} bytes, less than its count")
    (count,) = COUNT.unpack_from(table)
    at = COUNT.size + REFERENCE.size * count
    if not 1 <= count <= REFERENCES_MAX or len(table) < at:
        raise ReferencesError(f"table of references has {len(table)} bytes and a count of {count}")
    fields = [*REFERENCE.iter_unpack(memoryview(table)[COUNT.size : at])]
    messages = sum(row[5] for row in fields)
    if messages > MESSAGES_MAX or len(table) != at + 4 * messages:
        raise ReferencesError(
            f"table of {count} references has {len(table)} bytes for {messages} messages"
        )
    sizes = array("I", bytes(table[at:]))
    if sys.byteorder == "big":
        sizes.byteswap()
    references: list[Reference] = []
    begin = 0
    for file, ordinal, offset, length, start, count in fields:
        if not count:
            raise ReferencesError(f"reference to record {ordinal} of file {file} is for no message")
        place = RecordLocation(file, ordinal, offset, length)
        references.append(Reference(place, start, sizes[begin : begin + count]))
        begin += count
    return references
