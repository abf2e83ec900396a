"""A node comes back with an empty or an older disk: intact replicas keep every confirmed message.

It starts first, and an empty node starts fastest: so whatever it may begin alone, it does begin.
"""

from __future__ import annotations

import asyncio

from nemesis import Cluster, scenario

# In the log of a node whose disk is not the one that it had.
NOT_TRUSTED = "may lack confirmed messages"
# More than `Timing.restart_grace_s`: a node that could begin a ring alone has done so by then.
ALONE_S = 5.0


@scenario(deadline_s=90)
async def test_the_master_comes_back_first_with_an_empty_disk(cluster: Cluster) -> None:
    cluster.expect_log(NOT_TRUSTED)
    async with cluster.publishing("q", total=1000) as load:
        await load.finishes(within_s=20)
    master = await cluster.master_of("q")
    cluster.kill(*cluster.nodes)
    cluster.lose_disk(master)
    await cluster.start(master)
    await asyncio.sleep(ALONE_S)
    await cluster.start(*cluster.others(master))
    await cluster.wait_synchronised("q", within_s=40)
    assert await cluster.master_of("q") != master
    (await cluster.drained("q")).judge(load)


@scenario(deadline_s=90)
async def test_the_master_comes_back_first_with_an_older_disk(cluster: Cluster) -> None:
    """Its copy is of the life before: every node has been restarted since."""
    cluster.expect_log(NOT_TRUSTED)
    async with cluster.publishing("q", total=500) as first:
        await first.finishes(within_s=20)
    master = await cluster.master_of("q")
    cluster.kill(*cluster.nodes)
    copy = cluster.copy_disk(master)
    await cluster.start()
    await cluster.wait_synchronised("q", within_s=40)
    async with cluster.publishing("q", total=500) as second:
        await second.finishes(within_s=20)
    cluster.kill(*cluster.nodes)
    cluster.restore_disk(master, copy)
    await cluster.start(master)
    await asyncio.sleep(ALONE_S)
    await cluster.start(*cluster.others(master))
    await cluster.wait_synchronised("q", within_s=40)
    (await cluster.drained("q")).judge(first, second)


@scenario(deadline_s=90)
async def test_a_lost_disk_is_trusted_again_once_it_is_synchronised(cluster: Cluster) -> None:
    """And not earlier: killed before that, and started again, it still begins no ring."""
    cluster.expect_log(NOT_TRUSTED)
    async with cluster.publishing("q", total=1000) as load:
        await load.finishes(within_s=20)
    master, *mirrors = [replica.node for replica in (await cluster.info("q")).ring]
    cluster.kill(*cluster.nodes)
    cluster.lose_disk(master)
    await cluster.start(master)
    # Its next life finds the disk that it has made itself, with a queue that it never had whole.
    await cluster.restart(master)
    await asyncio.sleep(ALONE_S)
    await cluster.start(*mirrors)
    await cluster.wait_synchronised("q", within_s=40)
    await cluster.wait_trusted(master)
    # Now it is the only one that has them, and begins the ring once it has heard that.
    cluster.kill(*cluster.nodes)
    for mirror in mirrors:
        cluster.lose_disk(mirror)
    await cluster.start()
    await cluster.wait_synchronised("q", within_s=40)
    (await cluster.drained("q")).judge(load)


@scenario(deadline_s=90)
async def test_two_come_back_first_with_empty_disks(cluster: Cluster) -> None:
    """They are as many as `min_insync` wants to hear of, and still begin nothing."""
    cluster.expect_log(NOT_TRUSTED)
    async with cluster.publishing("q", total=1000) as load:
        await load.finishes(within_s=20)
    *lost, intact = [replica.node for replica in (await cluster.info("q")).ring]
    cluster.kill(*cluster.nodes)
    for name in lost:
        cluster.lose_disk(name)
    await cluster.start(*lost)
    await asyncio.sleep(ALONE_S)
    await cluster.start(intact)
    await cluster.wait_synchronised("q", within_s=40)
    (await cluster.drained("q")).judge(load)
