"""Exchanges, bindings and vhosts of real nodes: through any of them, and when they are killed."""

from __future__ import annotations

import json

import pytest
from nemesis import Cluster, scenario, until

import ringmq
from ringmq import ExchangeType
from ringmq_gm.registry.url import open_registry
from ringmq_node.broker.topology.life import LIFE_KEY, ClusterLife


async def listed(cluster: Cluster, node: str) -> tuple[list[str], list[tuple[str, str]]]:
    """The exchanges that aren't predeclared, and the bindings, as one node has them."""
    async with cluster.client(node) as client:
        exchanges = [each.exchange for each in await client.topology.exchanges()]
        bindings = [(each.source, each.destination) for each in await client.topology.bindings()]
        return [name for name in exchanges if name and not name.startswith("amq.")], bindings


async def all_are_members(cluster: Cluster) -> bool:
    """Whether the present life of every node is a member of the cluster's life."""
    registry = open_registry(cluster.registry)
    try:
        entry = await registry.get(LIFE_KEY)
        members = {} if entry is None else ClusterLife.decode(entry.value).members
        async with cluster.client() as client:
            nodes = (await client.cluster_status()).nodes
        return all(members.get(each.node) == each.incarnation for each in nodes)
    finally:
        await registry.close()


@scenario(deadline_s=60, queue="q")
async def test_topology_through_every_node_and_over_deaths(cluster: Cluster) -> None:
    a, b, c = cluster.nodes
    async with cluster.client(a) as one, cluster.client(b) as two:
        await one.topology.declare_exchange("x", ExchangeType.TOPIC)
        await one.topology.declare_exchange("passing", ExchangeType.FANOUT, durable=False)
        # At once through another node, whether or not it has heard of them.
        assert await two.topology.bind("x", "q", "a.#")
        assert await two.topology.bind("passing", "x", to_exchange=True)
        with pytest.raises(ringmq.ExchangeExistsError, match=r"type topic.*fanout") as caught:
            await two.topology.declare_exchange("x", ExchangeType.FANOUT)
        assert caught.value.metadata["field"] == "type"
        await two.declare_queue("lost", replicas=1)
        await two.topology.bind("x", "lost", "b")

        # As RabbitMQ exports it; what is there already stays.
        document = {
            "users": [{"name": "guest"}],
            "policies": [
                {"vhost": "/", "name": "two", "pattern": "^im", "definition": {"ha-mode": "all"}}
            ],
            "queues": [{"vhost": "/", "name": "imported", "durable": True, "arguments": {}}],
            "exchanges": [{"vhost": "/", "name": "x", "type": "topic", "durable": True}],
            "bindings": [
                {"vhost": "/", "source": "x", "destination": "imported", "routing_key": "i"},
                {"vhost": "/", "source": "x", "destination": "nothing", "routing_key": "i"},
            ],
        }
        done = await two.topology.import_definitions(json.dumps(document).encode())
        assert (done.created, done.existing) == (3, 1), done
        assert len(done.unmapped) == 1
        assert done.unmapped[0].startswith("users: ")
        assert len(done.failed) == 1
        assert done.failed[0].startswith("binding from x to nothing: ")
        again = await two.topology.import_definitions(await one.topology.export_definitions())
        assert (again.created, again.unmapped, again.failed) == (0, (), ())
        await two.delete_queue("imported")

    everything = (["passing", "x"], [("passing", "x"), ("x", "lost"), ("x", "q")])
    for node in cluster.nodes:
        await until(lambda node=node: _lists(cluster, node, everything), within_s=10)

    # A master dies; its queue, which has no other replica, is deleted without it. The bindings of
    # that queue are gone with it, on the nodes that are up and on the one that comes back.
    # The transient exchange stays as long as a member of the cluster's life is up.
    await until(lambda: all_are_members(cluster), within_s=10)
    await cluster.restart(c)
    await until(lambda: all_are_members(cluster), within_s=10)
    killed = await cluster.master_of("q")
    cluster.kill(killed)
    left = cluster.others(killed)
    async with cluster.client(*left) as client:
        await client.delete_queue("lost", force=True)
        await client.topology.bind("amq.fanout", "q")
    after = (["passing", "x"], [("amq.fanout", "q"), ("passing", "x"), ("x", "q")])
    for node in left:
        await until(lambda node=node: _lists(cluster, node, after), within_s=10)
    await cluster.start(killed)
    await until(lambda: _lists(cluster, killed, after), within_s=10)

    # A node was up all the time, and the transient exchange is there. Not after all were down.
    await cluster.wait_synchronised("q")
    cluster.kill(*cluster.nodes)
    await cluster.start()
    durable = (["x"], [("amq.fanout", "q"), ("x", "q")])
    for node in cluster.nodes:
        await until(lambda node=node: _lists(cluster, node, durable), within_s=20)
    await cluster.wait_synchronised("q")
    await cluster.wait_equal("q")


async def _lists(cluster: Cluster, node: str, what: object) -> bool:
    return await listed(cluster, node) == what


@scenario(deadline_s=60, queue="q")
async def test_a_vhost_has_queues_of_its_own(cluster: Cluster) -> None:
    async with cluster.client() as client:
        assert await client.topology.create_vhost("shop")
        with pytest.raises(ringmq.BadRequestError):
            await client.declare_queue("shop\x1fq")
    async with cluster.client(vhost="none") as client:
        for call in (
            client.declare_queue("q"),
            client.queue("q"),
            client.queues(),
            client.purge_queue("q"),
            client.get_messages("q"),
            client.topology.exchanges(),
            client.topology.bindings(),
        ):
            with pytest.raises(ringmq.VhostNotFoundError):
                await call
    async with cluster.client(vhost="shop") as shop, cluster.client() as root:
        declared = await shop.declare_queue("q")
        assert (declared.vhost, declared.queue) == ("shop", "q")
        await shop.declare_queue("r", replicas=1)
        async with shop.publisher("q") as publisher:
            await publisher.publish_batch([b"1", b"2", b"3"])
        assert [each.queue for each in await shop.queues()] == ["q", "r"]
        assert [each.queue for each in await root.queues()] == ["q"]
        assert (await root.queue("q")).messages_ready == 0

        async def is_synchronised() -> bool:
            ring = (await shop.queue("q")).ring
            return len(ring) == 3 and all(each.synchronised for each in ring)

        await until(is_synchronised, within_s=20)
        killed = (await shop.queue("q")).master
        cluster.kill(killed)
        async with shop.consumer("q") as consumer:
            got: list[bytes] = []
            async for batch in consumer:
                got += [message.body for message in batch]
                await consumer.ack(batch, wait=True)
                if len(got) >= 3:
                    break
        assert set(got) == {b"1", b"2", b"3"}
        await cluster.start(killed)
        await until(is_synchronised, within_s=20)
        await cluster.wait_equal("q", vhost="shop")
        with pytest.raises(ringmq.VhostInUseError, match="2 queues"):
            await root.topology.delete_vhost("shop")
        assert await root.topology.delete_vhost("shop", force=True) == 2
        assert [each.vhost for each in await root.topology.vhosts()] == ["/"]
        assert [each.queue for each in await root.queues()] == ["q"]
