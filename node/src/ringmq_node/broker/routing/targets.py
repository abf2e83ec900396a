"""What one queue of a routed session still has to answer, in order. Pure.

The queue gets its part of each batch in the order of the session, over one stream after the other:
when a stream breaks, everything that it has not answered goes out again, in the old order and
under the old sequences. The queue's master tells what it has already (`queue.gaps`).

Invariants (`check`): a batch is here as long as one of its sequences is unanswered; those that the
present stream hasn't been given are in the order in which they came.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence

from ringmq_base.ranges import Range, RangeSet
from ringmq_base.values import value


@value
class SubBatch:
    """A queue's part of a batch. `properties` as in a batch, with exchange and routing key in them.
    `message_id`: 16 bytes if other queues get the very same messages, else none."""

    first: int
    bodies: Sequence[bytes]
    properties: Sequence[bytes]
    size_bytes: int
    transient: bool = False
    ttl_ms: int | None = None
    message_id: bytes = b""
    priority: int = 0

    @property
    def last(self) -> int:
        return self.first + len(self.bodies) - 1


class TargetBatches:
    """See the module. The sequences of batches that are here don't overlap."""

    def __init__(self) -> None:
        # By first sequence, in the order in which they came.
        self._batches: dict[int, SubBatch] = {}
        # Their first sequences, rising.
        self._firsts: list[int] = []
        self._open = RangeSet()
        # Those of them that the present stream hasn't been given, in the same order.
        self._unsent: dict[int, SubBatch] = {}

    @property
    def is_idle(self) -> bool:
        """Whether everything is answered."""
        return not self._batches

    @property
    def has_sent(self) -> bool:
        """Whether the present stream has something to answer."""
        return len(self._batches) > len(self._unsent)

    def add(self, batch: SubBatch) -> None:
        self._batches[batch.first] = batch
        insort(self._firsts, batch.first)
        self._open.add(batch.first, batch.last)
        self._unsent[batch.first] = batch

    def next(self) -> SubBatch | None:
        """The next one for the present stream."""
        first = next(iter(self._unsent), None)
        return None if first is None else self._unsent.pop(first)

    def answered(self, sequences: Iterable[Range]) -> None:
        """The queue has confirmed these, or refused them for good."""
        for first, last in sequences:
            self._open.remove(first, last)
            low = max(bisect_right(self._firsts, first) - 1, 0)
            high = bisect_left(self._firsts, last + 1)
            for at in self._firsts[low:high]:
                batch = self._batches[at]
                if not self._open.bounds(batch.first, batch.last)[0]:
                    del self._batches[at]
                    self._unsent.pop(at, None)
                    del self._firsts[bisect_left(self._firsts, at)]

    def stream_ended(self) -> None:
        self._unsent = self._batches.copy()

    def take_all(self) -> list[Range]:
        """Gives up; returns the sequences that are unanswered."""
        left = self._open.ranges()
        self._batches.clear()
        self._firsts.clear()
        self._open.clear()
        self._unsent.clear()
        return left

    def check(self) -> None:
        assert self._firsts == sorted(self._batches)
        for first, batch in self._batches.items():
            assert first == batch.first
            assert self._open.count_in(batch.first, batch.last)
        covered = RangeSet((batch.first, batch.last) for batch in self._batches.values())
        assert not self._open.without(covered)
        assert [*self._unsent] == [first for first in self._batches if first in self._unsent]
