"""All nodes killed at once, and started again."""

from __future__ import annotations

import asyncio

from halves import (
    EXPIRED,
    EXPIRING,
    bodies_of,
    expiring_bodies,
    numbered,
    publish_sequential_expiries,
    take,
)
from nemesis import Cluster, scenario, until

from ringmq_node.storage.format.queue_folder import SEGMENT_POSITIONS

SIZE_BYTES = 300
# A busy machine takes ten seconds and more for each start of three nodes. A message that waits
# for all of the starts is no failed one.
STARTS_S_MAX = 150.0


@scenario(deadline_s=60)
async def test_all_killed_at_once(cluster: Cluster) -> None:
    """Every confirmed message is there, in order, and marked as possibly delivered before."""
    async with cluster.publishing("q", size_bytes=SIZE_BYTES) as load:
        async with cluster.consuming("q", ack=False, prefetch=100) as held:
            await held.has(100)
            await load.confirms(1000)
            cluster.kill(*cluster.nodes)
        await cluster.start()
        await load.confirms(200, within_s=30)
    assert load.errors == []
    await cluster.wait_synchronised("q")
    async with cluster.client() as client:
        first = (await client.get_messages("q", 100)).redelivered
    assert sum(last - begin + 1 for begin, last in first) == 100
    rest = await cluster.contents("q")
    rest.merge(held.delivered)
    rest.judge(load)
    await cluster.wait_equal("q")


@scenario(deadline_s=90)
async def test_all_killed_with_segments_unacknowledged(cluster: Cluster) -> None:
    """`bq_queue_recover` of RabbitMQ: more than two segments are with a consumer when all nodes are
    killed. All are there, in order and marked, and settled for good by who takes them then."""
    bodies = [body + bytes(SIZE_BYTES) for body in numbered(2 * SEGMENT_POSITIONS + 500)]
    count = len(bodies)

    def are_written() -> bool:
        """Each node has the three segments, and not their positions in its journal alone."""
        return all(len([*cluster.data(node).rglob("*.idx")]) == 3 for node in cluster.nodes)

    async with cluster.client(deadline_s=40) as client:
        async with client.publisher("q") as publisher:
            await publisher.publish_batch(bodies)
        async with client.consumer("q", prefetch=count, prefetch_bytes=1 << 26) as consumer:
            held = await take(consumer, count)
            assert bodies_of(held) == bodies
            assert not any(each.redelivered for each in held)
            await until(are_written, "segments are written")
            cluster.kill(*cluster.nodes)
        await cluster.start()
        await cluster.wait_synchronised("q")
        async with client.consumer("q", prefetch=count, prefetch_bytes=1 << 26) as consumer:
            held = await take(consumer, count)
            assert bodies_of(held) == bodies
            assert all(each.redelivered for each in held)
            await cluster.wait_same_bodies("q")
            assert await consumer.ack(held[0].position, held[-1].position, wait=True)
        info = await client.queue("q")
        assert (info.messages_ready, info.messages_unacknowledged) == (0, 0)
    await cluster.wait_equal("q")


async def dropwhile_restart(cluster: Cluster, *, kills: bool) -> None:
    # A quiet queue has its journal flushed to segments if that has a MiB.
    queues = {"in the journal": expiring_bodies(), "flushed": expiring_bodies(size_bytes=128)}
    async with cluster.client(deadline_s=60) as client:
        for queue, bodies in queues.items():
            await cluster.declare(queue, min_insync=2)
            await cluster.wait_synchronised(queue)
            await publish_sequential_expiries(client, queue, bodies)

        async def have_expired() -> bool:
            infos = [await client.queue(queue) for queue in queues]
            return {each.messages_ready for each in infos} == {EXPIRING - EXPIRED}

        await until(have_expired, "the first have expired")

        def one_is_flushed() -> bool:
            return all(len([*cluster.data(node).rglob("*.idx")]) == 1 for node in cluster.nodes)

        await until(one_is_flushed, "the large queue's segment is written on all nodes")
        if kills:
            cluster.kill(await cluster.master_of("flushed"))
            for queue in queues:
                await cluster.wait_synchronised(queue, 2)
        running = [name for name in cluster.nodes if cluster.is_running(name)]
        assert {*await asyncio.gather(*map(cluster.stop, running))} == {0}
        await cluster.start()
        for queue, bodies in queues.items():
            await cluster.wait_synchronised(queue)
            await cluster.wait_same_bodies(queue)
            async with client.consumer(queue, prefetch=EXPIRING) as consumer:
                held = await take(consumer, EXPIRING - EXPIRED)
                assert bodies_of(held) == bodies[EXPIRED:]
                assert await consumer.ack(held[0].position, held[-1].position, wait=True)
            info = await client.queue(queue)
            assert (info.messages_ready, info.messages_unacknowledged) == (0, 0)
            await cluster.wait_equal(queue)


@scenario(deadline_s=90, queue="")
async def test_all_stopped_behind_a_few_expired(cluster: Cluster) -> None:
    """`dropwhile_restart` and, flushed before, `dropwhile_sync_restart` of RabbitMQ: of 10 000
    messages with an expiry each, five have expired. All nodes are told to stop: the rest is there.
    """
    await dropwhile_restart(cluster, kills=False)


@scenario(deadline_s=90, queue="")
async def test_all_stopped_behind_a_killed_master(cluster: Cluster) -> None:
    """As before, but that the master is killed before the others are told to stop."""
    await dropwhile_restart(cluster, kills=True)


@scenario(deadline_s=90)
async def test_all_killed_and_two_started(cluster: Cluster) -> None:
    """Two nodes are enough to go on; the third, any of them, comes back later."""
    for absent_index in (0, 2):
        async with cluster.publishing("q") as load:
            await load.confirms(500)
            ring = [replica.node for replica in (await cluster.info("q")).ring]
            cluster.kill(*cluster.nodes)
            absent = ring[absent_index]
            await cluster.start(*cluster.others(absent))
            await load.confirms(200, within_s=30)
            await cluster.start(absent)
        assert load.errors == []
        await cluster.wait_synchronised("q")
        (await cluster.drained("q")).judge(load)
        await cluster.wait_equal("q")


@scenario(deadline_s=STARTS_S_MAX)
async def test_all_killed_again_while_they_come_back(cluster: Cluster) -> None:
    async with cluster.publishing("q", deadline_s=STARTS_S_MAX) as load:
        await load.confirms(500)
        for _ in range(2):
            cluster.kill(*cluster.nodes)
            await cluster.start()
        cluster.kill(*cluster.nodes)
        lives = {name: cluster.ready_lines(name) for name in cluster.nodes}
        for name in cluster.nodes:
            cluster.launch(name)
        for name, before in lives.items():
            await cluster.wait_ready(name, after=before)
        await load.confirms(200, within_s=30)
    assert load.errors == []
    await cluster.wait_synchronised("q")
    (await cluster.drained("q")).judge(load)
    await until(lambda: all(map(cluster.is_running, cluster.nodes)), "all run")
