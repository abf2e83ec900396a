"""Every way through exchanges on three nodes, before and after the master of all queues dies."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from nemesis import Cluster, scenario, until

import ringmq
from ringmq import ApplyTo, ExchangeType

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


async def persistent_in(client: ringmq.Client, queue: str, end: int) -> list[bool]:
    """What the queue's replicas say of its messages, one after the other: the same."""
    told: list[list[bool]] = []
    for source in (ringmq.BrowseSource.MASTER, ringmq.BrowseSource.MIRROR):
        batches = client.reader(queue).browse(0, end, source=source)
        told.append([each async for batch in batches for each in batch.persistent])
    assert told[0] == told[1]
    return told[0]


@scenario(deadline_s=60, queue="")
async def test_persistent_messages_that_were_routed_outlive_every_node(cluster: Cluster) -> None:
    """They come to masters on three nodes, and to a queue that isn't durable. A transient message
    beside them changes nothing for them, nor does that queue; each reader is told which is which.
    """
    durable = QUEUES[:3]
    kept: list[bytes] = []
    asked: list[bool] = []
    async with cluster.client() as client:
        await cluster.declare("fleeting", durable=False)
        for queue, node in zip((*durable, "fleeting"), (*cluster.nodes, "a"), strict=True):
            await cluster.declare(queue)
            await cluster.wait_synchronised(queue)
            if await cluster.master_of(queue) != node:
                await cluster.promote(queue, node)
            await client.topology.bind("amq.fanout", queue)
        async with client.publisher(exchange="amq.fanout") as publisher:
            for number in range(12):
                bodies = [b"%d %d" % (number, at) for at in range(5)] + [LARGE[number:]]
                transient = number % 3 == 1
                await publisher.publish_batch(bodies, transient=transient, mandatory=True)
                kept += [] if transient else bodies
                asked += [not transient] * len(bodies)
        for queue in (*durable, "fleeting"):
            assert await persistent_in(client, queue, len(asked)) == asked
        cluster.kill(*cluster.nodes)
        await cluster.start()
        for queue in durable:
            await cluster.wait_synchronised(queue)
            assert (await client.get_messages(queue, 1000)).bodies == kept
            await cluster.wait_same_bodies(queue)


SPARE = ringmq.Policy("spare", "^orders", apply_to=ApplyTo.EXCHANGES, alternate_exchange="others")
ROUTED = ("orders", "orders.declared", "bills")


async def declare_alternates(cluster: Cluster, client: ringmq.Client) -> None:
    topology = client.topology
    for queue in ("unrouted", "own"):
        await cluster.declare(queue)
        await cluster.wait_synchronised(queue)
        if await cluster.master_of(queue) != cluster.nodes[0]:
            await cluster.promote(queue, cluster.nodes[0])
    for exchange, queue in {"others": "unrouted", "declared": "own"}.items():
        await topology.declare_exchange(exchange, ExchangeType.FANOUT)
        await topology.bind(exchange, queue)
    for exchange in ROUTED:
        alternate = "declared" if exchange == "orders.declared" else ""
        await topology.declare_exchange(exchange, alternate_exchange=alternate)


async def all_show(cluster: Cluster, alternate: str) -> None:
    """Until each node that is up has this one for `orders`, and the declared one for the other."""
    up = [node for node in cluster.nodes if cluster.is_running(node)]

    async def is_shown() -> bool:
        for node in up:
            async with cluster.client(node) as client:
                told = {each.exchange: each for each in await client.topology.exchanges()}
                orders, declared = told["orders"], told["orders.declared"]
                if orders.effective_alternate_exchange != alternate:
                    return False
                assert orders.alternate_exchange == ""
                assert orders.policy == declared.policy == ("spare" if alternate else "")
                assert declared.effective_alternate_exchange == "declared"
                assert told["bills"].policy == ""
        return True

    await until(is_shown, f"each of {up} has the alternate exchange {alternate!r}")


async def lost_through_each(cluster: Cluster) -> list[str]:
    """Publishes one message through each node that is up to each of the exchanges, which lead
    nowhere; returns the exchanges of those that no queue got."""
    lost = []
    for node in filter(cluster.is_running, cluster.nodes):
        async with cluster.client(node, deadline_s=20) as client:
            for exchange in ROUTED:
                async with client.publisher(exchange=exchange) as publisher:
                    try:
                        await publisher.publish(exchange.encode(), mandatory=True)
                    except ringmq.UnroutableError:
                        lost.append(exchange)
    return lost


@scenario(deadline_s=60, queue="")
async def test_a_policy_gives_an_alternate_exchange_on_all_nodes(cluster: Cluster) -> None:
    """It is set, changed while a node is dead, and deleted: each node follows without a restart,
    and the dead one when it is back. The alternate of a declaration counts over it."""
    async with cluster.client("b", "c", deadline_s=30) as client:
        await declare_alternates(cluster, client)
        assert sorted(await lost_through_each(cluster)) == ["bills"] * 3 + ["orders"] * 3
        assert await client.operator.set_policy(SPARE) == 2
        await all_show(cluster, "others")
        assert await lost_through_each(cluster) == ["bills"] * 3
        cluster.kill("a")
        assert await lost_through_each(cluster) == ["bills"] * 2
        await client.operator.set_policy(replace(SPARE, alternate_exchange="declared"))
        await all_show(cluster, "declared")
        assert await lost_through_each(cluster) == ["bills"] * 2
        await cluster.start("a")
        await all_show(cluster, "declared")
        assert await lost_through_each(cluster) == ["bills"] * 3
        await client.operator.delete_policy("spare")
        await all_show(cluster, "")
        assert sorted(await lost_through_each(cluster)) == ["bills"] * 3 + ["orders"] * 3
        found = {
            queue: Counter((await client.get_messages(queue, 100)).bodies)
            for queue in ("unrouted", "own")
        }
    # Rounds through 3, 3, 2, 2, 3 and 3 nodes.
    assert found == {
        "unrouted": {b"orders": 3 + 2},
        "own": {b"orders": 2 + 3, b"orders.declared": 16},
    }
    for queue in ("unrouted", "own"):
        await cluster.wait_synchronised(queue)
        await cluster.wait_equal(queue)
