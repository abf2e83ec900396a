"""One prefetch over queues whose masters are on three nodes; one is killed (amqp.md §5)."""

from __future__ import annotations

from contextlib import AsyncExitStack

from nemesis import Cluster, scenario, until
from nemesis.oracle import body_of

import ringmq

MESSAGES = 60
QUEUES = {"qa": "a", "qb": "b", "qc": "c"}


class Program:
    """Takes what comes, and settles when it is told to."""

    def __init__(self, shared: ringmq.SharedPrefetch) -> None:
        self.shared = shared
        self.consumers: list[ringmq.Consumer] = []
        self.batches: list[tuple[ringmq.Consumer, ringmq.Batch]] = []
        self.taken = 0
        self.settled: dict[str, set[int]] = {queue: set() for queue in QUEUES}
        # How many were unsettled since the limit was changed last.
        self.most = 0

    async def gather(self) -> int:
        """All that has come by now; returns how many are unsettled."""
        for consumer in self.consumers:
            while (batch := await consumer.next_batch(timeout_s=0.01)) is not None:
                self.taken += len(batch)
                self.batches += [(consumer, batch[at : at + 1]) for at in range(len(batch))]
                self.most = max(self.most, self.shared.unsettled[0])
        return self.shared.unsettled[0]

    async def settle(self, count: int, *, wait: bool = False) -> None:
        for consumer, batch in self.batches[:count]:
            if await consumer.ack(batch, wait=wait):
                self.settled[consumer.queue].add(batch.positions[0][0])
        del self.batches[:count]

    async def wait_unsettled(self, messages: int) -> None:
        async def has() -> bool:
            taken = sum(each.unsettled_messages for each in self.consumers)
            return await self.gather() == messages == taken

        await until(has, f"{messages} are unsettled, of {self.shared.unsettled}")

    @property
    def is_done(self) -> bool:
        return all(len(positions) == MESSAGES for positions in self.settled.values())


async def unacknowledged(client: ringmq.Client) -> int:
    infos = [await client.queue(queue) for queue in QUEUES]
    return sum(info.messages_unacknowledged for info in infos)


@scenario(deadline_s=90, queue="")
async def test_consumers_of_queues_on_three_nodes_share_a_prefetch(cluster: Cluster) -> None:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(cluster.client())
        for queue, node in QUEUES.items():
            await cluster.declare(queue)
            await cluster.wait_synchronised(queue)
            if await cluster.master_of(queue) != node:
                await cluster.promote(queue, node)
            async with client.publisher(queue) as publisher:
                await publisher.publish_batch([body_of("p", i, 100) for i in range(MESSAGES)])
        shared = ringmq.SharedPrefetch(10)
        program = Program(shared)
        for queue in QUEUES:
            consumer = client.consumer(queue, shared_prefetch=shared)
            program.consumers.append(await stack.enter_async_context(consumer))
        await limits_hold(client, program)
        await the_dead_masters_part_goes_to_the_others(cluster, program)
        await all_is_settled(program)
        await cluster.start("b")
        for queue in QUEUES:
            assert (await client.queue(queue)).messages_ready == 0
            await cluster.wait_synchronised(queue)
            await cluster.wait_equal(queue)


async def limits_hold(client: ringmq.Client, program: Program) -> None:
    await program.wait_unsettled(10)
    assert await unacknowledged(client) == 10
    # The first one came alone. From now on they have equal parts.
    await program.settle(10)
    await program.wait_unsettled(10)
    parts = [each.unsettled_messages for each in program.consumers]
    assert sorted(parts) == [3, 3, 4], parts
    await program.shared.change(15)
    await program.wait_unsettled(15)
    assert (program.most, await unacknowledged(client)) == (15, 15)
    # Nothing new before less is out.
    await program.shared.change(4)
    taken = program.taken
    await program.settle(11, wait=True)
    assert (await program.gather(), program.taken) == (4, taken)
    program.most = 0
    await program.settle(1, wait=True)
    await program.wait_unsettled(4)
    assert (program.taken, program.most) == (taken + 1, 4)
    # 100 bytes each: the bytes allow three.
    await program.shared.change(4, 399)
    await program.settle(1)
    await program.wait_unsettled(3)
    await program.shared.change(10)
    await program.wait_unsettled(10)


async def the_dead_masters_part_goes_to_the_others(cluster: Cluster, program: Program) -> None:
    program.most = 0
    of_b = program.consumers[1]
    before, had = of_b.generation, of_b.unsettled_messages
    assert had > 0
    cluster.kill("b")
    await until(lambda: of_b.unsettled_messages == 0, "its stream has ended")
    # The queue has no master yet; what its consumer had goes to the others.
    await until(lambda: of_b.generation > before, "its stream is open again")
    await program.wait_unsettled(10)
    assert program.most == 10


async def all_is_settled(program: Program) -> None:
    async def settled() -> bool:
        await program.gather()
        await program.settle(7)
        return program.is_done

    await until(settled, "each message has been settled once", within_s=40)
    assert program.most == 10
    # Those whose stream ended before they were acked came again.
    await until(lambda: program.shared.unsettled == (0, 0), "nothing is left in the window")
