"""What a publisher is told of its producer: only what is safe, and only by the real master."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from node.tests.replica.scene import Publisher, Scene, scenario

from ringmq_gm import Refusal, Role
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.queue.ops import Barrier, Publish
from ringmq_node.replica import mastership as mastership_module

Opening = asyncio.Task[tuple[int, int]]


def opening(scene: Scene, producer: bytes = b"p", publisher: Publisher | None = None) -> Opening:
    work = scene.replica.serving().open_publisher(publisher or Publisher(), producer)
    return asyncio.create_task(work)


async def reason_of(task: Opening) -> Reason:
    with pytest.raises(BrokerError) as caught:
        await task
    return caught.value.reason


def barriers(scene: Scene) -> int:
    return sum(isinstance(op, Barrier) for op in scene.ring.sent())


def test_no_sequence_is_told_that_may_still_be_lost(tmp_path: Path) -> None:
    """1. The master has 1 to 20, and 1 to 9 are with the mirrors. 2. A program that resumes under
    its own id is told 20. 3. The master dies. 4. The program goes on with 21, 10 to 20 are gone."""

    async def play(scene: Scene) -> None:
        await scene.become_master()
        scene.publish(1, *(b"%d" % n for n in range(1, 10)))
        await scene.confirmed((1, 9))
        scene.ring.hold_marks = True
        scene.publish(10, *(b"%d" % n for n in range(10, 21)))
        task = opening(scene)
        await scene.quiet()
        assert not task.done()
        # The trip may bring what the answer counts, and not yet an op that was sent after the
        # question.
        scene.replica.watermarks(2, 2)
        await scene.quiet()
        assert not task.done()
        scene.ring.hold_marks = False
        scene.ring.advance()
        assert (await task)[1] == 20

    scenario(tmp_path, play)


def test_a_master_that_nobody_follows_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The master is cut off, with everything confirmed; a mirror takes over, and gets 10 to
    15. 2. The publisher's stream breaks, and it comes to the old master, which says 9. 3. 10 to 15
    don't follow, so they are sent under a new id, and are there twice."""
    monkeypatch.setattr(mastership_module, "OPENING_WAIT_S", 0.05)

    async def play(scene: Scene) -> None:
        await scene.become_master()
        scene.publish(1, *(b"%d" % n for n in range(1, 10)))
        await scene.confirmed((1, 9))
        scene.ring.hold_marks = True
        with pytest.raises(BrokerError, match="no trip around the ring") as caught:
            await opening(scene)
        assert caught.value.reason is Reason.NO_MASTER
        assert caught.value.retryable
        assert scene.replica.serving().publishers == 1  # the one that has published before

    scenario(tmp_path, play)


def test_an_op_that_was_sent_before_the_question_proves_nothing(tmp_path: Path) -> None:
    """Its marks may have been on their way when the mirrors went over to another master."""

    async def play(scene: Scene) -> None:
        await scene.become_master()
        scene.ring.hold_marks = True
        scene.publish(1, b"1")
        task = opening(scene)
        await scene.quiet()
        assert [type(op) for op in scene.ring.sent()] == [Publish, Barrier]
        scene.replica.watermarks(1, 1)
        await scene.quiet()
        assert not task.done()
        scene.replica.watermarks(2, 1)
        await scene.quiet()
        assert not task.done()
        scene.replica.watermarks(2, 2)
        assert (await task)[1] == 1

    scenario(tmp_path, play)


def test_many_openings_share_two_barriers(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.become_master()
        scene.ring.hold_marks = True
        tasks = [opening(scene, b"producer %d" % n) for n in range(500)]
        await scene.quiet()
        assert barriers(scene) == 1
        scene.ring.hold_marks = False
        scene.ring.advance()
        await asyncio.gather(*tasks)
        assert barriers(scene) == 2
        assert scene.replica.serving().publishers == 500

    scenario(tmp_path, play)


def test_a_publish_in_between_is_as_good_as_a_barrier(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.become_master()
        scene.ring.hold_marks = True
        first, second = opening(scene, b"p"), opening(scene, b"q")
        await scene.quiet()
        scene.publish(1, b"x", producer=b"")
        scene.ring.hold_marks = False
        scene.ring.advance()
        await asyncio.gather(first, second)
        assert barriers(scene) == 1

    scenario(tmp_path, play)


@pytest.mark.parametrize("members", [1, 3])
def test_a_quiet_ring_answers(tmp_path: Path, members: int) -> None:
    async def play(scene: Scene) -> None:
        await scene.become_master()
        for _ in range(3):
            async with asyncio.timeout(2):
                assert (await opening(scene))[1] == 0

    scenario(tmp_path, play, members)


def test_a_ring_that_is_full_answers_when_it_has_room(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.become_master()
        scene.ring.refuses = Refusal.FULL
        scene.ring.writable.clear()
        task = opening(scene)
        await scene.quiet()
        assert not task.done()
        scene.ring.refuses = None
        scene.ring.writable.set()
        assert (await task)[1] == 0

    scenario(tmp_path, play)


def test_the_opening_ends_with_the_mastership_and_with_a_newer_stream(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.become_master()
        scene.ring.hold_marks = True
        earlier, later = opening(scene), opening(scene)
        await scene.quiet()
        assert await reason_of(earlier) is Reason.PRODUCER_FENCED
        assert not later.done()
        scene.ring.enter(Role.MIRROR, 2)
        assert await reason_of(later) is Reason.NOT_MASTER

    scenario(tmp_path, play)


def test_a_client_that_goes_away_leaves_nothing_behind(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.become_master()
        scene.ring.hold_marks = True
        task = opening(scene)
        await scene.quiet()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert scene.replica.serving().publishers == 0
        scene.ring.hold_marks = False
        scene.ring.advance()
        publisher = Publisher()
        number, _ = await opening(scene, publisher=publisher)
        scene.publish(1, b"1", to=number)
        await scene.until(lambda: publisher.sequences == [(1, 1)])
        assert publisher.reasons == []

    scenario(tmp_path, play)


def test_too_few_synchronised_is_said_at_once(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.become_master()
        scene.ring.has_quorum = False
        assert await reason_of(opening(scene)) is Reason.TOO_FEW_SYNCHRONISED
        # Without a producer id there is nothing to be told.
        assert (await opening(scene, b""))[1] == 0

    scenario(tmp_path, play)
