"""Dead letters between queues whose masters are on two nodes, and die."""

from __future__ import annotations

from collections import Counter

from nemesis import Cluster, scenario
from waiting import until

import ringmq
from ringmq import QueueRules

TO_DEAD = QueueRules(dead_letter_exchange="", dead_letter_routing_key="dead")


async def with_masters(cluster: Cluster, **masters: str) -> None:
    for queue, node in masters.items():
        await cluster.wait_synchronised(queue)
        if await cluster.master_of(queue) != node:
            await cluster.promote(queue, node)


async def letters_in(client: ringmq.Client, source: str, queue: str) -> list[ringmq.Message]:
    """All letters, once all have left the source."""

    async def all_gone() -> bool:
        info = await client.queue(source)
        return not (
            info.messages_ready or info.messages_unacknowledged or info.messages_dead_lettering
        )

    await until(all_gone, f"letters of {source}", within_s=30.0)
    found: list[ringmq.Message] = []
    # What has just been enqueued is visible a trip later.
    while (await client.queue(queue)).messages_ready:
        found += await client.get_messages(queue, 1000, remove=True)
    return found


@scenario(deadline_s=60, queue="")
async def test_rejected_letters_arrive_once_whoever_dies(cluster: Cluster) -> None:
    """The source's master dies while its consumer rejects, then the target's while letters arrive:
    each message is in the dead-letter queue once, and none is lost."""
    await cluster.declare("dead")
    await cluster.declare("work", rules=TO_DEAD)
    await with_masters(cluster, work="a", dead="b")
    total = 600
    async with cluster.client(deadline_s=60) as client, client.publisher("work") as publisher:
        await publisher.publish_batch([b"%d" % number for number in range(total)])

        async def reject(count: int) -> None:
            """So many of those that are left, or all."""
            async with client.consumer("work", prefetch=40) as consumer:
                while count > 0:
                    batch = await consumer.next_batch(timeout_s=1.0)
                    if batch is None:
                        return
                    await consumer.nack(batch, requeue=False)
                    count -= len(batch)

        await reject(total // 3)
        cluster.kill("a")
        await reject(total // 3)
        await cluster.restart("a")
        for queue in ("work", "dead"):
            await cluster.wait_synchronised(queue)
        cluster.kill("b")
        # Until nothing comes any more: also what a consumer had whose settle was lost.
        await reject(total)
        letters = await letters_in(client, "work", "dead")
        await cluster.start("b")
        for queue in ("work", "dead"):
            await cluster.wait_synchronised(queue)
            await cluster.wait_equal(queue)
        assert (await client.queue("dead")).messages_ready == 0
    counts = Counter(int(letter.body) for letter in letters)
    assert counts == Counter(range(total))
    for letter in letters:
        [death] = letter.properties.deaths
        assert (death.reason, death.queue, death.count) == ("rejected", "work", 1)
