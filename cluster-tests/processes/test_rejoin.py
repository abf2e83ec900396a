"""A replica that was away keeps the valid part of its disk, and fetches the rest."""

from __future__ import annotations

import asyncio

import pytest
from nemesis import Cluster, scenario, until
from nemesis.oracle import body_of

import ringmq


async def contents_everywhere(cluster: Cluster) -> list[dict[int, tuple[str, int]]]:
    """Each node's messages by position, read from its replica while it is the master."""
    found = []
    for name in cluster.nodes:
        if await cluster.master_of("q") != name:
            await cluster.promote("q", name)
        found.append((await cluster.contents("q")).at)
    return found


@scenario(deadline_s=60)
async def test_away_while_much_was_published_and_consumed(cluster: Cluster) -> None:
    """All replicas end with the same digest, and with the same messages."""
    async with cluster.publishing("q", size_bytes=2000) as load:
        await load.confirms(1000)
        away = (await cluster.mirrors_of("q"))[1]
        cluster.kill(away)
        async with cluster.consuming("q") as some:
            await some.gets(800)
        await load.confirms(1000)
        with load.hurrying():
            await cluster.start(away)
            await cluster.wait_synchronised("q")
        await load.confirms(200)
    await cluster.wait_equal("q")
    first, *others = await contents_everywhere(cluster)
    assert all(other == first for other in others)
    rest = await cluster.drained("q")
    rest.merge(some.delivered)
    rest.judge(load)


@scenario(deadline_s=60)
async def test_away_while_everything_was_consumed(cluster: Cluster) -> None:
    """Messages on its disk that were consumed meanwhile are dropped, and never delivered again."""
    async with cluster.publishing("q", total=1000) as load:
        await load.finishes(within_s=20)
    away = (await cluster.mirrors_of("q"))[0]
    cluster.kill(away)
    (await cluster.drained("q")).judge(load)
    await cluster.start(away)
    await cluster.wait_synchronised("q")
    for replica in await cluster.wait_equal("q"):
        assert (replica.messages, replica.next_position) == (0, 1000)
    await cluster.promote("q", away)
    assert (await cluster.info("q")).messages_ready == 0


@scenario(deadline_s=60, proxied=True)
async def test_diverged_tail(cluster: Cluster) -> None:
    """The master writes ops that never leave it, and dies; other messages get these positions.

    When it is back, its diverged tail is cut, and every replica has the survivors' messages there.
    """
    async with cluster.publishing("q", total=500) as load:
        await load.finishes(within_s=20)
    master, *mirrors = [replica.node for replica in (await cluster.info("q")).ring]
    async with cluster.client(master) as client:
        publisher = client.publisher("q", deadline_s=0.5)
        await publisher.open()
        for mirror in mirrors:
            cluster.proxies[mirror].hold()
        with pytest.raises(ringmq.OutcomeUnknownError):
            await publisher.publish_batch([body_of("ghost", i, 200) for i in range(100)])
        tail = await cluster.replica("q", master)
        assert tail.next_position == 600
        cluster.kill(master)
        for mirror in mirrors:
            cluster.proxies[mirror].cut()
            cluster.proxies[mirror].release()
        await publisher.close(flush=False)
    async with cluster.publishing("q", total=100, through=mirrors) as after:
        await after.finishes(within_s=20)
    assert (await cluster.replica("q", mirrors[0])).next_position == 600
    await cluster.start(master)
    await cluster.wait_synchronised("q")
    await cluster.wait_equal("q")
    first, *others = await contents_everywhere(cluster)
    assert all(other == first for other in others)
    assert not [tag for tag, _ in first.values() if tag == "ghost"]
    (await cluster.drained("q")).judge(load, after)


@scenario(deadline_s=60)
async def test_killed_while_it_catches_up(cluster: Cluster) -> None:
    """The joiner is killed, then the member it fetches from: it begins again, and completes."""
    async with cluster.publishing("q", size_bytes=20_000, total=2000) as load:
        await load.confirms(200)
        away = (await cluster.mirrors_of("q"))[1]
        cluster.kill(away)
        await load.finishes(within_s=30)
    for _ in range(2):
        await cluster.start(away)
        await asyncio.sleep(0.05)
        cluster.kill(away)
    await cluster.start(away)
    master = await cluster.master_of("q")
    if master != away:
        await cluster.promote("q", (await cluster.mirrors_of("q"))[0])
    await cluster.wait_synchronised("q")
    await cluster.wait_equal("q")
    (await cluster.drained("q")).judge(load)


@scenario(deadline_s=60)
async def test_the_only_synchronised_one_is_not_left_behind(cluster: Cluster) -> None:
    """The master dies while the third node is still behind: the synchronised mirror takes over."""
    async with cluster.publishing("q", size_bytes=5000, total=2000) as load:
        await load.confirms(100)
        master, middle, away = [replica.node for replica in (await cluster.info("q")).ring]
        cluster.kill(away)
        await load.finishes(within_s=30)
    cluster.launch(away)
    cluster.kill(master)
    await until(lambda: cluster.is_running(away), "it runs")
    await cluster.wait_synchronised("q", 2)
    assert await cluster.master_of("q") == middle
    await cluster.start(master)
    await cluster.wait_synchronised("q")
    (await cluster.drained("q")).judge(load)
