"""This client against stock grpcio servers, sync and aio."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from loops import run
from waiting import until
from wireserver import HOST

from ringmq_wire import Code, RpcError, WireChannel, WireOptions

MIB = 1024 * 1024
OPTIONS = [("grpc.max_receive_message_length", 16 * MIB), ("grpc.max_send_message_length", -1)]
SIZES = [0, 1, 5, 16_379, 16_384, 65_535, 65_536, MIB, 5 * MIB]


async def echo(request: bytes, _: Any) -> bytes:
    return request


async def echo_stream(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def count(request: bytes, _: Any) -> AsyncIterator[bytes]:
    number, size = map(int, request.split())
    for index in range(number):
        yield b"%d" % index + bytes(size)


async def shout(_: bytes, context: Any) -> bytes:
    metadata = [(k, v) for k, v in context.invocation_metadata() if k.startswith("x-")]
    await context.send_initial_metadata(metadata)
    trailing = (*metadata, ("grpc-status-details-bin", b"\x08\x0a"))
    await context.abort(grpc.StatusCode.ABORTED, "größer als 100 %\n", trailing)
    return b""


async def wait_for_ever(_: bytes, __: Any) -> bytes:
    await asyncio.Event().wait()
    return b""


def aio_handlers() -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        "test.Wire",
        {
            "Echo": grpc.unary_unary_rpc_method_handler(echo),
            "EchoStream": grpc.stream_stream_rpc_method_handler(echo_stream),
            "Count": grpc.unary_stream_rpc_method_handler(count),
            "Shout": grpc.unary_unary_rpc_method_handler(shout),
            "Wait": grpc.unary_unary_rpc_method_handler(wait_for_ever),
        },
    )


@asynccontextmanager
async def channel_to(port: int, options: WireOptions | None = None) -> AsyncIterator[WireChannel]:
    channel = WireChannel(f"{HOST}:{port}", options)
    try:
        yield channel
    finally:
        await channel.close()


def with_aio(scenario: Callable[[WireChannel], Any], options: WireOptions | None = None) -> None:
    async def main() -> None:
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((aio_handlers(),))
        checks = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        port = server.add_insecure_port(f"{HOST}:0")
        await server.start()
        try:
            async with channel_to(port, options) as channel:
                await scenario(channel)
        finally:
            await server.stop(0)

    run(main())


def with_sync(scenario: Callable[[WireChannel], Any]) -> None:
    def echo_sync(requests: Iterator[bytes], _: Any) -> Iterator[bytes]:
        yield from requests

    async def main() -> None:
        server = grpc.server(ThreadPoolExecutor(8), options=OPTIONS)
        methods: dict[str, Any] = {"EchoStream": grpc.stream_stream_rpc_method_handler(echo_sync)}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.Wire", methods),)
        )
        port = server.add_insecure_port(f"{HOST}:0")
        server.start()
        try:
            async with channel_to(port) as channel:
                await scenario(channel)
        finally:
            server.stop(0).wait()

    run(main())


def test_messages_of_all_sizes() -> None:
    async def scenario(channel: WireChannel) -> None:
        for size in SIZES:
            body = random.Random(size).randbytes(size)
            assert await channel.unary("/test.Wire/Echo", body, timeout_s=20) == body

    with_aio(scenario)


async def echo_all(channel: WireChannel, bodies: list[bytes]) -> None:
    stream = await channel.stream("/test.Wire/EchoStream", timeout_s=60)

    async def write() -> None:
        for body in bodies:
            await stream.write(body)
        stream.call.half_close()

    writing = asyncio.create_task(write())
    answers: list[bytes] = []
    while batch := await stream.read_batch():
        answers += batch
    await writing
    assert answers == bodies


@pytest.mark.parametrize("serve", [with_aio, with_sync], ids=["aio", "sync"])
def test_a_stream_of_many_messages(serve: Callable[[Callable[[WireChannel], Any]], None]) -> None:
    serve(lambda channel: echo_all(channel, [b"%d" % n for n in range(5_000)]))


@pytest.mark.parametrize("serve", [with_aio, with_sync], ids=["aio", "sync"])
def test_a_stream_of_large_messages(serve: Callable[[Callable[[WireChannel], Any]], None]) -> None:
    serve(lambda channel: echo_all(channel, [bytes((n,)) * 300_000 for n in range(40)]))


def test_a_slow_reader_gets_everything_and_holds_the_server() -> None:
    async def scenario(channel: WireChannel) -> None:
        stream = await channel.stream("/test.Wire/Count")
        await stream.write(b"3000 10000")
        stream.call.half_close()
        number = 0
        while (message := await stream.read()) is not None:
            assert message.startswith(b"%d\0" % number)
            number += 1
            if number % 500 == 0:
                await asyncio.sleep(0.1)
                assert stream.call.stream.held_bytes <= 65_535
        assert number == 3_000

    with_aio(scenario, WireOptions(stream_window_bytes=65_535))


def test_metadata_and_details_both_ways() -> None:
    async def scenario(channel: WireChannel) -> None:
        metadata = (("x-key", "value"), ("x-raw-bin", b"\x00\xff"), ("x-long", "y" * 5_000))
        stream = await channel.stream("/test.Wire/Shout", metadata=metadata)
        await stream.write(b"")
        stream.call.half_close()
        with pytest.raises(RpcError) as caught:
            await stream.read()
        status = caught.value.status
        assert (status.code, status.message) == (Code.ABORTED, "größer als 100 %\n")
        assert status.details == b"\x08\x0a"
        assert status.metadata == metadata
        assert stream.initial_metadata is not None
        assert set(metadata) <= set(stream.initial_metadata)

    with_aio(scenario)


@pytest.mark.parametrize(
    ("path", "code"),
    [("/test.Wire/Nothing", Code.UNIMPLEMENTED), ("/test.Wire/Wait", Code.DEADLINE_EXCEEDED)],
)
def test_a_call_that_goes_wrong_says_how(path: str, code: Code) -> None:
    async def scenario(channel: WireChannel) -> None:
        with pytest.raises(RpcError) as caught:
            await channel.unary(path, b"", timeout_s=0.2)
        assert caught.value.status.code is code

    with_aio(scenario)


def test_a_cancelled_call_leaves_the_connection_open() -> None:
    async def scenario(channel: WireChannel) -> None:
        for _ in range(20):
            stream = await channel.stream("/test.Wire/EchoStream")
            await stream.write(b"x")
            assert await stream.read() == b"x"
            stream.call.cancel()
        assert await channel.unary("/test.Wire/Echo", b"1") == b"1"

    with_aio(scenario)


def test_health() -> None:
    async def scenario(channel: WireChannel) -> None:
        request = health_pb2.HealthCheckRequest().SerializeToString()
        answer = await channel.unary("/grpc.health.v1.Health/Check", request)
        status = health_pb2.HealthCheckResponse.FromString(answer).status
        assert status == health_pb2.HealthCheckResponse.SERVING

    with_aio(scenario)


def test_a_stopping_server_lets_calls_go_on_and_a_new_one_takes_over() -> None:
    async def main() -> None:
        first = grpc.aio.server()
        first.add_generic_rpc_handlers((aio_handlers(),))
        port = first.add_insecure_port(f"{HOST}:0")
        await first.start()
        async with channel_to(port) as channel:
            stream = await channel.stream("/test.Wire/EchoStream")
            await stream.write(b"1")
            assert await stream.read() == b"1"
            connection = channel._current
            assert connection is not None
            stopping = asyncio.create_task(first.stop(10))
            await until(lambda: connection.core.calls.draining)
            second = grpc.aio.server()
            second.add_generic_rpc_handlers((aio_handlers(),))
            second.add_insecure_port(f"{HOST}:{port}")
            await second.start()
            answer = await channel.unary("/test.Wire/Echo", b"2", wait_for_ready=True, timeout_s=10)
            assert answer == b"2"
            await stream.write(b"3")
            assert await stream.read() == b"3"
            stream.call.half_close()
            assert await stream.read() is None
            await stopping
            await second.stop(0)

    run(main())


def test_a_thousand_calls_at_once() -> None:
    async def scenario(channel: WireChannel) -> None:
        answers = await asyncio.gather(
            *(channel.unary("/test.Wire/Echo", b"%d" % n, timeout_s=30) for n in range(1_000))
        )
        assert answers == [b"%d" % n for n in range(1_000)]

    with_aio(scenario)
