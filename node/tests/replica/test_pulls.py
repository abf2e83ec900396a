"""Pulls that wait: for what has just been put back, and not for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from node.tests.replica.scene import Scene, scenario

from ringmq_gm import Role
from ringmq_gm.core.events import Refusal
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.queue.consumers import ConsumerTerms
from ringmq_node.replica import taking


async def with_one_on_its_way_back(scene: Scene) -> int:
    """The first of two messages, which the ring doesn't take; returns who pulls."""
    await scene.become_master()
    scene.publish(1, b"1", b"2")
    await scene.confirmed((1, 2))
    mastership = scene.replica.serving()
    number, begin = mastership.open_consumer(
        scene.consumer, ConsumerTerms(100, 1 << 20, pulls=True)
    )
    begin()
    (run,), ready = await mastership.pull(number, 1, 1000)
    assert (run.positions, run.redelivered, ready) == ((0, 0), False, 1)
    scene.ring.refuses = Refusal.FULL
    scene.ring.writable.clear()
    mastership.subscribers.settle(number, requeued=[(0, 0)])
    return number


def test_who_puts_a_message_back_and_pulls_again_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "REQUEUE_WAIT_S", 60.0)

    async def play(scene: Scene) -> None:
        number = await with_one_on_its_way_back(scene)
        pulling = asyncio.create_task(scene.replica.serving().pull(number, 10, 1000))
        await scene.quiet()
        assert not pulling.done()
        scene.ring.refuses = None
        scene.ring.writable.set()
        await scene.until(pulling.done)
        runs, ready = await pulling
        assert [(run.positions, run.redelivered) for run in runs] == [
            ((0, 0), True),
            ((1, 1), False),
        ]
        assert ready == 0
        assert scene.consumer.got == []

    scenario(tmp_path, play)


def test_while_the_ring_takes_nothing_a_pull_gets_the_next_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "REQUEUE_WAIT_S", 0.02)

    async def play(scene: Scene) -> None:
        number = await with_one_on_its_way_back(scene)
        pull = scene.replica.serving().pull
        (run,), _ = await pull(number, 10, 1000)
        assert run.positions == (1, 1)
        # That was the last one that is ready; but the queue isn't empty.
        with pytest.raises(BrokerError) as caught:
            await pull(number, 10, 1000)
        assert caught.value.reason is Reason.DRAINING
        scene.ring.refuses = None
        scene.ring.writable.set()

    scenario(tmp_path, play)


def test_where_none_may_pass_what_is_on_its_way_back_a_pull_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty answer would say that no message is ready, and one is."""
    monkeypatch.setattr(taking, "REQUEUE_WAIT_S", 0.02)

    async def play(scene: Scene) -> None:
        number = await with_one_on_its_way_back(scene)
        mastership = scene.replica.serving()
        mastership.queue.consumers.set_single_active(single=True)
        with pytest.raises(BrokerError) as caught:
            await mastership.pull(number, 10, 1000)
        assert caught.value.reason is Reason.DRAINING
        # It takes the op now, and has no trip for it.
        scene.ring.refuses = None
        with pytest.raises(BrokerError) as caught:
            await mastership.pull(number, 10, 1000)
        assert caught.value.reason is Reason.NO_MASTER
        scene.ring.writable.set()
        await scene.until(lambda: not mastership.queue.is_requeuing)
        runs, _ = await mastership.pull(number, 10, 1000)
        assert [run.positions for run in runs] == [(0, 0), (1, 1)]

    scenario(tmp_path, play)


def test_a_pull_that_waits_as_the_mastership_ends_is_refused(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        number = await with_one_on_its_way_back(scene)
        pulling = asyncio.create_task(scene.replica.serving().pull(number, 10, 1000))
        await scene.quiet()
        scene.ring.enter(Role.MIRROR, 2)
        await scene.until(pulling.done)
        with pytest.raises(BrokerError) as caught:
            await pulling
        assert caught.value.reason is Reason.NOT_MASTER
        assert len(scene.consumer.reasons) == 1

    scenario(tmp_path, play)
