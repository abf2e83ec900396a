"""Lazy queues and the numbers of paging, as a user sees them, on whole clusters."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from loops import run
from nemesis import Cluster, scenario, until
from waiting import leeway

import ringmq
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common

DEFAULT, LAZY = ringmq.QueueMode.DEFAULT, ringmq.QueueMode.LAZY
# Around the limit at which bodies go to the message store.
SMALL_BYTES, LARGE_BYTES = 1000, 6000
LATE_S_MAX = 2.0


async def switch(cluster: Cluster, mode: ringmq.QueueMode) -> None:
    """Sets the queue's mode, and waits until every replica has applied it."""
    async with cluster.client() as client:
        await client.set_queue_mode("q", mode)
    await everywhere(cluster, mode)


async def everywhere(cluster: Cluster, mode: ringmq.QueueMode) -> None:
    async def heard() -> bool:
        return {(await cluster.replica("q", name)).mode for name in cluster.nodes} == {mode.value}

    await until(heard, f"{mode} at every replica")


async def in_memory(cluster: Cluster) -> dict[str, int]:
    """By node: how many messages its replica has in memory."""
    found = [await cluster.replica("q", name) for name in cluster.nodes]
    return {replica.node: replica.storage.messages_in_memory for replica in found}


def total(storage: broker.QueueStorage | ringmq.QueueStorage) -> int:
    """The number of messages in all parts of the queue."""
    ready = storage.messages_q4 + storage.messages_q3 + storage.messages_q2 + storage.messages_q1
    return storage.messages_pending + ready + storage.messages_delta


@scenario(deadline_s=60, queue="")
async def test_lazy_backlog_switched_back_and_forth_under_load(cluster: Cluster) -> None:
    """No replica has any of the backlog in memory. The mode changes four times while clients
    publish and consume: they go on, and the consumers get every message, in order."""
    await cluster.declare("q", mode=LAZY)
    await cluster.wait_synchronised("q")
    async with (
        cluster.publishing("q", total=3000, size_bytes=SMALL_BYTES) as small,
        cluster.publishing("q", total=1000, size_bytes=LARGE_BYTES) as large,
    ):
        await small.finishes(within_s=20)
        await large.finishes(within_s=20)
    assert await in_memory(cluster) == dict.fromkeys(cluster.nodes, 0)
    for name in cluster.nodes:
        storage = (await cluster.replica("q", name)).storage
        assert (total(storage), storage.messages_q1, storage.messages_q4) == (4000, 0, 0)
        assert storage.body_bytes_stored >= 1000 * LARGE_BYTES
        assert storage.journal_bytes_written >= 3000 * SMALL_BYTES
    async with cluster.publishing("q", size_bytes=SMALL_BYTES) as load:
        await switch(cluster, DEFAULT)
        await load.confirms(200)
        # Nobody consumes yet, so new messages stay in memory.
        assert min((await in_memory(cluster)).values()) >= 200
        load.watch_gaps()
        async with cluster.consuming("q", prefetch=200) as eager:
            for mode in (LAZY, DEFAULT, LAZY):
                await switch(cluster, mode)
                await load.confirms(200)
                await eager.gets(200)
            load.pauses_less_than(leeway(LATE_S_MAX))
    assert load.errors == []
    assert (await cluster.info("q")).mode is LAZY
    eager.delivered.merge(await cluster.drained("q"))
    eager.delivered.judge(small, large, load)
    assert len(eager.delivered.at) == 4000 + load.attempted
    await cluster.wait_equal("q")


async def modes(cluster: Cluster, queue: str) -> set[int]:
    return {(await cluster.replica(queue, name)).mode for name in cluster.nodes}


@scenario(deadline_s=60, queue="")
async def test_queue_mode_policy(cluster: Cluster) -> None:
    """declare_args, queue_mode_policy: the declaration counts over the policy, whose changes apply
    to queues in use, on every replica; a node that was away when it changed follows, too."""
    lazy, default = (ringmq.Policy("mode", "^q", mode=mode) for mode in (LAZY, DEFAULT))
    local = ringmq.MasterLocator.CLIENT_LOCAL
    async with cluster.client("a") as client:
        await client.operator.set_policy(lazy)
        asked = {"q.unsaid": None, "q.lazy": LAZY, "q.default": DEFAULT}
        for queue, mode in asked.items():
            await client.declare_queue(queue, mode=mode, master_locator=local)
        for queue in asked:
            await cluster.wait_synchronised(queue)

    async def are(**wanted: ringmq.QueueMode) -> bool:
        return all([await modes(cluster, f"q.{q}") == {mode.value} for q, mode in wanted.items()])

    await until(lambda: are(unsaid=LAZY, lazy=LAZY, default=DEFAULT), "as the policy says")
    async with cluster.client("b", "c") as client:
        async with client.publisher("q.unsaid") as publisher:
            await publisher.publish_batch([bytes(1024)] * 100)
        with pytest.raises(ringmq.QueueExistsError, match="mode lazy, not default"):
            await client.declare_queue("q.unsaid", mode=DEFAULT)
        cluster.kill("a")
        for queue in asked:
            await cluster.wait_synchronised(queue, 2)
        await client.operator.set_policy(default)
        await cluster.start("a")
        for queue in asked:
            await cluster.wait_synchronised(queue)
        await until(lambda: are(unsaid=DEFAULT, lazy=LAZY, default=DEFAULT), "as it says now")
        # An operator's word for one queue counts over the policy, from then on.
        assert await client.set_queue_mode("q.unsaid", LAZY) is DEFAULT
        await client.operator.delete_policy("mode")
        await until(lambda: are(unsaid=LAZY, lazy=LAZY, default=DEFAULT), "as it was set")
        assert len(await client.get_messages("q.unsaid", 1000)) == 100
    for queue in asked:
        await cluster.wait_equal(queue)


@scenario(deadline_s=60)
async def test_mode_outlives_nodes(cluster: Cluster) -> None:
    """A node that was away when the mode changed learns it on its return; so does a new master."""
    master, *mirrors = [replica.node for replica in (await cluster.info("q")).ring]
    cluster.kill(master)
    await cluster.wait_synchronised("q", 2)
    async with cluster.client(*mirrors) as client:
        assert await client.set_queue_mode("q", LAZY) is DEFAULT
        assert (await client.queue("q")).mode is LAZY
        assert await client.set_queue_mode("q", LAZY) is LAZY
        # A declaration without a mode fits a queue of any mode.
        assert (await client.declare_queue("q")).mode is LAZY
        with pytest.raises(ringmq.QueueExistsError, match="mode lazy, not default"):
            await client.declare_queue("q", mode=DEFAULT)
    await cluster.start(master)
    await cluster.wait_synchronised("q")
    await everywhere(cluster, LAZY)
    await cluster.promote("q", master)
    async with cluster.publishing("q", total=500) as load:
        await load.finishes(within_s=10)
    info = await cluster.info("q")
    assert (info.master, info.mode) == (master, LAZY)
    assert await in_memory(cluster) == dict.fromkeys(cluster.nodes, 0)
    cluster.kill(*cluster.nodes)
    await cluster.start()
    await cluster.wait_synchronised("q")
    await everywhere(cluster, LAZY)
    await cluster.wait_equal("q")
    (await cluster.drained("q")).judge(load)
    await cluster.wait_equal("q")


async def refusal(client: ringmq.Client, deadline_s: float) -> ringmq.RingMQError:
    with pytest.raises(ringmq.RingMQError) as caught:
        await client.set_queue_mode("q", LAZY, deadline_s=deadline_s)
    return caught.value


@scenario(deadline_s=30)
async def test_mode_while_the_registry_does_not_answer(cluster: Cluster) -> None:
    """The call fails within its deadline and names the registry; the queue goes on."""
    async with cluster.publishing("q") as load:
        lock = sqlite3.connect(cluster.folder / "registry.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        async with cluster.client() as client:
            deadline_s = 1.5
            # The node answers a little before the deadline: too late on a busy machine.
            while isinstance(error := await refusal(client, deadline_s), ringmq.TimedOutError):
                deadline_s *= 2
        assert isinstance(error, ringmq.UnavailableError)
        assert "registry" in str(error)
        await load.confirms(200)
        lock.execute("ROLLBACK")
        lock.close()
        await switch(cluster, LAZY)
        await load.confirms(200)
    assert load.errors == []
    (await cluster.drained("q")).judge(load)


@scenario(deadline_s=30)
async def test_many_who_disagree(cluster: Cluster) -> None:
    """Every call is answered, and all replicas end with the mode of one of them."""
    async with cluster.client() as client:
        modes = [LAZY, DEFAULT] * 6
        before = await asyncio.gather(*(client.set_queue_mode("q", mode) for mode in modes))
        assert set(before) <= {LAZY, DEFAULT}
        await everywhere(cluster, (await client.queue("q")).mode)


@scenario(deadline_s=60)
async def test_numbers(cluster: Cluster) -> None:
    """Every message is in exactly one part of the queue; rates follow the traffic."""
    async with cluster.publishing("q", total=1000) as load:
        await load.finishes(within_s=10)
    async with cluster.client() as client, client.consumer("q", prefetch=300) as consumer:
        batch = await consumer.next_batch(timeout_s=5.0)
        assert batch is not None
        storage = (await client.queue("q")).storage
        assert storage is not None
        assert total(storage) == 1000
        assert storage.messages_pending > 0
        assert storage.messages_in_memory == 1000
        assert storage.memory_bytes > 1000 * 200
        assert storage.messages_target is None
        assert storage.blocks_read == storage.body_bytes_stored == 0
        assert storage.journal_bytes_written > 1000 * 200
        assert await consumer.ack(batch, wait=True)
        # A list has many queues, so it leaves out the numbers that each master would be asked for.
        assert [each.storage for each in await client.queues()] == [None]
    mirror = await cluster.replica("q", (await cluster.mirrors_of("q"))[0])
    assert mirror.mode == common.QUEUE_MODE_DEFAULT
    assert total(mirror.storage) == 1000 - len(batch)

    async def rates_are_known() -> bool:
        storage = (await cluster.info("q")).storage
        assert storage is not None
        return min(storage.publish_rate, storage.deliver_rate, storage.acknowledge_rate) > 0

    async with cluster.publishing("q"), cluster.consuming("q"):
        await until(rates_are_known, "rates", within_s=15)


@pytest.mark.slow
@pytest.mark.cluster
def test_numbers_of_a_node_without_memory(tmp_path: Path) -> None:
    """The memory monitor gives the queue a target; paged-out messages are read back from disk."""

    async def story() -> None:
        async with Cluster(tmp_path, nodes=("a",), embed_below=0) as cluster, asyncio.timeout(60):
            async with cluster.client() as client:
                (node,) = (await client.cluster_status(with_resources=True)).nodes
            assert node.resources is not None
            # Paging begins at half of the mark, where the node already is; the alarm, which would
            # hold the publisher, at all of it.
            mark = round(1.5 * node.resources.memory_used_bytes)
            await cluster.stop("a")
            cluster.launch("a", memory_watermark=f"{mark}B")
            await cluster.wait_ready("a", after=1)
            await cluster.declare("q")
            async with cluster.publishing("q", total=2000) as load:
                await load.finishes(within_s=10)

            async def is_paged_out() -> bool:
                storage = (await cluster.info("q")).storage
                assert storage is not None
                return storage.messages_target is not None and storage.messages_in_memory == 0

            await until(is_paged_out, "nothing in memory", within_s=15)
            storage = (await cluster.info("q")).storage
            assert storage is not None
            assert total(storage) == storage.messages_q3 == 2000
            # No message is embedded in the index.
            assert storage.body_bytes_stored >= 2000 * 200 > storage.journal_bytes_written
            (await cluster.contents("q")).judge(load)
            storage = (await cluster.info("q")).storage
            assert storage is not None
            assert storage.blocks_read > 0
            (await cluster.drained("q")).judge(load)

    run(story())
