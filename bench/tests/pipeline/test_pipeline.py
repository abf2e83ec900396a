"""The cases with their bounds, the report that is made of the runs, and wrong words."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow.parquet
import pytest
from bench.measure import BenchError
from bench.pipeline import cases, command, histories, report, saved
from bench.pipeline.cases import CASES
from bench.pipeline.measured import Done, Measured, Which, measure
from bench.pipeline.messages import FILE_ROWS, write_table
from bench.pipeline.work import WORK
from history.checker import check
from history.records import read
from rich.console import Console

from ringmq_pipeline.schema import arrow_schema


def run_of(
    case: str, number: int, seconds: float, *, row: str = "", setting: str = "", duplicates: int = 0
) -> Measured:
    row = row or next(each.row for each in CASES if each.name == case)
    counts = {"messages": 1000, "duplicates": duplicates, "bytes": 1_000_000}
    costs = {"job_cpu_s": 0.002, "node_cpu_s": 0.001, "others_cores": 0.5}
    return Measured(row, case, number, setting, seconds=seconds, **counts, **costs)  # type: ignore[arg-type]


def said_of(runs: list[Measured]) -> str:
    said = io.StringIO()
    report.print_report(Console(file=said), runs)
    return said.getvalue()


def test_each_case_has_its_work_and_comes_after_its_bounds() -> None:
    names = [case.name for case in CASES]
    assert set(names) == {*WORK, cases.PARSED, cases.VERIFY}
    assert len(names) == len(set(names))
    for case in CASES:
        assert all(names.index(bound) < names.index(case.name) for bound in case.bounds)


def test_each_row_can_be_asked_for_and_has_cases() -> None:
    for row in cases.ROWS:
        assert command.parse(["--rows", row]).rows == [row]
        assert bool(cases.cases_of([row])) == (row not in (cases.SIZES, cases.EXECUTORS))
    for case in (*cases.SIZES_CASES, *cases.EXECUTORS_CASES):
        assert case in WORK


def test_what_the_issue_asks_for_is_a_goal() -> None:
    goals = {case.name: [(goal.figure, goal.text()) for goal in case.goals] for case in CASES}
    assert {name: found for name, found in goals.items() if found} == {
        cases.REPLAY: [(cases.RATE, "at least 50000"), (cases.DUPLICATES, "at most 0")],
        cases.TASKS_FAIL: [(cases.DUPLICATES, "at most 0")],
        cases.READ_ARROW: [(cases.RATE, "at least 500000")],
        cases.READ_PROTO: [(cases.RATE, "at least 300000")],
        cases.INGEST: [(cases.MEGABYTES, "at least 50")],
        cases.SCAN: [(cases.MEGABYTES, "at least 200")],
        cases.VERIFY: [(cases.MESSAGES, "at least 3e+07")],
    }


def test_the_report_sets_each_case_beside_its_bounds_of_the_same_round(tmp_path: Path) -> None:
    runs = [
        *(run_of(cases.REPLAY, number, seconds) for number, seconds in ((1, 0.1), (2, 0.4))),
        *(run_of(cases.DISCARDED, number, seconds) for number, seconds in ((1, 0.05), (2, 0.2))),
    ]
    said = said_of(runs)
    assert "0.50 x table to no queue" in said
    assert "missed  replay: messages/s at least 50000, is 6250 (2500 - 10000)" in said
    content = report.to_json(runs)
    [summary] = [each for each in content["summary"] if each["case"] == cases.REPLAY]
    assert summary["job_cpu_us"]["median"] == pytest.approx(2.0)
    assert [goal["met"] for goal in content["goals"]] == [False, True]
    report.draw(tmp_path / "picture.png", runs)
    assert (tmp_path / "picture.png").stat().st_size


def test_one_duplicate_is_a_goal_missed() -> None:
    assert "met     replay, tasks fail: duplicates at most 0" in said_of(
        [run_of(cases.TASKS_FAIL, 1, 1.0)]
    )
    assert "missed  replay, tasks fail: duplicates at most 0, is 1" in said_of(
        [run_of(cases.TASKS_FAIL, 1, 1.0, duplicates=1)]
    )


def test_settings_stand_side_by_side_and_are_not_judged(tmp_path: Path) -> None:
    runs = [
        run_of(cases.INGEST, 1, seconds, row=cases.SIZES, setting=setting)
        for setting, seconds in (("1 GB", 0.1), ("10 GB", 0.4))
    ]
    said = said_of(runs)
    assert "1 GB" in said
    assert "10 GB" in said
    [line] = [line for line in said.splitlines() if line.strip().startswith(cases.INGEST)]
    # The same processor time in four times the time.
    assert line.split()[-2:] == ["4.00", "1.00"]
    assert report.to_json(runs)["goals"] == []
    assert not report.draw(tmp_path / "picture.png", runs)
    assert not (tmp_path / "picture.png").exists()


@pytest.mark.parametrize(
    ("run", "kinds"),
    [
        (run_of(cases.SCAN, 1, 1.0), ".json and .png"),
        (run_of(cases.INGEST, 1, 1.0, row=cases.SIZES, setting="1 GB"), ".json"),
    ],
    ids=["a picture", "none of settings"],
)
def test_a_run_says_which_files_it_wrote(
    run: Measured, kinds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, folder in {"ROOT": "", "BUILD": "build", "RESULTS": "results"}.items():
        monkeypatch.setattr(command, name, tmp_path / folder)
    monkeypatch.setattr(command, "run_rows", lambda *_: [run])
    said = io.StringIO()
    parsed = command.parse(["--rows", run.row, "--save", "saved", "--json"])
    command.bench(parsed, Console(file=said, width=200))
    assert said.getvalue().splitlines()[-1] == f"written: results/saved{kinds}"
    assert (tmp_path / "results" / "saved.png").exists() == (".png" in kinds)


def test_a_row_takes_its_own_place_in_a_file_and_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "saved.json"

    def save(rows: list[str], fact: str, runs: list[Measured]) -> saved.Result:
        result = saved.merged(path, rows, {"started": fact}, runs)
        path.write_text(json.dumps(result.to_json("saved")))
        return result

    scan = run_of(cases.SCAN, 1, 1.0)
    save([cases.SCANS, cases.READS], "first", [scan, run_of(cases.READ_ARROW, 1, 1.0)])
    again = run_of(cases.READ_ARROW, 1, 3.0)
    result = save([cases.READS], "second", [again])
    assert result.runs == [scan, again]
    assert json.loads(path.read_text())["rows"] == {
        cases.SCANS: {"started": "first"},
        cases.READS: {"started": "second"},
    }


def test_a_file_of_another_benchmark_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "three-nodes.json"
    path.write_text('{"measurements": [{"peer": "ringmq"}]}')
    with pytest.raises(BenchError, match="is no result of this benchmark"):
        saved.merged(path, [], {}, [])


def test_a_case_that_did_another_number_of_messages_fails_the_run() -> None:
    which = Which(cases.INGESTS, cases.INGEST, 1)
    assert measure(which, lambda: Done(9), message_bytes=1024, wanted=9).bytes == 9 * 1024
    with pytest.raises(BenchError, match="ingest: 9 messages, not 10"):
        measure(which, lambda: Done(9), message_bytes=1024, wanted=10)


def test_a_history_is_judged_as_it_was_planted(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    messages = histories.write_history(path, 4000)
    found = check(read(path))
    assert (messages, found.published, found.delivered) == (1000, 1000, 1000)
    assert {each.rule.value: each.count for each in found.violations} == {**histories.PLANTED}


def test_the_replayed_table_has_positions_without_a_gap(tmp_path: Path) -> None:
    write_table(tmp_path / "table", FILE_ROWS + 10, 8)
    files = sorted((tmp_path / "table").iterdir())
    tables = [pyarrow.parquet.read_table(file) for file in files]
    assert [table.num_rows for table in tables] == [FILE_ROWS, 10]
    positions = pyarrow.concat_tables(tables)["position"].to_pylist()
    assert positions == [*range(FILE_ROWS + 10)]
    assert tables[0].schema.names == arrow_schema(include_headers=False).names


def test_rows_that_read_a_queue_have_it_filled() -> None:
    assert cases.needed([cases.READS, cases.SCANS]) == {cases.REPLAY, cases.PUBLISHED}
    assert cases.needed([cases.VERIFIES]) == set()


def test_a_short_run_is_a_default_that_can_be_overridden() -> None:
    assert command.parse([]).sizes_gb == [1.0, 10.0]
    short = command.parse(["--short", "--executors", "3"])
    assert (short.rounds, short.executors, short.rows) == (1, [3], [*cases.ROWS])
    assert short.count < command.parse([]).count


@pytest.mark.parametrize(
    "words",
    [
        ["--rows", "kafka"],
        ["--rounds", "0"],
        ["--count", "3"],
        ["--events", "9"],
        ["--sizes-gb", "1,x"],
        ["--executors", "0"],
        ["--save", "a/b"],
    ],
    ids=" ".join,
)
def test_wrong_words_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parse(words)
    assert "error:" in capsys.readouterr().err
