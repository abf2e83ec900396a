"""Consumers at this node: subscriptions to queues that are mastered anywhere.

    channel = broker.consuming.channel()
    subscription = await broker.subscribe(channel, "orders", subscriber, caller)
    await subscription.open(caller.deadline_s)

A door whose clients' streams go to the master themselves uses `open_here`.
"""

from __future__ import annotations

from ringmq_node.broker.attempts import FindsMasters
from ringmq_node.broker.consuming.channel import ConsumeChannel
from ringmq_node.broker.consuming.consumer import ConsumersSeen, Consuming
from ringmq_node.broker.consuming.feed import RemoteConsumers, Subscriber
from ringmq_node.broker.consuming.subscription import QueueSubscription
from ringmq_node.broker.locating import Locator
from ringmq_node.model.consumers import ConsumerLabel
from ringmq_node.queue.consumers import ConsumerTerms
from ringmq_node.replica.hosting import Spawn
from ringmq_node.replica.sessions import ConsumerSession

DEFAULT_TERMS = ConsumerTerms()
UNLABELLED = ConsumerLabel()


class Subscribing:
    """A `SubscriptionHost`."""

    def __init__(
        self,
        remotes: RemoteConsumers,
        spawn: Spawn,
    ) -> None:
        self.remotes = remotes
        self._spawn = spawn

    def begin(self, masters: FindsMasters, locator: Locator, seen: ConsumersSeen) -> None:
        """By the broker, whose part it is, before anything else."""
        self.address_of = masters.address_of
        self.master_of = masters.master_of
        self.newer_master = masters.newer_master
        self._locator = locator
        self._seen = seen

    def channel(self) -> ConsumeChannel:
        return ConsumeChannel(self)

    def open(
        self, queue: str, subscriber: Subscriber, terms: ConsumerTerms, *, auto_ack: bool
    ) -> QueueSubscription:
        """For a channel."""
        return QueueSubscription(queue, subscriber, terms, self, self._spawn, auto_ack=auto_ack)

    async def open_here(
        self,
        queue: str,
        session: ConsumerSession,
        terms: ConsumerTerms = DEFAULT_TERMS,
        auto_ack: bool = False,
        label: ConsumerLabel = UNLABELLED,
    ) -> Consuming:
        """On the master's node only (see `Broker.route`). A prefetch of 0 is the default.
        Messages of an `auto_ack` consumer are acknowledged when they have been sent. `label`:
        without `auto_ack`."""
        return Consuming(
            await self._locator.serving(queue),
            session,
            terms=terms,
            auto_ack=auto_ack,
            label=label,
            successor=self._locator.successor,
            seen=self._seen,
        )
