"""`@value`: a frozen dataclass for the type checker, and a cheap slotted class at run time."""

from __future__ import annotations

from dataclasses import field, replace

import pytest

from ringmq_base.values import value


@value
class Point:
    x: int
    y: int = 0
    tags: tuple[str, ...] = field(default=(), repr=False)


def test_values_are_equal_and_hashed_by_their_fields() -> None:
    assert Point(1, 2) == Point(1, y=2)
    assert Point(1, 2) != Point(2, 1)
    assert len({Point(1, 2), Point(1, 2), Point(1, 3)}) == 2
    assert replace(Point(1, 2), y=5) == Point(1, 5)


def test_a_value_has_no_other_attributes_and_is_matched_by_position() -> None:
    point = Point(1, 2)
    with pytest.raises(AttributeError):
        point.z = 3  # type: ignore[attr-defined]
    match point:
        case Point(x, y):
            assert (x, y) == (1, 2)


def test_the_type_checker_refuses_to_assign_to_a_field() -> None:
    """mypy tells if this comment to it is of no use any more."""
    point = Point(1, 2)
    point.x = 3  # type: ignore[misc]
    assert point == Point(3, 2)
