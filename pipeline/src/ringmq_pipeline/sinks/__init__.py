"""Tables that a stream of batches is written to, each batch once, however often it is tried.

batches   a batch, its files, and the check that its rows aren't in the table yet
delta     a Delta table; the batch's number is in the same commit as its files
parquet   Parquet folders with a manifest for each batch
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ringmq_pipeline.sinks.batches import Committed, TableBatch, WriteFiles


class Sink(Protocol):
    def commit(self, batch: TableBatch, write: WriteFiles) -> Committed:
        """Writes the batch's rows by `write`, and makes them a part of the table in one step; or
        does nothing if it has the batch."""


def sink_for(kind: str, path: Path) -> Sink:
    """`kind`: `delta` or `parquet`."""
    if kind == "delta":
        from ringmq_pipeline.sinks.delta import DeltaSink

        return DeltaSink(path)
    from ringmq_pipeline.sinks.parquet import ParquetSink

    return ParquetSink(path)
