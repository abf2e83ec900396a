"""Stock grpcio's asyncio client against this server, without and with TLS."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from grpcio_ends import SECURITIES, SIZES, Security, security_of
from loops import run
from waiting import until
from wireserver import serving

from ringmq_wire import WireOptions


@pytest.fixture(scope="module", params=SECURITIES)
def security(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Security:
    return security_of(request.param, tmp_path_factory)


def with_aio(
    security: Security,
    scenario: Callable[[grpc.aio.Channel], Any],
    options: WireOptions | None = None,
) -> None:
    async def main() -> None:
        async with (
            serving(options, tls=security.of_server) as (_, port),
            security.aio_channel(port) as channel,
        ):
            await scenario(channel)

    run(main())


def test_messages_of_all_sizes(security: Security) -> None:
    async def scenario(channel: Any) -> None:
        call = channel.unary_unary("/test.Wire/Echo")
        for size in SIZES:
            body = random.Random(size).randbytes(size)
            assert await call(body, timeout=20) == body

    with_aio(security, scenario)


def test_a_stream_of_many_messages(security: Security) -> None:
    async def scenario(channel: Any) -> None:
        call = channel.stream_stream("/test.Wire/EchoStream")()

        async def write() -> None:
            for number in range(5_000):
                await call.write(b"%d" % number)
            await call.done_writing()

        writing = asyncio.create_task(write())
        assert [m async for m in call] == [b"%d" % n for n in range(5_000)]
        await writing
        assert await call.code() is grpc.StatusCode.OK

    with_aio(security, scenario)


def test_metadata_and_details_both_ways(security: Security) -> None:
    async def scenario(channel: Any) -> None:
        sent = (("x-key", "value"), ("x-raw-bin", b"\x00\xff"), ("x-long", "y" * 5_000))
        call = channel.unary_unary("/test.Wire/Shout")(b"", metadata=sent, timeout=10)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        error = caught.value
        assert error.code() is grpc.StatusCode.ABORTED
        assert error.details() == "größer als 100 %\n"
        assert tuple(error.initial_metadata() or ()) == sent
        trailing = tuple(error.trailing_metadata() or ())
        assert set(sent) < set(trailing)
        assert ("grpc-status-details-bin", b"\x08\x0a") in trailing

    with_aio(security, scenario)


def test_a_cancelled_call_is_gone_at_the_server(security: Security) -> None:
    async def main() -> None:
        async with (
            serving(tls=security.of_server) as (server, port),
            security.aio_channel(port) as channel,
        ):
            call: Any = channel.stream_stream("/test.Wire/Wait")()
            await call.write(b"x")
            await until(lambda: len(server.connections) == 1)
            (connection,) = server.connections
            await until(lambda: len(connection.core.calls.streams) == 1)
            call.cancel()
            await until(lambda: not connection.core.calls.streams)

    run(main())


def test_a_deadline_is_told_by_either_side(security: Security) -> None:
    async def scenario(channel: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/test.Wire/Wait")(b"", timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    with_aio(security, scenario)


def test_an_unknown_method_and_a_compressed_message(security: Security) -> None:
    async def scenario(channel: Any) -> None:
        for path, compression in (
            ("/test.Wire/Nothing", None),
            ("/test.Wire/Echo", grpc.Compression.Gzip),
        ):
            call = channel.unary_unary(path)(bytes(5_000), compression=compression, timeout=5)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    with_aio(security, scenario)


def test_a_message_above_the_limit_is_refused_and_the_connection_goes_on(
    security: Security,
) -> None:
    async def scenario(channel: Any) -> None:
        call = channel.unary_unary("/test.Wire/Echo")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(bytes(200_000), timeout=5)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await call(bytes(100_000), timeout=5) == bytes(100_000)

    with_aio(security, scenario, WireOptions(message_bytes_max=100_000))


def test_a_slow_reader_gets_everything(security: Security) -> None:
    """grpcio changes its window while it reads slowly: the server must follow its SETTINGS."""

    async def scenario(channel: Any) -> None:
        call = channel.unary_stream("/test.Wire/Count")(b"300 100000", timeout=60)
        number = 0
        async for message in call:
            assert message.startswith(b"%d\0" % number)
            number += 1
            if number % 50 == 0:
                await asyncio.sleep(0.1)
        assert number == 300

    with_aio(security, scenario)


def test_a_hundred_streams_of_one_channel(security: Security) -> None:
    async def scenario(channel: Any) -> None:
        async def one(number: int) -> None:
            call = channel.stream_stream("/test.Wire/EchoStream")()
            for size in (1, 10_000, 100):
                body = bytes((number,)) * size
                await call.write(body)
                assert await call.read() == body
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF

        await asyncio.gather(*(one(number) for number in range(100)))

    with_aio(security, scenario)


def test_a_stopping_server_lets_calls_go_on(
    security: Security, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This client leaves the end of TLS unanswered.
    monkeypatch.setattr("ringmq_wire.transport.CLOSE_TIMEOUT_S", 0.1)

    async def main() -> None:
        async with (
            serving(tls=security.of_server) as (server, port),
            security.aio_channel(port) as channel,
        ):
            call: Any = channel.stream_stream("/test.Wire/EchoStream")()
            await call.write(b"1")
            assert await call.read() == b"1"
            stopping = asyncio.create_task(server.stop(10))
            await asyncio.sleep(0.05)
            await call.write(b"2")
            assert await call.read() == b"2"
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            assert await call.code() is grpc.StatusCode.OK
            await stopping

    run(main())


def test_two_thousand_calls(security: Security) -> None:
    async def scenario(channel: Any) -> None:
        call = channel.unary_unary("/test.Wire/Echo")
        for first in range(0, 2_000, 500):
            answers = await asyncio.gather(
                *(call(b"%d" % n, timeout=30) for n in range(first, first + 500))
            )
            assert answers == [b"%d" % n for n in range(first, first + 500)]

    with_aio(security, scenario)
