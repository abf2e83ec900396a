"""The cases of gRPC's interop tests, with grpc-go's own programs for them as the other end.

The cases are those of interop-test-descriptions.md in github.com/grpc/grpc that need neither
compression nor anybody's credentials. `.ci/interop` builds grpc-go's programs of the sources of
Debian's package; without them the tests that want them are skipped, but not in CI (`judges`).
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import testservice as service
from certificates import client_tls, made_for_loopback, server_tls
from commands import succeeded
from judges import judged_by_built
from loops import run
from waiting import leeway
from wireserver import HOST

from ringmq_wire import CallStream, Code, Metadata, RpcError, RpcStatus, WireChannel, WireServer

# One server of grpc-go for all: they are tests of one worker.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("interop")]

CLIENT, SERVER = "grpc-go-interop-client", "grpc-go-interop-server"
Pair = tuple[Path, Path]
# What takes longer hangs.
CASE_S_MAX = 30.0
REQUEST_SIZES = (27_182, 8, 1_828, 45_904)
ANSWER_SIZES = (31_415, 9, 2_653, 58_979)
METADATA: Metadata = (
    (service.ECHOED_FIRST, "test_initial_metadata_value"),
    (service.ECHOED_LAST, b"\xab\xab\xab"),
)
SPECIAL = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"


# --- our client's part of each case ---


async def empty_unary(channel: WireChannel) -> None:
    assert await channel.unary(f"{service.SERVICE}/EmptyCall", b"") == b""


async def large_unary(channel: WireChannel) -> None:
    request = service.message(
        "SimpleRequest", response_size=314_159, payload=service.payload(271_828)
    )
    answer = await channel.unary(f"{service.SERVICE}/UnaryCall", request.SerializeToString())
    assert service.parsed("SimpleResponse", answer).payload == service.payload(314_159)


async def client_streaming(channel: WireChannel) -> None:
    stream = await opened(channel, "StreamingInputCall")
    for size in REQUEST_SIZES:
        await send(
            stream, service.message("StreamingInputCallRequest", payload=service.payload(size))
        )
    stream.half_close()
    answer = await stream.read()
    assert answer is not None
    assert service.parsed("StreamingInputCallResponse", answer).aggregated_payload_size == 74_922
    assert await stream.read() is None


async def server_streaming(channel: WireChannel) -> None:
    stream = await opened(channel, "StreamingOutputCall")
    await send(stream, output_request(*ANSWER_SIZES))
    stream.half_close()
    for size in ANSWER_SIZES:
        await receive(stream, size)
    assert await stream.read() is None


async def ping_pong(channel: WireChannel) -> None:
    stream = await opened(channel, "FullDuplexCall")
    for request_size, size in zip(REQUEST_SIZES, ANSWER_SIZES, strict=True):
        await send(stream, output_request(size, request_size=request_size))
        await receive(stream, size)
    stream.half_close()
    assert await stream.read() is None


async def empty_stream(channel: WireChannel) -> None:
    stream = await opened(channel, "FullDuplexCall")
    stream.half_close()
    assert await stream.read() is None


async def timeout_on_sleeping_server(channel: WireChannel) -> None:
    """The server answers nothing, as nothing is asked for."""
    # With a connection: else this would be a time-out of connecting.
    await empty_unary(channel)
    request = output_request(request_size=27_182)
    with pytest.raises(RpcError) as caught:
        await first_answer(channel, request, timeout_s=0.001)
    assert caught.value.status.code is Code.DEADLINE_EXCEEDED


async def cancel_after_begin(channel: WireChannel) -> None:
    stream = await opened(channel, "StreamingInputCall")
    # The head of the request is on its way.
    await asyncio.sleep(0)
    stream.cancel()
    assert (await failed(stream)).code is Code.CANCELLED
    await empty_unary(channel)


async def cancel_after_first_response(channel: WireChannel) -> None:
    stream = await opened(channel, "FullDuplexCall")
    await send(stream, output_request(31_415, request_size=27_182))
    await receive(stream, 31_415)
    stream.cancel()
    assert (await failed(stream)).code is Code.CANCELLED
    await empty_unary(channel)


async def custom_metadata(channel: WireChannel) -> None:
    for method, request in (
        (
            "UnaryCall",
            service.message("SimpleRequest", response_size=1, payload=service.payload(1)),
        ),
        ("FullDuplexCall", output_request(1, request_size=1)),
    ):
        stream = await opened(channel, method, metadata=METADATA)
        await send(stream, request)
        stream.half_close()
        assert await stream.read() is not None
        assert await stream.read() is None
        assert stream.initial_metadata is not None
        assert stream.status is not None
        assert METADATA[0] in stream.initial_metadata
        assert METADATA[1] in stream.status.metadata


async def status_code_and_message(channel: WireChannel) -> None:
    await told_status(channel, "UnaryCall", "SimpleRequest", "test status message")
    await told_status(
        channel, "FullDuplexCall", "StreamingOutputCallRequest", "test status message"
    )


async def special_status_message(channel: WireChannel) -> None:
    await told_status(channel, "UnaryCall", "SimpleRequest", SPECIAL)


async def unimplemented_method(channel: WireChannel) -> None:
    await unimplemented(channel, f"{service.SERVICE}/UnimplementedCall")


async def unimplemented_service(channel: WireChannel) -> None:
    await unimplemented(channel, "/grpc.testing.UnimplementedService/UnimplementedCall")


async def opened(
    channel: WireChannel, method: str, *, metadata: Metadata = (), timeout_s: float | None = None
) -> CallStream:
    path = f"{service.SERVICE}/{method}"
    return await channel.stream(path, metadata=metadata, timeout_s=timeout_s)


def output_request(*sizes: int, request_size: int = 0) -> Any:
    return service.message(
        "StreamingOutputCallRequest",
        response_parameters=[service.message("ResponseParameters", size=size) for size in sizes],
        payload=service.payload(request_size),
    )


async def first_answer(channel: WireChannel, request: Any, *, timeout_s: float) -> bytes | None:
    stream = await opened(channel, "FullDuplexCall", timeout_s=timeout_s)
    await send(stream, request)
    return await stream.read()


async def send(stream: CallStream, message: Any) -> None:
    await stream.write(message.SerializeToString())


async def receive(stream: CallStream, size: int) -> None:
    answer = await stream.read()
    assert answer is not None
    assert service.parsed("StreamingOutputCallResponse", answer).payload == service.payload(size)


async def failed(stream: CallStream) -> RpcStatus:
    with pytest.raises(RpcError) as caught:
        await stream.read()
    return caught.value.status


async def told_status(channel: WireChannel, method: str, request_name: str, text: str) -> None:
    stream = await opened(channel, method)
    told = service.message("EchoStatus", code=Code.UNKNOWN, message=text)
    await send(stream, service.message(request_name, response_status=told))
    stream.half_close()
    status = await failed(stream)
    assert (status.code, status.message) == (Code.UNKNOWN, text)


async def unimplemented(channel: WireChannel, path: str) -> None:
    with pytest.raises(RpcError) as caught:
        await channel.unary(path, b"")
    assert caught.value.status.code is Code.UNIMPLEMENTED


CASES: dict[str, Callable[[WireChannel], Awaitable[None]]] = {
    case.__name__: case
    for case in (
        empty_unary,
        large_unary,
        client_streaming,
        server_streaming,
        ping_pong,
        empty_stream,
        timeout_on_sleeping_server,
        cancel_after_begin,
        cancel_after_first_response,
        custom_metadata,
        status_code_and_message,
        special_status_message,
        unimplemented_method,
        unimplemented_service,
    )
}


# --- the tests ---


@pytest.fixture(scope="module", params=["plain", "tls"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair | None:
    """The server's certificate and its key; None without TLS."""
    if request.param == "plain":
        return None
    return made_for_loopback(tmp_path_factory.mktemp("tls"))


def wanted(program: str) -> None:
    judged_by_built(program, built_by=".ci/interop FOLDER")


@pytest.mark.parametrize(
    ("judges", "outcome"), [("required", pytest.fail.Exception), ("", pytest.skip.Exception)]
)
def test_a_missing_program_fails_in_ci_and_is_skipped_elsewhere(
    judges: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGMQ_JUDGES", judges)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(outcome, match=CLIENT):
        wanted(CLIENT)


def answers_on_loopback_only(port: int) -> None:
    """Another address of this machine reaches no server that listens on one address only."""
    ends_at = time.monotonic() + leeway(CASE_S_MAX)
    while True:
        with socket.socket() as one:
            if not one.connect_ex((HOST, port)):
                break
        assert time.monotonic() < ends_at, f"{SERVER} doesn't listen"
        time.sleep(0.01)
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.2", port)), f"{SERVER} is an old one: see .ci/interop"


@pytest.fixture(scope="module")
def go_port(pair: Pair | None) -> Iterator[int]:
    """The port of a server of grpc-go."""
    wanted(SERVER)
    with socket.socket() as found:
        found.bind((HOST, 0))
        port = int(found.getsockname()[1])
    command = [SERVER, f"-port={port}"]
    if pair is not None:
        command += ["-use_tls", f"-tls_cert_file={pair[0]}", f"-tls_key_file={pair[1]}"]
    with subprocess.Popen(command) as process:
        try:
            answers_on_loopback_only(port)
            yield port
        finally:
            process.kill()


async def play(case: str, port: int, pair: Pair | None) -> None:
    channel = WireChannel(f"{HOST}:{port}", tls=client_tls(pair) if pair else None)
    try:
        async with asyncio.timeout(CASE_S_MAX):
            # A server of grpc-go may have been started just now.
            await channel.unary(f"{service.SERVICE}/EmptyCall", b"", wait_for_ready=True)
            await CASES[case](channel)
    finally:
        await channel.close()


@pytest.mark.parametrize("case", CASES)
def test_our_client_and_a_server_of_grpc_go(case: str, go_port: int, pair: Pair | None) -> None:
    run(play(case, go_port, pair))


@pytest.mark.parametrize("case", CASES)
def test_a_client_of_grpc_go_and_our_server(case: str, pair: Pair | None) -> None:
    wanted(CLIENT)

    async def scenario() -> None:
        server = WireServer(service.TEST_SERVICE, tls=server_tls(pair, "h2") if pair else None)
        port = await server.listen(HOST, 0)
        words = [f"-server_host={HOST}", f"-server_port={port}", f"-test_case={case}"]
        if pair is not None:
            words += ["-use_tls", "-use_test_ca", f"-ca_file={pair[0]}"]
        try:
            await succeeded(CLIENT, *words, timeout_s=CASE_S_MAX)
        finally:
            await server.stop(0)

    run(scenario())


@pytest.mark.parametrize("case", CASES)
def test_our_client_and_our_server(case: str, pair: Pair | None) -> None:
    async def scenario() -> None:
        server = WireServer(service.TEST_SERVICE, tls=server_tls(pair, "h2") if pair else None)
        port = await server.listen(HOST, 0)
        try:
            await play(case, port, pair)
        finally:
            await server.stop(0)

    run(scenario())
