"""`variable_queue_all_the_bits_not_covered_elsewhere` of RabbitMQ's backing_queue_SUITE, A and B:
on three nodes and in both modes, transient messages beside persistent ones are paged out, fetched
from the disk and put back, and the nodes are killed (A) or stopped (B)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from halves import MODES, Between, Case, Play, Work, bodies_of, numbered, paged_out, take
from nemesis import Cluster, scenario

import ringmq

# Of each kind. The first half of the bodies goes to the queue's index, the others to the message
# store, as they are published apart: it is decided for each batch.
COUNT = 400
PERSISTENT = [body + bytes(5000 * (at >= COUNT // 2)) for at, body in enumerate(numbered(COUNT))]
TRANSIENT = [b"transient " + body for body in PERSISTENT]


async def nothing(work: Work | None) -> None: ...


async def in_both_modes(
    cluster: Cluster, client: ringmq.Client, story: Callable[[Case], Coroutine[Any, Any, None]]
) -> None:
    """Each with a queue of its own, side by side."""

    async with asyncio.TaskGroup() as tasks:
        for mode in MODES:
            queue = mode.name.lower()
            case = Case(queue, cluster, client, nothing, Play(mode, Between.NOTHING))
            tasks.create_task(story(case), name=queue)


async def declare(cluster: Cluster, client: ringmq.Client) -> None:
    for mode in MODES:
        await client.declare_queue(mode.name.lower(), mode=mode)
        await cluster.wait_synchronised(mode.name.lower())


async def publish(case: Case, *bodies: bytes, transient: bool = False) -> None:
    async with case.client.publisher(case.queue) as publisher:
        for part in (bodies[: COUNT // 2], bodies[COUNT // 2 :]):
            if part:
                await publisher.publish_batch(part, transient=transient)


async def page_out(case: Case) -> None:
    """Then the queue has the mode that it was declared with."""
    await paged_out(case)
    await case.client.set_queue_mode(case.queue, case.play.mode)


@scenario(deadline_s=60, queue="")
async def test_all_the_bits_a(cluster: Cluster) -> None:
    """All are fetched from the disk, some of both kinds are put back, and every node is killed: the
    persistent ones are left, marked. A transient one that comes then is behind them."""
    async with cluster.client(deadline_s=30) as client, AsyncExitStack() as consumers:
        await declare(cluster, client)

        async def first_half(case: Case) -> None:
            await publish(case, *PERSISTENT)
            await publish(case, *TRANSIENT, transient=True)
            await page_out(case)
            consumer = await consumers.enter_async_context(case.consumer(prefetch=2 * COUNT))
            held = await take(consumer, 2 * COUNT)
            assert bodies_of(held) == PERSISTENT + TRANSIENT
            assert not any(each.redelivered for each in held)
            await case.counts(0, 2 * COUNT)
            back = held[:: COUNT // 8]
            for message in back:
                await consumer.nack(message)
            again = await take(consumer, len(back))
            assert bodies_of(again) == bodies_of(back)
            assert all(each.redelivered for each in again)
            # They stay with the consumer.
            await case.counts(0, 2 * COUNT)

        await in_both_modes(cluster, client, first_half)
        cluster.kill(*cluster.nodes)
        await consumers.aclose()
        await cluster.start()

        async def second_half(case: Case) -> None:
            await cluster.wait_synchronised(case.queue)
            await case.counts(COUNT)
            await publish(case, b"fresh", transient=True)
            await page_out(case)
            async with case.consumer(prefetch=COUNT + 1) as consumer:
                held = await take(consumer, COUNT + 1)
                assert bodies_of(held) == [*PERSISTENT, b"fresh"]
                assert [each.redelivered for each in held] == [True] * COUNT + [False]
                assert await consumer.ack(held[0].position, held[COUNT - 1].position, wait=True)
                assert await consumer.ack(held[COUNT], wait=True)
            await case.counts(0)
            await cluster.wait_equal(case.queue)

        await in_both_modes(cluster, client, second_half)


@scenario(deadline_s=60, queue="")
async def test_all_the_bits_b(cluster: Cluster) -> None:
    """Transient ones alone: fetched from the disk and put back they are in their places. They
    outlive the master, and no stop of all nodes."""
    async with cluster.client(deadline_s=30) as client:
        await declare(cluster, client)

        async def first_half(case: Case) -> None:
            await publish(case, *TRANSIENT[:4], transient=True)
            await page_out(case)
            async with case.consumer(prefetch=2) as consumer:
                held = await take(consumer, 2)
                assert bodies_of(held) == TRANSIENT[:2]
                await case.counts(2, 2)
            await case.counts(4)
            found = await client.get_messages(case.queue)
            assert [each.redelivered for each in found] == [True, True, False, False]

        async def all_are_there(case: Case) -> None:
            found = await client.get_messages(case.queue)
            assert [each.body for each in found] == TRANSIENT[:4]
            # The next master marks others, too, that may have been with a consumer.
            assert [each.redelivered for each in found[:2]] == [True, True]

        async def none_is_there(case: Case) -> None:
            await cluster.wait_synchronised(case.queue)
            await case.counts(0)
            assert not await client.get_messages(case.queue)
            await cluster.wait_equal(case.queue)

        await in_both_modes(cluster, client, first_half)
        await in_both_modes(cluster, client, all_are_there)
        cluster.kill(await cluster.master_of("default"))
        for mode in MODES:
            await cluster.wait_synchronised(mode.name.lower(), 2)
        await in_both_modes(cluster, client, all_are_there)
        running = [name for name in cluster.nodes if cluster.is_running(name)]
        assert await asyncio.gather(*map(cluster.stop, running)) == [0, 0]
        await cluster.start()
        await in_both_modes(cluster, client, none_is_there)
