"""The table of a run, the picture, and the JSON with every measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.goals import Verdict
from bench.pipeline.cases import (
    CASES,
    DUPLICATES,
    EXECUTORS,
    MEGABYTES,
    MEGABYTES_PER_CPU,
    MESSAGES,
    RATE,
    SIZES,
    TASKS_FAIL,
    Case,
)
from bench.pipeline.measured import Measured
from bench.report import cell, inline
from bench.stats import Spread, paired_ratio, spread

matplotlib.use("Agg")  # a file is wanted, and there may be no display

from matplotlib import pyplot

WIDTH_PIPED = 160
OURS_COLOUR, BOUND_COLOUR = "#0b6e4f", "#8d99ae"


@dataclass(frozen=True, slots=True)
class Column:
    figure: str
    heading: str
    digits: int


COLUMNS = (
    Column(RATE, "messages/s", 0),
    Column(MEGABYTES, "MB/s", 0),
    Column(MEGABYTES_PER_CPU, "MB per\nCPU s", 0),
    Column("job_cpu_us", "CPU us/msg\nSpark, client", 1),
    Column("node_cpu_us", "CPU us/msg\nnodes", 1),
)
# Figures that goals bound, and that no table has, among them.
_HEADINGS = {column.figure: column.heading.replace("\n", " ") for column in COLUMNS} | {
    MESSAGES: "events judged",
    DUPLICATES: "duplicates",
}
# Of the rows with settings: what shows how the cost of a message grows.
GROWING = (Column(MEGABYTES, "MB/s", 0), Column("cpu_us", "CPU us/msg", 1))
_GROWTHS = {SIZES: "by the size of the queue", EXECUTORS: "by executors of one core each"}


def of(runs: Sequence[Measured], case: str) -> list[Measured]:
    """Those of its rounds, without those at settings."""
    return [each for each in runs if each.case == case and not each.setting]


def figures(runs: Sequence[Measured], figure: str) -> Spread:
    return spread([getattr(each, figure) for each in runs])


def measured_cases(runs: Sequence[Measured]) -> list[Case]:
    return [case for case in CASES if of(runs, case.name)]


def verdicts(runs: Sequence[Measured]) -> list[Verdict[str]]:
    return [
        Verdict(case.name, goal, figures(of(runs, case.name), goal.figure))
        for case in measured_cases(runs)
        for goal in case.goals
    ]


def of_bounds(runs: Sequence[Measured], case: Case) -> dict[str, Spread]:
    """The rate as a share of each bound's, taken in each round."""
    ours = of(runs, case.name)
    return {
        bound: paired_ratio(ours, theirs, lambda each: each.rate_per_s)
        for bound in case.bounds
        if (theirs := of(runs, bound))
    }


def to_json(runs: Sequence[Measured]) -> dict[str, Any]:
    return {
        "summary": [
            {
                "case": case.name,
                **{
                    each.figure: asdict(figures(of(runs, case.name), each.figure))
                    for each in COLUMNS
                },
                "of_bounds": {
                    bound: asdict(share) for bound, share in of_bounds(runs, case).items()
                },
            }
            for case in measured_cases(runs)
        ],
        "goals": [
            {
                "case": each.subject,
                "figure": each.goal.figure,
                "wanted": each.goal.text(),
                "value": asdict(each.value),
                "met": each.is_met,
            }
            for each in verdicts(runs)
        ],
        "measurements": [each.to_json() for each in runs],
    }


def print_report(console: Console, runs: Sequence[Measured]) -> None:
    if not console.is_terminal:
        console.width = WIDTH_PIPED
    if measured_cases(runs):
        console.print(_table(runs))
    for row in _GROWTHS:
        if of_row := [each for each in runs if each.row == row]:
            console.print(_growth(row, of_row))
    for each in verdicts(runs):
        colour, word = ("green", "met") if each.is_met else ("red", "missed")
        heading = _HEADINGS[each.goal.figure]
        console.print(
            f"[{colour}]{word:7}[/] {each.subject}: {heading} {each.goal.text()}, "
            f"is {inline(each.value, 0)}"
        )
    if of(runs, TASKS_FAIL):
        console.print(f"{TASKS_FAIL}: each task failed half way, and was run again.")
    noise = spread([each.others_cores for each in runs])
    console.print(
        "Medians of the rounds, with the least and the most under them. Meanwhile others on this "
        f"machine took {inline(noise, 2)} cores."
    )


def _table(runs: Sequence[Measured]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column.heading, justify="right", no_wrap=True)
    table.add_column("of its upper bounds", no_wrap=True)
    for case in measured_cases(runs):
        found = of(runs, case.name)
        shares = of_bounds(runs, case)
        table.add_row(
            case.name,
            *(cell(figures(found, column.figure), column.digits) for column in COLUMNS),
            "\n".join(f"{share.median:.2f} x {bound}" for bound, share in shares.items()),
        )
    return table


def _growth(row: str, runs: Sequence[Measured]) -> Table:
    """A line for each case, with its figures at each setting, and the last one's cost beside the
    first one's."""
    by_case: dict[str, list[Measured]] = {}
    for each in runs:
        by_case.setdefault(each.case, []).append(each)
    settings = list(dict.fromkeys(each.setting for each in runs))
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), title=_GROWTHS[row], title_justify="left")
    table.add_column("", no_wrap=True)
    for setting in settings:
        for column in GROWING:
            table.add_column(f"{setting}\n{column.heading}", justify="right", no_wrap=True)
    for heading in ("time/msg", "CPU/msg"):
        table.add_column(f"{heading},\nlast / first", justify="right", no_wrap=True)
    for case, found in by_case.items():
        first, last = found[0], found[-1]
        figures_of = [
            f"{getattr(each, column.figure):.{column.digits}f}"
            for each in found
            for column in GROWING
        ]
        time_ratio = first.rate_per_s / last.rate_per_s
        table.add_row(case, *figures_of, f"{time_ratio:.2f}", f"{last.cpu_us / first.cpu_us:.2f}")
    return table


def draw(path: Path, runs: Sequence[Measured]) -> bool:
    """Megabytes a second of each case, and the processor time of a message. False, and no file, if
    there are only cases at settings: the picture has none of these."""
    shown = [each for each in measured_cases(runs) if each.name != TASKS_FAIL]
    if not shown:
        return False
    names = [each.name for each in shown]
    colours = [OURS_COLOUR if each.goals else BOUND_COLOUR for each in shown]
    figure, (rates, costs) = pyplot.subplots(1, 2, figsize=(11, 0.42 * len(shown) + 1.2))
    megabytes = [figures(of(runs, name), MEGABYTES) for name in names]
    bars = rates.barh(
        names,
        [each.median for each in megabytes],
        xerr=[
            [each.median - each.least for each in megabytes],
            [each.most - each.median for each in megabytes],
        ],
        color=colours,
        capsize=3,
    )
    labels = [f"{each.median:.0f}" for each in megabytes]
    rates.bar_label(bars, labels=labels, padding=4, fontsize=8)
    rates.set_xscale("log")
    rates.set_title("MB/s (grey: upper bounds)", fontsize=10)
    jobs = [figures(of(runs, name), "job_cpu_us").median for name in names]
    nodes = [figures(of(runs, name), "node_cpu_us").median for name in names]
    costs.barh(names, jobs, color=colours, label="Spark and client")
    costs.barh(names, nodes, left=jobs, color="#c8553d", label="nodes")
    costs.set_title("CPU us of a message (red: the nodes)", fontsize=10)
    costs.set_yticklabels([])
    for axes in (rates, costs):
        axes.invert_yaxis()
        axes.tick_params(axis="both", labelsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True
