"""`python -m bench scale`: many queues on three local nodes, ours beside RabbitMQ's.

How fast they are declared and for how much CPU time, what they cost while nothing happens, how
long it takes until all have a master again after a node was killed, until all are synchronised
once it is back, and the same with an empty data directory. One system after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.console import Console

from bench.comparison import BUILD, RESULTS, ROOT
from bench.measure import machine_facts
from bench.rivals import require_rabbitmq
from bench.scale.course import Course, ScaleResult, System
from bench.scale.ours import OurSystem
from bench.scale.rabbit import RabbitSystem
from bench.scale.report import print_report

PEERS = (OurSystem.name, RabbitSystem.name)
MESSAGES_MAX = 10_000


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench scale", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--queues", type=int, default=2000, help="default: %(default)s")
    parser.add_argument("--at-once", type=int, default=64, help="declares under way (default: 64)")
    parser.add_argument(
        "--messages", type=int, default=0, help="in each queue when a node dies (default: 0)"
    )
    parser.add_argument("--registry", default="", help="an etcd; default: a SQLite file")
    parser.add_argument("--peers", default=",".join(PEERS), help="default: %(default)s")
    parser.add_argument("--save", metavar="NAME", help="as bench/results/NAME, to be checked in")
    parser.add_argument("--json", action="store_true", help="the result on stdout, no table")
    parsed = parser.parse_args(arguments)
    parsed.peers = parsed.peers.split(",")
    unknown = sorted(set(parsed.peers) - set(PEERS))
    if unknown:
        parser.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    if parsed.queues < 1 or parsed.at_once < 1:
        parser.error("--queues and --at-once are 1 or more")
    if not 0 <= parsed.messages <= MESSAGES_MAX:
        parser.error(f"--messages is from 0 to {MESSAGES_MAX}")
    if parsed.save and Path(parsed.save).name != parsed.save:
        parser.error("--save takes a name, not a path")
    return parsed


def bench(parsed: argparse.Namespace, progress: Console) -> None:
    """Raises `BenchError`, also for a node of ours that has logged an error."""
    if RabbitSystem.name in parsed.peers:
        require_rabbitmq()
    started = datetime.now(UTC)
    BUILD.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="scale-", dir=BUILD))
    results: list[ScaleResult] = []
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        facts = {
            "started": started.isoformat(timespec="seconds"),
            "registry": "etcd" if parsed.registry else "SQLite",
            "machine": machine_facts(directory),
        }
        for name in PEERS:
            if name in parsed.peers:
                system = _system(name, directory, parsed)
                result = ScaleResult(name, parsed.queues, parsed.messages, parsed.at_once)
                say = partial(_say, progress, name)
                results.append(asyncio.run(Course(system, result, say).play()))
    name = parsed.save or f"scale-{started:%Y%m%dT%H%M%SZ}"
    folder = RESULTS if parsed.save else RESULTS / "local"
    folder.mkdir(parents=True, exist_ok=True)
    whole = {"name": name, **facts, "systems": [asdict(each) for each in results]}
    (folder / f"{name}.json").write_text(json.dumps(whole, indent=2) + "\n")
    if parsed.json:
        print(json.dumps(whole))
    else:
        print_report(Console(), results)
    progress.print(f"written: {(folder / name).relative_to(ROOT)}.json")


def _system(name: str, directory: Path, parsed: argparse.Namespace) -> System:
    if name == OurSystem.name:
        return OurSystem(directory / name, parsed.registry, parsed.at_once)
    return RabbitSystem(directory / name, parsed.at_once)


def _say(progress: Console, name: str, text: str) -> None:
    progress.print(f"{name}: {text}")
