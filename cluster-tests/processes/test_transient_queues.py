"""A transient queue lives as long as one synchronised member of its ring does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from nemesis import Cluster, scenario, until
from nemesis.oracle import body_of

import ringmq

BODIES = [body_of("p", number, 300) for number in range(500)]


async def bodies_in(client: ringmq.Client) -> list[bytes]:
    return [message.body for message in await client.get_messages("t", len(BODIES))]


def folders(cluster: Cluster) -> list[Path]:
    return [path for name in cluster.nodes for path in (cluster.data(name) / "queues").glob("*")]


async def declare_and_publish(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.declare_queue("t", durable=False)
        await cluster.wait_synchronised("t")
        async with client.publisher("t") as publisher:
            await publisher.publish_batch(BODIES)


@scenario(deadline_s=60, queue="")
async def test_killed_one_by_one_and_all_at_once(cluster: Cluster) -> None:
    await declare_and_publish(cluster)
    killed = await cluster.master_of("t")
    cluster.kill(killed)
    await cluster.wait_synchronised("t", 2)
    async with cluster.client() as client:
        assert await bodies_in(client) == BODIES
    await cluster.start(killed)
    await cluster.wait_synchronised("t")
    await cluster.promote("t", killed)
    async with cluster.client(killed) as client:
        assert await bodies_in(client) == BODIES
        with pytest.raises(ringmq.QueueExistsError, match="durable no, not yes"):
            await client.declare_queue("t", durable=True)
    await cluster.wait_equal("t")

    assert len(folders(cluster)) == 3
    await cluster.declare("other", durable=False, mode=ringmq.QueueMode.LAZY)
    cluster.kill(*cluster.nodes)
    await cluster.start()
    async with cluster.client() as client:
        # At once: whether or not a node has noticed yet that the queue is gone.
        assert (await client.declare_queue("t")).durable
        assert await bodies_in(client) == []

        async def others_are_gone() -> bool:
            return [info.queue for info in await client.queues()] == ["t"]

        await until(others_are_gone, "that which nobody asked for is gone", within_s=10)
    await cluster.wait_synchronised("t")
    # The new one, which is durable, gets its folder with its first message.
    await until(lambda: not folders(cluster), "the folders of the old one are gone")


@scenario(deadline_s=60, queue="", lease_s=1.0)
async def test_one_that_does_not_answer_is_not_gone(cluster: Cluster) -> None:
    """Two nodes are killed while the third stands still and loses its lease. When it goes on, the
    queue still has its messages."""
    await declare_and_publish(cluster)
    left = (await cluster.mirrors_of("t"))[0]
    killed = cluster.others(left)
    cluster.pause(left)
    cluster.kill(*killed)
    await cluster.start(*killed)
    async with cluster.client(*killed) as client:

        async def lease_has_run_out() -> bool:
            nodes = (await client.cluster_status()).nodes
            return any(node.node == left and node.state.name == "DOWN" for node in nodes)

        await until(lease_has_run_out, f"{left} has no lease", within_s=10)
        # Longer than the other nodes take to look whether the queue is gone.
        await asyncio.sleep(1.2)
        cluster.resume(left)
        await cluster.wait_synchronised("t")
        assert await bodies_in(client) == BODIES
