"""A batch, the files that Spark wrote for it, and the check that its rows are new to the table.

A table remembers for each queue how far it has its messages. So a batch of another checkpoint, that
begins in the middle of these, is refused before it is committed: it would double their rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet

from ringmq_pipeline.errors import JobError
from ringmq_pipeline.offsets import QueueRange

# Writes Parquet files into a folder that isn't there yet. Returns how many rows it has written.
WriteFiles = Callable[[Path], int]

POSITION: Final = "position"
# Of a Delta table. Here, as who looks for it doesn't always need delta-rs.
DELTA_LOG: Final = "_delta_log"
# They tell one message from all others, with its position.
QUEUE_COLUMNS: Final = ("queue", "epoch")


@dataclass(frozen=True, slots=True)
class TableBatch:
    """`query`: of the checkpoint. `number`: Spark counts from 0, and gives a batch that is tried
    again the same. `ranges`: of all queues with messages in it."""

    query: str
    number: int
    ranges: tuple[QueueRange, ...]

    def describe(self) -> list[dict[str, Any]]:
        """For the table's own history."""
        return [
            {
                "queue": each.queue,
                "queue_id": each.queue_id,
                "epoch": each.epoch,
                "first": each.first,
                "end": each.end,
            }
            for each in self.ranges
        ]


@dataclass(frozen=True, slots=True)
class Committed:
    """What a batch has brought; `skipped`: the table had it."""

    rows: int = 0
    files: int = 0
    bytes: int = 0
    skipped: bool = False


SKIPPED: Final = Committed(skipped=True)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    path: Path
    rows: int
    bytes: int
    # Of the column `position`; None where the file has no such column.
    positions: tuple[int, int] | None


class RowsInTableError(JobError):
    """The table has rows of this range already, from another checkpoint."""

    def __init__(
        self, table: Path, queue: str, first: int, end: int, *, advise: bool = True
    ) -> None:
        way_out = (
            "begin behind them with startingOffsets " + json.dumps({queue: end}, ensure_ascii=False)
            if advise
            else "give another --quarantine"
        )
        super().__init__(
            f"{table}: of queue {queue!r}, the table has positions {first} to {end - 1} already, "
            f"from another checkpoint: go on with that one, or {way_out}"
        )
        self.table, self.queue, self.first, self.end = table, queue, first, end

    def without_advice(self) -> RowsInTableError:
        """For a table of a job that has another one: that may lack messages before `end`, and who
        begins there acknowledges them."""
        return RowsInTableError(self.table, self.queue, self.first, self.end, advise=False)


class BatchBeyondTableError(JobError):
    """The table has a batch of this number and query, which ended before this one."""

    def __init__(self, number: int, whole: QueueRange, end: int) -> None:
        super().__init__(
            f"queue {whole.queue!r}: the table has batch {number} of this checkpoint only to "
            f"position {end}, not to {whole.end}: the checkpoint was restored, or has lost its "
            "newest files; begin another one"
        )


def numbering_key(each: QueueRange) -> str:
    """Positions of one key are the same messages for ever."""
    return f"ringmq:{each.queue_id}:{each.epoch}"


def check_covered(batch: TableBatch, ends: Mapping[str, int]) -> None:
    """Raises `BatchBeyondTableError`. `batch`: the table has its number.

    Spark plans a batch once more, with all that is there by then, if its offset log has forgotten
    the batch. Were it skipped by its number, what is new in it would be acknowledged, and be in
    no table."""
    for each in batch.ranges:
        end = ends.get(numbering_key(each), 0)
        if end < each.end:
            raise BatchBeyondTableError(batch.number, each, max(end, 0))


def new_ends(batch: TableBatch, ends: Mapping[str, int]) -> dict[str, int]:
    """How far the table has each numbering of the batch with the batch, and `ends` without it.

    A checkpoint that finds nothing but holes up to some position may come to a table that is
    further on. Its end stays: else what lies between could be brought a second time."""
    keys = {numbering_key(each): each.end for each in batch.ranges}
    return {key: max(end, ends.get(key, 0)) for key, end in keys.items()}


def refuse_rows_in_table(
    table: Path, batch: TableBatch, files: Iterable[WrittenFile], ends: Mapping[str, int]
) -> None:
    """Raises `RowsInTableError`. `ends`: how far the table has each numbering's messages."""
    suspects = [each for each in batch.ranges if each.first < ends.get(numbering_key(each), 0)]
    if not suspects:
        return
    # The first batch of an older version's checkpoint counts from 0, whatever was gone by then, and
    # any range may have holes: look at the rows.
    lowest = _lowest_positions(files)
    for each in suspects:
        end = ends[numbering_key(each)]
        first = lowest.get((each.queue, each.epoch), end)
        if first < end:
            raise RowsInTableError(table, each.queue, first, end)


def _lowest_positions(files: Iterable[WrittenFile]) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for file in files:
        if file.positions is None:
            continue
        columns = pyarrow.parquet.read_table(file.path, columns=[*QUEUE_COLUMNS, POSITION])
        lowest = columns.group_by([*QUEUE_COLUMNS]).aggregate([(POSITION, "min")]).to_pylist()
        for row in lowest:
            key = row["queue"], row["epoch"]
            found[key] = min(row[f"{POSITION}_min"], found.get(key, row[f"{POSITION}_min"]))
    return found


# --- files ---


def refuse_other_format(table: Path, others_log: str, others_format: str) -> None:
    """Raises `JobError`. Of a folder with two formats' logs, a reader sees one log's rows."""
    if (table / others_log).exists():
        raise JobError(
            f"{table}: a table of --format {others_format} ({others_log}): go on with that format, "
            "or write to another folder"
        )


def write_whole(write: WriteFiles, folder: Path) -> list[WrittenFile]:
    """The files with rows. Raises `JobError` if some aren't there: a worker may see another folder
    under this name, and Spark's driver finds nothing amiss then."""
    rows = write(folder)
    files = written_files(folder)
    if (found := sum(file.rows for file in files)) != rows:
        raise JobError(
            f"{folder}: {rows} rows were written, and {found} are there: driver and workers have "
            "to see the same folder under this name"
        )
    return files


def written_files(folder: Path) -> list[WrittenFile]:
    """Those with rows."""
    return [file for file in map(file_of, sorted(folder.glob("*.parquet"))) if file.rows]


def file_of(path: Path) -> WrittenFile:
    footer = pyarrow.parquet.read_metadata(path)
    return WrittenFile(path, footer.num_rows, path.stat().st_size, _position_bounds(footer))


def _position_bounds(footer: Any) -> tuple[int, int] | None:
    names = [footer.schema.column(index).path for index in range(footer.num_columns)]
    if POSITION not in names:
        return None
    column = names.index(POSITION)
    counted = [
        footer.row_group(index).column(column).statistics for index in range(footer.num_row_groups)
    ]
    # None at all: a file without rows.
    if not counted or not all(each is not None and each.has_min_max for each in counted):
        return None
    return min(each.min for each in counted), max(each.max for each in counted)


def make_durable(paths: Iterable[Path]) -> None:
    """Files, or folders: the names in them."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def begin_folder(folder: Path) -> None:
    """Makes it, and those above it. What a power cut leaves has their names, also if another
    process has made them and was killed."""
    folder.mkdir(parents=True, exist_ok=True)
    device = folder.stat().st_dev
    for each in folder.parents:
        # Nobody has made a mount point, or a name where he may not even read; and not every file
        # system that others are mounted in can be synced.
        if each.stat().st_dev != device or not os.access(each, os.R_OK):
            return
        make_durable([each])


def folders_between(root: Path, folder: Path) -> list[Path]:
    """`folder` and those above it, up to `root`."""
    return [folder, *(each for each in folder.parents if each == root or root in each.parents)]
