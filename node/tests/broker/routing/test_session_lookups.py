"""Routed sessions whose node has not heard of a queue or an exchange yet: it asks once for many."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from node.tests.broker.routing.stage import PlayedClient, Stage, batch, play
from waiting import until

from ringmq_gm.registry.base import LimitError
from ringmq_node.broker.routing.core import AnswerRefused, AnswerReturned
from ringmq_node.model.reasons import BrokerError, Reason


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


def test_a_registry_that_refuses_a_look_up_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(names: Sequence[str]) -> None:
        raise LimitError("too long")

    async def story(stage: Stage) -> None:
        stage.queues.shown.set()
        monkeypatch.setattr(stage.routing._unknown_exchanges, "_ask", refuse)
        client = PlayedClient()
        session = stage.open(client)
        session.publish(batch(1, b"a", exchange="missing"))
        session.publish(batch(2, b"b"))
        await until(lambda: client.confirmed() == [2], within_s=5)
        [refused] = [each for each in client.answers if isinstance(each, AnswerRefused)]
        assert refused.error.reason is Reason.EXCHANGE_NOT_FOUND
        assert not stage.routing._unknown_exchanges._wanted

    play(story)
