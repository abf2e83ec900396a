"""Publishing through exchanges: to queues whose masters are on three nodes, while nodes die."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from nemesis import Cluster, scenario

import ringmq

QUEUES = ("qa", "qb", "qc")


async def spread(cluster: Cluster) -> None:
    """Each queue's master is on another node."""
    for queue, node in zip(QUEUES, "abc", strict=True):
        await cluster.declare(queue)
        await cluster.wait_synchronised(queue)
        if await cluster.master_of(queue) != node:
            await cluster.promote(queue, node)


async def bodies_in(cluster: Cluster, queue: str, *names: str) -> list[bytes]:
    async with cluster.client(*names) as client:
        return (await client.get_messages(queue, 1000)).bodies


def numbered(numbers: Iterable[int]) -> list[bytes]:
    return [b"%d" % number for number in numbers]


@scenario(deadline_s=60, queue="")
async def test_masters_and_the_node_of_the_session_die(cluster: Cluster) -> None:
    """Each message is in its queue once, in order, whoever dies: first the master of a queue, then
    the node that routes."""
    await spread(cluster)
    total = 600
    async with (
        cluster.client("a", "b", "c", deadline_s=40) as client,
        client.publisher(exchange="", window_messages=50) as publisher,
    ):
        routing = next(
            name for name, at in cluster.addresses.items() if at == publisher.node_address
        )
        master = next(name for name in "abc" if name != routing)
        waiting: list[asyncio.Future[None]] = []
        for number in range(total):
            if number == total // 3:
                cluster.kill(master)
            if number == total // 2:
                await asyncio.gather(*waiting)
                await cluster.restart(master)
                for queue in QUEUES:
                    await cluster.wait_synchronised(queue)
            if number == 2 * total // 3:
                cluster.kill(routing)
            key = QUEUES[number % 3]
            future = await publisher.submit(b"%d" % number, routing_key=key, mandatory=True)
            waiting.append(future)
        await asyncio.gather(*waiting)
        with pytest.raises(ringmq.UnroutableError) as caught:
            await publisher.publish_batch([b"x", b"y"], routing_key="nobody", mandatory=True)
        assert caught.value.failed == ((0, 1),)
        await publisher.publish(b"z", routing_key="nobody")
    left = cluster.others(routing)
    for n, queue in enumerate(QUEUES):
        assert await bodies_in(cluster, queue, *left) == numbered(range(n, total, 3))
