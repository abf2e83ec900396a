"""`python -m bench`: starts the clusters, runs them side by side, reports, ends them.

`--against CHECKOUT` takes another tree of ours instead of RabbitMQ and prints the ratio of each
pair of runs. `python -m bench storage` measures the storage engine alone, `python -m bench wire`
the transport, `python -m bench client` one publish at a time in the program that publishes,
`python -m bench properties` messages with properties, `python -m bench profile` where the nodes'
Python time goes,
`python -m bench scale` many queues, `python -m bench failover` dying masters,
`python -m bench routing` exchanges, TTL and priorities, `python -m bench backpressure` memory while
something doesn't keep up, `python -m bench soak` over an hour of kills, `python -m bench pipeline`
Spark beside the broker.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from bench import against, backpressure, client, properties, rivals, soak, wire
from bench.comparison import carry_out
from bench.measure import BenchError
from bench.profiling import command as profiling
from bench.storage import command as storage


@dataclass(frozen=True, slots=True)
class Verb:
    """One benchmark: its command line, and the run, which raises `BenchError`."""

    parse: Callable[[Sequence[str]], argparse.Namespace]
    bench: Callable[[argparse.Namespace, Console], None]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--peers",
        default=",".join(rivals.PEERS),
        help="which, with commas between (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=_positive, default=3, help="runs of each (default: 3)")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="another tree, with its .venv, as the only peer beside this one; "
        "points of its own: windows 1, 100 and 1000, and 10 queues",
    )
    parser.add_argument(
        "--full", action="store_true", help="100 queues and bodies of 64 KiB as well"
    )
    parser.add_argument(
        "--window", type=_positive, help="only this one, and window 1, instead of all rows"
    )
    parser.add_argument("--size", type=_positive, default=1024, help="with --window; bytes (1024)")
    parser.add_argument("--count", type=_positive, default=40_000, help="with --window (40000)")
    parser.add_argument(
        "--latency-count",
        type=int,
        default=3000,
        help="with --window: at window 1; 0 leaves it out (3000)",
    )
    parser.add_argument("--save", metavar="NAME", help="as bench/results/NAME, to be checked in")
    parser.add_argument("--json", action="store_true", help="the result file on stdout, no table")
    parser.add_argument(
        "--check-installed", action="store_true", help="only say what RabbitMQ's side lacks"
    )
    parsed = parser.parse_args(arguments)
    parsed.peers = parsed.peers.split(",")
    unknown = sorted(set(parsed.peers) - set(rivals.PEERS))
    if unknown:
        parser.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(rivals.PEERS)}")
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


def bench(parsed: argparse.Namespace, progress: Console) -> None:
    if parsed.check_installed:
        rivals.require_rabbitmq()
        progress.print("RabbitMQ's side is complete")
        return
    if parsed.against is not None:
        comparison = against.comparison(parsed.against)
    elif parsed.window is None:
        comparison = rivals.comparison(
            parsed.peers, rivals.FULL_ROWS if parsed.full else rivals.ROWS
        )
    else:
        points = rivals.points_of(
            size_bytes=parsed.size,
            window=parsed.window,
            count=parsed.count,
            latency_count=parsed.latency_count,
        )
        comparison = rivals.comparison(parsed.peers, points)
    carry_out(
        comparison,
        rounds=parsed.rounds,
        save=parsed.save,
        as_json=parsed.json,
        progress=progress,
    )


def _terminated(_signal_number: int, _frame: object) -> NoReturn:
    # As an exception, so that the stacks end the clusters that they have started.
    sys.exit(143)


def _verb(name: str) -> Verb | None:
    """The benchmark with a name of its own; None for the plain one."""
    match name:
        case "storage":
            return Verb(storage.parse, storage.bench)
        case "wire":
            return Verb(wire.parse, wire.bench)
        case "client":
            return Verb(client.parse, client.bench)
        case "properties":
            return Verb(properties.parse, properties.bench)
        case "profile":
            return Verb(profiling.parse, profiling.bench)
        # Not above: these bring the cluster tests' nemesis, pika and Spark, which no other needs.
        case "failover":
            failover = import_module("bench.failover.command")
            return Verb(failover.parse, failover.bench)
        case "scale":
            scale = import_module("bench.scale.command")
            return Verb(scale.parse, scale.bench)
        case "backpressure":
            return Verb(backpressure.parse, backpressure.bench)
        case "soak":
            return Verb(soak.parse, soak.bench)
        case "routing":
            routing = import_module("bench.routing.command")
            return Verb(routing.parse, routing.bench)
        case "pipeline":
            pipeline = import_module("bench.pipeline.command")
            return Verb(pipeline.parse, pipeline.bench)
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    verb = _verb(words[0]) if words else None
    verb, words = (verb, words[1:]) if verb is not None else (Verb(parse, bench), words)
    parsed = verb.parse(words)
    signal.signal(signal.SIGTERM, _terminated)
    # Without markup: a log line in brackets is no style, and rich raises on one that it can't read.
    progress = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    try:
        verb.bench(parsed, progress)
    except (BenchError, subprocess.TimeoutExpired, OSError) as error:
        # An end that fails doesn't hide the failure that led to it.
        for each in filter(None, (error.__context__, error)):
            progress.print(f"bench: {each}", style="red")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
