"""Virtual time: a heap of calls, in order of their time and then of their making."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """Runs nothing by itself; the same calls in the same order give the same run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls_made = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []

    def at(self, when: float, call: Callable[..., object], *args: Any) -> None:
        self.calls_made += 1
        heapq.heappush(self._heap, (max(when, self.now), self.calls_made, call, args))

    def after(self, delay_s: float, call: Callable[..., object], *args: Any) -> None:
        self.at(self.now + delay_s, call, *args)

    def run_until(self, when: float) -> None:
        """Makes all calls before `when`, and those for that moment that were planned before this.
        Then it is that moment."""
        reached, heap, pop = [False], self._heap, heapq.heappop
        self.at(when, reached.clear)
        while reached:
            self.now, _, call, args = pop(heap)
            call(*args)
