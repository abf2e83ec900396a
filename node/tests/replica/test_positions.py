"""What a replica refuses to a reader by position: of a mirror, of an old master, of lost ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from expected_logs import DAMAGE
from node.tests.replica.scene import ME, NEXT, Scene, at_once, scenario
from node.tests.replica.test_repair import DamagedScene, body
from node.tests.replica.test_repair import scenario as damaged_scenario

from ringmq_gm import AcceptedLoss, Refusal, Role
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.leases import ChangeLease, LeaseAction
from ringmq_node.queue.ops import NoteGone, Publish, Remove
from ringmq_node.replica import repair as repair_module
from ringmq_node.replica.positions import Numbering, Positions

NOW_MS = 1_000_000


async def refusal(work: Coroutine[Any, Any, object]) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        await work
    return caught.value


def lease(holder: str, action: LeaseAction = LeaseAction.ACQUIRE) -> ChangeLease:
    return ChangeLease(action, "ingest", NOW_MS, holder, holder.encode(), 0, 5000)


def acknowledge(positions: Positions, end: int) -> Coroutine[Any, Any, object]:
    return positions.acknowledge_below(None, end, lease="", token=0, now_ms=NOW_MS)


def test_a_mirror_answers_up_to_what_it_knows_to_be_safe(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        scene.ring.enter(Role.MIRROR, 1)
        for at in range(4):
            op = Publish(at, Block.of([b"%d" % at]))
            scene.replica.deliver(at + 1, 1, ops.encode(op))
        positions = Positions(scene.replica)
        unsafe = await refusal(positions.read_piece(None, 0, 4))
        assert unsafe.reason is Reason.POSITIONS_UNSAFE
        assert (unsafe.metadata["first"], unsafe.metadata["last"]) == ("0", "3")
        scene.ring.told_safe = 3
        piece = await positions.read_piece(None, 0, 3)
        assert [run.first_position for run in piece.runs] == [0, 1, 2]
        assert (await refusal(positions.read_piece(None, 0, 4))).metadata["first"] == "3"
        # It hears of a purge, or of an acknowledgement, ahead of what these remove.
        scene.replica.deliver(5, 1, ops.encode(NoteGone(acked_end=2)))
        gone = await refusal(positions.read_piece(None, 1, 3))
        assert gone.reason is Reason.POSITIONS_GONE
        assert (gone.metadata["first"], gone.metadata["last"]) == ("1", "1")
        assert (await refusal(acknowledge(positions, 1))).reason is Reason.NOT_MASTER
        scene.ring.enter(Role.OUTSIDE, 2)
        assert (await refusal(positions.read_piece(None, 2, 3))).reason is Reason.NOT_MASTER

    scenario(tmp_path, play)


def test_after_an_accepted_loss_old_positions_are_refused(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.become_master(9)
        scene.publish(1, b"a", b"b")
        await scene.confirmed((1, 2))
        positions = Positions(scene.replica)
        before = positions.numbering
        assert before == Numbering("id", 0)
        assert scene.ring.view is not None
        losses = tuple(
            AcceptedLoss(epoch, ME, 1, 1, position, (NEXT,), "me", 0)
            for epoch, position in ((4, 70), (9, 1))
        )
        scene.ring.view = replace(scene.ring.view, losses=losses)
        assert positions.numbering == Numbering("id", 9)
        for asked in (before, Numbering("id", 4)):
            moved = await refusal(positions.read_piece(asked, 0, 2))
            assert moved.reason is Reason.POSITIONS_MOVED
            assert "positions 0 to 1" in moved.message
            assert moved.metadata["lost_from"] == "1"
        assert len((await positions.read_piece(Numbering("id", 9), 0, 2)).runs) == 1
        # Others know of a loss that this replica hasn't heard of.
        later = await refusal(positions.read_piece(Numbering("id", 11), 0, 2))
        assert later.reason is Reason.NOT_MASTER

    scenario(tmp_path, play)


def test_a_master_of_the_past_acknowledges_nothing(tmp_path: Path) -> None:
    """Its ring gives it no trip, and then another master: the caller hears that it isn't known."""

    async def play(scene: Scene) -> None:
        await scene.become_master()
        scene.publish(1, b"a", b"b", b"c")
        await scene.confirmed((1, 3))
        scene.ring.hold_marks = True
        positions = Positions(scene.replica)
        work = [
            asyncio.create_task(call)
            for call in (
                acknowledge(positions, 2),
                positions.change_lease(lease("one")),
                # Acknowledged, and no such position, as far as it knows.
                positions.read_piece(None, 0, 3),
                positions.read_piece(None, 2, 7),
            )
        ]
        await scene.quiet()
        assert not any(task.done() for task in work)
        scene.ring.enter(Role.MIRROR, 2)
        for error in await asyncio.gather(*work, return_exceptions=True):
            assert isinstance(error, BrokerError)
            assert error.reason is Reason.OUTCOME_UNKNOWN

    scenario(tmp_path, play)


def test_nothing_is_decided_before_held_ops_are_in_the_state(tmp_path: Path) -> None:
    """While the ring refuses ops, a lease that somebody asks for isn't in the state yet."""

    async def play(scene: Scene) -> None:
        await scene.become_master()
        scene.publish(1, b"a", b"b", b"c")
        await scene.confirmed((1, 3))
        positions = Positions(scene.replica)
        number = scene.consume()
        scene.ring.writable.clear()
        scene.ring.refuses = Refusal.FULL
        scene.ack(number, (2, 2))
        assert scene.replica.serving().has_held_ops
        for call in (acknowledge(positions, 0), positions.change_lease(lease("one"))):
            assert (await refusal(call)).retryable
        scene.ring.refuses = None
        # The ring takes ops again, but the held ones have not had their turn yet.
        leasing = [
            asyncio.create_task(positions.change_lease(lease(name))) for name in ("one", "two")
        ]
        await asyncio.sleep(0)
        assert "ingest" not in scene.replica.store.state.leases
        scene.ring.writable.set()
        first, second = await asyncio.gather(*leasing, return_exceptions=True)
        assert not isinstance(first, BaseException)
        assert isinstance(second, BrokerError)
        assert second.reason is Reason.LEASE_HELD
        assert second.metadata["holder"] == "one"

    scenario(tmp_path, play)


def test_the_note_of_what_is_gone_is_ahead_of_the_removal(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.become_master()
        scene.publish(1, b"a", b"b", b"c")
        await scene.confirmed((1, 3))
        positions = Positions(scene.replica)
        assert (
            await positions.acknowledge_below(None, 2, lease="", token=0, now_ms=0)
        ).messages == 2
        await scene.replica.serving().purge()
        sent = [op for op in scene.ring.sent() if isinstance(op, NoteGone | Remove)]
        assert sent == [
            NoteGone(acked_end=2),
            Remove(((0, 1),)),
            NoteGone(purged_end=3),
            Remove(((2, 2),)),
        ]

    scenario(tmp_path, play)


def test_an_acknowledgement_twice_removes_once(tmp_path: Path) -> None:
    async def play(scene: Scene) -> None:
        await scene.become_master()
        scene.publish(1, b"a", b"b", b"c")
        await scene.confirmed((1, 3))
        positions = Positions(scene.replica)
        found = await asyncio.gather(*(acknowledge(positions, end) for end in (2, 2, 1)))
        assert [each.messages for each in found] == [2, 0, 0]  # type: ignore[attr-defined]
        assert scene.replica.store.state.acked_end == 2
        piece = at_once(positions.read_piece(None, 2, 3))
        assert [run.positions for run in piece.runs] == [(2, 2)]

    scenario(tmp_path, play)


@pytest.mark.may_log(DAMAGE)
def test_a_damaged_message_is_waited_for_and_then_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair_module, "RETRY_S", 0.005)

    async def play(scene: DamagedScene) -> None:
        await scene.become_master()
        await scene.published(4)
        scene.damage(1)
        scene.host.answers.clear()
        positions = Positions(scene.replica)
        piece = await positions.read_piece(None, 0, 4)
        assert (piece.first, piece.end) == (0, 1)
        repairing = await refusal(positions.read_piece(None, 1, 4))
        assert repairing.reason is Reason.REPAIRING
        assert repairing.retryable
        scene.host.answers.set()
        await scene.until(lambda: 1 in scene.replica.given_up)
        piece = await positions.read_piece(None, 1, 4)
        assert (piece.end, piece.runs, piece.damaged) == (2, (), ((1, 1),))
        found: dict[int, bytes] = {}
        at = 2
        while at < 4:
            piece = await positions.read_piece(None, at, 4)
            for run in piece.runs:
                found.update(enumerate(run.block.bodies(), run.first_position))
            at = piece.end
        assert found == {2: body(2), 3: body(3)}

    damaged_scenario(tmp_path, play)


def test_an_acknowledgement_that_finds_nothing_waits_for_a_removal_that_is_not_sent_yet(
    tmp_path: Path,
) -> None:
    async def play(scene: Scene) -> None:
        await scene.become_master()
        scene.publish(1, b"a", b"b", b"c")
        await scene.confirmed((1, 3))
        positions = Positions(scene.replica)
        scene.ring.hold_marks = True
        # The removal of the first one is on its way, so that of the second waits for it.
        first = asyncio.create_task(acknowledge(positions, 1))
        await asyncio.sleep(0)
        second = asyncio.create_task(acknowledge(positions, 2))
        await asyncio.sleep(0)
        again = asyncio.create_task(acknowledge(positions, 2))
        await asyncio.sleep(0.05)
        assert [op for op in scene.ring.sent() if isinstance(op, Remove)] == [Remove(((0, 0),))]
        sent = scene.ring.last_number
        scene.replica.watermarks(sent, sent)
        await asyncio.sleep(0.05)
        assert first.done()
        assert [op for op in scene.ring.sent() if isinstance(op, Remove)][1:] == [Remove(((1, 1),))]
        # No other member has that one.
        assert not second.done()
        assert not again.done()
        scene.ring.hold_marks = False
        scene.ring.advance()
        await asyncio.gather(second, again)

    scenario(tmp_path, play)
