"""From a table to a queue, each row once, in order, and again from where it ended.

The table's files are divided into units: a file, or several whose positions overlap. A unit is one
producer whose sequences are the rows' numbers. So whatever is tried again, a task, a unit or the
whole replay, publishes the same rows under the same numbers, and the broker trims those that it
has. A query of Spark has one task, which publishes a few units, one after the other: each query
takes as much processor time as some 10 000 messages. Its units are noted in the progress file when
all are confirmed.

The rows' order is fixed: by queue, epoch and position, where the table has them, else as in the
file. A file that is in that order already, as an ingest leaves it, isn't sorted again. Spark passes
on only the columns that the sink publishes. Units come in the order of their positions, one after
the other: a queue's order is kept.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow.compute
import pyarrow.parquet

from ringmq_pipeline import sink_options
from ringmq_pipeline.errors import JobError
from ringmq_pipeline.option_values import known_only
from ringmq_pipeline.session import spark_name
from ringmq_pipeline.sink_options import PUBLISHED
from ringmq_pipeline.sinks.batches import (
    POSITION,
    QUEUE_COLUMNS,
    WrittenFile,
    begin_folder,
    file_of,
    make_durable,
)
from ringmq_pipeline.sinks.parquet import MANIFESTS, committed_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

ORDER: Final = (*QUEUE_COLUMNS, POSITION)
# Each file is read by one task from its beginning to its end. By the first alone, Spark would still
# divide a large file among its cores.
WHOLE_FILES: Final = {
    "spark.sql.files.maxPartitionBytes": str(1 << 50),
    "spark.sql.files.minPartitionNum": "1",
}


# Of one query: what is published again, and trimmed, if the replay dies before it ends.
QUERY_ROWS = 250_000
QUERY_BYTES = 256 << 20
# With a limit of the rate.
QUERY_S = 10
# Has the key of a row's unit, for the sink.
UNIT: Final = "_ringmq_unit"


@dataclass(frozen=True, slots=True)
class ReplayUnit:
    """`key` names the files: they never change. `rows` and `bytes` are all of the files'."""

    key: str
    files: tuple[Path, ...]
    rows: int
    bytes: int


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
    """Of a Delta table, of a table with manifests, or of a folder or a file of Parquet. Raises
    `JobError` for a Delta table whose files alone aren't its rows."""
    if (path / "_delta_log").is_dir():
        return _files_of_delta(path)
    if (path / MANIFESTS).is_dir():
        return committed_files(path)
    found = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    if not found:
        raise JobError(f"{path}: no table, and no Parquet files")
    return found


def _files_of_delta(path: Path) -> list[Path]:
    from deltalake import DeltaTable

    table = DeltaTable(path)
    features = table.protocol().reader_features or []
    # Not all tables that may have such rows have some.
    if "deletionVectors" in features and next(iter(table.deletion_vectors()), None) is not None:
        raise JobError(
            f"{path}: the table has rows that are deleted, and still in its files (deletion "
            "vectors): rewrite it without them"
        )
    if lacking := {*PUBLISHED, *ORDER}.intersection(table.metadata().partition_columns):
        columns = ", ".join(sorted(lacking))
        raise JobError(f"{path}: the table is partitioned by {columns}, which its files lack")
    # Not `file_uris`, which encodes what is above the table, and nothing below.
    names = table.get_add_actions()["path"].to_pylist()
    return sorted(path / unquote(name) for name in names)


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
    return [_unit(root, group) for group in groups]


def queries_of(
    units: Sequence[ReplayUnit], *, rows_max: int, bytes_max: int
) -> list[list[ReplayUnit]]:
    """Consecutive units for one query each: one at least, or several with so much together, whose
    files have the same columns."""
    found: list[list[ReplayUnit]] = []
    rows = size = 0
    columns: object = None
    for unit in units:
        has = [pyarrow.parquet.read_schema(file) for file in unit.files]
        rows, size = rows + unit.rows, size + unit.bytes
        fits = rows <= rows_max and size <= bytes_max
        if found and fits and all(each.equals(columns, check_metadata=True) for each in has):
            found[-1].append(unit)
        else:
            found.append([unit])
            rows, size, columns = unit.rows, unit.bytes, has[-1]
    return found


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


def _unit(root: Path, files: Sequence[WrittenFile]) -> ReplayUnit:
    listed = tuple(sorted(file.path for file in files))
    names = "\n".join(os.path.relpath(file, root) for file in listed)
    return ReplayUnit(
        key=hashlib.sha256(names.encode()).hexdigest()[:32],
        files=listed,
        rows=sum(file.rows for file in files),
        bytes=sum(file.bytes for file in files),
    )


# --- what is done ---


class ReplayProgress:
    """Lines of JSON: for the job, for the units that it will publish, and for each one that is
    confirmed."""

    def __init__(self, path: Path, job: ReplayJob) -> None:
        self._path = path
        self._source = job.source
        # By the names of their files.
        self._planned: list[list[str]] = []
        self.done: set[str] = set()
        given = known_only(job.sink, sink_options.KNOWN, "the sink ringmq")
        sink = {name: value for name, value in given.items() if name not in sink_options.PACE}
        asked = {"source": str(job.source.absolute()), "where": job.where, "sink": sink}
        begin_folder(path.absolute().parent)
        self.producer = self._begin(asked, job)
        # Also of a replay that is resumed: it may have been killed before this was on the disk.
        make_durable([path, path.absolute().parent])

    def _begin(self, asked: Mapping[str, object], job: ReplayJob) -> str:
        path = self._path
        if path.exists() and path.stat().st_size:
            if not job.resume:
                raise JobError(
                    f"{path} has a replay's progress: go on with --resume, or name another file"
                )
            return self._take_over(asked, job.producer)
        producer = job.producer or uuid.uuid4().hex
        self._append({"job": asked, "producer": producer})
        return producer

    def _take_over(self, asked: Mapping[str, object], producer: str) -> str:
        # The last line may be half of one: its unit is published again, and trimmed.
        whole = self._path.read_bytes().rpartition(b"\n")[0].split(b"\n")
        if not whole[0]:
            raise JobError(f"{self._path} is no replay's progress")
        first = json.loads(whole[0])
        if first["job"] != asked or producer not in ("", first["producer"]):
            raise JobError(
                f"{self._path} is the progress of another replay: {json.dumps(first)}; other rows "
                "under the same numbers would be taken for repeats"
            )
        # Nothing is written again: of a death in between, an empty file would be left, whose next
        # replay is another producer.
        os.truncate(self._path, sum(len(line) + 1 for line in whole))
        for line in map(json.loads, whole[1:]):
            if "plan" in line:
                self._planned += line["plan"]
            else:
                self.done.add(line["unit"])
        return str(first["producer"])

    def units(self, files: Sequence[WrittenFile]) -> list[ReplayUnit]:
        """Those that were planned before, as they were, and behind them those of new files: a file
        that joins a unit would rename it, and the broker would take its rows for new ones.

        Raises `JobError` if a planned file isn't there."""
        by_name = {os.path.relpath(file.path, self._source): file for file in files}
        planned = {name for names in self._planned for name in names}
        if gone := sorted(planned - by_name.keys()):
            raise JobError(
                f"{self._source} has no file {gone[0]} any more, which this replay began with: "
                "the same rows in other files would be published twice"
            )
        units = [_unit(self._source, [by_name[name] for name in names]) for names in self._planned]
        new = units_of(self._source, [by_name[name] for name in by_name if name not in planned])
        if new:
            # Before the first of them is published.
            plan = [[os.path.relpath(file, self._source) for file in unit.files] for unit in new]
            self._append({"plan": plan})
            self._planned += plan
        return units + new

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
    """Returns when all rows are confirmed. `show` is called after each query, with how many units
    there are."""
    progress = ReplayProgress(job.progress, job)
    files = [file_of(path) for path in files_of_table(job.source)]
    units = progress.units([file for file in files if file.rows])
    tally = ReplayTally(producer=progress.producer)
    left = [unit for unit in units if unit.key not in progress.done]
    tally.units_skipped = len(units) - len(left)
    for name, value in WHOLE_FILES.items():
        spark.conf.set(name, value)
    for query, rows in _published(spark, job, progress.producer, _queries(job, left)):
        for unit, of_unit in zip(query, rows, strict=True):
            progress.note(unit, of_unit)
        tally.units += len(query)
        tally.rows += sum(rows)
        show(tally, len(units))
    return tally


def _queries(job: ReplayJob, units: Sequence[ReplayUnit]) -> list[list[ReplayUnit]]:
    # Each of those that run at a time has something to do.
    rows_max = min(QUERY_ROWS, -(-sum(unit.rows for unit in units) // job.parallel))
    if rate := sink_options.parse(job.sink).max_rate_per_task:
        rows_max = min(rows_max, rate * QUERY_S)
    return queries_of(units, rows_max=rows_max, bytes_max=QUERY_BYTES)


def _published(
    spark: SparkSession, job: ReplayJob, producer: str, queries: Sequence[list[ReplayUnit]]
) -> Iterator[tuple[list[ReplayUnit], list[int]]]:
    if job.parallel == 1:
        # None begins before the one ahead of it is confirmed: it would overtake a failed one.
        for query in queries:
            yield query, _publish(spark, job, producer, query)
        return
    pool = ThreadPoolExecutor(max_workers=job.parallel)
    try:
        running = {pool.submit(_publish, spark, job, producer, query): query for query in queries}
        for future in as_completed(running):
            yield running[future], future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _publish(
    spark: SparkSession, job: ReplayJob, producer: str, query: Sequence[ReplayUnit]
) -> list[int]:
    """The rows of each unit that were published."""
    from pyspark.sql import DataFrame, Observation
    from pyspark.sql import functions as sql

    # One look for all: they have the same, but for the files of a unit that is a query by itself.
    looks = spark.read.option("mergeSchema", _has_different_columns(query[0]))
    schema = looks.parquet(*map(spark_name, query[0].files)).schema
    counts = []
    frames = []
    for unit in query:
        frame = _rows_of(spark.read.schema(schema), job, unit)
        frame = frame.select(*(name for name in frame.columns if name in PUBLISHED))
        counts.append(Observation())
        frame = frame.observe(counts[-1], sql.count(sql.lit(1)).alias("rows"))
        frames.append(frame.withColumn(UNIT, sql.lit(unit.key)))
    # In one task, the partitions of a union come in their order.
    whole = functools.reduce(DataFrame.unionAll, frames)
    (
        (whole.coalesce(1) if len(frames) > 1 else whole)
        .write.format("ringmq")
        .options(**job.sink)
        .option("producerId", producer)
        .option("producerColumn", UNIT)
        .mode("append")
        .save()
    )
    return [int(published.get["rows"]) for published in counts]


def _has_different_columns(unit: ReplayUnit) -> bool:
    """Whether a look at one file isn't enough: Spark leaves out what that one lacks."""
    first, *others = (pyarrow.parquet.read_schema(file) for file in unit.files)
    return not all(first.equals(other) for other in others)


def _rows_of(reader: DataFrameReader, job: ReplayJob, unit: ReplayUnit) -> DataFrame:
    """In their order, as one partition."""
    frame = reader.parquet(*(spark_name(file) for file in unit.files))
    if job.where:
        frame = frame.where(job.where)
    if not set(ORDER) <= set(frame.columns):
        return frame.coalesce(1)
    if len(unit.files) > 1:
        return frame.repartition(1).sortWithinPartitions(*ORDER)
    if not is_ordered(unit.files[0]):
        return frame.sortWithinPartitions(*ORDER)
    return frame
