"""Replicas come back with more than their ring was begun again from: that is kept."""

from __future__ import annotations

import asyncio
import json

from nemesis import Cluster, scenario
from nemesis.command_line import ringmq_succeeded
from waiting import until

from ringmq import Resources


async def resources_of(cluster: Cluster, name: str) -> Resources:
    """The node that is asked may not reach that one at once, which has just started."""
    found: list[Resources] = []

    async def told() -> bool:
        async with cluster.client() as client:
            status = await client.cluster_status(with_resources=True)
        node = next(each for each in status.nodes if each.node == name)
        if node.resources is not None:
            found.append(node.resources)
        return bool(found)

    await until(told, f"{name} tells its resources")
    return found[0]


@scenario(deadline_s=180)
async def test_the_others_rejoin_an_accepted_loss(cluster: Cluster) -> None:
    """An operator believes that two machines are gone for good. Then they are found again."""
    cluster.expect_log("has accepted that confirmed messages may be lost")
    async with cluster.publishing("q", total=500) as first:
        await first.finishes(within_s=20)
    behind = (await cluster.mirrors_of("q"))[-1]
    cluster.kill(behind)
    async with cluster.publishing("q", total=300) as second:
        await second.finishes(within_s=20)
    gone = cluster.others(behind)
    cluster.kill(*gone)
    await cluster.start(behind)
    async with cluster.client() as client:
        await client.promote_mirror(
            "q", behind, accept_loss=True, operator="on call", deadline_s=30
        )
    await cluster.start(*gone)
    await cluster.wait_synchronised("q", within_s=40)

    for name in gone:
        (kept,) = (await resources_of(cluster, name)).set_aside
        assert (kept.queue, kept.messages) == ("q", 300)
        assert (kept.first_position, kept.next_position) == (500, 800)
    assert cluster.log(behind, 10_000).count("set aside") == 0

    data, seeds = str(cluster.data(gone[0])), ",".join(cluster.seeds)
    rows = (await ringmq_succeeded("set-aside", "export", data, kept.name, "--json")).splitlines()
    assert [json.loads(row)["position"] for row in rows] == [*range(500, 800)]
    # Twice: the second time nothing is left to be done.
    for published, before in ((300, 0), (0, 300)):
        text = await ringmq_succeeded(
            "set-aside", "publish", data, kept.name, "--seeds", seeds, "--json"
        )
        assert json.loads(text) == {
            "queue": "q",
            "published": published,
            "enqueued_before": before,
        }
    (await cluster.drained("q")).judge(first, second)
    await ringmq_succeeded("set-aside", "remove", data, kept.name)
    assert (
        json.loads(await ringmq_succeeded("set-aside", "list", data, "--json"))["set_aside"] == []
    )


@scenario(deadline_s=120, queue="", nodes=("a", "b"))
async def test_a_disk_that_was_put_back_unnoticed_begins_the_ring_alone(cluster: Cluster) -> None:
    """With `min_insync` 1 one log is enough, and its node's directory is of the same life."""
    await cluster.declare("q", replicas=2, min_insync=1)
    async with cluster.publishing("q", total=500) as first:
        await first.finishes(within_s=20)
    copy = cluster.copy_disk("a")
    async with cluster.publishing("q", total=300) as second:
        await second.finishes(within_s=20)
    cluster.kill("a", "b")
    cluster.restore_disk("a", copy)
    await cluster.start("a")
    async with cluster.publishing("q", total=200) as third:
        await third.finishes(within_s=30)
    await cluster.start("b")
    await cluster.wait_synchronised("q", within_s=40)
    (kept,) = (await resources_of(cluster, "b")).set_aside
    assert kept.next_position == 800
    data, seeds = str(cluster.data("b")), ",".join(cluster.seeds)
    await ringmq_succeeded("set-aside", "publish", data, kept.name, "--seeds", seeds)
    (await cluster.drained("q")).judge(first, second, third)


@scenario(deadline_s=120)
async def test_failovers_leave_nothing_behind(cluster: Cluster) -> None:
    """A killed master has ops that nobody else has. They were never confirmed."""
    async with cluster.publishing("q", total=8_000) as load:
        for _ in range(2):
            master = await cluster.master_of("q")
            cluster.kill(master)
            await asyncio.sleep(1.0)
            await cluster.start(master)
            await cluster.wait_synchronised("q", within_s=40)
        await load.finishes(within_s=60)
    for name in cluster.nodes:
        assert "set aside" not in cluster.log(name, 100_000)
    (await cluster.drained("q")).judge(load)
