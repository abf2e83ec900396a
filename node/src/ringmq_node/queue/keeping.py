"""Which ready messages a queue doesn't keep: expired ones, and those beyond its length. Pure.

Here `expiry` and `limits` meet the ready messages. The master asks before each delivery for those
that have expired, and after it for those that nobody has taken and that may not stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ringmq_base.ranges import Range, numbers_in
from ringmq_node.model.rules import QueueRules
from ringmq_node.queue.expiry import Expiry
from ringmq_node.queue.leaving import LeaveReason, Leaving
from ringmq_node.queue.limits import NO_LIMITS, limits_of
from ringmq_node.queue.marks import Marks
from ringmq_node.queue.ready import Ready


class Keeping:
    """Of one mastership."""

    def __init__(self, expiries: Marks, ready: Ready, now_ms: Callable[[], int]) -> None:
        """`expiries` are those of the state. `now_ms` is asked only while messages may expire."""
        self.expiry = Expiry(expiries)
        self.limits = NO_LIMITS
        # Messages that this master has let go of or refused, since it began.
        self.expired_total = 0
        self.dropped_total = 0
        self.rejected_total = 0
        self._ready = ready
        self._now_ms = now_ms

    def follow(self, rules: QueueRules) -> None:
        self.limits = limits_of(rules)

    @property
    def is_active(self) -> bool:
        """Whether there may be messages that the queue doesn't keep."""
        expiry = self.expiry
        return self.limits.drops or expiry.next_ms is not None or bool(expiry.at_once)

    @property
    def is_overdue(self) -> bool:
        """Whether ready messages may have expired that nobody has let go of yet."""
        return self.expiry.next_ms is not None and self.expiry.is_due(self._now_ms())

    def fitting(self, bodies: Sequence[bytes], start: int, count: int) -> int:
        """How many of these bodies of a publish the queue takes; the others are refused."""
        parts = bodies[start : start + count]
        return self.limits.fitting(len(self._ready.positions), self._ready.body_bytes, parts)

    def take_expired(self) -> list[Leaving]:
        """Takes messages that have expired; some of them, if there are many."""
        if not self.is_overdue:
            return []
        return self._expired(self.expiry.due(self._now_ms()))

    def take_excess(self, visible_below: int) -> list[Leaving]:
        """Takes visible messages that consumers had their turn for, and that may not stay."""
        leaving = self._expired(self.expiry.take_at_once(visible_below))
        if self.limits.drops and self._ready.has_visible(visible_below):
            excess = self._ready.take_excess(visible_below, self.limits)
            if excess:
                self.dropped_total += numbers_in(excess)
                leaving.append(Leaving(LeaveReason.MAX_LENGTH, tuple(excess)))
        return leaving

    def _expired(self, ranges: list[Range]) -> list[Leaving]:
        taken = self._ready.take_ranges(ranges)
        if not taken:
            return []
        self.expired_total += numbers_in(taken)
        return [Leaving(LeaveReason.EXPIRED, tuple(taken))]

    def check(self) -> None:
        self.expiry.check(self._ready.positions)
