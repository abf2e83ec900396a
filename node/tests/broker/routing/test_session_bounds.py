"""Routed sessions and what bounds them: keys, bytes, gaps, full queues and alarms."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from node.tests.broker.routing.stage import PlayedClient, Stage, batch, play
from waiting import until

from ringmq_node.broker.routing import batch as batch_module
from ringmq_node.broker.routing import session as session_module
from ringmq_node.broker.routing import ways as ways_module
from ringmq_node.broker.routing.routing import IDLE_S
from ringmq_node.broker.routing.stamp import KEYS_MAX
from ringmq_node.model.flow import BlockReason
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.queue.block import Block
from ringmq_node.queue.gaps import PRODUCER_GAPS_MAX


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


def test_a_queue_remembers_more_gaps_than_a_session_can_make() -> None:
    # Those that are unanswered, those of a batch whose headers send it different ways, and those
    # that were looked up.
    runs_max = 3 * session_module.RUNS_MAX + batch_module.HELD_MAX
    assert runs_max < PRODUCER_GAPS_MAX


def test_a_publisher_inside_waits_for_no_alarm_and_for_no_session_of_clients() -> None:
    """Its queues know whether they take dead letters in an alarm."""

    async def story(stage: Stage) -> None:
        session = stage.open(PlayedClient())
        stage.queues.full = {"q1"}
        session.publish(batch(1, bytes(2000)))
        assert not session.has_room
        stage.budget.set_alarms(frozenset({BlockReason.MEMORY}))
        stage.queues.bound["in"] = ("q4",)
        assert await stage.routing.publish("", "e", ("in",), Block.of([b"x"]), b"of q", 1)

    play(story)


def test_a_publisher_inside_that_waits_for_room_goes_on_when_there_is_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "MESSAGES_MAX", 1)

    async def story(stage: Stage) -> None:
        stage.queues.full = {"q1"}
        first, waiting = (
            asyncio.create_task(
                stage.routing.publish("", "e", ("k",), Block.of([b"x"]), b"of q", number)
            )
            for number in (1, 2)
        )
        await asyncio.sleep(0)
        # One that waits may have nothing on its way for longer than an idle session may.
        stage.routing._sweep(asyncio.get_running_loop().time() + IDLE_S)
        stage.queues.full.clear()
        stage.queues.freed.set()
        assert await first
        assert await waiting
        assert stage.queues.has["q1"] == {1: b"x", 2: b"x"}
        stage.routing.close(b"of q")
        assert stage.routing._held_bytes == 0

    play(story)


def test_a_batch_that_waits_when_its_session_ends_is_not_taken_and_holds_no_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "MESSAGES_MAX", 1)

    async def story(stage: Stage) -> None:
        stage.budget.set_alarms(frozenset({BlockReason.MEMORY}))
        stage.queues.full = {"q1"}
        under_way, inside = (
            asyncio.create_task(
                stage.routing.publish("", "e", ("k",), Block.of([b"x"]), b"of q", number)
            )
            for number in (2, 1)
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
        with pytest.raises(BrokerError):
            await under_way
        with pytest.raises(BrokerError) as caught:
            await inside
        assert caught.value.retryable
        assert stage.routing._held_bytes == 0
        stage.queues.full.clear()
        stage.queues.freed.set()
        # The next try begins a session of its own.
        assert await stage.routing.publish("", "e", ("k",), Block.of([b"x"]), b"of q", 1)

    play(story)


def test_letters_for_a_dead_target_hold_no_publisher_of_clients() -> None:
    async def story(stage: Stage) -> None:
        stage.queues.full = {"q1", "q2", "q3"}
        letter = asyncio.create_task(
            stage.routing.publish("", "e", ("k",), Block.of([bytes(2000)]), b"of q", 1)
        )
        await until(lambda: stage.queues.streams == 3, within_s=5)
        assert stage.open(PlayedClient()).has_room
        stage.queues.full = set()
        stage.queues.freed.set()
        assert await letter
        stage.routing.close(b"of q")
        assert stage.routing._held_bytes == 0

    play(story)
