"""The consumers of a queue, as an operator sees them: RabbitMQ's `list_consumers`.

Only the master knows them, and what each of them holds; it is asked through any node.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import islice
from typing import Protocol, TypeVar

from ringmq_node.broker.caller import Caller
from ringmq_node.broker.peers import Peers
from ringmq_node.model.consumers import (
    ConsumerInfo,
    ConsumerLabel,
    ConsumerPage,
    ConsumerStanding,
)
from ringmq_node.model.settings import LIST_MAX
from ringmq_node.queue.consumers import Subscription, Subscriptions
from ringmq_node.replica.mastership import Mastership

T = TypeVar("T")


class AtMaster(Protocol):
    """As `Broker` does it."""

    async def __call__(
        self,
        queue: str,
        caller: Caller,
        here: Callable[[Mastership], Awaitable[T]],
        there: Callable[[str], Awaitable[T]],
        *,
        only_looks: bool = False,
    ) -> T: ...


def consumer_tag(tag: str, master: str, number: int) -> str:
    """The tag of a consumer: its own, or one that no other consumer of the queue has."""
    return tag or f"{master}.{number}"


class ConsumerListing:
    """Of one node, whose name is `me`."""

    def __init__(self, me: str, at_master: AtMaster, peers: Peers) -> None:
        self._me = me
        self._at_master = at_master
        self._peers = peers

    async def page(
        self, queue: str, caller: Caller, *, after: int, consumers_max: int
    ) -> ConsumerPage:
        """The first consumers whose numbers are above `after`; 0: the largest page. A look: the
        queue may be another connection's."""
        count = min(consumers_max or LIST_MAX, LIST_MAX)

        async def here(mastership: Mastership) -> ConsumerPage:
            return self._described(mastership, after, count)

        return await self._at_master(
            queue,
            caller,
            here,
            lambda address: self._peers.consumers(
                address, queue, after, count, deadline_s=caller.deadline_s
            ),
            only_looks=True,
        )

    def _described(self, mastership: Mastership, after: int, count: int) -> ConsumerPage:
        consumers = mastership.queue.consumers
        # They come in the order of their numbers. One more says whether there are more.
        found = [*islice((each for each in consumers if each.id > after), count + 1)]
        return ConsumerPage(
            self._me,
            mastership.epoch,
            tuple(
                self._info(mastership.subscribers.label(each.id), consumers, each)
                for each in found[:count]
            ),
            found[count - 1].id if len(found) > count else 0,
        )

    def _info(
        self, label: ConsumerLabel, consumers: Subscriptions, one: Subscription
    ) -> ConsumerInfo:
        share = one.share
        return ConsumerInfo(
            number=one.id,
            label=replace(
                label,
                tag=consumer_tag(label.tag, self._me, one.id),
                node=label.node or self._me,
            ),
            standing=_standing(consumers, one),
            prefetch_messages=one.prefetch_messages,
            prefetch_bytes=one.prefetch_bytes,
            priority=one.terms.priority,
            exclusive=one.terms.exclusive,
            pulls=one.terms.pulls,
            is_held=one.is_held,
            share=None if share is None else (share.messages, share.size_bytes),
            messages_unacknowledged=len(one.outstanding),
            bytes_unacknowledged=one.outstanding_bytes,
        )


def _standing(consumers: Subscriptions, one: Subscription) -> ConsumerStanding:
    # The active one that is cancelled stays so until it has settled all that it has.
    if one.cancelled:
        return ConsumerStanding.CANCELLED
    # One that pulls has no turn to wait for.
    if not consumers.single_active or one.terms.pulls:
        return ConsumerStanding.UP
    is_active = one.id == consumers.active
    return ConsumerStanding.SINGLE_ACTIVE if is_active else ConsumerStanding.WAITING
