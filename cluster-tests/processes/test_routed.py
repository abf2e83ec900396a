"""Publishing through exchanges: to queues whose masters are on three nodes, while nodes die."""

from __future__ import annotations

import asyncio

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


@scenario(deadline_s=60, queue="")
async def test_default(cluster: Cluster) -> None:
    await spread(cluster)
    async with (
        ringmq.connect(cluster.addresses["a"], deadline_s=20) as client,
        client.publisher(exchange="") as publisher,
    ):
        waiting = [
            await publisher.submit(b"%d" % n, routing_key=QUEUES[n % 3], mandatory=True)
            for n in range(300)
        ]
        await asyncio.gather(*waiting)
        with pytest.raises(ringmq.UnroutableError):
            await publisher.publish(b"x", routing_key="nobody", mandatory=True)
        await publisher.publish(b"x", routing_key="nobody")
        for n, queue in enumerate(QUEUES):
            batch = await client.get_messages(queue, 1000)
            assert batch.bodies == [b"%d" % m for m in range(n, 300, 3)]
            print(batch[0])
