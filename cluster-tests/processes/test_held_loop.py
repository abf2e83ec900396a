"""No piece of a node's work holds its event loop for long, whatever it has to do.

The nodes watch that themselves, by the CPU time of the loop's thread
(`ringmq_node.resources.loop_watch`), and warn above 50 ms, which is the aim. It isn't reached yet:
a deletion's rename took 61 ms here on a quiet machine. Until it is, this test fails above
`HELD_MS_MAX` only, and does not see what lies between.

Three pieces are still longer, at tens of thousands of ranges of positions, and are left out here:
a consumer that leaves with so many outstanding; a replica that comes back with its own bodies and
takes over a state of so many; a leftover of a deleted queue with so many, opened at the start.
"""

from __future__ import annotations

import asyncio
import re

from nemesis import Cluster, scenario
from waiting import until

import ringmq

HELD_MS_MAX = 150
MESSAGES = 60_000
BATCH = 2000
QUEUES = 300


def held(cluster: Cluster) -> list[str]:
    """The warnings of all nodes about pieces above the limit."""
    logs = "\n".join(cluster.log(name, lines=1_000_000) for name in cluster.nodes)
    found = re.finditer(r".*loop was held for (\d+) ms.*", logs)
    return [warning[0] for warning in found if int(warning[1]) > HELD_MS_MAX]


async def publish_each(client: ringmq.Client, queue: str) -> None:
    """A journal of many records: one message in each of them."""
    async with client.publisher(queue) as publisher:
        waiting = [publisher.publish_batch([b"%d" % at]) for at in range(6000)]
        await asyncio.gather(*waiting)


async def make_holes(client: ringmq.Client, queue: str) -> None:
    """Live messages at every other position: as many ranges as there are messages."""

    async def acks_are_safe() -> bool:
        return (await client.queue(queue)).acknowledged_total == MESSAGES // 2

    async def others_are_back() -> bool:
        return (await client.queue(queue)).messages_ready == MESSAGES // 2

    async with client.publisher(queue) as publisher:
        for first in range(0, MESSAGES, BATCH):
            await publisher.publish_batch([b"%d" % at for at in range(first, first + BATCH)])
    acked = 0
    async with client.consumer(queue, prefetch=MESSAGES) as consumer:
        async for batch in consumer:
            for message in batch:
                if message.position % 2:
                    await consumer.ack(message)
                    acked += 1
            if acked == MESSAGES // 2:
                break
        # The consumer has all the others, and gives them back when it goes.
        await until(acks_are_safe, "the acks are safe", within_s=60)
    await until(others_are_back, "the others are back")


async def declare_many(client: ringmq.Client) -> None:
    await asyncio.gather(*(client.declare_queue(f"many{at:03d}") for at in range(QUEUES)))


async def all_run(client: ringmq.Client) -> None:
    while True:
        infos = await client.queues()
        if all(info.state is ringmq.QueueState.RUNNING for info in infos):
            return
        await asyncio.sleep(0.1)


async def back_with_an_empty_disk(cluster: Cluster, node: str) -> None:
    cluster.lose_disk(node)
    await cluster.start(node)
    await cluster.wait_synchronised("holes", within_s=60)


@scenario(deadline_s=200, queue="holes")
async def test_no_piece_of_work_holds_a_loop(cluster: Cluster) -> None:
    """Declares, a state of many ranges, a death, a restart on a large journal, an emptied disk."""
    async with cluster.client(deadline_s=30.0) as client:
        await make_holes(client, "holes")
        # A consumer that leaves with 30 000 ranges gives them back in one piece, which is longer.
        before = held(cluster)
        await client.declare_queue("each")
        await publish_each(client, "each")
        await declare_many(client)
        mirror, other = await cluster.mirrors_of("holes")
        cluster.expect_log("the data directory .* is not the one that this node used last")
        cluster.kill(mirror)
        await all_run(client)
        await back_with_an_empty_disk(cluster, mirror)
        master = await cluster.master_of("holes")
        cluster.kill(master)
        await all_run(client)
        assert (await client.queue("holes")).messages_ready == MESSAGES // 2
        await back_with_an_empty_disk(cluster, master)
        await client.delete_queue("holes")
        # It reads its journals: one of them has 6 000 records.
        cluster.kill(other)
        await cluster.start(other)
        await cluster.wait_synchronised("each", within_s=60)
    assert held(cluster)[len(before) :] == []
