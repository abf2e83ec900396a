"""Nodes that are told to stop hand their masters over; publishers don't notice."""

from __future__ import annotations

import asyncio

from nemesis import Cluster, scenario
from waiting import leeway


@scenario(deadline_s=60)
async def test_master_told_to_stop(cluster: Cluster) -> None:
    """The master gets SIGTERM under load: a mirror takes over; no error, no pause, exit code 0."""
    async with cluster.publishing("q") as load, cluster.consuming("q") as eager:
        await load.confirms(500)
        master = await cluster.master_of("q")
        load.watch_gaps()
        assert await cluster.stop(master) == 0
        await load.confirms(500)
        load.pauses_less_than(leeway(2.0))
        assert await cluster.master_of("q") != master
        await cluster.start(master)
        await cluster.wait_synchronised("q")
        await eager.gets(100)
    assert load.errors == []
    eager.delivered.merge(await cluster.drained("q"))
    eager.delivered.judge(load)


@scenario(deadline_s=90)
async def test_rolling_restart(cluster: Cluster) -> None:
    """All three nodes are restarted, one after the other, under load."""
    async with cluster.publishing("q") as load, cluster.consuming("q") as eager:
        for name in cluster.nodes:
            await load.confirms(300)
            assert await cluster.stop(name) == 0
            await load.confirms(300)
            await cluster.start(name)
            await cluster.wait_synchronised("q")
        await eager.gets(100)
    assert load.errors == []
    eager.delivered.merge(await cluster.drained("q"))
    eager.delivered.judge(load)
    await cluster.wait_equal("q")


@scenario(deadline_s=60)
async def test_all_told_to_stop(cluster: Cluster) -> None:
    """Every confirmed message is there after all nodes stopped cleanly, at once or one by one."""
    async with cluster.publishing("q", total=1000) as load:
        await load.finishes(within_s=20)
    codes = await asyncio.gather(*map(cluster.stop, cluster.nodes))
    assert codes == [0, 0, 0]
    await cluster.start()
    await cluster.wait_synchronised("q")
    for name in cluster.nodes:
        assert await cluster.stop(name) == 0
    await cluster.start()
    await cluster.wait_synchronised("q")
    found = await cluster.drained("q")
    found.judge(load)
    assert len(found.at) == 1000
