"""This client against stock grpcio servers, of asyncio and of threads, without and with TLS."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpcio_ends import OPTIONS, SECURITIES, SIZES, Security, security_of
from loops import run
from waiting import until
from wireserver import HOST

from ringmq_wire import Code, RpcError, WireChannel, WireOptions

METADATA = (("x-key", "value"), ("x-raw-bin", b"\x00\xff"), ("x-long", "y" * 5_000))
DETAILS = ("grpc-status-details-bin", b"\x08\x0a")
SPECIAL = "größer als 100 %\n"


def told(context: Any) -> list[tuple[str, Any]]:
    return [(k, v) for k, v in context.invocation_metadata() if k.startswith("x-")]


class AioMethods:
    """What a server of asyncio does."""

    @staticmethod
    async def echo(request: bytes, _: Any) -> bytes:
        return request

    @staticmethod
    async def echo_stream(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    @staticmethod
    async def count(request: bytes, _: Any) -> AsyncIterator[bytes]:
        number, size = map(int, request.split())
        for index in range(number):
            yield b"%d" % index + bytes(size)

    @staticmethod
    async def shout(_: bytes, context: Any) -> bytes:
        await context.send_initial_metadata(told(context))
        await context.abort(grpc.StatusCode.ABORTED, SPECIAL, (*told(context), DETAILS))
        return b""

    @staticmethod
    async def wait(_: bytes, __: Any) -> bytes:
        await asyncio.Event().wait()
        return b""


class SyncMethods:
    """The same, each in a thread."""

    @staticmethod
    def echo(request: bytes, _: Any) -> bytes:
        return request

    @staticmethod
    def echo_stream(requests: Iterator[bytes], _: Any) -> Iterator[bytes]:
        yield from requests

    @staticmethod
    def count(request: bytes, _: Any) -> Iterator[bytes]:
        number, size = map(int, request.split())
        for index in range(number):
            yield b"%d" % index + bytes(size)

    @staticmethod
    def shout(_: bytes, context: Any) -> bytes:
        context.send_initial_metadata(told(context))
        context.set_trailing_metadata((*told(context), DETAILS))
        context.abort(grpc.StatusCode.ABORTED, SPECIAL)
        return b""

    @staticmethod
    def wait(_: bytes, context: Any) -> bytes:
        over = threading.Event()
        if context.add_callback(over.set):
            over.wait()
        return b""


def handlers(methods: Any) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        "test.Wire",
        {
            "Echo": grpc.unary_unary_rpc_method_handler(methods.echo),
            "EchoStream": grpc.stream_stream_rpc_method_handler(methods.echo_stream),
            "Count": grpc.unary_stream_rpc_method_handler(methods.count),
            "Shout": grpc.unary_unary_rpc_method_handler(methods.shout),
            "Wait": grpc.unary_unary_rpc_method_handler(methods.wait),
        },
    )


@dataclass
class Running:
    """A server of grpcio that serves; `stop` lets calls go on for so long."""

    port: int
    stop: Callable[[float], Awaitable[Any]]


async def aio_server(security: Security, port: int = 0) -> Running:
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((handlers(AioMethods),))
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    port = security.add_port(server, port)
    await server.start()
    return Running(port, server.stop)


async def sync_server(security: Security, port: int = 0) -> Running:
    server = grpc.server(ThreadPoolExecutor(64), options=OPTIONS)
    server.add_generic_rpc_handlers((handlers(SyncMethods),))
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    port = security.add_port(server, port)
    server.start()

    async def stop(grace_s: float) -> None:
        await asyncio.to_thread(server.stop(grace_s).wait)

    return Running(port, stop)


@dataclass(frozen=True)
class Judge:
    """One of grpcio's servers, and how it is spoken to."""

    start: Callable[[Security, int], Awaitable[Running]]
    security: Security

    async def serve(self, port: int = 0) -> Running:
        return await self.start(self.security, port)

    @asynccontextmanager
    async def channel_to(
        self, port: int, options: WireOptions | None = None
    ) -> AsyncIterator[WireChannel]:
        channel = WireChannel(f"{HOST}:{port}", options, tls=self.security.of_client)
        try:
            yield channel
        finally:
            await channel.close()

    def judge(
        self, scenario: Callable[[WireChannel], Any], options: WireOptions | None = None
    ) -> None:
        async def main() -> None:
            server = await self.serve()
            try:
                async with self.channel_to(server.port, options) as channel:
                    await scenario(channel)
            finally:
                await server.stop(0)

        run(main())


@pytest.fixture(scope="module", params=SECURITIES)
def security(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Security:
    return security_of(request.param, tmp_path_factory)


@pytest.fixture(params=[aio_server, sync_server], ids=["aio", "sync"])
def judge(request: pytest.FixtureRequest, security: Security) -> Judge:
    return Judge(request.param, security)


def test_messages_of_all_sizes(judge: Judge) -> None:
    async def scenario(channel: WireChannel) -> None:
        for size in SIZES:
            body = random.Random(size).randbytes(size)
            assert await channel.unary("/test.Wire/Echo", body, timeout_s=20) == body

    judge.judge(scenario)


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


def test_a_stream_of_many_messages(judge: Judge) -> None:
    judge.judge(lambda channel: echo_all(channel, [b"%d" % n for n in range(5_000)]))


def test_a_stream_of_large_messages(judge: Judge) -> None:
    judge.judge(lambda channel: echo_all(channel, [bytes((n,)) * 300_000 for n in range(40)]))


def test_a_slow_reader_gets_everything_and_holds_the_server(judge: Judge) -> None:
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

    judge.judge(scenario, WireOptions(stream_window_bytes=65_535))


def test_metadata_and_details_both_ways(judge: Judge) -> None:
    async def scenario(channel: WireChannel) -> None:
        stream = await channel.stream("/test.Wire/Shout", metadata=METADATA)
        await stream.write(b"")
        stream.call.half_close()
        with pytest.raises(RpcError) as caught:
            await stream.read()
        status = caught.value.status
        assert (status.code, status.message) == (Code.ABORTED, SPECIAL)
        assert status.details == b"\x08\x0a"
        assert status.metadata == METADATA
        assert stream.initial_metadata is not None
        assert set(METADATA) <= set(stream.initial_metadata)

    judge.judge(scenario)


@pytest.mark.parametrize(
    ("path", "code"),
    [("/test.Wire/Nothing", Code.UNIMPLEMENTED), ("/test.Wire/Wait", Code.DEADLINE_EXCEEDED)],
)
def test_a_call_that_goes_wrong_says_how(judge: Judge, path: str, code: Code) -> None:
    async def scenario(channel: WireChannel) -> None:
        with pytest.raises(RpcError) as caught:
            await channel.unary(path, b"", timeout_s=0.2)
        assert caught.value.status.code is code

    judge.judge(scenario)


def test_a_cancelled_call_leaves_the_connection_open(judge: Judge) -> None:
    async def scenario(channel: WireChannel) -> None:
        for _ in range(20):
            stream = await channel.stream("/test.Wire/EchoStream")
            await stream.write(b"x")
            assert await stream.read() == b"x"
            stream.call.cancel()
        assert await channel.unary("/test.Wire/Echo", b"1") == b"1"

    judge.judge(scenario)


def test_health(judge: Judge) -> None:
    async def scenario(channel: WireChannel) -> None:
        request = health_pb2.HealthCheckRequest().SerializeToString()
        answer = await channel.unary("/grpc.health.v1.Health/Check", request)
        status = health_pb2.HealthCheckResponse.FromString(answer).status
        assert status == health_pb2.HealthCheckResponse.SERVING

    judge.judge(scenario)


def test_a_stopping_server_lets_calls_go_on_and_a_new_one_takes_over(judge: Judge) -> None:
    async def main() -> None:
        first = await judge.serve()
        async with judge.channel_to(first.port) as channel:
            stream = await channel.stream("/test.Wire/EchoStream")
            await stream.write(b"1")
            assert await stream.read() == b"1"
            connection = channel._current
            assert connection is not None
            stopping = asyncio.ensure_future(first.stop(10))
            await until(lambda: connection.core.calls.draining)
            second = await judge.serve(first.port)
            answer = await channel.unary("/test.Wire/Echo", b"2", wait_for_ready=True, timeout_s=10)
            assert answer == b"2"
            await stream.write(b"3")
            assert await stream.read() == b"3"
            stream.call.half_close()
            assert await stream.read() is None
            await stopping
            await second.stop(0)

    run(main())


def test_a_thousand_calls_at_once(judge: Judge) -> None:
    async def scenario(channel: WireChannel) -> None:
        answers = await asyncio.gather(
            *(channel.unary("/test.Wire/Echo", b"%d" % n, timeout_s=30) for n in range(1_000))
        )
        assert answers == [b"%d" % n for n in range(1_000)]

    judge.judge(scenario)
