"""Browsed pieces as Arrow IPC streams, for readers that build columns of them.

pyarrow is an extra of the node (`ringmq[arrow]`). It is imported with the first call that wants it,
in a thread: that takes a third of a second, and most nodes never need it.
"""

from __future__ import annotations

import asyncio
import functools
from array import array
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import accumulate
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
    batch = _batch(arrow, names, piece.runs, body_bytes_max)
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, names) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def _batch(arrow: Any, names: Any, runs: Sequence[Run], body_bytes_max: int | None) -> Any:
    """The rows of all runs in one set of buffers: a batch for each run would cost more than its
    messages, where runs are short. Nothing in it is done for each message by Python, but for bodies
    that are cut and properties."""
    positions, sizes = array("q"), array("I")
    for run in runs:
        positions.extend(range(run.first_position, run.last_position + 1))
        sizes.extend(run.block.body_sizes())
    count = len(positions)

    def column(kind: Any, data: array[int] | bytes) -> Any:
        return arrow.Array.from_buffers(kind, count, [None, arrow.py_buffer(data)])

    columns = [
        column(arrow.int64(), positions),
        _bodies(arrow, runs, sizes, body_bytes_max),
        column(arrow.int64(), array("q", sizes)),
        column(arrow.bool_(), _bits(runs, lambda run: run.redelivered)),
        column(arrow.bool_(), _bits(runs, lambda run: not run.transient)),
        _properties(arrow, runs, count),
    ]
    return arrow.record_batch(columns, schema=names)


def _bodies(arrow: Any, runs: Sequence[Run], sizes: array[int], body_bytes_max: int | None) -> Any:
    if body_bytes_max == 0:
        return arrow.nulls(len(sizes), arrow.binary())
    if body_bytes_max is not None:
        cut = [body[:body_bytes_max] for run in runs for body in run.block.bodies()]
        return arrow.array(cut, arrow.binary())
    if len(runs) == 1:
        # Offsets into the block, as it is: Arrow's writer takes the bodies out, and counts from 0.
        block = runs[0].block
        offsets, data = block.body_offsets(), block.data
    else:
        offsets = array("i", accumulate(sizes, initial=0))
        data = b"".join([run.block.joined_bodies() for run in runs])
    buffers = [None, arrow.py_buffer(offsets), arrow.py_buffer(data)]
    return arrow.Array.from_buffers(arrow.binary(), len(sizes), buffers)


def _bits(runs: Sequence[Run], is_set: Callable[[Run], bool]) -> bytes:
    """A bit for each message, as Arrow packs them: the lowest of each byte first."""
    bits = at = 0
    for run in runs:
        if is_set(run):
            bits |= ((1 << run.block.count) - 1) << at
        at += run.block.count
    return bits.to_bytes((at + 7) // 8, "little")


def _properties(arrow: Any, runs: Sequence[Run], count: int) -> Any:
    found = [run.block.properties() for run in runs]
    if not any(found):
        return arrow.nulls(count, arrow.binary())
    each: list[bytes | None] = []
    for run, properties in zip(runs, found, strict=True):
        if len(properties) == run.block.count:
            each += properties
        else:
            # One for all of the run, or none.
            shared = properties[0] if properties else None
            each += [shared] * run.block.count
    return arrow.array(each, arrow.binary())
