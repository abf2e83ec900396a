"""Our side: three local nodes, set up and published to by our own client."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import ringmq
from bench.measure import BenchError, ClientReport, Point
from bench.peers.ringmq import NODES, TREE, RingPeer
from bench.routing.cases import PRIORITY_MAX, Binding, Case
from bench.routing.publisher import Spec

_PUBLISH_TIMEOUT_S = 600.0
# Binds under way: ten thousand one after the other would take a minute.
_AT_ONCE = 64
T = TypeVar("T")


class OurSide:
    """`start`, then `stop`, once each. A node that logs a fault fails the run, as in `RingPeer`."""

    name = "ringmq"

    def __init__(self, directory: Path) -> None:
        self._cluster = RingPeer(directory)

    def start(self) -> None:
        self._cluster.start()

    def stop(self) -> None:
        self._cluster.stop()

    def broker_pids(self) -> Sequence[int]:
        return self._cluster.broker_pids()

    def set_up(self, case: Case, label: str) -> None:
        self._run(lambda client: _set_up(client, case, label))

    def publish(self, case: Case, label: str, point: Point) -> ClientReport:
        spec = Spec(
            seeds=self._cluster.seeds,
            count=point.count,
            size_bytes=point.size_bytes,
            window=point.window,
            queue="" if case.exchange else f"{label}.0",
            exchange=label if case.exchange else None,
            key=case.key,
            headers=dict([case.header] if case.header else []),
            ttl_ms=case.ttl_ms,
            priority=case.priority,
        )
        done = subprocess.run(
            [sys.executable, "-m", "bench.routing.publisher", spec.encode()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PUBLISH_TIMEOUT_S,
            cwd=TREE,
        )
        if done.returncode:
            raise BenchError(f"{self.name}, {case.name}: {done.stderr.strip()}")
        report = json.loads(done.stdout)
        if failure := report.pop("failure"):
            raise BenchError(f"{self.name}, {case.name}: {failure}")
        return ClientReport(**report)

    def depths(self, case: Case, label: str) -> list[int]:
        return self._run(lambda client: _depths(client, case, label))

    def remove(self, case: Case, label: str) -> None:
        self._run(lambda client: _remove(client, case, label))

    def _run(self, work: Callable[[ringmq.Client], Awaitable[T]]) -> T:
        async def main() -> T:
            async with ringmq.connect(self._cluster.seeds) as client:
                return await work(client)

        return asyncio.run(main())


async def _set_up(client: ringmq.Client, case: Case, label: str) -> None:
    rules = ringmq.QueueRules(max_priority=None if case.priority is None else PRIORITY_MAX)
    for number in range(case.queues):
        await client.declare_queue(f"{label}.{number}", rules=rules)
    if not case.exchange:
        return
    await client.topology.declare_exchange(label, ringmq.ExchangeType(case.exchange))
    topology = client.topology
    room = asyncio.Semaphore(_AT_ONCE)

    async def bind(binding: Binding) -> None:
        async with room:
            arguments = {"x-match": "all", **dict(binding.headers)} if binding.headers else None
            queue = f"{label}.{binding.queue}"
            await topology.bind(label, queue, binding.key, arguments=arguments)

    async with asyncio.TaskGroup() as binds:
        for binding in case.each_binding():
            binds.create_task(bind(binding))


async def _depths(client: ringmq.Client, case: Case, label: str) -> list[int]:
    found = [await client.queue(f"{label}.{number}") for number in range(case.queues)]
    for info in found:
        if sum(replica.synchronised for replica in info.ring) != NODES:
            raise BenchError(f"{info.queue} isn't synchronised on {NODES} nodes")
    return [info.messages_ready for info in found]


async def _remove(client: ringmq.Client, case: Case, label: str) -> None:
    for number in range(case.queues):
        await client.delete_queue(f"{label}.{number}")
    if case.exchange:
        await client.topology.delete_exchange(label)
