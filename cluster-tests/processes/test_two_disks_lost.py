"""Two disks are lost, and the third replica is not eligible: an operator decides, on record."""

from __future__ import annotations

import pytest
from nemesis import Cluster, scenario

import ringmq


@scenario(deadline_s=120)
async def test_two_disks_lost_and_the_third_replica_is_behind(cluster: Cluster) -> None:
    cluster.expect_log("may lack confirmed messages")
    cluster.expect_log("has accepted that confirmed messages may be lost")
    async with cluster.publishing("q", total=500) as first:
        await first.finishes(within_s=20)
    behind = (await cluster.mirrors_of("q"))[-1]
    cluster.kill(behind)
    async with cluster.publishing("q", total=300) as second:
        await second.finishes(within_s=20)
    lost = cluster.others(behind)
    cluster.kill(*lost)
    for name in lost:
        cluster.lose_disk(name)
    await cluster.start()

    async with cluster.client() as client:
        with pytest.raises(ringmq.MessagesMayBeLostError) as refused:
            await client.promote_mirror("q", behind, deadline_s=20)
        told = {each["node"]: each for each in refused.value.replicas}
        assert {name: told[name]["standing"] for name in told} == {
            behind: "behind",
            **dict.fromkeys(lost, "synchronised"),
        }
        assert (told[behind]["messages"], told[behind]["next_position"]) == (500, 500)
        assert not any(told[name]["log_is_whole"] for name in lost)
        # Nothing has been done, and nobody has begun the ring meanwhile.
        assert (await client.queues("q"))[0].state is ringmq.QueueState.DOWN

        done = await client.promote_mirror(
            "q", behind, accept_loss=True, operator="on call", deadline_s=20
        )
        assert done.new_master == behind
        assert done.loss is not None
        assert (done.loss.node, done.loss.position, done.loss.operator) == (behind, 500, "on call")
        info = await cluster.wait_synchronised("q", within_s=40)
        assert info.losses == (done.loss,)
        assert {life.split("#")[0] for life in done.loss.overruled} == set(lost)
    (await cluster.drained("q")).judge(first)
