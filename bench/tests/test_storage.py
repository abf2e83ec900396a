"""The bench of the engine: what it reckons, how it watches, and that it cleans up."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from bench import procs
from bench.measure import BenchError
from bench.storage import command, report
from bench.storage.cases import CASES, Case, Goal, Variant, scaled
from bench.storage.context import Context, evict
from bench.storage.driver import Bodies, joined
from bench.storage.events import Event, EventReader, Record, Sample, Teller, rate_between
from bench.storage.outcome import Outcome, backlog_figures, garbage_figures, outcome, thinned
from bench.storage.plot import panels_of, rates_of, save
from bench.storage.watch import Watched
from rich.console import Console


def event(kind: str, phase: str, at_s: float, done: int = 0, **figures: float) -> Event:
    return Event(kind, phase, at_s, done, 1000, figures)


def phase(name: str, start_s: float, points: list[tuple[float, int]]) -> list[Event]:
    *middle, last = points
    return [
        event("begin", name, start_s),
        *(event("progress", name, start_s + at, done) for at, done in middle),
        event("end", name, start_s + last[0], last[1]),
    ]


# -- events


def test_events_carry_the_phase_and_total_of_their_begin() -> None:
    reader = EventReader()
    begin = reader.read('{"event": "begin", "phase": "fill", "total": 8, "at": 1.5}')
    progress = reader.read('{"event": "progress", "done": 3, "at": 2, "live_bytes": 7}')
    assert begin == Event("begin", "fill", 1.5, 0, 8, {})
    assert progress == Event("progress", "fill", 2, 3, 8, {"live_bytes": 7.0})


@pytest.mark.parametrize("line", ["", "hello\n", "{not json", '{"seconds": 1.0}'])
def test_lines_that_are_no_events_are_passed_over(line: str) -> None:
    assert EventReader().read(line) is None


def test_what_a_teller_says_is_read_back_and_progress_not_too_often(
    capsys: pytest.CaptureFixture[str],
) -> None:
    teller = Teller()
    teller.begin("fill", 10)
    for done in range(10):
        teller.progress(done)
    teller.end(10, more=4)
    teller.result(peak=5)
    reader = EventReader()
    events = [reader.read(line) for line in capsys.readouterr().out.splitlines()]
    kinds = [each.event for each in events if each is not None]
    assert kinds == ["begin", "end", "result"]
    end = events[1]
    assert end is not None
    assert end.figures["more"] == 4
    assert 0 <= end.figures["cpu_s"] < 5


# -- figures


def test_a_rate_is_taken_between_shares_of_the_messages_not_of_the_time() -> None:
    # 100/s for the first half of the messages, 50/s for the second.
    progress = [(10.0, 0), (11.0, 100), (15.0, 500), (17.0, 600), (25.0, 1000)]
    assert rate_between(progress, 0, 0.1) == pytest.approx(100)
    assert rate_between(progress, 0.9, 1) == pytest.approx(50)
    assert rate_between(progress, 0, 1) == pytest.approx(1000 / 15)


def test_a_rate_is_reckoned_with_no_more_than_begin_and_end() -> None:
    assert rate_between([(0.0, 0), (4.0, 100)], 0.9, 1) == pytest.approx(25)


def sample(at_s: float, phase: str, cpu_s: float, rss: int = 0, disk: int = 0) -> Sample:
    return Sample(at_s, phase, cpu_s, rss, disk)


def test_cpu_of_a_phase_is_what_it_said_or_what_was_seen_at_its_edges() -> None:
    record = Record(
        [event("begin", "fill", 1), event("end", "fill", 3)],
        [sample(0.9, "", 5), sample(2, "fill", 6), sample(3.01, "fill", 7.5)],
    )
    assert record.cpu_s("fill") == 2.5
    record.events[1] = event("end", "fill", 3, cpu_s=1.25)
    assert record.cpu_s("fill") == 1.25


def test_figures_of_a_backlog() -> None:
    fill = phase("fill", 100, [(1, 200), (9, 900), (10, 950), (11, 1000)])
    drain = phase("drain", 111, [(4, 1000)])
    record = Record(
        fill + drain,
        [
            sample(100, "fill", 1, disk=1000),
            sample(111, "fill", 3, disk=5_000_000),
            sample(115, "drain", 4, disk=2_000_000),
        ],
        rss_peak_bytes=64 << 20,
    )
    figures = backlog_figures(record, 1000)
    assert figures["publish_per_s"] == pytest.approx(1000 / 11)
    assert figures["publish_last_to_first"] == pytest.approx(50 / 200)
    assert figures["publish_cpu_s_per_million"] == pytest.approx(2000)
    assert figures["drain_per_s"] == 250
    assert figures["drain_to_publish"] == pytest.approx(2.75)
    assert (figures["rss_peak_mib"], figures["disk_most_mb"], figures["disk_end_mb"]) == (64, 5, 2)


def test_garbage_is_what_of_the_disk_is_not_live_but_for_the_start() -> None:
    record = Record(
        [
            event("begin", "churn", 0),
            event("progress", "churn", 1, live_bytes=10),
            event("progress", "churn", 5, live_bytes=100),
            event("end", "churn", 10, live_bytes=100),
            event("begin", "after", 10),
            event("end", "after", 12, live_bytes=100),
        ],
        [
            sample(1.5, "churn", 0, disk=1000),  # 99 %, but before a fifth of the time
            sample(6, "churn", 0, disk=400),
            sample(10.01, "churn", 0, disk=200),
            sample(12, "after", 0, disk=125),
        ],
    )
    figures = garbage_figures(record)
    assert figures["garbage_most"] == pytest.approx(0.75)
    assert figures["garbage_end"] == pytest.approx(0.2)


def test_a_thinned_series_keeps_its_ends() -> None:
    assert thinned([*range(10)], 4) == [0, 3, 6, 9]
    assert thinned([*range(11)], 4) == [0, 3, 6, 9, 10]
    assert thinned([1], 4) == [1]
    empty: list[int] = []
    assert thinned(empty, 4) == []


def test_counts_scale_to_whole_batches_and_never_to_none() -> None:
    assert scaled(5_000_000, 0.02, 5000) == 100_000
    assert scaled(1000, 0.0001, 16) == 16
    assert scaled(10, 0.25) == 2


def test_ranges_that_touch_become_one() -> None:
    assert joined([(1, 2), (3, 3), (5, 9), (10, 11)]) == ((1, 3), (5, 11))
    assert joined([]) == ()


def test_bodies_tell_a_wrong_one() -> None:
    bodies = Bodies(5, 64)
    block = bodies.block(3, 4)
    assert block.count == 4
    for place, body in enumerate(block.bodies()):
        bodies.check(3 + place, body)
    with pytest.raises(AssertionError, match="wrong body at 4"):
        bodies.check(4, block.bodies()[0])


# -- verdicts, report and plots


def outcomes_of(case: str, values: Mapping[str, list[float]], figure: str) -> list[Outcome]:
    return [
        Outcome(case, variant, number, {figure: value})
        for variant, each in values.items()
        for number, value in enumerate(each, start=1)
    ]


def a_case(goal: Goal, *, variants: Mapping[str, Variant] | None = None) -> Case:
    return Case("append", "appending", variants or {}, disk_bytes=0, goals=(goal,))


@pytest.mark.parametrize(
    ("goal", "met"),
    [
        (Goal("mb_per_s", beside="limit", at_least=0.7), True),
        (Goal("mb_per_s", beside="limit", at_least=0.71), False),
        (Goal("mb_per_s", at_least=70), True),
        (Goal("mb_per_s", at_most=69), False),
    ],
)
def test_goals_at_their_bounds(goal: Goal, met: bool) -> None:
    outcomes = outcomes_of("append", {"ringmq": [70, 90, 35], "limit": [100, 100, 50]}, "mb_per_s")
    (verdict,) = report.verdicts(outcomes, [a_case(goal)])
    assert verdict.is_met == met


def test_a_goal_beside_what_did_not_run_is_not_judged() -> None:
    outcomes = outcomes_of("append", {"ringmq": [70]}, "mb_per_s")
    case = a_case(Goal("mb_per_s", beside="limit", at_least=0.7))
    assert report.verdicts(outcomes, [case]) == []


def test_report_and_json_hold_every_case_that_ran() -> None:
    outcomes = outcomes_of("append", {"ringmq": [70, 90], "limit": [100, 125]}, "mb_per_s")
    cases = [a_case(Goal("mb_per_s", beside="limit", at_least=0.7)), *CASES[1:]]
    output = io.StringIO()
    report.print_report(Console(file=output), outcomes, cases, 0.5)
    said = output.getvalue()
    assert "appending" in said
    assert "met" in said
    assert "Scale 0.5" in said
    result = json.loads(json.dumps(report.to_json("n", {"scale": 0.5}, outcomes, cases)))
    assert [row["variant"] for row in result["summary"]] == ["ringmq", "limit"]
    assert result["goals"][0]["met"]
    assert len(result["outcomes"]) == 4


def backlog_outcome(variant: str) -> Outcome:
    record = Record(
        phase("fill", 5, [(1, 100), (2, 300)]) + phase("drain", 7, [(1, 300)]),
        [sample(5, "fill", 0, 1, 1), sample(7, "fill", 1, 2, 2), sample(8, "drain", 2, 1, 1)],
    )
    return outcome("backlog", variant, 1, record, backlog_figures(record, 300))


def test_rates_over_time_are_a_second_or_more_apart() -> None:
    progress = [(0.0, "fill", 0, 0), (0.5, "fill", 60, 0), (1.0, "fill", 100, 0)]
    progress += [(1.5, "fill", 120, 0), (2.5, "drain", 9, 0)]
    assert rates_of(progress, "fill") == [(100, 100.0), (120, 40.0)]


def test_what_ran_is_drawn(tmp_path: Path) -> None:
    outcomes = [backlog_outcome("ringmq"), backlog_outcome("rabbitmq")]
    outcomes += outcomes_of("append", {"ringmq": [70], "limit": [100]}, "mb_per_s")
    assert len(panels_of(outcomes)) == 4
    save(tmp_path / "plot.png", outcomes)
    assert (tmp_path / "plot.png").stat().st_size > 1000


# -- the run


def test_variants_take_turns_and_a_failed_one_does_not_stop_the_others() -> None:
    def never(_context: Context, _round: int, _scale: float) -> Outcome:
        raise AssertionError

    case = Case("append", "t", {"ringmq": never, "rabbitmq": never, "limit": never}, disk_bytes=0)
    ran: list[tuple[str, int]] = []

    def run(case: Case, variant: str, number: int) -> Outcome:
        ran.append((variant, number))
        if ran == [("ringmq", 1)]:
            raise BenchError("no luck")
        return Outcome(case.name, variant, number, {})

    said: list[str] = []
    outcomes, failures = command.run_cases([case], lambda _: 2, 1, False, run, said.append)
    assert ran == [("ringmq", 1), ("limit", 1), ("ringmq", 2), ("limit", 2)]
    assert [(each.variant, each.round) for each in outcomes] == ran[1:]
    assert failures == ["round 1 of 2, append, ringmq: no luck"]


def test_a_case_that_would_fill_the_disk_is_refused_with_both_figures(tmp_path: Path) -> None:
    case = Case("append", "t", {}, disk_bytes=10**18)
    with pytest.raises(BenchError, match=r"append wants 1000000001\.0 GB free .* there are"):
        command.run_variant(case, "ringmq", 1, scale=1, base=tmp_path, say=lambda _: None)


@pytest.mark.parametrize("fails", [False, True])
def test_a_variant_leaves_no_directory_behind(tmp_path: Path, fails: bool) -> None:
    def run(context: Context, number: int, _scale: float) -> Outcome:
        (context.directory / "data").mkdir()
        (context.directory / "data" / "file").write_bytes(b"x")
        if fails:
            raise BenchError("no luck")
        return Outcome("append", "ringmq", number, {})

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


# -- watching


def watched(tmp_path: Path, program: str) -> Watched:
    return Watched([sys.executable, "-u", "-c", program], tmp_path / "log")


def follow(watching: Watched, record: Record, directory: Path, *, deadline_s: float = 20) -> None:
    watching.follow(
        record,
        roots=[watching.process.pid],
        directory=directory,
        until="end",
        deadline_s=deadline_s,
        say=lambda _: None,
    )


def test_a_process_is_sampled_at_the_edges_of_its_phases_and_killed_after(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(100_000))
    program = (
        "import time\n"
        'print(\'{"event": "begin", "phase": "fill", "total": 2, "at": 1}\')\n'
        'print(\'{"event": "end", "done": 2, "at": 2}\')\n'
        "time.sleep(60)"
    )
    record = Record()
    with watched(tmp_path, program) as watching:
        follow(watching, record, tmp_path)
        assert watching.process.poll() is None
    assert watching.process.returncode == -9
    assert record.seconds("fill") == 1
    assert len(record.samples) >= 2
    assert all(each.phase == "fill" for each in record.samples[-2:])
    assert record.samples[-1].disk_bytes >= 100_000
    assert record.rss_peak_bytes >= record.samples[-1].rss_bytes > 1 << 20


def test_a_process_that_ends_early_is_quoted(tmp_path: Path) -> None:
    with (
        watched(tmp_path, "raise SystemExit('out of luck')") as watching,
        pytest.raises(BenchError, match=r"ended with 1: out of luck"),
    ):
        follow(watching, Record(), tmp_path)


def test_a_process_that_hangs_meets_its_deadline(tmp_path: Path) -> None:
    with (
        watched(tmp_path, "import time; time.sleep(60)") as watching,
        pytest.raises(BenchError, match="isn't done in time"),
    ):
        follow(watching, Record(), tmp_path, deadline_s=0.1)
    assert watching.process.returncode == -9


def test_disk_use_counts_what_is_below_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("x", "a/y"):
        with (tmp_path / name).open("wb") as file:
            file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
    assert 2 << 20 <= procs.disk_use_bytes(tmp_path) < 3 << 20
    assert procs.disk_use_bytes(tmp_path / "none") == 0


def test_the_use_of_a_tree_is_that_of_its_processes() -> None:
    # In a process of its own: children that other tests have left would be in the sum.
    code = """
import os
from bench import procs

use = procs.tree_use([os.getpid()])
assert use.rss_peak_bytes >= use.rss_bytes > 10 << 20, use
assert use.cpu_s > 0, use
assert procs.own_rss_peak_bytes() >= use.rss_bytes, use
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_evicting_leaves_the_files_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * 5000)
    (tmp_path / "link").symlink_to("nowhere")
    evict(tmp_path)
    assert (tmp_path / "a" / "file").read_bytes() == b"x" * 5000


@pytest.mark.slow
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
