"""Every way through exchanges on three nodes, before and after the master of all queues dies."""

from __future__ import annotations

import random

from nemesis import Cluster, scenario

import ringmq
from ringmq import ExchangeType

QUEUES = ("europe", "urgent", "all", "unrouted")
# Too long to be with the position in a queue's own files: it goes to the node's message store.
LARGE = random.Random(11).randbytes(20_000)


async def declare(cluster: Cluster, client: ringmq.Client) -> None:
    for queue in QUEUES:
        await cluster.declare(queue)
        await cluster.wait_synchronised(queue)
        if await cluster.master_of(queue) != cluster.nodes[0]:
            await cluster.promote(queue, cluster.nodes[0])
    topology = client.topology
    await topology.declare_exchange("others", ExchangeType.FANOUT)
    await topology.declare_exchange("copies", ExchangeType.FANOUT, internal=True)
    await topology.declare_exchange("x", ExchangeType.HEADERS, alternate_exchange="others")
    await topology.bind("x", "europe", arguments={"x-match": "all", "region": "eu", "kind": "new"})
    await topology.bind(
        "x", "urgent", arguments={"x-match": "any", "urgent": "yes", "kind": "late"}
    )
    # Whatever has a region goes to the internal exchange, and from there to two queues.
    await topology.bind("x", "copies", to_exchange=True, arguments={"region": "eu"})
    await topology.bind("copies", "all")
    await topology.bind("copies", "urgent")
    await topology.bind("others", "unrouted")


async def publish(client: ringmq.Client, half: bytes) -> None:
    async with client.publisher(exchange="x") as publisher:
        for name, headers in (
            (b"new", {"region": "eu", "kind": "new"}),
            (b"late", {"region": "us", "kind": "late"}),
            (b"other", {"region": "us"}),
        ):
            await publisher.publish(half + name, ringmq.Properties(headers=headers), mandatory=True)


async def has(client: ringmq.Client, queue: str, *names: bytes) -> None:
    batch = await client.get_messages(queue, 100)
    assert batch.bodies == [half + name for half in (b"1 ", b"2 ") for name in names], queue


@scenario(deadline_s=60, queue="")
async def test_headers_alternate_and_internal_exchanges_over_a_death(cluster: Cluster) -> None:
    async with cluster.client(deadline_s=30) as client:
        await declare(cluster, client)
        await publish(client, b"1 ")
        cluster.kill(cluster.nodes[0])
        await publish(client, b"2 ")
        await cluster.start(cluster.nodes[0])
        await has(client, "europe", b"new")
        # Bound to both ways by one message, it has it once.
        await has(client, "urgent", b"new", b"late")
        await has(client, "all", b"new")
        await has(client, "unrouted", b"other")
    for queue in QUEUES:
        await cluster.wait_synchronised(queue)
        await cluster.wait_equal(queue)


@scenario(deadline_s=60, queue="")
async def test_a_fan_out_writes_a_body_once_on_each_disk(cluster: Cluster) -> None:
    """Also of queues with masters on different nodes, to which it comes on different ways."""
    headers = {f"header {number}": "x" for number in range(20)}
    properties = ringmq.Properties(headers=headers, content_type="text/plain")
    async with cluster.client() as client:
        for number, queue in enumerate(QUEUES):
            await cluster.declare(queue)
            await cluster.wait_synchronised(queue)
            node = cluster.nodes[number % len(cluster.nodes)]
            if await cluster.master_of(queue) != node:
                await cluster.promote(queue, node)
            await client.topology.bind("amq.fanout", queue)
        async with client.publisher(exchange="amq.fanout") as publisher:
            await publisher.publish(LARGE, properties, mandatory=True, priority=3, ttl_ms=600_000)
        for queue in QUEUES:
            (message,) = await client.get_messages(queue, 10)
            assert message.body == LARGE
            await cluster.wait_equal(queue)
    for node in cluster.nodes:
        stored = [path for path in cluster.data(node).rglob("*.rdq") if LARGE in path.read_bytes()]
        copies = sum(path.read_bytes().count(LARGE) for path in stored)
        assert copies == 1, (node, stored)
