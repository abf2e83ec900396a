"""Pieces of a store as Arrow batches.

Bodies pass through as the one piece of memory that their block is. In Python runs one call of
CRC-32 for each message, and only if the option asks for checksums.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise

import pyarrow
from isal.isal_zlib import crc32

from pyspark_ringmq_store.columns import MESSAGES, PIECES, QUEUES
from pyspark_ringmq_store.options import StoreOptions
from ringmq_base.ranges import Range
from ringmq_node.model.names import vhost_of
from ringmq_node.queue.block import Block
from ringmq_node.storage.offline import DataDirectory
from ringmq_node.storage.offline.messages import (
    FoundQueue,
    OfflineMessages,
    Status,
    StorePiece,
    read_queue,
)
from ringmq_node.storage.offline.queues import QueueFolder, UnreadableQueueError
from ringmq_pipeline.property_columns import PROPERTY_COLUMNS, property_columns
from ringmq_pipeline.schema import ENCODED, arrow_schema_of

BATCH_ROWS = 10_000
BATCH_BYTES = 4 << 20

_SCHEMA = arrow_schema_of(MESSAGES)


def message_batches(
    directory: DataDirectory,
    node: str,
    queues: list[QueueFolder],
    slices: tuple[int, int],
    options: StoreOptions,
) -> Iterator[pyarrow.RecordBatch]:
    """`slices`: which part of how many, by segments."""
    gathered: list[pyarrow.RecordBatch] = []
    rows = size = 0
    for folder, queue, piece in _pieces(directory, queues, slices):
        for batch in _batches_of(node, folder, queue, piece, options):
            gathered.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                yield _joined(gathered)
                gathered, rows, size = [], 0, 0
    if gathered:
        yield _joined(gathered)


def piece_batches(
    directory: DataDirectory, node: str, queues: list[QueueFolder], slices: tuple[int, int]
) -> Iterator[pyarrow.RecordBatch]:
    """For who counts: all bodies are read and checked, and nothing is done for each message."""
    schema = arrow_schema_of(PIECES)
    rows: list[dict[str, object]] = []
    for folder, _, piece in _pieces(directory, queues, slices):
        rows.append(_piece_row(node, folder, piece))
        if len(rows) == BATCH_ROWS:
            yield pyarrow.RecordBatch.from_pylist(rows, schema=schema)
            rows = []
    if rows:
        yield pyarrow.RecordBatch.from_pylist(rows, schema=schema)


def _piece_row(node: str, folder: QueueFolder, piece: StorePiece) -> dict[str, object]:
    return {
        "node": node,
        "queue": folder.title,
        "queue_id": folder.name,
        "status": piece.status.value,
        "file": piece.file,
        "file_offset": piece.offset,
        "what": piece.what or None,
        "first": piece.first,
        "last": piece.last,
        "rows": _rows_in(piece),
        "body_bytes": 0 if piece.block is None else piece.block.body_bytes(),
    }


def _rows_in(piece: StorePiece) -> int:
    """A finding about a file is one row."""
    if piece.first is None or piece.last is None:
        return 1
    return piece.last - piece.first + 1


def _pieces(
    directory: DataDirectory, queues: list[QueueFolder], slices: tuple[int, int]
) -> Iterator[tuple[QueueFolder, FoundQueue | None, StorePiece]]:
    part, parts = slices
    messages = OfflineMessages(directory)
    for folder in queues:
        pieces = read_queue(
            messages, folder, lambda number: number % parts == part, with_findings=part == 0
        )
        for queue, piece in pieces:
            yield folder, queue, piece


def queue_batches(
    directory: DataDirectory, node: str, queues: list[QueueFolder]
) -> pyarrow.RecordBatch:
    messages = OfflineMessages(directory)
    rows = []
    for folder in queues:
        try:
            rows.append(_queue_row(node, folder, messages.find(folder), ""))
        except (UnreadableQueueError, OSError) as error:
            rows.append(_queue_row(node, folder, None, str(error)))
        finally:
            messages.release(folder)
    return pyarrow.RecordBatch.from_pylist(rows, schema=arrow_schema_of(QUEUES))


def _queue_row(
    node: str, folder: QueueFolder, queue: FoundQueue | None, what: str
) -> dict[str, object]:
    state = None if queue is None else queue.state
    found = None if queue is None else queue.recovered
    epochs = [] if state is None else state.epochs
    return {
        "node": node,
        "queue": folder.title,
        "queue_id": folder.name,
        "status": (Status.UNREADABLE if queue is None else Status.OK).value,
        "what": what or None,
        "last_op": 0 if state is None else state.last_number,
        "next_position": 0 if state is None else state.next_position,
        "epochs": json.dumps(
            [[each.epoch, each.first_number, each.first_position] for each in epochs]
        ),
        "live": 0 if state is None else len(state.live),
        "missing": 0 if found is None else len(found.missing),
        "torn_bytes": 0 if found is None else found.torn_bytes,
        "damaged": found is not None and found.damaged,
        "partial": queue is not None and queue.is_partial,
    }


def _batches_of(
    node: str,
    folder: QueueFolder,
    queue: FoundQueue | None,
    piece: StorePiece,
    options: StoreOptions,
) -> Iterator[pyarrow.RecordBatch]:
    """A message or finding is one row. Positions without a body may be very many."""
    if piece.first is None or piece.last is None:
        yield _batch(node, folder, piece, 1, {})
        return
    step = BATCH_ROWS if piece.block is None else piece.last - piece.first + 1
    for first in range(piece.first, piece.last + 1, step):
        last = min(first + step - 1, piece.last)
        columns = {
            "position": pyarrow.array(range(first, last + 1), pyarrow.int64()),
            "epoch": _epochs(queue, first, last),
        }
        if piece.block is not None:
            columns |= _body_columns(piece.block, options)
            columns["redelivered"] = _flags(first, last, piece.redelivered)
            columns["persistent"] = pyarrow.repeat(True, last - first + 1)
        yield _batch(node, folder, piece, last - first + 1, columns)


def _batch(
    node: str, folder: QueueFolder, piece: StorePiece, count: int, columns: dict[str, pyarrow.Array]
) -> pyarrow.RecordBatch:
    same = {
        "node": node,
        "queue": folder.title,
        "vhost": vhost_of(folder.title),
        "queue_id": folder.name,
        "status": piece.status.value,
        "file": piece.file,
        "file_offset": piece.offset,
        "what": piece.what or None,
    }
    arrays = []
    for field in _SCHEMA:
        if field.name in columns:
            arrays.append(columns[field.name])
        elif same.get(field.name) is not None:
            arrays.append(pyarrow.repeat(pyarrow.scalar(same[field.name], field.type), count))
        else:
            arrays.append(pyarrow.nulls(count, field.type))
    return pyarrow.record_batch(arrays, schema=_SCHEMA)


def _body_columns(block: Block, options: StoreOptions) -> dict[str, pyarrow.Array]:
    together, offsets = block.bodies_together()
    count = block.count
    columns: dict[str, pyarrow.Array] = {
        "body_size": pyarrow.array(block.body_sizes(), pyarrow.int64())
    }
    if options.checksums:
        crcs = [crc32(together[a:b]) for a, b in pairwise(offsets)]
        columns["body_crc32"] = pyarrow.array(crcs, pyarrow.int64())
    if options.body_bytes_max is None:
        buffers = [None, pyarrow.py_buffer(offsets), pyarrow.py_buffer(together)]
        columns["body"] = pyarrow.Array.from_buffers(pyarrow.binary(), count, buffers)
    elif options.body_bytes_max:
        heads = [body[: options.body_bytes_max] for body in block.bodies()]
        columns["body"] = pyarrow.array(heads, pyarrow.binary())
    encoded = block.properties()
    if encoded:
        encoded = encoded if len(encoded) == count else encoded * count
        given = pyarrow.array(encoded, pyarrow.binary())
        try:
            columns |= property_columns(given, PROPERTY_COLUMNS, _SCHEMA)
            columns[ENCODED.name] = given
        except ValueError:
            # They have no checksum but the record's, and a publisher may send any bytes.
            return columns
    return columns


def _epochs(queue: FoundQueue | None, first: int, last: int) -> pyarrow.Array:
    """Of each position, the epoch in which it was given out; null before the first known one."""
    starts = [] if queue is None else queue.state.epochs
    at, found = first, []
    epoch: int | None = None
    for start in starts:
        stop = min(start.first_position, last + 1)
        if stop > at:
            found.append(_repeat(epoch, stop - at))
            at = stop
        epoch = start.epoch
    if at <= last:
        found.append(_repeat(epoch, last + 1 - at))
    return pyarrow.concat_arrays(found)


def _repeat(value: int | None, count: int) -> pyarrow.Array:
    if value is None:
        return pyarrow.nulls(count, pyarrow.int64())
    return pyarrow.repeat(pyarrow.scalar(value, pyarrow.int64()), count)


def _flags(first: int, last: int, ranges: tuple[Range, ...]) -> pyarrow.Array:
    flags = bytearray(last - first + 1)
    for low, high in ranges:
        flags[low - first : high - first + 1] = b"\1" * (high - low + 1)
    return pyarrow.array([*map(bool, flags)], pyarrow.bool_())


def _joined(batches: list[pyarrow.RecordBatch]) -> pyarrow.RecordBatch:
    return batches[0] if len(batches) == 1 else pyarrow.concat_batches(batches)
