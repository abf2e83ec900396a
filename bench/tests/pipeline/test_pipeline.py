"""The cases with their bounds, the report that is made of the runs, and wrong words."""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import NoReturn, cast

import pyarrow.parquet
import pytest
from bench.measure import BenchError
from bench.pipeline import cases, command, histories, report, rounds, saved
from bench.pipeline.cases import CASES
from bench.pipeline.measured import Done, Measured, Which, measure
from bench.pipeline.messages import FILE_ROWS, write_table
from bench.pipeline.notes import Notes
from bench.pipeline.place import Place
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

    def run_rows(parsed: argparse.Namespace, folder: Path, notes: Notes) -> None:
        notes.take(run)
        notes.complete(parsed.rows)

    monkeypatch.setattr(command, "run_rows", run_rows)
    said = io.StringIO()
    parsed = command.parse(["--rows", run.row, "--save", "saved", "--json"])
    command.bench(parsed, Console(file=said, width=200))
    assert said.getvalue().splitlines()[-1] == f"written: results/saved{kinds}"
    assert (tmp_path / "results" / "saved.png").exists() == (".png" in kinds)


def test_a_row_takes_its_own_place_in_a_file_and_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "saved.json"

    def save(rows: list[str], fact: str, runs: list[Measured], *, complete: bool = True) -> None:
        facts = {row: {"started": fact, "complete": complete} for row in rows}
        saved.merged(path, facts, runs).write(path)

    def rows_of_file() -> dict[str, str]:
        return {row: each["started"] for row, each in json.loads(path.read_text())["rows"].items()}

    scan, read_first = run_of(cases.SCAN, 1, 1.0), run_of(cases.READ_ARROW, 1, 1.0)
    save([cases.SCANS, cases.READS], "first", [scan, read_first])
    again = run_of(cases.READ_ARROW, 1, 3.0)
    save([cases.READS], "second", [again])
    assert saved.merged(path, {}, []).runs == [scan, again]
    assert rows_of_file() == {cases.SCANS: "first", cases.READS: "second"}
    # A run that was interrupted takes only the place of another one like it.
    replays = [run_of(cases.REPLAY, number, 1.0) for number in (1, 2)]
    save([cases.READS, cases.REPLAYS], "third", [read_first, replays[0]], complete=False)
    save([cases.REPLAYS], "fourth", [replays[1]], complete=False)
    assert saved.merged(path, {}, []).runs == [scan, again, replays[1]]
    assert rows_of_file() == {
        cases.SCANS: "first",
        cases.READS: "second",
        cases.REPLAYS: "fourth",
    }


def test_a_file_of_another_benchmark_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "three-nodes.json"
    path.write_text('{"measurements": [{"peer": "ringmq"}]}')
    with pytest.raises(BenchError, match="is no result of this benchmark"):
        notes_of(path, [cases.READS])
    assert path.read_text() == '{"measurements": [{"peer": "ringmq"}]}'


def notes_of(path: Path, rows: list[str], said: list[str] | None = None) -> Notes:
    return Notes(path, rows, {}, (said if said is not None else []).append)


def complete_rows(path: Path) -> dict[str, bool]:
    return {row: each["complete"] for row, each in json.loads(path.read_text())["rows"].items()}


def test_each_measurement_is_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "saved.json"
    notes = notes_of(path, [cases.READS, cases.SIZES])
    notes.take(run_of(cases.READ_ARROW, 1, 1.0))
    assert complete_rows(path) == {cases.READS: False}
    notes.complete([cases.READS])
    notes.take(run_of(cases.INGEST, 1, 1.0, row=cases.SIZES, setting="1 GB"))
    assert complete_rows(path) == {cases.READS: True, cases.SIZES: False}
    assert len(json.loads(path.read_text())["measurements"]) == 2


def test_a_part_that_fails_leaves_the_other_rows(tmp_path: Path) -> None:
    path, said = tmp_path / "saved.json", list[str]()
    notes = notes_of(path, [cases.SCANS, cases.SIZES], said)
    with notes.part([cases.SIZES], "1 GB"):
        notes.take(run_of(cases.INGEST, 1, 1.0, row=cases.SIZES, setting="1 GB"))
        raise RuntimeError("no room")
    notes.complete([cases.SIZES])
    with notes.part([cases.SCANS], "the rounds"):
        notes.take(run_of(cases.SCAN, 1, 1.0))
    notes.complete([cases.SCANS])
    assert complete_rows(path) == {cases.SCANS: True, cases.SIZES: False}
    assert any("RuntimeError: no room" in line for line in said)
    with pytest.raises(BenchError, match="sizes: 1 GB: no room"):
        notes.check()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_ends_the_run_also_if_spark_fails_at_it(
    interrupt: type[BaseException], tmp_path: Path
) -> None:
    def fail_at_the_end() -> NoReturn:
        try:
            raise interrupt
        finally:
            raise RuntimeError("the gateway is gone")

    notes = notes_of(tmp_path / "saved.json", [cases.SCANS])
    with pytest.raises(interrupt), notes.part([cases.SCANS], "the rounds"):
        fail_at_the_end()
    assert not notes.failed


def test_a_run_that_is_interrupted_is_reported_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, folder in {"ROOT": "", "BUILD": "build", "RESULTS": "results"}.items():
        monkeypatch.setattr(command, name, tmp_path / folder)

    def run_rows(parsed: argparse.Namespace, folder: Path, notes: Notes) -> None:
        notes.take(run_of(cases.SCAN, 1, 1.0))
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_rows", run_rows)
    said = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        command.bench(
            command.parse(["--rows", "scan", "--save", "saved", "--json"]),
            Console(file=said, width=200),
        )
    assert "not complete: scan" in said.getvalue()
    assert complete_rows(tmp_path / "results" / "saved.json") == {cases.SCANS: False}


def test_a_case_that_fails_leaves_the_other_rows_of_its_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(place: Place, name: str, which: Which) -> Measured:
        if name == cases.TO_PARQUET:
            raise RuntimeError("no room")
        return run_of(name, which.round, 1.0)

    monkeypatch.setattr(rounds, "_measure", work)
    monkeypatch.setattr(rounds, "_delete_queues", lambda *_: None)
    rows = [cases.READS, cases.INGESTS]
    notes = notes_of(tmp_path / "saved.json", rows)
    for number in (0, 1):
        rounds._round(cast("Place", None), rows, number, notes)
    notes.complete(rows)
    assert {each.case for each in notes.runs} == {
        cases.GENERATED,
        cases.CLIENT,
        cases.READ_ARROW,
        cases.READ_PROTO,
    }
    assert notes.failed.keys() == {cases.INGESTS}
    assert complete_rows(tmp_path / "saved.json") == {cases.READS: True}


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


def test_a_disk_without_room_is_said_first() -> None:
    rounds.check_room(60 * 10**9, 10 * 10**9, 3)
    with pytest.raises(BenchError, match=r"needs 60\.0 GB of disk, and 59\.0 are free"):
        rounds.check_room(59 * 10**9, 10 * 10**9, 3)


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
