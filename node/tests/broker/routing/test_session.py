"""Routed sessions on a node whose queues are played: streams break, queues fill up or go."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from loops import run
from waiting import until

from ringmq.v1 import common_pb2 as common
from ringmq_node.broker.publishing import Publishing
from ringmq_node.broker.routing import batch as batch_module
from ringmq_node.broker.routing import session as session_module
from ringmq_node.broker.routing import ways as ways_module
from ringmq_node.broker.routing.batch import RoutedBatch
from ringmq_node.broker.routing.core import Answer, AnswerConfirmed, AnswerRefused, AnswerReturned
from ringmq_node.broker.routing.routing import IDLE_S, Routing
from ringmq_node.broker.routing.session import RoutedSession
from ringmq_node.broker.routing.stamp import KEYS_MAX
from ringmq_node.broker.routing.targets import SubBatch
from ringmq_node.broker.routing.ways import Feed
from ringmq_node.model.fields import Headers, fields_of
from ringmq_node.model.flow import BlockReason
from ringmq_node.model.names import join_name
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.settings import BrokerSettings
from ringmq_node.queue.block import Block
from ringmq_node.queue.gaps import PRODUCER_GAPS_MAX
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


def test_what_is_confirmed_is_in_every_queue_over_breaking_streams() -> None:
    async def story(stage: Stage) -> None:
        stage.queues.breaks_after = 3
        client = PlayedClient()
        session = stage.open(client)
        wanted: dict[int, bytes] = {}
        for first in range(1, 41, 2):
            wanted |= {first: b"%d" % first, first + 1: b"%d" % (first + 1)}
            session.publish(batch(first, wanted[first], wanted[first + 1]))
        await until(lambda: len(client.confirmed()) == 40, within_s=15)
        assert sorted(client.confirmed()) == [*wanted]
        assert stage.queues.has == dict.fromkeys(("q1", "q2", "q3"), wanted)
        assert session.messages == 0

    play(story)


def keys_of(part: SubBatch) -> tuple[str, list[str]]:
    """What consumers are told: the exchange, and the keys."""
    [encoded] = part.properties
    found = common.Properties.FromString(encoded)
    return found.exchange, [found.routing_key, *found.cc]


def test_messages_through_several_exchanges_keep_their_order_over_breaking_streams() -> None:
    """An AMQP channel publishes to as many exchanges as it likes, in one order."""

    async def story(stage: Stage) -> None:
        stage.queues.breaks_after = 3
        client = PlayedClient()
        session = stage.open(client)
        exchanges = ("e", "", "by headers", "other")
        for first in range(1, 41):
            exchange = exchanges[first % 4]
            headers = [fields_of({"to": "k"})] if exchange == "by headers" else []
            session.publish(batch(first, b"%d" % first, exchange=exchange, headers=headers))
        await until(lambda: len(client.confirmed()) == 40, within_s=15)
        for queue in ("q1", "q2", "q3"):
            # As the queue takes them: what it has already, it doesn't take again.
            assert [*stage.queues.has[queue]] == [*range(1, 41)]
        told = {part.first: keys_of(part) for _, part in stage.queues.got}
        assert told == {n: (exchanges[n % 4], ["k"]) for n in range(1, 41)}
        assert client.ended == []

    play(story)


def test_a_message_with_several_keys_is_in_the_queues_of_all_of_them_once() -> None:
    async def story(stage: Stage) -> None:
        queues = stage.queues
        queues.bound = {"a": ("q1", "q2"), "b": ("q2", "q3"), "c": ("q4", "q1")}
        client = PlayedClient()
        session = stage.open(client)
        session.publish(batch(1, b"x", key="a", cc=("b", "nobody"), bcc=("c",)))
        session.publish(batch(2, b"y", key="nobody", bcc=("b",), mandatory=True))
        session.publish(batch(3, b"z", key="nobody", cc=("none",), bcc=("no",), mandatory=True))
        await until(lambda: sorted(client.confirmed()) == [1, 2, 3], within_s=5)
        assert sorted(queue for queue, part in queues.got if part.first == 1) == [
            "q1",
            "q2",
            "q3",
            "q4",
        ]
        told = {part.first: keys_of(part) for _, part in queues.got}
        assert told == {1: ("e", ["a", "b", "nobody"]), 2: ("e", ["nobody"])}
        returned = [each for each in client.answers if isinstance(each, AnswerReturned)]
        assert returned == [AnswerReturned(((3, 3),), Reason.UNROUTABLE)]

    play(story)


def test_keys_are_bounded() -> None:
    async def story(stage: Stage) -> None:
        session = stage.open(PlayedClient())
        many = tuple(f"k{number}" for number in range(KEYS_MAX))
        large = batch(1, *[b""] * 5000, cc=("k" * 250,))
        for refused, field in (
            (batch(1, b"x", key="k" * 256), "routing_key"),
            (batch(1, b"x", cc=("é" * 128,)), "cc"),
            (batch(1, b"x", bcc=("é" * 128,)), "bcc"),
            (batch(1, b"x", cc=many), "cc"),
            (batch(1, b"x", cc=many[:50], bcc=many[50:]), "cc"),
            (replace(large, properties=[b""] * 5000), "cc"),
        ):
            with pytest.raises(BrokerError) as caught:
                session.publish(refused)
            assert caught.value.metadata["field"] == field
        assert session.messages == 0
        session.publish(large)
        assert session.messages == 5000

    play(story)


def test_a_fan_out_shares_one_batch_and_its_id() -> None:
    async def story(stage: Stage) -> None:
        stage.queues.bound["one"] = ("q1",)
        client = PlayedClient()
        session = stage.open(client)
        session.publish(batch(1, b"a", b"b"))
        session.publish(batch(3, b"c", key="one"))
        await until(lambda: len(client.confirmed()) == 3, within_s=5)
        shared = [part for _, part in stage.queues.got if part.first == 1]
        assert len(shared) == 3
        assert all(part is shared[0] for part in shared)
        assert len(shared[0].message_id) == 16
        [alone] = [part for _, part in stage.queues.got if part.first == 3]
        assert alone.message_id == b""

    play(story)


def test_headers_send_the_messages_of_a_batch_different_ways() -> None:
    async def story(stage: Stage) -> None:
        stage.queues.bound |= {"a": ("q1",), "b": ("q1", "q2"), "": ()}
        client = PlayedClient()
        session = stage.open(client)
        headers = [fields_of({"to": to}) for to in ("a", "a", "b", "nobody", "b")]
        bodies = (b"1", b"2", b"3", b"4", b"5")
        session.publish(batch(1, *bodies, exchange="by headers", mandatory=True, headers=headers))
        await until(lambda: len(client.confirmed()) == 5, within_s=5)
        assert stage.queues.has == {
            "q1": {1: b"1", 2: b"2", 3: b"3", 5: b"5"},
            "q2": {3: b"3", 5: b"5"},
        }
        assert AnswerReturned(((4, 4),), Reason.UNROUTABLE) in client.answers

    play(story)


def test_a_queue_that_is_deleted_meanwhile_was_not_routed_to() -> None:
    async def story(stage: Stage) -> None:
        queues = stage.queues
        queues.bound = {"k": ("q1", "q2"), "only": ("q2",)}
        queues.full = {"q2"}
        client = PlayedClient()
        session = stage.open(client)
        session.publish(batch(1, b"both", mandatory=True))
        session.publish(batch(2, b"only", key="only", mandatory=True))
        await until(lambda: 1 in queues.has["q1"], within_s=5)
        assert client.answers == []
        queues.deleted = {"q2"}
        queues.full = set()
        queues.freed.set()
        await until(lambda: sorted(client.confirmed()) == [1, 2], within_s=5)
        returned = [each for each in client.answers if isinstance(each, AnswerReturned)]
        assert returned == [AnswerReturned(((2, 2),), Reason.UNROUTABLE)]

    play(story)


def test_a_full_queue_stops_its_own_session_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "RUNS_MAX", 4)

    async def story(stage: Stage) -> None:
        stage.queues.bound["other"] = ("q9",)
        stage.queues.full = {"q2"}
        stuck, free = PlayedClient(), PlayedClient()
        held = stage.open(stuck)
        for first in range(1, 5):
            await held.wait_room()
            held.publish(batch(first, bytes(100)))
        waiting = asyncio.create_task(held.wait_room())
        other = stage.open(free, producer=b"other")
        for first in range(1, 21):
            await other.wait_room()
            other.publish(batch(first, bytes(100), key="other"))
        await until(lambda: len(free.confirmed()) == 20, within_s=5)
        assert not waiting.done()
        assert stuck.answers == []
        stage.queues.full = set()
        stage.queues.freed.set()
        await waiting
        await until(lambda: len(stuck.confirmed()) == 4, within_s=5)

    play(story)


def test_a_publisher_hears_why_the_masters_of_its_queues_hold_its_batches() -> None:
    """Also while the session itself takes more."""
    letters, ring = (BlockReason.DEAD_LETTERS,), (BlockReason.RING_FULL,)

    async def story(stage: Stage) -> None:
        stage.queues.full = {"q2", "q3"}
        client = PlayedClient()
        session = stage.open(client)
        session.publish(batch(1, b"x"))
        feeds = stage.queues.feeds
        await until(lambda: len(feeds) == 3, within_s=5)
        assert session.has_room
        assert session.block_reasons() == ()
        feeds["q2"].held(letters)
        feeds["q3"].held(ring)
        assert session.block_reasons() == (*ring, *letters)
        feeds["q3"].held(())
        assert session.block_reasons() == letters
        feeds["q2"].held(letters)
        assert client.held_told == [True]
        # The stream ends, and the next master hasn't said anything.
        stage.queues.down = {"q2"}
        stage.queues.freed.set()
        await until(lambda: client.held_told == [True, False], within_s=5)
        assert session.block_reasons() == ()

    play(story)


def test_a_full_session_without_a_reason_of_its_masters_says_that_a_queue_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "RUNS_MAX", 1)

    async def story(stage: Stage) -> None:
        stage.queues.full = {"q2"}
        session = stage.open(PlayedClient())
        session.publish(batch(1, b"x"))
        await until(lambda: len(stage.queues.feeds) == 3, within_s=5)
        assert session.is_full
        assert session.block_reasons() == (BlockReason.RING_FULL,)
        stage.queues.feeds["q2"].held((BlockReason.DEAD_LETTERS,))
        assert session.block_reasons() == (BlockReason.DEAD_LETTERS,)

    play(story)


def test_a_queue_that_is_down_stops_no_other_of_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "RUNS_MAX", 4)
    monkeypatch.setattr(ways_module, "DOWN_AFTER_S", 0.1)

    async def story(stage: Stage) -> None:
        queues = stage.queues
        queues.bound = {"live": ("q1",), "dead": ("q2",), "both": ("q1", "q2")}
        queues.down = {"q2"}
        client = PlayedClient()
        session = stage.open(client)
        for first in range(1, 5):
            session.publish(batch(first, b"%d" % first, key="dead"))
        assert not session.has_room
        await session.wait_room()  # It is down by now.
        # In order behind those that wait, and beyond the limit: refused, for this queue alone.
        for first in range(5, 25, 2):
            await session.wait_room()
            session.publish(batch(first, b"%d" % first, key="live"))
            session.publish(batch(first + 1, b"%d" % (first + 1), key="both"))
        refused = [each for each in client.answers if isinstance(each, AnswerRefused)]
        assert [each.sequences[0] for each in refused] == [*range(6, 26, 2)]
        assert {each.error.reason for each in refused} == {Reason.QUEUE_FULL}
        assert not any(each.error.retryable for each in refused)
        await until(lambda: client.confirmed() == [*range(5, 25, 2)], within_s=5)
        assert [*queues.has["q1"]] == [*range(5, 25)]
        assert stage.routing.admits(0)
        queues.down = set()
        await until(lambda: len(client.confirmed()) == 14, within_s=5)
        session.publish(batch(25, b"25", key="both"))
        await until(lambda: 25 in client.confirmed(), within_s=5)
        assert [*queues.has["q2"]] == [1, 2, 3, 4, 25]
        assert (stage.routing._held_bytes, stage.routing._stuck_bytes) == (0, 0)

    play(story)


def test_what_the_node_itself_publishes_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead letters: they would be lost."""
    monkeypatch.setattr(session_module, "RUNS_MAX", 1)
    monkeypatch.setattr(ways_module, "DOWN_AFTER_S", 0.0)

    async def story(stage: Stage) -> None:
        stage.queues.bound["k"] = ("q2",)
        stage.queues.down = {"q2"}
        letters = [
            asyncio.create_task(
                stage.routing.publish("", "e", ("k",), Block.of([b"x"]), b"of q", at)
            )
            for at in (1, 2, 3)
        ]
        await asyncio.sleep(0.2)
        assert not any(letter.done() for letter in letters)
        stage.queues.down = set()
        assert await asyncio.gather(*letters) == [True] * 3

    play(story)


def test_the_bytes_of_all_sessions_are_bounded_and_shared() -> None:
    async def story(stage: Stage) -> None:
        stage.queues.full = {"q1", "q2", "q3"}
        greedy = stage.open(PlayedClient())
        first = 0
        while stage.routing.admits(greedy._core.size_bytes):
            first += 1
            greedy.publish(batch(first, bytes(50)))
        # Others have their share, though this one would take more.
        assert stage.routing.admits(0)
        assert 500 < greedy._core.size_bytes < 1000
        greedy.close()
        assert stage.routing._held_bytes == 0

    play(story)


def test_a_newer_session_of_the_producer_ends_this_one() -> None:
    async def story(stage: Stage) -> None:
        stage.queues.fences = {"q2"}
        client = PlayedClient()
        session = stage.open(client)
        session.publish(batch(1, b"x"))
        await until(lambda: client.ended == [Reason.PRODUCER_FENCED], within_s=5)
        assert stage.routing.sessions == 0
        session.end(Reason.DRAINING)
        assert client.ended == [Reason.PRODUCER_FENCED]

    play(story)


def test_a_queue_that_was_declared_through_another_node_is_looked_up_once() -> None:
    """Its first message must not be lost because this node's watch is behind."""

    async def story(stage: Stage) -> None:
        queues = stage.queues
        queues.bound["known"] = ("q1",)
        client = PlayedClient()
        session = stage.open(client)
        session.publish(batch(1, b"a", key="declared elsewhere", exchange="", mandatory=True))
        # Nothing overtakes it.
        session.publish(batch(2, b"b", key="known", exchange=""))
        session.publish(batch(3, b"c", key="declared elsewhere", exchange=""))
        session.publish(batch(4, b"d", key="nobody", exchange="", mandatory=True))
        await until(lambda: queues.asked == 1, within_s=5)
        assert client.answers == []
        queues.shown.set()
        await until(lambda: sorted(client.confirmed()) == [1, 2, 3, 4], within_s=5)
        assert queues.has["declared elsewhere"] == {1: b"a", 3: b"c"}
        assert queues.asked_for == [2]
        # Of the one that is nowhere the registry isn't asked again at once.
        assert not stage.routing.may_be_queue("nobody")
        returned = [each for each in client.answers if isinstance(each, AnswerReturned)]
        assert returned == [AnswerReturned(((4, 4),), Reason.UNROUTABLE)]
        await session.wait_room()

    play(story)


def test_a_further_key_is_looked_up_as_well() -> None:
    async def story(stage: Stage) -> None:
        stage.queues.bound["known"] = ("q1",)
        stage.queues.shown.set()
        client = PlayedClient()
        session = stage.open(client)
        keys = ("nobody", "declared elsewhere")
        session.publish(batch(1, b"a", key="known", bcc=keys, exchange=""))
        await until(lambda: client.confirmed() == [1], within_s=5)
        assert stage.queues.has == {"q1": {1: b"a"}, "declared elsewhere": {1: b"a"}}
        assert stage.queues.asked_for == [2]

    play(story)


def test_an_exchange_that_was_declared_through_another_node_is_looked_up_once() -> None:
    """Nothing overtakes its messages, and those to one that is nowhere are refused in order."""

    async def story(stage: Stage) -> None:
        queues = stage.queues
        client = PlayedClient()
        session = stage.open(client)
        session.publish(batch(1, b"a", exchange="x declared elsewhere"))
        session.publish(batch(2, b"b"))
        session.publish(batch(3, b"c", exchange="missing"))
        session.publish(batch(4, b"d", exchange="x declared elsewhere"))
        session.publish(batch(5, b"e", exchange="internal"))
        await until(lambda: bool(queues.exchanges_asked), within_s=5)
        assert (client.answers, queues.got) == ([], [])
        queues.shown.set()
        await until(lambda: sorted(client.confirmed()) == [1, 2, 4], within_s=5)
        assert [*queues.has["q1"]] == [1, 2, 4]
        assert queues.exchanges_asked == [["missing", "x declared elsewhere"]]
        refused = [each for each in client.answers if isinstance(each, AnswerRefused)]
        assert [(each.sequences, each.error.reason) for each in refused] == [
            ((3, 3), Reason.EXCHANGE_NOT_FOUND),
            ((5, 5), Reason.ACCESS_REFUSED),
        ]
        # The registry isn't asked again at once, and who publishes hears it at once.
        for exchange, reason in (
            ("missing", Reason.EXCHANGE_NOT_FOUND),
            ("internal", Reason.ACCESS_REFUSED),
            ("v\x1fx", Reason.BAD_REQUEST),
        ):
            with pytest.raises(BrokerError) as caught:
                session.publish(batch(6, b"f", exchange=exchange))
            assert caught.value.reason is reason
        assert session.messages == 0

    play(story)


def test_a_flood_of_unknown_queues_is_a_few_calls_of_the_registry() -> None:
    async def story(stage: Stage) -> None:
        async def flood(number: int, client: PlayedClient) -> None:
            session = stage.open(client, producer=b"%d" % number)
            for first in range(1, 601):
                await session.wait_room()
                session.publish(batch(first, b"x", key=f"{number} {first}", exchange=""))
            await until(lambda: len(client.confirmed()) == 600, within_s=10)
            assert client.confirmed() == [*range(1, 601)]

        await asyncio.gather(*[flood(number, PlayedClient()) for number in range(5)])
        assert sum(stage.queues.asked_for) == 3000
        assert stage.queues.asked <= 60, stage.queues.asked_for

    play(story)


def test_a_session_that_ends_while_it_asks_takes_nobodys_answer_along() -> None:
    async def story(stage: Stage) -> None:
        leaving, client = PlayedClient(), PlayedClient()
        session = stage.open(leaving, producer=b"leaves")
        session.publish(batch(1, b"a", key="declared elsewhere", exchange=""))
        await until(lambda: stage.queues.asked == 1, within_s=5)
        other = stage.open(client, producer=b"stays")
        other.publish(batch(1, b"b", key="declared elsewhere", exchange=""))
        await asyncio.sleep(0)
        session.close()
        stage.queues.shown.set()
        await until(lambda: client.confirmed() == [1], within_s=5)
        assert stage.queues.has["declared elsewhere"] == {1: b"b"}

    play(story)


def test_ways_without_work_end_their_streams_and_come_back() -> None:
    async def story(stage: Stage) -> None:
        client = PlayedClient()
        session = stage.open(client)
        session.publish(batch(1, b"x"))
        await until(lambda: client.confirmed() == [1], within_s=5)
        session.drop_idle_ways(asyncio.get_running_loop().time() + 1)
        await until(lambda: all(task.done() for task in stage.tasks), within_s=5)
        session.publish(batch(2, b"y"))
        await until(lambda: client.confirmed() == [1, 2], within_s=5)
        assert stage.queues.streams == 6

    play(story)


@pytest.mark.parametrize("has_ended", [True, False])
def test_queues_hear_that_a_producer_has_ended_if_its_client_says_so(has_ended: bool) -> None:
    """Not one that still has something to answer: that may be sent again."""

    async def story(stage: Stage) -> None:
        stage.queues.bound["stuck"] = ("q4",)
        stage.queues.full = {"q4"}
        client = PlayedClient()
        session = stage.open(client)
        session.publish(batch(1, b"x"))
        session.publish(batch(2, b"y", key="stuck"))
        await until(lambda: client.confirmed() == [1], within_s=5)
        session.close(has_ended=has_ended)
        await until(lambda: all(task.done() for task in stage.tasks), within_s=5)
        assert sorted(stage.queues.ended) == (["q1", "q2", "q3"] if has_ended else [])
        assert not stage.routing._way_tasks

    play(story)


async def confirm_one_and_lose_the_master(
    stage: Stage, client: PlayedClient, session: RoutedSession
) -> None:
    """q1 has confirmed all, and the way to it tries in vain to open another stream."""
    session.publish(batch(1, b"x"))
    await until(lambda: client.confirmed() == [1], within_s=5)
    stage.queues.down = {"q1"}
    stage.queues.feeds["q1"].work.set()
    tried = stage.queues.streams
    await until(lambda: stage.queues.streams > tried, within_s=5)


@pytest.mark.parametrize("trouble", [None, Reason.PRODUCER_FENCED, Reason.QUEUE_NOT_FOUND])
def test_a_queue_whose_stream_has_broken_hears_of_the_end_over_another(
    trouble: Reason | None,
) -> None:
    """1. All is confirmed. 2. q1's master dies. 3. The client ends. 4. q1 has another master, and
    would remember the producer for a week. Nobody is told who is gone, or hears a newer session."""

    async def story(stage: Stage) -> None:
        stage.queues.bound["k"] = ("q1",)
        client = PlayedClient()
        session = stage.open(client)
        await confirm_one_and_lose_the_master(stage, client, session)
        session.close(has_ended=True)
        tried = stage.queues.streams
        await until(lambda: stage.queues.streams > tried, within_s=5)
        assert stage.queues.ended == []
        if trouble is Reason.PRODUCER_FENCED:
            stage.queues.fences = {"q1"}
        elif trouble is not None:
            stage.queues.deleted = {"q1"}
        stage.queues.down = set()
        await until(lambda: all(task.done() for task in stage.tasks), within_s=5)
        assert stage.queues.ended == ([] if trouble else ["q1"])
        # None has tried until its time was over.
        assert not any(task.cancelled() for task in stage.tasks)
        await until(lambda: not stage.routing._way_tasks, within_s=5)

    play(story)


def test_a_way_that_ends_for_idleness_opens_no_stream_for_its_last_word() -> None:
    """A stream of the way that follows would be fenced by it, and the session with it."""

    async def story(stage: Stage) -> None:
        stage.queues.bound["k"] = ("q1",)
        client = PlayedClient()
        session = stage.open(client, producer=b"")
        await confirm_one_and_lose_the_master(stage, client, session)
        session.drop_idle_ways(asyncio.get_running_loop().time() + 1)
        await until(lambda: all(task.done() for task in stage.tasks), within_s=5)
        assert stage.queues.ended == []

    play(story)


def test_an_id_of_the_sessions_own_ends_with_each_of_its_ways() -> None:
    """An AMQP channel's: its client can't repeat anything."""

    async def story(stage: Stage) -> None:
        first, second = PlayedClient(), PlayedClient()
        session, other = stage.open(first, producer=b""), stage.open(second, producer=b"")
        assert len({session.producer_id, other.producer_id}) == 2
        session.publish(batch(1, b"x"))
        await until(lambda: first.confirmed() == [1], within_s=5)
        # It has nothing to do for a while, and all that this queue will ever get again is new.
        session.drop_idle_ways(asyncio.get_running_loop().time() + 1)
        await until(lambda: sorted(stage.queues.ended) == ["q1", "q2", "q3"], within_s=5)
        session.publish(batch(2, b"y"))
        await until(lambda: first.confirmed() == [1, 2], within_s=5)
        session.end(Reason.DRAINING)
        other.close()
        await until(lambda: len(stage.queues.ended) == 6, within_s=5)

    play(story)


def test_a_way_that_has_nothing_to_do_does_not_end_a_clients_producer() -> None:
    """1. q1 confirms, q2 is stuck. 2. q1's way is idle, and ends. 3. This node dies. 4. The client
    sends the batch again, through another node: q1 must know it."""

    async def story(stage: Stage) -> None:
        client = PlayedClient()
        session = stage.open(client)
        session.publish(batch(1, b"x"))
        await until(lambda: client.confirmed() == [1], within_s=5)
        session.drop_idle_ways(asyncio.get_running_loop().time() + 1)
        await until(lambda: all(task.done() for task in stage.tasks), within_s=5)
        assert stage.queues.ended == []

    play(story)


def test_bad_batches_are_refused_whole() -> None:
    async def story(stage: Stage) -> None:
        with pytest.raises(BrokerError, match="producer id") as caught:
            stage.open(PlayedClient(), producer=b"p" * 65)
        assert caught.value.metadata["field"] == "producer_id"
        stage.queues.full = {"q1", "q2", "q3"}
        session = stage.open(PlayedClient())
        session.publish(batch(5, b"x"))
        with pytest.raises(BrokerError) as caught:
            session.publish(batch(4, b"x", b"y"))
        assert caught.value.metadata["field"] == "first_sequence"
        with pytest.raises(BrokerError) as caught:
            session.publish(batch(6, b"x" * 10_001))
        assert caught.value.reason is Reason.MESSAGE_TOO_LARGE
        assert session.messages == 1

    play(story)


def test_the_node_publishes_for_itself_and_hears_when_every_target_has_it() -> None:
    async def story(stage: Stage) -> None:
        stage.queues.breaks_after = 2
        publish = stage.routing.publish
        block = Block.of([b"dead", b"letters"])
        # In any order of their sequences, and several at a time.
        answers = await asyncio.gather(
            publish("", "e", ("k",), block, b"of q", 9),
            publish("", "e", ("k",), block, b"of q", 1),
            publish("", "e", ("nobody",), block, b"of q", 20),
            publish("", "e", ("k",), block, b"of q", 30, except_queues=frozenset({"q1", "q3"})),
        )
        assert [*answers] == [True, True, False, True]
        assert sorted(stage.queues.has["q1"]) == [1, 2, 9, 10]
        assert sorted(stage.queues.has["q2"]) == [1, 2, 9, 10, 30, 31]
        with pytest.raises(BrokerError) as caught:
            await publish("", "missing", ("k",), block, b"of r", 1)
        assert caught.value.reason is Reason.EXCHANGE_NOT_FOUND
        stage.queues.full = {"q1"}
        waiting = asyncio.create_task(publish("", "e", ("k",), block, b"of q", 40))
        await until(lambda: 40 in stage.queues.has["q2"], within_s=5)
        assert not waiting.done()
        stage.routing.close(b"of q")
        with pytest.raises(BrokerError) as caught:
            await waiting
        assert caught.value.reason is Reason.NOT_MASTER

    play(story)


def test_the_letters_of_one_queue_go_to_several_exchanges_by_one_session() -> None:
    """Two sessions of one producer would end each other's streams."""

    async def story(stage: Stage) -> None:
        block = Block.of([b"x"])
        answers = await asyncio.gather(
            *[
                stage.routing.publish("", exchange, ("k",), block, b"of q", number)
                for number, exchange in enumerate(("e", "internal", "e", "other"), 1)
            ]
        )
        assert answers == [True] * 4
        assert stage.routing.sessions == 1
        assert stage.queues.streams == 3

    play(story)


def test_an_answer_that_refuses_reaches_who_waits() -> None:
    async def story(stage: Stage) -> None:
        async def refuse(address: str, feed: Feed) -> None:
            part = feed.next()
            assert part is not None
            feed.refused(part.first, part.last, BrokerError(Reason.SEQUENCE_FORGOTTEN, "no"))

        stage.routing.remotes = type("Played", (), {"run": staticmethod(refuse)})()
        with pytest.raises(BrokerError) as caught:
            await stage.routing.publish("", "e", ("k",), Block.of([b"x"]), b"p", 1)
        assert caught.value.reason is Reason.SEQUENCE_FORGOTTEN

    play(story)


def test_a_queue_remembers_more_gaps_than_a_session_can_make() -> None:
    # Those that are unanswered, those of a batch whose headers send it different ways, and those
    # that were looked up.
    runs_max = 3 * session_module.RUNS_MAX + batch_module.HELD_MAX
    assert runs_max < PRODUCER_GAPS_MAX


def test_a_publisher_inside_that_waits_for_the_end_of_an_alarm_goes_on_after_it() -> None:
    async def story(stage: Stage) -> None:
        stage.budget.set_alarms(frozenset({BlockReason.MEMORY}))
        waiting = asyncio.create_task(
            stage.routing.publish("", "e", ("k",), Block.of([b"x"]), b"of q", 1)
        )
        await asyncio.sleep(0)
        # It has nothing on its way for longer than an idle session may.
        stage.routing._sweep(asyncio.get_running_loop().time() + IDLE_S)
        stage.budget.set_alarms(frozenset())
        assert await waiting
        assert stage.queues.has["q1"] == {1: b"x"}
        stage.routing.close(b"of q")
        assert stage.routing._held_bytes == 0

    play(story)


def test_a_batch_that_waits_when_its_session_ends_is_not_taken_and_holds_no_bytes() -> None:
    async def story(stage: Stage) -> None:
        stage.budget.set_alarms(frozenset({BlockReason.MEMORY}))
        inside = asyncio.create_task(
            stage.routing.publish("", "e", ("k",), Block.of([b"x"]), b"of q", 1)
        )
        client = PlayedClient()
        session = stage.open(client)
        outside = asyncio.create_task(session.wait_room())
        await asyncio.sleep(0)
        # Newer sessions of both producers have begun on another node.
        for each in [*stage.routing._sessions]:
            each.end(Reason.PRODUCER_FENCED)
        stage.budget.set_alarms(frozenset())
        await outside
        session.publish(batch(1, b"y"))
        assert client.ended == [Reason.PRODUCER_FENCED]
        assert not client.answers
        with pytest.raises(BrokerError) as caught:
            await inside
        assert caught.value.retryable
        assert stage.routing._held_bytes == 0
        # The next try begins a session of its own.
        assert await stage.routing.publish("", "e", ("k",), Block.of([b"x"]), b"of q", 1)

    play(story)


def test_queues_of_another_vhost_are_left_out_by_their_internal_names() -> None:
    async def story(stage: Stage) -> None:
        first, second = join_name("v", "q1"), join_name("v", "q2")
        stage.queues.bound["k"] = (first, second)
        out = frozenset({first})
        block = Block.of([b"x"])
        assert await stage.routing.publish("v", "e", ("k",), block, b"of q", 1, except_queues=out)
        assert [*stage.queues.has] == [second]

    play(story)
