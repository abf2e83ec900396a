"""The nodes that this client knows, and calls to any of them.

The addresses are the seeds and, once a node has answered, those that the cluster gives for its
nodes. Any node takes any call, so a call goes to the node that answered last, and on to the next
one when that fails.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from ringmq.calls.arguments import check_argument
from ringmq.calls.identity import Identity
from ringmq.calls.node_channel import NodeChannel
from ringmq.calls.retrying import SUCCESSOR_S, is_nodes_own, is_retryable, retry_wait_s
from ringmq.calls.status import from_call
from ringmq.errors import (
    BadRequestError,
    ClosedError,
    OutcomeUnknownError,
    RingMQError,
    TimedOutError,
    UnavailableError,
)
from ringmq_wire import RpcError

R = TypeVar("R")

#: Of one attempt at one node, while others may still be asked.
ATTEMPT_S = 5.0
#: Another attempt isn't begun with less time left, nor in the last quarter of a shorter deadline.
ATTEMPT_S_MIN = 0.2
#: More nodes than any cluster has: bounds the addresses that are remembered of nodes that moved.
ADDRESSES_MAX = 64


def parse_seeds(seeds: str | Iterable[str]) -> list[str]:
    """`"a:7801, b:7801"` or a list of such addresses, without repeats."""
    listed = seeds.split(",") if isinstance(seeds, str) else list(seeds)
    check_argument("seeds", listed, Sequence[str])
    addresses = list(dict.fromkeys(seed.strip() for seed in listed if seed.strip()))
    if not addresses:
        raise BadRequestError("no seeds: give the address of at least one node, as host:port")
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
            raise BadRequestError(f"seed {address!r} is not host:port", metadata={"field": "seeds"})
        if not address.isprintable():
            raise BadRequestError(
                f"seed {address!r} is no address: it has unprintable characters",
                metadata={"field": "seeds"},
            )
    return addresses


async def ended_until(
    asks: Sequence[asyncio.Task[R]], enough: Callable[[asyncio.Task[R]], bool]
) -> list[asyncio.Task[R]]:
    """The tasks, in their order, that have ended when one of them is `enough`, or all. Cancels the
    others."""
    left = set(asks)
    try:
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            if any(map(enough, done)):
                break
        return [task for task in asks if task.done()]
    finally:
        for task in asks:
            task.cancel()
        await asyncio.gather(*asks, return_exceptions=True)


class _Trouble:
    """The failures of one call's attempts, and the one of them that its caller is told.

    Above all others stands an unknown outcome of a call that changes something: no later refusal
    means that nothing was changed. Next comes the newest error with a reason, for which a node
    has answered. That another node is away is told only if there is nothing better.
    """

    def __init__(self, *, changes: bool) -> None:
        self._changes = changes
        self._rank = 0
        self._told: RingMQError = UnavailableError("no node was asked")

    def add(self, error: RingMQError) -> RingMQError:
        """Returns the error to tell if this attempt was the last."""
        rank = 1 if error.reason else 0
        if self._changes and isinstance(error, OutcomeUnknownError):
            rank = 2
        if rank >= self._rank:
            self._rank, self._told = rank, error
        return self._told


class KnownNodes:
    """Channels by address, made when first needed, and the order in which to try them."""

    def __init__(
        self, seeds: list[str], *, deadline_s: float, receive_bytes_max: int, vhost: str = ""
    ) -> None:
        self.deadline_s = deadline_s
        # Of the queues and exchanges that the client names; "" is "/".
        self.vhost = vhost
        self._receive_bytes_max = receive_bytes_max
        self.identity = Identity()
        self._channels: dict[str, NodeChannel] = {}
        self._closed = False
        # In the order in which they are tried: the node that answered last is first. Shuffled,
        # so that clients with the same seeds spread over them.
        self._order = random.sample(seeds, len(seeds))

    def channel(self, address: str) -> NodeChannel:
        if self._closed:
            # A call that `close` has broken off would connect again, and nobody would close that.
            raise ClosedError("this client has been closed; connect again")
        found = self._channels.get(address)
        if found is None:
            found = self._channels[address] = NodeChannel(
                address, self._receive_bytes_max, self.identity
            )
        return found

    def learn(self, addresses: Iterable[str]) -> None:
        """More addresses to try, after those that are known."""
        for address in addresses:
            if address and address not in self._order and len(self._order) < ADDRESSES_MAX:
                self._order.append(address)

    def next_one(self) -> NodeChannel:
        """The node that a call would go to."""
        return self.channel(self._order[0])

    def ask_last(self, address: str) -> None:
        """A stream there has failed: calls ask all other nodes first."""
        if address in self._order:
            self._failed(address)

    async def call(
        self,
        attempt: Callable[[NodeChannel, float], Awaitable[R]],
        *,
        deadline_s: float | None = None,
        attempt_s: float = ATTEMPT_S,
        patience_s: float = math.inf,
        again: Callable[[BaseException], bool] = is_retryable,
        successor_s: float = SUCCESSOR_S,
        changes: bool = False,
    ) -> R:
        """Does `attempt(node, timeout_s)` at one node after the other until one answers.

        Raises the error of `_Trouble` when `deadline_s` (default: the client's) has passed, or
        the last error as soon as `again(error)` says that a repeat is of no use or not safe. A
        node whose disk failed counts for `successor_s` like a node that is away, and never keeps
        the others from being asked once. `changes`: the call changes something. A node that takes
        longer than `patience_s` isn't waited for alone: the others are asked as well.
        """
        asked = 0
        begin = time.monotonic()
        deadline_s = self.deadline_s if deadline_s is None else deadline_s
        end = begin + deadline_s
        least_s = min(ATTEMPT_S_MIN, deadline_s / 4)

        def may_repeat(error: BaseException) -> bool:
            if is_nodes_own(error):
                return asked < len(self._order) or time.monotonic() < begin + successor_s
            return again(error)

        def stop(state: RetryCallState) -> bool:
            # An attempt that the deadline cuts short has an unknown outcome, which says less
            # than the failure before it.
            return time.monotonic() + state.upcoming_sleep + least_s >= end

        def wait_s(state: RetryCallState) -> float:
            # The other nodes may know better: ask each once before waiting.
            untried = state.attempt_number < len(self._order)
            return 0.0 if untried else retry_wait_s(state)

        retrying = AsyncRetrying(
            stop=stop, wait=wait_s, retry=retry_if_exception(may_repeat), reraise=True
        )
        trouble = _Trouble(changes=changes)
        async for trial in retrying:
            with trial:
                address = self._order[0]
                asked += 1
                timeout_s = min(attempt_s, end - time.monotonic())
                if timeout_s <= 0:
                    raise TimedOutError(f"no answer within the deadline; last asked: {address}")
                try:
                    answer = await self._ask_first(attempt, timeout_s, patience_s)
                except RpcError as failure:
                    error = from_call(failure, address)
                    if not may_repeat(error):
                        raise error from failure
                    self._failed(address)
                    raise trouble.add(error) from failure
                return answer
        raise AssertionError("tenacity reraises")

    async def _ask_first(
        self,
        attempt: Callable[[NodeChannel, float], Awaitable[R]],
        timeout_s: float,
        patience_s: float,
    ) -> R:
        """Asks the first node, and all others once it has taken `patience_s`. The first answer
        counts. Raises what the first node's attempt does."""

        async def ask(address: str, after_s: float) -> tuple[str, R]:
            await asyncio.sleep(after_s)
            return address, await attempt(self.channel(address), timeout_s - after_s)

        first, *others = self._order
        if patience_s >= timeout_s or not others:
            _, answer = await ask(first, 0.0)
            self._answered(first)
            return answer
        asks = [
            asyncio.create_task(ask(address, after_s), name=f"ringmq-ask {address}")
            for address, after_s in ((first, 0.0), *((other, patience_s) for other in others))
        ]
        ended = await ended_until(asks, lambda each: each is asks[0] or each.exception() is None)
        for each in ended:
            if not isinstance(each.exception(), RpcError):
                address, answer = each.result()
                break
        else:
            address, answer = asks[0].result()
        if address != first:
            # It may be stopped: the next call goes to it last.
            self._failed(first)
        self._answered(address)
        return answer

    async def ask_all(
        self,
        attempt: Callable[[NodeChannel, float], Awaitable[R]],
        *,
        timeout_s: float,
        enough: Callable[[R], bool],
    ) -> list[R]:
        """Asks all nodes at once. Returns the answers that are there as soon as one of them is
        `enough`, so that a node which hangs delays nobody; else those given within `timeout_s`."""

        async def ask(address: str) -> list[R]:
            try:
                return [await attempt(self.channel(address), timeout_s)]
            except RpcError:
                return []  # Away, or it knows none: another node may.

        asks = [
            asyncio.create_task(ask(address), name=f"ringmq-ask {address}")
            for address in self._order
        ]
        ended = await ended_until(asks, lambda each: any(map(enough, each.result())))
        return [answer for each in ended for answer in each.result()]

    async def close(self) -> None:
        self._closed = True
        channels, self._channels = self._channels, {}
        for node in channels.values():
            await node.close()

    def _answered(self, address: str) -> None:
        self._order.remove(address)
        self._order.insert(0, address)

    def _failed(self, address: str) -> None:
        self._order.remove(address)
        self._order.append(address)
