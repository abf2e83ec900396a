"""A full queue refuses messages one by one: those that it has are confirmed, wherever they are."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from node.tests.replica.scene import Scene, scenario
from node.tests.replica.test_sequences import publish, routed

from ringmq_gm import Refusal
from ringmq_node.model.rules import Overflow, QueueRules
from ringmq_node.queue import backlog
from ringmq_node.queue.ops import Publish
from ringmq_node.replica.upkeep import FullQueueRefusal

FULL = QueueRules(max_length=2, overflow=Overflow.REJECT_PUBLISH_DLX, dead_letter_exchange="x")


def refused_of(scene: Scene, session: int, first: int, *names: bytes) -> list[tuple[int, int]]:
    with pytest.raises(FullQueueRefusal) as refusal:
        publish(scene, session, first, *names)
    return [*refusal.value.sequences]


def letters(scene: Scene) -> list[list[bytes]]:
    return [op.block.bodies() for op in scene.ring.sent() if type(op) is Publish and op.born_doomed]


def test_of_a_repeat_only_what_is_not_stored_is_refused(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.become_master()
        scene.replica.serving().configure(FULL)
        session = await routed(scene)
        publish(scene, session, 1, b"1")
        publish(scene, session, 3, b"3")
        await scene.confirmed((1, 1), (3, 3))
        assert refused_of(scene, session, 1, b"1", b"2", b"3", b"4") == [(2, 2), (4, 4)]
        assert letters(scene) == [[b"2"], [b"4"]]
        # Confirmed once more, though they are in front of and behind refused ones.
        await scene.confirmed((1, 1), (3, 3), (1, 1), (3, 3))
        assert scene.replica.serving().queue.keeping.rejected_total == 2

    scenario(tmp_path, play)


@pytest.mark.parametrize("transient", [False, True], ids=["persistent", "transient"])
def test_a_refused_message_is_as_persistent_as_it_was_sent(tmp_path: Path, transient: bool) -> None:
    """Its op is all that its letter is made of."""

    async def play(scene: Scene) -> None:
        await scene.become_master()
        scene.replica.serving().configure(FULL)
        with pytest.raises(FullQueueRefusal):
            scene.publish(1, b"1", b"2", b"3", transient=transient)
        found = [op for op in scene.ring.sent() if type(op) is Publish]
        assert [(op.born_doomed, op.transient) for op in found] == [
            (False, transient),
            (True, transient),
        ]

    scenario(tmp_path, play)


def test_a_message_behind_a_refused_one_does_not_overtake_it(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.become_master()
        scene.replica.serving().configure(
            QueueRules(max_length_bytes=4, overflow=Overflow.REJECT_PUBLISH)
        )
        session = await routed(scene)
        publish(scene, session, 2, b"2")
        assert refused_of(scene, session, 1, b"large", b"2", b"3") == [(1, 1), (3, 3)]
        assert letters(scene) == []

    scenario(tmp_path, play)


def test_refused_messages_beyond_the_bound_and_those_that_the_ring_refuses_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "REFUSED_MESSAGES_MAX", 2)

    async def play(scene: Scene) -> None:
        await scene.become_master()
        mastership = scene.replica.serving()
        mastership.configure(replace(FULL, max_length=1))
        session = await routed(scene)
        assert refused_of(scene, session, 1, b"1", b"2", b"3") == [(2, 3)]
        assert refused_of(scene, session, 4, b"4") == [(4, 4)]
        assert letters(scene) == [[b"2", b"3"]]
        departures = mastership.queue.departures
        assert departures.letters_dropped_total == 1
        departures.refused.dropped_total = 0
        monkeypatch.setattr(backlog, "REFUSED_MESSAGES_MAX", 100)
        multicast = scene.replica.multicast

        def and_fills(op: Publish) -> int:
            number = multicast(op)
            scene.ring.refuses = Refusal.FULL
            return number

        mastership.configure(FULL)
        monkeypatch.setattr(scene.replica, "multicast", and_fills)
        assert refused_of(scene, session, 5, b"5", b"6") == [(6, 6)]
        assert departures.letters_dropped_total == 1

    scenario(tmp_path, play)


def test_a_letter_of_another_queue_that_finds_no_room_goes_on_once(tmp_path: Path) -> None:
    """Its queue sends a letter again until it is taken. Each try would be one more letter here."""

    async def play(scene: Scene) -> None:
        await scene.become_master()
        mastership = scene.replica.serving()
        mastership.configure(FULL)
        sender = b"letters-of-another"
        opening = mastership.open_publisher(scene.publisher, sender, with_gaps=True)
        task = asyncio.create_task(opening)
        await scene.until(task.done)
        session, _ = await task
        for _ in range(2):
            mastership.publish(
                session, sender, 5, [b"5", b"6", b"7", b"8"], (), transient=False, with_gaps=True
            )
        assert letters(scene) == [[b"7", b"8"]]
        await scene.confirmed((5, 8), (5, 8))
        # What is confirmed is the letters', and not ready.
        assert mastership.queue.ready.ranges() == [(0, 1)]
        assert mastership.queue.departures.letters == 2
        assert mastership.queue.keeping.rejected_total == 2

    scenario(tmp_path, play)


def test_a_letter_of_another_queue_that_can_not_go_on_waits_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was confirmed once, so it isn't dropped, as a publisher's message is."""
    monkeypatch.setattr(backlog, "REFUSED_MESSAGES_MAX", 0)

    async def play(scene: Scene) -> None:
        await scene.become_master()
        mastership = scene.replica.serving()
        mastership.configure(FULL)
        sender = b"letters-of-another"
        opening = mastership.open_publisher(scene.publisher, sender, with_gaps=True)
        task = asyncio.create_task(opening)
        await scene.until(task.done)
        session, _ = await task
        with pytest.raises(FullQueueRefusal) as refusal:
            mastership.publish(
                session, sender, 5, [b"5", b"6", b"7"], (), transient=False, with_gaps=True
            )
        assert refusal.value.sequences == [(7, 7)]
        assert letters(scene) == []
        assert mastership.queue.departures.letters_dropped_total == 0

    scenario(tmp_path, play)
