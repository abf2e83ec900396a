"""The report of a failover run: two tables, and the JSON with every single fault."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.failover.rounds import Pace
from bench.failover.tally import CatchUpSeen, FaultSeen, figures
from bench.report import WIDTH_PIPED

MIB = 2**20


@dataclass(slots=True)
class Result:
    """All that a run has seen so far. `failure`: what ended it early."""

    name: str
    started: str
    machine: dict[str, str]
    pace: Pace
    peers: dict[str, dict[str, str]] = field(default_factory=dict)
    faults: list[FaultSeen] = field(default_factory=list)
    catch_ups: list[CatchUpSeen] = field(default_factory=list)
    failure: str | None = None


def to_json(result: Result) -> dict[str, Any]:
    return asdict(result) | {"summary": [asdict(row) for row in figures(result.faults)]}


def print_report(console: Console, result: Result) -> None:
    if not console.is_terminal:
        console.width = WIDTH_PIPED
    if result.faults:
        console.print(_fault_table(result))
    if result.catch_ups:
        console.print(_catch_up_table(result))
    if result.failure is not None:
        console.print(f"ended early: {result.failure}", markup=False)


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _fault_table(result: Result) -> Table:
    pace = result.pace
    table = _table(
        f"the master killed (restarted), or cut from the other servers for {pace.cut_s:g} s; "
        f"{pace.rate_per_s} messages/s of {pace.size_bytes} B",
        "", "faults", "without\nconfirms p50 s", "without\nconfirms max s", "whole\nagain p50 s",
        "confirmed", "lost", "duplicated",
    )  # fmt: skip
    for row in figures(result.faults):
        table.add_row(
            f"{row.fault}, {row.system}", str(row.faults), f"{row.gap_p50_s:.2f}",
            f"{row.gap_max_s:.2f}", f"{row.whole_p50_s:.1f}", str(row.confirmed), str(row.lost),
            str(row.duplicated),
        )  # fmt: skip
    return table


def _catch_up_table(result: Result) -> Table:
    first = result.catch_ups[0]
    table = _table(
        f"a mirror that lacks {first.missed} of {first.messages} messages comes back",
        "", "MiB to\nthe mirror", "of them published\nmeanwhile", "synchronised\nafter s",
        "without\nconfirms s",
    )  # fmt: skip
    for row in result.catch_ups:
        table.add_row(
            row.system, f"{row.received_bytes / MIB:.1f}", f"{row.published_bytes / MIB:.1f}",
            f"{row.synchronised_s:.1f}", f"{row.gap_s:.2f}",
        )  # fmt: skip
    return table
