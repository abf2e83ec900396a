"""The oracle: what was published, confirmed and consumed of one queue, and what that breaks.

Messages are known by their index, 0 and up in the order of publishing. The oracle
in one sentence: every confirmed message is delivered at least once, in order, from
one position; a repeat says `redelivered`.

* *lost*: confirmed, and never delivered;
* *duplicated*: deliveries of a message that was seen before, from another position
  (it was enqueued twice), or from the same one without the flag;
* *redelivered*: deliveries of a message that was seen before, from the same
  position and flagged, which is allowed;
* *reordered*: first deliveries after the first delivery of a later message;
* *unexpected*: messages that nobody published, or whose body isn't what it was.

Costs a few calls per batch as long as deliveries are new and in order; only
batches with something else in them are looked at message by message.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ringmq_base.ranges import RangeSet

_UNSEEN = -1


class Tally:
    """Single-threaded. `published` is how many have been handed to the client so far."""

    def __init__(self) -> None:
        self.published = 0
        self.confirmed = RangeSet()
        self.delivered = RangeSet()
        self.duplicated = 0
        self.redelivered = 0
        self.reordered = 0
        self.unexpected = 0
        self._positions = array("q")
        self._newest = -1

    def publish(self, count: int) -> int:
        """`count` more are handed over; returns the index of the first."""
        first = self.published
        self.published += count
        return first

    def confirm(self, first: int, last: int) -> None:
        assert last < self.published, (last, self.published)
        self.confirmed.add(first, last)

    def deliver(self, indexes: Sequence[int], first_position: int, *, redelivered: bool) -> None:
        """Messages at consecutive positions, all flagged or none."""
        if not indexes:
            return
        first, last = indexes[0], indexes[-1]
        # A message that was delivered before it was counted would be our own bug.
        in_range = 0 <= first <= last < self.published
        in_row = last - first + 1 == len(indexes) and (
            isinstance(indexes, range) or tuple(indexes) == tuple(range(first, last + 1))
        )
        if in_range and in_row and not self.delivered.intersection(first, last):
            self._deliver_new(first, last, first_position)
            return
        for position, index in enumerate(indexes, first_position):
            self._deliver_one(index, position, redelivered)

    def _deliver_new(self, first: int, last: int, first_position: int) -> None:
        self._grow(last)
        count = last - first + 1
        self._positions[first : last + 1] = array(
            "q", range(first_position, first_position + count)
        )
        self.reordered += max(0, min(last, self._newest) - first + 1)
        self._newest = max(self._newest, last)
        self.delivered.add(first, last)

    def _deliver_one(self, index: int, position: int, redelivered: bool) -> None:
        if not 0 <= index < self.published:
            self.unexpected += 1
            return
        self._grow(index)
        known = self._positions[index]
        if known == _UNSEEN:
            self._deliver_new(index, index, position)
        elif known == position and redelivered:
            self.redelivered += 1
        else:
            self.duplicated += 1

    def _grow(self, last: int) -> None:
        missing = last + 1 - len(self._positions)
        if missing > 0:
            # Twice as much as needed: once per doubling, not once per batch.
            self._positions.extend(array("q", [_UNSEEN]) * (missing + len(self._positions)))

    @property
    def lost(self) -> int:
        left = self.confirmed.copy()
        left.subtract(self.delivered)
        return len(left)

    @property
    def complete(self) -> bool:
        """Whether all that is confirmed has been delivered."""
        return self.lost == 0

    @property
    def broken(self) -> bool:
        """Whether something happened that never may, however many nodes die."""
        return bool(self.lost or self.duplicated or self.reordered or self.unexpected)
