"""Ours: three nodes and an etcd, each on a host of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nemesis.cluster import Cluster
from nemesis.etcd_host import EtcdHost
from nemesis.network import Network

import ringmq
from bench.failover.hosts import received_bytes
from bench.failover.load import Confirms, Sender, body_of, number_of
from bench.measure import BenchError
from bench.peers.ringmq import version

NODES = ("a", "b", "c")
REGISTRY_HOST = "etcd"
KIND = "ringmq"
# A node's defaults: the cluster of the tests has shorter ones.
SETTINGS: dict[str, Any] = {"ring_timeout_s": 2.0, "lease_s": 6.0, "heartbeat_s": 1.0}
WHOLE_S_MAX = 600.0
DRAIN_S_MAX = 120.0
# The client repeats a message for so long; longer than any fault here.
MESSAGE_DEADLINE_S = 300.0
FILL_BATCH, FILL_WINDOW = 500, 8000


class RingSystem:
    kinds: Sequence[str] = (KIND,)

    def __init__(self, directory: Path, network: Network) -> None:
        directory.mkdir()
        self._network = network
        self._etcd = EtcdHost(network, REGISTRY_HOST, directory)
        self._cluster = Cluster(
            directory, nodes=NODES, registry=self._etcd.url, network=network, **SETTINGS
        )

    def describe(self) -> dict[str, str]:
        return {
            "version": version(),
            "nodes": str(len(NODES)),
            "queue": "durable, mirrored on all nodes",
            "registry": "one etcd on a host of its own; a cut node is cut from it, too",
            "client": "ringmq, batches of a burst",
        }

    async def start(self) -> None:
        try:
            self._etcd.launch()
            await self._etcd.wait_ready()
            await self._cluster.start()
        except (AssertionError, FileNotFoundError) as error:
            raise BenchError(f"ringmq: {error}") from error

    async def stop(self) -> None:
        try:
            # Its judgement of the nodes' logs fails the run.
            await self._cluster.__aexit__(None, None, None)
        except AssertionError as error:
            raise BenchError(f"ringmq: {error}") from error
        finally:
            self._etcd.kill()

    async def declare(self, kind: str, name: str) -> None:
        await self._cluster.declare(name)

    async def delete(self, kind: str, name: str) -> None:
        async with self._cluster.client() as client:
            await client.delete_queue(name)

    async def wait_whole(self, name: str, kinds: Sequence[str]) -> dict[str, str]:
        try:
            info = await self._cluster.wait_synchronised(name, within_s=WHOLE_S_MAX)
        except AssertionError as error:
            raise BenchError(f"ringmq: {error}") from error
        return {KIND: info.master}

    async def gather(self, name: str, masters: Mapping[str, str]) -> dict[str, str]:
        return dict(masters)

    def mirror(self, master: str) -> str:
        return self._cluster.others(master)[0]

    def sender(self, kind: str) -> Sender:
        return RingSender(self._cluster)

    async def fill(self, kind: str, name: str, count: int, size_bytes: int) -> None:
        async with (
            self._cluster.client() as client,
            client.publisher(name, window_messages=FILL_WINDOW) as publisher,
        ):
            starts = iter(range(0, count, FILL_BATCH))

            async def some() -> None:
                for start in starts:
                    numbers = range(start, min(count, start + FILL_BATCH))
                    await publisher.publish_batch([body_of(each, size_bytes) for each in numbers])

            await asyncio.gather(*(some() for _ in range(FILL_WINDOW // FILL_BATCH)))

    async def drain(self, kind: str, name: str) -> list[int]:
        # By position: what a deposed master had given out comes again, and is no other copy.
        found: dict[int, int] = {}
        async with (
            asyncio.timeout(DRAIN_S_MAX),
            self._cluster.client() as client,
            client.consumer(name, prefetch=5000) as consumer,
        ):
            while True:
                batch = await consumer.next_batch(timeout_s=0.3)
                if batch is not None:
                    found.update((each.position, number_of(each.body)) for each in batch)
                    await consumer.ack(batch)
                    continue
                info = await client.queue(name)
                if info.messages_ready + info.messages_unacknowledged == 0:
                    return [*found.values()]

    def kill(self, node: str) -> None:
        self._cluster.kill(node)

    async def bring_back(self, node: str) -> None:
        self._cluster.launch(node)

    def cut(self, node: str) -> None:
        self._network.cut(node, *self._cluster.others(node), REGISTRY_HOST)

    def heal(self, node: str) -> None:
        self._network.heal(node, *self._cluster.others(node), REGISTRY_HOST)

    def received_bytes(self, node: str) -> int:
        return received_bytes(self._network, node)


class RingSender:
    """The library's publisher, which finds the master and repeats by itself."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stack = contextlib.AsyncExitStack()
        self._tickets: set[asyncio.Future[None]] = set()

    async def open(self, queue: str, node: str, on_confirms: Confirms) -> None:
        client = await self._stack.enter_async_context(self._cluster.client())
        self._publisher = client.publisher(queue, deadline_s=MESSAGE_DEADLINE_S)
        await self._publisher.open()
        self._stack.push_async_callback(self._publisher.close, flush=False)
        self._on_confirms = on_confirms

    def send(self, numbers: range, size_bytes: int) -> None:
        bodies = [body_of(number, size_bytes) for number in numbers]
        ticket = asyncio.ensure_future(self._publisher.publish_batch(bodies))
        self._tickets.add(ticket)
        ticket.add_done_callback(partial(self._done, numbers))

    def _done(self, numbers: range, ticket: asyncio.Future[None]) -> None:
        self._tickets.discard(ticket)
        if ticket.cancelled():
            return
        error = ticket.exception()
        if error is None:
            self._on_confirms(numbers)
        elif isinstance(error, ringmq.RingMQError):
            unsure = {i for low, high in error.failed for i in range(low, high + 1)}
            self._on_confirms([n for i, n in enumerate(numbers) if i not in unsure])
        else:
            raise error

    async def close(self) -> None:
        await self._stack.aclose()
        await asyncio.gather(*self._tickets, return_exceptions=True)
