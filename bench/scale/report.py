"""The table of a run: a figure per row, a system per column."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.report import WIDTH_PIPED
from bench.scale.course import ScaleResult

Figure = Callable[[ScaleResult], float | None]
ROWS: tuple[tuple[str, Figure, int], ...] = (
    ("declares/s", lambda each: each.declare_rate_per_s, 0),
    ("CPU ms for one declare", lambda each: _mean(each.declare_cpu_ms_per_queue), 2),
    ("the same, first thousand", lambda each: each.declare_cpu_ms_per_queue[0], 2),
    ("the same, last thousand", lambda each: each.declare_cpu_ms_per_queue[-1], 2),
    (
        "resident KiB per queue and node",
        lambda each: each.memory_bytes_per_queue_and_node / 1024,
        1,
    ),
    ("idle, % of a core, all nodes", lambda each: each.idle_cpu_percent_of_a_core, 1),
    ("a node dies: s until all have a master", lambda each: each.death_s, 1),
    ("CPU s of the others for that", lambda each: each.death_cpu_s, 1),
    ("it returns: s until all are synchronised", lambda each: each.rejoin_s, 1),
    ("CPU s of all nodes for that", lambda each: each.rejoin_cpu_s, 1),
    ("it returns empty: s until it is ready", lambda each: each.empty_ready_s, 1),
    ("s until all are synchronised", lambda each: each.empty_rejoin_s, 1),
    ("the longest look at all queues, s", lambda each: each.look_s_max, 1),
)


def print_report(console: Console, results: Sequence[ScaleResult]) -> None:
    if not console.is_terminal:
        console.width = WIDTH_PIPED
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column(f"{results[0].queues} queues", no_wrap=True)
    for each in results:
        table.add_column(each.system, justify="right", no_wrap=True)
    for title, figure, digits in ROWS:
        cells = (figure(each) for each in results)
        table.add_row(title, *("" if one is None else f"{one:,.{digits}f}" for one in cells))
    console.print(table)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
