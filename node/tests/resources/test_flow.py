"""When a queue shows `flow`, and what a held publisher is told and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringmq_node.model.flow import ALARMS, BlockReason
from ringmq_node.resources.flow import LINGER_S, LOOK_S, TOLD_AFTER_S, BlockNotices, FlowGauge

RING = (BlockReason.RING_FULL,)
DISK = (BlockReason.DISK,)


def test_flow_is_shown_while_a_batch_is_held_and_for_a_second_more() -> None:
    now = 10.0
    gauge = FlowGauge(lambda: now)
    assert not gauge.is_shown
    gauge.began(RING)
    gauge.began(DISK)
    gauge.ended()
    now = 99.0
    assert gauge.is_shown
    assert gauge.reasons == DISK
    gauge.ended()
    now += LINGER_S * 0.9
    assert gauge.is_shown
    now += LINGER_S
    assert not gauge.is_shown
    assert gauge.reasons == ()


def test_a_hiccup_is_not_told() -> None:
    notices = BlockNotices()
    notices.hold(0.0)
    assert notices.look(RING, 0.0) is None
    assert notices.next_look(0.0) == TOLD_AFTER_S
    notices.release(0.9 * TOLD_AFTER_S)
    assert notices.look((), 0.9 * TOLD_AFTER_S) is None
    assert notices.next_look(0.9 * TOLD_AFTER_S) is None


def test_a_batch_that_is_held_for_long_is_told_and_its_end_after_a_while() -> None:
    notices = BlockNotices()
    notices.hold(0.0)
    assert notices.look(RING, TOLD_AFTER_S) == RING
    assert notices.next_look(TOLD_AFTER_S) == TOLD_AFTER_S + LOOK_S
    assert notices.look(RING, 5.0) is None
    # A publisher at the pace of its slowest mirror isn't told each batch.
    notices.release(6.0)
    assert notices.look((), 6.0) is None
    notices.hold(6.5)
    # Nor each change of what a busy queue waits for.
    assert notices.look((BlockReason.UNSYNCED,), 6.5) == (BlockReason.UNSYNCED,)
    assert notices.look(RING, 6.6) is None
    notices.release(7.0)
    assert notices.next_look(7.0) == 7.0 + LINGER_S
    assert notices.look((), 7.0 + LINGER_S) == ()
    assert notices.next_look(7.0 + LINGER_S) is None


def test_an_alarm_and_its_end_are_told_at_once() -> None:
    notices = BlockNotices()
    notices.hold(0.0)
    assert notices.look(DISK, 0.0) == DISK
    assert notices.look({BlockReason.DISK, BlockReason.MEMORY}, 1.0) == (
        BlockReason.MEMORY,
        BlockReason.DISK,
    )
    notices.release(2.0)
    assert notices.look((), 2.0) == ()


reasons = st.frozensets(st.sampled_from(BlockReason))


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.booleans(), reasons), max_size=40))
def test_nobody_is_told_an_end_without_a_beginning(
    steps: list[tuple[float, bool, frozenset[BlockReason]]],
) -> None:
    """Whatever happens: told and not told take turns, no notice repeats the one before, and who is
    told is told the end once nothing holds it."""
    notices, now = BlockNotices(), 0.0
    told: tuple[BlockReason, ...] = ()
    for pause, holds, why in steps:
        now += pause
        if holds != notices.held:
            (notices.hold if holds else notices.release)(now)
        new = notices.look(why if holds else (), now)
        if new is not None:
            assert new != told
            assert holds == bool(new)
            told = new
        if holds and why & ALARMS:
            assert ALARMS.intersection(told) == why & ALARMS
    if notices.held:
        notices.release(now)
    due = notices.next_look(now)
    assert (due is None) == (not told)
    if due is not None:
        assert notices.look((), due) == ()
