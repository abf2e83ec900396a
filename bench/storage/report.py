"""The report of a run of the engine: a table for each case, the goals, and the JSON of it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.goals import Verdict
from bench.report import WIDTH_PIPED, cell, inline
from bench.stats import Spread, paired_ratio, spread
from bench.storage.cases import Case
from bench.storage.figures import FIGURES, Figure
from bench.storage.round_result import OURS, RoundResult

# Our ratio to another variant would say nothing: these are ratios already, or the machine's noise.
_NO_RATIO = {
    "written_per_byte",
    "publish_last_to_first",
    "drain_to_publish",
    "garbage_most",
    "garbage_end",
    "others_cores",
}
_BY_NAME = {figure.name: figure for figure in FIGURES}


def select(results: Sequence[RoundResult], case: str, variant: str) -> list[RoundResult]:
    return [each for each in results if each.case == case and each.variant == variant]


def variants_of(results: Sequence[RoundResult], case: str) -> list[str]:
    """In the order in which they first ran."""
    return list(dict.fromkeys(each.variant for each in results if each.case == case))


def figures_of(results: Sequence[RoundResult], case: str) -> list[Figure]:
    there = {name for each in results if each.case == case for name in each.figures}
    return [figure for figure in FIGURES if figure.name in there]


def in_a_line(outcome: RoundResult) -> str:
    return ", ".join(
        f"{figure.heading} {outcome.figures[figure.name]:.{figure.digits}f}"
        for figure in figures_of([outcome], outcome.case)
    )


def verdicts(results: Sequence[RoundResult], cases: Sequence[Case]) -> list[Verdict[str]]:
    """One for each goal of which both sides ran."""
    found = []
    for case in cases:
        ours = select(results, case.name, OURS)
        for goal in case.goals:
            if not ours:
                continue
            value = spread([each.figures[goal.figure] for each in ours])
            if goal.beside is not None:
                beside = select(results, case.name, goal.beside)
                if not beside:
                    continue
                value = ratio(ours, beside, goal.figure)
            found.append(Verdict(case.name, goal, value))
    return found


def ratio(ours: Sequence[RoundResult], theirs: Sequence[RoundResult], figure: str) -> Spread:
    return paired_ratio(ours, theirs, lambda each: each.figures[figure])


def print_report(
    console: Console, results: Sequence[RoundResult], cases: Sequence[Case], scale: float
) -> None:
    if not console.is_terminal:
        console.width = WIDTH_PIPED
    for case in cases:
        if variants_of(results, case.name):
            console.print(_table(results, case))
    for verdict in verdicts(results, cases):
        colour, word = ("green", "met") if verdict.is_met else ("red", "missed")
        figure = _BY_NAME[verdict.goal.figure]
        console.print(
            f"[{colour}]{word:7}[/] {verdict.subject}: {figure.heading} {verdict.goal.text()}, "
            f"is {inline(verdict.value, 2)}"
        )
    if scale != 1:
        console.print(f"Scale {scale:g}: goals are meant for scale 1.")
    console.print(
        "Medians of the rounds, with the least and the most under them if there are more; "
        "ratios are taken in each round first."
    )


def _table(results: Sequence[RoundResult], case: Case) -> Table:
    """A row for each figure, a column for each variant, and our ratio to each other one."""
    table = Table(title=case.title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("")
    runs = {name: select(results, case.name, name) for name in variants_of(results, case.name)}
    rivals = [name for name in runs if name != OURS and OURS in runs]
    for name in runs:
        table.add_column(name, justify="right", no_wrap=True)
    for name in rivals:
        table.add_column(f"{OURS} /\n{name}", justify="right", style="bold", no_wrap=True)
    for figure in figures_of(results, case.name):
        of = {
            name: [each for each in run if figure.name in each.figures]
            for name, run in runs.items()
        }
        cells = [_cell(run, figure) for run in of.values()]
        ratios = [_ratio_cell(of[OURS], of[name], figure) for name in rivals]
        if figure.name in _NO_RATIO:
            ratios = [""] * len(rivals)
        table.add_row(figure.heading, *cells, *ratios)
    return table


def _cell(run: Sequence[RoundResult], figure: Figure) -> str:
    if not run:
        return ""
    return _text(spread([each.figures[figure.name] for each in run]), figure.digits, len(run))


def _ratio_cell(ours: Sequence[RoundResult], theirs: Sequence[RoundResult], figure: Figure) -> str:
    if not ours or not theirs or not all(each.figures[figure.name] for each in theirs):
        return ""
    return _text(ratio(ours, theirs, figure.name), 2, len(ours))


def _text(value: Spread, digits: int, rounds: int) -> str:
    return cell(value, digits) if rounds > 1 else f"{value.median:.{digits}f}"


def to_json(
    name: str, facts: dict[str, Any], results: Sequence[RoundResult], cases: Sequence[Case]
) -> dict[str, Any]:
    """The result file: `facts` of the run, the summary, the goals, each outcome."""
    return {
        "name": name,
        **facts,
        "summary": [
            {
                "case": case.name,
                "title": case.title,
                "variant": variant,
                **{
                    figure.name: asdict(spread([each.figures[figure.name] for each in run]))
                    for figure in FIGURES
                    if (run := _with(results, case.name, variant, figure))
                },
            }
            for case in cases
            for variant in variants_of(results, case.name)
        ],
        "goals": [
            {
                "case": verdict.subject,
                "figure": verdict.goal.figure,
                "wanted": verdict.goal.text(),
                "value": asdict(verdict.value),
                "met": verdict.is_met,
            }
            for verdict in verdicts(results, cases)
        ],
        "outcomes": [each.to_json() for each in results],
    }


def _with(
    results: Sequence[RoundResult], case: str, variant: str, figure: Figure
) -> list[RoundResult]:
    return [each for each in select(results, case, variant) if figure.name in each.figures]
