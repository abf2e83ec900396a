from __future__ import annotations

import io

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
        (15_000, 0.25, 0.8, [True, True, True]),
        (14_999, 0.26, 0.81, [False, False, False]),
    ],
    ids=["at the bounds", "just outside"],
)
def test_goals_at_their_bounds(rate: float, cpu: float, p50: float, met: list[bool]) -> None:
    measurements = [
        measurement("ringmq", OPEN, 1, rate=rate, cpu=cpu),
        measurement("rabbitmq", OPEN, 1, rate=1000, cpu=1.0),
        measurement("ringmq", ONE, 1, rate=1, p50=p50),
        measurement("rabbitmq", ONE, 1, rate=1, p50=1.0),
    ]
    assert [each.is_met for each in report.verdicts(measurements, [OPEN, ONE])] == met


def test_without_rabbitmq_there_is_a_table_and_no_verdict() -> None:
    measurements = [measurement("ringmq", OPEN, 1, rate=30_000)]
    output = io.StringIO()

    report.print_report(Console(file=output), measurements, [OPEN])

    assert "30000" in output.getvalue()
    assert not report.verdicts(measurements, [OPEN])


def test_the_result_file_keeps_every_run() -> None:
    measurements = [
        measurement(peer, OPEN, number, rate=1000)
        for number in (1, 2)
        for peer in ("ringmq", "rabbitmq")
    ]
    result = report.to_json("try", {"rounds": 2}, measurements, [OPEN])

    assert len(result["measurements"]) == 4
    assert [row["peer"] for row in result["summary"]] == ["ringmq", "rabbitmq"]
    assert result["goals"][0]["ratio_to_rabbitmq"] == {"median": 1.0, "least": 1.0, "most": 1.0}
    assert not result["goals"][0]["met"]
