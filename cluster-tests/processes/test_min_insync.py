"""Fewer synchronised replicas than `min_insync`: nothing is confirmed, all else goes on."""

from __future__ import annotations

import asyncio

import pytest
from nemesis import Cluster, scenario
from nemesis.command_line import ringmq_ended
from nemesis.oracle import body_of

import ringmq


async def leave_one(cluster: Cluster) -> str:
    """Kills both mirrors, and waits until the registry's leases let the master go on alone."""
    master, *mirrors = [replica.node for replica in (await cluster.info("q")).ring]
    cluster.kill(*mirrors)
    await cluster.wait_synchronised("q", 1)
    return master


async def take_without_mirrors(cluster: Cluster) -> None:
    """A message of the new queue `few` is taken while no mirror answers; three are left."""
    master, *mirrors = [replica.node for replica in (await cluster.info("q")).ring]
    await cluster.declare("few")
    await cluster.wait_synchronised("few")
    await cluster.promote("few", master)
    async with cluster.client(master) as client:
        async with client.publisher("few") as publisher:
            await publisher.publish_batch([b"one", b"two", b"three", b"four"])
        for mirror in mirrors:
            cluster.pause(mirror)
        with pytest.raises(ringmq.TimedOutError, match=r"may have been (done|carried out)"):
            await client.get_messages("few", 1, remove=True, deadline_s=0.4)
        for mirror in mirrors:
            cluster.resume(mirror)


async def removals_are_not_safe(cluster: Cluster, master: str) -> None:
    """An ack under way ends as unknown; a call that would have to wait for the ring is refused."""
    await cluster.wait_synchronised("few", 1)
    async with cluster.client(master, deadline_s=0.4) as client:
        async with client.consumer("few", prefetch=1) as consumer:
            batch = await anext(consumer)
            with pytest.raises(ringmq.TimedOutError, match="may be delivered again"):
                await consumer.ack(batch, wait=True)
        for remove in (client.get_messages("few", 1, remove=True), client.purge_queue("few")):
            with pytest.raises(ringmq.TooFewSynchronisedError):
                await remove
        # The call that timed out took effect; the refused calls did not.
        info = await client.queue("few")
        assert (info.messages_ready, info.messages_unacknowledged) == (2, 0)
    seed = cluster.addresses[master]
    consumed = await ringmq_ended("consume", "few", "--timeout", "0.5", "-s", seed)
    assert consumed.exit_code == 1
    assert "may be delivered again" in consumed.err


@scenario(deadline_s=60)
async def test_publishers_are_refused_and_consumers_go_on(cluster: Cluster) -> None:
    async with cluster.publishing("q", total=500) as load:
        await load.finishes(within_s=20)
    await take_without_mirrors(cluster)
    master = await leave_one(cluster)
    await removals_are_not_safe(cluster, master)
    async with cluster.client(master) as client:
        assert (await client.queue("q")).state is ringmq.QueueState.MINORITY
        with pytest.raises(ringmq.TooFewSynchronisedError, match="1 replicas are sync"):
            async with client.publisher("q", deadline_s=1.0) as publisher:
                await publisher.publish(body_of("refused", 0, 100))
        found = await cluster.drained("q")
    found.judge(load)
    assert len(found.at) == 500
    await cluster.start(*cluster.others(master))
    await cluster.wait_synchronised("q")
    for replica in await cluster.wait_equal("q"):
        assert replica.messages == 0
    async with cluster.publishing("q", total=100) as after:
        await after.finishes(within_s=20)
    assert after.errors == []


@scenario(deadline_s=60)
async def test_a_new_master_delivers_what_the_old_one_had_confirmed(cluster: Cluster) -> None:
    """The master and one mirror are killed: the mirror that is left can confirm nothing, not even
    its take-over, but what the old master has told it of is safe."""
    async with cluster.publishing("q", total=2000) as load:
        await load.finishes(within_s=20)
    master = await cluster.master_of("q")
    left = (await cluster.mirrors_of("q"))[0]
    # The master says how far all is confirmed with the next op, or after 50 ms.
    await asyncio.sleep(0.2)
    cluster.kill(*cluster.others(left))
    await cluster.wait_synchronised("q", 1)
    info = await cluster.info("q")
    assert (info.master, info.state) == (left, ringmq.QueueState.MINORITY)
    found = await cluster.drained("q")
    found.judge(load)
    assert len(found.at) == 2000
    await cluster.start(*cluster.others(left))
    await cluster.wait_synchronised("q")
    for replica in await cluster.wait_equal("q"):
        assert replica.messages == 0
    assert master != left


@scenario(deadline_s=60, queue="")
async def test_min_insync_of_all(cluster: Cluster) -> None:
    """With `min_insync` 3 one dead mirror stops confirms; its return lets them go on."""
    async with cluster.client() as client:
        await client.declare_queue("q", min_insync=3)
    async with cluster.publishing("q") as load:
        await load.confirms(200)
        mirror = (await cluster.mirrors_of("q"))[0]
        cluster.kill(mirror)
        await cluster.wait_synchronised("q", 2)
        async with cluster.client() as client:
            with pytest.raises(ringmq.TooFewSynchronisedError):
                async with client.publisher("q", deadline_s=0.5) as other:
                    await other.publish(body_of("refused", 0, 100))
        await cluster.start(mirror)
        await load.confirms(200)
    assert load.errors == []
    await cluster.wait_synchronised("q")
    (await cluster.drained("q")).judge(load)


@scenario(deadline_s=60, queue="")
async def test_min_insync_of_one(cluster: Cluster) -> None:
    """With `min_insync` 1 the last member goes on, once the leases of the others have run out."""
    async with cluster.client() as client:
        await client.declare_queue("q", min_insync=1)
    async with cluster.publishing("q") as load:
        await load.confirms(200)
        master, *mirrors = [replica.node for replica in (await cluster.info("q")).ring]
        cluster.kill(*mirrors)
        await load.confirms(200, within_s=20)
        await cluster.start(*mirrors)
        await cluster.wait_synchronised("q")
    assert load.errors == []
    assert await cluster.master_of("q") == master
    (await cluster.drained("q")).judge(load)
    await cluster.wait_equal("q")
