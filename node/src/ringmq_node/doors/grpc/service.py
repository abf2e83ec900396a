"""How the services speak gRPC: raw bytes in and out, errors as `google.rpc.Status`.

The handlers take bytes, so that a call for a queue whose master is elsewhere is passed
on without being parsed and built again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from ringmq.v1 import common_pb2 as common
from ringmq_base.ranges import Range, RangeSet
from ringmq_node.model.reasons import STATUS_DETAILS_KEY, BrokerError

logger = logging.getLogger(__name__)

RELAYED_KEY = "ringmq-relayed"
# Answers that may wait for one peer to read them: messages, and ranges within them.
ANSWERS_MAX = 1024

Context = grpc.aio.ServicerContext[bytes, bytes]
UnaryHandler = Callable[[bytes, Context], Awaitable[bytes]]
StreamHandler = Callable[[Context], Awaitable[None]]

M = TypeVar("M", bound=Message)


def parse(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise BrokerError(
            common.REASON_BAD_REQUEST, f"these bytes are no {kind.DESCRIPTOR.name}", field=""
        ) from error


async def fail(context: Context, error: BrokerError) -> None:
    """Ends the call with the error's status and details."""
    details = ((STATUS_DETAILS_KEY, error.status_details()),)
    await context.abort(error.code, error.message, details)


def is_relayed(context: Context) -> bool:
    return any(key == RELAYED_KEY for key, _ in context.invocation_metadata() or ())


class Service(grpc.GenericRpcHandler):
    """The methods of one gRPC service, by name."""

    def __init__(
        self,
        name: str,
        *,
        unary: Mapping[str, UnaryHandler],
        streams: Mapping[str, StreamHandler],
        unary_stream: Mapping[str, Callable[[bytes, Context], Awaitable[None]]] | None = None,
    ) -> None:
        self._handlers: dict[str, Any] = {}
        for method, handler in unary.items():
            self._handlers[f"/{name}/{method}"] = grpc.unary_unary_rpc_method_handler(
                _guard_unary(handler)
            )
        for method, stream in streams.items():
            self._handlers[f"/{name}/{method}"] = grpc.stream_stream_rpc_method_handler(
                _guard_stream(stream)
            )
        for method, server_stream in (unary_stream or {}).items():
            self._handlers[f"/{name}/{method}"] = grpc.unary_stream_rpc_method_handler(
                _guard_unary(server_stream)
            )

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._handlers.get(handler_call_details.method)


def _guard_unary(handler: Callable[[bytes, Context], Awaitable[Any]]) -> Any:
    async def guarded(request: bytes, context: Context) -> Any:
        try:
            return await handler(request, context)
        except BrokerError as error:
            await fail(context, error)
        except grpc.RpcError:
            raise
        except TimeoutError:
            await fail(
                context,
                BrokerError(common.REASON_TIMEOUT, "no answer in time; it may have been done"),
            )

    return guarded


def _guard_stream(handler: StreamHandler) -> Any:
    async def guarded(_: Any, context: Context) -> None:
        try:
            await handler(context)
        except BrokerError as error:
            await fail(context, error)

    return guarded


class Outbox:
    """What waits to be written to a stream.

    Deliveries are bounded by who puts them. Answers to what the peer sends are bounded by
    `wait_room`, which goes before the next request is taken: a peer that sends and never reads
    is not read either. Ranges (confirms, settlements) that wait become one message, unless
    another message came between them: the order is kept. `of_ranges` makes the message.
    """

    def __init__(self, context: Context, of_ranges: Callable[[Sequence[Range]], Message]) -> None:
        self._context = context
        self._of_ranges = of_ranges
        # A serialized message and what it counts; or ranges, which count one each: as they
        # came, which is what most are written as, or merged.
        self._messages: deque[tuple[bytes, int] | list[Range] | RangeSet] = deque()
        self._answers = 0
        self._wake: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._closed = False
        self.written = 0

    @property
    def empty(self) -> bool:
        return not self._messages

    @property
    def full(self) -> bool:
        return self._answers >= ANSWERS_MAX

    def put(self, message: Message, *, answer: bool = True) -> None:
        self._messages.append((message.SerializeToString(), int(answer)))
        self._answers += answer
        _set(self._wake)

    def put_ranges(self, ranges: Sequence[Range]) -> None:
        waiting = self._messages[-1] if self._messages else None
        if waiting is None or isinstance(waiting, tuple):
            self._messages.append([*ranges])
            self._answers += len(ranges)
        else:
            if isinstance(waiting, list):
                self._answers -= len(waiting)
                waiting = self._messages[-1] = RangeSet(waiting)
            else:
                self._answers -= waiting.range_count
            waiting.update(ranges)
            self._answers += waiting.range_count
        _set(self._wake)

    async def wait_room(self) -> None:
        """Returns when it takes another answer."""
        while self.full:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def close(self) -> None:
        """What is in it is still written."""
        self._closed = True
        _set(self._wake)

    def drop(self) -> None:
        """Only what is being written is still written."""
        self._messages.clear()
        self._answers = 0
        self.close()

    def _take(self) -> bytes:
        message = self._messages.popleft()
        if isinstance(message, tuple):
            self._answers -= message[1]
            return message[0]
        ranges = message if isinstance(message, list) else message.ranges()
        self._answers -= len(ranges)
        return self._of_ranges(ranges).SerializeToString()

    async def run(self) -> None:
        """Writes until closed and empty."""
        loop = asyncio.get_running_loop()
        while True:
            while self._messages:
                await self._context.write(self._take())
                self.written += 1
                if not self.full:
                    _set(self._room)
            if self._closed:
                return
            self._wake = loop.create_future()
            await self._wake
            self._wake = None


def _set(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
