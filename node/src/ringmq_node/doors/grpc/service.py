"""How the services speak gRPC: raw bytes in and out, errors as `google.rpc.Status`.

Handlers take bytes, so that a stream on a queue that is mastered elsewhere is relayed without
being parsed and built again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from ringmq_node.broker.broker import Caller
from ringmq_node.doors.grpc.status import CODES, STATUS_DETAILS_KEY, status_details
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.model.settings import CALL_DEADLINE_S

# Marks calls that another node has forwarded.
RELAYED_KEY = "ringmq-relayed"
RELAYED_METADATA = ((RELAYED_KEY, "1"),)

Context = grpc.aio.ServicerContext[bytes, bytes]
UnaryHandler = Callable[[bytes, Context], Awaitable[bytes]]
StreamHandler = Callable[[Context], Awaitable[None]]

M = TypeVar("M", bound=Message)


def parse(kind: type[M], data: bytes) -> M:
    """Raises `BrokerError` if the bytes aren't a message of this kind."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise bad_request(f"these bytes are no {kind.DESCRIPTOR.name}", field="") from error


async def fail(context: Context, error: BrokerError) -> None:
    """Ends the call with the error's status and details."""
    details = ((STATUS_DETAILS_KEY, status_details(error)),)
    await context.abort(CODES[error.reason], error.message, details)


def caller_of(context: Context) -> Caller:
    """A call without a deadline gets `CALL_DEADLINE_S`."""
    forwarded = any(key == RELAYED_KEY for key, _ in context.invocation_metadata() or ())
    return Caller(context.time_remaining() or CALL_DEADLINE_S, forwarded=forwarded)


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


def _caller_is_gone() -> asyncio.CancelledError:
    """A write has failed, because the caller is gone and gRPC hasn't heard of its end yet.

    A moment later gRPC would have cancelled the handler. Its own error, raised on, would be logged
    with a traceback, as if this node were at fault whenever a peer is killed in mid-answer.
    """
    return asyncio.CancelledError("the caller is gone")


def _guard_unary(handler: Callable[[bytes, Context], Awaitable[Any]]) -> Any:
    async def guarded(request: bytes, context: Context) -> Any:
        try:
            return await handler(request, context)
        except BrokerError as error:
            await fail(context, error)
        except grpc.RpcError:
            raise
        except grpc.aio.InternalError as error:
            raise _caller_is_gone() from error
        except TimeoutError:
            await fail(
                context,
                BrokerError(Reason.TIMEOUT, "no answer in time; it may have been done"),
            )

    return guarded


def _guard_stream(handler: StreamHandler) -> Any:
    async def guarded(_: Any, context: Context) -> None:
        try:
            await handler(context)
        except BrokerError as error:
            await fail(context, error)
        except grpc.aio.InternalError as error:
            raise _caller_is_gone() from error

    return guarded
