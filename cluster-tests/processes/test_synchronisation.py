"""Mirrors that come back while messages are ready, held by consumers, or requeued.

RabbitMQ's suites eager_sync and sync_detection, as whole clusters see them: a mirror catches up by
itself, in messages that are held as well as in ready ones. docs/scenarios.md has the list.
"""

from __future__ import annotations

from nemesis import Cluster, scenario

import ringmq

MESSAGES = 500


@scenario(deadline_s=60)
async def test_held_messages_survive_the_restart_of_one_node_after_the_other(
    cluster: Cluster,
) -> None:
    """2 are held, the master is killed, 3 more are held, the next master is killed."""
    async with cluster.publishing("q", total=MESSAGES) as load:
        await load.finishes(within_s=20)
    async with (
        cluster.client() as client,
        client.consumer("q", prefetch=2) as first,
        client.consumer("q", prefetch=3) as second,
    ):
        assert await first.next_batch(timeout_s=5.0)
        for consumer in (first, second):
            master = await cluster.master_of("q")
            cluster.kill(master)
            # The stream has moved: what it held comes again.
            assert await consumer.next_batch(timeout_s=10.0)
            await cluster.start(master)
            await cluster.wait_synchronised("q")
    (await cluster.drained("q")).judge(load)
    await cluster.wait_equal("q")


@scenario(deadline_s=60)
async def test_a_mirror_comes_back_while_one_message_is_held_and_one_requeued(
    cluster: Cluster,
) -> None:
    """Both are consumed from that mirror, once it is the master, and marked."""
    async with cluster.publishing("q", total=2, batch_messages=2) as load:
        await load.finishes(within_s=20)
    mirror = (await cluster.mirrors_of("q"))[0]
    async with cluster.client() as client, client.consumer("q", prefetch=2) as consumer:
        batch = await consumer.next_batch(timeout_s=5.0)
        assert batch is not None
        cluster.kill(mirror)
        await consumer.nack(batch[0])
        await cluster.start(mirror)
        await cluster.wait_synchronised("q")
        await consumer.nack(batch[1])
    await cluster.wait_equal("q")
    await cluster.promote("q", mirror)
    found = await cluster.drained("q")
    assert found.at == {0: (load.tag, 0), 1: (load.tag, 1)}


@scenario(deadline_s=60)
async def test_a_mirror_is_synchronised_by_content_and_not_by_count(cluster: Cluster) -> None:
    """It comes back while a consumer holds the only message that it lacks; after that the message
    is requeued, held again, and acked. At each of these the replicas are equal."""
    mirror = (await cluster.mirrors_of("q"))[0]
    cluster.kill(mirror)
    async with cluster.client() as client, client.publisher("q") as publisher:
        await publisher.publish(b"the one")
        async with client.consumer("q", prefetch=1) as consumer:
            batch = await consumer.next_batch(timeout_s=5.0)
            assert batch is not None
            await cluster.start(mirror)
            await cluster.wait_synchronised("q")
            assert await live_everywhere(cluster) == {1}
            await consumer.nack(batch)
            assert await live_everywhere(cluster) == {1}
            batch = await consumer.next_batch(timeout_s=5.0)
            assert batch is not None
            assert batch[0].redelivered
            assert await consumer.ack(batch, wait=True)
    assert await live_everywhere(cluster) == {0}
    assert (await cluster.info("q")).state is ringmq.QueueState.RUNNING


@scenario(deadline_s=60)
async def test_the_master_dies_while_a_mirror_has_come_back_to_a_held_message(
    cluster: Cluster,
) -> None:
    """follower_synchronization with the master killed: the mirror comes back while a consumer holds
    the only message that it lacked, the master dies, and the message comes again, marked."""
    master = await cluster.master_of("q")
    mirror = (await cluster.mirrors_of("q"))[0]
    cluster.kill(mirror)
    async with cluster.client() as client, client.publisher("q") as publisher:
        await publisher.publish(b"the one")
        async with client.consumer("q", prefetch=1) as consumer:
            assert await consumer.next_batch(timeout_s=5.0)
            await cluster.start(mirror)
            await cluster.wait_synchronised("q")
            cluster.kill(master)
            for last in (False, True):
                batch = await consumer.next_batch(timeout_s=20.0)
                assert batch is not None
                assert [(each.body, each.redelivered) for each in batch] == [(b"the one", True)]
                if last:
                    assert await consumer.ack(batch, wait=True)
                else:
                    await consumer.nack(batch)
        await cluster.start(master)
        await cluster.wait_synchronised("q")
    assert await live_everywhere(cluster) == {0}


async def live_everywhere(cluster: Cluster) -> set[int]:
    """How many messages each of the replicas has; they are equal in every other respect."""
    return {replica.messages for replica in await cluster.wait_equal("q")}
