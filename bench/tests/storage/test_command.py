"""A run of cases: turns, failures, disk space, and the directories that it leaves."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from bench.measure import BenchError
from bench.storage import command
from bench.storage.cases import CASES, Case
from bench.storage.context import Context
from bench.storage.round_result import RoundResult


def test_variants_take_turns_and_a_failed_one_does_not_stop_the_others() -> None:
    def never(_context: Context, _round: int, _scale: float) -> RoundResult:
        raise AssertionError

    case = Case("append", "t", {"ringmq": never, "rabbitmq": never, "limit": never}, disk_bytes=0)
    ran: list[tuple[str, int]] = []

    def run(case: Case, variant: str, number: int) -> RoundResult:
        ran.append((variant, number))
        if ran == [("ringmq", 1)]:
            raise BenchError("no luck")
        return RoundResult(case.name, variant, number, {})

    said: list[str] = []
    results, failures = command.run_cases([case], lambda _: 2, 1, False, run, said.append)
    assert ran == [("ringmq", 1), ("limit", 1), ("ringmq", 2), ("limit", 2)]
    assert [(each.variant, each.round) for each in results] == ran[1:]
    assert failures == ["round 1 of 2, append, ringmq: no luck"]


def test_a_case_that_would_fill_the_disk_is_refused_with_both_figures(tmp_path: Path) -> None:
    case = Case("append", "t", {}, disk_bytes=10**18)
    with pytest.raises(BenchError, match=r"append wants 1000000001\.0 GB free .* there are"):
        command.run_variant(case, "ringmq", 1, scale=1, base=tmp_path, say=lambda _: None)


@pytest.mark.parametrize("fails", [False, True])
def test_a_variant_leaves_no_directory_behind(tmp_path: Path, fails: bool) -> None:
    def run(context: Context, number: int, _scale: float) -> RoundResult:
        (context.directory / "data").mkdir()
        (context.directory / "data" / "file").write_bytes(b"x")
        if fails:
            raise BenchError("no luck")
        return RoundResult("append", "ringmq", number, {})

    case = Case("append", "t", {"ringmq": run}, disk_bytes=0)
    try:
        measured = command.run_variant(
            case, "ringmq", 1, scale=1, base=tmp_path, say=lambda _: None
        )
        assert measured.figures["others_cores"] >= 0
    except BenchError:
        assert fails
    assert [*tmp_path.iterdir()] == []


def test_directories_of_killed_runs_are_removed_and_no_others(tmp_path: Path) -> None:
    pid_max = int(Path("/proc/sys/kernel/pid_max").read_text())
    for name in (f"storage-{os.getpid()}", f"storage-{pid_max + 1}", "storage-notes", "run-1"):
        (tmp_path / name).mkdir()
    command.remove_leftovers(tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted(["run-1", f"storage-{os.getpid()}", "storage-notes"])


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("name", ["append-alone", "queues", "recovery"])
def test_a_case_runs_for_real(tmp_path: Path, name: str) -> None:
    (case,) = (case for case in CASES if case.name == name)
    began = time.monotonic()
    measured = command.run_variant(
        case, "ringmq", 1, scale=0.002, base=tmp_path, say=lambda _: None
    )
    assert measured.figures.keys() >= {goal.figure for goal in case.goals}
    assert all(value >= 0 for value in measured.figures.values())
    assert measured.samples
    assert time.monotonic() - began < 60
    assert [*tmp_path.iterdir()] == []
