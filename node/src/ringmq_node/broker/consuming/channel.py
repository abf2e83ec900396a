"""Subscriptions of one client that share a window: AMQP's channel, and its global QoS.

The window's core is `ringmq_base.window`, the same as of our client: whoever has the streams keeps
the window, as the masters of the queues are on several nodes, and none of them sees the others'
consumers (docs/decisions/0120-a-window-is-shared-by-levels.md). It is in force from the beginning,
with no limit, so that a limit that is set later holds for consumers that run. What acknowledges by
itself, or pulls, takes no part.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Protocol

from ringmq_base.ranges import Range
from ringmq_base.window import BYTES_MAX, MESSAGES_MAX, ChangeShare, SharedWindow
from ringmq_node.broker.consuming.feed import Subscriber
from ringmq_node.broker.consuming.subscription import QueueSubscription
from ringmq_node.model.reasons import bad_request
from ringmq_node.queue.consumers import ConsumerTerms
from ringmq_node.queue.run import Run

IDENTITY_BYTES = 16


class OpensSubscriptions(Protocol):
    """As `subscribing.Subscribing`."""

    def open(
        self, queue: str, subscriber: Subscriber, terms: ConsumerTerms, *, auto_ack: bool
    ) -> QueueSubscription: ...


class ConsumeChannel:
    """Used on the event loop's thread."""

    def __init__(
        self,
        opens: OpensSubscriptions,
        new_identity: Callable[[], bytes] = lambda: secrets.token_bytes(IDENTITY_BYTES),
    ) -> None:
        self._opens = opens
        self._new_identity = new_identity
        self._window = SharedWindow(0, 0)
        self._streams: dict[int, QueueSubscription] = {}
        self._numbers = count()
        self._subscriptions: list[QueueSubscription] = []

    def subscribe(
        self,
        queue: str,
        subscriber: Subscriber,
        terms: ConsumerTerms,
        *,
        auto_ack: bool = False,
    ) -> QueueSubscription:
        """Not open yet. The caller has checked that the client may use the queue."""
        shares = not (auto_ack or terms.pulls)
        if not terms.identity:
            terms = replace(terms, identity=self._new_identity())
        terms = replace(terms, shares_window=shares)
        subscription = self._opens.open(queue, subscriber, terms, auto_ack=auto_ack)
        if shares:
            subscription.place = _Place(self, subscription)
        self._subscriptions = [each for each in self._subscriptions if not each.is_over]
        self._subscriptions.append(subscription)
        return subscription

    def change_window(self, messages: int = 0, size_bytes: int = 0) -> None:
        """At most so much may be unsettled of all its consumers together, from now on; 0: any
        number. What is out above it stays out."""
        if not (0 <= messages <= MESSAGES_MAX and 0 <= size_bytes <= BYTES_MAX):
            raise bad_request(f"a window of {messages} messages", field="prefetch")
        self._carry_out(self._window.change(messages, size_bytes))

    @property
    def unsettled(self) -> tuple[int, int]:
        """Of all that share the window: messages, and bytes of bodies."""
        held = self._window.held
        return held.messages, held.size_bytes

    def close(self) -> None:
        """Of all its subscriptions."""
        for each in self._subscriptions:
            each.close()

    # --- of its places ---

    def _began(self, subscription: QueueSubscription) -> int:
        stream = next(self._numbers)
        self._streams[stream] = subscription
        self._carry_out(self._window.opened(stream))
        return stream

    def _ended(self, stream: int) -> None:
        del self._streams[stream]
        self._carry_out(self._window.ended(stream))

    def _carry_out(self, changes: Sequence[ChangeShare]) -> None:
        for change in changes:
            self._streams[change.stream].change_share(change.share)


class _Place:
    """What a subscription's streams, one after the other, tell the window."""

    def __init__(self, channel: ConsumeChannel, subscription: QueueSubscription) -> None:
        self._channel = channel
        self._window = channel._window
        self._subscription = subscription
        self._stream: int | None = None
        # Of the messages that are not settled, by position.
        self._sizes: dict[int, int] = {}

    def opened(self) -> None:
        assert self._stream is None
        self._stream = self._channel._began(self._subscription)

    def ended(self) -> None:
        if self._stream is not None:
            stream, self._stream = self._stream, None
            self._sizes.clear()
            self._channel._ended(stream)

    def delivered(self, runs: Sequence[Run]) -> None:
        if self._stream is None:
            return
        messages = size_bytes = 0
        for run in runs:
            sizes = [*map(len, run.block.bodies())]
            self._sizes.update(enumerate(sizes, run.first_position))
            messages += len(sizes)
            size_bytes += sum(sizes)
        self._channel._carry_out(self._window.delivered(self._stream, messages, size_bytes))

    def settled(self, ranges: Sequence[Range]) -> None:
        if self._stream is None:
            return
        positions = (number for first, last in ranges for number in range(first, last + 1))
        sizes = [self._sizes.pop(position) for position in positions]
        changes = self._window.settled(self._stream, len(sizes), sum(sizes))
        self._channel._carry_out(changes)

    def answered(self) -> None:
        if self._stream is not None:
            self._channel._carry_out(self._window.answered(self._stream))

    def short(self, *, is_short: bool, needs_bytes: int) -> None:
        if self._stream is not None:
            changes = self._window.short(self._stream, is_short=is_short, needs_bytes=needs_bytes)
            self._channel._carry_out(changes)
