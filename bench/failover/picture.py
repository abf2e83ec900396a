"""The picture of a failover run: each fault a dot, and the bytes and waits of the catch-ups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # a file is wanted, and there may be no display

from matplotlib import pyplot
from matplotlib.axes import Axes

from bench.failover.report import MIB, Result
from bench.failover.tally import CatchUpSeen, FaultSeen, figures
from bench.plot import COLOURS

SPREAD = 0.25


def save(path: Path, result: Result) -> None:
    kinds = list(dict.fromkeys(each.fault for each in result.faults))
    bars: list[tuple[str, Callable[[CatchUpSeen], float]]] = []
    if result.catch_ups:
        bars = [
            ("catch-up: MiB to the mirror", lambda each: each.received_bytes / MIB),
            ("catch-up: longest time\nwithout confirms, s", lambda each: each.gap_s),
        ]
    count = len(kinds) + len(bars)
    figure, axes = pyplot.subplots(1, count, figsize=(3.8 * count, 3.4), squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=False):
        _dots(axis, kind, [each for each in result.faults if each.fault == kind])
    for axis, (title, value) in zip(axes[0][len(kinds) :], bars, strict=True):
        systems = [each.system for each in result.catch_ups]
        drawn = axis.bar(
            systems, list(map(value, result.catch_ups)), color=[COLOURS[each] for each in systems]
        )
        axis.bar_label(drawn, fmt="%.1f", fontsize=8)
        axis.set_title(title, fontsize=10)
    for axis in axes[0]:
        axis.tick_params(axis="both", labelsize=8)
        axis.tick_params(axis="x", labelrotation=15)
        axis.margins(x=0.1, y=0.15)  # Room for the numbers at the bars and lines.
        axis.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _dots(axis: Axes, kind: str, seen: Sequence[FaultSeen]) -> None:
    rows = figures(seen)
    for place, row in enumerate(rows):
        gaps = [each.gap_s for each in seen if each.system == row.system]
        step = 2 * SPREAD / max(1, len(gaps) - 1)
        across = [place - SPREAD + step * index for index in range(len(gaps))]
        axis.scatter(across, gaps, s=12, color=COLOURS[row.system])
        axis.hlines(row.gap_p50_s, place - SPREAD, place + SPREAD, color=COLOURS[row.system])
        axis.annotate(f"{row.gap_p50_s:.1f}", (place + SPREAD, row.gap_p50_s), fontsize=8)
    axis.set_xticks(range(len(rows)), [row.system for row in rows])
    axis.set_title(f"{kind}: longest time\nwithout confirms, s (line: p50)", fontsize=10)
