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
from bench.pipeline.cases import CASES, MEGABYTES, MEGABYTES_PER_CPU, RATE, TASKS_FAIL, Case
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
_HEADINGS = {column.figure: column.heading.replace("\n", " ") for column in COLUMNS}


def of(runs: Sequence[Measured], case: str) -> list[Measured]:
    return [each for each in runs if each.case == case]


def figures(runs: Sequence[Measured], figure: str) -> Spread:
    return spread([getattr(each, figure) for each in runs])


def measured_cases(runs: Sequence[Measured]) -> list[Case]:
    return [case for case in CASES if of(runs, case.name)]


def verdicts(runs: Sequence[Measured]) -> list[Verdict[str]]:
    return [
        Verdict(case.name, case.goal, figures(of(runs, case.name), case.goal.figure))
        for case in measured_cases(runs)
        if case.goal is not None
    ]


def of_bounds(runs: Sequence[Measured], case: Case) -> dict[str, Spread]:
    """The rate as a share of each bound's, taken in each round."""
    ours = of(runs, case.name)
    return {
        bound: paired_ratio(ours, theirs, lambda each: each.rate_per_s)
        for bound in case.bounds
        if (theirs := of(runs, bound))
    }


def to_json(name: str, facts: dict[str, Any], runs: Sequence[Measured]) -> dict[str, Any]:
    return {
        "name": name,
        **facts,
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
    console.print(table)
    for each in verdicts(runs):
        colour, word = ("green", "met") if each.is_met else ("red", "missed")
        heading = _HEADINGS[each.goal.figure]
        console.print(
            f"[{colour}]{word:7}[/] {each.subject}: {heading} {each.goal.text()}, "
            f"is {inline(each.value, 0)}"
        )
    if of(runs, TASKS_FAIL):
        console.print(f"{TASKS_FAIL}: each task failed half way, and no message is there twice.")
    noise = spread([each.others_cores for each in runs])
    console.print(
        "Medians of the rounds, with the least and the most under them. Meanwhile others on this "
        f"machine took {inline(noise, 2)} cores."
    )


def draw(path: Path, runs: Sequence[Measured]) -> None:
    """Megabytes a second of each case, and the processor time of a message."""
    shown = [each for each in measured_cases(runs) if each.name != TASKS_FAIL]
    names = [each.name for each in shown]
    colours = [OURS_COLOUR if each.goal else BOUND_COLOUR for each in shown]
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
