"""Verdicts on goals, the report, its JSON and its plots."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from bench.goals import Goal
from bench.storage import report
from bench.storage.cases import CASES, Case
from bench.storage.figures import backlog_figures
from bench.storage.observations import Observations
from bench.storage.plot import panels_of, rates_of, save
from bench.storage.round_result import RoundResult, round_result
from bench.storage.variants import Variant
from bench.tests.storage.observed import phase, sample
from rich.console import Console


def results_of(case: str, values: Mapping[str, list[float]], figure: str) -> list[RoundResult]:
    return [
        RoundResult(case, variant, number, {figure: value})
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
    results = results_of("append", {"ringmq": [70, 90, 35], "limit": [100, 100, 50]}, "mb_per_s")
    (verdict,) = report.verdicts(results, [a_case(goal)])
    assert verdict.is_met == met


def test_a_goal_beside_what_did_not_run_is_not_judged() -> None:
    results = results_of("append", {"ringmq": [70]}, "mb_per_s")
    case = a_case(Goal("mb_per_s", beside="limit", at_least=0.7))
    assert report.verdicts(results, [case]) == []


def test_report_and_json_hold_every_case_that_ran() -> None:
    results = results_of("append", {"ringmq": [70, 90], "limit": [100, 125]}, "mb_per_s")
    cases = [a_case(Goal("mb_per_s", beside="limit", at_least=0.7)), *CASES[1:]]
    output = io.StringIO()
    report.print_report(Console(file=output), results, cases, 0.5)
    said = output.getvalue()
    assert "appending" in said
    assert "met" in said
    assert "Scale 0.5" in said
    result = json.loads(json.dumps(report.to_json("n", {"scale": 0.5}, results, cases)))
    assert [row["variant"] for row in result["summary"]] == ["ringmq", "limit"]
    assert result["goals"][0]["met"]
    assert len(result["outcomes"]) == 4


def backlog_result(variant: str) -> RoundResult:
    observed = Observations(
        phase("fill", 5, [(1, 100), (2, 300)]) + phase("drain", 7, [(1, 300)]),
        [sample(5, "fill", 0, 1, 1), sample(7, "fill", 1, 2, 2), sample(8, "drain", 2, 1, 1)],
    )
    return round_result("backlog", variant, 1, observed, backlog_figures(observed, 300))


def test_rates_over_time_are_a_second_or_more_apart() -> None:
    progress = [(0.0, "fill", 0, 0), (0.5, "fill", 60, 0), (1.0, "fill", 100, 0)]
    progress += [(1.5, "fill", 120, 0), (2.5, "drain", 9, 0)]
    assert rates_of(progress, "fill") == [(100, 100.0), (120, 40.0)]


def test_what_ran_is_drawn(tmp_path: Path) -> None:
    results = [backlog_result("ringmq"), backlog_result("rabbitmq")]
    results += results_of("append", {"ringmq": [70], "limit": [100]}, "mb_per_s")
    assert len(panels_of(results)) == 4
    save(tmp_path / "plot.png", results)
    assert (tmp_path / "plot.png").stat().st_size > 1000
