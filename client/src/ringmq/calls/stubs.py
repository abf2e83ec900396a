"""The generated stubs on our own transport: the part of grpc.aio's channel that they use.

    stub = BrokerStub(StubChannel(wire, identity))
    answer = await stub.GetQueue(request, timeout=1.0)

Failed calls raise `RpcError`. Publish and Consume aren't called through stubs: the streams' own
module (`ringmq.streams.conversation`) reads and writes them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from google.protobuf.message import Message

from ringmq.calls.identity import Identity
from ringmq_wire import WireChannel

Response = TypeVar("Response")


class StubChannel:
    """See the module."""

    def __init__(self, wire: WireChannel, identity: Identity) -> None:
        self._wire = wire
        self._identity = identity

    def unary_unary(
        self,
        path: str,
        *,
        request_serializer: Callable[[Message], bytes],
        response_deserializer: Callable[[bytes], Response],
        **_: Any,
    ) -> Callable[..., Awaitable[Response]]:
        async def call(request: Message, *, timeout: float | None = None) -> Response:
            answer = await self._wire.unary(
                path,
                request_serializer(request),
                timeout_s=timeout,
                metadata=self._identity.metadata,
            )
            return response_deserializer(answer)

        return call

    def unary_stream(
        self,
        path: str,
        *,
        request_serializer: Callable[[Message], bytes],
        response_deserializer: Callable[[bytes], Response],
        **_: Any,
    ) -> Callable[..., AsyncIterator[Response]]:
        async def call(
            request: Message, *, timeout: float | None = None
        ) -> AsyncIterator[Response]:
            stream = await self._wire.stream(
                path, timeout_s=timeout, metadata=self._identity.metadata
            )
            try:
                await stream.write(request_serializer(request))
                stream.half_close()
                while (answer := await stream.read()) is not None:
                    yield response_deserializer(answer)
            finally:
                # Does nothing to a call that has ended.
                stream.cancel()

        return call

    def stream_stream(self, path: str, **_: Any) -> str:
        """The stub keeps the path; nobody calls it."""
        return path
