"""From queues to a table, each (queue, position) once.

What is durable when: the batch's files and its commit in the table; then Spark's commit log; then,
with the next trigger, the source acknowledges. Nothing else acknowledges while the query runs. When
it has ended, `leave` acknowledges the end of the last batch in the commit log once more, which is
what the source would do next, and releases the leases for the next query.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ringmq
from ringmq_pipeline import options as source_options
from ringmq_pipeline.ending import end_query
from ringmq_pipeline.jobs.batch_checks import (
    check_batch_time,
    check_clock,
    check_columns,
    check_table,
)
from ringmq_pipeline.jobs.checkpoints import committed_end, query_of, ranges_of
from ringmq_pipeline.jobs.decoding import Decoded, Decoding, decode, without_repeats
from ringmq_pipeline.jobs.ingest_notes import Note, read_note, write_note
from ringmq_pipeline.leases import SourceLeasedError
from ringmq_pipeline.offsets import from_json
from ringmq_pipeline.session import spark_name
from ringmq_pipeline.sinks import Sink
from ringmq_pipeline.sinks.batches import Committed, RowsInTableError, TableBatch, WriteFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

# Of the source: a body that is cut may be another one, or none.
PAYLOAD = "payload"

# Spark wants whole seconds.
POLL_S = 1


@dataclass(frozen=True, slots=True)
class Ingest:
    """`source`: options of the source `ringmq`. `every_s`: between triggers; None: what is there
    now, and then the end. `quarantine`: for bodies that can't be decoded. `table_folder`: where
    `table` is, to look at it before a batch; None: it isn't looked at."""

    source: Mapping[str, str]
    table: Sink
    checkpoint: Path
    every_s: float | None = None
    decoding: Decoding = Decoding.NONE
    value_schema: str = ""
    quarantine: Sink | None = None
    dedupe_window: str = ""
    table_folder: Path | None = None


@dataclass(slots=True)
class IngestTally:
    """What an ingest has done so far; `lag`: positions behind, as of the last trigger.
    `is_interrupted`: it was to take what is there, and was ended before."""

    batches: int = 0
    batches_skipped: int = 0
    rows: int = 0
    bytes: int = 0
    rows_quarantined: int = 0
    lag: int = 0
    is_interrupted: bool = False
    ends: dict[str, int] = field(default_factory=dict)

    def add(self, done: Committed) -> None:
        self.batches += 1
        self.batches_skipped += done.skipped
        self.rows += done.rows
        self.bytes += done.bytes


def ingest(
    spark: SparkSession,
    job: Ingest,
    *,
    show: Callable[[IngestTally], None] = lambda tally: None,
    ends: Callable[[], bool] = lambda: False,
) -> IngestTally:
    """Runs until all is there, until it fails, or until `ends` says so; raises what Spark raises.
    `show` is called now and then."""
    options = source_options.parse(job.source)
    if not options.lease_holder:
        holder = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"
        options = replace(options, lease_holder=holder)
    # Without regard to the letters' case, as Spark takes options: ours comes last.
    source = {**job.source, "leaseHolder": options.lease_holder}
    if (job.checkpoint / "metadata").exists():
        # Of a file that can't be read, Spark doesn't say the name.
        query_of(job.checkpoint)
    if job.dedupe_window:
        check_clock(job.checkpoint)
    tally = IngestTally()
    try:
        _run(spark, job, source, tally, show, ends)
    finally:
        leave(job.checkpoint, options)
    tally.ends = {name: at.position for name, at in committed_end(job.checkpoint).items()}
    return tally


def _run(
    spark: SparkSession,
    job: Ingest,
    source: Mapping[str, str],
    tally: IngestTally,
    show: Callable[[IngestTally], None],
    ends: Callable[[], bool],
) -> None:
    frame = spark.readStream.format("ringmq").options(**source).load()
    if job.dedupe_window:
        frame = without_repeats(frame, job.dedupe_window)
    writer = (
        frame.writeStream.queryName(f"ingest {source['leaseHolder']}")
        .option("checkpointLocation", spark_name(job.checkpoint))
        .foreachBatch(_process(job, tally))
    )
    if job.every_s is None:
        query = writer.trigger(availableNow=True).start()
    else:
        query = writer.trigger(processingTime=f"{job.every_s} seconds").start()
    try:
        while not query.awaitTermination(POLL_S):
            _note_lag(query, tally)
            show(tally)
            if ends():
                tally.is_interrupted = job.every_s is None
                break
        _note_lag(query, tally)
        show(tally)
    finally:
        query.stop()


def _process(job: Ingest, tally: IngestTally) -> Callable[[DataFrame, int], None]:
    def process(frame: DataFrame, number: int) -> None:
        batch = TableBatch(query_of(job.checkpoint), number, ranges_of(job.checkpoint, number))
        decoded = decode(frame, job.decoding, job.value_schema)
        note = _begin(job, batch, decoded)
        if decoded.bad is None or job.quarantine is None:
            done = job.table.commit(batch, files_of(decoded.good))
            is_read = not done.skipped
        else:
            # Both are read from it: else the queue would be read twice.
            frame.persist()
            try:
                # First: a batch that is in the table is done.
                bad = _to_quarantine(job.quarantine, batch, decoded.bad)
                tally.rows_quarantined += bad.rows
                done = job.table.commit(batch, files_of(decoded.good))
            finally:
                frame.unpersist()
            is_read = not (bad.skipped and done.skipped)
        tally.add(done)
        if done.rows or done.skipped:
            write_note(job.checkpoint, replace(note, in_table=number))
        if job.dedupe_window and not is_read:
            # Spark keeps the ids that it has seen only if the batch is read.
            frame.write.format("noop").mode("overwrite").save()

    return process


def _begin(job: Ingest, batch: TableBatch, decoded: Decoded) -> Note:
    """What can be refused is refused before a table has a part of the batch."""
    note = read_note(job.checkpoint)
    decoding = _decoding_of(job)
    note.check_decoding(batch.number, decoding)
    if job.dedupe_window:
        check_batch_time(job.checkpoint, batch)
    if job.table_folder is not None:
        check_table(job.table_folder, note, batch)
        if decoded.bad is not None:
            check_columns(job.table_folder, decoded.good.schema)
    begun = replace(note, batch=batch.number, decoding=decoding)
    write_note(job.checkpoint, begun)
    return begun


def _decoding_of(job: Ingest) -> str:
    """All options that decide which bodies are bad."""
    words = [f"--decode {job.decoding.value}"]
    if job.value_schema:
        words.append(f"--value-schema {job.value_schema!r}")
    # Without regard to the letters' case, as Spark takes options.
    words += [
        f"--option {PAYLOAD}={how}" for name, how in job.source.items() if name.lower() == PAYLOAD
    ]
    return " ".join(words)


def _to_quarantine(quarantine: Sink, batch: TableBatch, bad: DataFrame) -> Committed:
    try:
        return quarantine.commit(batch, files_of(bad))
    except RowsInTableError as error:
        # Its own advice is to begin behind them. The main table would lack good ones before.
        raise error.without_advice() from error


def files_of(frame: DataFrame) -> WriteFiles:
    def write(folder: Path) -> int:
        from pyspark.sql import Observation
        from pyspark.sql import functions as sql

        written = Observation()
        # By default, times are in a type of 12 bytes that Parquet has given up.
        frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        (
            frame.observe(written, sql.count(sql.lit(1)).alias("rows"))
            .write.option("compression", "zstd")
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .mode("errorifexists")
            .parquet(spark_name(folder))
        )
        return int(written.get["rows"])

    return write


def _note_lag(query: StreamingQuery, tally: IngestTally) -> None:
    progress: Any = query.lastProgress
    for source in progress["sources"] if progress else ():
        # As JSON: `null` before the first batch.
        if {source["latestOffset"], source["endOffset"]}.isdisjoint({None, "null"}):
            newest, read = from_json(source["latestOffset"]), from_json(source["endOffset"])
            tally.lag = sum(
                max(0, at.position - read[name].position)
                for name, at in newest.items()
                if name in read
            )


def leave(checkpoint: Path, options: source_options.SourceOptions) -> None:
    """Nothing depends on it: the next query acknowledges the same, and leases expire."""
    try:
        end_query(options, committed_end(checkpoint))
    except (ringmq.RingMQError, SourceLeasedError) as error:
        log.warning("the ingest isn't ended tidily: %s", error)
