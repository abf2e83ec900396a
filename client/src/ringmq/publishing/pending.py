"""Messages that have no sequence yet, in the order in which they were handed over."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Generic

from ringmq.publishing.tickets import H, P, Slice


class PendingMessages(Generic[H, P]):
    """A queue of slices that counts its messages and bytes."""

    __slots__ = ("_slices", "messages", "size_bytes")

    def __init__(self) -> None:
        self._slices: deque[Slice[H, P]] = deque()
        self.messages = 0
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._slices)

    def __iter__(self) -> Iterator[Slice[H, P]]:
        return iter(self._slices)

    @property
    def first(self) -> Slice[H, P]:
        return self._slices[0]

    def append(self, part: Slice[H, P]) -> None:
        self._slices.append(part)
        self.messages += part.stop - part.start
        self.size_bytes += part.size_bytes

    def put_back(self, parts: Sequence[Slice[H, P]]) -> None:
        """Before all others: these were taken first, and the order of submission stays."""
        self._slices.extendleft(reversed(parts))
        self.messages += sum(part.count for part in parts)
        self.size_bytes += sum(part.size_bytes for part in parts)

    def take(self, messages_max: int, bytes_max: int) -> tuple[list[Slice[H, P]], int]:
        """The first slices of equal attributes within the bounds, or one that goes alone, and their
        cost in bytes.

        The first message passes even if it is above `bytes_max`, which is only a quarter of the
        window: it would never be sent otherwise.
        """
        slices = self._slices
        attributes = slices[0].ticket.attributes
        taken: list[Slice[H, P]] = []
        count = size_bytes = 0
        while slices and count < messages_max:
            part = slices[0]
            if taken and (part.alone or taken[0].alone):
                break
            # Nearly always the same object: no comparison of fields for that.
            other = part.ticket.attributes
            if other is not attributes and other != attributes:
                break
            fits = min(part.stop - part.start, messages_max - count)
            sizes = part.sizes(part.start + fits)
            total = sum(sizes)
            if size_bytes + total > bytes_max:
                # The request is full with a part of this slice; only here sums are made one by one.
                fits = bisect_right(list(accumulate(sizes)), bytes_max - size_bytes)
                if fits == 0:
                    if taken:
                        break
                    fits = 1
                total = sum(sizes[:fits])
            count += fits
            size_bytes += total
            if fits == part.stop - part.start:
                taken.append(slices.popleft())
            else:
                head, slices[0] = part.split(fits)
                taken.append(head)
                break
        self.messages -= count
        self.size_bytes -= size_bytes
        return taken, size_bytes

    def take_late(self, now: float) -> list[Slice[H, P]]:
        """The slices of tickets whose deadline has passed."""
        late = [part for part in self._slices if part.ticket.deadline <= now]
        if late:
            self._slices = deque(part for part in self._slices if part.ticket.deadline > now)
            self.messages -= sum(part.count for part in late)
            self.size_bytes -= sum(part.size_bytes for part in late)
        return late

    def clear(self) -> None:
        self._slices.clear()
        self.messages = self.size_bytes = 0

    def check(self) -> None:
        assert self.messages == sum(part.count for part in self._slices)
        assert self.size_bytes == sum(sum(part.sizes(part.stop)) for part in self._slices)
        assert all(part.ticket.remaining > 0 for part in self._slices)
