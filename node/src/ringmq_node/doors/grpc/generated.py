"""Serves health and reflection: servicers that are written for grpc.aio's server.

Only that part of its API is here which these two use: a servicer is registered by the function that
was generated for it, takes messages, and answers with a message, with `context.write`, or as an
asynchronous generator; `context.abort` ends a call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol

import grpc

from ringmq_wire import Accept, CallStream, Code, RpcError, RpcStatus, streaming


class MethodHandler(Protocol):
    """What generated code registers for each method (`grpc.RpcMethodHandler`)."""

    request_streaming: bool
    response_streaming: bool
    request_deserializer: Any
    response_serializer: Any
    unary_unary: Any
    unary_stream: Any
    stream_stream: Any


class GeneratedServices:
    """Stands where generated code expects a server, and keeps what it is given as routes."""

    def __init__(self) -> None:
        self.routes: dict[str, Accept] = {}

    def add_registered_method_handlers(
        self, service: str, handlers: Mapping[str, MethodHandler]
    ) -> None:
        for name, handler in handlers.items():
            self.routes[f"/{service}/{name}"] = _route(handler)

    def add_generic_rpc_handlers(self, _: Sequence[grpc.GenericRpcHandler]) -> None:
        """The same methods once more, for servers that look them up by themselves."""


class ServicerContext:
    """The part of `grpc.aio.ServicerContext` that is used."""

    def __init__(self, stream: CallStream, handler: MethodHandler) -> None:
        self._stream = stream
        self._serialize = handler.response_serializer

    async def write(self, answer: Any) -> None:
        await self._stream.write(self._serialize(answer))

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        raise RpcError(RpcStatus(Code(code.value[0]), details))


def _route(handler: MethodHandler) -> Accept:
    async def serve(stream: CallStream) -> None:
        context = ServicerContext(stream, handler)
        requests = _requests(stream, handler)
        if handler.request_streaming:
            async for answer in handler.stream_stream(requests, context):
                await context.write(answer)
            return
        async for request in requests:
            if handler.response_streaming:
                await handler.unary_stream(request, context)
            else:
                await context.write(await handler.unary_unary(request, context))
            return
        raise RpcError(RpcStatus(Code.INTERNAL, "the call has no request"))

    return streaming(serve)


async def _requests(stream: CallStream, handler: MethodHandler) -> AsyncIterator[Any]:
    while (data := await stream.read()) is not None:
        try:
            request = handler.request_deserializer(data)
        except Exception as error:
            raise RpcError(RpcStatus(Code.INTERNAL, f"can't read the request: {error}")) from error
        yield request
