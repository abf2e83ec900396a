"""Browsed pieces as Arrow IPC streams, for readers that build columns of them.

pyarrow is an extra of the node (`ringmq[arrow]`). It is imported with the first call that wants it,
in a thread: that takes a third of a second, and most nodes never need it.
"""

from __future__ import annotations

import asyncio
import functools
from array import array
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.queue.run import Run
from ringmq_node.replica.positions import BrowsedPiece


async def load(node: str) -> Any:
    """The module `pyarrow`. Raises `BrokerError` where it isn't installed."""
    try:
        return await asyncio.to_thread(import_module, "pyarrow")
    except ImportError as error:
        raise BrokerError(
            Reason.NOT_SUPPORTED,
            f"node {node} has no pyarrow, so it can't answer with Arrow: install 'ringmq[arrow]' "
            "there, or ask for messages",
            missing="pyarrow",
        ) from error


@functools.cache
def schema(arrow: Any) -> Any:
    return arrow.schema(
        [
            arrow.field("position", arrow.int64(), nullable=False),
            arrow.field("body", arrow.binary()),
            arrow.field("body_size", arrow.int64(), nullable=False),
            arrow.field("redelivered", arrow.bool_(), nullable=False),
            arrow.field("persistent", arrow.bool_(), nullable=False),
            arrow.field("properties", arrow.binary()),
        ]
    )


def encode(arrow: Any, piece: BrowsedPiece, body_bytes_max: int | None) -> memoryview:
    """One record batch, as a stream; empty without messages."""
    if not piece.runs:
        return memoryview(b"")
    names = schema(arrow)
    batches = [_batch(arrow, names, run, body_bytes_max) for run in piece.runs]
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, names) as writer:
        if len(batches) == 1:
            # Bodies aren't copied.
            writer.write_batch(batches[0])
        else:
            writer.write_table(arrow.Table.from_batches(batches).combine_chunks())
    return memoryview(sink.getvalue())


def _batch(arrow: Any, names: Any, run: Run, body_bytes_max: int | None) -> Any:
    """The rows of one run. Nothing in it is done for each message by Python, but for bodies that
    are cut and properties."""
    block = run.block
    count = block.count

    def numbers(values: Iterable[int]) -> Any:
        return arrow.Array.from_buffers(
            arrow.int64(), count, [None, arrow.py_buffer(array("q", values))]
        )

    if body_bytes_max is None:
        # Offsets into the block, as it is: Arrow's writer takes the bodies out, and counts from 0.
        buffers = [None, arrow.py_buffer(block.body_offsets()), arrow.py_buffer(block.data)]
        bodies = arrow.Array.from_buffers(arrow.binary(), count, buffers)
    elif body_bytes_max == 0:
        bodies = arrow.nulls(count, arrow.binary())
    else:
        bodies = arrow.array([body[:body_bytes_max] for body in block.bodies()], arrow.binary())
    found = block.properties()
    if not found:
        properties = arrow.nulls(count, arrow.binary())
    else:
        properties = arrow.array(found if len(found) == count else found * count, arrow.binary())
    columns = [
        numbers(range(run.first_position, run.first_position + count)),
        bodies,
        numbers(block.body_sizes()),
        arrow.repeat(run.redelivered, count),
        arrow.repeat(not run.transient, count),
        properties,
    ]
    return arrow.record_batch(columns, schema=names)
