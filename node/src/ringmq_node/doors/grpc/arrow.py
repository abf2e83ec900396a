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
from itertools import accumulate, islice
from typing import Any

from ringmq.reading.columns import schema
from ringmq_node.doors.grpc.arrow_ipc import (
    END_OF_STREAM,
    ArrowBuffer,
    Column,
    Part,
    batch_parts,
)
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.queue.run import Run
from ringmq_node.replica.positions import PIECE_MESSAGES_MAX, BrowsedPiece


async def load(node: str) -> Any:
    """The module `pyarrow`. Raises `BrokerError` where it isn't installed."""
    try:
        return await asyncio.to_thread(_import)
    except ImportError as error:
        raise BrokerError(
            Reason.NOT_SUPPORTED,
            f"node {node} has no pyarrow, so it can't answer with Arrow: install 'ringmq[arrow]' "
            "there, or ask for messages",
            missing="pyarrow",
        ) from error


def _import() -> Any:
    import_module("pyarrow.compute")
    arrow = import_module("pyarrow")
    # The first value that it takes from Python has it import pandas, where there is one: half a
    # second, which the loop would be held for.
    _from_0(arrow)
    return arrow


@functools.cache
def _encoded_schema(arrow: Any) -> bytes:
    return bytes(schema(arrow).serialize())


def encode(arrow: Any, piece: BrowsedPiece, body_bytes_max: int | None) -> list[Part]:
    """A stream of one record batch, in parts that follow one another; none without messages.

    The rows of all runs are in one batch: one for each run would cost more than its messages, where
    runs are short. Nothing is done for each message by Python, but for bodies that are cut and
    properties. Whole bodies are parts of their blocks: nothing copies them here.
    """
    runs = piece.runs
    if not runs:
        return []
    sizes = array("I")
    for run in runs:
        sizes.extend(run.block.body_sizes())
    count = len(sizes)
    columns: list[Column] = [
        _whole([_positions(arrow, runs, count)]),
        _bodies(arrow, runs, sizes, body_bytes_max),
        _whole([_values(_as_arrow(arrow, sizes).cast(arrow.int64()), 8)]),
        _whole([_bits(runs, lambda run: run.redelivered)]),
        _whole([_bits(runs, lambda run: not run.transient)]),
        _properties(runs, count),
    ]
    return [_encoded_schema(arrow), *batch_parts(count, columns), END_OF_STREAM]


@functools.cache
def _from_0(arrow: Any) -> Any:
    return arrow.array(range(PIECE_MESSAGES_MAX), arrow.int64())


def _positions(arrow: Any, runs: Sequence[Run], count: int) -> Part:
    first = runs[0].first_position
    if runs[-1].last_position - first < count <= PIECE_MESSAGES_MAX:
        # No hole, as nearly always.
        return _values(arrow.compute.add(_from_0(arrow).slice(0, count), first), 8)
    positions = array("q")
    for run in runs:
        positions.extend(range(run.first_position, run.last_position + 1))
    return positions


def _as_arrow(arrow: Any, sizes: array[int]) -> Any:
    return arrow.Array.from_buffers(arrow.uint32(), len(sizes), [None, arrow.py_buffer(sizes)])


def _values(found: Any, value_bytes: int) -> memoryview:
    return memoryview(found.buffers()[1])[: value_bytes * len(found)]


def _whole(*buffers: ArrowBuffer) -> Column:
    """A column without nulls needs no bits that say which values are there."""
    return 0, [[], *buffers]


def _bodies(
    arrow: Any, runs: Sequence[Run], sizes: array[int], body_bytes_max: int | None
) -> Column:
    if body_bytes_max == 0:
        return _nulls(len(sizes))
    if body_bytes_max is None:
        ends = _values(arrow.compute.cumulative_sum(_as_arrow(arrow, sizes)), 4)
        return _whole([bytes(4), ends], [run.block.joined_bodies() for run in runs])
    cut = [body[:body_bytes_max] for run in runs for body in run.block.bodies()]
    return _whole([_offsets(cut)], [b"".join(cut)])


def _nulls(count: int) -> Column:
    """Of a column of bytes."""
    return count, [[_packed(0, count)], [bytes(4 * (count + 1))], []]


def _offsets(values: Sequence[bytes]) -> array[int]:
    return array("i", accumulate(map(len, values), initial=0))


def _packed(bits: int, count: int) -> bytes:
    """A bit for each message, as Arrow packs them: the lowest of each byte first."""
    return bits.to_bytes((count + 7) // 8, "little")


def _bits(runs: Sequence[Run], is_set: Callable[[Run], bool]) -> bytes:
    bits = at = 0
    for run in runs:
        if is_set(run):
            bits |= ((1 << run.block.count) - 1) << at
        at += run.block.count
    return _packed(bits, at)


def _properties(runs: Sequence[Run], count: int) -> Column:
    found = [run.block.properties() for run in runs]
    if not any(found):
        return _nulls(count)
    data: list[bytes] = []
    ends = array("i", [0])
    present = at = 0
    for run, properties in zip(runs, found, strict=True):
        many, end = run.block.count, ends[-1]
        if len(properties) == many:
            ends.extend(islice(accumulate(map(len, properties), initial=end), 1, None))
            data += properties
        elif properties:
            # One for all of the run.
            size = len(properties[0])
            ends.extend(range(end + size, end + size * many + 1, size) if size else [end] * many)
            data.append(properties[0] * many)
        else:
            ends.extend([end] * many)
        if properties:
            present |= ((1 << many) - 1) << at
        at += many
    nulls = count - present.bit_count()
    return nulls, [[_packed(present, count)], [ends], [b"".join(data)]]
