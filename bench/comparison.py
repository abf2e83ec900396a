"""A run of several clusters side by side, from their start to the result files.

A `Comparison` names the clusters and sets their figures beside each other: `rivals` makes the one
with RabbitMQ, `against` the one with another tree of ours.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import plot
from bench.measure import Measurement, Peer, Point, machine_facts, measure

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"
RESULTS = Path(__file__).resolve().parent / "results"
Say = Callable[[str], None]
# The share of a point that warms a peer up: connections, the Erlang JIT, page cache.
_WARM_UP_SHARE = 10


@dataclass(frozen=True, slots=True)
class Comparison:
    """The peers, the questions that they answer, their order, and the report about them.

    `start` starts the peers in a directory, leaves their end to the stack, and says (with its last
    argument) things beside the figures. `order` gives the
    peers of a round, counted from 1, in the order in which they run. `draw` makes the picture,
    `to_json` makes the result
    file out of its name, the facts of the run, the measurements and the points.
    """

    prefix: str
    points: Sequence[Point]
    start: Callable[[Path, ExitStack, Say], Sequence[Peer]]
    order: Callable[[Sequence[Peer], int], Sequence[Peer]]
    to_json: Callable[[str, dict[str, Any], Sequence[Measurement], Sequence[Point]], dict[str, Any]]
    print_report: Callable[[Console, Sequence[Measurement], Sequence[Point]], None]
    draw: Callable[[Path, Sequence[Measurement], Sequence[Point]], None] = plot.save
    # Whether the peer answers this question at all: a bare disk has no queues.
    takes: Callable[[Peer, Point], bool] = lambda _peer, _point: True


def carry_out(
    comparison: Comparison, *, rounds: int, save: str | None, as_json: bool, progress: Console
) -> None:
    """Measures, writes the result files, prints. Raises `BenchError` rather than print a figure
    that a failed run has left."""
    started = datetime.now(UTC)
    BUILD.mkdir(parents=True, exist_ok=True)
    # Not in the system's temporary directory, which may be memory: fsync would cost nothing.
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=BUILD))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        progress.print("starting the clusters")
        peers = comparison.start(directory, stack, progress.print)
        facts = {
            "started": started.isoformat(timespec="seconds"),
            "rounds": rounds,
            "machine": machine_facts(directory),
            "peers": {peer.name: peer.describe() for peer in peers},
        }
        measurements = run_all(peers, comparison, rounds, progress.print)
    # The clusters have ended, and a node whose log has a fault has failed the run by now.
    name = save or f"{comparison.prefix}{started:%Y%m%dT%H%M%SZ}"
    folder = RESULTS if save else RESULTS / "local"
    folder.mkdir(parents=True, exist_ok=True)
    result = comparison.to_json(name, facts, measurements, comparison.points)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    comparison.draw(folder / f"{name}.png", measurements, comparison.points)
    if as_json:
        print(json.dumps(result))
    else:
        comparison.print_report(Console(), measurements, comparison.points)
    progress.print(f"written: {(folder / name).relative_to(ROOT)}.json and .png")


def run_all(
    peers: Sequence[Peer], comparison: Comparison, rounds: int, say: Say
) -> list[Measurement]:
    """Each round takes the peers in turn, so that noise falls on all alike."""
    for peer in peers:
        say(f"warming up {peer.name}")
        for point in comparison.points:
            if comparison.takes(peer, point):
                measure(peer, point.share(_WARM_UP_SHARE), 0)
    measurements = []
    for point in comparison.points:
        for number in range(1, rounds + 1):
            for peer in comparison.order(peers, number):
                if not comparison.takes(peer, point):
                    continue
                measured = measure(peer, point, number)
                measurements.append(measured)
                say(
                    f"{point.label()}, round {number} of {rounds}, {peer.name}: "
                    f"{measured.client.rate_per_s:.0f}/s, p50 {measured.client.p50_ms:.2f} ms, "
                    f"{measured.broker_cpu_s_per_million:.0f} CPU s/million"
                )
    return measurements
