"""How the services speak gRPC: raw bytes in and out, errors as `google.rpc.Status`.

The handlers take bytes, so that a call for a queue whose master is elsewhere is passed
on without being parsed and built again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from ringmq.v1 import common_pb2 as common
from ringmq_node.errors import STATUS_DETAILS_KEY, BrokerError

logger = logging.getLogger(__name__)

RELAYED_KEY = "ringmq-relayed"

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
            await fail(context, BrokerError(common.REASON_TIMEOUT, "not done in time"))

    return guarded


def _guard_stream(handler: StreamHandler) -> Any:
    async def guarded(_: Any, context: Context) -> None:
        try:
            await handler(context)
        except BrokerError as error:
            await fail(context, error)

    return guarded


class Outbox:
    """What waits to be written to a stream. Whoever fills it bounds it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._messages: deque[bytes] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._closed = False
        self.written = 0

    def put(self, message: Message) -> None:
        self._messages.append(message.SerializeToString())
        self._notify()

    def close(self) -> None:
        """What is in it is still written."""
        self._closed = True
        self._notify()

    def drop(self) -> None:
        """Only what is being written is still written."""
        self._messages.clear()
        self.close()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def run(self) -> None:
        """Writes until closed and empty."""
        loop = asyncio.get_running_loop()
        while True:
            while self._messages:
                await self._context.write(self._messages.popleft())
                self.written += 1
            if self._closed:
                return
            self._wake = loop.create_future()
            await self._wake
            self._wake = None
