"""The order of what leaves a queue with one replica. There an op is confirmed while it is asked
for, and what follows from that must not overtake what was decided before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from loops import run
from node.tests.nodes import lone_node
from waiting import leeway, until

import ringmq
from ringmq import QueueRules

# More runs than a turn looks at, and more bytes than it delivers.
ONE_BY_ONE, BODY_BYTES, HELD = 1700, 1024, 1000


def played(folder: Path, story: Callable[[ringmq.Client], Awaitable[None]]) -> None:
    async def main() -> None:
        node = await lone_node(folder)
        await node.start()
        try:
            async with ringmq.connect(node.address) as client:
                await story(client)
        finally:
            await node.stop()

    run(main())


@pytest.mark.slow
def test_deliveries_behind_an_ack(tmp_path: Path) -> None:
    async def story(client: ringmq.Client) -> None:
        await client.declare_queue("q")
        async with client.publisher("q") as publisher:
            for _ in range(ONE_BY_ONE):
                await publisher.publish(bytes(BODY_BYTES))
        got: list[int] = []

        async def take(count: int) -> None:
            while len(got) < count:
                batch = await consumer.next_batch(20.0)
                assert batch is not None
                assert not any(each.redelivered for each in batch)
                got.extend(each.position for each in batch)

        async with client.consumer("q", prefetch=HELD) as consumer:
            await take(HELD)
            await consumer.ack(0, HELD - 1)
            await take(ONE_BY_ONE)
        assert got == [*range(ONE_BY_ONE)]

    played(tmp_path, story)


def test_a_message_that_comes_back_is_before_those_behind_it(tmp_path: Path) -> None:
    """Its consumer has room at once, and was given the next one."""

    async def story(client: ringmq.Client) -> None:
        await client.declare_queue("q")
        async with client.publisher("q") as publisher:
            await publisher.publish_batch([b"0", b"1", b"2"])
        got: list[tuple[bytes, bool]] = []
        async with client.consumer("q", prefetch=1) as consumer:
            for turn in range(6):
                batch = await consumer.next_batch(20.0)
                assert batch is not None
                (message,) = batch
                got.append((message.body, message.redelivered))
                settle = consumer.nack if turn < 3 else consumer.ack
                await settle(message.position, message.position)
        again = (b"0", True)
        assert got == [(b"0", False), again, again, again, (b"1", False), (b"2", False)]

    played(tmp_path, story)


@pytest.mark.slow
def test_a_purge_of_nothing_keeps_nobody_waiting(tmp_path: Path) -> None:
    """It had taken in hand what a purge before it had still to remove, and dropped that: no message
    left the queue any more."""

    async def story(client: ringmq.Client) -> None:
        await client.declare_queue("q")
        async with client.publisher("q") as publisher:
            await publisher.publish_batch([b""] * 3000)
        async with client.consumer("q", prefetch=3000) as consumer:
            held = 0
            while held < 3000:
                held += len(await consumer.next_batch(20.0) or ())
            for position in range(0, 3000, 2):
                await consumer.ack(position, position)

        async def half_is_ready() -> bool:
            return (await client.queue("q")).messages_ready == 1500

        await until(half_is_ready)
        purged = asyncio.gather(*(client.purge_queue("q") for _ in range(2)))
        assert sorted(await asyncio.wait_for(purged, leeway(10.0))) == [0, 1500]
        async with client.publisher("q") as publisher:
            await publisher.publish_batch([b"x", b"y", b"z"])
        assert await asyncio.wait_for(client.purge_queue("q"), leeway(10.0)) == 3

    played(tmp_path, story)


async def letters(
    client: ringmq.Client, count: int, publish: Callable[[Sequence[bytes]], Awaitable[None]]
) -> list[int]:
    """What comes to `dead` of so many messages that expire in `delay`."""
    await client.declare_queue("dead")
    rules = QueueRules(message_ttl_ms=1000, dead_letter_exchange="", dead_letter_routing_key="dead")
    await client.declare_queue("delay", rules=rules)
    await publish([b"%d" % number for number in range(count)])

    async def all_there() -> bool:
        return (await client.queue("dead")).messages_ready == count

    await until(all_there)
    found: list[int] = []
    while len(found) < count:
        got = await client.get_messages("dead", 1000, remove=True)
        found += [int(body) for body in got.bodies]
    return found


def test_dead_letters(tmp_path: Path) -> None:
    async def story(client: ringmq.Client) -> None:
        async def publish(bodies: Sequence[bytes]) -> None:
            async with client.publisher("delay") as publisher:
                await publisher.publish_batch(bodies)

        assert await letters(client, 1000, publish) == [*range(1000)]

    played(tmp_path, story)


def test_dead_letters_of_many_keys_that_get_one(tmp_path: Path) -> None:
    """As of a queue for retries behind a topic exchange, with its dead-letter routing key."""

    async def story(client: ringmq.Client) -> None:
        async def publish(bodies: Sequence[bytes]) -> None:
            await client.topology.declare_exchange("t", ringmq.ExchangeType.TOPIC)
            await client.topology.bind("t", "delay", "#")
            async with client.publisher(exchange="t") as publisher:
                for number, body in enumerate(bodies):
                    await publisher.publish(
                        body, routing_key=f"k{number % 2}" if number < 59 else "k9"
                    )

        assert await letters(client, 60, publish) == [*range(60)]

    played(tmp_path, story)
