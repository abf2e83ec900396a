"""The table of a run: each case beside the plain path of its own side, and beside RabbitMQ."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.report import WIDTH_PIPED, cell
from bench.routing.cases import CASES
from bench.routing.measured import Measured
from bench.stats import Spread, paired_ratio, spread

OURS, THEIRS = "ringmq", "rabbitmq"
PLAIN = CASES[0].name


def of(measured: Sequence[Measured], side: str, case: str) -> list[Measured]:
    return [each for each in measured if each.side == side and each.case == case]


def rate(each: Measured) -> float:
    return each.rate_per_s


def ratio(ones: Sequence[Measured], others: Sequence[Measured]) -> Spread | None:
    """Of the rates, taken in each round; None if one of the two wasn't measured."""
    return paired_ratio(ones, others, rate) if ones and others else None


def print_report(console: Console, measured: Sequence[Measured]) -> None:
    if not console.is_terminal:
        console.width = WIDTH_PIPED
    sides = list(dict.fromkeys(each.side for each in measured))
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("", no_wrap=True)
    for side in sides:
        for heading in ("messages/s", "of its plain", "CPU s/million"):
            table.add_column(f"{side}\n{heading}", justify="right", no_wrap=True)
    if {OURS, THEIRS} <= set(sides):
        table.add_column(f"{OURS} /\n{THEIRS}", justify="right", style="bold", no_wrap=True)
    for case in dict.fromkeys(each.case for each in measured):
        table.add_row(case, *_cells(measured, sides, case))
    console.print(table)
    console.print("Medians of the rounds, with the least and the most under them.")


def _cells(measured: Sequence[Measured], sides: Sequence[str], case: str) -> list[str]:
    cells = []
    for side in sides:
        runs = of(measured, side, case)
        to_plain = ratio(runs, of(measured, side, PLAIN))
        cells.append(cell(spread([each.rate_per_s for each in runs]), 0))
        cells.append("" if to_plain is None else cell(to_plain, 2))
        cells.append(cell(spread([each.broker_cpu_s_per_million for each in runs]), 1))
    if {OURS, THEIRS} <= set(sides):
        beside = ratio(of(measured, OURS, case), of(measured, THEIRS, case))
        cells.append("" if beside is None else cell(beside, 1))
    return cells
