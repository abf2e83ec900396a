"""Cases of one cluster: each has a queue of its own, and two halves, between which the master of
all queues dies, or nothing happens. One death serves all of them; each is a test with its own name.

At the end the node is back, and the three replicas of each queue are equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from loops import run
from nemesis import Cluster, until

import ringmq

MASTER = "a"


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%05d" % number for number in range(first, first + count)]


@dataclass
class Case:
    """What a case has: a queue that nobody else uses, and the middle of its story."""

    queue: str
    client: ringmq.Client
    middle: Callable[[], Awaitable[Any]]
    # Whether messages that are live in the middle may come marked as redelivered (0004).
    killed: bool

    async def publish(self, *bodies: bytes, ttl_ms: int | None = None) -> None:
        async with self.client.publisher(self.queue) as publisher:
            await publisher.publish_batch(bodies, ttl_ms=ttl_ms)

    def consumer(self, **options: Any) -> ringmq.Consumer:
        return self.client.consumer(self.queue, **options)

    async def counts(self, ready: int, unacknowledged: int = 0) -> None:
        """Until so many are ready, and so many with consumers."""
        found = (-1, -1)

        async def as_many() -> bool:
            nonlocal found
            info = await self.client.queue(self.queue)
            found = (info.messages_ready, info.messages_unacknowledged)
            return found == (ready, unacknowledged)

        try:
            await until(as_many)
        except AssertionError:
            raise AssertionError(f"{self.queue}: {found}, not {(ready, unacknowledged)}") from None

    def puller(self) -> ringmq.Consumer:
        return self.client.consumer(self.queue, pulls=True)

    async def bodies(self, most: int = 1000) -> list[bytes]:
        return [each.body for each in await self.client.get_messages(self.queue, most)]


async def take(consumer: ringmq.Consumer, count: int) -> list[ringmq.Message]:
    """Exactly so many of one stream: those of a stream that has ended come again."""
    found: list[ringmq.Message] = []
    while len(found) < count:
        batch = await consumer.next_batch(timeout_s=20.0)
        assert batch is not None, f"{len(found)} of {count} came"
        if found and batch.generation != found[0].generation:
            found.clear()
        found += batch
    assert len(found) == count
    return found


async def until_it_ends(consumer: ringmq.Consumer) -> None:
    """Takes what comes, and raises why no more comes."""
    while await consumer.next_batch(timeout_s=20.0) is not None:
        continue


def bodies_of(messages: list[ringmq.Message]) -> list[bytes]:
    return [message.body for message in messages]


@dataclass
class Halves:
    """Each case arrives in the middle, or fails before; the others go on when what happens there
    has happened."""

    count: int
    arrived: set[str] = field(default_factory=set)
    all_there: asyncio.Event = field(default_factory=asyncio.Event)
    going_on: asyncio.Event = field(default_factory=asyncio.Event)

    def arrive(self, queue: str) -> None:
        self.arrived.add(queue)
        if len(self.arrived) == self.count:
            self.all_there.set()

    async def pause(self, queue: str) -> None:
        self.arrive(queue)
        await self.going_on.wait()


Story = Callable[[Case], Awaitable[None]]
# What went wrong, by case.
Outcomes = dict[str, Exception | None]


async def play(
    cluster: Cluster, stories: Sequence[Story], *, killed: bool, deleted: Sequence[str]
) -> Outcomes:
    """`deleted`: the cases that leave no queue."""
    queues = {story.__name__: story for story in stories}
    async with cluster.client(MASTER) as client:
        for queue in queues:
            await client.declare_queue(
                queue, master_locator=ringmq.MasterLocator.CLIENT_LOCAL, min_insync=2
            )
    for queue in queues:
        await cluster.wait_synchronised(queue)
        assert await cluster.master_of(queue) == MASTER
    halves, outcomes = Halves(len(queues)), Outcomes()
    async with cluster.client(deadline_s=30.0) as client, asyncio.TaskGroup() as tasks:

        async def tell(queue: str, story: Story) -> None:
            outcomes[queue] = None
            try:
                await story(Case(queue, client, lambda: halves.pause(queue), killed))
                assert queue in halves.arrived, "it has no middle"
            except Exception as error:
                outcomes[queue] = error
            halves.arrive(queue)

        for queue, story in queues.items():
            tasks.create_task(tell(queue, story), name=queue)
        await halves.all_there.wait()
        if killed:
            cluster.kill(MASTER)
            for queue in queues:
                await cluster.wait_synchronised(queue, 2)
        halves.going_on.set()
    if killed:
        await cluster.start(MASTER)
    for queue in sorted({*queues} - {*deleted}):
        await cluster.wait_synchronised(queue)
        await cluster.wait_equal(queue)
    return outcomes


def outcomes_of(
    stories: Sequence[Story], *, deleted: Sequence[str] = ()
) -> Callable[[pytest.FixtureRequest, pytest.TempPathFactory], Outcomes]:
    """A module's fixture: what came of its cases, quiet and with the master killed."""

    @pytest.fixture(scope="module", params=[False, True], ids=["quiet", "master killed"])
    def outcomes(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Outcomes:
        async def story(folder: Path) -> Outcomes:
            async with Cluster(folder) as cluster, asyncio.timeout(120):
                return await play(cluster, stories, killed=request.param, deleted=deleted)

        return run(story(tmp_path_factory.mktemp("cases")))

    return outcomes


def judge(outcomes: Outcomes, story: Story) -> None:
    error = outcomes[story.__name__]
    if error is not None:
        raise error
