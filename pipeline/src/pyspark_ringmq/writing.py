"""The sink: rows become messages, confirmed before their task ends, and once in the queue.

Spark runs a task again when it has failed, and an attempt that it gave up may still be publishing.
So a task is one producer, whichever attempt it is, and the number of a row among those for the same
queue is its sequence: the broker trims what it has already, and fences the earlier attempt. This
holds as far as Spark gives the task the same rows in the same order, as it does for files and for
sorted rows. A queue gives fewer rows if messages have left it meanwhile: those behind them move up
to numbers that are published, and are trimmed as if they were repeats. With the option
`sequenceColumn` the row itself says its sequence, and what has left makes a gap.

The producer is named by the option `producerId`, or drawn for each write, together with the task's
number, and in a stream with the query's id and the batch's. A write that was given a `producerId`
may be repeated as a whole. With the option `producerColumn`, a task is several producers, one after
the other: each is named by the rows' values in that column, and numbers its own rows.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, cast

import pyarrow
from pyarrow import compute
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

import ringmq
from pyspark_ringmq.sending import TaskStreams
from ringmq_pipeline.property_columns import decoded
from ringmq_pipeline.schema import ENCODED
from ringmq_pipeline.sink_options import TEXTS, SinkOptions, column_called, column_names

# Handed over by one call.
CALL_ROWS = 20_000
# With a limit of the rate: how often it is looked at.
RATE_STEP_S = 0.1

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


@dataclass
class Published(WriterCommitMessage):
    """What one task has published; repeats that were trimmed are counted, too."""

    messages: int
    bytes: int


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        # Pickled with this object: all attempts of a task have the same.
        self._job = options.producer_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        task = context.partitionId() if context else 0
        return publish_task(self._options, self._job, task, iterator)


class StreamingWriter(DataSourceStreamArrowWriter):
    """Spark makes one for each batch."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise RuntimeError("Spark doesn't tell the sink ringmq which batch it writes")
        job = f"{self._options.producer_id}/{query}/{batch}"
        return publish_task(self._options, job, context.partitionId(), iterator)


def producer_id(job: str, task: int) -> bytes:
    return hashlib.sha256(f"{job}/{task}".encode()).digest()[:16]


def publish_task(
    options: SinkOptions, job: str, task: int, batches: Iterator[pyarrow.RecordBatch]
) -> Published:
    """The rows of one task, as one producer or as several. Raises `ValueError` for a producer whose
    rows don't come together: numbered from the beginning again, they would be taken for repeats."""
    if not options.producer_column:
        return publish(options, producer_id(job, task), batches)
    done = Published(0, 0)
    names: set[str | None] = set()
    parts = _by_producer(options, batches)
    for name, of_one in groupby(parts, key=itemgetter(0)):
        if name in names or not name:
            raise ValueError(f"the rows of producer {name!r} don't come together, or have no name")
        names.add(name)
        # The next one begins when these are confirmed: the order of rows is kept.
        published = publish(options, producer_id(f"{job}/{name}", task), map(itemgetter(1), of_one))
        done.messages += published.messages
        done.bytes += published.bytes
    return done


def _by_producer(
    options: SinkOptions, batches: Iterator[pyarrow.RecordBatch]
) -> Iterator[tuple[str | None, pyarrow.RecordBatch]]:
    for given in batches:
        batch = given.rename_columns(column_names(given.schema.names))
        names = batch.column(column_called(options.producer_column, batch.schema.names))
        if len(names.unique()) == 1:
            yield names[0].as_py(), batch
            continue
        first = 0
        for name, rows in groupby(names.to_pylist()):
            count = sum(1 for _ in rows)
            yield name, batch.slice(first, count)
            first += count


def publish(
    options: SinkOptions, producer: bytes, batches: Iterator[pyarrow.RecordBatch]
) -> Published:
    """Returns when all are confirmed."""
    done = Published(0, 0)
    pace = _Pace(options.max_rate_per_task)
    with TaskStreams(options, producer) as streams:
        for given in batches:
            batch = given.rename_columns(column_names(given.schema.names))
            for first in range(0, batch.num_rows, pace.rows):
                rows = batch.slice(first, pace.rows)
                pace.wait(rows.num_rows)
                for queue, of_queue in _by_queue(options, rows):
                    _publish_rows(options, streams, queue, of_queue)
                done.messages += rows.num_rows
                done.bytes += rows.column("body").nbytes
    return done


class _Pace:
    """Holds a task back, so that it publishes at most `rate` messages a second (0: any number)."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self.rows = min(CALL_ROWS, max(1, round(rate * RATE_STEP_S))) if rate else CALL_ROWS
        self._next_at = time.monotonic()

    def wait(self, rows: int) -> None:
        if self._rate:
            now = time.monotonic()
            time.sleep(max(0.0, self._next_at - now))
            # No credit is saved up while the input is slow.
            self._next_at = max(now, self._next_at) + rows / self._rate


def _by_queue(
    options: SinkOptions, rows: pyarrow.RecordBatch
) -> Iterator[tuple[str, pyarrow.RecordBatch]]:
    """The rows of each queue, in their order."""
    if options.queue:
        yield options.queue, rows
        return
    names = rows.column("queue").unique().to_pylist()
    if not all(names):
        raise ValueError("a row names no queue, and neither does the option `queue`")
    if len(names) == 1:
        yield names[0], rows
        return
    # Stable, as pyarrow promises.
    sorted_rows = rows.take(compute.sort_indices(rows.column("queue")))
    first = 0
    for name, run in groupby(sorted_rows.column("queue").to_pylist()):
        count = sum(1 for _ in run)
        yield name, sorted_rows.slice(first, count)
        first += count


def _publish_rows(
    options: SinkOptions, streams: TaskStreams, queue: str, rows: pyarrow.RecordBatch
) -> None:
    bodies = rows.column("body").cast(pyarrow.binary()).to_pylist()
    if None in bodies:
        raise ValueError(f"row {bodies.index(None)} of a batch has no body")
    properties = _properties_of(rows)
    sequences = _sequences_of(options, rows)
    for first, end, is_transient in _runs(rows):
        for begin, stop, priority, ttl_ms in _of_equal_terms(properties, first, end):
            for at, upto in _consecutive(sequences, begin, stop):
                streams.publish(
                    queue,
                    bodies[at:upto],
                    properties[at:upto],
                    is_transient=is_transient,
                    priority=priority,
                    ttl_ms=ttl_ms,
                    first_sequence=sequences[at] if sequences else None,
                )


def _sequences_of(options: SinkOptions, rows: pyarrow.RecordBatch) -> list[int]:
    """Of each row; none if rows are counted. Positions begin with 0, and sequences with 1."""
    if not options.sequence_column:
        return []
    name = column_called(options.sequence_column, rows.schema.names)
    values = rows.column(name).cast(pyarrow.int64()).to_pylist()
    for value in values:
        if value is None or value < 0:
            raise ValueError(f"a row has {value} in the column {name!r}, which says its sequence")
    return [value + 1 for value in values]


def _consecutive(sequences: Sequence[int], first: int, end: int) -> Iterator[tuple[int, int]]:
    """Parts of the rows `first` to before `end` whose sequences follow each other."""
    for at in range(first + 1, end if sequences else first):
        if sequences[at] != sequences[at - 1] + 1:
            yield first, at
            first = at
    yield first, end


def _of_equal_terms(
    properties: Sequence[ringmq.Properties], first: int, end: int
) -> Iterator[tuple[int, int, int, int | None]]:
    """Consecutive rows with the same priority and time to live: first, end, and these."""
    for terms, run in groupby(properties[first:end], key=attrgetter("priority", "expiration_ms")):
        stop = first + sum(1 for _ in run)
        yield first, stop, *terms
        first = stop
    if not properties:
        yield first, end, 0, None


def _runs(rows: pyarrow.RecordBatch) -> Iterator[tuple[int, int, bool]]:
    """Consecutive rows, all persistent or none: first, end, and whether they are transient."""
    if "persistent" not in rows.schema.names:
        yield 0, rows.num_rows, False
        return
    first = 0
    for is_persistent, run in groupby(rows.column("persistent").fill_null(True).to_pylist()):
        end = first + sum(1 for _ in run)
        yield first, end, not is_persistent
        first = end


def _properties_of(rows: pyarrow.RecordBatch) -> list[ringmq.Properties]:
    """One for each row; none if no row has any. Encoded ones say all that there is."""
    whole = _decoded(rows)
    if whole and None not in whole:
        return cast(list[ringmq.Properties], whole)
    said = _from_columns(rows)
    if not whole:
        return said
    others = said or [ringmq.Properties()] * len(whole)
    return [own or other for own, other in zip(whole, others, strict=True)]


def _decoded(rows: pyarrow.RecordBatch) -> list[ringmq.Properties | None]:
    """Of the column of encoded properties; empty without it, or if no row has any."""
    if ENCODED.name not in rows.schema.names:
        return []
    column = rows.column(ENCODED.name)
    if column.null_count == rows.num_rows:
        return []
    found, indices = decoded(column.cast(pyarrow.binary()))
    values = [ringmq.Properties.from_wire(each) for each in found]
    return [None if index is None else values[index] for index in indices.to_pylist()]


def _from_columns(rows: pyarrow.RecordBatch) -> list[ringmq.Properties]:
    """One for each row; none if no row has any."""
    columns: dict[str, list[Any]] = {
        name: rows.column(name).to_pylist()
        for name in (*TEXTS, "headers")
        if name in rows.schema.names and rows.column(name).null_count < rows.num_rows
    }
    if "published_at" in rows.schema.names:
        column = rows.column("published_at")
        if column.null_count < rows.num_rows:
            times = column.cast(pyarrow.timestamp("ms"), safe=False).cast(pyarrow.int64())
            columns["timestamp_ms"] = times.fill_null(0).to_pylist()
    if not columns:
        return []
    return [
        _properties({name: value for name, value in zip(columns, values, strict=True) if value})
        for values in zip(*columns.values(), strict=True)
    ]


def _properties(fields: dict[str, Any]) -> ringmq.Properties:
    return ringmq.Properties(**fields | {"headers": dict(fields.get("headers", ()))})
