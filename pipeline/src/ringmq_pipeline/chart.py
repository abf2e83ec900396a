"""The chart of a rollup: a row of three pictures for each queue, as PNG, or as one page of HTML.

The page has the picture as SVG and the figures as a table. It loads nothing.
"""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import matplotlib

matplotlib.use("Agg")  # a file is wanted, and there may be no display

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]

# Of those that publish most: more would be a picture that nobody reads.
QUEUES_MAX: Final = 12
TABLE_ROWS_MAX: Final = 2000
PANELS: Final[dict[str, tuple[str, ...]]] = {
    "messages per second": ("published_per_s", "delivered_per_s", "acked_per_s"),
    "depth": ("depth_p50", "depth_p99"),
    "share redelivered": ("redelivered_share",),
}
COLOURS: Final = ("#0b6e4f", "#c8553d", "#588b8b")
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>RingMQ: queues by the hour</title>
<style>body{{font:14px sans-serif;margin:2em}}table{{border-collapse:collapse}}
td,th{{padding:2px 8px;border-bottom:1px solid #ddd;text-align:right}}svg{{max-width:100%}}</style>
</head><body><h1>Queues by the hour</h1>
{picture}
{note}<table><thead><tr>{head}</tr></thead><tbody>
{body}
</tbody></table></body></html>
"""


def save(path: Path, rows: Rows) -> None:
    """`rows`: of `jobs.rollup`, in the order of time. The format is that of the file's suffix."""
    figure = draw(rows)
    try:
        if path.suffix == ".html":
            path.write_text(page(figure, rows), encoding="utf-8")
        else:
            figure.savefig(path, dpi=110)
    finally:
        pyplot.close(figure)


def busiest(rows: Rows) -> list[tuple[str, str]]:
    """Vhosts and names of the queues that are drawn."""
    published: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (row["vhost"], row["queue"])
        published[key] = published.get(key, 0.0) + (row["published"] or 0.0)
    return sorted(published, key=lambda key: (-published[key], key))[:QUEUES_MAX]


def draw(rows: Rows) -> Figure:
    queues = busiest(rows)
    figure, axes = pyplot.subplots(
        max(1, len(queues)),
        len(PANELS),
        figsize=(4.5 * len(PANELS), 2.6 * max(1, len(queues))),
        squeeze=False,
        sharex=True,
    )
    for place, (vhost, queue) in enumerate(queues):
        shown = [row for row in rows if (row["vhost"], row["queue"]) == (vhost, queue)]
        for panel, (title, columns) in zip(axes[place], PANELS.items(), strict=True):
            _lines(panel, shown, title, columns)
        axes[place][0].set_ylabel(queue if vhost == "/" else f"{vhost} {queue}", parse_math=False)
    figure.autofmt_xdate(rotation=20)
    figure.tight_layout()
    return figure


def _lines(axes: Axes, rows: Rows, title: str, columns: Sequence[str]) -> None:
    hours = [row["hour"] for row in rows]
    for column, colour in zip(columns, COLOURS, strict=False):
        values = [float("nan") if row[column] is None else row[column] for row in rows]
        axes.plot(hours, values, marker=".", color=colour, label=column)
    axes.set_title(title, fontsize=10)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7)


def page(figure: Figure, rows: Rows) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    picture = buffer.getvalue()
    shown = rows[-TABLE_ROWS_MAX:]
    left_out = len(rows) - len(shown)
    columns = list(rows[0]) if rows else []
    return _PAGE.format(
        picture=picture[picture.index("<svg") :],
        note=f"<p>The newest {len(shown)} rows of {len(rows)}.</p>" if left_out else "",
        head="".join(f"<th>{html.escape(column)}</th>" for column in columns),
        body="\n".join(
            "<tr>" + "".join(f"<td>{_cell(row[column])}</td>" for column in columns) + "</tr>"
            for row in shown
        ),
    )


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:00")
    return html.escape(f"{value:g}" if isinstance(value, float) else str(value))
