"""`RangeSet` against a plain set."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine_speed import MachineSpeed

from ringmq_base import ranges as ranges_module
from ringmq_base.ranges import RangeSet, SummedRangeSet

pairs = st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda p: (p[0], p[0] + p[1]))


@given(st.lists(st.tuples(st.booleans(), pairs), max_size=30), pairs)
def test_it_is_a_set_of_numbers(
    steps: list[tuple[bool, tuple[int, int]]], probe: tuple[int, int]
) -> None:
    ranges, model = SummedRangeSet(), set[int]()
    for is_add, (first, last) in steps:
        numbers = set(range(first, last + 1))
        if is_add:
            ranges.add(first, last)
            model |= numbers
        else:
            assert ranges.remove(first, last) == len(model & numbers)
            model -= numbers
        ranges.check()
    assert {n for a, b in ranges for n in range(a, b + 1)} == model
    assert len(ranges) == len(model)
    wanted = set(range(probe[0], probe[1] + 1))
    assert ranges.contains_all(*probe) == (wanted <= model)
    inside = ranges.intersection(*probe)
    assert {n for a, b in inside for n in range(a, b + 1)} == wanted & model
    assert [*zip(*ranges.bounds(*probe), strict=True)] == inside
    assert ranges.count_in(*probe) == len(wanted & model)
    assert ranges.part(*probe) == RangeSet(inside)
    before, wanted_ranges = ranges.ranges(), probe[0]
    assert ranges.take_first(wanted_ranges) == before[:wanted_ranges]
    assert ranges.ranges() == before[wanted_ranges:]
    ranges.check()


@given(st.lists(pairs, max_size=20), st.lists(pairs, max_size=20), st.integers(0, 3))
def test_what_changes_between_two_sets(
    some: list[tuple[int, int]], others: list[tuple[int, int]], alike: int
) -> None:
    """With ranges that are alike before, between and behind, more than are compared together."""
    step = ranges_module._ALIKE_STEP
    ends = [(200 + 3 * at, 201 + 3 * at) for at in range(alike * step // 2)]
    ends += [(10_000 + 3 * at, 10_001 + 3 * at) for at in range(alike * step // 2)]
    end_of_one = [(first + 30_000, last + 30_000) for first, last in others]
    end_of_other = [(first + 30_000, last + 30_000) for first, last in some]
    middle = 5000
    one = RangeSet([*ends, *((first + middle, last + middle) for first, last in some), *end_of_one])
    other = RangeSet(
        [*ends, *((first + middle, last + middle) for first, last in others), *end_of_other]
    )
    gone, come = one.changes_to(other)
    gone.check()
    come.check()
    assert (come, gone) == other.changes_to(one)
    first, second, less, more = (
        {n for a, b in ranges for n in range(a, b + 1)} for ranges in (one, other, gone, come)
    )
    assert (less, more) == (first - second, second - first)


@pytest.mark.slow
def test_a_few_changes_among_very_many_ranges_cost_little() -> None:
    """All ranges between the first change and the last one were looked at one by one: 75 ms."""
    ranges = RangeSet((at, at) for at in range(0, 400_000, 2))
    changed = ranges.copy()
    gone = [(at, at) for at in range(0, 400_000, 20_000)]
    changed.subtract(gone)
    assert ranges.changes_to(changed) == (RangeSet(gone), RangeSet())
    assert MachineSpeed().cpu_s(lambda: ranges.changes_to(changed)) < 0.03


@given(st.lists(pairs, max_size=20), st.lists(pairs, max_size=20), st.integers(0, 20))
def test_sums_tell_sets_apart_and_packed_ranges_come_back(
    some: list[tuple[int, int]], others: list[tuple[int, int]], split: int
) -> None:
    one, other = SummedRangeSet(some), SummedRangeSet(others)
    assert (one.sums == other.sums) == (one == other)
    again = SummedRangeSet()
    again.extend_packed(one.pack(0, split))
    again.extend_packed(one.pack(split))
    again.check()
    assert again == one
    assert again.sums == one.sums
    twin = one.copy()
    twin.add(90, 95)
    one.check()
    assert twin.sums != one.sums
    plain = RangeSet(some)
    twin.assign(plain)
    twin.check()
    assert twin.sums == one.sums
    for shift in (0, 41, 60):
        behind = RangeSet((first + shift, last + shift) for first, last in others)
        twin = one.copy()
        twin.update(behind)
        twin.check()
        assert twin == RangeSet([*one, *behind])
    assert len(plain) == len(one)


@given(st.lists(pairs, max_size=20), st.lists(st.integers(0, 50), max_size=20), st.data())
def test_a_set_without_others_has_the_rest(
    some: list[tuple[int, int]], cuts: list[int], data: st.DataObject
) -> None:
    one = SummedRangeSet(some)
    # Ranges that often touch each other, as the entries of a queue's index do.
    ends = sorted({0, 51, *cuts})
    spans = [(first, behind - 1) for first, behind in pairwise(ends)]
    others = [span for span in spans if data.draw(st.booleans())]
    rest = one.without(others)
    rest.check()
    gone = one.subtract(others)
    one.check()
    assert rest == one
    assert len(rest) + gone == len(SummedRangeSet(some))


@given(st.lists(pairs, max_size=20), st.lists(pairs, max_size=40))
def test_many_ranges_at_once_are_like_one_after_the_other(
    some: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    at_once, by_one = SummedRangeSet(some), SummedRangeSet(some)
    at_once.update(others)
    for other in others:
        by_one.add(*other)
    at_once.check()
    assert at_once == by_one
    assert len(at_once) == len(by_one)
    assert at_once.subtract(others) == sum(by_one.remove(*other) for other in others)
    at_once.check()
    assert at_once == by_one
