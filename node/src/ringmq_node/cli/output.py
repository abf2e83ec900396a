"""Printing: JSON for programs, tables for people, tabs between columns for pipes.

Results go to stdout. Progress goes to stderr, and as a bar only if stderr is a
terminal. JSON fields are named as on the wire, sizes and times with their units.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table


def emit_json(value: object) -> None:
    """One line, flushed at once: the reader of a pipe may wait for it."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def emit_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on a terminal. Elsewhere the header and the rows, with tabs between columns."""
    if not sys.stdout.isatty():
        click.echo("\t".join(headers))
        for row in rows:
            click.echo("\t".join(map(str, row)))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*map(str, row))
    Console().print(table, markup=False)


def emit_facts(facts: Mapping[str, object]) -> None:
    """`name  value` lines. Underscores in names become spaces, None is left out."""
    shown = {name.replace("_", " "): value for name, value in facts.items() if value is not None}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        click.echo(f"{name:<{width}}  {_text(value)}")


def emit_report(facts: Mapping[str, object], *, as_json: bool) -> None:
    """A flat report: one JSON object, or a line for each fact."""
    if as_json:
        emit_json(facts)
    else:
        emit_facts(facts)


# What is shown of an empty text among others in one line.
QUOTED_NOTHING = '""'


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, Mapping):
        # An empty one is a value too, such as the name of the default exchange.
        return "  ".join(f"{name} {_text(each) or QUOTED_NOTHING}" for name, each in value.items())
    return str(value)


def progress_bar() -> Progress:
    """A bar on stderr, which shows nothing unless stderr is a terminal."""
    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def size_text(size_bytes: int) -> str:
    """`9.4 GiB`: rounded for the eye, not for calculations."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def fail(message: str) -> None:
    """The one line on stderr that says why the command fails."""
    print(f"ringmq: {' '.join(message.split())}", file=sys.stderr)


def time_text(at_s: float) -> str:
    """`at_s`: seconds since 1970."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))
