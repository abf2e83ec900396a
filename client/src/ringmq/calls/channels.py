"""Connections to the nodes, and which of them to ask.

One HTTP/2 channel per address, made when first needed. The addresses are the
seeds, and what the cluster says of its nodes. Any node takes any call, so a unary
call goes to whichever answered last, and on to the next one when that fails; a
stream wants the queue's master, and takes another node as relay when the master's
address can't be reached from here (`Route`).

Channel options, and why:
* no HTTP/2 keepalive: streams have heartbeats of their own and calls deadlines,
  so there is nothing that a server could answer with `too_many_pings`;
* short reconnect backoff: gRPC's own (1 s to 2 min) would outlast a failover;
* no proxy: brokers are addressed directly, whatever the environment says;
* no limit on what is sent: batches are cut to what the node says that it takes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import grpc.aio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from ringmq.calls.requests import request_of
from ringmq.calls.status import from_call
from ringmq.errors import (
    BadRequestError,
    DiskFullError,
    NotRingMQError,
    OutcomeUnknownError,
    RetryableError,
    RingMQError,
    StoreFailedError,
    TimedOutError,
    UnavailableError,
)
from ringmq.model import Location
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1.admin_pb2_grpc import AdminStub
from ringmq.v1.broker_pb2_grpc import BrokerStub

if TYPE_CHECKING:
    # These names are in the generated stubs only.
    from ringmq.v1.admin_pb2_grpc import AdminAsyncStub
    from ringmq.v1.broker_pb2_grpc import BrokerAsyncStub

R = TypeVar("R")


class NotConnectedError(UnavailableError):
    """No connection came about. Stays an `UnavailableError` for those outside."""


#: Of one attempt at one node, while others may still be asked.
ATTEMPT_S = 5.0
#: Another one isn't begun with less time left, nor in the last quarter of a shorter deadline.
ATTEMPT_S_MIN = 0.2
#: Of one connection to one node.
CONNECT_S = 2.0
#: A node whose disk failed leaves its rings: how long another one may take to go on.
SUCCESSOR_S = 5.0
RETRY_FIRST_S = 0.02
RETRY_MAX_S = 0.5
#: More nodes than any cluster has: bounds what is remembered of addresses that moved.
ADDRESSES_MAX = 64


def parse_seeds(seeds: str | Iterable[str]) -> list[str]:
    """`"a:7801, b:7801"` or a list of such addresses, without repeats."""
    listed = seeds.split(",") if isinstance(seeds, str) else list(seeds)
    addresses = list(dict.fromkeys(seed.strip() for seed in listed if seed.strip()))
    if not addresses:
        raise BadRequestError("no seeds: give the address of at least one node, as host:port")
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
            raise BadRequestError(f"{address!r} is not host:port", metadata={"field": "seeds"})
        if not address.isprintable():
            raise BadRequestError(f"{address!r} is no address", metadata={"field": "seeds"})
    return addresses


def _options(receive_bytes_max: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", receive_bytes_max),
        ("grpc.initial_reconnect_backoff_ms", 50),
        # This one is also how long a connection may take to come about.
        ("grpc.min_reconnect_backoff_ms", 2000),
        ("grpc.max_reconnect_backoff_ms", 500),
        ("grpc.enable_http_proxy", 0),
        # Two clients of one process don't share connections, nor their backoff.
        ("grpc.use_local_subchannel_pool", 1),
    ]


class Node:
    """A channel to one address, with its stubs."""

    def __init__(self, address: str, receive_bytes_max: int) -> None:
        self.address = address
        self.channel = grpc.aio.insecure_channel(address, options=_options(receive_bytes_max))
        self.broker: BrokerAsyncStub = BrokerStub(self.channel)
        self.admin: AdminAsyncStub = AdminStub(self.channel)


def is_retryable(error: BaseException) -> bool:
    """Whether the same idempotent call may be made again, here or at another node.

    `NotRingMQError` is: one wrong seed must not hide the right ones.
    """
    return isinstance(error, RetryableError | OutcomeUnknownError | NotRingMQError)


def is_refused(error: BaseException) -> bool:
    """Whether the call surely had no effect, so that one that is not idempotent may be repeated.

    An `UnavailableError` without a reason is gRPC's own: the connection may have
    broken while the answer was on its way.
    """
    return (isinstance(error, RetryableError) and bool(error.reason)) or isinstance(
        error, NotRingMQError | NotConnectedError
    )


def is_nodes_own(error: BaseException | None) -> bool:
    """Whether it is the disk of one node that failed: the others go on without it."""
    return isinstance(error, DiskFullError | StoreFailedError)


_jitter = wait_random_exponential(multiplier=RETRY_FIRST_S, max=RETRY_MAX_S)


def retry_wait_s(state: RetryCallState) -> float:
    """The node's hint, or exponential backoff with full jitter, whichever is longer."""
    error = state.outcome.exception() if state.outcome is not None else None
    hint = error.retry_after_s if isinstance(error, RingMQError) else 0.0
    return max(hint, _jitter(state))


class Channels:
    """The nodes that this client knows, and calls to any of them."""

    def __init__(self, seeds: list[str], *, deadline_s: float, receive_bytes_max: int) -> None:
        self._seeds = seeds
        self.deadline_s = deadline_s
        self._receive_bytes_max = receive_bytes_max
        self._nodes: dict[str, Node] = {}
        # In the order in which they are tried; the one that answered last is first.
        # Clients with the same seeds spread over them.
        self._order = random.sample(seeds, len(seeds))

    def node(self, address: str) -> Node:
        found = self._nodes.get(address)
        if found is None:
            found = self._nodes[address] = Node(address, self._receive_bytes_max)
        return found

    def learn(self, addresses: Iterable[str]) -> None:
        """More addresses to try, after those that are known."""
        for address in addresses:
            if address and address not in self._order and len(self._order) < ADDRESSES_MAX:
                self._order.append(address)

    def _answered(self, address: str) -> None:
        self._order.remove(address)
        self._order.insert(0, address)

    def _failed(self, address: str) -> None:
        self._order.remove(address)
        self._order.append(address)

    async def call(
        self,
        attempt: Callable[[Node, float], Awaitable[R]],
        *,
        deadline_s: float | None = None,
        attempt_s: float = ATTEMPT_S,
        again: Callable[[BaseException], bool] = is_retryable,
        successor_s: float = SUCCESSOR_S,
        changes: bool = False,
    ) -> R:
        """Does `attempt(node, timeout_s)` at one node after the other until one answers.

        Raises the last error when `deadline_s` (default: the client's) has passed, or
        as soon as `again(error)` says that a repeat is of no use or not safe. A node
        whose disk failed counts for `successor_s` like one that is away, and never keeps
        the others from being asked once. `changes`: the call changes something, so that
        once an outcome was unknown, no later refusal means that nothing was changed.
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
            # One more that is cut short says less than the one before: its outcome is unknown.
            return time.monotonic() + state.upcoming_sleep + least_s >= end

        def wait_s(state: RetryCallState) -> float:
            # The other nodes may know better: ask each once before waiting.
            untried = state.attempt_number < len(self._order)
            return 0.0 if untried else retry_wait_s(state)

        retrying = AsyncRetrying(
            stop=stop, wait=wait_s, retry=retry_if_exception(may_repeat), reraise=True
        )
        # What a node said is worth more to the caller than that another one is away.
        said: RingMQError | None = None
        unknown: OutcomeUnknownError | None = None
        async for trial in retrying:
            with trial:
                address = self._order[0]
                asked += 1
                timeout_s = min(attempt_s, end - time.monotonic())
                if timeout_s <= 0:
                    raise TimedOutError(f"no answer within the deadline; last asked: {address}")
                try:
                    answer = await attempt(self.node(address), timeout_s)
                except grpc.aio.AioRpcError as failure:
                    error = from_call(failure, address)
                    if not may_repeat(error):
                        raise error from failure
                    self._failed(address)
                    if error.reason:
                        said = error
                    if changes and isinstance(error, OutcomeUnknownError):
                        unknown = error
                    raise unknown or said or error from failure
                except NotConnectedError as error:
                    self._failed(address)
                    raise unknown or said or error from None
                self._answered(address)
                return answer
        raise AssertionError("tenacity reraises")

    async def ready(self, node: Node, timeout_s: float) -> None:
        """Returns when there is a connection to `node`. What fails here was never asked."""
        try:
            async with asyncio.timeout(min(timeout_s, CONNECT_S)):
                await node.channel.channel_ready()
        except TimeoutError:
            raise NotConnectedError(f"{node.address}: no connection") from None

    async def close(self) -> None:
        nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            await node.channel.close()


class Route:
    """Where the next stream for one queue should go."""

    def __init__(self, channels: Channels, queue: str) -> None:
        self._channels = channels
        self._queue = queue
        self._hint = ""
        # Addresses at which a stream failed since one last worked.
        self._failed: set[str] = set()

    def moved(self, address: str) -> None:
        """A node said where the master is; empty: it doesn't know."""
        self._hint = address

    def failed(self, address: str) -> None:
        self._failed.add(address)

    def worked(self) -> None:
        self._failed.clear()

    async def pick(self, deadline_s: float) -> Node:
        """The master; else, if that has failed, the node that told us of it, as a relay."""
        hint, self._hint = self._hint, ""
        if hint and hint not in self._failed:
            self._channels.learn([hint])
            return self._channels.node(hint)
        location, relay = await self._locate(deadline_s)
        self._channels.learn([location.address])
        if location.address and location.address not in self._failed:
            return self._channels.node(location.address)
        if relay.address in self._failed:
            # Both have failed: begin again with the master.
            self._failed.clear()
        return relay

    async def _locate(self, deadline_s: float) -> tuple[Location, Node]:
        async def attempt(node: Node, timeout_s: float) -> tuple[Location, Node]:
            request = request_of(broker.LocateQueueRequest, queue=self._queue)
            answer = await node.broker.LocateQueue(request, timeout=timeout_s)
            return Location(answer.node, answer.address, answer.epoch), node

        # Whoever wants the stream waits for a successor; meanwhile its users get the reason.
        return await self._channels.call(
            attempt, deadline_s=deadline_s, attempt_s=1.0, successor_s=0.0
        )
