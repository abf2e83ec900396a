"""`RangeSet` against a plain set of numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ringmq_node.queue.ranges import Range, RangeSet

NUMBERS = st.integers(0, 60)
RANGES = st.tuples(NUMBERS, NUMBERS).map(lambda pair: (min(pair), max(pair)))


def numbers(ranges: list[Range]) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


class RangeSetMachine(RuleBasedStateMachine):
    """Every operation does to the ranges what it does to a set."""

    def __init__(self) -> None:
        super().__init__()
        self.ranges = RangeSet()
        self.model: set[int] = set()

    @rule(pair=RANGES)
    def add(self, pair: Range) -> None:
        self.ranges.add(*pair)
        self.model |= numbers([pair])

    @rule(pair=RANGES)
    def remove(self, pair: Range) -> None:
        gone = self.model & numbers([pair])
        assert self.ranges.remove(*pair) == len(gone)
        self.model -= gone

    @rule(pairs=st.lists(RANGES, max_size=5))
    def update(self, pairs: list[Range]) -> None:
        self.ranges.update(pairs)
        self.model |= numbers(pairs)

    @rule(pairs=st.lists(RANGES, max_size=5))
    def subtract(self, pairs: list[Range]) -> None:
        gone = self.model & numbers(pairs)
        assert self.ranges.subtract(pairs) == len(gone)
        self.model -= gone

    @rule(pair=RANGES)
    def look(self, pair: Range) -> None:
        part = self.ranges.intersection(*pair)
        assert numbers(part) == self.model & numbers([pair])
        assert part == sorted(part)
        assert self.ranges.contains_all(*pair) == (numbers([pair]) <= self.model)

    @rule()
    def clear(self) -> None:
        self.ranges.clear()
        self.model.clear()

    @rule()
    def go_on_with_a_copy(self) -> None:
        twin = self.ranges.copy()
        self.ranges.add(0, 100)
        self.ranges = twin

    @precondition(lambda self: bool(self.model))
    @rule()
    def ends(self) -> None:
        assert (self.ranges.first, self.ranges.last) == (min(self.model), max(self.model))

    @invariant()
    def same(self) -> None:
        self.ranges.check()
        assert numbers([*self.ranges]) == self.model
        assert len(self.ranges) == len(self.model)
        assert bool(self.ranges) == bool(self.model)
        assert all((number in self.ranges) == (number in self.model) for number in range(62))


TestRangeSet = RangeSetMachine.TestCase


@given(st.lists(RANGES, max_size=20))
def test_equal_sets_are_equal_however_they_came_about(pairs: list[Range]) -> None:
    assert RangeSet(pairs) == RangeSet(reversed(pairs))
    assert RangeSet(pairs).range_count == len([*RangeSet(pairs)])


def test_neighbours_melt_into_one_range() -> None:
    ranges = RangeSet([(0, 4), (10, 14), (5, 9)])
    assert [*ranges] == [(0, 14)]
    assert ranges != [(0, 14)]


def test_numbers_of_64_bits_are_no_different() -> None:
    top = 2**64 - 1
    ranges = RangeSet([(0, 0), (top - 5, top)])
    assert len(ranges) == 7
    assert ranges.remove(top, top) == 1
    assert ranges.last == top - 1


def test_range_set_is_not_hashable() -> None:
    with pytest.raises(TypeError):
        hash(RangeSet())
