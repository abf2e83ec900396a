"""`python -m bench --against CHECKOUT`: is this tree slower than another one?

Both trees' clusters are up during the whole run, and each pair of measurements stands next to
each other in time, so that a busy machine slows both halves of a pair. Within a pair the order
alternates: whichever runs second meets the disk cache and the clocks that the first one left,
and with a fixed order that would be counted for one side.

A fault in a log of this tree's nodes fails the run, as always. The other tree is usually the past,
which can't be mended, so its faults are only said; the ratios are still worth reading then.

A single pair says little. Believe the median of the ratios, and only as far as the least and the
most of them lie on one side of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.comparison import Comparison, Say
from bench.measure import BenchError, Measurement, Peer, Point
from bench.peers.ringmq import RingPeer
from bench.report import COLUMNS, WIDTH_PIPED, inline
from bench.stats import paired_ratio, pairs, select, spread

THIS = "this"
OTHER = "other"
# One message alone, some, and a full pipe; and single messages to more queues than a sync
# round has cores, where the cost of a round counts.
POINTS = (
    Point(count=3000, size_bytes=1024, window=1),
    Point(count=20_000, size_bytes=1024, window=100),
    Point(count=40_000, size_bytes=1024, window=1000),
    Point(count=10_000, size_bytes=1024, window=1, queues=10),
)


def comparison(other: Path) -> Comparison:
    """Of this tree and the checkout `other`."""
    return Comparison(
        prefix="against-",
        points=POINTS,
        start=partial(start_trees, other),
        order=in_turns,
        to_json=to_json,
        print_report=print_report,
    )


def start_trees(other: Path, directory: Path, stack: ExitStack, say: Say) -> list[Peer]:
    """The cluster of this tree, then that of `other`; `stack` ends them."""
    if not (other / "pyproject.toml").exists():
        raise BenchError(f"{other} is no checkout: there is no pyproject.toml")
    peers = [
        RingPeer(directory / THIS, name=THIS),
        RingPeer(directory / OTHER, name=OTHER, tree=other.resolve(), excuse=say),
    ]
    for peer in peers:
        stack.callback(peer.stop)
        peer.start()
    return [*peers]


def in_turns(peers: Sequence[Peer], round_number: int) -> Sequence[Peer]:
    """The peers of this round. The first one alternates from round to round."""
    return peers if round_number % 2 else peers[::-1]


def ratios(
    measurements: Sequence[Measurement], point: Point, value: Callable[[Measurement], float]
) -> list[float]:
    """This tree's figure divided by the other's, for each round in order."""
    this, other = (select(measurements, peer, point) for peer in (THIS, OTHER))
    return [value(ours) / value(theirs) for ours, theirs in pairs(this, other)]


def print_report(
    console: Console, measurements: Sequence[Measurement], points: Sequence[Point]
) -> None:
    if not console.is_terminal:
        console.width = WIDTH_PIPED
    for point in points:
        console.print(_table(measurements, point))
    noise = spread([each.others_cores for each in measurements])
    console.print(
        f"{THIS} / {OTHER}, pair by pair; a rate above 1 is faster, a time above 1 slower. "
        f"Meanwhile others on this machine took {inline(noise, 2)} cores."
    )


def _table(measurements: Sequence[Measurement], point: Point) -> Table:
    title = f"{point.label()}, {point.count} messages"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    for heading in ("", THIS, OTHER, "ratio (least - most)"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    table.add_column("of each pair", justify="left")
    this, other = (select(measurements, peer, point) for peer in (THIS, OTHER))
    for column in COLUMNS:
        medians = [
            f"{spread([column.value(each) for each in side]).median:.{column.digits}f}"
            for side in (this, other)
        ]
        each = "  ".join(f"{ratio:.2f}" for ratio in ratios(measurements, point, column.value))
        middle = inline(paired_ratio(this, other, column.value), 2)
        table.add_row(column.heading, *medians, middle, each)
    return table


def to_json(
    name: str,
    facts: dict[str, Any],
    measurements: Sequence[Measurement],
    points: Sequence[Point],
) -> dict[str, Any]:
    """The result file: `facts` of the run, the ratios of each pair, each measurement."""
    return {
        "name": name,
        **facts,
        "points": [asdict(point) for point in points],
        "ratios": [
            {"point": asdict(point)}
            | {column.name: ratios(measurements, point, column.value) for column in COLUMNS}
            for point in points
        ],
        "measurements": [each.to_json() for each in measurements],
    }
