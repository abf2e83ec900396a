"""All rows in one run, with peers that answer without a cluster."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from bench import report, rivals
from bench.__main__ import parse
from bench.comparison import run_all
from bench.measure import BenchError, ClientReport, Point, measure
from bench.peers.ringmq import RingPeer, handed
from bench.report import goals_for
from bench.stats import merged
from rich.console import Console

from ringmq import ClusterStatus
from ringmq.v1 import admin_pb2 as admin

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

    def handed_bytes(self) -> int | None:
        return None

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
        "at most 2.2",
    ]
    assert wanted[100, 10, 1024, False] == ["at least 8 x rabbitmq", "at most 2.2"]
    assert wanted[1, 1000, 1024, True] == ["at least 80000", "at most 2.2"]
    assert wanted[1, 100, 64 * 1024, False] == ["at least 0.8 x raw-ring", "at most 2.2"]


def test_what_is_handed_to_write_is_bounded_in_each_row() -> None:
    assert all(
        any(goal.figure == "handed" for goal in goals_for(point)) for point in rivals.FULL_ROWS
    )


def test_what_brokers_hand_to_write_is_counted_around_a_run_if_they_count_it() -> None:
    class Counting(InstantPeer):
        written = 700

        def handed_bytes(self) -> int:
            return self.written

        def publish(self, point: Point, queues: Sequence[str]) -> ClientReport:
            self.written += 6 * point.count * point.size_bytes
            return super().publish(point, queues)

    point = Point(count=10, size_bytes=1024, window=1)
    measurements = [
        measure(Counting("ringmq"), point, 1),
        measure(InstantPeer("raw-ring"), point, 1),
    ]
    assert [each.handed_per_body_byte for each in measurements] == [2.0, None]
    said = io.StringIO()
    report.print_report(Console(file=said, width=140), measurements, [point])
    row = next(line for line in said.getvalue().splitlines() if "handed to write/body" in line)
    assert row.split()[-2:] == ["2.00", "-"]
    assert "met     1024 B, window 1: handed to write/body byte at most 2.2" in said.getvalue()
    ours, raw = report.to_json("name", {}, measurements, [point])["summary"]
    assert (ours["handed"]["median"], raw["handed"]) == (2.0, None)
    # The same line of a run that has missed it has no figure of a ring that doesn't count.
    missed = replace(measurements[0], handed_bytes=9 * 10 * 1024)
    (verdict,) = (
        each
        for each in report.verdicts([missed, measurements[1]], [point])
        if each.goal.figure == "handed"
    )
    assert not verdict.is_met
    assert report.beside_raw([missed, measurements[1]], verdict) == ""


def test_all_that_the_stores_of_all_nodes_write_is_handed_over(tmp_path: Path) -> None:
    store = admin.StoreNumbers(
        rounds=9,
        queue_memory_bytes=9,
        message_store_bytes=9,
        journal_bytes_written=1000,
        commit_log_bytes_written=200,
        segment_bytes_written=30,
        message_store_bytes_written=4,
    )
    node = admin.NodeInfo(node="a", resources=admin.Resources(store=store))
    status = admin.GetClusterStatusResponse(nodes=[node, node])
    assert handed("ringmq", ClusterStatus.from_wire(status)) == 2 * 1234
    silent = admin.GetClusterStatusResponse(nodes=[node, admin.NodeInfo(node="b")])
    with pytest.raises(BenchError, match="b hasn't said"):
        handed("ringmq", ClusterStatus.from_wire(silent))
    # Another tree may not count all of it.
    assert RingPeer(tmp_path, tree=tmp_path).handed_bytes() is None


def test_publishers_at_the_same_time_count_as_one() -> None:
    slow = replace(REPORT, seconds=4.0, p50_ms=8.0, max_ms=9.0)
    assert merged([REPORT]) == REPORT
    both = merged([REPORT, slow])
    assert (both.rate_per_s, both.acked, both.p50_ms, both.max_ms) == (50.0, 200, 5.0, 9.0)
