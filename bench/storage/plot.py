"""The pictures of a run: bars for single figures, lines for series over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # a file is wanted, and there may be no display

from matplotlib import pyplot
from matplotlib.axes import Axes

from bench.stats import spread
from bench.storage.context import BUDGET_BYTES
from bench.storage.figures import FIGURES
from bench.storage.report import select, variants_of
from bench.storage.round_result import OURS, RoundResult

_COLOURS = {
    OURS: "#0b6e4f",
    "limit": "#8d99ae",
    "limit-grouped": "#5c677d",
    "rabbitmq": "#c8553d",
    "rabbitmq-lazy": "#e0a458",
}
_COLUMNS = 3
DIGITS = {figure.name: figure.digits for figure in FIGURES}
# A rate between two moments that are nearer than this is noise.
_RATE_STEP_S = 1.0

Draw = Callable[[Axes], None]


def save(path: Path, results: Sequence[RoundResult]) -> None:
    panels = panels_of(results)
    rows = -(-len(panels) // _COLUMNS)
    figure, axes = pyplot.subplots(
        rows, _COLUMNS, figsize=(4.6 * _COLUMNS, 3.2 * rows), squeeze=False
    )
    flat = [each for row in axes for each in row]
    for draw, place in zip(panels, flat, strict=False):
        draw(place)
        place.tick_params(axis="both", labelsize=8)
    for place in flat[len(panels) :]:
        place.set_axis_off()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def panels_of(results: Sequence[RoundResult]) -> list[Draw]:
    """The panels for the cases that ran."""
    bars = [
        ("append", "mb_per_s", "append, MB/s"),
        ("append-singles", "rate_per_s", "append, singles, messages/s"),
        ("append-alone", "rate_per_s", "append, one at a time, messages/s"),
        ("consume", "rate_per_s", "read and ack, messages/s"),
        ("fan-out", "written_per_byte", "fan-out, bytes to disk / body byte"),
        ("recovery", "recover_s", "recovery of the backlog, s"),
        ("recovery", "rss_peak_mib", "its peak memory, MiB"),
        ("queues", "recover_s", "recovery of many queues, s"),
    ]
    panels = [
        _bars(results, case, figure, title)
        for case, figure, title in bars
        if variants_of(results, case)
    ]
    if variants_of(results, "backlog"):
        panels += [_memory(results), _rates(results, "fill"), _rates(results, "drain")]
    panels += [
        _disk(results, case)
        for case in ("compaction", "compaction-blocks")
        if variants_of(results, case)
    ]
    return panels


def _bars(results: Sequence[RoundResult], case: str, figure: str, title: str) -> Draw:
    def draw(axes: Axes) -> None:
        names = variants_of(results, case)
        values = [
            spread([each.figures[figure] for each in select(results, case, name)]) for name in names
        ]
        whiskers = [
            [each.median - each.least for each in values],
            [each.most - each.median for each in values],
        ]
        drawn = axes.bar(
            names,
            [each.median for each in values],
            yerr=whiskers,
            color=[_COLOURS[name] for name in names],
            width=0.6,
            capsize=3,
        )
        labels = [f"{each.median:,.{DIGITS[figure]}f}" for each in values]
        axes.bar_label(drawn, labels=labels, padding=2, fontsize=8)
        axes.margins(y=0.15)
        # A bar that is alone isn't a wall.
        axes.set_xlim(-0.8, max(len(names), 3) - 0.2)
        axes.set_title(title, fontsize=10)

    return draw


def _first_rounds(results: Sequence[RoundResult], case: str) -> list[RoundResult]:
    """One line for each variant: of the first round."""
    return [select(results, case, name)[0] for name in variants_of(results, case)]


def _memory(results: Sequence[RoundResult]) -> Draw:
    def draw(axes: Axes) -> None:
        for each in _first_rounds(results, "backlog"):
            axes.plot(
                [row[0] for row in each.samples],
                [row[2] / 2**20 for row in each.samples],
                label=each.variant,
                color=_COLOURS[each.variant],
                linewidth=1,
            )
            drain = [row[0] for row in each.progress if row[1] == "drain"]
            axes.axvline(drain[0], color=_COLOURS[each.variant], linewidth=0.8, linestyle=":")
        axes.axhline(BUDGET_BYTES >> 20, color="black", linewidth=0.8, linestyle="--")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("s (dotted: the drain begins; dashed: the budget)", fontsize=8)
        axes.set_title("backlog: resident MiB", fontsize=10)
        axes.legend(fontsize=7)

    return draw


def rates_of(
    progress: Sequence[tuple[float, str, int, int]], phase: str
) -> list[tuple[int, float]]:
    """(messages done, messages per second up to there) of a phase, a second or more apart."""
    rows = [(row[0], row[2]) for row in progress if row[1] == phase]
    rates: list[tuple[int, float]] = []
    before = rows[0]
    for at, done in rows[1:]:
        if at - before[0] >= _RATE_STEP_S or (at, done) == rows[-1] != before:
            rates.append((done, (done - before[1]) / max(at - before[0], 1e-9)))
            before = (at, done)
    return rates


def _rates(results: Sequence[RoundResult], phase: str) -> Draw:
    def draw(axes: Axes) -> None:
        for each in _first_rounds(results, "backlog"):
            rates = rates_of(each.progress, phase)
            axes.plot(
                [done / 1e6 for done, _ in rates],
                [rate for _, rate in rates],
                label=each.variant,
                color=_COLOURS[each.variant],
                linewidth=1,
                marker=".",
                markersize=2,
            )
        if len(variants_of(results, "backlog")) > 1:
            # Else the slowest are one flat line at the bottom.
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.set_xlabel("million messages done", fontsize=8)
        axes.set_title(f"backlog, {phase}: messages/s", fontsize=10)
        axes.legend(fontsize=7)

    return draw


def _disk(results: Sequence[RoundResult], case: str) -> Draw:
    def draw(axes: Axes) -> None:
        (each,) = _first_rounds(results, case)
        axes.plot(
            [row[0] for row in each.samples],
            [row[3] / 1e6 for row in each.samples],
            label="on disk",
            color=_COLOURS[OURS],
        )
        said = [row for row in each.progress if row[3]]
        axes.plot(
            [row[0] for row in said],
            [row[3] / 1e6 for row in said],
            label="live bodies",
            color=_COLOURS["limit"],
        )
        axes.set_ylim(bottom=0)
        axes.set_xlabel("s", fontsize=8)
        axes.set_title(f"{case}: MB", fontsize=10)
        axes.legend(fontsize=7)

    return draw
