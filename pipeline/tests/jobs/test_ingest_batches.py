"""What an ingest does with a batch, and how it reads Spark's progress. No Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringmq_pipeline.jobs import ingest as job_module
from ringmq_pipeline.jobs.decoding import Decoded
from ringmq_pipeline.jobs.ingest import Ingest, IngestTally
from ringmq_pipeline.offsets import QueueOffset, to_json
from ringmq_pipeline.sinks.batches import SKIPPED, Committed, TableBatch, WriteFiles


class Frame:
    """Of a batch; `read`: how often Spark would have read it."""

    def __init__(self) -> None:
        self.read = 0

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
    def __init__(self, frame: Frame, has_it: bool) -> None:
        self._frame = frame
        self._has_it = has_it

    def commit(self, batch: TableBatch, write: WriteFiles) -> Committed:
        if self._has_it:
            return SKIPPED
        self._frame.read += 1
        return Committed(rows=1)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Callable[[Ingest, Frame], None]:
    def decode(frame: Any, *how: object) -> Decoded:
        return Decoded(frame, frame)

    monkeypatch.setattr(job_module, "decode", decode)
    monkeypatch.setattr(job_module, "query_of", lambda checkpoint: "query")
    monkeypatch.setattr(job_module, "ranges_of", lambda checkpoint, number: ())

    def run(job: Ingest, frame: Any) -> None:
        job_module._process(job, IngestTally())(frame, 3)

    return run


@pytest.mark.parametrize(("table_has", "quarantine_has"), [*product((False, True), repeat=2)])
def test_a_batch_with_state_is_read_even_if_its_tables_have_it(
    process: Callable[[Ingest, Frame], None], table_has: bool, quarantine_has: bool
) -> None:
    """Spark writes what a batch adds to the state while it reads the batch."""
    frame = Frame()
    table, quarantine = Table(frame, table_has), Table(frame, quarantine_has)
    process(Ingest({}, table, Path("c"), quarantine=quarantine, dedupe_window="1 hour"), frame)
    assert frame.read >= 1


def test_a_batch_without_state_is_not_read_if_its_table_has_it(
    process: Callable[[Ingest, Frame], None],
) -> None:
    """Its messages may be gone by now."""
    frame = Frame()
    process(Ingest({}, Table(frame, True), Path("c")), frame)
    assert frame.read == 0


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
