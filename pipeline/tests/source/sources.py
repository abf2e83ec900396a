"""The source's methods, called as Spark calls them, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from pyspark_ringmq.batch import BatchReader
from pyspark_ringmq.stream import StreamReader
from ringmq_pipeline.options import parse

Rows = list[dict[str, Any]]


def options_for(address: str, queue: str, **options: str) -> dict[str, str]:
    named = {} if {"queues", "queuePattern"} & options.keys() else {"queue": queue}
    return {"endpoints": address, "requestTimeout": "10s"} | named | options


def batch_rows(address: str, queue: str, **options: str) -> Rows:
    reader = BatchReader(parse(options_for(address, queue, **options)))
    return rows_of(reader, reader.partitions())


def rows_of(reader: BatchReader | StreamReader, partitions: list[InputPartition]) -> Rows:
    return [
        row
        for partition in partitions
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


class Query:
    """A streaming query, in the order in which Spark asks for things."""

    def __init__(self, address: str, queue: str, **options: str) -> None:
        self.reader = StreamReader(parse(options_for(address, queue, **options)))
        self.at: dict[str, Any] | None = None

    def begin(self) -> None:
        self.at = self.reader.initialOffset()

    def trigger(
        self, limit: ReadLimit | None = None, sink: Callable[[Rows], None] = lambda rows: None
    ) -> Rows:
        """One batch, committed; empty if there was nothing to read."""
        if self.at is None:
            self.begin()
        assert self.at is not None
        end = self.reader.latestOffset(self.at, limit or self.reader.getDefaultReadLimit())
        if end == self.at:
            return []
        rows = rows_of(self.reader, self.reader.partitions(self.at, end))
        sink(rows)
        self.at = end
        return rows

    def end(self) -> None:
        self.reader.stop()
