"""The head of an Arrow record batch, as it stands before the buffers in an IPC stream. Pure.

pyarrow's writer copies every buffer of a batch into a buffer that grows. Here only the head is
written, so that the door hands the buffers on as they are. It is a flatbuffer whose layout never
changes but for the number of columns and buffers. Little endian; sizes in bytes:

    0xFFFFFFFF u32, size of the flatbuffer u32
    0    root: offset of the message table
    4    vtable of the message: 12, 20, where version, kind, header and body size are
    16   message: vtable, header, body size i64, version i16 (V5), kind u8 (a record batch), 1 free
    36   vtable of the batch: 10, 20, where length, nodes and buffers are; 2 free
    48   batch: vtable, nodes, length i64, buffers
    68   nodes: their number u32, then length i64 and nulls i64 of each column
    ...  4 free
    ...  buffers: their number u32, then offset i64 and size i64 of each one
    the buffers, each filled up to a multiple of 8 bytes

See `Message.fbs` of Arrow's format, and the format of flatbuffers.
"""

from __future__ import annotations

import functools
import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import TypeAlias

Part: TypeAlias = "bytes | memoryview | array[int]"
# The parts of a buffer follow one another.
ArrowBuffer: TypeAlias = Sequence[Part]
# How many of its values are null, and its buffers in Arrow's order.
Column: TypeAlias = tuple[int, Sequence[ArrowBuffer]]

# Behind the last batch of a stream.
END_OF_STREAM = struct.pack("<II", 0xFFFF_FFFF, 0)

_ALIGNMENT = 8
_FREE = bytes(_ALIGNMENT)
_V5, _RECORD_BATCH = 4, 3
_BATCH_AT, _NODES_AT = 48, 68


def batch_parts(rows: int, columns: Sequence[Column]) -> list[Part]:
    """The message of one record batch, in parts that follow one another."""
    buffers = [buffer for _, found in columns for buffer in found]
    sizes = [sum(memoryview(part).nbytes for part in buffer) for buffer in buffers]
    filled = [(size + _ALIGNMENT - 1) & -_ALIGNMENT for size in sizes]
    *offsets, body_bytes = accumulate(filled, initial=0)
    parts: list[Part] = [
        _head(len(columns), len(buffers)).pack(
            *_fixed(len(columns), len(buffers), rows, body_bytes),
            *chain.from_iterable((rows, nulls) for nulls, _ in columns),
            len(buffers),
            *chain.from_iterable(zip(offsets, sizes, strict=True)),
        )
    ]
    for buffer, size, with_free in zip(buffers, sizes, filled, strict=True):
        parts += buffer
        parts.append(_FREE[: with_free - size])
    return parts


@functools.cache
def _head(columns: int, buffers: int) -> struct.Struct:
    return struct.Struct(
        "<II I HHHHHH iIqhBx HHHHHxx iIqI I"  # As the module's table, row by row.
        f"{2 * columns}q xxxx I {2 * buffers}q"
    )


def _fixed(columns: int, buffers: int, rows: int, body_bytes: int) -> tuple[int, ...]:
    """All before the nodes. Offsets count from their own place."""
    size = _head(columns, buffers).size - 8
    buffers_at = _NODES_AT + 4 + 16 * columns + 4
    message = (16 - 4, _BATCH_AT - 20, body_bytes, _V5, _RECORD_BATCH)
    batch = (_BATCH_AT - 36, _NODES_AT - 52, rows, buffers_at - 64)
    return (
        *(0xFFFF_FFFF, size, 16),
        *(12, 20, 16, 18, 4, 8),
        *message,
        *(10, 20, 8, 4, 16),
        *batch,
        columns,
    )
