"""`Priorities` and `Line` against a plain sorted list."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue.priorities import Line, Priorities

PLACES = st.lists(st.integers(0, 60), min_size=1, max_size=8)
BELOW = st.integers(0, 80)


def ranges_of(positions: object) -> list[Range]:
    return RangeSet((at, at) for at in positions).ranges()  # type: ignore[attr-defined]


def positions_of(ranges: object) -> list[int]:
    return [at for first, last in ranges for at in range(first, last + 1)]  # type: ignore[attr-defined]


class LineMachine(RuleBasedStateMachine):
    """The live messages, and which of them are ready, as lists; in order by a plain sort."""

    def __init__(self) -> None:
        super().__init__()
        self.priorities = Priorities()
        self.line = Line(RangeSet(), self.priorities)
        self.live: dict[int, int] = {}
        self.ready: list[int] = []
        self.next = 0

    def in_order(self) -> list[int]:
        return sorted(self.ready, key=lambda at: (-self.live[at], at))

    @rule(count=st.integers(1, 6), priority=st.sampled_from([0, 0, 1, 3, 255]))
    def publish(self, count: int, priority: int) -> None:
        first, last = self.next, self.next + count - 1
        if priority:
            self.priorities.add(priority, first, last)
        self.line.add(first, last)
        self.live.update(dict.fromkeys(range(first, last + 1), priority))
        self.ready += range(first, last + 1)
        self.next = last + 1

    def expect(self, below: int) -> list[int]:
        return [at for at in self.in_order() if at < below]

    @rule(below=BELOW, count=st.integers(1, 9))
    def take(self, below: int, count: int) -> None:
        expected = self.expect(below)[:count]
        taken: list[int] = []
        while len(taken) < count and (part := self.line.next_part(below)):
            first, last = part[0], min(part[1], part[0] + count - len(taken) - 1)
            assert {self.live[at] for at in range(first, last + 1)} == {self.live[first]}
            self.line.subtract([(first, last)])
            taken += range(first, last + 1)
        assert taken == expected
        self.ready = [at for at in self.ready if at not in taken]

    @rule(below=BELOW, parts_max=st.integers(1, 4))
    def look(self, below: int, parts_max: int) -> None:
        parts = [*self.line.parts(below)]
        assert positions_of(parts) == self.expect(below)
        assert self.line.next_parts(below, parts_max) == parts[:parts_max]

    @rule()
    def let_go_of_the_cheapest(self) -> None:
        expected = sorted(self.ready, key=lambda at: (self.live[at], at))
        assert positions_of(self.line.cheapest_first()) == expected

    @precondition(lambda self: len(self.ready) < len(self.live))
    @rule(places=PLACES)
    def put_back(self, places: list[int]) -> None:
        away = sorted({*self.live} - {*self.ready})
        back = sorted({away[place % len(away)] for place in places})
        self.line.update(ranges_of(back))
        self.ready += back

    @precondition(lambda self: self.ready)
    @rule(places=PLACES)
    def put_aside(self, places: list[int]) -> None:
        gone = {self.ready[place % len(self.ready)] for place in places}
        self.line.subtract(ranges_of(gone))
        self.ready = [at for at in self.ready if at not in gone]

    @precondition(lambda self: len(self.ready) < len(self.live))
    @rule()
    def remove(self) -> None:
        """All that nobody has ready was acknowledged."""
        gone = {*self.live} - {*self.ready}
        self.priorities.subtract(ranges_of(gone))
        for at in gone:
            del self.live[at]

    @rule()
    def purge(self) -> None:
        self.line.clear()
        self.ready.clear()

    @rule()
    def take_over(self) -> None:
        """The next master begins with all that is live, and another copy of the priorities."""
        self.priorities = self.priorities.copy()
        self.line = Line(RangeSet(ranges_of(self.live)), self.priorities)
        self.ready = [*self.live]

    @invariant()
    def same(self) -> None:
        self.line.check()
        self.priorities.check(RangeSet(ranges_of(self.live)))
        assert positions_of(self.line.positions) == sorted(self.ready)
        assert bool(self.priorities) == any(self.live.values())
        assert {at: self.priorities.at(at) for at in self.live} == self.live


LineMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestLine = LineMachine.TestCase


def test_sums_tell_priorities_apart() -> None:
    first, second = Priorities(), Priorities()
    assert first.sums() == b""
    first.add(1, 0, 3)
    second.add(2, 0, 3)
    assert first.sums() != second.sums()
    assert first != second
    second.subtract([(0, 3)])
    second.add(1, 0, 1)
    second.add(1, 2, 3)
    assert first.sums() == second.sums()
    assert first == second


@pytest.mark.parametrize("priority", [0, -1, 256])
def test_no_other_priority_is_one(priority: int) -> None:
    with pytest.raises(AssertionError):
        Priorities().add(priority, 0, 0)
