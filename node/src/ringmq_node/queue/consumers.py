"""The consumers of a queue: the messages of each, its room for more, and the turns among them.

A delivered message is *outstanding* with one consumer until that consumer acknowledges,
discards or requeues it, or goes. A consumer's prefetch bounds its outstanding messages, by
number and by bytes of bodies; consumers with room are served in turns.

Only the master knows which messages are outstanding, and that knowledge ends with it: its
successor counts every live message as delivered before
(docs/decisions/0004-redelivered-after-take-over.md).

Invariants (`check`):
* no message is outstanding with two consumers, nor is an invisible one outstanding;
* a consumer has no more outstanding than its prefetch, except for one message that is larger
  than its bytes and alone, or for messages whose bodies were missing for a while;
* `unacknowledged_bytes` is the sum over the consumers; each of them has one place in the turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue.run import Messages, Run


class NotOutstandingError(ValueError):
    """A consumer settles a position that it was never given, or has settled already."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__(f"positions {first} to {last} are not outstanding on this stream")
        self.first = first
        self.last = last


@dataclass(slots=True)
class Subscription:
    """One consumer: its prefetch and the messages that it has not settled."""

    id: int
    prefetch_messages: int
    prefetch_bytes: int
    outstanding: RangeSet = field(default_factory=RangeSet)
    outstanding_bytes: int = 0
    cancelled: bool = False
    # Some outstanding bodies were missing here for a while, and didn't count: meanwhile the
    # consumer may have been given more than its bytes.
    had_lost: bool = False

    @property
    def room_messages(self) -> int:
        return 0 if self.cancelled else self.prefetch_messages - len(self.outstanding)

    @property
    def room_bytes(self) -> int | None:
        """None: a message of any size, because it would be the only one."""
        return self.prefetch_bytes - self.outstanding_bytes if self.outstanding else None


class Subscriptions:
    """Of one mastership, by number of the consumer. Iterates over them as they came."""

    def __init__(self, messages: Messages) -> None:
        self.unacknowledged_bytes = 0
        self._by_id: dict[int, Subscription] = {}
        self._turn: deque[int] = deque()
        self._messages = messages

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, consumer: int) -> bool:
        return consumer in self._by_id

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._by_id.values())

    @property
    def unacknowledged(self) -> int:
        return sum(len(subscription.outstanding) for subscription in self)

    def open(self, consumer: int, prefetch_messages: int, prefetch_bytes: int) -> None:
        assert consumer not in self._by_id, consumer
        self._by_id[consumer] = Subscription(consumer, prefetch_messages, prefetch_bytes)
        self._turn.append(consumer)

    def cancel(self, consumer: int) -> None:
        """It is given nothing more; its outstanding messages stay with it."""
        self._by_id[consumer].cancelled = True

    def close(self, consumer: int) -> list[Range]:
        """It is gone; returns the messages that it had."""
        subscription = self._by_id.pop(consumer)
        self._turn.remove(consumer)
        self.unacknowledged_bytes -= subscription.outstanding_bytes
        return subscription.outstanding.ranges()

    def next_turn(self) -> Subscription:
        """The consumer that is served next; it goes to the end of the line."""
        # Even if it turns out to have no room: else those behind it would never be asked.
        consumer = self._turn[0]
        self._turn.rotate(-1)
        return self._by_id[consumer]

    def deliver(self, subscription: Subscription, runs: Sequence[Run]) -> None:
        """These messages are outstanding with this consumer from now on."""
        for run in runs:
            size = run.block.body_bytes()
            subscription.outstanding.add(*run.positions)
            subscription.outstanding_bytes += size
            self.unacknowledged_bytes += size

    def settle(self, consumer: int, ranges: Sequence[Range]) -> None:
        """It has these no more. Raises `NotOutstandingError`, and then nothing has changed,
        unless it has all of them, each once."""
        # All is looked at before anything is changed: half of a refused ack must not count.
        subscription = self._by_id.get(consumer)
        if subscription is None:
            if ranges:
                raise NotOutstandingError(*ranges[0])
            return
        contains_all = subscription.outstanding.contains_all
        for first, last in ranges:
            if not contains_all(first, last):
                raise NotOutstandingError(first, last)
        for before, behind in pairwise(sorted(ranges)):
            if behind[0] <= before[1]:
                raise NotOutstandingError(*behind)
        # Of a body that went missing a moment ago this counts nothing, though it was counted when
        # it was delivered: `recount` is about to come and put that right.
        size = sum(self._messages.bytes_in(first, last) for first, last in ranges)
        # At once: each one taken out by itself moves all behind it, 64 ms for an ack of thousands.
        subscription.outstanding.subtract(ranges)
        subscription.outstanding_bytes -= size
        self.unacknowledged_bytes -= size

    # --- damage ---

    def recount(self) -> None:
        """More bodies are missing, and don't count any more."""
        self.unacknowledged_bytes = 0
        for subscription in self:
            before = subscription.outstanding_bytes
            subscription.outstanding_bytes = self._bytes_of(subscription.outstanding)
            subscription.had_lost |= subscription.outstanding_bytes < before
            self.unacknowledged_bytes += subscription.outstanding_bytes

    def filled(self, first: int, last: int) -> None:
        """The bodies of `first..last`, all of them missing until now, count again."""
        for subscription in self:
            for part in subscription.outstanding.intersection(first, last):
                size = self._messages.bytes_in(*part)
                subscription.outstanding_bytes += size
                self.unacknowledged_bytes += size

    def check(self, visible_below: int) -> None:
        """Costs a look at every outstanding message."""
        seen = RangeSet()
        for subscription in self:
            for first, last in subscription.outstanding:
                assert not seen.intersection(first, last), "a message is with two consumers"
                seen.add(first, last)
            count, size = len(subscription.outstanding), subscription.outstanding_bytes
            assert size == self._bytes_of(subscription.outstanding)
            assert count <= subscription.prefetch_messages
            assert count <= 1 or size <= subscription.prefetch_bytes or subscription.had_lost
            assert not count or subscription.outstanding.last < visible_below
        assert self.unacknowledged_bytes == sum(one.outstanding_bytes for one in self)
        assert sorted(self._turn) == sorted(self._by_id)

    def _bytes_of(self, ranges: RangeSet) -> int:
        return sum(self._messages.bytes_in(first, last) for first, last in ranges)
