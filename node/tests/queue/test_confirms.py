"""When a publish is safe: `Confirms` alone, and against a list of publishes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmq_node.queue.confirms import Confirms
from ringmq_node.queue.effects import ConfirmSequences
from ringmq_node.queue.inheritance import Inheritance


def test_persistent_publish_is_safe_when_persisted() -> None:
    confirms = Confirms(Inheritance(0, 0))
    confirms.hide(1, 3, transient=False)
    confirms.wait(1, 7, (1, 3), transient=False)
    assert confirms.advance(1, 0) == []
    assert confirms.visible_below == 0
    assert confirms.advance(1, 1) == [ConfirmSequences(7, ((1, 3),))]
    assert confirms.visible_below == 3
    confirms.check(3)


def test_transient_publish_is_safe_when_received() -> None:
    confirms = Confirms(Inheritance(0, 0))
    confirms.hide(1, 3, transient=True)
    confirms.wait(1, 7, (1, 3), transient=True)
    assert confirms.advance(1, 0) == [ConfirmSequences(7, ((1, 3),))]
    assert confirms.visible_below == 3


def test_a_persistent_publish_is_safe_when_received_where_no_disk_counts() -> None:
    confirms = Confirms(Inheritance(0, 0), durable=False)
    confirms.advance(1, 0)
    assert confirms.hide(1, 3, transient=False)
    confirms.wait(1, 7, (1, 3), transient=False)
    assert confirms.advance(1, 0) == [ConfirmSequences(7, ((1, 3),))]
    assert confirms.visible_below == 3
    assert not confirms.hide(2, 4, transient=False)
    confirms.check(4)


def test_transient_message_is_confirmed_while_a_persistent_one_still_hides_it() -> None:
    confirms = Confirms(Inheritance(0, 0))
    confirms.hide(1, 1, transient=False)
    confirms.hide(2, 2, transient=True)
    confirms.wait(2, 7, (2, 2), transient=True)
    assert confirms.advance(2, 0) == [ConfirmSequences(7, ((2, 2),))]
    assert confirms.visible_below == 0
    confirms.check(2)
    confirms.advance(2, 1)
    assert confirms.visible_below == 2


def test_inherited_messages_are_hidden_until_the_first_op_of_this_master_is_persisted() -> None:
    """Its number, 9, is that of the `Requeue` of all that was live."""
    confirms = Confirms(Inheritance(9, 100))
    assert confirms.hides_inheritance
    confirms.advance(9, 8)
    assert (confirms.visible_below, confirms.hides_inheritance) == (0, True)
    confirms.advance(9, 9)
    assert (confirms.visible_below, confirms.hides_inheritance) == (100, False)


def test_queue_that_never_had_a_message_hides_nothing() -> None:
    assert not Confirms(Inheritance(3, 0)).hides_inheritance


def test_neighbouring_sequences_of_a_publisher_are_one_range() -> None:
    confirms = Confirms(Inheritance(0, 0))
    for number, publisher, sequences in ((1, 7, (1, 3)), (2, 8, (1, 1)), (3, 7, (4, 6))):
        confirms.wait(number, publisher, sequences, transient=False)
    assert confirms.advance(3, 3) == [
        ConfirmSequences(7, ((1, 6),)),
        ConfirmSequences(8, ((1, 1),)),
    ]


@pytest.mark.parametrize("marks", [(4, 5), (5, 4)])
def test_watermarks_that_fall_are_a_bug_of_the_ring(marks: tuple[int, int]) -> None:
    confirms = Confirms(Inheritance(0, 0))
    confirms.advance(5, 5)
    with pytest.raises(AssertionError):
        confirms.advance(*marks)


def test_publishes_out_of_order_are_a_bug_of_the_caller() -> None:
    confirms = Confirms(Inheritance(0, 0))
    confirms.wait(5, 7, (1, 1), transient=False)
    with pytest.raises(AssertionError):
        confirms.wait(4, 7, (2, 2), transient=False)
    confirms.hide(5, 10, transient=False)
    with pytest.raises(AssertionError):
        confirms.hide(6, 10, transient=False)


@dataclass(frozen=True)
class Published:
    number: int
    transient: bool

    def is_safe(self, received: int, persisted: int) -> bool:
        return self.number <= (received if self.transient else persisted)


@given(
    transients=st.lists(st.booleans(), max_size=12),
    steps=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12),
)
def test_confirms_and_visibility_follow_from_the_watermarks(
    transients: list[bool], steps: list[tuple[int, int]]
) -> None:
    """One message in each publish, so that positions, numbers and sequences run alike."""
    confirms = Confirms(Inheritance(0, 0))
    all_of_them = [Published(number, flag) for number, flag in enumerate(transients, 1)]
    for one in all_of_them:
        confirms.hide(one.number, one.number, transient=one.transient)
        confirms.wait(one.number, 7, (one.number, one.number), transient=one.transient)
    told: list[int] = []
    received = persisted = 0
    for more_received, more_persisted in steps:
        received += more_received
        persisted = min(received, persisted + more_persisted)
        for effect in confirms.advance(received, persisted):
            told += [n for first, last in effect.sequences for n in range(first, last + 1)]
        safe = [one.is_safe(received, persisted) for one in all_of_them]
        assert sorted(told) == [
            one.number for one, is_safe in zip(all_of_them, safe, strict=False) if is_safe
        ]
        assert confirms.visible_below == [*safe, False].index(False)
        confirms.check(len(all_of_them))


def test_messages_that_are_known_to_be_safe_are_not_hidden() -> None:
    inheritance = Inheritance(0, 0)
    for number, next_position in ((1, 10), (2, 10), (3, 20), (5, 30)):
        inheritance.applied(number, next_position)
    inheritance.safe(2)
    inheritance.check()
    confirms = Confirms(inheritance)
    confirms.check(30)
    assert (confirms.visible_below, confirms.hides_inheritance) == (10, True)
    confirms.advance(5, 4)
    assert (confirms.visible_below, confirms.hides_inheritance) == (20, True)
    confirms.advance(5, 5)
    assert (confirms.visible_below, confirms.hides_inheritance) == (30, False)


def test_a_state_from_elsewhere_is_not_known_to_be_safe() -> None:
    inheritance = Inheritance(4, 40)
    inheritance.safe(4)
    inheritance.begin(9, 90)
    inheritance.safe(8)
    assert Confirms(inheritance).visible_below == 0
    inheritance.safe(9)
    assert Confirms(inheritance).visible_below == 90
