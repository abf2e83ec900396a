"""How long consumers have had their messages, for queues with a consumer time-out. Pure.

Time comes in with `tick`, and what is given between two ticks counts from the second one. So a
consumer is never overdue too early, and late by two ticks at most; and a consumer has no more
parts than there are ticks in a time-out. (Times of single messages would cost an entry for each
delivery.)

Invariants (`check`): no part is empty; those of a consumer are in order of time, and disjoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from ringmq_base.ranges import Range, RangeSet


class Holding:
    """By number of the consumer."""

    def __init__(self) -> None:
        # Since the last tick.
        self._new: dict[int, RangeSet] = {}
        # (the tick after which they count, what is left of them), the oldest first.
        self._parts: dict[int, deque[tuple[int, RangeSet]]] = {}

    def given(self, consumer: int, ranges: Sequence[Range]) -> None:
        self._new.setdefault(consumer, RangeSet()).update(ranges)

    def settled(self, consumer: int, ranges: Sequence[Range]) -> None:
        new = self._new.get(consumer)
        if new is not None:
            new.subtract(ranges)
            if not new:
                del self._new[consumer]
        parts = self._parts.get(consumer)
        if parts is not None:
            for _, part in parts:
                part.subtract(ranges)
            left = deque(each for each in parts if each[1])
            if left:
                self._parts[consumer] = left
            else:
                del self._parts[consumer]

    def gone(self, consumer: int) -> None:
        self._new.pop(consumer, None)
        self._parts.pop(consumer, None)

    def tick(self, now_ms: int, timeout_ms: int) -> list[int]:
        """The consumers that have had a message for `timeout_ms` or longer."""
        for consumer, ranges in self._new.items():
            self._parts.setdefault(consumer, deque()).append((now_ms, ranges))
        self._new.clear()
        return [each for each, parts in self._parts.items() if parts[0][0] + timeout_ms <= now_ms]

    def of(self, consumer: int) -> RangeSet:
        """All that it has; for checks."""
        found = RangeSet(self._new.get(consumer, RangeSet()))
        for _, part in self._parts.get(consumer, ()):
            found.update(part.ranges())
        return found

    def check(self) -> None:
        assert all(self._new.values())
        for consumer, parts in self._parts.items():
            assert parts
            assert all(part for _, part in parts)
            assert all(a <= b for (a, _), (b, _) in pairwise(parts))
            new = self._new.get(consumer, RangeSet())
            assert len(self.of(consumer)) == len(new) + sum(len(part) for _, part in parts)
