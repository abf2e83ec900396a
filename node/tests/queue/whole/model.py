"""A queue with all its features, plainly: dicts, and what has to happen after each event.

`messages` are those in the queue, each of them ready or with a consumer. What leaves for a reason
is a letter, if the queue has a dead-letter exchange. What has left since the last moment in which
all was safe (`gone`) may come back with another master: nobody was told that it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ringmq_base.window import Share
from ringmq_node.model.rules import NO_RULES, Overflow, QueueRules
from ringmq_node.queue.ops import AT_ONCE


@dataclass
class PlainMessage:
    body: bytes
    priority: int
    expires_at_ms: int | None
    transient: bool
    count: int = 0
    redelivered: bool = False


@dataclass
class PlainConsumer:
    messages_max: int
    bytes_max: int
    priority: int
    exclusive: bool
    pulls: bool = False
    # Of its window, if it shares one.
    share: Share | None = None
    has: dict[int, PlainMessage] = field(default_factory=dict)
    # The first look at the clock after the delivery; None: not yet.
    since: dict[int, int | None] = field(default_factory=dict)

    def takes(self, message: PlainMessage) -> bool:
        """Unasked."""
        return not self.pulls and self.has_room(message)

    def has_room(self, message: PlainMessage) -> bool:
        share = self.share
        fits = share is None or (
            len(self.has) < share.messages and self.size_with(message) <= share.size_bytes
        )
        return fits and self.has_own_room(message)

    def has_own_room(self, message: PlainMessage) -> bool:
        """Whatever its share is."""
        fits = not self.has or self.size_with(message) <= self.bytes_max
        return fits and len(self.has) < self.messages_max

    def size_with(self, message: PlainMessage) -> int:
        return sum(len(each.body) for each in self.has.values()) + len(message.body)


class PlainQueue:
    def __init__(self) -> None:
        self.rules = NO_RULES
        self.now_ms = 1000
        self.messages: dict[int, PlainMessage] = {}
        self.ready: set[int] = set()
        # Not confirmed yet.
        self.hidden: set[int] = set()
        self.consumers: dict[int, PlainConsumer] = {}
        # The letters that the target is to get, and why; by body.
        self.letters: dict[bytes, str] = {}
        # And with which others they left: of these the ones in front go first.
        self.left_with: dict[bytes, int] = {}
        self.leavings = 0
        # Since the last safe moment: what has left, what has come, and the counts of then.
        self.gone: dict[int, PlainMessage] = {}
        self.fresh: set[int] = set()
        self.safe_counts: dict[int, int] = {}

    def key(self, position: int) -> tuple[int, int]:
        return -self.messages[position].priority, position

    def unasked(self) -> dict[int, PlainConsumer]:
        """The consumers that don't pull."""
        return {number: each for number, each in self.consumers.items() if not each.pulls}

    def line(self) -> list[int]:
        """The visible ready messages, the next one first."""
        return sorted(self.ready - self.hidden, key=self.key)

    # --- what leaves ---

    def leave(
        self, positions: Iterable[int], reason: str | None, *, in_parts: bool = False
    ) -> None:
        """`reason`: None if no letter is wanted. `in_parts`: not all at the same moment."""
        self.leavings += 1
        for position in positions:
            self.leavings += in_parts
            message = self.gone[position] = self.messages.pop(position)
            self.left_with[message.body] = self.leavings
            self.ready.discard(position)
            self.hidden.discard(position)
            if reason is not None and self.rules.dead_letter_exchange is not None:
                self.letters[message.body] = reason

    def back(self, positions: Iterable[int]) -> None:
        """A consumer has let go of these."""
        limit = self.rules.delivery_limit
        for position in positions:
            message = self.messages[position]
            if limit is not None and message.count >= limit:
                self.leave([position], "delivery_limit")
            else:
                message.count += 1
                message.redelivered = True
                self.ready.add(position)

    # --- the rules ---

    def expired(self) -> set[int]:
        return {
            at
            for at in self.ready
            if self.messages[at].expires_at_ms not in (None, AT_ONCE)
            and (self.messages[at].expires_at_ms or 0) <= self.now_ms
        }

    def at_once(self) -> set[int]:
        return {at for at in self.line() if self.messages[at].expires_at_ms == AT_ONCE}

    def is_over(self, positions: Iterable[int]) -> bool:
        bodies = [self.messages[at].body for at in positions]
        length, size = self.rules.max_length, self.rules.max_length_bytes
        return (length is not None and len(bodies) > length) or (
            size is not None and sum(map(len, bodies)) > size
        )

    @property
    def rejects(self) -> bool:
        return self.rules.overflow in (Overflow.REJECT_PUBLISH, Overflow.REJECT_PUBLISH_DLX)

    def fitting(self, bodies: list[bytes]) -> int:
        """How many of these a full queue takes."""
        if not self.rejects or not bodies:
            return len(bodies)
        length, size = self.rules.max_length, self.rules.max_length_bytes
        count, total = len(self.ready), sum(len(self.messages[at].body) for at in self.ready)
        for fits, body in enumerate(bodies):
            count, total = count + 1, total + len(body)
            if (length is not None and count > length) or (size is not None and total > size):
                return fits
        return len(bodies)

    def all_safe(self) -> None:
        self.hidden.clear()
        self.gone.clear()
        self.fresh.clear()
        self.safe_counts = {at: message.count for at, message in self.messages.items()}

    def judge_letters(self, arrived: Iterable[tuple[int, bytes]]) -> None:
        """Those that left together have come as they were published, whatever their priority."""
        last: dict[int, int] = {}
        for position, body in arrived:
            leaving = self.left_with[body]
            assert last.get(leaving, -1) < position, "letters are out of order"
            last[leaving] = position

    def overdue(self) -> list[int]:
        """It is looked at the clock: the consumers that have had a message for too long."""
        timeout = self.rules.consumer_timeout_ms
        found = []
        for number, consumer in self.consumers.items() if timeout is not None else ():
            assert timeout is not None
            for at, since in consumer.since.items():
                consumer.since[at] = self.now_ms if since is None else since
            if any((since or 0) + timeout <= self.now_ms for since in consumer.since.values()):
                found.append(number)
        return found

    def follow(self, rules: QueueRules) -> None:
        if self.rules.consumer_timeout_ms is None:
            for consumer in self.consumers.values():
                consumer.since = dict.fromkeys(consumer.has)
        self.rules = rules
