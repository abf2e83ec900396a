"""How routed sessions end, and their ways, and the queues hear that a producer has."""

from __future__ import annotations

import asyncio

import pytest
from node.tests.broker.routing.stage import PlayedClient, Stage, batch, play
from waiting import until

from ringmq_node.broker.routing.session import RoutedSession
from ringmq_node.model.reasons import Reason


async def ways_end(stage: Stage, session: RoutedSession, client: PlayedClient) -> None:
    """Message 1 is confirmed, then the ways have nothing to do, and end."""
    await until(lambda: client.confirmed() == [1], within_s=5)
    session.drop_idle_ways(asyncio.get_running_loop().time() + 1)
    await until(lambda: all(task.done() for task in stage.tasks), within_s=5)


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


def test_ways_without_work_end_their_streams_and_come_back() -> None:
    async def story(stage: Stage) -> None:
        client = PlayedClient()
        session = stage.open(client)
        session.publish(batch(1, b"x"))
        await ways_end(stage, session, client)
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
        await ways_end(stage, session, client)
        assert stage.queues.ended == []

    play(story)
