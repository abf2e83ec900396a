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
from ringmq_pipeline.jobs.checkpoints import committed_end, query_of, ranges_of
from ringmq_pipeline.jobs.decoding import Decoding, decode, without_repeats
from ringmq_pipeline.leases import SourceLeasedError
from ringmq_pipeline.offsets import from_json
from ringmq_pipeline.session import spark_name
from ringmq_pipeline.sinks import Sink
from ringmq_pipeline.sinks.batches import Committed, TableBatch, WriteFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

# Spark wants whole seconds.
POLL_S = 1


@dataclass(frozen=True, slots=True)
class Ingest:
    """`source`: options of the source `ringmq`. `every_s`: between triggers; None: what is there
    now, and then the end. `quarantine`: for bodies that can't be decoded."""

    source: Mapping[str, str]
    table: Sink
    checkpoint: Path
    every_s: float | None = None
    decoding: Decoding = Decoding.NONE
    value_schema: str = ""
    quarantine: Sink | None = None
    dedupe_window: str = ""


@dataclass(slots=True)
class IngestTally:
    """What an ingest has done so far; `lag`: positions behind, as of the last trigger."""

    batches: int = 0
    batches_skipped: int = 0
    rows: int = 0
    bytes: int = 0
    rows_quarantined: int = 0
    lag: int = 0
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
                break
        _note_lag(query, tally)
        show(tally)
    finally:
        query.stop()


def _process(job: Ingest, tally: IngestTally) -> Callable[[DataFrame, int], None]:
    def process(frame: DataFrame, number: int) -> None:
        batch = TableBatch(query_of(job.checkpoint), number, ranges_of(job.checkpoint, number))
        decoded = decode(frame, job.decoding, job.value_schema)
        if decoded.bad is None or job.quarantine is None:
            done = job.table.commit(batch, files_of(decoded.good))
            tally.add(done)
            is_read = not done.skipped
        else:
            # Both are read from it: else the queue would be read twice.
            frame.persist()
            try:
                # First: a batch that is in the table is done.
                bad = job.quarantine.commit(batch, files_of(decoded.bad))
                tally.rows_quarantined += bad.rows
                done = job.table.commit(batch, files_of(decoded.good))
                tally.add(done)
            finally:
                frame.unpersist()
            is_read = not (bad.skipped and done.skipped)
        if job.dedupe_window and not is_read:
            # Spark keeps the ids that it has seen only if the batch is read.
            frame.write.format("noop").mode("overwrite").save()

    return process


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
