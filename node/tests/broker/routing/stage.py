"""A node whose queues are played, for the tests of routed sessions: streams break, queues fill up
or go."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from loops import run

from ringmq_node.broker.publishing import Publishing
from ringmq_node.broker.routing.batch import RoutedBatch
from ringmq_node.broker.routing.core import Answer, AnswerConfirmed
from ringmq_node.broker.routing.routing import Routing
from ringmq_node.broker.routing.session import RoutedSession
from ringmq_node.broker.routing.targets import SubBatch
from ringmq_node.broker.routing.ways import Feed
from ringmq_node.model.fields import Headers
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.settings import BrokerSettings
from ringmq_node.replica.sessions import PublisherSession
from ringmq_node.resources.budget import PublishBudget


class PlayedQueues:
    """The router, the locator and the other nodes: queues `q1` and so on."""

    def __init__(self) -> None:
        # By routing key.
        self.bound: dict[str, tuple[str, ...]] = {"k": ("q1", "q2", "q3")}
        self.has: dict[str, dict[int, bytes]] = defaultdict(dict)
        self.got: list[tuple[str, SubBatch]] = []
        self.missing = {"missing", "x declared elsewhere"}
        self.exchanges_asked: list[list[str]] = []
        self.deleted: set[str] = set()
        self.full: set[str] = set()
        self.down: set[str] = set()
        self.freed = asyncio.Event()
        # Batches until a stream breaks; the batch then arrives, and its confirm doesn't.
        self.breaks_after = 10**9
        self.fences: set[str] = set()
        self.asked = 0
        self.asked_for: list[int] = []
        self.shown = asyncio.Event()
        self.streams = 0
        self.feeds: dict[str, Feed] = {}
        # Queues that have heard that the producer has ended.
        self.ended: list[str] = []

    def check_publish(self, exchange: str) -> None:
        if exchange == "internal":
            raise BrokerError(Reason.ACCESS_REFUSED, "clients don't publish to it")

    def looks_at_headers(self, exchange: str) -> bool:
        self.route(exchange, ())
        return exchange == "by headers"

    def route(
        self,
        exchange: str,
        routing_keys: Sequence[str],
        headers: Headers | None = None,
    ) -> tuple[str, ...]:
        if exchange in self.missing:
            raise BrokerError(Reason.EXCHANGE_NOT_FOUND, "there is none")
        keys = (str(headers["to"].value),) if headers else routing_keys
        return tuple(dict.fromkeys(queue for key in keys for queue in self.bound.get(key, ())))

    # --- a locator, as far as it is asked ---

    async def look_up(self, queues: Sequence[str]) -> None:
        self.asked += 1
        self.asked_for.append(len(queues))
        if "declared elsewhere" in queues:
            # The registry knows it, and the watch shows it now.
            await self.shown.wait()
            self.bound["declared elsewhere"] = ("declared elsewhere",)

    async def look_up_exchanges(self, names: Sequence[str]) -> None:
        self.exchanges_asked.append(sorted(names))
        await self.shown.wait()
        self.missing.discard("x declared elsewhere")

    async def route_to(self, queue: str, *, forwarded: bool) -> str:
        if queue in self.deleted:
            raise BrokerError(Reason.QUEUE_NOT_FOUND, "it is deleted")
        return "elsewhere:1"

    # --- the other nodes ---

    async def run(self, address: str, feed: Feed) -> None:
        self.streams += 1
        self.feeds[feed.queue] = feed
        left = self.breaks_after
        if feed.queue in self.down:
            raise BrokerError(Reason.NO_MASTER, "it has none")
        if feed.queue in self.fences and feed.is_over:
            raise BrokerError(Reason.PRODUCER_FENCED, "another one has it")
        while not feed.is_over:
            if feed.queue in self.fences:
                raise BrokerError(Reason.PRODUCER_FENCED, "another one has it")
            if feed.queue in self.down:
                raise BrokerError(Reason.NO_MASTER, "it has none")
            if feed.queue in self.deleted:
                raise BrokerError(Reason.NO_MASTER, "it is going")
            batch = feed.next() if feed.queue not in self.full else None
            if batch is None:
                waits = self.freed if feed.queue in self.full else feed.work
                waits.clear()
                await waits.wait()
                continue
            self.got.append((feed.queue, batch))
            stored = self.has[feed.queue]
            for sequence, body in enumerate(batch.bodies, batch.first):
                assert stored.setdefault(sequence, body) == body
            left -= 1
            if not left:
                raise BrokerError(Reason.NO_MASTER, "the stream broke")
            await asyncio.sleep(0)
            feed.confirmed([(batch.first, batch.last)])
        if feed.ends_producer:
            self.ended.append(feed.queue)
            feed.end_told()


class PlayedClient:
    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.ended: list[Reason] = []
        self.held_told: list[bool] = []

    def held(self, *, is_held: bool) -> None:
        self.held_told.append(is_held)

    def answered(self, answers: Sequence[Answer]) -> None:
        self.answers += answers

    def moved(self, reason: Reason) -> None:
        self.ended.append(reason)

    def confirmed(self) -> list[int]:
        return [
            n
            for answer in self.answers
            if isinstance(answer, AnswerConfirmed)
            for first, last in answer.sequences
            for n in range(first, last + 1)
        ]


class Stage:
    def __init__(self) -> None:
        self.queues = PlayedQueues()
        self.tasks: set[asyncio.Task[None]] = set()
        self.routing = Routing(self.queues, self.queues, self.spawn)
        locator, cluster, gate = (type("Played", (), {})() for _ in range(3))
        locator.route, locator.look_up = self.queues.route_to, self.queues.look_up
        cluster.nodes, cluster.address = lambda _: [], "here:1"
        gate.check = lambda: None
        self.budget = PublishBudget(1000, lambda: 0)

        async def here(queue: str, session: PublisherSession, *, producer_id: bytes) -> Publishing:
            raise AssertionError("every queue is elsewhere")

        parts = (cast(Any, locator), cast(Any, cluster), cast(Any, gate))
        settings = BrokerSettings(message_bytes_max=10_000)
        self.routing.begin(*parts, self.budget, self.queues, settings, open_here=here)

    def spawn(self, work: Any, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        self.tasks.add(task)
        return task

    def open(self, client: PlayedClient, producer: bytes = b"p") -> RoutedSession:
        return self.routing.open("", client, producer_id=producer)


def batch(
    first: int,
    *bodies: bytes,
    key: str = "k",
    cc: tuple[str, ...] = (),
    bcc: tuple[str, ...] = (),
    exchange: str = "e",
    mandatory: bool = False,
    headers: Sequence[Headers] = (),
) -> RoutedBatch:
    keys = (key, *cc)
    return RoutedBatch(first, bodies, (), lambda: headers, exchange, keys, bcc, mandatory)


def play(story: Callable[[Stage], Awaitable[None]]) -> None:
    async def told() -> None:
        stage = Stage()
        async with asyncio.timeout(20):
            await story(stage)
        stage.routing.stop(Reason.DRAINING)
        for result in await asyncio.gather(*stage.tasks, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError), result

    run(told())
