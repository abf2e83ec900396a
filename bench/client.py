"""`python -m bench client`: what one publish at a time costs its program, with asyncio and without.

Three local nodes. Each round publishes with `Publisher` and with `SyncPublisher`, one message after
the other's confirm, each kind in a process of its own and on a queue of its own; the kind that goes
first alternates. `client_turns` says what is measured in such a process.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.client_turns import ASYNC, BODY, KINDS, SYNC, ClientRun
from bench.comparison import BUILD
from bench.measure import BenchError, machine_facts
from bench.peers.ringmq import RingPeer
from bench.procs import machine_cpu
from bench.report import WIDTH_PIPED, cell
from bench.stats import paired_ratio, spread
from bench.turns import add_turns, parse_turns

COUNT, SHORT_COUNT = 3000, 200
ROUNDS = 3
RUN_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Figure:
    """A field of `ClientRun`, its heading, and how to print it; `compared` beside the other's."""

    name: str
    heading: str
    digits: int
    compared: bool = True

    def value(self, run: ClientRun) -> float:
        return float(getattr(run, self.name))


FIGURES = (
    Figure("rate_per_s", "messages/s", 0),
    Figure("p50_ms", "p50 ms", 3),
    Figure("p99_ms", "p99 ms", 3),
    Figure("cpu_us", "client CPU us/message", 0),
    # Near 0 for both, and so without a ratio.
    Figure("kept_blocks", "blocks kept/message", 3, compared=False),
    Figure("peak_bytes", "peak bytes of a publish", 0),
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench client", description=__doc__)
    add_turns(parser, of="both clients", rounds=ROUNDS, count=COUNT, short_count=SHORT_COUNT)
    return parse_turns(parser, arguments)


def in_turns(round_number: int) -> Sequence[str]:
    """The clients of a round, counted from 1."""
    return KINDS if round_number % 2 else KINDS[::-1]


def bench(parsed: argparse.Namespace, progress: Console) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="client-", dir=BUILD))
    peer = RingPeer(folder / "ringmq")
    try:
        try:
            peer.start()
            began = machine_cpu()
            runs = _rounds(peer, parsed, progress)
            busy = machine_cpu().since(began)
        finally:
            peer.stop()
        facts = machine_facts(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if parsed.json:
        print(json.dumps({"machine": facts, "runs": [asdict(each) for each in runs]}, indent=2))
        return
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH_PIPED
    console.print(table(runs, parsed.count))
    console.print(
        "Medians of the rounds, with the least and the most under them; ratios are taken in each "
        f"round first. All processes together took {busy.busy_s / busy.elapsed_s:.1f}"
        f" of {facts['cores']} cores."
    )


def _rounds(peer: RingPeer, parsed: argparse.Namespace, progress: Console) -> list[ClientRun]:
    runs = []
    for number in range(1, parsed.rounds + 1):
        for kind in in_turns(number):
            queue = f"{kind}.{number}"
            peer.prepare([queue])
            run = _one_run(kind, number, ",".join(peer.seeds), queue, parsed.count)
            peer.remove([queue])
            runs.append(run)
            progress.print(
                f"round {number} of {parsed.rounds}, {kind}: {run.rate_per_s:.0f}/s, "
                f"p50 {run.p50_ms:.2f} ms, {run.cpu_us:.0f} us of CPU a message"
            )
    return runs


def _one_run(kind: str, number: int, seeds: str, queue: str, count: int) -> ClientRun:
    words = [kind, str(number), seeds, queue, str(count)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.client_turns", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_TIMEOUT_S,
    )
    if done.returncode:
        raise BenchError(f"the client with {kind} failed: {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return ClientRun(**found)


def table(runs: Sequence[ClientRun], count: int) -> Table:
    """A row for each figure: both clients, and their ratio where it says something."""
    title = f"window 1, {len(BODY)} B, {count} messages"
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    for heading in ("", ASYNC, SYNC, f"{SYNC} /\n{ASYNC}"):
        shown.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    with_asyncio, without = ([run for run in runs if run.kind == kind] for kind in KINDS)
    for figure in FIGURES:
        cells = [
            cell(spread([*map(figure.value, side)]), figure.digits)
            for side in (with_asyncio, without)
        ]
        if figure.compared:
            cells.append(cell(paired_ratio(without, with_asyncio, figure.value), 2))
        shown.add_row(figure.heading, *cells)
    return shown
