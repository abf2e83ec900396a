"""The cases with their bounds, the report that is made of the runs, and wrong words."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.parquet
import pytest
from bench.measure import BenchError
from bench.pipeline import cases, command, report
from bench.pipeline.cases import CASES
from bench.pipeline.measured import Measured, measure
from bench.pipeline.messages import FILE_ROWS, write_table
from bench.pipeline.place import Place
from bench.pipeline.work import WORK
from rich.console import Console

from ringmq_pipeline.schema import arrow_schema


def run_of(case: str, number: int, seconds: float) -> Measured:
    return Measured(case, number, 1000, 1_000_000, seconds, 0.002, 0.001, 0.5)


def test_each_case_has_its_work_and_comes_after_its_bounds() -> None:
    names = [case.name for case in CASES]
    assert set(names) == set(WORK)
    assert len(names) == len(set(names))
    for case in CASES:
        assert all(names.index(bound) < names.index(case.name) for bound in case.bounds)


def test_the_report_sets_each_case_beside_its_bounds_of_the_same_round(tmp_path: Path) -> None:
    runs = [
        *(run_of(cases.REPLAY, number, seconds) for number, seconds in ((1, 0.1), (2, 0.4))),
        *(run_of(cases.DISCARDED, number, seconds) for number, seconds in ((1, 0.05), (2, 0.2))),
    ]
    said = io.StringIO()
    report.print_report(Console(file=said), runs)
    assert "0.50 x table to no queue" in said.getvalue()
    assert "missed  replay: messages/s at least 50000, is 6250 (2500 - 10000)" in said.getvalue()
    content = report.to_json("name", {"rounds": 2}, runs)
    [summary] = [each for each in content["summary"] if each["case"] == cases.REPLAY]
    assert summary["job_cpu_us"]["median"] == pytest.approx(2.0)
    assert [goal["met"] for goal in content["goals"]] == [False]
    report.draw(tmp_path / "picture.png", runs)
    assert (tmp_path / "picture.png").stat().st_size


def test_a_case_that_did_another_number_of_messages_fails_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(WORK, cases.INGEST, lambda _place: 9)
    place = cast(Place, SimpleNamespace(pids=[], size=1024))
    assert measure(place, cases.INGEST, 1, 9).bytes == 9 * 1024
    with pytest.raises(BenchError, match="ingest: 9 messages, not 10"):
        measure(place, cases.INGEST, 1, 10)


def test_the_replayed_table_has_positions_without_a_gap(tmp_path: Path) -> None:
    write_table(tmp_path / "table", FILE_ROWS + 10, 8)
    files = sorted((tmp_path / "table").iterdir())
    tables = [pyarrow.parquet.read_table(file) for file in files]
    assert [table.num_rows for table in tables] == [FILE_ROWS, 10]
    positions = pyarrow.concat_tables(tables)["position"].to_pylist()
    assert positions == [*range(FILE_ROWS + 10)]
    assert tables[0].schema.names == arrow_schema(include_headers=False).names


def test_cases_that_read_a_queue_have_it_filled() -> None:
    parsed = command.parse(["--only", f"{cases.READ_ARROW}; {cases.SCAN}"])
    needed: Any = command._needed(parsed.only)
    assert needed == {cases.REPLAY, cases.PUBLISHED}


def test_wrong_words_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--only", "kafka"], ["--rounds", "0"], ["--count", "3"], ["--save", "a/b"]):
        with pytest.raises(SystemExit):
            command.parse(words)
        assert "error:" in capsys.readouterr().err
