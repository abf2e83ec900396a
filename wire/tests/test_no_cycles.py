"""Calls and connections that have ended go at once, and aren't left to the garbage collector."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import cycles
import pytest
from certificates import client_tls, made_for_loopback, server_tls
from cycles import collected_by_hand, in_cycles, living
from loops import LOOPS, LoopFactory, run
from waiting import until
from wireserver import HOST, ROUTES, connected

from ringmq_wire import OK, CallHandler, CallStream, RpcError, WireCall, WireChannel, WireServer
from ringmq_wire.connection import Connection
from ringmq_wire.events import CallMessages
from ringmq_wire.streams import WireStream
from ringmq_wire.transport import WireProtocol


@pytest.fixture(autouse=True)
def collector_is_off() -> Iterator[None]:
    with collected_by_hand():
        yield


gone = partial(cycles.gone, modules=("ringmq_wire",), within_s=2)


async def echoed(server: WireServer, channel: WireChannel) -> None:
    assert await channel.unary("/test.Wire/Echo", b"x") == b"x"


async def refused(server: WireServer, channel: WireChannel) -> None:
    for method in ("Shout", "None"):
        with pytest.raises(RpcError):
            await channel.unary(f"/test.Wire/{method}", b"x")


class AtOnce(CallHandler):
    """Ends its call before it has any."""

    def __init__(self, call: WireCall) -> None:
        self._call = call
        call.finish(OK)


async def ended_at_once(server: WireServer, channel: WireChannel) -> None:
    server.add({"/test.Wire/AtOnce": AtOnce})
    stream = await channel.stream("/test.Wire/AtOnce")
    assert await stream.read() is None


async def too_late(server: WireServer, channel: WireChannel) -> None:
    with pytest.raises(RpcError, match="deadline"):
        await channel.unary("/test.Wire/Wait", b"x", timeout_s=0.05)


async def given_up(server: WireServer, channel: WireChannel) -> None:
    call = asyncio.create_task(channel.unary("/test.Wire/Wait", b"x"))
    await until(lambda: any(each.core.calls.streams for each in server.connections))
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call


async def half_closed(server: WireServer, channel: WireChannel) -> None:
    stream = await channel.stream("/test.Wire/EchoStream")
    await stream.write(b"x")
    assert await stream.read() == b"x"
    stream.half_close()
    assert await stream.read() is None


async def cancelled(server: WireServer, channel: WireChannel) -> None:
    stream = await channel.stream("/test.Wire/EchoStream")
    await stream.write(b"x")
    assert await stream.read() == b"x"
    stream.cancel()
    stream = await channel.stream("/test.Wire/Wait")
    stream.cancel()


async def unread(server: WireServer, channel: WireChannel) -> None:
    """The connection's transport takes nothing any more: its calls wait for it."""
    stream = await channel.stream("/test.Wire/Count")
    await stream.write(b"100 1000000")
    stream.half_close()
    assert await stream.read() is not None
    stream.cancel()


async def held_back(server: WireServer, channel: WireChannel) -> None:
    """The server's sender waits until its connection takes bytes again."""
    calls: list[WireCall] = []

    def accept(call: WireCall) -> CallHandler:
        calls.append(call)
        return CallHandler()

    server.add({"/test.Wire/Held": accept})
    await channel.stream("/test.Wire/Held")
    await until(lambda: bool(calls))
    (connection,) = server.connections
    connection.pause_writing()
    call = calls.pop()
    assert not call.send_now([b"x"])
    assert connection.held == [call]


OF_CALLS = (WireCall, AtOnce, CallStream, CallMessages)
ALL = (*OF_CALLS, WireStream, WireProtocol, Connection)
USES = [echoed, refused, ended_at_once, too_late, given_up, half_closed, cancelled, unread]
Use = Callable[[WireServer, WireChannel], Awaitable[None]]


async def closed(server: WireServer, channel: WireChannel) -> None:
    await channel.close()


async def closed_behind_calls(server: WireServer, channel: WireChannel) -> None:
    await channel.close(grace_s=0.1)


async def aborted(server: WireServer, channel: WireChannel) -> None:
    for connection in list(server.connections):
        connection.abandon()


async def stopped(server: WireServer, channel: WireChannel) -> None:
    await server.stop(grace_s=0)


ENDS = [closed, closed_behind_calls, aborted, stopped]


@pytest.fixture(params=list(LOOPS.values()), ids=list(LOOPS))
def on(request: pytest.FixtureRequest) -> LoopFactory:
    chosen: LoopFactory = request.param
    return chosen


@pytest.mark.parametrize("use", USES)
def test_a_call_leaves_nothing(use: Use, on: LoopFactory) -> None:
    async def scenario() -> None:
        async with connected() as (server, channel):
            await use(server, channel)
            await gone(*OF_CALLS)
            assert not in_cycles("ringmq_wire")

    run(scenario(), on=on)


@pytest.mark.parametrize("end", ENDS)
def test_a_connection_leaves_nothing(end: Use, on: LoopFactory) -> None:
    async def scenario() -> None:
        async with connected() as (server, channel):
            for use in [*USES, held_back]:
                await use(server, channel)
            going_on = [
                await channel.stream("/test.Wire/EchoStream"),
                await channel.stream("/test.Wire/Wait"),
            ]
            await until(lambda: living(WireCall)["WireCall"] == 6)
            del going_on
            await end(server, channel)
            await gone(*ALL)

    run(scenario(), on=on)


def test_messages_that_were_read_are_kept_by_no_connection() -> None:
    async def scenario() -> None:
        async with connected() as (_, channel):
            stream = await channel.stream("/test.Wire/EchoStream")
            await stream.write(b"x")
            assert await stream.read() == b"x"
            await gone(CallMessages)

    run(scenario())


def test_attempts_to_connect_leave_nothing(on: LoopFactory) -> None:
    async def scenario() -> None:
        with socket.create_server((HOST, 0)) as bound:
            port = bound.getsockname()[1]
        channel = WireChannel(f"{HOST}:{port}")
        with pytest.raises(RpcError, match="connecting to"):
            await channel.unary("/test.Wire/Echo", b"x")
        call = asyncio.create_task(channel.stream("/test.Wire/Wait", wait_for_ready=True))
        await asyncio.sleep(0)
        await channel.close()
        with pytest.raises(RpcError, match="closed"):
            await call
        del call
        await gone(*ALL)
        assert not in_cycles("ringmq_wire")

    run(scenario(), on=on)


def test_a_connection_with_tls_leaves_nothing(tmp_path: Path, on: LoopFactory) -> None:
    pair = made_for_loopback(tmp_path)

    async def scenario() -> None:
        server = WireServer(ROUTES, tls=server_tls(pair, "h2"))
        port = await server.listen(HOST, 0)
        channel = WireChannel(f"{HOST}:{port}", tls=client_tls(pair))
        await echoed(server, channel)
        await channel.close()
        await gone(*ALL)
        await server.stop(0)

    run(scenario(), on=on)
