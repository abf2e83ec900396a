"""A queue that gets a part of what its producers publish confirms only what it has."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from node.tests.replica.scene import Publisher, Scene, refused, scenario

from ringmq_gm import Refusal
from ringmq_node.broker.locating import NOWHERE
from ringmq_node.broker.publishing import Publishing
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.settings import BrokerSettings
from ringmq_node.queue import gaps as gaps_module
from ringmq_node.queue.ops import Publish
from ringmq_node.resources.budget import PublishBudget


async def routed(scene: Scene, publisher: Publisher | None = None) -> int:
    opening = scene.replica.serving().open_publisher(
        publisher or scene.publisher, b"p", with_gaps=True
    )
    task = asyncio.create_task(opening)
    await scene.until(task.done)
    return (await task)[0]


def publish(scene: Scene, session: int, first: int, *names: bytes, message_id: bytes = b"") -> None:
    scene.replica.serving().publish(
        session, b"p", first, names, (), transient=False, with_gaps=True, message_id=message_id
    )


def enqueued(scene: Scene) -> list[tuple[int, list[bytes]]]:
    return [
        (op.first_sequence, op.block.bodies()) for op in scene.ring.sent() if type(op) is Publish
    ]


def test_a_repeat_that_was_never_routed_here_is_enqueued(tmp_path: Path) -> None:
    """1. 5 is routed to q1 only, and lost. 2. A binding is added; 6 goes to this queue. 3. The
    producer repeats 5, which is routed here by now. "I have all up to 6" would confirm a message
    that is nowhere."""

    async def play(scene: Scene) -> None:
        await scene.become_master()
        session = await routed(scene)
        publish(scene, session, 6, b"six")
        await scene.confirmed((6, 6))
        publish(scene, session, 5, b"five")
        await scene.confirmed((6, 6), (5, 5))
        assert enqueued(scene) == [(6, [b"six"]), (5, [b"five"])]
        # And once: both are known by now.
        publish(scene, session, 5, b"five", b"six")
        await scene.confirmed((6, 6), (5, 5), (5, 6))
        assert len(enqueued(scene)) == 2
        assert not scene.store.failure

    scenario(tmp_path, play)


def test_a_batch_is_enqueued_but_for_what_is_here(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.become_master()
        session = await routed(scene)
        publish(scene, session, 3, b"3", message_id=bytes(16))
        publish(scene, session, 7, b"7")
        publish(scene, session, 2, *(b"%d" % n for n in range(2, 10)), message_id=b"m" * 16)
        await scene.until(lambda: 9 in [last for _, last in scene.publisher.sequences])
        later = [(2, [b"2"]), (4, [b"4", b"5", b"6"]), (8, [b"8", b"9"])]
        assert enqueued(scene) == [(3, [b"3"]), (7, [b"7"]), *later]
        # A part is another block than that of the other queues.
        ids = [op.message_id for op in scene.ring.sent() if type(op) is Publish]
        assert ids == [bytes(16), *[b""] * 4]

    scenario(tmp_path, play)


def test_what_the_queue_can_not_tell_is_refused_and_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gaps_module, "PRODUCER_GAPS_MAX", 2)

    async def play(scene: Scene) -> None:
        await scene.become_master()
        session = await routed(scene)
        for first in (3, 5, 7, 9):
            publish(scene, session, first, b"x")
        before = enqueued(scene)
        error = refused(lambda: publish(scene, session, 2, b"2"), Reason.SEQUENCE_FORGOTTEN)
        assert not error.retryable
        # Though it has 3: it can't tell it from 4.
        refused(lambda: publish(scene, session, 3, b"3"), Reason.SEQUENCE_FORGOTTEN)
        assert enqueued(scene) == before
        publish(scene, session, 6, b"6")
        assert enqueued(scene) == [*before, (6, [b"6"])]

    scenario(tmp_path, play)


def test_an_id_with_gaps_is_none_for_a_plain_publisher(tmp_path: Path) -> None:
    """It would take all up to the last sequence for confirmed."""

    async def play(scene: Scene) -> None:
        await scene.become_master()
        publish(scene, await routed(scene), 6, b"six")
        task = asyncio.create_task(scene.replica.serving().open_publisher(Publisher(), b"p"))
        await scene.until(task.done)
        with pytest.raises(BrokerError, match="another producer id"):
            await task

    scenario(tmp_path, play)


def test_nothing_overtakes_a_batch_that_will_be_sent_again(tmp_path: Path) -> None:
    """There is no gap that would tell it."""

    async def play(scene: Scene) -> None:
        await scene.become_master()
        opening = Publishing.open(
            scene.replica.serving(),
            BrokerSettings(message_bytes_max=100),
            scene.publisher,
            producer_id=b"p",
            budget=PublishBudget(1000, lambda: 0),
            successor=lambda _: NOWHERE,
            with_gaps=True,
        )
        task = asyncio.create_task(opening)
        await scene.until(task.done)
        publishing = await task

        def send(first: int) -> None:
            publishing.publish(first, [b"x"], (), transient=False)

        send(1)
        scene.ring.refuses = Refusal.DRAINING
        refused(lambda: send(3), Reason.DRAINING)
        scene.ring.refuses = None
        assert refused(lambda: send(5), Reason.SEQUENCE_GAP).retryable
        assert [first for first, _ in enqueued(scene)] == [1]

    scenario(tmp_path, play)
