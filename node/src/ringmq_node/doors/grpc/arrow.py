"""Browsed pieces as Arrow IPC streams, for readers that build columns of them.

pyarrow is an extra of the node (`ringmq[arrow]`). It is imported with the first call that wants it,
in a thread: that takes a third of a second, and most nodes never need it.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from itertools import repeat
from typing import Any

from ringmq_node.model.reasons import BrokerError, Reason
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


def encode(arrow: Any, piece: BrowsedPiece, body_bytes_max: int | None) -> bytes:
    """One record batch, as a stream; empty without messages."""
    if not piece.runs:
        return b""
    positions: list[int] = []
    bodies: list[bytes] = []
    redelivered: list[bool] = []
    persistent: list[bool] = []
    properties: list[bytes | None] = []
    for run in piece.runs:
        count = run.block.count
        positions += range(run.first_position, run.first_position + count)
        bodies += run.block.bodies()
        redelivered += repeat(run.redelivered, count)
        persistent += repeat(not run.transient, count)
        found = run.block.properties()
        if len(found) == count:
            properties += found
        else:
            properties += repeat(found[0] if found else None, count)
    sizes = [*map(len, bodies)]
    shown: list[bytes] | list[None] = bodies
    if body_bytes_max is not None:
        shown = (
            [body[:body_bytes_max] for body in bodies] if body_bytes_max else [None] * len(bodies)
        )
    columns = (positions, shown, sizes, redelivered, persistent, properties)
    names = schema(arrow)
    batch = arrow.record_batch(
        [arrow.array(column, field.type) for column, field in zip(columns, names, strict=True)],
        schema=names,
    )
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, names) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data
