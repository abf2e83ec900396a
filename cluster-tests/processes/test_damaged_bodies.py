"""Bodies that are damaged on a disk: fetched from another replica, or put aside."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from expected_logs import DAMAGE
from loops import run
from nemesis import Cluster, scenario, until
from nemesis.command_line import ringmq_succeeded
from nemesis.oracle import body_of
from nemesis.workload import Publishing

import ringmq

SMALL_BYTES, LARGE_BYTES = 200, 6000


def flip(folder: Path, load: Publishing, *numbers: int) -> None:
    """Flips one bit of each of these bodies, in every place on this disk that has it."""
    for number in numbers:
        body = body_of(load.tag, number, SMALL_BYTES)
        found = 0
        for path in folder.rglob("*.[ji][id][fx]"):
            at = path.read_bytes().find(body)
            if at >= 0:
                with open(path, "r+b") as file:
                    file.seek(at + len(body) - 1)
                    file.write(b",")
                found += 1
        assert found, f"{load.tag} {number} is not on the disk"


async def no_alarms(cluster: Cluster) -> None:
    async with cluster.client() as client:
        status = await client.cluster_status(with_resources=True)
    assert len(status.nodes) == len(cluster.nodes)
    for node in status.nodes:
        assert node.resources is not None
        assert not node.resources.store_failure, node


@scenario(deadline_s=50, queue="")
async def test_damage_is_repaired_from_the_ring(cluster: Cluster) -> None:
    """Damage on the disks of the master and of the mirror that it asks first: consumers see nothing
    of it, and nobody leaves the ring. Damage that is found when all start is repaired, too."""
    cluster.expect_log(DAMAGE)
    await cluster.declare("q", mode=ringmq.QueueMode.LAZY)
    before = await cluster.wait_synchronised("q")
    master, mirror = before.ring[0].node, before.ring[1].node
    async with cluster.publishing("q", total=400, size_bytes=SMALL_BYTES) as load:
        await load.finishes(within_s=10)
    flip(cluster.data(master), load, 7, 8, 200)
    flip(cluster.data(mirror), load, 8, 399)
    # Only the third replica still has the body of message 8.
    (await cluster.drained("q")).judge(load)
    after = await cluster.info("q")
    assert (after.epoch, after.ring[0].node, len(after.ring)) == (before.epoch, master, 3)
    assert after.messages_damaged == 0
    assert "messages repaired from" in cluster.log(master, lines=200)
    await no_alarms(cluster)
    await cluster.wait_equal("q")

    async with cluster.publishing("q", total=100, size_bytes=LARGE_BYTES) as large:
        await large.finishes(within_s=10)
    cluster.kill(*cluster.nodes)
    for path in (cluster.data(master) / "messages" / "persistent").glob("*.rdq"):
        path.unlink()
    await cluster.start()
    await cluster.wait_synchronised("q")
    (await cluster.drained("q")).judge(large)
    await no_alarms(cluster)


@scenario(deadline_s=60, queue="", scrub_rate_bytes=1 << 26, scrub_pause_s=0.2)
async def test_the_scrub_repairs_what_nobody_has_read(cluster: Cluster) -> None:
    """Damage on a mirror's disk, in a queue that nobody consumes. When the others are gone, the
    mirror has every message."""
    cluster.expect_log(DAMAGE)
    await cluster.declare("q", mode=ringmq.QueueMode.LAZY)
    mirror = (await cluster.wait_synchronised("q")).ring[1].node
    async with cluster.publishing("q", total=400, size_bytes=SMALL_BYTES) as load:
        await load.finishes(within_s=10)
    flip(cluster.data(mirror), load, 7, 8, 399)

    async def scrubbed() -> tuple[int, int, int]:
        """On the mirror: passes, damaged places, live messages in them."""
        async with cluster.client() as client:
            status = await client.cluster_status(with_resources=True)
        (node,) = [each for each in status.nodes if each.node == mirror]
        assert node.resources is not None
        store = node.resources.store
        return store.scrub_passes, store.scrub_faults, store.scrub_messages

    async def is_found() -> bool:
        _, faults, messages = await scrubbed()
        return faults >= 1 and messages >= 3

    async def has_passed(passes: int) -> bool:
        return (await scrubbed())[0] >= passes

    await until(is_found, "the scrub has found the damage", within_s=20)
    await until(
        lambda: "messages repaired from" in cluster.log(mirror, lines=200),
        "the scrub has repaired it",
        within_s=20,
    )
    # A journal that isn't cut yet has the old places still: a pass finds them once more, and says
    # that no live message is in them.
    passes, _, messages = await scrubbed()
    await until(lambda: has_passed(passes + 2), "two more passes", within_s=20)
    passes, faults, _ = await scrubbed()
    await until(lambda: has_passed(passes + 2), "two more passes", within_s=20)
    # They have read what was repaired.
    assert (await scrubbed())[1:] == (faults, messages)
    await cluster.wait_equal("q")
    async with cluster.client() as client:
        await client.promote_mirror("q", mirror)
    (await cluster.drained("q")).judge(load)
    assert (await cluster.info("q")).messages_damaged == 0


@pytest.mark.slow
@pytest.mark.cluster
def test_single_replica_serves_all_but_the_damaged_message(tmp_path: Path) -> None:
    """The damaged message is put aside, also after a restart, until an operator discards it."""

    async def story() -> None:
        async with (
            Cluster(tmp_path, nodes=("a",)) as cluster,
            asyncio.timeout(40),
        ):
            cluster.expect_log(DAMAGE)
            await cluster.declare("q", mode=ringmq.QueueMode.LAZY)
            # One body for each record, or a damaged one takes its neighbours with it.
            async with cluster.publishing(
                "q", total=50, size_bytes=SMALL_BYTES, batch_messages=1
            ) as load:
                await load.finishes(within_s=10)
            flip(cluster.data("a"), load, 20)
            async with cluster.consuming("q") as rest:
                await rest.has(49, within_s=10)
            assert set(rest.delivered.at) == {*range(50)} - {20}
            await until(lambda: shows(cluster, 1), "1 damaged")
            await no_alarms(cluster)
            cluster.kill("a")
            await cluster.start("a")
            await cluster.wait_synchronised("q")
            async with cluster.consuming("q"):
                await until(lambda: shows(cluster, 1), "1 damaged")
            answer = await command(cluster, "queue", "discard-damaged", "q")
            assert answer == {"queue": "q", "messages": 1}
            assert await shows(cluster, 0)
            replica = await cluster.replica("q", "a")
            assert (replica.messages, replica.messages_missing) == (0, 0)

    run(story())


async def shows(cluster: Cluster, damaged: int) -> bool:
    """Whether so many damaged messages, and no others, are left in the queue."""
    shown = await command(cluster, "queue", "show", "q")
    parts = (shown["messages_ready"], shown["messages_unacknowledged"], shown["messages_damaged"])
    return parts == (0, 0, damaged)


async def command(cluster: Cluster, *arguments: str) -> Any:
    seeds = ",".join(cluster.seeds)
    return json.loads(await ringmq_succeeded(*arguments, "--seeds", seeds, "--json"))
