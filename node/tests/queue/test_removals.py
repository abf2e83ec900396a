"""From the wish to remove until it is safe: `Removals` alone."""

from __future__ import annotations

import pytest

from ringmq_base.ranges import Range
from ringmq_node.queue import ops
from ringmq_node.queue.effects import MulticastOp, ReportSettled
from ringmq_node.queue.ops import Remove
from ringmq_node.queue.removals import Removals


def removed(effects: list[MulticastOp]) -> list[tuple[Range, ...]]:
    return [effect.op.ranges for effect in effects if isinstance(effect.op, Remove)]


def test_stages_of_a_removal() -> None:
    removals = Removals()
    removals.gather(7, [(0, 4)])
    assert [*removals.still_live()] == [(0, 4)]
    assert removed(removals.next_op(0)) == [((0, 4),)]
    # In hand: the ring may refuse it for long, and no second op is made meanwhile.
    removals.gather(7, [(5, 5)])
    assert removals.next_op(0) == []
    assert sorted(removals.still_live()) == [(0, 4), (5, 5)]
    removals.sent(3)
    assert [*removals.still_live()] == [(5, 5)]
    removals.check()
    # In flight until all have received it; told when all have persisted it.
    assert removals.next_op(2) == []
    assert removals.settled(2) == []
    assert removed(removals.next_op(3)) == [((5, 5),)]
    assert removals.settled(3) == [ReportSettled(7, ((0, 4),))]
    assert removals.settled_total == 5
    removals.check()


def test_owners_share_an_op_and_each_hears_of_its_own_positions() -> None:
    removals = Removals()
    removals.gather(7, [(0, 0), (2, 2)])
    removals.gather(8, [(1, 1), (9, 9)])
    assert removed(removals.next_op(0)) == [((0, 2), (9, 9))]
    removals.sent(1)
    assert removals.settled(1) == [
        ReportSettled(7, ((0, 0), (2, 2))),
        ReportSettled(8, ((1, 1), (9, 9))),
    ]


def test_a_whole_removal_is_told_once_after_its_last_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "RANGES_SENT_MAX", 2)
    removals = Removals()
    ranges = [(0, 0), (2, 2), (4, 4)]
    removals.gather_whole(9, ranges)
    removals.gather(7, [(6, 6)])
    assert removed(removals.next_op(0)) == [((0, 0), (2, 2))]
    removals.sent(1)
    removals.check()
    assert removals.settled(1) == []
    assert removed(removals.next_op(1)) == [((4, 4), (6, 6))]
    removals.sent(2)
    assert removals.settled(2) == [ReportSettled(9, tuple(ranges)), ReportSettled(7, ((6, 6),))]
    removals.check()


def test_an_owner_of_a_whole_removal_has_only_one() -> None:
    removals = Removals()
    removals.gather_whole(9, [(0, 0)])
    with pytest.raises(AssertionError):
        removals.gather_whole(9, [(1, 1)])


def test_a_number_for_an_op_that_was_never_made_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        Removals().sent(1)
