"""Three local nodes of ours. Queues are mirrored on all of them, which is the default."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import ringmq
from bench.peers.ringmq import check_logs
from bench.scale.course import NODES, PHASE_S_MAX
from ringmq_node.cli.cluster.local import LocalCluster

_DEADLINE_S = 60.0
_BODY = b"x" * 100
# What a node says of the directory that was emptied.
_DISK_WAS_LOST = "that one was lost or replaced"


class OurSystem:
    name = "ringmq"
    refills = True

    def __init__(self, directory: Path, registry: str, at_once: int) -> None:
        """`registry`: the URL of one; empty: a SQLite file."""
        self._directory = directory
        self._at_once = at_once
        # Free ports: the user's own cluster may have the usual ones.
        self._cluster = LocalCluster.create(directory, nodes=NODES, base_port=0, registry=registry)
        self._pids: dict[str, int] = {}
        self._client: ringmq.Client | None = None
        self._victim, *self._others = self._cluster.nodes

    async def start(self) -> None:
        for each in self._cluster.nodes:
            self._pids[each.node] = self._cluster.start(each.node).pid
        await self._cluster.wait_ready()
        await self._connect(self._cluster.seeds)

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close()
        self._cluster.stop()
        logs = sorted((self._directory / "logs").glob("*.log"))
        check_logs(self.name, logs, expected=[_DISK_WAS_LOST])

    def pids(self) -> Sequence[int]:
        return [*self._pids.values()]

    async def declare(self, queues: Sequence[int]) -> None:
        client = self._connected

        async def declare(number: int) -> None:
            await client.declare_queue(_name(number))

        await self._each(queues, declare)

    async def publish(self, queues: Sequence[int], messages: int) -> None:
        client, bodies = self._connected, [_BODY] * messages

        async def publish(number: int) -> None:
            async with client.publisher(_name(number)) as publisher:
                await publisher.publish_batch(bodies)

        await self._each(queues, publish)

    async def well(self, replicas: int) -> int:
        # On a loaded machine no node may have the time to answer, and the phase goes on.
        with contextlib.suppress(ringmq.TimedOutError):
            return sum(
                info.state is ringmq.QueueState.RUNNING
                and sum(each.synchronised for each in info.ring) >= replicas
                for info in await self._connected.queues()
            )
        return 0

    async def kill(self) -> None:
        # A client that looks for another node when its own is gone is no queue without a master.
        await self._connect([each.address for each in self._others])
        self._cluster.kill(self._victim.node)
        del self._pids[self._victim.node]

    async def bring_back(self) -> None:
        self._pids[self._victim.node] = self._cluster.start(self._victim.node).pid

    async def wait_ready(self) -> None:
        await self._cluster.wait_ready(timeout_s=PHASE_S_MAX)

    def empty(self) -> None:
        shutil.rmtree(self._cluster.directory / self._victim.node)

    async def _connect(self, seeds: Sequence[str]) -> None:
        if self._client is not None:
            await self._client.close()
        self._client = await ringmq.connect(seeds, deadline_s=_DEADLINE_S).__aenter__()

    @property
    def _connected(self) -> ringmq.Client:
        assert self._client is not None
        return self._client

    async def _each(self, queues: Sequence[int], do: Callable[[int], Awaitable[None]]) -> None:
        numbers = iter(queues)

        async def some() -> None:
            for number in numbers:
                await do(number)

        await asyncio.gather(*(some() for _ in range(self._at_once)))


def _name(number: int) -> str:
    return f"scale{number:06d}"
