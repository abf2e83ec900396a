"""Publishing through exchanges: to queues whose masters are on three nodes, while nodes die."""

from __future__ import annotations

import asyncio

import pytest
from nemesis import Cluster, scenario

import ringmq

QUEUES = ("qa", "qb", "qc")
TOTAL = 600


async def spread(cluster: Cluster, client: ringmq.Client) -> None:
    """Each queue's master is on another node. All are bound for "all", each for its own name."""
    for queue, node in zip(QUEUES, cluster.nodes, strict=True):
        await cluster.declare(queue)
        await cluster.wait_synchronised(queue)
        if await cluster.master_of(queue) != node:
            await cluster.promote(queue, node)
    await client.topology.declare_exchange("x", ringmq.ExchangeType.DIRECT)
    for queue in QUEUES:
        await client.topology.bind("x", queue, "all")
        await client.topology.bind("x", queue, queue)


def key_of(number: int) -> str:
    """Runs of messages for one queue, and a fan-out between them: gaps in every queue."""
    return "all" if number % 4 == 0 else QUEUES[number // 4 % 3]


@scenario(deadline_s=60, queue="")
async def test_masters_and_the_node_of_the_session_die(cluster: Cluster) -> None:
    """Each confirmed message is in all of its queues once, in order, whoever dies in the middle:
    a master of one of them, then the node that routes."""
    async with cluster.client(deadline_s=40) as client:
        await spread(cluster, client)
        publisher = client.publisher(exchange="x", window_messages=50)
        # Through the node that has bound them: another one may not have heard of it yet.
        await publisher.open()
        at = {address: name for name, address in cluster.addresses.items()}
        routing = at[publisher.node_address]
        master = next(name for name in cluster.nodes if name != routing)
        waiting: list[asyncio.Future[None]] = []
        for number in range(TOTAL):
            if number == TOTAL // 3:
                cluster.kill(master)
            if number == TOTAL // 2:
                await asyncio.gather(*waiting)
                await cluster.restart(master)
                for queue in QUEUES:
                    await cluster.wait_synchronised(queue)
            if number == 2 * TOTAL // 3:
                cluster.kill(routing)
            body, key = b"%d" % number, key_of(number)
            waiting.append(await publisher.submit(body, routing_key=key, mandatory=True))
        await asyncio.gather(*waiting)
        assert publisher.node_address != cluster.addresses[routing]
        with pytest.raises(ringmq.UnroutableError) as caught:
            await publisher.publish_batch([b"x", b"y"], routing_key="nobody", mandatory=True)
        assert caught.value.failed == ((0, 1),)
        await publisher.publish(b"z", routing_key="nobody")
        await publisher.close()
    one, two = cluster.others(routing)
    async with cluster.client(one) as client, cluster.client(two) as other:
        # At once through another node, as an answer goes to a reply queue.
        async with other.publisher(exchange="") as answering:
            await client.declare_queue("replies")
            await answering.publish(b"answer", routing_key="replies", mandatory=True)
        for queue in QUEUES:
            keys = ("all", queue)
            wanted = [b"%d" % n for n in range(TOTAL) if key_of(n) in keys]
            batch = await client.get_messages(queue, 1000)
            assert batch.bodies == wanted
            assert {(m.properties.exchange, m.properties.routing_key) for m in batch} == {
                ("x", key) for key in keys
            }
