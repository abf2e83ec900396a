"""The only node that had a queue is gone for good."""

from __future__ import annotations

import pytest
from nemesis import Cluster, scenario, until
from nemesis.oracle import body_of

import ringmq


@scenario(deadline_s=60, queue="", lease_s=1.0, leftover_s=3.0)
async def test_a_queue_without_a_master_can_be_deleted_and_declared_anew(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.declare_queue("t", replicas=1)
        async with client.publisher("t") as publisher:
            await publisher.publish_batch([body_of("p", number, 300) for number in range(100)])
    lost = await cluster.master_of("t")
    cluster.kill(lost)
    left = cluster.others(lost)
    async with cluster.client(*left) as client:
        with pytest.raises(ringmq.UnavailableError):
            await client.delete_queue("t", deadline_s=2.0)
        with pytest.raises(ringmq.BadRequestError, match="checks nothing"):
            await client.delete_queue("t", if_empty=True, force=True)
        assert await client.delete_queue("t", force=True) == 0
        with pytest.raises(ringmq.QueueNotFoundError):
            await client.delete_queue("t", force=True)

        async def is_down() -> bool:
            nodes = (await client.cluster_status()).nodes
            return lost not in {node.node for node in nodes if node.state.name != "DOWN"}

        # Otherwise the new queue might be placed on the lost node.
        await until(is_down, f"{lost} has no lease", within_s=10)
        await client.declare_queue("t", replicas=2)
        assert (await client.queue("t")).messages_ready == 0

    # The node comes back after all, with the data of a queue that has been deleted.
    await cluster.start(lost)
    folders = cluster.data(lost) / "queues"
    async with cluster.client(lost) as client:
        (own,) = [
            node.resources
            for node in (await client.cluster_status(with_resources=True)).nodes
            if node.node == lost
        ]
        assert own is not None
        assert [(each.queue, each.messages) for each in own.leftovers] == [("t", 100)]
    await until(lambda: not any(folders.iterdir()), "its replica is removed", within_s=10)
