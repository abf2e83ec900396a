"""Whose turn it is: the consumers that may be given a message, highest priority first. Pure.

A consumer is *in line* while it may take another message; equals take turns. One whose bytes don't
suffice for the message in front is *parked* until a smaller one comes to the front (`unpark`), or
it enters again, as it has settled something. All others are in neither, so what a delivery costs
doesn't depend on how many consumers there are: an earlier version asked each of them, and 10 000
idle ones held the loop for seconds.

Invariants (`check`): nobody is in two places; there is no empty line; the lines' priorities and
the parked rooms are sorted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict


class Turns:
    """By number of the consumer."""

    def __init__(self) -> None:
        # OrderedDicts: of a dict whose early keys were deleted, the first one is slow to find.
        self._lines: dict[int, OrderedDict[int, None]] = {}
        # Of the lines, rising.
        self._priorities: list[int] = []
        self._priority_of: dict[int, int] = {}
        # (room in bytes, consumer), rising; and the same with its priority, by consumer.
        self._parked: list[tuple[int, int]] = []
        self._parked_by_id: dict[int, tuple[int, int]] = {}

    def __contains__(self, consumer: int) -> bool:
        """Whether it is in line."""
        return consumer in self._priority_of

    @property
    def has_parked(self) -> bool:
        return bool(self._parked)

    def enter(self, consumer: int, priority: int) -> None:
        """It may take a message. If it is in line already it keeps its place."""
        if consumer in self._priority_of:
            return
        self.leave(consumer)
        line = self._lines.get(priority)
        if line is None:
            line = self._lines[priority] = OrderedDict()
            insort(self._priorities, priority)
        line[consumer] = None
        self._priority_of[consumer] = priority

    def leave(self, consumer: int) -> None:
        """It may take nothing, or is gone."""
        priority = self._priority_of.pop(consumer, None)
        if priority is not None:
            line = self._lines[priority]
            del line[consumer]
            if not line:
                del self._lines[priority]
                del self._priorities[bisect_left(self._priorities, priority)]
            return
        parked = self._parked_by_id.pop(consumer, None)
        if parked is not None:
            del self._parked[bisect_left(self._parked, (parked[0], consumer))]

    def first(self) -> int | None:
        """Who is next; it stays where it is."""
        return next(iter(self._lines[self._priorities[-1]])) if self._priorities else None

    def passed(self, consumer: int) -> None:
        """It has had its turn: to the end of its line."""
        self._lines[self._priority_of[consumer]].move_to_end(consumer)

    def park(self, consumer: int, room_bytes: int) -> None:
        """It is in line, and the message in front is larger than its room."""
        priority = self._priority_of[consumer]
        self.leave(consumer)
        insort(self._parked, (room_bytes, consumer))
        self._parked_by_id[consumer] = (room_bytes, priority)

    def unpark(self, size_bytes: int) -> None:
        """The message in front has this size now: those that have room for it are in line again."""
        while self._parked and self._parked[-1][0] >= size_bytes:
            _, consumer = self._parked.pop()
            _, priority = self._parked_by_id.pop(consumer)
            self.enter(consumer, priority)

    def check(self) -> None:
        assert self._priorities == sorted(self._lines)
        assert all(self._lines.values())
        members = [(each, p) for p, line in self._lines.items() for each in line]
        assert dict(members) == self._priority_of
        assert len(members) == len(self._priority_of)
        assert self._parked == sorted((room, c) for c, (room, _) in self._parked_by_id.items())
        assert not self._priority_of.keys() & self._parked_by_id.keys()
