"""Subscriptions of one client that share a window: AMQP's channel, and its global QoS.

The window and its members are those of our client (`ringmq_base.window_members`): the program that
has the streams keeps the window, as the masters of the queues are on several nodes, and none of
them sees the others' consumers (docs/decisions/0120-a-window-is-shared-by-levels.md). The window is
in force from the beginning, with no limit, so that a limit that is set later holds for consumers
that run. A consumer that acknowledges by itself, or pulls, takes no part.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from ringmq_base.window import BYTES_MAX, MESSAGES_MAX
from ringmq_base.window_members import WindowMember, WindowMembers
from ringmq_node.broker.consuming.feed import Subscriber
from ringmq_node.broker.consuming.subscription import QueueSubscription
from ringmq_node.model.reasons import bad_request
from ringmq_node.queue.consumers import ConsumerTerms

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
        self._members = WindowMembers(0, 0)
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
            subscription.member = WindowMember(self._members, subscription.change_share)
        self._subscriptions = [each for each in self._subscriptions if not each.is_over]
        self._subscriptions.append(subscription)
        return subscription

    def change_window(self, messages: int = 0, size_bytes: int = 0) -> None:
        """At most so much may be unsettled of all its consumers together, from now on; 0: any
        number. Messages above it stay out."""
        if not (0 <= messages <= MESSAGES_MAX and 0 <= size_bytes <= BYTES_MAX):
            raise bad_request(f"a window of {messages} messages", field="prefetch")
        self._members.change(messages, size_bytes)

    @property
    def unsettled(self) -> tuple[int, int]:
        """Of all that share the window: messages, and bytes of bodies."""
        return self._members.unsettled

    def close(self) -> None:
        """Of all its subscriptions."""
        for each in self._subscriptions:
            each.close()
