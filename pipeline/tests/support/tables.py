"""Batches for sinks, and what a reader finds in the tables.

No Spark: `write` is what the job has a sink do, to write files into a new folder."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
from deltalake import DeltaTable

from ringmq_pipeline.offsets import QueueRange
from ringmq_pipeline.sinks.batches import TableBatch, WriteFiles
from ringmq_pipeline.sinks.parquet import committed_files


class Killed(BaseException):
    """As a SIGKILL: nothing of the sink may run after it."""


def ignore(step: str) -> None:
    """Goes on."""


def batch(
    number: int, first: int, end: int, query: str = "query", queue_id: str = "id"
) -> TableBatch:
    return TableBatch(query, number, (QueueRange("orders", queue_id, 0, first, end),))


def rows(first: int, end: int, queue: str = "orders") -> WriteFiles:
    def write(folder: Path) -> int:
        folder.mkdir()
        half = (first + end) // 2
        for name, low, high in (("a", first, half), ("b", half, end)):
            table = pyarrow.table(
                {
                    "queue": pyarrow.repeat(queue, high - low),
                    "epoch": pyarrow.repeat(pyarrow.scalar(0, pyarrow.int64()), high - low),
                    "position": pyarrow.array(range(low, high), pyarrow.int64()),
                }
            )
            pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
        return end - first

    return write


def table_files(kind: str, path: Path) -> list[Path]:
    if kind == "delta":
        return [Path(uri) for uri in DeltaTable(path).file_uris()]
    return committed_files(path)


def positions(kind: str, path: Path) -> list[int]:
    """As a reader of the table finds them: every file is opened."""
    tables = [pyarrow.parquet.read_table(file) for file in table_files(kind, path)]
    return sorted(position for table in tables for position in table["position"].to_pylist())
