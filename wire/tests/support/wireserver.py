"""A server of this transport with the methods that the tests call."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from ringmq_wire import (
    OK,
    CallHandler,
    CallStream,
    Code,
    RpcError,
    RpcStatus,
    WireCall,
    WireChannel,
    WireOptions,
    WireServer,
    streaming,
    unary,
)
from ringmq_wire.transport import Accept

HOST = "127.0.0.1"


class Echo(CallHandler):
    """Sends back what comes, in batches."""

    def __init__(self, call: WireCall) -> None:
        self._call = call

    def received(self, messages: list[bytes]) -> None:
        self._call.send(messages)

    def half_closed(self) -> None:
        self._call.finish(OK)


async def echo(request: bytes, call: WireCall) -> bytes:
    return request


async def shout(request: bytes, call: WireCall) -> bytes:
    """Answers with all the metadata it got, in both places, and a status with details."""
    metadata = tuple((name, value) for name, value in call.metadata if name.startswith("x-"))
    call.respond(metadata)
    raise RpcError(RpcStatus(Code.ABORTED, "größer als 100 %\n", b"\x08\x0a", metadata))


async def count(stream: CallStream) -> None:
    """Streams as many messages as the request says, each of the size that it says."""
    request = await stream.read()
    assert request is not None
    number, size = map(int, request.split())
    for index in range(number):
        await stream.write(b"%d" % index + bytes(size))


async def take_all(stream: CallStream) -> None:
    """Answers with the number of messages and of bytes."""
    messages = size = 0
    while batch := await stream.read_batch():
        messages += len(batch)
        size += sum(map(len, batch))
    await stream.write(b"%d %d" % (messages, size))


async def wait_for_ever(stream: CallStream) -> None:
    await asyncio.Event().wait()


async def fail(request: bytes, call: WireCall) -> bytes:
    raise RuntimeError("as the test wants it")


ROUTES: Mapping[str, Accept] = {
    "/test.Wire/Echo": unary(echo),
    "/test.Wire/EchoStream": Echo,
    "/test.Wire/Shout": unary(shout),
    "/test.Wire/Count": streaming(count),
    "/test.Wire/TakeAll": streaming(take_all),
    "/test.Wire/Wait": streaming(wait_for_ever),
    "/test.Wire/Fail": unary(fail),
}


@asynccontextmanager
async def serving(
    options: WireOptions | None = None,
    routes: Mapping[str, Accept] = ROUTES,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[WireServer, int]]:
    server = WireServer(routes, options, tls=tls)
    port = await server.listen(HOST, 0)
    try:
        yield server, port
    finally:
        await server.stop(0)


@asynccontextmanager
async def connected(
    server_options: WireOptions | None = None, options: WireOptions | None = None
) -> AsyncIterator[tuple[WireServer, WireChannel]]:
    async with serving(server_options) as (server, port):
        channel = WireChannel(f"{HOST}:{port}", options)
        try:
            yield server, channel
        finally:
            await channel.close()
