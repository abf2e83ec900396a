"""What each case does, and how many messages it did it with."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path

import pyarrow.parquet
from pyspark import TaskContext
from pyspark.sql import DataFrame

from bench.measure import BenchError
from bench.pipeline import cases
from bench.pipeline.measured import Done
from bench.pipeline.place import QUEUE, Place
from ringmq_pipeline.jobs.ingest import Ingest, files_of, ingest
from ringmq_pipeline.jobs.replay import (
    QUERY_BYTES,
    QUERY_ROWS,
    QUERY_UNITS,
    ReplayJob,
    replay,
)
from ringmq_pipeline.jobs.replay_units import queries_of, units_of
from ringmq_pipeline.jobs.scan import counts
from ringmq_pipeline.jobs.stores import OK, pieces_of
from ringmq_pipeline.sinks import sink_for
from ringmq_pipeline.sinks.batches import file_of

PUBLISHED_QUEUE, FAILING_QUEUE = "published", "failing"
# Of a table's files, so many are replayed by tasks that fail.
FAILING_FILES = 2
READ_BYTES = 1 << 20

Work = Callable[[Place], Done]


def read_arrow(place: Place) -> Done:
    return _read(place, "arrow")


def read_proto(place: Place) -> Done:
    return _read(place, "proto")


def _read(place: Place, encoding: str) -> Done:
    frame = (
        place.spark.read.format("ringmq")
        .options(endpoints=place.endpoints, queue=QUEUE, encoding=encoding)
        .option("minPartitions", str(place.tasks))
        .load()
    )
    _discard(frame)
    # Spark has no count of rows that its own nothing took; the client has the queue's.
    return Done(place.client.reader(QUEUE).stat().messages)


def read_generated(place: Place) -> Done:
    _discard(_generated(place))
    return Done(place.count)


def read_by_client(place: Place) -> Done:
    reader = place.client.reader(QUEUE)
    stat = reader.stat()
    return Done(
        sum(
            piece.rows.num_rows
            for piece in reader.browse_arrow(stat.first, stat.end, columns_by_node=True)
            if piece.rows is not None
        )
    )


@contextmanager
def _removed(folder: Path) -> Iterator[Path]:
    """Also after a failure: other cases go on in the same place."""
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ingest_queue(place: Place) -> Done:
    with _removed(place.folder / "ingested") as folder:
        job = Ingest(
            source={
                "endpoints": place.endpoints,
                "queues": QUEUE,
                "minPartitions": str(place.tasks),
            },
            table=sink_for("delta", folder / "table"),
            checkpoint=folder / "checkpoint",
        )
        rows = ingest(place.spark, job).rows
        left = place.client.reader(QUEUE).stat().messages
    if left:
        raise BenchError(f"the ingest has left {left} messages in the queue")
    return Done(rows)


def write_generated(place: Place) -> Done:
    with _removed(place.folder / "generated") as folder:
        files_of(_generated(place))(folder)
    return Done(place.count)


def replay_table(place: Place) -> Done:
    return _replay(place, place.table, QUEUE)


def replay_with_failures(place: Place) -> Done:
    """Every task publishes half of its rows, and fails."""
    files = sorted(place.table.iterdir())[:FAILING_FILES]
    rows = sum(pyarrow.parquet.read_metadata(file).num_rows for file in files)
    half = pyarrow.parquet.read_metadata(files[0]).num_rows // 2

    def fails_at_first(position: int) -> bool:
        """Here, so that the workers get it by value."""
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0 and position % half == half - 1:
            raise RuntimeError("planned")
        return True

    place.spark.udf.register("fails_at_first", fails_at_first, "boolean")
    with _removed(place.folder / "few") as few:
        few.mkdir()
        for file in files:
            (few / file.name).symlink_to(file)
        done = _replay(place, few, FAILING_QUEUE, "fails_at_first(position)")
    if done.messages != rows:
        raise BenchError(f"of {rows} rows, {done.messages} were published")
    return done


def _replay(place: Place, table: Path, queue: str, where: str = "") -> Done:
    """Raises `BenchError` if messages are missing."""
    place.declare(queue)
    noted = place.folder / "progress"
    sink = {"endpoints": place.endpoints, "queue": queue}
    job = ReplayJob(table, sink, noted, where=where)
    try:
        rows = replay(place.spark, job, show=lambda _tally, _units: None).rows
    finally:
        noted.unlink(missing_ok=True)
    found = place.client.reader(queue).stat().messages
    if found < rows:
        raise BenchError(f"{rows} rows were published to {queue!r}, and {found} are there")
    return Done(rows, duplicates=found - rows)


def write_to_nothing(place: Place) -> Done:
    """The replay's Spark job, as many files at a time, with a sink that keeps nothing."""
    files = [file_of(path) for path in sorted(place.table.iterdir())]
    units = units_of(place.table, files)
    bounds = {"units_max": QUERY_UNITS, "rows_max": QUERY_ROWS, "bytes_max": QUERY_BYTES}
    for query in queries_of(units, **bounds):
        frames = [place.spark.read.parquet(file.as_uri()) for unit in query for file in unit.files]
        whole = reduce(DataFrame.unionAll, frames).coalesce(1)
        whole.write.format("nothing").mode("append").save()
    return Done(place.count)


def publish_by_client(place: Place) -> Done:
    """It stays for the scan."""
    place.declare(PUBLISHED_QUEUE)
    with place.client.publisher(PUBLISHED_QUEUE) as publisher:
        for file in sorted(place.table.iterdir()):
            bodies = pyarrow.parquet.read_table(file, columns=["body"])["body"]
            publisher.publish_batch(bodies.to_pylist())
    return Done(place.count)


def scan_store(place: Place) -> Done:
    """As the verb `scan` does."""
    found = counts(pieces_of(place.spark, _stores(place))).collect()
    bad = [row for row in found if row["status"] not in (OK, "torn")]
    if bad:
        raise BenchError(f"a store of a node that was stopped has findings: {bad[0]}")
    return Done(int(sum(row["rows"] for row in found if row["status"] == OK)))


def read_files(place: Place) -> Done:
    """All bytes of the directory and their CRC-32, in this process."""
    [folder] = _stores(place).values()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                while data := file.read(READ_BYTES):
                    zlib.crc32(data)
    return Done(place.count)


def _stores(place: Place) -> dict[str, Path]:
    """Of the first node alone: the others have the same."""
    name = place.cluster.nodes[0].node
    return {name: place.cluster.directory / name}


def _generated(place: Place) -> DataFrame:
    words = {"rows": str(place.count), "size": str(place.size), "tasks": str(place.tasks)}
    return place.spark.read.format("generated").options(**words).load()


def _discard(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


WORK: dict[str, Work] = {
    cases.PUBLISHED: publish_by_client,
    cases.DISCARDED: write_to_nothing,
    cases.REPLAY: replay_table,
    cases.TASKS_FAIL: replay_with_failures,
    cases.GENERATED: read_generated,
    cases.CLIENT: read_by_client,
    cases.READ_ARROW: read_arrow,
    cases.READ_PROTO: read_proto,
    cases.TO_PARQUET: write_generated,
    cases.INGEST: ingest_queue,
    cases.BARE_READ: read_files,
    cases.SCAN: scan_store,
}
