"""The case that decision 0020 doesn't solve: the last whole disk is lost while the others join it.

As rings, it is `test_the_last_whole_disk_is_lost_while_the_others_catch_up` in
`cluster-tests/simulation/test_accepted_loss.py`. Here an operator meets it, by the command line.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from nemesis import Cluster, scenario, until
from nemesis.command_line import ringmq_ended, ringmq_succeeded

from ringmq import Policy, SyncMode, SyncPhase

# Joiners have the state, and fetch no bodies: they stay joiners.
MANUAL = Policy("manual", "^q$", sync_mode=SyncMode.MANUAL)
CONFIRMED = 500
UNCONFIRMED = 20


async def shown(cluster: Cluster, *words: str) -> Any:
    """What a command prints as JSON."""
    seeds = ",".join(cluster.seeds)
    return json.loads(await ringmq_succeeded(*words, "--seeds", seeds, "--json"))


async def left_with_joiners(cluster: Cluster) -> str:
    """Both mirrors leave with all that was confirmed and come back as joiners of a master who has
    some messages more, and who loses its disk then. Returns the master's node."""
    master = await cluster.master_of("q")
    mirrors = cluster.others(master)
    async with cluster.client() as client, client.publisher("q") as publisher:
        await client.operator.set_policy(MANUAL)
        cluster.kill(*mirrors)
        # Nothing is confirmed without a quorum: only the master has these.
        more = asyncio.create_task(publisher.publish_batch([b"more"] * UNCONFIRMED))

        async def is_alone() -> bool:
            ring = (await client.queue("q")).ring
            return [replica.node for replica in ring] == [master]

        await until(is_alone, f"{master} is the ring", within_s=20)
        await cluster.start(*mirrors)

        async def are_joiners() -> bool:
            ring = (await client.queue("q")).ring
            lacking = [
                replica.sync.messages_missing
                for replica in ring
                if replica.sync is not None and replica.sync.phase is SyncPhase.MANUAL
            ]
            return lacking == [UNCONFIRMED] * len(mirrors)

        await until(are_joiners, "the mirrors are joiners", within_s=30)
        cluster.kill(master)
        more.cancel()
        await asyncio.gather(more, return_exceptions=True)
    cluster.lose_disk(master)
    await cluster.start(master)
    return master


@scenario(deadline_s=150)
async def test_the_last_whole_disk_is_lost_while_the_others_catch_up(cluster: Cluster) -> None:
    """The queue is DOWN, and stays it, until an operator accepts what he was told."""
    cluster.expect_log("may lack confirmed messages")
    cluster.expect_log("has accepted that confirmed messages may be lost")
    cluster.expect_log("messages are damaged here and no synchronised replica gives them")
    async with cluster.publishing("q", total=CONFIRMED) as load:
        await load.finishes(within_s=30)
    lost = await left_with_joiners(cluster)
    named, other = cluster.others(lost)
    seeds = ",".join(cluster.seeds)
    (down,) = await shown(cluster, "queue", "list")
    assert (down["state"], down["losses"]) == ("down", [])
    assert [each["node"] for each in down["ring"] if each["synchronised"]] == [lost]

    refused = await ringmq_ended("promote", "q", named, "--seeds", seeds, "--json")
    assert refused.exit_code == 1
    (line,) = refused.err.splitlines()
    replicas = {each["node"]: each for each in json.loads(refused.out)["replicas"]}
    end = replicas[named]
    assert line.startswith(
        "ringmq: queue 'q' has no master, and too few replicas that have everything: "
        f"with {named!r}, whatever was confirmed beyond op {end['last_number']} of epoch "
        f"{end['log_epoch']} would be lost, and {UNCONFIRMED} messages before it, whose bodies "
        "it lacks. "
    )
    assert {name: each["standing"] for name, each in replicas.items()} == {
        lost: "synchronised",
        named: "behind",
        other: "behind",
    }
    assert not any(each["log_is_whole"] for each in replicas.values())
    for name in (named, other):
        told = replicas[name]
        assert told["messages"] == told["next_position"] == CONFIRMED + UNCONFIRMED
        assert told["messages_missing"] == UNCONFIRMED
    # Nothing has been done, and nobody has begun the ring meanwhile with less.
    assert await shown(cluster, "queue", "list") == [down]

    accepting = ("promote", "q", named, "--accept-loss", "--operator", "on call")
    done = await shown(cluster, *accepting)
    loss = done["loss"]
    assert (done["new_master"], loss["node"], loss["operator"]) == (named, named, "on call")
    assert (loss["log_epoch"], loss["log_number"]) == (end["log_epoch"], end["last_number"])
    assert loss["position"] == end["next_position"]
    assert loss["overruled"] == [f"{lost}#1"]
    up = await shown(cluster, "queue", "show", "q")
    assert up["losses"] == [loss]
    assert (up["messages_ready"], up["messages_damaged"]) == (CONFIRMED, UNCONFIRMED)

    await shown(cluster, "policy", "delete", MANUAL.name)
    await cluster.wait_synchronised("q", within_s=40)
    (await cluster.drained("q")).judge(load)
