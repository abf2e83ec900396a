"""The reader of a batch query: the messages between two positions of each queue, now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_ringmq.planning import (
    RangePartition,
    begin_in,
    bounds_now,
    check_offsets,
    task_partitions,
)
from pyspark_ringmq.rows import read_range
from ringmq_pipeline.offsets import QueueRange
from ringmq_pipeline.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow


class BatchReader(DataSourceReader):
    """It consumes nothing, and needs no lease."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Asked once for each plan: every task of a query sees the queues as they were then."""
        found = []
        now = bounds_now(self._options)
        check_offsets(self._options, now)
        for queue, bounds in now.items():
            if bounds is None:
                continue
            begin = begin_in(self._options, queue, bounds)
            end = bounds.end
            if isinstance(self._options.ending_offsets, Mapping):
                end = self._options.ending_offsets.get(queue, end)
            if begin.position < end:
                found.append(QueueRange(queue, begin.queue_id, begin.epoch, begin.position, end))
        return [*task_partitions(self._options, found)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_range(self._options, partition.range)
