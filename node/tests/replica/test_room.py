"""Publishers of a queue whose dead letters wait for their target: they are held, or refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from node.tests.replica.scene import Scene, scenario

from ringmq_gm import RingClosedError, Role
from ringmq_node.broker import publishing
from ringmq_node.broker.locating import NOWHERE
from ringmq_node.broker.publishing import Publishing
from ringmq_node.model.flow import BlockReason
from ringmq_node.model.rules import Overflow, QueueRules
from ringmq_node.model.settings import BrokerSettings
from ringmq_node.queue import backlog
from ringmq_node.replica.upkeep import FullQueueRefusal
from ringmq_node.resources.budget import PublishBudget

DROPS = QueueRules(max_length=1, dead_letter_exchange="x")
EXPIRES = QueueRules(message_ttl_ms=0, dead_letter_exchange="x")


async def opened(
    scene: Scene,
    producer: bytes = b"p",
    *,
    with_gaps: bool = False,
    budget: PublishBudget | None = None,
) -> Publishing:
    opening = Publishing.open(
        scene.replica.serving(),
        BrokerSettings(1000),
        scene.publisher,
        producer_id=producer,
        budget=budget or PublishBudget(1000, lambda: 0),
        successor=lambda _: NOWHERE,
        with_gaps=with_gaps,
    )
    task = asyncio.create_task(opening)
    await scene.until(task.done)
    return await task


def follow(scene: Scene, rules: QueueRules) -> None:
    scene.replica.configure(replace(scene.replica.wanted, rules=rules))


async def filled(scene: Scene, rules: QueueRules) -> Publishing:
    """As many letters wait as may."""
    await scene.become_master()
    mastership = scene.replica.serving()
    follow(scene, rules)
    publisher = await opened(scene)
    sequence = 0
    while publisher.has_room:
        sequence += 1
        assert sequence <= 4
        publisher.publish(sequence, [b"%d" % sequence], (), transient=False)
        await scene.quiet()
    assert mastership.queue.departures.letters == 3
    return publisher


@pytest.fixture(autouse=True)
def low_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "LETTERS_MESSAGES_MAX", 3)


@pytest.mark.parametrize("rules", [DROPS, EXPIRES], ids=["dropped", "expired"])
def test_publishers_wait_until_letters_have_left(tmp_path: Path, rules: QueueRules) -> None:
    async def play(scene: Scene) -> None:
        publisher = await filled(scene, rules)
        queue = scene.replica.serving().queue
        assert not publisher.has_room
        assert publisher.block_reasons() == (BlockReason.DEAD_LETTERS,)
        waiting = asyncio.create_task(publisher.wait_room(1))
        given_up = asyncio.create_task(publisher.wait_room(1))
        await scene.quiet()
        assert not waiting.done()
        given_up.cancel()
        # Acks of consumers pass, and letters of other queues: they may be on their way round.
        await asyncio.wait_for(scene.replica.serving().room.wait(), 5)
        assert (await opened(scene, b"letters-of-another", with_gaps=True)).has_room
        assert not queue.departures.letters_dropped_total
        letters = queue.state.doomed
        assert letters is not None
        gone = queue.departures.letters_gone(letters.positions.ranges(), arrived=True)
        scene.replica.serving().carry_out(gone)
        await asyncio.wait_for(waiting, 30)
        assert publisher.has_room

    scenario(tmp_path, play)


def test_the_next_master_holds_publishers_and_the_old_one_lets_them_go(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        publisher = await filled(scene, DROPS)
        waiting = asyncio.create_task(publisher.wait_room(1))
        await scene.quiet()
        scene.ring.enter(Role.MIRROR, 2)
        with pytest.raises(RingClosedError):
            await asyncio.wait_for(waiting, 30)
        await scene.become_master(3)
        again = await opened(scene)
        assert again.block_reasons() == (BlockReason.DEAD_LETTERS,)

    scenario(tmp_path, play)


def test_bytes_of_letters_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "LETTERS_MESSAGES_MAX", 100)
    monkeypatch.setattr(backlog, "LETTERS_BYTES_MAX", 3)

    async def play(scene: Scene) -> None:
        publisher = await filled(scene, DROPS)
        assert publisher.block_reasons() == (BlockReason.DEAD_LETTERS,)

    scenario(tmp_path, play)


def test_a_queue_that_refuses_holds_nobody(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        publisher = await filled(scene, DROPS)
        waiting = asyncio.create_task(publisher.wait_room(1))
        await scene.quiet()
        refuses = replace(DROPS, overflow=Overflow.REJECT_PUBLISH, max_length=10)
        follow(scene, refuses)
        await asyncio.wait_for(waiting, 30)
        with pytest.raises(FullQueueRefusal):
            publisher.publish(5, [b"5"], (), transient=False)

    scenario(tmp_path, play)


def test_letters_of_other_queues_pass_a_queue_that_refuses(tmp_path: Path) -> None:
    """Two queues that refuse, and dead-letter to each other, would refuse each other's letters for
    ever; so would one that dead-letters to itself."""

    async def play(scene: Scene) -> None:
        await filled(scene, DROPS)
        follow(scene, replace(DROPS, overflow=Overflow.REJECT_PUBLISH, max_length=3))
        letters = await opened(scene, b"letters-of-another", with_gaps=True)
        letters.publish(7, [b"7", b"8"], (), transient=False)
        await scene.confirmed(*((n, n) for n in range(1, 5)), (7, 8))
        # But there is no room for them beyond the queue's length.
        with pytest.raises(FullQueueRefusal):
            letters.publish(9, [b"9"], (), transient=False)

    scenario(tmp_path, play)


def test_letters_pass_an_alarm_while_few_messages_are_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers have to get at what is behind them: for the alarm to end it must go."""
    monkeypatch.setattr(publishing, "ALARM_READY_MESSAGES_MAX", 2)
    monkeypatch.setattr(publishing, "ALARM_READY_BYTES_MAX", 4)

    async def play(scene: Scene) -> None:
        await scene.become_master()
        budget = PublishBudget(1000, lambda: 0)
        budget.set_alarms(frozenset({BlockReason.DISK}))
        client = await opened(scene, budget=budget)
        letters = await opened(scene, b"letters-of-another", with_gaps=True, budget=budget)
        assert not client.has_room
        # Bytes and messages are counted.
        for sequence, bodies in ((1, [b"1", b"2"]), (3, [b"long"])):
            assert letters.has_room
            letters.publish(sequence, bodies, (), transient=False)
            await scene.quiet()
            assert not letters.has_room
            waiting = asyncio.create_task(letters.wait_room(1))
            await scene.quiet()
            assert not waiting.done()
            consumer = scene.consume()
            await scene.until(lambda: not scene.replica.serving().queue.ready)
            budget.freed()
            await asyncio.wait_for(waiting, 5)
            scene.ack(consumer, *scene.replica.serving().queue.held_below(10))
            scene.replica.serving().subscribers.close(consumer)
            await scene.quiet()
        # The publishers that an alarm holds don't keep a door from reading letters.
        budget.park(scene.replica.serving().room, 2000)
        assert letters.is_readable
        assert not client.is_readable

    scenario(tmp_path, play)
