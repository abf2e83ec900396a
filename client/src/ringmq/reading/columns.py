"""Browsed messages whose bodies came together, as the columns that a node makes of them.

Nothing is done in Python for each message, but for those with properties of their own: the bodies
stay where they came, and all else is made by loops of Python's or Arrow's own code.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ringmq.errors import ProtocolError
from ringmq.v1 import reader_pb2 as wire

# A node sends no more messages in one piece.
COUNTED_AT_ONCE = 8192
SIZE_MAX = (1 << 32) - 1


@cache
def schema(arrow: Any) -> Any:
    """Of the rows, whoever makes them: a node that answers with Arrow has the same."""
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


def rows_of(
    arrow: Any, head: wire.BrowseResponse, bodies: memoryview, body_bytes_max: int | None
) -> Any:
    """A `pyarrow.RecordBatch`; None without messages. `bodies`: of all runs, back to back. Raises
    `ProtocolError` if the answer's parts don't agree: Arrow would read beyond its buffers."""
    runs = head.runs
    if not runs:
        return None
    count = sum(run.count for run in runs)
    if len(head.body_sizes) != 4 * count:
        raise ProtocolError(f"{len(head.body_sizes)} bytes of sizes for {count} messages")
    # From 0 on, as bodies begin where those before them end.
    sizes = array("I", bytes(4) + head.body_sizes)
    if sys.byteorder == "big":
        sizes.byteswap()
    numbers = arrow.Array.from_buffers(arrow.uint32(), count + 1, [None, arrow.py_buffer(sizes)])
    columns = [
        _positions(arrow, runs, count),
        _bodies(arrow, numbers, bodies, body_bytes_max),
        numbers.slice(1).cast(arrow.int64()),
        _bools(arrow, runs, lambda run: run.redelivered),
        _bools(arrow, runs, lambda run: not run.transient),
        _properties(arrow, runs, count),
    ]
    return arrow.record_batch(columns, schema=schema(arrow))


@cache
def _from_0(arrow: Any) -> Any:
    return arrow.array(range(COUNTED_AT_ONCE), arrow.int64())


def _positions(arrow: Any, runs: Sequence[wire.BrowsedRun], count: int) -> Any:
    first, last = runs[0], runs[-1]
    if last.first_position + last.count - first.first_position == count <= COUNTED_AT_ONCE:
        # No hole, as nearly always.
        return arrow.compute.add(_from_0(arrow).slice(0, count), first.first_position)
    positions = array("q")
    for run in runs:
        positions.extend(range(run.first_position, run.first_position + run.count))
    return arrow.Array.from_buffers(arrow.int64(), count, [None, arrow.py_buffer(positions)])


def _bodies(arrow: Any, numbers: Any, bodies: memoryview, body_bytes_max: int | None) -> Any:
    count = len(numbers) - 1
    if body_bytes_max == 0:
        return arrow.nulls(count, arrow.binary())
    if body_bytes_max is not None:
        most = arrow.scalar(min(body_bytes_max, SIZE_MAX), arrow.uint32())
        numbers = arrow.compute.min_element_wise(numbers, most)
    ends = arrow.compute.cumulative_sum(numbers)
    if (promised := ends[-1].as_py()) != len(bodies):
        raise ProtocolError(f"{len(bodies)} bytes of bodies, their sizes say {promised}")
    buffers = [None, ends.buffers()[1], arrow.py_buffer(bodies)]
    return arrow.Array.from_buffers(arrow.binary(), count, buffers)


def _bools(
    arrow: Any, runs: Sequence[wire.BrowsedRun], is_set: Callable[[wire.BrowsedRun], bool]
) -> Any:
    bits = at = 0
    for run in runs:
        if is_set(run):
            bits |= ((1 << run.count) - 1) << at
        at += run.count
    # As Arrow packs them: the lowest bit of each byte first.
    data = arrow.py_buffer(bits.to_bytes((at + 7) // 8, "little"))
    return arrow.Array.from_buffers(arrow.bool_(), at, [None, data])


def _properties(arrow: Any, runs: Sequence[wire.BrowsedRun], count: int) -> Any:
    if not any(run.properties for run in runs):
        return arrow.nulls(count, arrow.binary())
    if len(runs) == 1 and len(runs[0].properties) == 1:
        return arrow.repeat(arrow.scalar(runs[0].properties[0], arrow.binary()), count)
    each: list[bytes | None] = []
    for run in runs:
        if len(run.properties) == run.count:
            each += run.properties
        else:
            # One for all of the run, or none.
            each += [run.properties[0] if run.properties else None] * run.count
    return arrow.array(each, arrow.binary())
