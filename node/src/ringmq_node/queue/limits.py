"""The length of a queue: which messages go, or are refused, so that it isn't exceeded. Pure.

It counts ready messages, and the bytes of their bodies; a message with a consumer counts no more,
and counts again when it is back. What happens beyond the limit is the rule `overflow`:

* *drop-head*: the messages of the lowest priority go first, and of these the oldest. Of a batch
  that is larger than the limit the newest are left. They go after consumers have had their turn,
  and a hidden message doesn't count yet (`confirms`): else a publisher with a large window would
  push out what waiting consumers have room for.
* *reject-publish*: a publish is refused as soon as the ready messages, the hidden ones too, are as
  many as may be. Of a batch the first messages are taken, as far as there is room. What is
  requeued always has its place.

The limit is exact after each event, not in between, and holds after a failover, too: nothing but
the ready messages decides it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from ringmq_base.ranges import Range
from ringmq_base.values import value
from ringmq_node.model.rules import Overflow, QueueRules
from ringmq_node.queue.run import Messages


@value
class LengthLimits:
    """None: no limit."""

    messages_max: int | None = None
    bytes_max: int | None = None
    rejects: bool = False

    @property
    def drops(self) -> bool:
        return not self.rejects and (self.messages_max is not None or self.bytes_max is not None)

    def fitting(self, messages: int, size_bytes: int, bodies: Sequence[bytes]) -> int:
        """How many of these bodies, from the first on, the queue takes beside its ready ones."""
        fits = len(bodies)
        if not self.rejects:
            return fits
        if self.messages_max is not None:
            fits = max(0, min(fits, self.messages_max - messages))
        if self.bytes_max is not None and fits:
            ends = [*accumulate(map(len, bodies[:fits]))]
            fits = bisect_right(ends, self.bytes_max - size_bytes)
        return fits


NO_LIMITS = LengthLimits()


def limits_of(rules: QueueRules) -> LengthLimits:
    if rules.max_length is None and rules.max_length_bytes is None:
        return NO_LIMITS
    rejects = rules.overflow in (Overflow.REJECT_PUBLISH, Overflow.REJECT_PUBLISH_DLX)
    return LengthLimits(rules.max_length, rules.max_length_bytes, rejects)


def first_ones(
    parts: Iterable[Range], messages: int, size_bytes: int, bodies: Messages
) -> list[Range]:
    """The fewest messages of `parts`, in their order, that are at least `messages` and have at
    least `size_bytes` of bodies; all of them if they aren't that many."""
    taken: list[Range] = []
    for first, last in parts:
        if messages <= 0 and size_bytes <= 0:
            break
        stop = max(first - 1, min(last, first + messages - 1))
        if size_bytes > 0:
            stop = max(stop, _reaching(first, last, size_bytes, bodies))
        taken.append((first, stop))
        messages -= stop - first + 1
        size_bytes -= bodies.bytes_in(first, stop)
    return taken


def _reaching(first: int, last: int, size_bytes: int, bodies: Messages) -> int:
    """The first position up to which there are so many bytes; `last` if there are fewer."""
    low, high = first, last
    while low < high:
        middle = (low + high) // 2
        if bodies.bytes_in(first, middle) >= size_bytes:
            high = middle
        else:
            low = middle + 1
    return low
