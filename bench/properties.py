"""`python -m bench properties`: what messages with properties cost, beside messages without.

All other benchmarks publish bare bodies, as the clients of the peers do. Programs set properties:
an id, a time, headers. Three local nodes; each round publishes at window 1000, one call a message,
and then consumes and acknowledges what is there, with each kind of properties in turn:

* `none`: bodies alone;
* `shared`: the same two properties with each message;
* `own`: an id and a time of its own;
* `headers`: these, a content type and three headers.

Processor time is the figure to look at: the client, a process with one loop, bounds the rates.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import ringmq
from bench import procs
from bench.comparison import BUILD
from bench.measure import machine_facts
from bench.peers.ringmq import RingPeer
from bench.report import WIDTH_PIPED, cell
from bench.stats import spread
from bench.turns import add_turns, parse_turns

COUNT, SHORT_COUNT = 50_000, 500
ROUNDS = 3
WINDOW = 1000
BODY = bytes(1024)
QUEUE = "properties"
MICROS = 1e6
SINCE_MS = 1_750_000_000_000
SHARED = ringmq.Properties(content_type="application/json", timestamp_ms=SINCE_MS)


def none(_: int) -> None:
    return None


def shared(_: int) -> ringmq.Properties:
    return SHARED


def own(number: int) -> ringmq.Properties:
    return ringmq.Properties(message_id=f"{number}", timestamp_ms=SINCE_MS + number)


def headers(number: int) -> ringmq.Properties:
    return ringmq.Properties(
        message_id=f"{number}",
        timestamp_ms=SINCE_MS + number,
        content_type="application/json",
        headers={"tenant": "of a customer", "try": 1, "number": number},
    )


KINDS: dict[str, Callable[[int], ringmq.Properties | None]] = {
    each.__name__: each for each in (none, shared, own, headers)
}


@dataclass(frozen=True, slots=True)
class Measured:
    """`node_us`: of the three nodes together, for a message; so `client_us`."""

    nodes_of: str
    kind: str
    does: str
    round: int
    rate_per_s: float
    node_us: float
    client_us: float


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench properties",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_turns(parser, of="all kinds", rounds=ROUNDS, count=COUNT, short_count=SHORT_COUNT)
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="nodes of another tree, with its .venv, beside this one's; the client is this one's",
    )
    return parse_turns(parser, arguments)


def bench(parsed: argparse.Namespace, progress: Console) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="properties-", dir=BUILD))
    peers = [RingPeer(folder / "this", name="this tree")]
    if parsed.against is not None:
        peers.append(RingPeer(folder / "other", name="the other", tree=parsed.against.resolve()))
    started: list[RingPeer] = []
    try:
        try:
            for peer in peers:
                started.append(peer)
                peer.start()
            measured = _rounds(peers, parsed, progress)
        finally:
            for peer in started:
                peer.stop()
        facts = machine_facts(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if parsed.json:
        runs = [asdict(each) for each in measured]
        print(json.dumps({"machine": facts, "runs": runs}, indent=2))
        return
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH_PIPED
    console.print(table(measured, parsed.count))
    console.print("Medians of the rounds, with the least and the most under them.")


def _rounds(
    peers: Sequence[RingPeer], parsed: argparse.Namespace, progress: Console
) -> list[Measured]:
    measured = []
    for number in range(1, parsed.rounds + 1):
        for kind in KINDS:
            for peer in peers if number % 2 else peers[::-1]:
                peer.prepare([QUEUE])
                found = uvloop.run(_turn(peer, kind, number, parsed.count))
                peer.remove([QUEUE])
                measured += found
                said = ", ".join(f"{each.does} {each.rate_per_s:.0f}/s" for each in found)
                progress.print(f"round {number} of {parsed.rounds}, {peer.name}, {kind}: {said}")
    return measured


async def _turn(peer: RingPeer, kind: str, number: int, count: int) -> list[Measured]:
    """Publishes, and consumes all of it."""
    found = []

    async def measure(does: str, work: Awaitable[None]) -> None:
        nodes, client, began = procs.tree_cpu_s(peer.broker_pids()), _own_cpu_s(), time.monotonic()
        await work
        seconds = time.monotonic() - began
        client_us = (_own_cpu_s() - client) / count * MICROS
        node_us = (procs.tree_cpu_s(peer.broker_pids()) - nodes) / count * MICROS
        found.append(Measured(peer.name, kind, does, number, count / seconds, node_us, client_us))

    async with await ringmq.connect(peer.seeds) as client:
        # Made before the clock runs: what making them costs is the program's own.
        properties = [*map(KINDS[kind], range(count))]
        await measure("publish", _publish(client, properties))
        await measure("consume", _consume(client, count))
    return found


async def _publish(client: ringmq.Client, properties: Sequence[ringmq.Properties | None]) -> None:
    async with client.publisher(QUEUE, window_messages=WINDOW) as publisher:
        for first in range(0, len(properties), WINDOW // 2):
            half = [
                publisher.publish_nowait(BODY, each)
                for each in properties[first : first + WINDOW // 2]
            ]
            # The other half is on its way meanwhile.
            await half[0]
        await publisher.flush()


async def _consume(client: ringmq.Client, count: int) -> None:
    async with client.consumer(QUEUE, prefetch=WINDOW) as consumer:
        left = count
        async for batch in consumer:
            await consumer.ack(batch)
            left -= len(batch)
            if left <= 0:
                return


def _own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def table(measured: Sequence[Measured], count: int) -> Table:
    title = f"window {WINDOW}, {len(BODY)} B, {count} messages"
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    for heading in ("", "nodes of", "messages/s", "nodes, us/message", "client, us/message"):
        shown.add_column(heading, justify="left" if heading in ("", "nodes of") else "right")
    rows = dict.fromkeys((each.does, each.kind, each.nodes_of) for each in measured)
    for does, kind, nodes_of in sorted(rows, key=lambda row: row[0] != "publish"):
        of = [
            each
            for each in measured
            if (each.does, each.kind, each.nodes_of) == (does, kind, nodes_of)
        ]
        shown.add_row(
            f"{does}, {kind}",
            nodes_of,
            cell(spread([each.rate_per_s for each in of]), 0),
            cell(spread([each.node_us for each in of]), 1),
            cell(spread([each.client_us for each in of]), 1),
        )
    return shown
