"""A client's channel whose connections come about in odd ways, or don't: no call waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from loops import LOOPS, LoopFactory, run
from waiting import leeway, until
from wireserver import HOST, connected

from ringmq_wire import Code, RpcError, WireChannel, WireOptions, frames
from ringmq_wire.codes import ErrorCode

SETTINGS = frames.settings([])
Answer = Callable[[int, asyncio.StreamWriter], None]


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[str]:
    """A port that calls `answer` with the number of each connection, counted from 1."""
    made: list[asyncio.StreamWriter] = []

    async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.append(writer)
        answer(len(made), writer)

    server = await asyncio.start_server(accepted, HOST, 0)
    try:
        yield f"{HOST}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in made:
            writer.transport.abort()


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_server_that_goes_away_with_its_first_word_is_dialled_again(loop: LoopFactory) -> None:
    """As a server does that is asked to stop while it accepts. Its connection was taken for one
    that could be used, and nobody dialled another: all calls waited for ever."""

    async def scenario() -> None:
        numbers: list[int] = []

        def answer(number: int, writer: asyncio.StreamWriter) -> None:
            numbers.append(number)
            writer.write(SETTINGS + frames.goaway(0, ErrorCode.NO_ERROR, "the server shuts down"))

        async with answering(answer) as address:
            channel = WireChannel(address)
            for _ in range(2):
                with pytest.raises(RpcError) as caught:
                    await channel.unary("/x/Y", b"", timeout_s=leeway(2))
                assert caught.value.status.code is Code.UNAVAILABLE
                assert caught.value.status.unprocessed
            await until(lambda: len(numbers) >= 1)
            await channel.close()

    run(scenario(), on=loop)


def test_a_call_that_is_promised_a_connection_hears_that_the_channel_is_closed() -> None:
    async def scenario() -> None:
        async with connected(WireOptions(streams_max=1)) as (_, channel):
            first = await channel.stream("/test.Wire/EchoStream")
            waiting = asyncio.create_task(channel.unary("/test.Wire/Echo", b""))
            await until(lambda: bool(channel._waiting))
            # It begins in the next turn, before the call whose turn has come.
            closing = asyncio.create_task(channel.close())
            first.cancel()
            await asyncio.wait([waiting], timeout=leeway(2))
            assert waiting.done()
            with pytest.raises(RpcError) as caught:
                await waiting
            assert caught.value.status.unprocessed
            await closing

    run(scenario())


def test_a_cancelled_call_makes_room_for_one_that_waits() -> None:
    async def scenario() -> None:
        async with connected(WireOptions(streams_max=1)) as (_, channel):
            first = await channel.stream("/test.Wire/EchoStream")
            waiting = asyncio.create_task(channel.unary("/test.Wire/Echo", b"1"))
            await until(lambda: bool(channel._waiting))
            first.cancel()
            await asyncio.wait([waiting], timeout=leeway(2))
            assert waiting.done()
            assert await waiting == b"1"

    run(scenario())


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_port_that_can_be_none_is_no_connection(loop: LoopFactory) -> None:
    async def scenario() -> None:
        channel = WireChannel("127.0.0.1:70000")
        with pytest.raises(RpcError) as caught:
            await channel.unary("/x/Y", b"", timeout_s=leeway(2))
        assert caught.value.status.code is Code.UNAVAILABLE
        await channel.close()

    run(scenario(), on=loop)


def test_calls_that_wait_begin_when_the_server_lets_more_of_them_in() -> None:
    async def scenario() -> None:
        writers: list[asyncio.StreamWriter] = []

        def answer(_: int, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            writer.write(frames.settings([(frames.MAX_CONCURRENT_STREAMS, 0)]))

        async with answering(answer) as address:
            channel = WireChannel(address)
            opening = asyncio.create_task(channel.stream("/x/Y"))
            await until(lambda: channel._current is not None)
            writers[0].write(frames.settings([(frames.MAX_CONCURRENT_STREAMS, 1)]))
            await asyncio.wait([opening], timeout=leeway(2))
            assert opening.done()
            await opening
            await channel.close()

    run(scenario())


def test_the_call_behind_the_last_number_of_a_stream_gets_a_connection_of_its_own() -> None:
    """The call with the last number may go on for days; the next one waited for its end."""

    async def scenario() -> None:
        async with connected() as (_, channel):
            await channel.unary("/test.Wire/Echo", b"1")
            connection = channel._current
            assert connection is not None
            connection.core.calls._next_id = frames.STREAM_ID_MAX
            last = await channel.stream("/test.Wire/EchoStream")
            assert last.call.stream.id == frames.STREAM_ID_MAX
            assert await channel.unary("/test.Wire/Echo", b"2", timeout_s=leeway(2)) == b"2"
            await last.write(b"3")
            assert await last.read() == b"3"
            last.cancel()
            await until(lambda: connection.closed)

    run(scenario())
