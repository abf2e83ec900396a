"""All rows in one run, with peers that answer without a cluster."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench import rivals
from bench.__main__ import parse
from bench.comparison import run_all
from bench.measure import ClientReport, Point
from bench.report import goals_for
from bench.stats import merged
from rich.console import Console

REPORT = ClientReport(1.0, 100.0, 100, 0, 0.1, 2.0, 3.0, 4.0, 5.0)


class InstantPeer:
    """Answers each question at once, and remembers it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[Point] = []

    def describe(self) -> dict[str, str]:
        return {}

    def broker_pids(self) -> Sequence[int]:
        return ()

    def prepare(self, queues: Sequence[str]) -> None: ...

    def publish(self, point: Point, queues: Sequence[str]) -> ClientReport:
        self.asked.append(point)
        return replace(REPORT, acked=point.count, rate_per_s=10.0 * point.window)

    def remove(self, queues: Sequence[str]) -> None: ...


def test_a_peer_without_queues_is_asked_for_one_and_the_others_for_all(tmp_path: Path) -> None:
    ours, disk = InstantPeer("ringmq"), InstantPeer("disk")
    comparison = rivals.comparison(("ringmq", "disk"), rivals.FULL_ROWS)
    measurements = run_all([ours, disk], comparison, 1, lambda _: None)
    asked = {point for point in ours.asked if point in rivals.FULL_ROWS}
    assert asked == set(rivals.FULL_ROWS)
    assert {(point.queues, point.consumed) for point in disk.asked} == {(1, False)}

    said = io.StringIO()
    comparison.print_report(Console(file=said, width=140), measurements, comparison.points)
    last_table = said.getvalue().partition("all rows")[2]
    (ten_queues,) = (line for line in last_table.splitlines() if "window 1, 10 queues" in line)
    assert ten_queues.split()[-1] == "-"
    comparison.draw(tmp_path / "rows.png", measurements, comparison.points)
    assert (tmp_path / "rows.png").stat().st_size > 0
    result = comparison.to_json("name", {}, measurements, comparison.points)
    assert len(result["summary"]) == len(measurements)


def test_a_window_asked_for_by_name_is_measured_instead_of_the_rows() -> None:
    assert parse([]).window is None
    assert parse(["--window", "7"]).window == 7


def test_each_row_has_its_goals() -> None:
    wanted = {
        (point.queues, point.window, point.size_bytes, point.consumed): [
            goal.text() for goal in goals_for(point)
        ]
        for point in rivals.FULL_ROWS
    }
    assert all(wanted.values())
    assert wanted[1, 1, 1024, False] == [
        "at most 0.8 x rabbitmq",
        "at most 1 x rabbitmq-quorum",
        "at most 900",
    ]
    assert wanted[100, 10, 1024, False] == ["at least 8 x rabbitmq"]
    assert wanted[1, 1000, 1024, True] == ["at least 80000"]
    assert wanted[1, 100, 64 * 1024, False] == ["at least 0.8 x raw-ring"]


def test_publishers_at_the_same_time_count_as_one() -> None:
    slow = replace(REPORT, seconds=4.0, p50_ms=8.0, max_ms=9.0)
    assert merged([REPORT]) == REPORT
    both = merged([REPORT, slow])
    assert (both.rate_per_s, both.acked, both.p50_ms, both.max_ms) == (50.0, 200, 5.0, 9.0)
