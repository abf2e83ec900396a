"""The oracle: the messages published to, confirmed by and consumed from one queue, compared.

A message is known by its index: 0 and up, in the order of publishing. The oracle in one
sentence: every confirmed message is delivered at least once, in order, from one position;
a repeat says `redelivered`.

* *lost*: confirmed, and never delivered.
* *duplicated*: a message delivered again from another position (it was enqueued twice),
  or from the same position without the flag.
* *redelivered*: a message delivered again from the same position, with the flag. This is
  allowed.
* *reordered*: a first delivery after the first delivery of a later message.
* *unexpected*: a message that was never published, or whose body is damaged.

Batches of new messages in order cost a few calls each. Only other batches are looked at
message by message.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from ringmq_base.ranges import RangeSet

_UNSEEN = -1


@dataclass(frozen=True, slots=True)
class TallyCounts:
    """The verdict in numbers. Only `redelivered` may be more than 0 in a sound broker.

    `lost` is final only when nothing more can be delivered.
    """

    lost: int
    duplicated: int
    reordered: int
    redelivered: int
    unexpected: int

    @property
    def broken(self) -> bool:
        """Whether a guarantee doesn't hold. No number of dead nodes excuses these."""
        return bool(self.lost or self.duplicated or self.reordered or self.unexpected)

    def __add__(self, other: TallyCounts) -> TallyCounts:
        return TallyCounts(
            self.lost + other.lost,
            self.duplicated + other.duplicated,
            self.reordered + other.reordered,
            self.redelivered + other.redelivered,
            self.unexpected + other.unexpected,
        )


NOTHING_COUNTED = TallyCounts(0, 0, 0, 0, 0)


class Tally:
    """Single-threaded. `published` is the number of messages handed to the client so far."""

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
        """Notes the hand-over of `count` more messages; returns the index of the first."""
        first = self.published
        self.published += count
        return first

    def confirm(self, first: int, last: int) -> None:
        assert last < self.published, (last, self.published)
        self.confirmed.add(first, last)

    def deliver(self, indexes: Sequence[int], first_position: int, *, redelivered: bool) -> None:
        """Notes the delivery of messages at consecutive positions, all flagged or none."""
        if not indexes:
            return
        first, last = indexes[0], indexes[-1]
        # `publish` counts a message before its hand-over. So an index past `published` was
        # never published: `_deliver_one` counts it as unexpected.
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
            # Doubled, so that a run of n batches grows the array log n times.
            self._positions.extend(array("q", [_UNSEEN]) * (missing + len(self._positions)))

    @property
    def lost(self) -> int:
        left = self.confirmed.copy()
        left.subtract(self.delivered)
        return len(left)

    @property
    def complete(self) -> bool:
        """Whether every confirmed message has been delivered."""
        return self.lost == 0

    @property
    def broken(self) -> bool:
        """Whether a guarantee doesn't hold, by all that was tallied so far."""
        return self.counts().broken

    def counts(self) -> TallyCounts:
        return TallyCounts(
            self.lost, self.duplicated, self.reordered, self.redelivered, self.unexpected
        )
