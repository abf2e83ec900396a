"""Messages on their way back to their places: in a `Requeue`, or about to be. Pure.

They come back by an op, and are in place only when it is applied. If they were back at once:
1. The consumer processes a message, and closes before its ack is here.
2. The message goes to another consumer. Its `redelivered` flag is read from the replicated state,
   which only an op changes: the repeat would come without it.

One op is in hand at a time: a consumer may leave with so many ranges that the ops for all of them
would take the caller's loop for half a second. Those that have come back too often leave instead.

Invariants (`check`):
* whatever waits for an op is on its way back;
* something waits only while an op is in hand.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue import ops
from ringmq_node.queue.counts import DeliveryCounts
from ringmq_node.queue.departures import Departures
from ringmq_node.queue.effects import Effect, MulticastOp
from ringmq_node.queue.leaving import LeaveReason, Leaving
from ringmq_node.queue.ops import Requeue


class Requeues:
    """Of one mastership. `counts`: how often each message has come back."""

    def __init__(self, counts: DeliveryCounts, departures: Departures) -> None:
        # How often a message may come back; beyond that it leaves. None: for ever.
        self.delivery_limit: int | None = None
        # On their way back. Not to be changed.
        self.positions = RangeSet()
        self._counts = counts
        self._departures = departures
        # Those of them that are in no op yet, as another one is in hand.
        self._waiting = RangeSet()
        self.in_hand = False
        # Some of those that are on their way back needed, or need, more than one op.
        self.are_many = False

    def __len__(self) -> int:
        """Messages that are on their way back."""
        return len(self.positions)

    def add(self, ranges: RangeSet | Sequence[Range]) -> None:
        """Nobody has these any more."""
        self.positions.update(ranges)
        self._waiting.update(ranges)

    @property
    def is_due(self) -> bool:
        """Whether `next_op` has something to do."""
        return bool(self._waiting) and not self.in_hand

    def next_op(self) -> list[Effect]:
        """Brings some of them back; the last effect is the op, unless they all leave instead."""
        left: list[Effect] = []
        while self._waiting:
            ranges = self._waiting.take_first(ops.REQUEUED_RANGES_MAX)
            if self.delivery_limit is not None:
                ranges = self._drop_exhausted(ranges, self.delivery_limit)
                left += self._departures.next_ops()
                # Those that are left of one range may be many.
                self._waiting.update(ranges[ops.REQUEUED_RANGES_MAX :])
                del ranges[ops.REQUEUED_RANGES_MAX :]
            if ranges:
                self.in_hand = True
                self.are_many |= bool(self._waiting)
                return [*left, MulticastOp(Requeue(tuple(ranges), counted=True))]
        return left

    def _drop_exhausted(self, ranges: list[Range], limit: int) -> list[Range]:
        """Those of `ranges`, on their way back, that have not come back `limit` times before."""
        over = self._counts.at_least(limit, ranges)
        if not over:
            return ranges
        self._gone(over)
        self._departures.leave(Leaving(LeaveReason.DELIVERY_LIMIT, tuple(over)))
        return RangeSet(ranges).without(over).ranges()

    def applied(self, ranges: Sequence[Range]) -> None:
        """They are back."""
        self.in_hand = False
        self._gone(ranges)

    def _gone(self, ranges: Sequence[Range]) -> None:
        self.positions.subtract(ranges)
        self.are_many &= bool(self.positions)

    def check(self) -> None:
        assert self.in_hand or not self._waiting
        assert self.positions or not self.are_many
        assert not self._waiting.without(self.positions)
