"""The picture of a run: a row for each point, a bar for each peer, whiskers for the spread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # a file is wanted, and there may be no display

from matplotlib import pyplot
from matplotlib.axes import Axes

from bench.measure import Measurement, Point
from bench.report import COLUMNS, Column, peers_of
from bench.stats import select, spread

_SHOWN = ("rate_per_s", "p50_ms", "p99_ms", "broker_cpu_s_per_million")
_COLOURS = {"ringmq": "#0b6e4f", "rabbitmq": "#c8553d", "rabbitmq-quorum": "#e0a458"}
_OTHER_COLOUR = "#8d99ae"


def save(path: Path, measurements: Sequence[Measurement], points: Sequence[Point]) -> None:
    shown = [column for column in COLUMNS if column.name in _SHOWN]
    figure, axes = pyplot.subplots(
        len(points), len(shown), figsize=(3.4 * len(shown), 2.8 * len(points)), squeeze=False
    )
    for row, point in enumerate(points):
        for place, column in enumerate(shown):
            _draw(axes[row][place], measurements, point, column)
        axes[row][0].set_ylabel(point.label())
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw(axes: Axes, measurements: Sequence[Measurement], point: Point, column: Column) -> None:
    peers = peers_of(measurements)
    spreads = [
        spread([column.value(each) for each in select(measurements, peer, point)]) for peer in peers
    ]
    heights = [each.median for each in spreads]
    whiskers = [
        [each.median - each.least for each in spreads],
        [each.most - each.median for each in spreads],
    ]
    colours = [_COLOURS.get(peer, _OTHER_COLOUR) for peer in peers]
    axes.bar(peers, heights, yerr=whiskers, color=colours, capsize=3)
    axes.set_title(column.heading, fontsize=10)
    axes.tick_params(axis="x", labelrotation=20, labelsize=8)
    # The bare disk is orders of magnitude away: on a linear axis it would hide the rest.
    if min(heights) > 0:
        axes.set_yscale("log")
    axes.margins(y=0.15)
