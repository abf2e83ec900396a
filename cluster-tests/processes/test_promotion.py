"""Planned changes of master under load."""

from __future__ import annotations

import pytest
from history.records import Ack
from nemesis import Cluster, scenario
from nemesis.wire import RawStream

import ringmq

PROMOTIONS = 50


@scenario(deadline_s=90)
async def test_promoted_back_and_forth(cluster: Cluster) -> None:
    """Fifty times: no loss, no duplicate, no error, order kept, and nothing comes back whose ack
    was safe."""
    async with (
        cluster.publishing("q") as load,
        cluster.consuming("q", safe_acks=True) as eager,
        cluster.client() as client,
    ):
        for _ in range(PROMOTIONS):
            await load.confirms(50)
            target = (await client.queue("q")).ring[1].node
            promoted = await client.promote_mirror("q", target)
            assert promoted.new_master == target
            assert (await client.queue("q")).master == target
        await load.confirms(100)
        await eager.gets(100)
    assert load.errors == []
    assert any(isinstance(record, Ack) for record in eager.delivered.records)
    eager.delivered.merge(await cluster.drained("q"))
    eager.delivered.judge(load)
    await cluster.wait_equal("q")


@scenario(deadline_s=30)
async def test_promotions_that_are_refused(cluster: Cluster) -> None:
    """An unknown node or queue is refused by name; to promote the master again is no error."""
    async with cluster.client() as client:
        master = await cluster.master_of("q")
        with pytest.raises(ringmq.NotAMemberError):
            await client.promote_mirror("q", "nobody")
        with pytest.raises(ringmq.QueueNotFoundError):
            await client.promote_mirror("nothing", "a")
        before = await client.queue("q")
        again = await client.promote_mirror("q", master)
        assert (again.old_master, again.new_master, again.epoch) == (master, master, before.epoch)
        assert (await client.queue("q")).master == master


@scenario(deadline_s=30)
async def test_streams_that_are_sent_away_are_told_the_master_and_its_epoch(
    cluster: Cluster,
) -> None:
    """With these a client asks for a newer one, if that master doesn't answer."""
    master, target = [replica.node for replica in (await cluster.info("q")).ring][:2]
    address = cluster.addresses[master]
    async with RawStream(address, "Publish") as one, RawStream(address, "Consume") as two:
        before = (await one.open_publisher("q", b"p")).epoch
        await two.open_consumer("q")
        async with cluster.client() as client:
            promoted = await client.promote_mirror("q", target)
        assert promoted.epoch > before
        for stream in (one, two):
            while not (response := await stream.receive()).HasField("moved"):
                assert response.HasField("heartbeat")
            assert (response.moved.node, response.moved.epoch) == (target, promoted.epoch)
