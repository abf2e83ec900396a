"""A state that was packed before its checkpoint gives the same bytes, and is packed in pieces."""

from __future__ import annotations

import pytest
from loops import run, turns_beside

from ringmq_base.pieces import PIECE_S_MAX, timed_by
from ringmq_base.ranges import RangeSet, SummedRangeSet
from ringmq_node.model.deaths import DeathReason
from ringmq_node.queue.counts import DeliveryCounts
from ringmq_node.queue.doomed import Doomed, DoomedRun
from ringmq_node.queue.marks import Marks
from ringmq_node.queue.priorities import Priorities
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage import PackedParts, packed_in_pieces
from ringmq_node.storage.format import checkpoint
from ringmq_node.storage.format.checkpoint import Checkpoint, Cut
from ringmq_node.storage.format.packing import RANGES_PACKED_MAX, RUNS_PACKED_MAX

REJECTED = DeathReason.REJECTED
RANGES = 2 * RANGES_PACKED_MAX + 10


def every(step: int) -> SummedRangeSet:
    return SummedRangeSet((at, at) for at in range(0, 2 * RANGES, step))


def long_state() -> ReplicatedState:
    priorities = Priorities()
    priorities.of(3).update(every(10))
    return ReplicatedState(
        last_number=7,
        next_position=2 * RANGES,
        live=every(2),
        redelivered=every(2),
        transient=every(4),
        counts=DeliveryCounts([every(6)]),
        expiries=Marks((at, at, at + 1) for at in range(0, 2 * RANGES, 2)),
        priorities=priorities,
        doomed=Doomed(
            RUNS_PACKED_MAX + 11,
            [DoomedRun(at + 1, 4 * at, 4 * at, REJECTED) for at in range(RUNS_PACKED_MAX + 10)],
        ),
    )


def encoded(state: ReplicatedState, packed: PackedParts) -> bytes:
    return checkpoint.encode(Checkpoint(9, state, (Cut(8, 5),), packed=packed))


def test_a_checkpoint_is_the_same_with_parts_that_were_packed_before() -> None:
    state = long_state()
    packed = run(packed_in_pieces(state))
    assert encoded(state, packed) == encoded(state, PackedParts())
    assert checkpoint.decode(encoded(state, packed)).state == state


def test_a_part_that_has_changed_since_is_packed_again() -> None:
    state = long_state()
    packed = run(packed_in_pieces(state))
    state.live.remove(0, 100)
    state.expiries.prune([(0, 100)], state.live)
    assert encoded(state, packed) == encoded(state, PackedParts())


def test_nothing_is_left_to_pack_for_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    state = long_state()
    packed = run(packed_in_pieces(state))
    with monkeypatch.context() as patched:
        patched.setattr(RangeSet, "pack", None)
        patched.setattr(Marks, "pack", None)
        patched.setattr(Doomed, "pack", None)
        data = encoded(state, packed)
    assert data == encoded(state, PackedParts())


def test_a_part_is_packed_in_pieces_of_work() -> None:
    async def main() -> None:
        # Each look at the clock ends a piece.
        now = iter(range(1_000_000))
        async with turns_beside() as turns:
            with timed_by(lambda: next(now)):
                await packed_in_pieces(long_state())
        # `live` and the marks three times, the others once or twice.
        assert turns() >= 11

    run(main())


def test_short_parts_share_a_piece_of_work() -> None:
    """Each part had a piece of its own: eight of 9 ms held the loop for all of theirs."""

    async def main() -> None:
        # Ten looks at the clock are a piece, and no part has as many.
        now = iter(range(1_000_000))
        async with turns_beside() as turns:
            with timed_by(lambda: next(now) * PIECE_S_MAX / 10):
                await packed_in_pieces(long_state())
        assert turns() >= 1

    run(main())
