"""`python -m bench failover`: kills and cuts the master under load, ours beside RabbitMQ's queues.

Each system is a cluster of three nodes in network namespaces (root only). A publisher works on one
queue for each, at a fixed rate. The master is killed and restarted, then cut from the other
servers, `--kills` times each: how long no confirm came, and what was lost. With `--catch-up N` a
mirror that lacks a hundredth of N messages comes back.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

from nemesis.network import Network, NoNamespacesError
from rich.console import Console

from bench.comparison import BUILD, RESULTS, ROOT
from bench.failover import picture, rabbit, report, ring
from bench.failover.catchup import catch_up
from bench.failover.report import Result
from bench.failover.rounds import FAULTS, Pace, Rounds
from bench.failover.systems import FAILOVER, System
from bench.measure import BenchError, machine_facts
from bench.peers.rabbitmq.peer import build_client
from bench.rivals import require_rabbitmq

SYSTEMS = (ring.KIND, *rabbit.TYPES)
CLIENTS = "clients"
# As little as a hundredth of it is a few messages.
CATCH_UP_MIN = 1000


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench failover", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--kills", type=int, default=20, help="faults of each kind (default: 20)")
    parser.add_argument("--faults", default=",".join(FAULTS), help="default: %(default)s")
    parser.add_argument("--peers", default=",".join(SYSTEMS), help="default: %(default)s")
    parser.add_argument("--rate", type=int, default=1000, help="messages/s of a queue (1000)")
    parser.add_argument("--window", type=int, default=1000, help="unconfirmed ones (1000)")
    parser.add_argument("--size", type=int, default=1024, help="bytes (default: 1024)")
    parser.add_argument("--cut-s", type=float, default=5.0, help="how long a cut lasts (5)")
    parser.add_argument(
        "--catch-up", type=int, default=100_000, metavar="N", help="0 leaves it out (100000)"
    )
    parser.add_argument("--save", metavar="NAME", help="as bench/results/NAME, to be checked in")
    parser.add_argument("--json", action="store_true", help="the result on stdout, no table")
    parsed = parser.parse_args(arguments)
    for name, known in (("faults", FAULTS), ("peers", SYSTEMS)):
        words = [word for word in getattr(parsed, name).split(",") if word]
        unknown = sorted(set(words) - set(known))
        if unknown:
            parser.error(f"--{name}: no {', '.join(unknown)}; there are {', '.join(known)}")
        setattr(parsed, name, words)
    if parsed.kills < 0 or parsed.rate < 1 or parsed.window < 1 or parsed.cut_s <= 0:
        parser.error("--kills is 0 or more, --rate and --window 1 or more, --cut-s above 0")
    if parsed.size < 8:
        parser.error("--size is 8 or more: a message carries its number")
    if parsed.window < parsed.rate / 50:
        parser.error("--window is at least a fiftieth of --rate: a burst has to fit")
    if parsed.catch_up and parsed.catch_up < CATCH_UP_MIN:
        parser.error(f"--catch-up is 0, or {CATCH_UP_MIN} or more")
    if parsed.save and Path(parsed.save).name != parsed.save:
        parser.error("--save takes a name, not a path")
    return parsed


def bench(parsed: argparse.Namespace, progress: Console) -> None:
    """Raises `BenchError`. What was measured before that, or before Ctrl-C, is written anyhow."""
    if set(parsed.peers) & set(rabbit.TYPES):
        require_rabbitmq()
    started = datetime.now(UTC)
    BUILD.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="failover-", dir=BUILD))
    result = Result(
        name=parsed.save or f"failover-{started:%Y%m%dT%H%M%SZ}",
        started=started.isoformat(timespec="seconds"),
        machine=machine_facts(directory),
        pace=Pace(parsed.rate, parsed.window, parsed.size, parsed.cut_s),
    )
    try:
        asyncio.run(_measure(parsed, directory, result, progress))
    except NoNamespacesError as error:
        raise BenchError(str(error)) from error
    except BaseException as error:
        result.failure = str(error) or repr(error)
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if result.faults or result.catch_ups:
            _write(parsed, result, progress)


def _write(parsed: argparse.Namespace, result: Result, progress: Console) -> None:
    folder = RESULTS if parsed.save else RESULTS / "local"
    folder.mkdir(parents=True, exist_ok=True)
    content = report.to_json(result)
    (folder / f"{result.name}.json").write_text(json.dumps(content, indent=2) + "\n")
    picture.save(folder / f"{result.name}.png", result)
    if parsed.json:
        print(json.dumps(content))
    else:
        report.print_report(Console(), result)
    progress.print(f"written: {(folder / result.name).relative_to(ROOT)}.json and .png")


async def _measure(
    parsed: argparse.Namespace, directory: Path, result: Result, progress: Console
) -> None:
    say = progress.print
    hosts = (*ring.NODES, ring.REGISTRY_HOST, *rabbit.HOSTS, CLIENTS)
    with Network(*hosts) as network:
        # This process is on the clients' host from now on, with all threads that it starts.
        network.enter(CLIENTS)
        async with AsyncExitStack() as stack:
            systems = _systems(parsed.peers, directory, network)
            for system in systems:
                say(f"starting {', '.join(system.kinds)}")
                stack.push_async_callback(system.stop)
                await system.start()
                result.peers |= {kind: system.describe() for kind in system.kinds}
                for kind in system.kinds:
                    await system.declare(kind, FAILOVER)
            rounds = Rounds(result.pace, parsed.kills, say, result.faults)
            await rounds.play(systems, parsed.faults if parsed.kills else ())
            if parsed.catch_up:
                for system in systems:
                    for kind in system.kinds:
                        result.catch_ups.append(
                            await catch_up(system, kind, parsed.catch_up, result.pace, say)
                        )


def _systems(peers: Sequence[str], directory: Path, network: Network) -> list[System]:
    systems: list[System] = []
    if ring.KIND in peers:
        systems.append(ring.RingSystem(directory / "ringmq", network))
    kinds = [kind for kind in rabbit.TYPES if kind in peers]
    if kinds:
        client = build_client(BUILD)
        systems.append(rabbit.RabbitSystem(directory / "rabbitmq", network, kinds, client))
    return systems
