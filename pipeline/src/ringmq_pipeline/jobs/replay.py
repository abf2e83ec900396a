"""From a table to a queue, each row once, in order, and again from where it ended.

The table's files are divided into units: a file, or several whose positions overlap. A unit is
written by one task, as one producer whose sequences are the rows' numbers. So whatever is tried
again, a task, a unit or the whole job, publishes the same rows under the same numbers, and the
broker trims those that it has. A unit that is confirmed is noted in the progress file.

The rows' order is fixed: by queue, epoch and position, where the table has them, else as in the
file. A file that is in that order already, as an ingest leaves it, isn't sorted again. Spark passes
on only the columns that the sink publishes. Units come in the order of their positions, one after
the other: a queue's order is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute
import pyarrow.parquet

from ringmq_pipeline.errors import JobError
from ringmq_pipeline.sink_options import PUBLISHED
from ringmq_pipeline.sinks.batches import POSITION, QUEUE_COLUMNS, WrittenFile, file_of
from ringmq_pipeline.sinks.parquet import MANIFESTS, committed_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDER: Final = (*QUEUE_COLUMNS, POSITION)
# Each file is read by one task from its beginning to its end. By the first alone, Spark would still
# divide a large file among its cores.
WHOLE_FILES: Final = {
    "spark.sql.files.maxPartitionBytes": str(1 << 50),
    "spark.sql.files.minPartitionNum": "1",
}


@dataclass(frozen=True, slots=True)
class ReplayUnit:
    """`key` names the files: they never change."""

    key: str
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """`sink`: options of the sink `ringmq`, without the producer. `parallel`: units at a time; with
    more than one, nobody promises an order."""

    source: Path
    sink: Mapping[str, str]
    progress: Path
    where: str = ""
    producer: str = ""
    resume: bool = False
    parallel: int = 1


@dataclass(slots=True)
class ReplayTally:
    units: int = 0
    units_skipped: int = 0
    rows: int = 0
    producer: str = ""


# --- what is read ---


def files_of_table(path: Path) -> list[Path]:
    """Of a Delta table, of a table with manifests, or of a folder or a file of Parquet."""
    if (path / "_delta_log").is_dir():
        from deltalake import DeltaTable

        return sorted(path / file for file in DeltaTable(path).file_uris())
    if (path / MANIFESTS).is_dir():
        return committed_files(path)
    found = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    if not found:
        raise JobError(f"{path}: no table, and no Parquet files")
    return found


def units_of(root: Path, files: Sequence[WrittenFile]) -> list[ReplayUnit]:
    """In the order of their positions. Files without positions stay as they are listed, each one
    by itself."""
    groups: list[list[WrittenFile]] = []
    top = -1
    ordered = [each for each in files if each.positions is None]
    ordered += sorted(
        (each for each in files if each.positions is not None),
        key=lambda each: each.positions or (),
    )
    for file in ordered:
        if file.positions is not None and groups and file.positions[0] <= top:
            groups[-1].append(file)
        else:
            groups.append([file])
        if file.positions is not None:
            top = max(top, file.positions[1])
    return [_unit(root, [file.path for file in group]) for group in groups]


def is_ordered(path: Path) -> bool:
    """Whether the file's rows, which have the columns of `ORDER`, are of one queue and epoch, and
    their positions grow. Only these columns are read."""
    columns = pyarrow.parquet.read_table(path, columns=[*ORDER])
    if any(columns[name].null_count or len(columns[name].unique()) > 1 for name in QUEUE_COLUMNS):
        return False
    positions: Any = columns[POSITION]
    if positions.null_count:
        return False
    grows = pyarrow.compute.greater(positions[1:], positions[:-1])
    # None: it has one row.
    return pyarrow.compute.all(grows).as_py() is not False


def _unit(root: Path, files: Iterable[Path]) -> ReplayUnit:
    listed = tuple(sorted(files))
    names = "\n".join(os.path.relpath(file, root) for file in listed)
    return ReplayUnit(hashlib.sha256(names.encode()).hexdigest()[:32], listed)


# --- what is done ---


class ReplayProgress:
    """A line of JSON for the job, and one for each unit that is confirmed."""

    def __init__(self, path: Path, job: ReplayJob) -> None:
        self._path = path
        self.done: set[str] = set()
        asked = {"source": str(job.source.absolute()), "where": job.where, "sink": dict(job.sink)}
        if path.exists() and path.stat().st_size:
            if not job.resume:
                raise JobError(
                    f"{path} has a replay's progress: go on with --resume, or name another file"
                )
            self.producer = self._take_over(asked, job.producer)
            return
        self.producer = job.producer or uuid.uuid4().hex
        path.parent.mkdir(parents=True, exist_ok=True)
        self._append({"job": asked, "producer": self.producer})

    def _take_over(self, asked: Mapping[str, object], producer: str) -> str:
        # The last line may be half of one: its unit is published again, and trimmed.
        whole = self._path.read_text().rpartition("\n")[0].splitlines()
        if not whole:
            raise JobError(f"{self._path} is no replay's progress")
        first = json.loads(whole[0])
        if first["job"] != asked or producer not in ("", first["producer"]):
            raise JobError(
                f"{self._path} is the progress of another replay: {json.dumps(first)}; other rows "
                "under the same numbers would be taken for repeats"
            )
        self._path.write_text("".join(f"{line}\n" for line in whole))
        self.done = {json.loads(line)["unit"] for line in whole[1:]}
        return str(first["producer"])

    def note(self, unit: ReplayUnit, rows: int) -> None:
        self._append({"unit": unit.key, "rows": rows})
        self.done.add(unit.key)

    def _append(self, entry: Mapping[str, object]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())


def replay(
    spark: SparkSession, job: ReplayJob, *, show: Callable[[ReplayTally, int], None]
) -> ReplayTally:
    """Returns when all rows are confirmed. `show` is called after each unit, with how many there
    are."""
    progress = ReplayProgress(job.progress, job)
    files = [file_of(path) for path in files_of_table(job.source)]
    units = units_of(job.source, [file for file in files if file.rows])
    tally = ReplayTally(producer=progress.producer)
    left = [unit for unit in units if unit.key not in progress.done]
    tally.units_skipped = len(units) - len(left)
    for name, value in WHOLE_FILES.items():
        spark.conf.set(name, value)
    for unit, rows in _published(spark, job, progress.producer, left):
        progress.note(unit, rows)
        tally.units += 1
        tally.rows += rows
        show(tally, len(units))
    return tally


def _published(
    spark: SparkSession, job: ReplayJob, producer: str, units: Sequence[ReplayUnit]
) -> Iterator[tuple[ReplayUnit, int]]:
    if job.parallel == 1:
        # None begins before the one ahead of it is confirmed: it would overtake a failed one.
        for unit in units:
            yield unit, _publish(spark, job, producer, unit)
        return
    pool = ThreadPoolExecutor(max_workers=job.parallel)
    try:
        running = {pool.submit(_publish, spark, job, producer, unit): unit for unit in units}
        for future in as_completed(running):
            yield running[future], future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _publish(spark: SparkSession, job: ReplayJob, producer: str, unit: ReplayUnit) -> int:
    from pyspark.sql import Observation
    from pyspark.sql import functions as sql

    frame = spark.read.parquet(*(file.as_uri() for file in unit.files))
    if job.where:
        frame = frame.where(job.where)
    if not set(ORDER) <= set(frame.columns):
        frame = frame.coalesce(1)
    elif len(unit.files) > 1:
        frame = frame.repartition(1).sortWithinPartitions(*ORDER)
    elif not is_ordered(unit.files[0]):
        frame = frame.sortWithinPartitions(*ORDER)
    frame = frame.select(*(name for name in frame.columns if name in PUBLISHED))
    published = Observation()
    frame = frame.observe(published, sql.count(sql.lit(1)).alias("rows"))
    (
        frame.write.format("ringmq")
        .options(**job.sink)
        .option("producerId", f"{producer}/{unit.key}")
        .mode("append")
        .save()
    )
    return int(published.get["rows"])
