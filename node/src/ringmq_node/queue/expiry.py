"""Which ready messages have expired. Pure: the time comes in with each call.

When a message expires is decided once, when it is published: its master adds the shorter one of the
queue's and the message's own time to live to its clock, and the publish op says the sum
(`deadline`, `ops.Outline.expires_at_ms`). So

* every later master knows it, and a longer or shorter time to live that a policy sets counts for
  messages that are published from then on, never for those that are there;
* a master whose clock is ahead of the one before lets messages expire earlier, by the difference.

Not only the head of the queue expires, as in RabbitMQ, where a message with a short time to live
may keep its place and its memory behind one with a long time: here, deadlines are kept in a heap,
and with each the ranges of positions that have it. Deadlines of one time to live are rounded up to
1/1024 of it, so a queue with any number of messages has at most some 1024 of them, and messages
that came in together leave together. Nothing looks at every message.

A message with a consumer doesn't expire. It is looked at again when it is back (`watch`). A time to
live of 0 means `AT_ONCE`: such a message expires when it is visible and no consumer has taken it.

Invariants (`check`): the heap has each deadline once; ranges of two deadlines are disjoint; every
ready message with a deadline is in.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue.marks import Marks
from ringmq_node.queue.ops import AT_ONCE

# Of one time to live, so many deadlines are told apart.
_STEPS_SHIFT = 10
# Ranges that `due` gives out at a time: each takes some 10 us to remove.
PIECE_RANGES_MAX = 1000
# Ranges are dropped here when their messages expire, not when they are acknowledged. Past so many
# times those that the state has marks for, all are made anew.
_GARBAGE_MAX = 4
_GARBAGE_MIN = 1000


def deadline(now_ms: int, queue_ttl_ms: int | None, message_ttl_ms: int | None) -> int | None:
    """When a message that is published now expires: milliseconds since 1970, `AT_ONCE`, or None."""
    if queue_ttl_ms is None:
        ttl_ms = message_ttl_ms
    elif message_ttl_ms is None:
        ttl_ms = queue_ttl_ms
    else:
        ttl_ms = min(queue_ttl_ms, message_ttl_ms)
    if ttl_ms is None:
        return None
    if not ttl_ms:
        return AT_ONCE
    step = max(1, ttl_ms >> _STEPS_SHIFT)
    return -(-(now_ms + ttl_ms) // step) * step


class Expiry:
    """Of one mastership. Begins with all messages that `marks` has deadlines for, which are those
    of the state, and change with it."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._by_deadline: dict[int, RangeSet] = {}
        self._heap: list[int] = []
        self._ranges = 0
        # Messages that expire unless they are delivered at once.
        self.at_once = RangeSet()
        # The earliest deadline, maybe of messages that are gone; None: no message has one.
        self.next_ms: int | None = None
        self._add_all()

    def _add_all(self) -> None:
        for first, last, at_ms in self._marks:
            self.add(first, last, at_ms)

    def add(self, first: int, last: int, at_ms: int) -> None:
        """These messages are ready, and expire then."""
        if at_ms == AT_ONCE:
            self.at_once.add(first, last)
            return
        ranges = self._by_deadline.get(at_ms)
        if ranges is None:
            ranges = self._by_deadline[at_ms] = RangeSet()
            heapq.heappush(self._heap, at_ms)
            self.next_ms = self._heap[0]
        self._ranges -= ranges.range_count
        ranges.add(first, last)
        self._ranges += ranges.range_count
        if self._ranges > _GARBAGE_MAX * len(self._marks) + _GARBAGE_MIN:
            self._clear()
            self._add_all()

    def _clear(self) -> None:
        self._by_deadline.clear()
        self._heap.clear()
        self.at_once.clear()
        self._ranges = 0
        self.next_ms = None

    def watch(self, ranges: Iterable[Range]) -> None:
        """These live messages are ready again."""
        if self._marks:
            for first, last in ranges:
                for part in self._marks.parts(first, last):
                    self.add(*part)

    def is_due(self, now_ms: int) -> bool:
        """Whether messages may have expired by now."""
        return self.next_ms is not None and self.next_ms <= now_ms

    def due(self, now_ms: int) -> list[Range]:
        """Messages that have expired unless they are gone or with a consumer, in order; some of
        them if there are many: then `is_due` still holds."""
        found = RangeSet()
        while self._heap and self._heap[0] <= now_ms and found.range_count < PIECE_RANGES_MAX:
            ranges = self._by_deadline[self._heap[0]]
            part = ranges.take_first(PIECE_RANGES_MAX - found.range_count)
            self._ranges -= len(part)
            found.update(part)
            if not ranges:
                del self._by_deadline[heapq.heappop(self._heap)]
        self.next_ms = self._heap[0] if self._heap else None
        return found.ranges()

    def take_at_once(self, below: int) -> list[Range]:
        """The messages below this position that expire unless they are delivered at once."""
        found = self.at_once.intersection(0, below - 1) if below else []
        self.at_once.subtract(found)
        return found

    def check(self, ready: RangeSet) -> None:
        assert sorted(self._by_deadline) == sorted(self._heap)
        assert self.next_ms == min(self._heap, default=None)
        assert self._ranges == sum(each.range_count for each in self._by_deadline.values())
        seen = self.at_once.copy()
        for ranges in self._by_deadline.values():
            assert ranges
            for first, last in ranges:
                assert not seen.intersection(first, last), "a message has two deadlines"
                seen.add(first, last)
        for first, last, at_ms in self._marks:
            watched = self.at_once if at_ms == AT_ONCE else self._by_deadline.get(at_ms, RangeSet())
            for part in ready.intersection(first, last):
                assert watched.contains_all(*part), (part, at_ms)
