"""The oracle sees every way to break a guarantee, and calls nothing else broken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmq_node.cli.load.tally import Tally


def tally_of(published: int, confirmed: int | None = None) -> Tally:
    tally = Tally()
    tally.publish(published)
    tally.confirm(0, (published if confirmed is None else confirmed) - 1)
    return tally


def test_messages_that_come_once_and_in_order_are_fine() -> None:
    tally = tally_of(10)
    tally.deliver(range(0, 6), 100, redelivered=False)
    assert not tally.complete
    tally.deliver((6, 7, 8, 9), 106, redelivered=False)
    assert tally.complete
    assert not tally.broken


def test_confirmed_and_never_delivered_is_lost() -> None:
    tally = tally_of(10, confirmed=8)
    tally.deliver(range(0, 3), 0, redelivered=False)
    tally.deliver(range(4, 7), 3, redelivered=False)
    assert tally.lost == 2  # 3 and 7. Messages 8 and 9 had no confirm.
    assert tally.broken


def test_a_repeat_from_the_same_position_has_to_be_flagged() -> None:
    tally = tally_of(4)
    tally.deliver(range(0, 4), 0, redelivered=False)
    tally.deliver(range(1, 4), 1, redelivered=True)
    assert (tally.redelivered, tally.duplicated, tally.broken) == (3, 0, False)
    tally.deliver(range(3, 4), 3, redelivered=False)
    assert (tally.redelivered, tally.duplicated, tally.broken) == (3, 1, True)


def test_a_message_at_two_positions_is_a_duplicate_whatever_its_flag() -> None:
    tally = tally_of(4)
    tally.deliver(range(0, 4), 0, redelivered=False)
    tally.deliver(range(2, 4), 4, redelivered=True)
    assert tally.duplicated == 2


def test_first_deliveries_out_of_order_are_counted() -> None:
    tally = tally_of(6)
    tally.deliver((0, 1, 4), 0, redelivered=False)
    tally.deliver((2, 3, 5), 3, redelivered=False)
    assert tally.reordered == 2
    assert tally.lost == 0


def test_a_message_that_nobody_published_is_unexpected() -> None:
    tally = tally_of(2)
    tally.deliver((0, 1, 2), 0, redelivered=False)
    tally.deliver((-1,), 3, redelivered=False)
    assert tally.unexpected == 2
    assert tally.broken


COUNT = 12
batches = st.lists(
    st.tuples(
        st.integers(0, COUNT - 1),
        st.integers(1, 5),
        st.integers(0, 2).map(lambda shift: shift * 50),
        st.booleans(),
    ),
    max_size=12,
)


@given(batches)
def test_batches_count_as_their_messages_do(deliveries: list[tuple[int, int, int, bool]]) -> None:
    """The fast path for whole batches gives the same counts as a model of single messages."""
    tally = tally_of(COUNT)
    positions: dict[int, int] = {}
    counts = {"duplicated": 0, "redelivered": 0, "reordered": 0}
    for first, count, shift, redelivered in deliveries:
        indexes = range(first, min(first + count, COUNT))
        tally.deliver(indexes, first + shift, redelivered=redelivered)
        for index in indexes:
            position = index + shift
            if index not in positions:
                counts["reordered"] += any(index < other for other in positions)
                positions[index] = position
            elif positions[index] == position and redelivered:
                counts["redelivered"] += 1
            else:
                counts["duplicated"] += 1
    assert {name: getattr(tally, name) for name in counts} == counts
    assert tally.lost == COUNT - len(positions)


def test_confirming_an_unpublished_message_is_our_own_bug() -> None:
    with pytest.raises(AssertionError):
        tally_of(2).confirm(0, 2)
