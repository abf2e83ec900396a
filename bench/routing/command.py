"""`python -m bench routing`: fan-out, topics, headers, TTL, priorities, ours beside RabbitMQ.

Each round takes every case with both sides in turn. A side's rate is set beside its own plain path
in the same round, and beside the other side's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from bench.comparison import BUILD, RESULTS, ROOT
from bench.measure import Point, machine_facts
from bench.peers.rabbitmq import peer as rabbitmq
from bench.peers.rabbitmq.cluster import RabbitCluster
from bench.rivals import require_rabbitmq
from bench.routing.cases import CASES
from bench.routing.measured import Measured, Side, measure
from bench.routing.ours import OurSide
from bench.routing.rabbit import RabbitSide
from bench.routing.report import OURS, THEIRS, print_report

SIDES = (OURS, THEIRS)
_WARM_UP_SHARE = 10


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench routing", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument("--count", type=int, default=20_000, help="messages (default: 20000)")
    parser.add_argument("--size", type=int, default=1024, help="bytes (default: 1024)")
    parser.add_argument("--window", type=int, default=1000, help="default: 1000")
    parser.add_argument("--peers", default=",".join(SIDES), help="default: %(default)s")
    parser.add_argument("--save", metavar="NAME", help="as bench/results/NAME, to be checked in")
    parser.add_argument("--json", action="store_true", help="the result on stdout, no table")
    parsed = parser.parse_args(arguments)
    parsed.peers = parsed.peers.split(",")
    unknown = sorted(set(parsed.peers) - set(SIDES))
    if unknown:
        parser.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(SIDES)}")
    if min(parsed.rounds, parsed.count, parsed.size, parsed.window) < 1:
        parser.error("--rounds, --count, --size and --window are 1 or more")
    if parsed.save and Path(parsed.save).name != parsed.save:
        parser.error("--save takes a name, not a path")
    return parsed


def bench(parsed: argparse.Namespace, progress: Console) -> None:
    """Raises `BenchError`, also for a node of ours that has logged an error."""
    if THEIRS in parsed.peers:
        require_rabbitmq()
    started = datetime.now(UTC)
    BUILD.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="routing-", dir=BUILD))
    point = Point(parsed.count, parsed.size, parsed.window)
    measured: list[Measured] = []
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        progress.print("starting the clusters")
        sides = _sides(parsed.peers, directory, stack)
        facts = {
            "started": started.isoformat(timespec="seconds"),
            "rounds": parsed.rounds,
            "machine": machine_facts(directory),
            "count": parsed.count,
            "size_bytes": parsed.size,
            "window": parsed.window,
        }
        for side in sides:
            progress.print(f"warming up {side.name}")
            for case in CASES:
                measure(side, case, point.share(_WARM_UP_SHARE), 0)
        for number in range(1, parsed.rounds + 1):
            for case in CASES:
                for side in sides:
                    measured.append(measure(side, case, point, number))
                    progress.print(
                        f"round {number} of {parsed.rounds}, {case.name}, {side.name}: "
                        f"{measured[-1].rate_per_s:.0f}/s"
                    )
    name = parsed.save or f"routing-{started:%Y%m%dT%H%M%SZ}"
    folder = RESULTS if parsed.save else RESULTS / "local"
    folder.mkdir(parents=True, exist_ok=True)
    result = {"name": name, **facts, "runs": [each.to_json() for each in measured]}
    (folder / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    if parsed.json:
        print(json.dumps(result))
    else:
        print_report(Console(), measured)
    progress.print(f"written: {(folder / name).relative_to(ROOT)}.json")


def _sides(names: Sequence[str], directory: Path, stack: ExitStack) -> list[Side]:
    sides: list[Side] = []
    if OURS in names:
        ours = OurSide(directory / "ringmq")
        stack.callback(ours.stop)
        ours.start()
        sides.append(ours)
    if THEIRS in names:
        cluster = RabbitCluster(directory / "rabbitmq")
        stack.callback(cluster.stop)
        cluster.start()
        theirs = RabbitSide(cluster, rabbitmq.build_client(BUILD))
        stack.callback(theirs.close)
        sides.append(theirs)
    return sides
