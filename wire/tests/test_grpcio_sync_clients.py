"""Stock grpcio's client with threads against this server, without and with TLS."""

from __future__ import annotations

import asyncio
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from grpcio_ends import SECURITIES, SIZES, Security, security_of
from loops import run
from waiting import until
from wireserver import serving

from ringmq_wire import WireOptions, WireServer

# What takes longer hangs.
CALL_S_MAX = 60.0


@pytest.fixture(scope="module", params=SECURITIES)
def security(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Security:
    return security_of(request.param, tmp_path_factory)


def with_sync(
    security: Security,
    scenario: Callable[[Any], None],
    options: WireOptions | None = None,
    beside: Callable[[WireServer], Any] | None = None,
) -> None:
    """The client's thread beside the server's loop, on which `beside` goes on meanwhile."""

    async def main() -> None:
        async with serving(options, tls=security.of_server) as (server, port):
            with ThreadPoolExecutor(1) as threads:

                def client() -> None:
                    with security.sync_channel(port) as channel:
                        scenario(channel)

                work = asyncio.get_running_loop().run_in_executor(threads, client)
                if beside is not None:
                    await beside(server)
                await work

    run(main())


class Requests:
    """The requests of one stream, which the test puts one by one; None ends them."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.put = self._waiting.put

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._waiting.get, None)


def test_messages_of_all_sizes(security: Security) -> None:
    def scenario(channel: Any) -> None:
        call = channel.unary_unary("/test.Wire/Echo")
        for size in SIZES:
            body = random.Random(size).randbytes(size)
            assert call(body, timeout=CALL_S_MAX) == body

    with_sync(security, scenario)


def test_a_stream_of_many_messages(security: Security) -> None:
    def scenario(channel: Any) -> None:
        bodies = [b"%d" % number for number in range(5_000)]
        answers = channel.stream_stream("/test.Wire/EchoStream")(iter(bodies), timeout=CALL_S_MAX)
        assert list(answers) == bodies
        assert answers.code() is grpc.StatusCode.OK

    with_sync(security, scenario)


@pytest.mark.slow
def test_a_hundred_thousand_messages(security: Security) -> None:
    def scenario(channel: Any) -> None:
        call = channel.unary_stream("/test.Wire/Count")
        for number, message in enumerate(call(b"100000 10", timeout=3 * CALL_S_MAX), 1):
            assert message == b"%d" % (number - 1) + bytes(10)
        assert number == 100_000

    with_sync(security, scenario)


def test_a_stream_of_large_messages(security: Security) -> None:
    def scenario(channel: Any) -> None:
        bodies = [bytes((n,)) * 300_000 for n in range(40)]
        answers = channel.stream_stream("/test.Wire/EchoStream")(iter(bodies), timeout=CALL_S_MAX)
        assert list(answers) == bodies

    with_sync(security, scenario)


def test_upload_and_download(security: Security) -> None:
    def scenario(channel: Any) -> None:
        upload = channel.stream_unary("/test.Wire/TakeAll")
        requests = iter([bytes(5_000)] * 2_000)
        assert upload(requests, timeout=CALL_S_MAX) == b"2000 10000000"
        download = channel.unary_stream("/test.Wire/Count")(b"2000 5000", timeout=CALL_S_MAX)
        assert sum(len(message) for message in download) >= 10_000_000

    with_sync(security, scenario)


def test_metadata_and_details_both_ways(security: Security) -> None:
    def scenario(channel: Any) -> None:
        sent = (("x-key", "value"), ("x-raw-bin", b"\x00\xff"), ("x-long", "y" * 5_000))
        call = channel.unary_unary("/test.Wire/Shout")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", metadata=sent, timeout=CALL_S_MAX)
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.ABORTED
        assert error.details() == "größer als 100 %\n"
        assert tuple(map(tuple, error.initial_metadata())) == sent
        trailing = set(map(tuple, error.trailing_metadata()))
        assert set(sent) < trailing
        assert ("grpc-status-details-bin", b"\x08\x0a") in trailing

    with_sync(security, scenario)


def test_a_cancelled_call_is_gone_at_the_server(security: Security) -> None:
    served = threading.Event()

    def scenario(channel: Any) -> None:
        requests = Requests()
        call = channel.stream_stream("/test.Wire/Wait")(iter(requests))
        requests.put(b"x")
        assert served.wait(CALL_S_MAX)
        call.cancel()
        requests.put(None)
        assert call.code() is grpc.StatusCode.CANCELLED

    async def beside(server: WireServer) -> None:
        def calls() -> int:
            return sum(len(each.core.calls.streams) for each in server.connections)

        await until(lambda: calls() == 1)
        served.set()
        await until(lambda: calls() == 0)

    with_sync(security, scenario, beside=beside)


@pytest.mark.parametrize(
    ("path", "compression", "code"),
    [
        ("/test.Wire/Wait", None, grpc.StatusCode.DEADLINE_EXCEEDED),
        ("/test.Wire/Nothing", None, grpc.StatusCode.UNIMPLEMENTED),
        ("/test.Wire/Echo", grpc.Compression.Gzip, grpc.StatusCode.UNIMPLEMENTED),
        pytest.param(
            "/test.Wire/Fail",
            None,
            grpc.StatusCode.UNKNOWN,
            marks=pytest.mark.logs("serving /test.Wire/Fail"),
        ),
    ],
    ids=["deadline", "unknown method", "compressed", "failed"],
)
def test_a_call_that_goes_wrong_says_how(
    security: Security, path: str, compression: Any, code: grpc.StatusCode
) -> None:
    timeout_s = 0.2 if code is grpc.StatusCode.DEADLINE_EXCEEDED else CALL_S_MAX

    def scenario(channel: Any) -> None:
        call = channel.unary_unary(path)
        with pytest.raises(grpc.RpcError) as caught:
            call(bytes(5_000), compression=compression, timeout=timeout_s)
        error: Any = caught.value
        assert error.code() is code
        answer = channel.unary_unary("/test.Wire/Echo")
        assert answer(b"next", timeout=CALL_S_MAX) == b"next"

    with_sync(security, scenario)


def test_a_message_above_the_limit_is_refused_and_the_connection_goes_on(
    security: Security,
) -> None:
    def scenario(channel: Any) -> None:
        call = channel.unary_unary("/test.Wire/Echo")
        with pytest.raises(grpc.RpcError) as caught:
            call(bytes(200_000), timeout=CALL_S_MAX)
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call(bytes(100_000), timeout=CALL_S_MAX) == bytes(100_000)

    with_sync(security, scenario, WireOptions(message_bytes_max=100_000))


def test_a_slow_reader_gets_everything(security: Security) -> None:
    def scenario(channel: Any) -> None:
        call = channel.unary_stream("/test.Wire/Count")(b"300 100000", timeout=CALL_S_MAX)
        number = 0
        for message in call:
            assert message.startswith(b"%d\0" % number)
            number += 1
            if number % 50 == 0:
                time.sleep(0.1)
        assert number == 300

    with_sync(security, scenario)


def test_fifty_streams_of_one_channel(security: Security) -> None:
    """All of them are open, and each has a thread of grpcio's that waits for its requests."""

    def scenario(channel: Any) -> None:
        requests = [Requests() for _ in range(50)]
        calls = [channel.stream_stream("/test.Wire/EchoStream")(iter(each)) for each in requests]
        for size in (1, 10_000, 100):
            for number, each in enumerate(requests):
                each.put(bytes((number,)) * size)
            for number, call in enumerate(calls):
                assert next(call) == bytes((number,)) * size
        for each in requests:
            each.put(None)
        for call in calls:
            assert next(call, None) is None
            assert call.code() is grpc.StatusCode.OK

    with_sync(security, scenario)


def test_a_stopping_server_lets_calls_go_on(security: Security) -> None:
    begun, stops = threading.Event(), threading.Event()

    def scenario(channel: Any) -> None:
        requests = Requests()
        call = channel.stream_stream("/test.Wire/EchoStream")(iter(requests))
        requests.put(b"1")
        assert next(call) == b"1"
        begun.set()
        assert stops.wait(CALL_S_MAX)
        requests.put(b"2")
        assert next(call) == b"2"
        requests.put(None)
        assert next(call, None) is None
        assert call.code() is grpc.StatusCode.OK

    async def beside(server: WireServer) -> None:
        await until(begun.is_set)
        (connection,) = server.connections
        stopping = asyncio.create_task(server.stop(CALL_S_MAX))
        await until(lambda: connection.core.calls.draining)
        stops.set()
        await stopping

    with_sync(security, scenario, beside=beside)


def test_two_thousand_calls(security: Security) -> None:
    def scenario(channel: Any) -> None:
        call = channel.unary_unary("/test.Wire/Echo")
        for first in range(0, 2_000, 500):
            futures = [
                call.future(b"%d" % n, timeout=CALL_S_MAX) for n in range(first, first + 500)
            ]
            answers = [future.result() for future in futures]
            assert answers == [b"%d" % n for n in range(first, first + 500)]

    with_sync(security, scenario)
