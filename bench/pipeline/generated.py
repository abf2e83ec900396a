"""Rows that cost nothing, and a sink that keeps nothing: what Spark itself takes and gives.

Spark's workers import this module, so it imports what they have.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ringmq_pipeline.schema import arrow_schema, ddl

# As the source's own batches have.
BATCH_ROWS = 1024


class Share(InputPartition):
    """The rows of one task."""


class GeneratedRows(DataSource):
    """Rows with the source's columns; the same batch again and again. Options: `rows`, `size` (of a
    body), `tasks`."""

    @classmethod
    def name(cls) -> str:
        return "generated"

    def schema(self) -> str:
        return ddl(include_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self.options
        return _Reader(int(options["rows"]), int(options["size"]), int(options["tasks"]))


class _Reader(DataSourceReader):
    def __init__(self, rows: int, size: int, tasks: int) -> None:
        self._rows, self._size, self._tasks = rows, size, tasks

    def partitions(self) -> list[InputPartition]:
        each, more = divmod(self._rows, self._tasks)
        return [Share(each + (number < more)) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        rows = partition.value
        batch = generated_batch(min(BATCH_ROWS, rows), self._size)
        while rows > 0:
            yield batch.slice(0, rows)
            rows -= batch.num_rows


def generated_batch(rows: int, size: int) -> pyarrow.RecordBatch:
    """Its bodies are random: they don't get smaller by compression."""
    schema = arrow_schema(include_headers=False)
    columns = {
        "queue": pyarrow.repeat("generated", rows),
        "epoch": pyarrow.repeat(pyarrow.scalar(0, pyarrow.int64()), rows),
        "position": pyarrow.array(range(rows), pyarrow.int64()),
        "body": pyarrow.array([os.urandom(size) for _ in range(rows)], pyarrow.binary()),
        "body_size": pyarrow.repeat(pyarrow.scalar(size, pyarrow.int64()), rows),
        "redelivered": pyarrow.repeat(False, rows),
        "persistent": pyarrow.repeat(True, rows),
    }
    arrays = [columns.get(each.name, pyarrow.nulls(rows, each.type)) for each in schema]
    return pyarrow.record_batch(arrays, schema=schema)


class Nothing(DataSource):
    """A sink whose tasks look at every body, as the sink `ringmq` does, and keep none."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Nothing()


class _Nothing(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            batch.column("body").to_pylist()
        return WriterCommitMessage()
