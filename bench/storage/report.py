"""What a run of the engine says: a table for each case, the goals, and the JSON of it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.report import WIDTH_PIPED, cell, inline
from bench.stats import Spread, paired_ratio, spread
from bench.storage.cases import Case, Goal
from bench.storage.outcome import FIGURES, OURS, Figure, Outcome

# Ratios themselves, and what isn't anyone's merit.
_NO_RATIO = {
    "written_per_byte",
    "publish_last_to_first",
    "drain_to_publish",
    "garbage_most",
    "garbage_end",
    "others_cores",
}
_BY_NAME = {figure.name: figure for figure in FIGURES}


def select(outcomes: Sequence[Outcome], case: str, variant: str) -> list[Outcome]:
    return [each for each in outcomes if each.case == case and each.variant == variant]


def variants_of(outcomes: Sequence[Outcome], case: str) -> list[str]:
    """In the order in which they first ran."""
    return list(dict.fromkeys(each.variant for each in outcomes if each.case == case))


def figures_of(outcomes: Sequence[Outcome], case: str) -> list[Figure]:
    there = {name for each in outcomes if each.case == case for name in each.figures}
    return [figure for figure in FIGURES if figure.name in there]


def in_a_line(outcome: Outcome) -> str:
    return ", ".join(
        f"{figure.heading} {outcome.figures[figure.name]:.{figure.digits}f}"
        for figure in figures_of([outcome], outcome.case)
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    case: str
    goal: Goal
    value: Spread

    @property
    def is_met(self) -> bool:
        return self.goal.is_met(self.value.median)


def verdicts(outcomes: Sequence[Outcome], cases: Sequence[Case]) -> list[Verdict]:
    """One for each goal of the cases that ran with all that the goal compares."""
    found = []
    for case in cases:
        ours = select(outcomes, case.name, OURS)
        for goal in case.goals:
            if not ours:
                continue
            value = spread([each.figures[goal.figure] for each in ours])
            if goal.beside is not None:
                beside = select(outcomes, case.name, goal.beside)
                if not beside:
                    continue
                value = ratio(ours, beside, goal.figure)
            found.append(Verdict(case.name, goal, value))
    return found


def ratio(ours: Sequence[Outcome], theirs: Sequence[Outcome], figure: str) -> Spread:
    return paired_ratio(ours, theirs, lambda each: each.figures[figure])


def print_report(
    console: Console, outcomes: Sequence[Outcome], cases: Sequence[Case], scale: float
) -> None:
    if not console.is_terminal:
        console.width = WIDTH_PIPED
    for case in cases:
        if variants_of(outcomes, case.name):
            console.print(_table(outcomes, case))
    for verdict in verdicts(outcomes, cases):
        colour, word = ("green", "met") if verdict.is_met else ("red", "missed")
        figure = _BY_NAME[verdict.goal.figure]
        console.print(
            f"[{colour}]{word:7}[/] {verdict.case}: {figure.heading} {verdict.goal.text()}, "
            f"is {inline(verdict.value, 2)}"
        )
    if scale != 1:
        console.print(f"Scale {scale:g}: goals are meant for scale 1.")
    console.print(
        "Medians of the rounds, with the least and the most under them if there are more; "
        "ratios are taken in each round first."
    )


def _table(outcomes: Sequence[Outcome], case: Case) -> Table:
    """A row for each figure, a column for each variant, and our ratio to each other one."""
    table = Table(title=case.title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("")
    runs = {name: select(outcomes, case.name, name) for name in variants_of(outcomes, case.name)}
    rivals = [name for name in runs if name != OURS and OURS in runs]
    for name in runs:
        table.add_column(name, justify="right", no_wrap=True)
    for name in rivals:
        table.add_column(f"{OURS} /\n{name}", justify="right", style="bold", no_wrap=True)
    for figure in figures_of(outcomes, case.name):
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


def _cell(run: Sequence[Outcome], figure: Figure) -> str:
    if not run:
        return ""
    return _text(spread([each.figures[figure.name] for each in run]), figure.digits, len(run))


def _ratio_cell(ours: Sequence[Outcome], theirs: Sequence[Outcome], figure: Figure) -> str:
    if not ours or not theirs or not all(each.figures[figure.name] for each in theirs):
        return ""
    return _text(ratio(ours, theirs, figure.name), 2, len(ours))


def _text(value: Spread, digits: int, rounds: int) -> str:
    return cell(value, digits) if rounds > 1 else f"{value.median:.{digits}f}"


def to_json(
    name: str, facts: dict[str, Any], outcomes: Sequence[Outcome], cases: Sequence[Case]
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
                    if (run := _with(outcomes, case.name, variant, figure))
                },
            }
            for case in cases
            for variant in variants_of(outcomes, case.name)
        ],
        "goals": [
            {
                "case": verdict.case,
                "figure": verdict.goal.figure,
                "wanted": verdict.goal.text(),
                "value": asdict(verdict.value),
                "met": verdict.is_met,
            }
            for verdict in verdicts(outcomes, cases)
        ],
        "outcomes": [each.to_json() for each in outcomes],
    }


def _with(outcomes: Sequence[Outcome], case: str, variant: str, figure: Figure) -> list[Outcome]:
    return [each for each in select(outcomes, case, variant) if figure.name in each.figures]
