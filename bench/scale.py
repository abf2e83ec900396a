"""`python -m bench scale`: many queues on three local nodes.

How fast they are declared and for how much CPU time, what they cost while nothing happens, how
long it takes until all have a master again after a node was killed, until all are synchronised
once it is back, and the same with an empty data directory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

import ringmq
from bench import procs
from bench.measure import BenchError
from bench.peers.ringmq import NODES, check_logs
from ringmq_node.cli.cluster.local import LocalCluster

IDLE_S = 20.0
# What a node says of the directory that was emptied.
DISK_WAS_LOST = "that one was lost or replaced"
# Queues whose declares are measured together.
PART = 1000
# Each has `BODY_BYTES`, and they are published as one batch.
MESSAGES_MAX = 10_000
BODY_BYTES = 100
# No queue may be without a master, or a mirror not synchronised, for longer than this.
PHASE_S_MAX = 600.0
# The pause between two looks is as long as the look has taken, within these bounds: to list ten
# thousand queues is work for the nodes, too.
_POLL_S = 0.2
_POLL_S_MAX = 5.0


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """Of one cluster; memory and CPU are of all nodes together."""

    queues: int
    messages_in_each: int
    declared_at_once: int
    declare_rate_per_s: float
    # Of each `PART` queues, one after the other: it must not grow.
    declare_cpu_ms_per_queue: list[float]
    memory_bytes_per_queue_and_node: int
    idle_cpu_percent_of_a_core: float
    # From the kill of a node until every queue has a master, and from its start until every
    # replica is synchronised.
    death_s: float
    rejoin_s: float
    # The same for a node whose data directory was removed; and until it was ready.
    empty_ready_s: float
    empty_rejoin_s: float


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench scale", description=__doc__)
    parser.add_argument("--queues", type=int, default=2000, help="default: %(default)s")
    parser.add_argument("--at-once", type=int, default=64, help="declares under way (default: 64)")
    parser.add_argument(
        "--messages", type=int, default=0, help="in each queue when a node dies (default: 0)"
    )
    parser.add_argument("--registry", default="", help="an etcd; default: a SQLite file")
    parser.add_argument("--json", action="store_true", help="the result on stdout, no table")
    parsed = parser.parse_args(arguments)
    if parsed.queues < 1 or parsed.at_once < 1:
        parser.error("--queues and --at-once are 1 or more")
    if not 0 <= parsed.messages <= MESSAGES_MAX:
        parser.error(f"--messages is from 0 to {MESSAGES_MAX}")
    return parsed


def bench(parsed: argparse.Namespace, progress: Console) -> None:
    with tempfile.TemporaryDirectory(prefix="ringmq-scale-") as folder:
        directory = Path(folder) / "cluster"
        # Free ports: the user's own cluster may have the usual ones.
        cluster = LocalCluster.create(directory, nodes=NODES, base_port=0, registry=parsed.registry)
        try:
            result = asyncio.run(_measured(cluster, parsed, progress))
        finally:
            cluster.stop()
        logs = sorted((directory / "logs").glob("*.log"))
        check_logs("ringmq", logs, expected=[DISK_WAS_LOST])
    if parsed.json:
        print(json.dumps(asdict(result), indent=2))
        return
    for name, value in asdict(result).items():
        values = value if isinstance(value, list) else [value]
        Console().print(f"{name:34} {' '.join(f'{each:,.1f}' for each in values):>12}")


async def _measured(
    cluster: LocalCluster, parsed: argparse.Namespace, progress: Console
) -> ScaleResult:
    queues, at_once = parsed.queues, parsed.at_once
    pids = [cluster.start(each.node).pid for each in cluster.nodes]
    await cluster.wait_ready()
    before = procs.tree_use(pids)
    async with ringmq.connect(cluster.seeds, deadline_s=60.0) as client:
        parts: list[float] = []
        declared_s = await _timed(lambda: _declare_parts(client, queues, at_once, pids, parts))
        progress.print(f"declared in {declared_s:.1f} s")
        after = procs.tree_use(pids)
        await asyncio.sleep(IDLE_S)
        idle_cpu_s = procs.tree_use(pids).cpu_s - after.cpu_s
        if parsed.messages:
            await _publish(client, queues, at_once, parsed.messages)
    victim, *others = cluster.nodes
    async with ringmq.connect([each.address for each in others], deadline_s=60.0) as client:
        cluster.kill(victim.node)
        death_s = await _timed(lambda: _until_all(client, queues, replicas=0))
        progress.print(f"masters again after {death_s:.1f} s")
        cluster.start(victim.node)
        rejoin_s = await _timed(lambda: _until_all(client, queues, replicas=NODES))
        progress.print(f"synchronised after {rejoin_s:.1f} s")
        cluster.kill(victim.node)
        await _until_all(client, queues, replicas=0)
        shutil.rmtree(cluster.directory / victim.node)
        began = time.perf_counter()
        cluster.start(victim.node)
        await cluster.wait_ready(timeout_s=PHASE_S_MAX)
        empty_ready_s = time.perf_counter() - began
        await _until_all(client, queues, replicas=NODES)
        empty_rejoin_s = time.perf_counter() - began
    return ScaleResult(
        queues=queues,
        messages_in_each=parsed.messages,
        declared_at_once=at_once,
        declare_rate_per_s=queues / declared_s,
        declare_cpu_ms_per_queue=parts,
        memory_bytes_per_queue_and_node=(after.rss_bytes - before.rss_bytes) // queues // NODES,
        idle_cpu_percent_of_a_core=100 * idle_cpu_s / IDLE_S,
        death_s=death_s,
        rejoin_s=rejoin_s,
        empty_ready_s=empty_ready_s,
        empty_rejoin_s=empty_rejoin_s,
    )


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def _declare_parts(
    client: ringmq.Client, queues: int, at_once: int, pids: Sequence[int], cpu_ms: list[float]
) -> None:
    """Adds the nodes' CPU time for a queue to `cpu_ms`, once for each part."""
    for first in range(0, queues, PART):
        end = min(first + PART, queues)
        before_s = procs.tree_cpu_s(pids)
        await _declare(client, range(first, end), at_once)
        cpu_ms.append(1e3 * (procs.tree_cpu_s(pids) - before_s) / (end - first))


async def _declare(client: ringmq.Client, queues: Sequence[int], at_once: int) -> None:
    numbers = iter(queues)

    async def some() -> None:
        for number in numbers:
            await client.declare_queue(f"scale{number:06d}")

    await asyncio.gather(*(some() for _ in range(at_once)))


async def _publish(client: ringmq.Client, queues: int, at_once: int, messages: int) -> None:
    """To each queue: one that was never used costs its node less when it comes back."""
    numbers = iter(range(queues))
    bodies = [b"x" * BODY_BYTES] * messages

    async def some() -> None:
        for number in numbers:
            async with client.publisher(f"scale{number:06d}") as publisher:
                await publisher.publish_batch(bodies)

    await asyncio.gather(*(some() for _ in range(at_once)))


async def _until_all(client: ringmq.Client, queues: int, *, replicas: int) -> None:
    """Until every queue has a master, and so many synchronised replicas."""
    deadline = time.perf_counter() + PHASE_S_MAX
    while (began := time.perf_counter()) < deadline:
        infos: Sequence[ringmq.QueueInfo] = ()
        # On a loaded machine no node may have the time to answer, and the phase goes on.
        with contextlib.suppress(ringmq.TimedOutError):
            infos = await client.queues()
        good = [
            info
            for info in infos
            if info.state is ringmq.QueueState.RUNNING
            and sum(each.synchronised for each in info.ring) >= replicas
        ]
        if len(good) == queues:
            return
        await asyncio.sleep(min(_POLL_S_MAX, max(_POLL_S, time.perf_counter() - began)))
    raise BenchError(f"{len(good)} of {queues} queues are well after {PHASE_S_MAX:.0f} s")
