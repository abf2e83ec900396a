"""Stock grpc-go both ways: its client against our server, and our client against its server.

The program is `grpc_go/peer.go`, built of Debian's golang-go and golang-google-grpc-dev. Without
these the tests are skipped, but not in CI (`judges`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO

import pytest
from commands import succeeded
from grpc_health.v1 import health_pb2
from judges import without
from loops import run
from wireserver import HOST, ROUTES, serving

from ringmq_wire import Code, RpcError, RpcStatus, WireCall, WireChannel, WireOptions, unary

# One build for all: they are tests of one worker.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("grpc-go")]

SOURCE = Path(__file__).parent / "grpc_go" / "peer.go"
GO_PATH = Path("/usr/share/gocode")
BUILD_S_MAX = 300.0
# What takes longer hangs.
PEER_S_MAX = 60.0
# As gRPC's interop tests have it.
SPECIAL = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"
METADATA = (("x-text", "a b"), ("x-raw-bin", b"\x00\xff\n"))
SIZES = [0, 1, 5, 16_379, 16_384, 65_535, 65_536, 1 << 20, 5 << 20]
CASES = """\
many sizes
many calls
ping pong
empty stream
server streaming
client streaming
status and metadata
deadline and cancel
refusals
"""


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program. Go keeps what it has compiled in its own cache: the first build takes half a
    minute of a busy machine, a second one no time."""
    missing = [
        package
        for package, found in (
            ("golang-go", shutil.which("go") is not None),
            ("golang-google-grpc-dev", (GO_PATH / "src/google.golang.org/grpc").is_dir()),
        )
        if not found
    ]
    if missing:
        without("grpc-go", *missing)
    folder = tmp_path_factory.mktemp("grpc_go")
    program = folder / "peer"
    environment = {
        # Without it Go has no place for its cache.
        "HOME": str(folder),
        **os.environ,
        "GO111MODULE": "off",
        "GOFLAGS": "",
        "GOPATH": str(GO_PATH),
        "CGO_ENABLED": "0",
    }
    command = ["go", "build", "-o", str(program), str(SOURCE)]
    subprocess.run(command, env=environment, check=True, timeout=BUILD_S_MAX)
    return program


async def refuse(request: bytes, call: WireCall) -> bytes:
    told = tuple((name, value) for name, value in call.metadata if name.startswith("x-"))
    call.respond(told)
    raise RpcError(RpcStatus(Code.NOT_FOUND, SPECIAL, metadata=told))


def test_a_client_of_grpc_go_is_served(peer: Path) -> None:
    async def scenario() -> None:
        routes = {**ROUTES, "/test.Wire/Refuse": unary(refuse)}
        async with serving(routes=routes) as (_, port):
            assert await succeeded(peer, "call", f"{HOST}:{port}") == CASES

    run(scenario())


@contextmanager
def server_of(peer: Path) -> Iterator[IO[bytes]]:
    """Runs the server; its first line is its port."""
    with subprocess.Popen([peer, "serve"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()


@asynccontextmanager
async def channel_to(peer: Path) -> AsyncIterator[WireChannel]:
    """A channel to a server of grpc-go."""
    with server_of(peer) as said:
        async with asyncio.timeout(PEER_S_MAX):
            port = int(await asyncio.to_thread(said.readline))
            channel = WireChannel(f"{HOST}:{port}", WireOptions(message_bytes_max=32 << 20))
            try:
                yield channel
            finally:
                await channel.close()


def test_a_server_of_grpc_go_answers_messages_and_streams(peer: Path) -> None:
    async def scenario() -> None:
        async with channel_to(peer) as channel:
            for size in SIZES:
                body = bytes(size)
                assert await channel.unary("/test.Wire/Echo", body, timeout_s=20) == body
            bodies = [b"%d" % number for number in range(200)]
            calls = (channel.unary("/test.Wire/Echo", body, timeout_s=20) for body in bodies)
            assert await asyncio.gather(*calls) == bodies
            stream = await channel.stream("/test.Wire/EchoStream")
            for size in (27_182, 8, 0, 1_828, 45_904, 300_000):
                await stream.write(bytes(size))
                assert await stream.read() == bytes(size)
            stream.half_close()
            assert await stream.read() is None
            stream = await channel.stream("/test.Wire/Count")
            await stream.write(b"5000 1000")
            stream.half_close()
            for number in range(5_000):
                assert await stream.read() == b"%d" % number + bytes(1_000)
            assert await stream.read() is None
            stream = await channel.stream("/test.Wire/TakeAll")
            for _ in range(5_000):
                await stream.write(bytes(1_000))
            stream.half_close()
            assert await stream.read() == b"5000 5000000"
            path = "/grpc.health.v1.Health/Check"
            answer = health_pb2.HealthCheckResponse.FromString(await channel.unary(path, b""))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING

    run(scenario())


async def refused(channel: WireChannel, method: str, timeout_s: float = 20) -> RpcStatus:
    with pytest.raises(RpcError) as caught:
        await channel.unary(f"/test.Wire/{method}", b"", metadata=METADATA, timeout_s=timeout_s)
    return caught.value.status


def test_a_server_of_grpc_go_refuses_with_status_and_metadata(peer: Path) -> None:
    async def scenario() -> None:
        async with channel_to(peer) as channel:
            status = await refused(channel, "Refuse")
            assert (status.code, status.message) == (Code.NOT_FOUND, SPECIAL)
            assert set(METADATA) <= set(status.metadata)
            assert (await refused(channel, "Nothing")).code is Code.UNIMPLEMENTED
            assert (await refused(channel, "Wait", 0.1)).code is Code.DEADLINE_EXCEEDED
            stream = await channel.stream("/test.Wire/EchoStream")
            await stream.write(b"first")
            assert await stream.read() == b"first"
            stream.cancel()
            assert await channel.unary("/test.Wire/Echo", b"next", timeout_s=20) == b"next"

    run(scenario())


def test_calls_go_on_while_a_server_of_grpc_go_ends_its_connections(peer: Path) -> None:
    """Each 0.3 s, by GOAWAY, twice, with a PING in between."""

    async def scenario() -> None:
        async with channel_to(peer) as channel:
            ends_at = asyncio.get_running_loop().time() + 2
            calls = 0
            while asyncio.get_running_loop().time() < ends_at:
                assert await channel.unary("/test.Wire/Echo", b"x", timeout_s=20) == b"x"
                calls += 1
            assert calls > 10

    run(scenario())
