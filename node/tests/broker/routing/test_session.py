"""Routed sessions: each message is in every queue that it is for, in one order, over streams that
break and queues that go."""

from __future__ import annotations

import asyncio

import pytest
from node.tests.broker.routing.stage import PlayedClient, Stage, batch, play
from waiting import until

from ringmq.v1 import common_pb2 as common
from ringmq_node.broker.routing import session as session_module
from ringmq_node.broker.routing import ways as ways_module
from ringmq_node.broker.routing.core import AnswerRefused, AnswerReturned
from ringmq_node.broker.routing.targets import SubBatch
from ringmq_node.broker.routing.ways import Feed
from ringmq_node.model.deaths import ClosesCycleError
from ringmq_node.model.fields import FieldValue, fields_of
from ringmq_node.model.names import join_name
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.queue.block import Block


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


def test_queues_of_another_vhost_are_left_out_by_their_internal_names() -> None:
    async def story(stage: Stage) -> None:
        first, second = join_name("v", "q1"), join_name("v", "q2")
        stage.queues.bound["k"] = (first, second)
        out = frozenset({first})
        block = Block.of([b"x"])
        assert await stage.routing.publish("v", "e", ("k",), block, b"of q", 1, except_queues=out)
        assert [*stage.queues.has] == [second]

    play(story)


def test_letters_whose_only_way_is_a_cycle_are_told_from_those_without_one() -> None:
    """Through an exchange, the default one, one that goes by headers, and behind batches that are
    looked up."""

    async def story(stage: Stage) -> None:
        queues, publish, block = stage.queues, stage.routing.publish, Block.of([b"x"])
        queues.bound |= {"k": ("q1", "q2"), "q1": ("q1",)}
        to = {"to": FieldValue("text", "k")}
        out = frozenset({"q1", "q2", "q3"})
        for number, (exchange, key, headers) in enumerate(
            [("e", "k", None), ("", "q1", None), ("by headers", "", to)]
        ):
            with pytest.raises(ClosesCycleError, match="'q1'"):
                await publish(
                    "", exchange, (key,), block, b"p", number, headers=headers, except_queues=out
                )
        assert not await publish("", "e", ("nobody",), block, b"p", 10, except_queues=out)
        # A further key may name a queue that this node hasn't heard of.
        keys = ("q1", "declared elsewhere")
        found = asyncio.create_task(publish("", "", keys, block, b"p", 11, except_queues=out))
        behind = asyncio.create_task(publish("", "e", ("k",), block, b"p", 12, except_queues=out))
        await until(lambda: queues.asked == 1)
        assert not found.done()
        queues.shown.set()
        assert await found
        with pytest.raises(ClosesCycleError):
            await behind
        assert [*queues.has] == ["declared elsewhere"]

    play(story)
