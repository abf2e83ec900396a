"""Where bodies are in the message store, and how an index record says so.

A record of a journal or a segment whose bodies are in the message store ends with this table
in the place of a block:

    count       u32   references, at least 1
    references  (file u32, ordinal u32, offset u32, length u32, start u32, messages u32) each
    sizes       u32   size of each body; sum of `messages` many

Little endian. A reference stands for `messages` consecutive messages, the first of which is
number `start` of the stored block. The references of one table are for consecutive positions.
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
    """One record of a message store, as it was written. Compaction may have moved it since."""

    # Never used twice, so that an old location is never taken for a new one.
    file: int
    # Which record of the file, from 0.
    ordinal: int
    offset: int
    # With its header.
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
    """Raises `ReferencesError` unless this is a whole table, and nothing else."""
    if len(table) < COUNT.size:
        raise ReferencesError(f"table of references of {len(table)} bytes")
    (count,) = COUNT.unpack_from(table)
    at = COUNT.size + REFERENCE.size * count
    if not 1 <= count <= REFERENCES_MAX or len(table) < at:
        raise ReferencesError(f"table of {len(table)} bytes says that it has {count} references")
    fields = [*REFERENCE.iter_unpack(memoryview(table)[COUNT.size : at])]
    messages = sum(row[5] for row in fields)
    if messages > MESSAGES_MAX or len(table) != at + 4 * messages:
        raise ReferencesError(f"table of {len(table)} bytes says that it has {messages} messages")
    sizes = array("I", bytes(table[at:]))
    if sys.byteorder == "big":
        sizes.byteswap()
    references: list[Reference] = []
    begin = 0
    for file, ordinal, offset, length, start, count in fields:
        if not count:
            raise ReferencesError("table has a reference to no message")
        place = RecordLocation(file, ordinal, offset, length)
        references.append(Reference(place, start, sizes[begin : begin + count]))
        begin += count
    return references
