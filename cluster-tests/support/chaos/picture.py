"""The timeline of a run: faults above the rate and the latency of confirms.

Drawn by matplotlib, as the benchmark's pictures are: it is a dependency of the tests already, and
an SVG of our own would need an axis, ticks and a legend of our own as well.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # a file is wanted, and there may be no display

from matplotlib import pyplot
from matplotlib.axes import Axes

from chaos.figures import Seen

BIN_S = 0.5
COLOURS = ("#0b6e4f", "#c8553d", "#33658a", "#8d99ae", "#e0a458")
FAULT_COLOUR, HEALING_COLOUR = "#c8553d", "#e0a458"
WIDTH_INCHES_MIN, WIDTH_INCHES_MAX, SECONDS_PER_INCH = 10.0, 60.0, 20.0


def save(path: Path, seen: Seen, title: str) -> None:
    kinds = sorted({each.kind for each in seen.rounds})
    length_s = seen.ended_at - seen.began_at
    width = min(WIDTH_INCHES_MAX, max(WIDTH_INCHES_MIN, length_s / SECONDS_PER_INCH))
    figure, (faults, rate, latency) = pyplot.subplots(
        3,
        1,
        sharex=True,
        figsize=(width, 6.0 + 0.22 * len(kinds)),
        height_ratios=(1.0 + 0.22 * len(kinds), 2.5, 2.5),
    )
    _draw_faults(faults, seen, kinds)
    _draw_rate(rate, seen)
    _draw_latency(latency, seen)
    faults.set_title(title, fontsize=10)
    latency.set_xlabel("seconds")
    latency.set_xlim(0, max(length_s, 1.0))
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def _draw_faults(axes: Axes, seen: Seen, kinds: list[str]) -> None:
    """A bar for each round: dark while its faults last, light until all is whole again."""
    for each in seen.rounds:
        row = kinds.index(each.kind)
        began = each.began_at - seen.began_at
        lasted = max(each.ended_at - each.began_at, 0.2)
        axes.barh(row, lasted, left=began, color=FAULT_COLOUR)
        healing = max(each.whole_at - each.ended_at, 0.0)
        axes.barh(row, healing, left=began + lasted, color=HEALING_COLOUR)
        nodes = sorted({node for span in each.spans for node in span.nodes})
        axes.text(began, row, f" {','.join(nodes)}", fontsize=6, verticalalignment="center")
    axes.set_yticks(range(len(kinds)), kinds, fontsize=7)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)


def _draw_rate(axes: Axes, seen: Seen) -> None:
    for colour, (queue, times) in zip(COLOURS, seen.confirmed_at.items(), strict=False):
        bins: dict[int, int] = defaultdict(int)
        for at, messages in zip(times, seen.messages[queue], strict=True):
            bins[int((at - seen.began_at) / BIN_S)] += messages
        last = int((seen.ended_at - seen.began_at) / BIN_S)
        rates = [bins[index] / BIN_S for index in range(last + 1)]
        places = [index * BIN_S for index in range(last + 1)]
        axes.step(places, rates, where="post", color=colour, linewidth=0.9, label=queue)
    axes.set_ylabel("confirmed / s")
    if seen.confirmed_at:
        axes.legend(loc="upper right", fontsize=7)
    axes.grid(alpha=0.3)


def _draw_latency(axes: Axes, seen: Seen) -> None:
    """The slowest confirm of each half second, for each queue."""
    for colour, (queue, times) in zip(COLOURS, seen.confirmed_at.items(), strict=False):
        slowest: dict[int, float] = defaultdict(float)
        for at, latency_s in zip(times, seen.latency_s[queue], strict=True):
            index = int((at - seen.began_at) / BIN_S)
            slowest[index] = max(slowest[index], latency_s)
        places = sorted(slowest)
        axes.plot(
            [index * BIN_S for index in places],
            [1000 * slowest[index] for index in places],
            ".",
            markersize=2,
            color=colour,
            label=queue,
        )
    axes.set_yscale("log")
    axes.set_ylabel("slowest confirm, ms")
    axes.grid(alpha=0.3)
