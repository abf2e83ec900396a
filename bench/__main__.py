"""`python -m bench`: starts the clusters, runs them side by side, reports, ends them.

`python -m bench storage` measures the storage engine alone instead.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from bench import plot, report
from bench.measure import BenchError, Measurement, Peer, Point, machine_facts, measure
from bench.peers.bare_ring import BareRing
from bench.peers.footing import Footing
from bench.peers.rabbitmq import peer as rabbitmq
from bench.peers.rabbitmq.cluster import RabbitCluster
from bench.peers.ringmq import RingPeer
from bench.storage import command as storage

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"
RESULTS = Path(__file__).resolve().parent / "results"
PEERS = ("ringmq", "rabbitmq", "rabbitmq-quorum", "bare-ring", "disk")
# The share of a point that warms a peer up: connections, the Erlang JIT, page cache.
_WARM_UP_SHARE = 10


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--peers", default=",".join(PEERS), help="which, with commas between (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=_positive, default=3, help="runs of each (default: 3)")
    parser.add_argument("--size", type=_positive, default=1024, help="bytes (default: 1024)")
    parser.add_argument("--window", type=_positive, default=1000, help="default: 1000")
    parser.add_argument("--count", type=_positive, default=40_000, help="default: 40000")
    parser.add_argument(
        "--latency-count", type=int, default=3000, help="at window 1; 0 leaves it out (3000)"
    )
    parser.add_argument("--save", metavar="NAME", help="as bench/results/NAME, to be checked in")
    parser.add_argument("--json", action="store_true", help="the result file on stdout, no table")
    parser.add_argument(
        "--check-installed", action="store_true", help="only say what RabbitMQ's side lacks"
    )
    parsed = parser.parse_args(arguments)
    parsed.peers = parsed.peers.split(",")
    unknown = sorted(set(parsed.peers) - set(PEERS))
    if unknown:
        parser.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    if parsed.latency_count < 0:
        parser.error("--latency-count can't be negative")
    if parsed.save and Path(parsed.save).name != parsed.save:
        parser.error("--save takes a name, not a path")
    return parsed


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def points_of(parsed: argparse.Namespace) -> list[Point]:
    points = [Point(parsed.count, parsed.size, parsed.window)]
    if parsed.latency_count and parsed.window != 1:
        points.append(Point(parsed.latency_count, parsed.size, 1))
    return points


def require_rabbitmq() -> None:
    missing = rabbitmq.missing()
    if missing:
        raise BenchError(
            f"RabbitMQ's side lacks {', '.join(missing)}. On Debian or Ubuntu, as root:\n"
            f"  {rabbitmq.APT_COMMAND}\n"
            "or leave it out: --peers ringmq,disk"
        )


def start_peers(names: Sequence[str], directory: Path, stack: ExitStack) -> list[Peer]:
    """Starts what is asked for; `stack` ends it. Peers come back in the order of `PEERS`."""
    peers: list[Peer] = []
    if "ringmq" in names:
        ours = RingPeer(directory / "ringmq")
        stack.callback(ours.stop)
        ours.start()
        peers.append(ours)
    if "rabbitmq" in names or "rabbitmq-quorum" in names:
        require_rabbitmq()
        client = rabbitmq.build_client(BUILD)
        cluster = RabbitCluster(directory / "rabbitmq")
        stack.callback(cluster.stop)
        cluster.start()
        if "rabbitmq" in names:
            peers.append(rabbitmq.RabbitPeer(cluster, client, "classic"))
        if "rabbitmq-quorum" in names:
            peers.append(rabbitmq.RabbitPeer(cluster, client, "quorum"))
    if "bare-ring" in names:
        bare = BareRing(directory / "bare-ring")
        stack.callback(bare.stop)
        peers.append(bare)
    if "disk" in names:
        peers.append(Footing(directory))
    return peers


def run_all(
    peers: Sequence[Peer], points: Sequence[Point], rounds: int, say: Callable[[str], None]
) -> list[Measurement]:
    """Each round takes the peers in turn, so that noise falls on all alike."""
    for peer in peers:
        say(f"warming up {peer.name}")
        for point in points:
            share = max(point.count // _WARM_UP_SHARE, 1)
            measure(peer, Point(share, point.size_bytes, point.window), 0)
    measurements = []
    for point in points:
        for number in range(1, rounds + 1):
            for peer in peers:
                measured = measure(peer, point, number)
                measurements.append(measured)
                say(
                    f"{point.label()}, round {number} of {rounds}, {peer.name}: "
                    f"{measured.client.rate_per_s:.0f}/s, p50 {measured.client.p50_ms:.2f} ms, "
                    f"{measured.broker_cpu_s_per_million:.0f} CPU s/million"
                )
    return measurements


def bench(parsed: argparse.Namespace, progress: Console) -> None:
    points = points_of(parsed)
    started = datetime.now(UTC)
    BUILD.mkdir(parents=True, exist_ok=True)
    # Not in the system's temporary directory, which may be memory: fsync would cost nothing.
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=BUILD))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        progress.print("starting the clusters")
        peers = start_peers(parsed.peers, directory, stack)
        facts = {
            "started": started.isoformat(timespec="seconds"),
            "rounds": parsed.rounds,
            "machine": machine_facts(directory),
            "peers": {peer.name: peer.describe() for peer in peers},
        }
        measurements = run_all(peers, points, parsed.rounds, progress.print)
    name = parsed.save or f"{started:%Y%m%dT%H%M%SZ}"
    folder = RESULTS if parsed.save else RESULTS / "local"
    folder.mkdir(parents=True, exist_ok=True)
    result = report.to_json(name, facts, measurements, points)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
    plot.save(folder / f"{name}.png", measurements, points)
    if parsed.json:
        print(json.dumps(result))
    else:
        report.print_report(Console(), measurements, points)
    progress.print(f"written: {(folder / name).relative_to(ROOT)}.json and .png")


def _terminated(_signal_number: int, _frame: object) -> NoReturn:
    # As an exception, so that what was started is ended.
    sys.exit(143)


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    of_storage = words[:1] == ["storage"]
    parsed = storage.parse(words[1:]) if of_storage else parse(words)
    signal.signal(signal.SIGTERM, _terminated)
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        if of_storage:
            storage.bench(parsed, progress)
        elif parsed.check_installed:
            require_rabbitmq()
            progress.print("RabbitMQ's side is complete")
        else:
            bench(parsed, progress)
    except (BenchError, subprocess.TimeoutExpired, OSError) as error:
        # An end that fails doesn't hide the failure that led to it.
        for each in filter(None, (error.__context__, error)):
            progress.print(f"bench: {each}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
