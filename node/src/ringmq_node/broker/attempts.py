"""Streams to a queue's master, one after the other: where the next one goes, and when.

A master on this node is reached directly, another one through a stream to its node. When a stream
ends, the next one goes to the node that is master then. A node at which streams have failed since
one brought something is passed over, if another node can relay to the master.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_wire.backoff import Backoff

# Pauses between streams that have brought nothing.
RETRY_FIRST_S = 0.02
RETRY_MAX_S = 0.5
# Another node will be master, or the same one answer.
ONE_NODES_OWN = (Reason.TIMEOUT, Reason.STORE_FAILED, Reason.DISK_FULL, Reason.INTERNAL)


class FindsMasters(Protocol):
    """The node, as it knows the masters of queues (`routing.routing`)."""

    def address_of(self, queue: str, failed: frozenset[str]) -> Awaitable[str]:
        """The node to send a stream to; empty: the master is here. Another node than the master's
        relays it, if that one is among those that `failed`. Raises `BrokerError`."""
        ...

    def master_of(self, queue: str) -> tuple[str, int] | None:
        """The master that this node knows of, and the epoch of its view."""
        ...

    def newer_master(self, queue: str, node: str, epoch: int) -> str:
        """The address of the master that has followed that one; empty: none is known."""
        ...


def may_pass(error: BrokerError) -> bool:
    """Whether a stream that ended with `error` may be followed by one that doesn't."""
    return error.retryable or error.reason in ONE_NODES_OWN


class Attempts:
    """To reach the master of one queue."""

    def __init__(self, queue: str, masters: FindsMasters) -> None:
        self._queue = queue
        self._masters = masters
        # Nodes that a stream has failed at since one brought something.
        self._failed: frozenset[str] = frozenset()
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_MAX_S, random.Random())

    async def stream(
        self, here: Callable[[], Awaitable[None]], there: Callable[[str], Awaitable[None]]
    ) -> None:
        """One stream to its end: `here`, or `there` at an address. Raises `BrokerError`."""
        address = await self._masters.address_of(self._queue, self._failed)
        if not address:
            await here()
            return
        try:
            await there(address)
        except BrokerError:
            self._failed |= {address}
            raise

    def succeeded(self) -> None:
        """A stream has brought something: all nodes have another chance."""
        self._failed = frozenset()
        self._backoff.reset()

    async def pause(self) -> None:
        """Before the next one."""
        await asyncio.sleep(self._backoff.pause_s())
