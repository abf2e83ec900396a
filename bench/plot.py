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
COLOURS = {
    "ringmq": "#0b6e4f",
    "rabbitmq": "#c8553d",
    "rabbitmq-quorum": "#e0a458",
    "nats-r3": "#3d5a98",
}
_DISK = "disk"
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
    spreads = {
        peer: spread([column.value(each) for each in select(measurements, peer, point)])
        for peer in peers_of(measurements)
    }
    title = column.heading
    # The bare disk would make dwarfs of the rest: it is a bar only if it is alone.
    disk = spreads.pop(_DISK, None) if len(spreads) > 1 else None
    if disk is not None and disk.median > 0:  # it has no brokers, and so no CPU of theirs
        title += f"\n(disk alone: {disk.median:.{column.digits}f})"
    peers = list(spreads)
    heights = [each.median for each in spreads.values()]
    whiskers = [
        [each.median - each.least for each in spreads.values()],
        [each.most - each.median for each in spreads.values()],
    ]
    colours = [COLOURS.get(peer, _OTHER_COLOUR) for peer in peers]
    bars = axes.bar(peers, heights, yerr=whiskers, color=colours, capsize=3)
    labels = [f"{height:.{column.digits}f}" for height in heights]
    axes.bar_label(bars, labels=labels, label_type="center", fontsize=8, color="white")
    axes.set_title(title, fontsize=10)
    axes.tick_params(axis="both", labelsize=8)
    axes.tick_params(axis="x", labelrotation=15)


def save_lines(path: Path, measurements: Sequence[Measurement], points: Sequence[Point]) -> None:
    """Rate and p50 over the window, of one queue; the rate over the number of queues, at window 1.
    Of the size that most points have."""
    sizes = [point.size_bytes for point in points]
    usual = max(sizes, key=sizes.count)
    same = [point for point in points if point.size_bytes == usual and not point.consumed]
    alone = sorted((each for each in same if each.queues == 1), key=lambda each: each.window)
    single = sorted((each for each in same if each.window == 1), key=lambda each: each.queues)
    by_name = {column.name: column for column in COLUMNS}
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4))
    for place, (name, shown, along) in enumerate(
        (
            ("rate_per_s", alone, "window"),
            ("p50_ms", alone, "window"),
            ("rate_per_s", single, "queues"),
        )
    ):
        draw = axes[place]
        for peer in peers_of(measurements):
            line = [
                (getattr(point, along), spread([by_name[name].value(each) for each in runs]).median)
                for point in shown
                if (runs := select(measurements, peer, point))
            ]
            colour = COLOURS.get(peer, _OTHER_COLOUR)
            style = "--" if colour == _OTHER_COLOUR else "-"
            draw.plot(*zip(*line, strict=True), style, marker="o", color=colour, label=peer)
        draw.set(xscale="log", yscale="log", xlabel=along, title=by_name[name].heading)
        draw.grid(visible=True, which="major", alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
