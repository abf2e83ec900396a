"""What an ingest does with a batch, and how it reads Spark's progress. No Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pyarrow
import pytest
from deltalake import write_deltalake
from power_cuts import Synced
from pyspark.sql.types import StringType, StructField, StructType
from spark_checkpoints import checkpoint_of

from ringmq_pipeline.errors import JobError
from ringmq_pipeline.jobs import ingest as job_module
from ringmq_pipeline.jobs.decoding import Decoded, Decoding
from ringmq_pipeline.jobs.ingest import Ingest, IngestTally, ingest
from ringmq_pipeline.jobs.ingest_notes import FILE, Note, read_note, write_note
from ringmq_pipeline.offsets import QueueOffset, to_json
from ringmq_pipeline.sinks.batches import (
    SKIPPED,
    Committed,
    RowsInTableError,
    TableBatch,
    WriteFiles,
)


class Frame:
    """Of a batch; `read`: how often Spark would have read it."""

    def __init__(self) -> None:
        self.read = 0

    @property
    def schema(self) -> StructType:
        return StructType([StructField("value", StringType())])

    @property
    def write(self) -> Frame:
        return self

    def format(self, kind: str) -> Frame:
        return self

    def mode(self, mode: str) -> Frame:
        return self

    def save(self) -> None:
        self.read += 1

    def persist(self) -> None:
        """Spark's own."""

    def unpersist(self) -> None:
        """Spark's own."""


class Table:
    def __init__(
        self, frame: Frame, has_it: bool = False, fails: Exception | None = None, rows: int = 1
    ) -> None:
        self._frame = frame
        self._rows = rows
        self._has_it = has_it
        self._fails = fails
        self.committed: list[int] = []

    def commit(self, batch: TableBatch, write: WriteFiles) -> Committed:
        if self._fails is not None:
            raise self._fails
        if self._has_it:
            return SKIPPED
        self._frame.read += 1
        self.committed.append(batch.number)
        return Committed(rows=self._rows)


Process = Callable[..., None]


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    def decode(frame: Any, *how: object) -> Decoded:
        return Decoded(frame, frame)

    monkeypatch.setattr(job_module, "decode", decode)

    def run(job: Ingest, frame: Any, number: int = 1) -> None:
        job_module._process(job, IngestTally())(frame, number)

    return run


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return checkpoint_of(tmp_path, 10, 25, 30, done=1)


@pytest.mark.parametrize(("table_has", "quarantine_has"), [*product((False, True), repeat=2)])
def test_a_batch_with_state_is_read_even_if_its_tables_have_it(
    process: Process, checkpoint: Path, table_has: bool, quarantine_has: bool
) -> None:
    """Spark writes what a batch adds to the state while it reads the batch."""
    frame = Frame()
    table, quarantine = Table(frame, table_has), Table(frame, quarantine_has)
    process(Ingest({}, table, checkpoint, quarantine=quarantine, dedupe_window="1 hour"), frame)
    assert frame.read >= 1


def test_a_batch_without_state_is_not_read_if_its_table_has_it(
    process: Process, checkpoint: Path
) -> None:
    """Its messages may be gone by now."""
    frame = Frame()
    process(Ingest({}, Table(frame, True), checkpoint), frame)
    assert frame.read == 0


@pytest.mark.parametrize(
    "other",
    [
        {"decoding": Decoding.TEXT, "value_schema": ""},
        {"value_schema": "id STRING"},
        {"source": {"Payload": "head:10"}},
    ],
)
def test_a_batch_that_a_table_may_have_is_ended_with_its_decoding(
    process: Process, checkpoint: Path, other: dict[str, Any]
) -> None:
    """Else the quarantine skips it by its number, whatever is bad by the other one."""
    frame = Frame()
    full = Table(frame, fails=OSError("the disk is full"))
    quarantine, table = Table(frame), Table(frame)
    first = Ingest(
        {}, full, checkpoint, quarantine=quarantine, decoding=Decoding.JSON, value_schema="id INT"
    )
    second = replace(first, table=table, **other)
    with pytest.raises(OSError, match="full"):
        process(first, frame)
    with pytest.raises(JobError, match="batch 1 was begun with --decode json --value-schema 'id"):
        process(second, frame)
    assert (quarantine.committed, table.committed) == ([1], [])
    process(replace(first, table=table), frame)
    process(second, frame, 2)
    assert table.committed == [1, 2]


def test_a_batch_is_noted_on_the_disk_before_a_table_has_it(
    process: Process, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Looks(Table):
        def commit(self, batch: TableBatch, write: WriteFiles) -> Committed:
            seen.append(
                (synced.lacks(checkpoint / FILE, checkpoint), read_note(checkpoint).decoding)
            )
            return super().commit(batch, write)

    synced = Synced(monkeypatch)
    frame = Frame()
    quarantine = Looks(frame)
    job = Ingest({}, Table(frame), checkpoint, quarantine=quarantine, decoding=Decoding.TEXT)
    process(job, frame)
    assert seen == [([], "--decode text")]


def test_a_batch_that_the_table_would_refuse_is_in_no_quarantine(
    process: Process, checkpoint: Path, tmp_path: Path
) -> None:
    frame = Frame()
    write_deltalake(tmp_path / "table", pyarrow.table({"value": [1]}))
    quarantine, table = Table(frame), Table(frame)
    job = Ingest({}, table, checkpoint, quarantine=quarantine, table_folder=tmp_path / "table")
    with pytest.raises(JobError, match="value: long there, string now"):
        process(job, frame)
    assert (quarantine.committed, read_note(checkpoint)) == ([], Note())


@pytest.mark.parametrize(("has_it", "rows", "noted"), [(False, 1, 1), (True, 1, 1), (False, 0, 0)])
def test_the_newest_batch_with_rows_is_noted_and_a_table_without_it_refused(
    process: Process, checkpoint: Path, tmp_path: Path, has_it: bool, rows: int, noted: int
) -> None:
    frame = Frame()
    write_note(checkpoint, Note(in_table=0))
    process(Ingest({}, Table(frame, has_it, rows=rows), checkpoint), frame)
    assert read_note(checkpoint).in_table == noted
    table = Table(frame)
    with pytest.raises(JobError, match="no batch of this checkpoint"):
        process(Ingest({}, table, checkpoint, table_folder=tmp_path / "other"), frame, 2)
    assert table.committed == []


def test_a_quarantine_that_has_the_rows_is_not_the_tables_to_skip(
    process: Process, checkpoint: Path
) -> None:
    """What the main table lacks would be skipped with them."""
    frame = Frame()
    table, has_them = Table(frame), Table(frame, fails=RowsInTableError(Path("/bad"), "a", 12, 20))
    with pytest.raises(JobError, match=r"^/bad: .*'a'.*12 to 19") as told:
        process(Ingest({}, table, checkpoint, quarantine=has_them), frame)
    assert "startingOffsets" not in str(told.value)
    assert "give another --quarantine" in str(told.value)
    assert table.committed == []


def test_a_batch_that_spark_would_drop_is_in_no_table(process: Process, tmp_path: Path) -> None:
    """Its watermark never falls, also when the clock does."""
    checkpoint = checkpoint_of(tmp_path, 10, 25, 25, done=1, watermark_ms=9000, timestamp_ms=1500)
    frame = Frame()
    table = Table(frame)
    with pytest.raises(JobError, match=r"begins 7\.500 s after now.*another --checkpoint"):
        process(Ingest({}, table, checkpoint, dedupe_window="1 hour"), frame)
    assert (table.committed, frame.read) == ([], 0)
    # It has no messages.
    process(Ingest({}, table, checkpoint, dedupe_window="1 hour"), frame, 2)
    process(Ingest({}, table, checkpoint), frame)
    assert table.committed == [2, 1]


def test_an_ingest_does_not_plan_a_batch_while_the_clock_is_behind_its_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that is planned keeps its time; so waiting helps before."""
    monkeypatch.setattr(job_module, "_run", lambda *parts: pytest.fail("it was started"))
    ahead_ms = int(time.time() * 1000) + 3_600_000
    checkpoint = checkpoint_of(tmp_path, 10, done=1, watermark_ms=ahead_ms)
    source = {"endpoints": "127.0.0.1:1", "queue": "a"}
    job = Ingest(source, Table(Frame()), checkpoint, dedupe_window="1 hour")
    with pytest.raises(JobError, match=r"begins 3\d{3}\.\d+ s after now.* Wait"):
        ingest(None, job)  # type: ignore[arg-type]


def lag(**source: object) -> int:
    tally = IngestTally(lag=7)
    query: Any = SimpleNamespace(lastProgress={"sources": [source]})
    job_module._note_lag(query, tally)
    return tally.lag


def test_lag_is_what_is_there_and_not_read() -> None:
    newest, read = (json.dumps(to_json({"a": QueueOffset("id", 0, end)})) for end in (12, 10))
    assert lag(latestOffset=newest, endOffset=read) == 2


@pytest.mark.parametrize("nothing", [None, "null"])
@pytest.mark.parametrize("which", ["latestOffset", "endOffset"])
def test_an_offset_that_spark_does_not_know_yet_leaves_the_lag(
    which: str, nothing: str | None
) -> None:
    known = {"latestOffset": "{}", "endOffset": "{}"}
    assert lag(**known | {which: nothing}) == 7


@pytest.mark.parametrize(("every_s", "interrupted"), [(None, True), (1.0, False)])
def test_an_ingest_of_what_is_there_that_is_ended_before_is_interrupted(
    every_s: float | None, interrupted: bool, tmp_path: Path
) -> None:
    """One that goes on can't end otherwise."""
    spark, tally = MagicMock(), IngestTally()
    writer = spark.readStream.format().options().load().writeStream.queryName().option()
    query = writer.foreachBatch().trigger().start()
    query.lastProgress = None
    job = Ingest({}, Table(Frame()), tmp_path, every_s=every_s)
    for is_done in (True, False):
        query.awaitTermination.return_value = is_done
        job_module._run(spark, job, {"leaseHolder": "me"}, tally, lambda _: None, lambda: True)
        assert tally.is_interrupted == (interrupted and not is_done)
    assert query.stop.call_count == 2
