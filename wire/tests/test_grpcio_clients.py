"""Stock grpcio clients, sync and aio, against this server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
import pytest
from loops import run
from waiting import until
from wireserver import HOST, serving

from ringmq_wire import WireOptions

MIB = 1024 * 1024
OPTIONS = [("grpc.max_receive_message_length", 16 * MIB), ("grpc.max_send_message_length", -1)]
SIZES = [0, 1, 5, 16_379, 16_384, 65_535, 65_536, MIB, 5 * MIB]


def with_aio(
    scenario: Callable[[grpc.aio.Channel], Any], options: WireOptions | None = None
) -> None:
    async def main() -> None:
        async with (
            serving(options) as (_, port),
            grpc.aio.insecure_channel(f"{HOST}:{port}", OPTIONS) as channel,
        ):
            await scenario(channel)

    run(main())


def with_sync(scenario: Callable[[grpc.Channel], Any], options: WireOptions | None = None) -> None:
    """The client's threads beside the server's loop."""

    async def main() -> None:
        async with serving(options) as (_, port):
            with ThreadPoolExecutor(1) as threads:

                def client() -> None:
                    with grpc.insecure_channel(f"{HOST}:{port}", OPTIONS) as channel:
                        scenario(channel)

                await asyncio.get_running_loop().run_in_executor(threads, client)

    run(main())


def test_aio_messages_of_all_sizes() -> None:
    async def scenario(channel: Any) -> None:
        call = channel.unary_unary("/test.Wire/Echo")
        for size in SIZES:
            body = random.Random(size).randbytes(size)
            assert await call(body, timeout=20) == body

    with_aio(scenario)


def test_sync_messages_of_all_sizes() -> None:
    def scenario(channel: Any) -> None:
        call = channel.unary_unary("/test.Wire/Echo")
        for size in SIZES:
            body = random.Random(size).randbytes(size)
            assert call(body, timeout=20) == body

    with_sync(scenario)


def test_aio_stream_of_many_messages() -> None:
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

    with_aio(scenario)


def test_sync_stream_of_large_messages() -> None:
    def scenario(channel: Any) -> None:
        bodies = [bytes((n,)) * 300_000 for n in range(40)]
        answers = channel.stream_stream("/test.Wire/EchoStream")(iter(bodies), timeout=30)
        assert list(answers) == bodies

    with_sync(scenario)


def test_sync_upload_and_download() -> None:
    def scenario(channel: Any) -> None:
        def requests() -> Iterator[bytes]:
            for _ in range(2_000):
                yield bytes(5_000)

        upload = channel.stream_unary("/test.Wire/TakeAll")
        assert upload(requests(), timeout=30) == b"2000 10000000"
        download = channel.unary_stream("/test.Wire/Count")(b"2000 5000", timeout=30)
        assert sum(len(message) for message in download) >= 10_000_000

    with_sync(scenario)


def test_metadata_and_details_both_ways() -> None:
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

    with_aio(scenario)


def test_a_cancelled_call_is_gone_at_the_server() -> None:
    async def main() -> None:
        async with (
            serving() as (server, port),
            grpc.aio.insecure_channel(f"{HOST}:{port}") as channel,
        ):
            call: Any = channel.stream_stream("/test.Wire/Wait")()
            await call.write(b"x")
            await until(lambda: len(server.connections) == 1)
            (connection,) = server.connections
            await until(lambda: len(connection.core.calls.streams) == 1)
            call.cancel()
            await until(lambda: not connection.core.calls.streams)

    run(main())


def test_a_deadline_is_told_by_either_side() -> None:
    async def scenario(channel: Any) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/test.Wire/Wait")(b"", timeout=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    with_aio(scenario)


def test_an_unknown_method_and_a_compressed_message() -> None:
    async def scenario(channel: Any) -> None:
        for path, compression in (
            ("/test.Wire/Nothing", None),
            ("/test.Wire/Echo", grpc.Compression.Gzip),
        ):
            call = channel.unary_unary(path)(bytes(5_000), compression=compression, timeout=5)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    with_aio(scenario)


def test_a_message_above_the_limit_is_refused_and_the_connection_goes_on() -> None:
    async def scenario(channel: Any) -> None:
        call = channel.unary_unary("/test.Wire/Echo")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(bytes(200_000), timeout=5)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await call(bytes(100_000), timeout=5) == bytes(100_000)

    with_aio(scenario, WireOptions(message_bytes_max=100_000))


def test_a_slow_reader_gets_everything() -> None:
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

    with_aio(scenario)


def test_a_hundred_streams_of_one_channel() -> None:
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

    with_aio(scenario)


def test_a_stopping_server_lets_calls_go_on() -> None:
    async def main() -> None:
        async with (
            serving() as (server, port),
            grpc.aio.insecure_channel(f"{HOST}:{port}") as channel,
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


def test_two_thousand_calls() -> None:
    async def scenario(channel: Any) -> None:
        call = channel.unary_unary("/test.Wire/Echo")
        for first in range(0, 2_000, 500):
            answers = await asyncio.gather(
                *(call(b"%d" % n, timeout=30) for n in range(first, first + 500))
            )
            assert answers == [b"%d" % n for n in range(first, first + 500)]

    with_aio(scenario)
