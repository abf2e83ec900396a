"""`queue_length_limits_SUITE` on three nodes, and again with the master killed half way.

Each case has its name in RabbitMQ, a queue of its own, and two halves: at the `yield` the master of
all queues dies. At the end it is back, and the replicas of each queue are equal.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from loops import run
from nemesis import Cluster, until

import ringmq
from ringmq import Overflow, QueueRules

MASTER = "a"
DROP_HEAD = Overflow.DROP_HEAD
REJECT = Overflow.REJECT_PUBLISH
# Each body is as long: as many bytes as one of them.
BODY_BYTES = 5


@dataclass
class Case:
    """A queue that nobody else uses."""

    client: ringmq.Client
    queue: str

    async def refused(self, *bodies: bytes) -> tuple[tuple[int, int], ...]:
        """Publishes all at once; returns which of them the queue had no room for."""
        async with self.client.publisher(self.queue) as publisher:
            try:
                await publisher.publish_batch(bodies)
            except ringmq.QueueFullError as error:
                return error.failed
        return ()

    async def has(self, *bodies: bytes) -> None:
        """Until these are ready, and the queue's counter says as many."""

        async def so() -> bool:
            found = await self.client.get_messages(self.queue, 10)
            counted = (await self.client.queue(self.queue)).messages_ready
            return ([each.body for each in found], counted) == (list(bodies), len(bodies))

        await until(so, f"{self.queue} has {bodies}")

    async def take(self) -> bytes:
        (message,) = await self.client.get_messages(self.queue, 1, remove=True)
        return message.body


Story = AsyncGenerator[None, None]


async def drops_head(case: Case) -> Story:
    """The newest stays, and all are confirmed."""
    assert await case.refused(b"msg-1", b"msg-2", b"msg-3") == ()
    await case.has(b"msg-3")
    yield
    await case.has(b"msg-3")
    assert await case.refused(b"msg-4") == ()
    await case.has(b"msg-4")
    assert await case.refused(b"msg-5", b"msg-6") == ()
    await case.has(b"msg-6")


async def rejects_confirm(case: Case) -> Story:
    """The first is confirmed, the others are refused; after a get there is room again."""
    assert await case.refused(b"msg-1") == ()
    assert await case.refused(b"msg-2") == ((0, 0),)
    assert await case.refused(b"msg-3") == ((0, 0),)
    yield
    assert await case.refused(b"msg-4") == ((0, 0),)
    assert await case.take() == b"msg-1"
    assert await case.refused(b"msg-5") == ()
    assert await case.refused(b"msg-6") == ((0, 0),)
    await case.has(b"msg-5")


async def drops_publish(case: Case) -> Story:
    """Nobody has to wait for the answer: the first stays."""
    assert await case.refused(b"msg-1", b"msg-2", b"msg-3") == ((1, 2),)
    await case.has(b"msg-1")
    yield
    await case.has(b"msg-1")
    assert await case.take() == b"msg-1"
    assert await case.refused(b"msg-4", b"msg-5") == ((1, 1),)
    await case.has(b"msg-4")


async def drops_publish_requeue(case: Case) -> Story:
    """What comes back is not subject to the limit: both stay, in their order."""
    assert await case.refused(b"msg-1") == ()
    async with case.client.consumer(case.queue, prefetch=1) as consumer:
        batch = await consumer.next_batch(timeout_s=10.0)
        assert batch is not None
        assert batch[0].body == b"msg-1"
        assert await case.refused(b"msg-2") == ()
        yield
    await case.has(b"msg-1", b"msg-2")
    assert await case.refused(b"msg-3") == ((0, 0),)
    assert await case.take() == b"msg-1"
    # There is still one, which is as many as may be.
    assert await case.refused(b"msg-4") == ((0, 0),)


CASES: dict[str, tuple[Callable[[Case], Story], QueueRules]] = {
    "max_length_default": (drops_head, QueueRules(max_length=1)),
    "max_length_bytes_default": (drops_head, QueueRules(max_length_bytes=BODY_BYTES)),
    "max_length_drop_head": (drops_head, QueueRules(max_length=1, overflow=DROP_HEAD)),
    "max_length_bytes_drop_head": (
        drops_head,
        QueueRules(max_length_bytes=BODY_BYTES, overflow=DROP_HEAD),
    ),
    "max_length_reject_confirm": (rejects_confirm, QueueRules(max_length=1, overflow=REJECT)),
    "max_length_bytes_reject_confirm": (
        rejects_confirm,
        QueueRules(max_length_bytes=BODY_BYTES, overflow=REJECT),
    ),
    "max_length_drop_publish": (drops_publish, QueueRules(max_length=1, overflow=REJECT)),
    "max_length_bytes_drop_publish": (
        drops_publish,
        QueueRules(max_length_bytes=BODY_BYTES, overflow=REJECT),
    ),
    "max_length_drop_publish_requeue": (
        drops_publish_requeue,
        QueueRules(max_length=1, overflow=REJECT),
    ),
}


async def play(cluster: Cluster, *, killed: bool) -> None:
    async with cluster.client(MASTER) as client:
        for queue, (_, rules) in CASES.items():
            await client.declare_queue(
                queue, rules=rules, master_locator=ringmq.MasterLocator.CLIENT_LOCAL
            )
    for queue in CASES:
        await cluster.wait_synchronised(queue)
        assert await cluster.master_of(queue) == MASTER
    async with cluster.client(deadline_s=30.0) as client:
        stories = {queue: case(Case(client, queue)) for queue, (case, _) in CASES.items()}
        for story in stories.values():
            await anext(story)
        if killed:
            cluster.kill(MASTER)
            for queue in CASES:
                await cluster.wait_synchronised(queue, 2)
        for story in stories.values():
            with suppress(StopAsyncIteration):
                await anext(story)
    if killed:
        await cluster.start(MASTER)
    for queue in CASES:
        await cluster.wait_synchronised(queue)
        await cluster.wait_equal(queue)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("killed", [False, True], ids=["quiet", "master killed"])
def test_length_limits_of_rabbitmqs_suite(tmp_path: Any, killed: bool) -> None:
    async def story() -> None:
        async with Cluster(tmp_path) as cluster:
            await play(cluster, killed=killed)

    run(story())
