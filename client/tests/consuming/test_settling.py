"""The positions of a consumer, without a stream: held, noted, awaited, and dropped at a break."""

from __future__ import annotations

import pytest

from ringmq.consuming.settling import Settling, Verb
from ringmq_base.limits import SETTLE_RANGES_MAX


def holding(*ranges: tuple[int, int]) -> Settling:
    settling = Settling()
    settling.hand_out(ranges)
    return settling


def test_notes_gather_as_merged_ranges_until_they_are_taken() -> None:
    settling = holding((1, 10))
    settling.note(Verb.ACK, [(1, 2)])
    settling.note(Verb.REQUEUE, [(5, 5)])
    settling.note(Verb.ACK, [(3, 3), (9, 9)])
    assert settling.held_messages == 5
    assert settling.take_noted() == {Verb.ACK: [(1, 3), (9, 9)], Verb.REQUEUE: [(5, 5)]}
    assert settling.take_noted() == {}


def test_a_request_has_no_more_ranges_than_a_node_takes() -> None:
    """Acks of every other message; the last requests have what is left, and the other verbs."""
    settling = holding((0, 4 * SETTLE_RANGES_MAX))
    acked = [(at, at) for at in range(0, 3 * SETTLE_RANGES_MAX, 2)]
    settling.note(Verb.ACK, acked)
    settling.note(Verb.REQUEUE, [(1, 1)])
    assert settling.take_noted() == {Verb.ACK: acked[:SETTLE_RANGES_MAX]}
    assert settling.take_noted() == {Verb.ACK: acked[SETTLE_RANGES_MAX:], Verb.REQUEUE: [(1, 1)]}
    assert settling.take_noted() == {}


@pytest.mark.parametrize(
    "wrong", [(1, 2), (5, 6), (9, 12), (6, 5), (-1, 0)], ids=lambda each: f"{each[0]}..{each[1]}"
)
def test_positions_that_are_not_held_are_unknown(wrong: tuple[int, int]) -> None:
    settling = holding((2, 9))
    settling.note(Verb.ACK, [(5, 5)])
    assert settling.unknown([(3, 4), wrong]) == [wrong]
    assert settling.unknown([(2, 4), (6, 9)]) == []


def test_a_wait_ends_when_the_node_has_reported_all_its_positions() -> None:
    settling = holding((1, 10))
    ranges = [(1, 2), (4, 5)]
    settling.note(Verb.ACK, ranges)
    first, second = settling.wait(ranges), settling.wait([(4, 4)])
    assert settling.settled([(1, 4)]) == [second]
    assert settling.settled([(1, 4)]) == []
    assert settling.settled([(5, 10)]) == [first]


def test_a_wait_that_was_forgotten_is_never_returned() -> None:
    settling = holding((1, 2))
    awaited = settling.wait([(1, 1)])
    settling.forget(awaited)
    settling.forget(awaited)
    assert settling.settled([(1, 2)]) == []


def test_nothing_outlives_the_stream() -> None:
    """A note that went out on the next stream would settle deliveries the user hasn't seen."""
    settling = holding((1, 10))
    settling.note(Verb.DISCARD, [(1, 1)])
    awaited = settling.wait([(1, 1)])
    assert settling.stream_ended() == [awaited]
    assert settling.held_messages == 0
    assert settling.take_noted() == {}
    assert settling.settled([(1, 1)]) == []
    assert settling.unknown([(2, 2)]) == [(2, 2)]
