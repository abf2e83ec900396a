"""Cases of one cluster: each has a queue of its own, and two halves. Between them the master of all
queues is killed, or told to stop and started again, or nothing happens. One death serves all of
them; each is a test with its own name.

A case may work on over the middle: then it has a call under way whatever happens there.

At the end the node is back, and the three replicas of each queue have equal digests, and on their
disks equal bodies. A *play* is a mode of the queues and what happens in the middle: `make test` has
four of the six, `make evidence` all of them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from loops import run
from nemesis import Cluster, until

import ringmq
from ringmq import QueueMode, QueueRules, QueueStorage

MASTER = "a"


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%05d" % number for number in range(first, first + count)]


class Between(Enum):
    """The fate of the queues' master between the halves of all stories."""

    NOTHING = "quiet"
    # It hands its queues over, and is a mirror of them in the second half.
    STOPPED = "master told to stop"
    # It is away for the second half.
    KILLED = "master killed"


@dataclass(frozen=True)
class Play:
    """How a module's cases are played on one cluster."""

    mode: QueueMode
    between: Between

    @property
    def moves(self) -> bool:
        """Whether there is another master in the second half: streams have ended, and what was
        with consumers comes again, marked as redelivered (0004)."""
        return self.between is not Between.NOTHING

    def __str__(self) -> str:
        return f"{self.mode.name.lower()}, {self.between.value}"


MODES = (QueueMode.DEFAULT, QueueMode.LAZY)
PLAYS = [Play(mode, between) for mode, between in product(MODES, Between)]
# Each middle, and each mode with a kill: the other two add no more than a pair.
USUAL = (
    Play(QueueMode.DEFAULT, Between.NOTHING),
    Play(QueueMode.DEFAULT, Between.KILLED),
    Play(QueueMode.LAZY, Between.STOPPED),
    Play(QueueMode.LAZY, Between.KILLED),
)
WANTED = PLAYS if os.environ.get("RINGMQ_EXHAUSTIVE") else USUAL


Work = Callable[[], Awaitable[None]]


@dataclass
class Case:
    """The means of a case: a queue that nobody else uses, on a cluster that others use as well, and
    the middle of its story."""

    queue: str
    cluster: Cluster
    client: ringmq.Client
    pause: Callable[[Work | None], Awaitable[None]]
    play: Play

    @property
    def moves(self) -> bool:
        return self.play.moves

    async def middle(self, work: Work | None = None) -> None:
        """Returns when the middle is over. `work` is done again and again meanwhile; once in any
        case."""
        await self.pause(work)

    async def publish(
        self, *bodies: bytes, ttl_ms: int | None = None, transient: bool = False
    ) -> None:
        async with self.client.publisher(self.queue) as publisher:
            await publisher.publish_batch(bodies, ttl_ms=ttl_ms, transient=transient)

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

    async def storage(self) -> QueueStorage:
        """The places of its messages, at the master."""
        storage = (await self.client.queue(self.queue)).storage
        assert storage is not None
        return storage

    def has_moved_bodies(self, node: str) -> bool:
        """Whether bodies in the node's message store were moved to other files, and are in use."""
        return any((self.cluster.data(node) / "messages" / "persistent").glob("*.map"))

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


async def paged_out(case: Case, most: int = 0) -> None:
    """Until no more than `most` of the queue's messages are in memory.

    A queue that becomes lazy lets go of what is on disk; what it fetches for a consumer afterwards
    stays until it is settled. So one that is lazy already is switched to and fro.
    """
    found: list[QueueStorage] = []

    async def is_out() -> bool:
        for mode in MODES:
            await case.client.set_queue_mode(case.queue, mode)
        found[:] = [await case.storage()]
        return found[0].messages_in_memory <= most

    try:
        await until(is_out, poll_s=0.1)
    except AssertionError:
        raise AssertionError(f"{case.queue} is not paged out: {found}") from None


# Of `publish_sequential_expiries`: so many messages, of which the first expire at once.
EXPIRING, EXPIRED = 10_000, 5


def expiring_bodies(size_bytes: int = 5) -> list[bytes]:
    return [body.ljust(size_bytes) for body in numbered(EXPIRING)]


async def publish_sequential_expiries(
    client: ringmq.Client, queue: str, bodies: Sequence[bytes]
) -> None:
    """As RabbitMQ's dropwhile_restart does: messages expire in their order. The first `EXPIRED`
    live for some milliseconds each, and the others in hundreds, for an hour and more."""
    async with client.publisher(queue) as publisher, asyncio.TaskGroup() as tasks:
        for at, body in enumerate(bodies[:EXPIRED]):
            tasks.create_task(publisher.publish(body, ttl_ms=1 + at))
        for at in range(EXPIRED, len(bodies), 100):
            some = bodies[at : at + 100]
            tasks.create_task(publisher.publish_batch(some, ttl_ms=3_600_000 + at * 1000))


async def narrowed(consumer: ringmq.Consumer) -> None:
    """It has room for one: of many that it holds and puts back, none comes to it again."""
    await consumer.set_prefetch(1)
    await until(lambda: consumer.prefetch[0] == 1, "the prefetch is lower")


async def in_memory(case: Case) -> None:
    """The queue may keep its messages in memory, as far as it has room."""
    await case.client.set_queue_mode(case.queue, QueueMode.DEFAULT)


async def until_it_ends(consumer: ringmq.Consumer) -> None:
    """Takes messages as they come, and raises the reason why no more come."""
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
    # Those that will work on, and have nothing under way yet.
    idle: set[str] = field(default_factory=set)
    all_there: asyncio.Event = field(default_factory=asyncio.Event)
    all_busy: asyncio.Event = field(default_factory=asyncio.Event)
    going_on: asyncio.Event = field(default_factory=asyncio.Event)

    def arrive(self, queue: str) -> None:
        self.arrived.add(queue)
        if len(self.arrived) == self.count:
            self.all_there.set()
            self.begin("")

    def begin(self, queue: str) -> None:
        self.idle.discard(queue)
        if self.all_there.is_set() and not self.idle:
            self.all_busy.set()

    async def pause(self, queue: str, work: Work | None) -> None:
        if work is None:
            self.arrive(queue)
            await self.going_on.wait()
            return
        self.idle.add(queue)
        self.arrive(queue)
        await self.all_there.wait()
        while not self.going_on.is_set():
            under_way = asyncio.ensure_future(work())
            # It has its turn on the loop before whoever waits for this.
            self.begin(queue)
            await under_way


Story = Callable[[Case], Awaitable[None]]
# The failures, by case.
Outcomes = dict[str, Exception | None]


@dataclass(frozen=True)
class Stories:
    """The cases of a module, by name."""

    cases: Sequence[Story]
    # Those that leave no queue.
    deleted: Sequence[str] = ()
    # Of the queues of these.
    rules: Mapping[str, QueueRules] = field(default_factory=dict)
    # Queues that cases use besides their own, for dead letters.
    others: Sequence[str] = ()

    async def declare(self, cluster: Cluster, mode: QueueMode) -> dict[str, Story]:
        """By queue, all with the same master."""
        queues = {story.__name__: story for story in self.cases}
        async with cluster.client(MASTER) as client:
            for queue in (*queues, *self.others):
                await client.declare_queue(
                    queue,
                    mode=mode,
                    rules=self.rules.get(queue, QueueRules()),
                    master_locator=ringmq.MasterLocator.CLIENT_LOCAL,
                    min_insync=2,
                )
        for queue in (*queues, *self.others):
            await cluster.wait_synchronised(queue)
            assert await cluster.master_of(queue) == MASTER
        return queues


async def happen(cluster: Cluster, between: Between, queues: Sequence[str]) -> None:
    match between:
        case Between.NOTHING:
            return
        case Between.STOPPED:
            assert await cluster.stop(MASTER) == 0
            await cluster.start(MASTER)
            left = 3
        case Between.KILLED:
            cluster.kill(MASTER)
            left = 2
    for queue in queues:
        await cluster.wait_synchronised(queue, left)


async def play_all(cluster: Cluster, stories: Stories, play: Play) -> Outcomes:
    queues = await stories.declare(cluster, play.mode)
    halves, outcomes = Halves(len(queues)), Outcomes()
    async with cluster.client(deadline_s=30.0) as client, asyncio.TaskGroup() as tasks:

        async def tell(queue: str, story: Story) -> None:
            outcomes[queue] = None
            try:
                await story(Case(queue, cluster, client, partial(halves.pause, queue), play))
                assert queue in halves.arrived, "it has no middle"
            except Exception as error:
                outcomes[queue] = error
            halves.arrive(queue)

        for queue, story in queues.items():
            tasks.create_task(tell(queue, story), name=queue)
        await halves.all_busy.wait()
        await happen(cluster, play.between, [*queues, *stories.others])
        halves.going_on.set()
    if not cluster.is_running(MASTER):
        await cluster.start(MASTER)
    for queue in sorted({*queues, *stories.others} - {*stories.deleted}):
        await cluster.wait_synchronised(queue)
        await cluster.wait_same_bodies(queue)
    return outcomes


def outcomes_of(
    stories: Stories, plays: Sequence[Play] = WANTED
) -> Callable[[pytest.FixtureRequest, pytest.TempPathFactory], Outcomes]:
    """A module's fixture: the outcomes of its cases, in each of its plays."""

    @pytest.fixture(scope="module", params=plays, ids=str)
    def outcomes(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Outcomes:
        async def story(folder: Path) -> Outcomes:
            async with Cluster(folder) as cluster, asyncio.timeout(120):
                return await play_all(cluster, stories, request.param)

        return run(story(tmp_path_factory.mktemp("cases")))

    return outcomes


def judge(outcomes: Outcomes, story: Story) -> None:
    error = outcomes[story.__name__]
    if error is not None:
        raise error
