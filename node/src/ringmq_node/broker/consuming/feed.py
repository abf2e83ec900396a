"""The other ends of a subscription: its door, its streams to a master, and its node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Protocol

from ringmq_base.ranges import Range
from ringmq_node.broker.attempts import FindsMasters
from ringmq_node.broker.consuming.consumer import Consuming
from ringmq_node.broker.consuming.outgoing import Word
from ringmq_node.broker.peers import Got
from ringmq_node.model.reasons import BrokerError
from ringmq_node.queue.consumers import ConsumerTerms
from ringmq_node.queue.run import Run
from ringmq_node.replica.sessions import ConsumerSession


class Subscriber(Protocol):
    """A door's end of a subscription. No method may block or raise."""

    def opened(self, generation: int) -> None:
        """A stream is open. Deliveries come behind this, and have this generation."""
        ...

    def delivered(self, runs: Sequence[Run]) -> None: ...
    def settled(self, positions: Sequence[Range]) -> None:
        """These acknowledgements and rejections of the present generation are safe."""
        ...

    def active_changed(self, *, active: bool) -> None: ...
    def interrupted(self) -> None:
        """The stream has ended. Unsettled messages are the queue's again; another stream follows,
        unless the subscription was cancelled, or hears `ended`."""
        ...

    def ended(self, error: BrokerError) -> None:
        """There will be no other stream: the queue is deleted, for example."""
        ...


class ConsumeFeed(Protocol):
    """A subscription, as one stream to its queue's master sees it."""

    @property
    def queue(self) -> str: ...
    @property
    def terms(self) -> ConsumerTerms: ...
    @property
    def work(self) -> asyncio.Event:
        """Set when there may be a word, or it is over."""
        ...

    @property
    def is_awaiting(self) -> bool: ...
    @property
    def is_over(self) -> bool:
        """Whether the stream is to be ended."""
        ...

    def next(self) -> Word | None: ...
    def stream_opened(self) -> None: ...
    def delivered(self, runs: Sequence[Run]) -> None: ...
    def settled(self, positions: Sequence[Range]) -> None: ...
    def active_changed(self, *, active: bool) -> None: ...
    def share_answered(self) -> None: ...
    def share_short(self, *, short: bool, needs_bytes: int) -> None: ...
    def pulled(self, got: Got | BrokerError) -> None:
        """The answer to the oldest pull; an error leaves the stream as it is."""
        ...

    def master(self) -> tuple[str, int] | None:
        """The master that this node knows of, and the epoch of its view."""
        ...

    def newer_master(self, node: str, epoch: int) -> str:
        """The address of the master that has followed that one; empty: none is known."""
        ...


class RemoteConsumers(Protocol):
    async def consume(self, address: str, feed: ConsumeFeed) -> None:
        """One stream to the master at `address`, to its end. Raises `BrokerError` if the node
        refuses it, ends this consumer, or doesn't answer."""
        ...


class SubscriptionHost(FindsMasters, Protocol):
    """The node, as its subscriptions use it."""

    @property
    def remotes(self) -> RemoteConsumers: ...
    def open_here(
        self, queue: str, session: ConsumerSession, terms: ConsumerTerms
    ) -> Awaitable[Consuming]: ...
