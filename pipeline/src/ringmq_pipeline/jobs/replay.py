"""From a table to a queue, each row once, in order, and again from where it ended.

The table's files are divided into units: a file, or several whose positions overlap. A unit is one
producer in each queue, and its sequences are the numbers of the rows for that queue. So whatever is
tried again, a task, a unit or the whole replay, publishes the same rows under the same numbers, and
the broker trims those that it has. A query of Spark has one task, which publishes a few units, one
after the other: each query takes as much processor time as some 10 000 messages. Its units are
noted in the progress file when all are confirmed.

The rows' order is fixed: by queue, epoch and position, where the table has them, else as in the
file. A file that is in that order already, as an ingest leaves it, isn't sorted again. Spark passes
on only the columns that the sink publishes. Units come in the order of their positions, one after
the other: a queue's order is kept.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow.parquet

from ringmq_pipeline import sink_options
from ringmq_pipeline.errors import JobError
from ringmq_pipeline.jobs.conditions import refuse_unsteady
from ringmq_pipeline.jobs.replay_units import (
    ORDER,
    ReplayUnit,
    file_to_replay,
    files_of_table,
    is_ordered,
    queries_of,
    unit_of,
    units_of,
)
from ringmq_pipeline.option_values import known_only
from ringmq_pipeline.session import spark_pattern
from ringmq_pipeline.sink_options import PUBLISHED
from ringmq_pipeline.sinks.batches import WrittenFile, begin_folder, make_durable
from ringmq_pipeline.sinks.locks import locked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

# Each file is read by one task from its beginning to its end. By the first alone, Spark would still
# divide a large file among its cores.
WHOLE_FILES: Final = {
    "spark.sql.files.maxPartitionBytes": str(1 << 50),
    "spark.sql.files.minPartitionNum": "1",
}


# Of one query: what is published again, and trimmed, if the replay dies before it ends.
QUERY_ROWS = 250_000
QUERY_BYTES = 256 << 20
# Far below the producers that a queue of the broker remembers, 10 000: it has to know all of a
# query that is tried again. Spark's plan of a query grows with them, too.
QUERY_UNITS = 100
# With a limit of the rate.
QUERY_S = 10
# Has the key of a row's unit, for the sink.
UNIT: Final = "_ringmq_unit"


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


# --- what is done ---


class PlannedFile(NamedTuple):
    """As the progress file has it. `name` is relative to the table."""

    name: str
    bytes: int
    rows: int


def has_begun(progress: Path, *, resume: bool) -> bool:
    """Whether the file is of a replay that has been planned. One that died before its first line
    has left an empty file, and has published nothing: to resume it is to begin."""
    return resume and progress.exists() and progress.stat().st_size > 0


def _check_there(job: ReplayJob) -> None:
    if job.resume and not job.progress.exists():
        # A new one would publish again what the one that is meant has published.
        raise JobError(
            f"{job.progress}: no such progress file, so there is nothing to go on with: mend its "
            "name, or begin a new replay without --resume"
        )


class ReplayProgress:
    """Lines of JSON: for the job, for the units that it will publish, and for each one that is
    confirmed."""

    def __init__(self, path: Path, job: ReplayJob) -> None:
        self._path = path
        self._source = job.source
        self._planned: list[list[PlannedFile]] = []
        self.done: set[str] = set()
        given = known_only(job.sink, sink_options.KNOWN, "the sink ringmq")
        sink = {name: value for name, value in given.items() if name not in sink_options.PACE}
        asked = {"source": str(job.source.absolute()), "where": job.where, "sink": sink}
        _check_there(job)
        begin_folder(path.absolute().parent)
        self.producer = self._begin(asked, job)
        # Also of a replay that is resumed: it may have been killed before this was on the disk.
        make_durable([path, path.absolute().parent])

    def _begin(self, asked: Mapping[str, object], job: ReplayJob) -> str:
        path = self._path
        if has_begun(path, resume=job.resume):
            return self._take_over(asked, job.producer)
        if not job.resume:
            try:
                # Of two that begin at once, one fails.
                path.open("x").close()
            except FileExistsError:
                raise JobError(
                    f"{path} is there already: go on with its replay with --resume, or name "
                    "another file"
                ) from None
        producer = job.producer or uuid.uuid4().hex
        self._append({"job": asked, "producer": producer})
        return producer

    def _take_over(self, asked: Mapping[str, object], producer: str) -> str:
        # The last line may be half of one: its unit is published again, and trimmed.
        whole = self._path.read_bytes().rpartition(b"\n")[0].split(b"\n")
        first = _entry(whole[0])
        if "job" not in first or not isinstance(first.get("producer"), str):
            raise JobError(
                f"{self._path} is no replay's progress, or it has only half of its first line: "
                "then nothing is published yet; begin with another file"
            )
        if first["job"] != asked or producer not in ("", first["producer"]):
            raise JobError(
                f"{self._path} is the progress of another replay: {json.dumps(first)}; other rows "
                "under the same numbers would be taken for repeats"
            )
        for number, line in enumerate(whole[1:], 2):
            try:
                self._take_line(_entry(line))
            except (KeyError, TypeError, ValueError) as error:
                raise JobError(f"{self._path}: line {number} is no line of a replay") from error
        # Nothing is written again: of a death in between, an empty file would be left, whose next
        # replay is another producer.
        os.truncate(self._path, sum(len(line) + 1 for line in whole))
        return str(first["producer"])

    def _take_line(self, entry: Mapping[str, Any]) -> None:
        if "plan" in entry:
            self._planned += [
                [PlannedFile(str(name), int(size), int(rows)) for name, size, rows in unit]
                for unit in entry["plan"]
            ]
        else:
            self.done.add(entry["unit"])

    def units(self, files: Sequence[WrittenFile]) -> list[ReplayUnit]:
        """Those that were planned before, as they were, and behind them those of new files: a file
        that joins a unit would rename it, and the broker would take its rows for new ones.

        Raises `JobError` if a planned file isn't there, or isn't what it was."""
        by_name = {os.path.relpath(file.path, self._source): file for file in files}
        planned = {file.name: file for unit in self._planned for file in unit}
        if gone := sorted(planned.keys() - by_name.keys()):
            raise JobError(
                f"{self._source} has no file {gone[0]} any more, which this replay began with: "
                "the same rows in other files would be published twice"
            )
        for name, before in planned.items():
            _refuse_other_rows(by_name[name], before)
        units = [
            unit_of(self._source, [by_name[file.name] for file in unit]) for unit in self._planned
        ]
        new = units_of(self._source, [by_name[name] for name in by_name if name not in planned])
        if new:
            # Before the first of them is published.
            plan = [[self._planned_file(by_name, file) for file in unit.files] for unit in new]
            self._append({"plan": plan})
            self._planned += plan
        return units + new

    def _planned_file(self, by_name: Mapping[str, WrittenFile], path: Path) -> PlannedFile:
        name = os.path.relpath(path, self._source)
        return PlannedFile(name, by_name[name].bytes, by_name[name].rows)

    def note(self, unit: ReplayUnit, rows: int) -> None:
        self._append({"unit": unit.key, "rows": rows})
        self.done.add(unit.key)

    def _append(self, entry: Mapping[str, object]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _entry(line: bytes) -> dict[str, Any]:
    """Of a line of the progress file; empty if the line is none."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _refuse_other_rows(file: WrittenFile, before: PlannedFile) -> None:
    if (file.bytes, file.rows) != (before.bytes, before.rows):
        raise JobError(
            f"{file.path} has {file.rows} rows in {file.bytes} bytes, and had {before.rows} in "
            f"{before.bytes} when this replay began with it: other rows under the same numbers "
            "would be taken for repeats, and be lost"
        )


# --- how it is published ---


def replay(
    spark: SparkSession, job: ReplayJob, *, show: Callable[[ReplayTally, int], None]
) -> ReplayTally:
    """Returns when all rows are confirmed. `show` is called after each query, with how many units
    there are."""
    listed = [file_to_replay(path) for path in files_of_table(job.source)]
    files = [file for file in listed if file.rows]
    if job.where and files and not has_begun(job.progress, resume=job.resume):
        # Before the progress file is there, which would be of this condition.
        first, *_ = units_of(job.source, files)
        refuse_unsteady(_reader_of(spark, first).parquet(*_patterns(first)), job.where)
    _check_there(job)
    with _alone(job.progress):
        return _replay_rest(spark, job, ReplayProgress(job.progress, job), files, show)


@contextmanager
def _alone(progress: Path) -> Iterator[None]:
    """Two that go on with one progress file would each plan the files that are new, as they see
    them: a row would be published under two numbers."""
    begin_folder(progress.absolute().parent)
    lock = progress.with_name(f"{progress.name}.lock")
    with locked(lock, wait_s=0, whose="the replay's"):
        yield


def _replay_rest(
    spark: SparkSession,
    job: ReplayJob,
    progress: ReplayProgress,
    files: Sequence[WrittenFile],
    show: Callable[[ReplayTally, int], None],
) -> ReplayTally:
    """What isn't confirmed yet."""
    units = progress.units(files)
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
    return queries_of(units, units_max=QUERY_UNITS, rows_max=rows_max, bytes_max=QUERY_BYTES)


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
    from pyspark.sql import Observation
    from pyspark.sql import functions as sql

    # One look for all: they have the same, but for the files of a unit that is a query by itself.
    schema = _reader_of(spark, query[0]).parquet(*_patterns(query[0])).schema
    counts = []
    frames = []
    for unit in query:
        frame = _rows_of(spark.read.schema(schema), job, unit)
        frame = frame.select(*(name for name in frame.columns if name in PUBLISHED))
        counts.append(Observation())
        frame = frame.observe(counts[-1], sql.count(sql.lit(1)).alias("rows"))
        frames.append(frame.withColumn(UNIT, sql.lit(unit.key)))
    # In one task, the partitions of a union come in their order.
    whole = _union(frames)
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


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    """In their order. Spark analyses each union anew, with all that is below it: one after the
    other, they would take time by the square of their number."""
    if len(frames) == 1:
        return frames[0]
    half = len(frames) // 2
    return _union(frames[:half]).unionAll(_union(frames[half:]))


def _reader_of(spark: SparkSession, unit: ReplayUnit) -> DataFrameReader:
    """Finds the columns of all its files."""
    return spark.read.option("mergeSchema", _has_different_columns(unit))


def _patterns(unit: ReplayUnit) -> list[str]:
    return [spark_pattern(file) for file in unit.files]


def _has_different_columns(unit: ReplayUnit) -> bool:
    """Whether a look at one file isn't enough: Spark leaves out what that one lacks."""
    first, *others = (pyarrow.parquet.read_schema(file) for file in unit.files)
    return not all(first.equals(other) for other in others)


def _rows_of(reader: DataFrameReader, job: ReplayJob, unit: ReplayUnit) -> DataFrame:
    """In their order, as one partition."""
    frame = reader.parquet(*_patterns(unit))
    if job.where:
        frame = frame.where(job.where)
    if not set(ORDER) <= set(frame.columns):
        return frame.coalesce(1)
    if len(unit.files) > 1:
        return frame.repartition(1).sortWithinPartitions(*ORDER)
    if not is_ordered(unit.files[0]):
        return frame.sortWithinPartitions(*ORDER)
    return frame
