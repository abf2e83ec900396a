"""Values in the registry that nobody can read: their queue or node is quarantined, no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from etcd_server import EtcdCluster
from loops import run
from nemesis import Cluster, until
from nemesis.oracle import body_of

import ringmq
from ringmq_gm import ring_key
from ringmq_gm.registry.base import KeyValue, Put, Registry
from ringmq_gm.registry.url import open_registry
from ringmq_node.model.records import queue_key

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

GARBAGE = b"\x00 garbage"


@asynccontextmanager
async def registry_of(cluster: Cluster) -> AsyncIterator[Registry]:
    registry = open_registry(cluster.registry)
    try:
        yield registry
    finally:
        await registry.close()


async def overwrite(registry: Registry, key: str) -> KeyValue:
    """Returns the entry that was there."""
    entry = await registry.get(key)
    assert entry is not None, key
    await registry.commit([], [Put(key, GARBAGE)])
    return entry


async def put_back(registry: Registry, entry: KeyValue) -> None:
    await registry.commit([], [Put(entry.key, entry.value)])


async def publish_ten(cluster: Cluster, *queues: str) -> None:
    for queue in queues:
        async with cluster.client() as client, client.publisher(queue) as publisher:
            await publisher.publish_batch([body_of("p", number, 300) for number in range(10)])


async def messages_in(cluster: Cluster, queue: str) -> int:
    """Drains the queue."""
    found = await cluster.drained(queue)
    return sum(map(len, found.positions.values()))


async def listed(cluster: Cluster, *nodes: str) -> dict[str, ringmq.QueueInfo]:
    async with cluster.client(*nodes) as client:
        return {info.queue: info for info in await client.queues()}


async def wait_listed(cluster: Cluster, node: str, queue: str, **wanted: object) -> None:
    """Until a node lists the queue with a quarantine (or none) and this state."""

    async def is_so() -> bool:
        info = (await listed(cluster, node)).get(queue)
        return info is not None and wanted == {
            "state": info.state.name,
            "quarantined": bool(info.quarantine),
        }

    await until(is_so, f"{node} lists {queue} as {wanted}")


@pytest.mark.parametrize("kind", ["sqlite", "etcd"])
def test_records_that_cannot_be_read(tmp_path: Path, kind: str) -> None:
    """The record of `r`, the view of `v` and the record of a node become garbage, also over a
    restart of every node in turn. `q` takes publishes all the time. Then all is put right."""

    async def story(registry_url: str) -> None:
        async with Cluster(tmp_path, registry=registry_url) as cluster, asyncio.timeout(90):
            cluster.expect_log("queue r: quarantined: registry key 'queues/r'")
            cluster.expect_log("its view in the registry can't be read")
            cluster.expect_log("node 'ghost': its record in the registry can't be read")
            for queue in ("q", "r", "v"):
                await cluster.declare(queue)
                await cluster.wait_synchronised(queue)
            await publish_ten(cluster, "r", "v")
            async with (
                registry_of(cluster) as registry,
                cluster.publishing("q", pause_s=0.05) as load,
            ):
                record = await overwrite(registry, queue_key("r"))
                view = await overwrite(registry, ring_key((await listed(cluster))["v"].id))
                await registry.commit([], [Put("nodes/ghost", GARBAGE)])
                for node in cluster.nodes:
                    # Those who know the queue serve it on.
                    await wait_listed(cluster, node, "r", state="RUNNING", quarantined=True)
                    await wait_listed(cluster, node, "v", state="RUNNING", quarantined=True)
                await publish_ten(cluster, "r", "v")
                async with cluster.client() as client:
                    nodes = {each.node: each for each in (await client.cluster_status()).nodes}
                    assert nodes["ghost"].state is ringmq.NodeState.QUARANTINED
                    assert "nodes/ghost" in nodes["ghost"].quarantine
                for node in cluster.nodes:
                    await cluster.restart(node)
                    await cluster.wait_synchronised("q")
                for node in cluster.nodes:
                    await wait_listed(cluster, node, "r", state="QUARANTINED", quarantined=True)
                    await wait_listed(cluster, node, "v", state="QUARANTINED", quarantined=True)
                async with cluster.client() as client:
                    with pytest.raises(ringmq.RingMQError, match="quarantined: registry key"):
                        await client.queue("r", deadline_s=1.0)
                await put_back(registry, record)
                # Its members have all been restarted since: it is begun again.
                await put_back(registry, view)
                await cluster.wait_synchronised("r")
                await cluster.wait_synchronised("v")
                for node in cluster.nodes:
                    await wait_listed(cluster, node, "r", state="RUNNING", quarantined=False)
                await load.confirms(200)
            assert load.errors == []
            (await cluster.drained("q")).judge(load)
            assert await messages_in(cluster, "r") == 20
            assert await messages_in(cluster, "v") == 20

    with ExitStack() as stack:
        url = ""
        if kind == "etcd":
            url = stack.enter_context(EtcdCluster(tmp_path / "etcd")).url
        run(story(url))


def test_a_quarantined_queue_is_deleted_by_force_and_declared_anew(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster(tmp_path) as cluster, asyncio.timeout(60):
            cluster.expect_log("queue r: quarantined: registry key 'queues/r'")
            await cluster.declare("q")
            await cluster.declare("r")
            async with registry_of(cluster) as registry:
                await overwrite(registry, queue_key("r"))
                await cluster.restart("a")
                async with cluster.client("a") as client:
                    with pytest.raises(ringmq.RingMQError, match="quarantined"):
                        await client.declare_queue("r", deadline_s=1.0)
                    await client.delete_queue("r", force=True)
                    assert [info.queue for info in await client.queues()] == ["q"]
                    await client.declare_queue("r")
                rings = (await registry.list(ring_key(""))).entries
                assert len(rings) == 2, "no view of the deleted queue is left"
            await cluster.wait_synchronised("r")
            await cluster.wait_synchronised("q")

    run(story())
