"""Rules of queues on one real node whose clock the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from loops import run
from node.tests.nodes import lone_node, replica_of
from waiting import until

import ringmq
from ringmq import Client, QueueRules
from ringmq_node.node import Node
from ringmq_node.replica.upkeep import Upkeep

HOUR_MS = 3_600_000


class PlayedClock:
    def __init__(self, node: Node) -> None:
        self.ahead_ms = 0
        self._real: Callable[[], int] = node.hosting.now_ms
        node.hosting.now_ms = lambda: self._real() + self.ahead_ms


def with_node(
    folder: Path,
    *works: Callable[[Client, Node, PlayedClock], Awaitable[None]],
) -> None:
    """Each of `works` has the node to itself; it is stopped and started in between."""

    async def main() -> None:
        for work in works:
            node = await lone_node(folder)
            async with asyncio.timeout(20):
                await node.start()
                try:
                    async with ringmq.connect(node.address) as client:
                        await work(client, node, PlayedClock(node))
                finally:
                    await node.stop()

    run(main())


async def publish(client: Client, *bodies: bytes, **options: Any) -> None:
    async with client.publisher("q") as publisher:
        await publisher.publish_batch(bodies, **options)


async def seen(client: Client) -> list[bytes]:
    return [message.body for message in await client.get_messages("q", 100)]


def test_dropwhile_restart(tmp_path: Path) -> None:
    """variable_queue_dropwhile_restart: deadlines are on the disk. Readers see none that is over,
    though nothing has looked yet."""

    async def before(client: Client, node: Node, clock: PlayedClock) -> None:
        await client.declare_queue("q", rules=QueueRules(message_ttl_ms=2 * HOUR_MS))
        await publish(client, b"two hours", b"too")
        await publish(client, b"one hour", ttl_ms=HOUR_MS)
        await publish(client, b"two hours again", ttl_ms=3 * HOUR_MS)

    async def after(client: Client, node: Node, clock: PlayedClock) -> None:
        state = replica_of(node).store.state
        assert [(first, last) for first, last, _ in state.expiries] == [(0, 1), (2, 2), (3, 3)]
        assert len(await seen(client)) == 4
        clock.ahead_ms = HOUR_MS + HOUR_MS // 100
        browsed = [batch async for batch in client.reader("q").browse(0)]
        assert [m.position for batch in browsed for m in batch.messages] == [0, 1, 3]
        assert await seen(client) == [b"two hours", b"too", b"two hours again"]
        clock.ahead_ms *= 2
        assert await seen(client) == []
        assert (await client.queue("q")).expired_total == 4

    with_node(tmp_path, before, after)


def test_a_queue_of_single_active_consumers_takes_no_exclusive_one(tmp_path: Path) -> None:
    async def is_refused(client: Client) -> None:
        with pytest.raises(ringmq.ExclusiveUseError, match=r"'q': .* single_active_consumer"):
            await client.consumer("q", exclusive=True).open()

    async def work(client: Client, node: Node, clock: PlayedClock) -> None:
        await client.declare_queue("q", rules=QueueRules(single_active_consumer=True))
        await is_refused(client)
        async with client.consumer("q") as first, client.consumer("q") as second:
            await is_refused(client)
            await until(lambda: first.active and not second.active, "the first is active")

    async def at_the_next_master(client: Client, node: Node, clock: PlayedClock) -> None:
        await is_refused(client)

    with_node(tmp_path, work, at_the_next_master)


def test_what_restarts_the_clock_of_an_unused_queue(tmp_path: Path) -> None:
    async def work(client: Client, node: Node, clock: PlayedClock) -> None:
        await client.declare_queue("q", rules=QueueRules(expires_ms=HOUR_MS))
        mastership = replica_of(node).mastership
        assert mastership is not None
        upkeep: Upkeep = mastership.upkeep
        uses = 0
        used = upkeep.used

        def counted() -> None:
            nonlocal uses
            uses += 1
            used()

        upkeep.used = counted  # type: ignore[method-assign]

        async def counts(use: Awaitable[object]) -> bool:
            before = uses
            await use
            return uses > before

        assert not await counts(client.queue("q"))
        assert not await counts(publish(client, b"x"))
        assert await counts(client.get_messages("q"))
        assert await counts(client.get_messages("q", remove=True))
        assert await counts(client.declare_queue("q"))
        assert await counts(client.check_queue("q"))
        async with client.consumer("q"):
            upkeep._used_s -= HOUR_MS
            assert not upkeep.is_unused
            before = uses
        await until(lambda: uses > before, "its consumer has left")
        assert not upkeep.is_unused
        upkeep._used_s -= HOUR_MS
        assert upkeep.is_unused
        upkeep._look_for_use()

        async def is_gone() -> bool:
            return not await client.queues()

        await until(is_gone, "the queue is deleted")

    with_node(tmp_path, work)


@pytest.mark.parametrize("ttl_ms", [2**62, 10**13])
def test_a_time_to_live_that_cannot_be(tmp_path: Path, ttl_ms: int) -> None:
    async def work(client: Client, node: Node, clock: PlayedClock) -> None:
        await client.declare_queue("q")
        with pytest.raises(ringmq.BadRequestError, match="ttl_ms"):
            await publish(client, b"x", ttl_ms=ttl_ms)
        with pytest.raises(ringmq.BadRequestError, match="out of range"):
            await publish(client, b"x", ttl_ms=-1)

    with_node(tmp_path, work)


def test_a_message_and_its_letter_say_what_its_publisher_said(tmp_path: Path) -> None:
    """Its priority, above what the queue has; and its time to live, which the letter has in its
    history. The letter is as urgent in its own queue."""

    async def work(client: Client, node: Node, clock: PlayedClock) -> None:
        await client.declare_queue("dead", rules=QueueRules(max_priority=10))
        rules = QueueRules(max_priority=2, dead_letter_exchange="", dead_letter_routing_key="dead")
        await client.declare_queue("q", rules=rules)
        await publish(client, b"plain")
        await publish(client, b"urgent", b"too", priority=9, ttl_ms=HOUR_MS)
        async with client.publisher(exchange="") as publisher:
            await publisher.publish_batch([b"routed"], routing_key="q", priority=3, ttl_ms=0)
        await publish(client, b"at once", ttl_ms=0)
        assert [
            (m.body, m.properties.priority, m.properties.expiration_ms)
            for m in await client.get_messages("q", 10)
        ] == [
            (b"urgent", 9, HOUR_MS),
            (b"too", 9, HOUR_MS),
            (b"plain", 0, None),
        ]
        clock.ahead_ms = HOUR_MS + HOUR_MS // 100
        assert [m.body for m in await client.get_messages("q", 10)] == [b"plain"]

        letters: list[ringmq.Message] = []

        async def arrived() -> bool:
            # Not `messages_ready`, which counts those that aren't safe yet: nobody gets them.
            letters[:] = await client.get_messages("dead", 10)
            return len(letters) == 4

        await until(arrived)
        assert [m.body for m in letters] == [b"urgent", b"too", b"routed", b"at once"]
        assert [m.properties.priority for m in letters] == [9, 9, 3, 0]
        assert [m.properties.expiration_ms for m in letters] == [None] * 4
        said = [m.properties.deaths[0].original_expiration_ms for m in letters]
        assert said == [HOUR_MS, HOUR_MS, 0, 0]

    with_node(tmp_path, work)


def test_letters_go_where_their_headers_lead(tmp_path: Path) -> None:
    """Through a headers exchange; those of one batch part there."""

    async def work(client: Client, node: Node, clock: PlayedClock) -> None:
        await client.topology.declare_exchange("by kind", ringmq.ExchangeType.HEADERS)
        for kind in ("new", "old"):
            await client.declare_queue(kind)
            await client.topology.bind("by kind", kind, arguments={"kind": kind})
        await client.declare_queue("q", rules=QueueRules(dead_letter_exchange="by kind"))
        kinds = ["new", "old", "old", "new"]
        said = [ringmq.Properties(headers={"kind": kind}) for kind in kinds]
        async with client.publisher("q") as publisher:
            await publisher.publish_batch([b"0", b"1", b"2", b"3"], said)
        async with client.consumer("q") as consumer:
            left = len(kinds)
            while left:
                batch = await consumer.next_batch(timeout_s=10.0)
                assert batch is not None
                await consumer.nack(batch, requeue=False, wait=True)
                left -= len(batch)
        for kind, bodies in {"new": [b"0", b"3"], "old": [b"1", b"2"]}.items():

            async def arrived(kind: str = kind, bodies: list[bytes] = bodies) -> bool:
                return (await client.get_messages(kind, 10)).bodies == bodies

            await until(arrived, f"letters in {kind}")

    with_node(tmp_path, work)


def test_the_producer_ids_of_letters_are_the_nodes_own(tmp_path: Path) -> None:
    """A queue would take a client's messages for a node's, or letters for repeats of them."""

    async def work(client: Client, node: Node, clock: PlayedClock) -> None:
        await client.declare_queue("q")
        mine = b"letters-of-mine"
        for publisher in (
            client.publisher("q", producer_id=mine),
            client.publisher(exchange="amq.fanout", producer_id=mine, first_sequence=1),
        ):
            with pytest.raises(ringmq.AccessDeniedError, match="the nodes' own"):
                await publisher.open()

    with_node(tmp_path, work)
