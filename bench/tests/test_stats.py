from __future__ import annotations

import io
from dataclasses import replace

import pytest
from bench import report
from bench.measure import ClientReport, Measurement, Point
from bench.stats import Spread, paired_ratio, percentile, spread
from rich.console import Console

OPEN = Point(count=1000, size_bytes=1024, window=1000)
ONE = Point(count=100, size_bytes=1024, window=1)


def measurement(
    peer: str, point: Point, round_number: int, *, rate: float, p50: float = 1.0, cpu: float = 1.0
) -> Measurement:
    client = ClientReport(
        seconds=point.count / rate,
        rate_per_s=rate,
        acked=point.count,
        nacked=0,
        client_cpu_s=0.1,
        p50_ms=p50,
        p95_ms=p50,
        p99_ms=p50,
        max_ms=p50,
    )
    return Measurement(peer, point, round_number, client, broker_cpu_s=cpu, others_cores=0.0)


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(0, 1.0), (1, 1.0), (50, 50.0), (50.5, 51.0), (99, 99.0), (100, 100.0)],
)
def test_percentile_is_the_nearest_rank(percent: float, expected: float) -> None:
    assert percentile([float(value) for value in range(1, 101)], percent) == expected


def test_ratios_pair_the_runs_of_a_round_whatever_their_order() -> None:
    ours = [measurement("ringmq", OPEN, n, rate=r) for n, r in ((1, 400), (2, 40), (3, 300))]
    theirs = [measurement("rabbitmq", OPEN, n, rate=r) for n, r in ((3, 100), (2, 10), (1, 80))]

    ratio = paired_ratio(ours, theirs, lambda each: each.client.rate_per_s)

    # Round 2 was slow for both; of the medians alone the ratio would be 300 / 80.
    assert ratio == Spread(4.0, 3.0, 5.0)


def test_spread_of_one_run_is_that_run() -> None:
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0)


def test_cpu_is_per_million_messages() -> None:
    assert measurement("ringmq", OPEN, 1, rate=1, cpu=0.25).broker_cpu_s_per_million == 250


@pytest.mark.parametrize(
    ("rate", "cpu", "p50", "met"),
    [
        # rate, p99, CPU, CPU beside RabbitMQ's, bytes; at window 1 p50 and CPU
        (15_000, 0.02, 0.8, [True, True, True, True, True, True, True]),
        (14_999, 0.26, 0.81, [False, True, False, False, True, False, True]),
    ],
    ids=["at the bounds", "just outside"],
)
def test_goals_at_their_bounds(rate: float, cpu: float, p50: float, met: list[bool]) -> None:
    measurements = [
        measurement("ringmq", OPEN, 1, rate=rate, cpu=cpu),
        measurement("rabbitmq", OPEN, 1, rate=1000, cpu=1.0),
        measurement("ringmq", ONE, 1, rate=1, p50=p50, cpu=-0.01),
        measurement("rabbitmq", ONE, 1, rate=1, p50=1.0),
    ]
    assert [each.is_met for each in report.verdicts(measurements, [OPEN, ONE])] == met


def test_a_goal_is_met_by_either_of_two_bounds() -> None:
    quick = [measurement("ringmq", OPEN, 1, rate=100_000), measurement("rabbitmq", OPEN, 1, rate=1)]
    beside = [measurement("ringmq", OPEN, 1, rate=150), measurement("rabbitmq", OPEN, 1, rate=10)]
    alone = [measurement("ringmq", OPEN, 1, rate=99_999)]
    found = [report.verdicts(each, [OPEN])[0] for each in (quick, beside, alone)]
    assert [(each.goal.text(), each.is_met) for each in found] == [
        ("at least 100000", True),
        ("at least 15 x rabbitmq", True),
        ("at least 100000", False),
    ]


def test_a_missed_goal_has_the_raw_rings_figure_beside_ours() -> None:
    many = replace(OPEN, window=1, queues=10)
    measurements = [
        measurement("ringmq", many, 1, rate=2000),
        # A table sets what both have written beside each other.
        replace(measurement("rabbitmq", many, 1, rate=1000), written_bytes=1),
        measurement("raw-ring", many, 1, rate=8600),
    ]
    (missed,) = report.verdicts(measurements, [many])
    assert report.beside_raw(measurements, missed) == "; ours 2000, the raw ring's 8600"
    assert report.beside_raw(measurements[:2], missed) == ""
    quick = [measurement("ringmq", many, 1, rate=3000), *measurements[1:]]
    (met,) = report.verdicts(quick, [many])
    assert report.beside_raw(quick, met) == ""
    said = io.StringIO()
    report.print_report(Console(file=said), measurements, [many])
    assert "is 2.00 (2.00 - 2.00); ours 2000, the raw ring's 8600" in " ".join(
        said.getvalue().split()
    )
    (goal,) = report.to_json("try", {}, measurements, [many])["goals"]
    assert goal["raw_ring"]["median"] == 8600


def test_bytes_are_counted_for_each_copy() -> None:
    written = replace(measurement("ringmq", OPEN, 1, rate=1), written_bytes=6 * 1000 * 1024)
    assert written.written_per_body_byte == 2


def test_without_rabbitmq_there_is_a_table_and_no_verdict_beside_it() -> None:
    measurements = [measurement("ringmq", OPEN, 1, rate=30_000)]
    output = io.StringIO()

    report.print_report(Console(file=output), measurements, [OPEN])

    assert "30000" in output.getvalue()
    assert not [each for each in report.verdicts(measurements, [OPEN]) if each.goal.beside]


def test_the_result_file_keeps_every_run() -> None:
    measurements = [
        measurement(peer, OPEN, number, rate=1000)
        for number in (1, 2)
        for peer in ("ringmq", "rabbitmq")
    ]
    result = report.to_json("try", {"rounds": 2}, measurements, [OPEN])

    assert len(result["measurements"]) == 4
    assert [row["peer"] for row in result["summary"]] == ["ringmq", "rabbitmq"]
    cpu = next(goal for goal in result["goals"] if goal["beside"] == "rabbitmq")
    assert cpu["value"] == {"median": 1.0, "least": 1.0, "most": 1.0}
    assert not cpu["met"]
