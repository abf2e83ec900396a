"""Other people's HTTP/2 against our server: curl, nghttp2's nghttp and h2load, and h2spec.

The first come with Debian's packages curl and nghttp2-client; a test without its tool is skipped,
but not in CI (`judges`). h2spec is in no package of Debian's, so CI doesn't have it, and its test
runs where somebody has put the program on the PATH. `test_rules` and `test_faults` ask a server by
the same sections of the RFCs, everywhere (decision 0288).
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from commands import ended
from judges import judged_by
from loops import run
from wireserver import HOST, serving

from ringmq_wire import OK, CallHandler, WireCall, WireOptions, calls, heads
from ringmq_wire.compression import Headers
from ringmq_wire.heads import RequestHead

GRPC = ("-H", "content-type: application/grpc", "-H", "te: trailers")


def message(content: bytes) -> bytes:
    return struct.pack(">BL", 0, len(content)) + content


async def said(*command: str, exit_codes: Sequence[int] = (0,)) -> str:
    """What the tool prints; it must end well."""
    tool = await ended(*command)
    assert tool.exit_code in exit_codes, tool.out + tool.err
    return tool.out


@pytest.mark.parametrize("size", [0, 100, 65_536, 3_000_000])
def test_curl_gets_its_message_back_and_the_trailers(tmp_path: Path, size: int) -> None:
    judged_by("curl", package="curl")
    request, answer = tmp_path / "request", tmp_path / "answer"
    request.write_bytes(message(random.Random(size).randbytes(size)))

    async def scenario() -> None:
        async with serving() as (_, port):
            headers = await said(
                *("curl", "--http2-prior-knowledge", "--silent", "--show-error", *GRPC),
                *("--dump-header", "-", "--output", str(answer)),
                *("--data-binary", f"@{request}", f"http://{HOST}:{port}/test.Wire/Echo"),
            )
        assert headers.startswith("HTTP/2 200")
        assert "grpc-status: 0" in headers
        assert answer.read_bytes() == request.read_bytes()

    run(scenario())


def test_curl_is_told_what_is_no_grpc() -> None:
    """Only by requests that are whole: this curl forgets an answer that comes before, as its stream
    is reset then with NO_ERROR (RFC 9113, section 8.1)."""
    judged_by("curl", package="curl")

    async def scenario() -> None:
        async with serving() as (_, port):
            for words, http_status, status in (
                (("--get",), "405", "12"),
                (("--request", "POST", "-H", "content-type: text/plain"), "415", "2"),
                (("--data", "x", *GRPC), "200", "13"),
            ):
                headers = await said(
                    *("curl", "--http2-prior-knowledge", "--silent", "--show-error", *words),
                    *("--dump-header", "-", f"http://{HOST}:{port}/test.Wire/Echo"),
                )
                assert headers.startswith(f"HTTP/2 {http_status}"), headers
                assert f"grpc-status: {status}" in headers, headers

    run(scenario())


def test_nghttp_sees_frames_in_order(tmp_path: Path) -> None:
    """With padding, a tiny window, and CONTINUATION frames of its own making."""
    judged_by("nghttp", package="nghttp2-client")
    request = tmp_path / "request"
    request.write_bytes(message(bytes(300_000)))

    async def scenario() -> None:
        # Its own continuation frames are full of headers.
        wide = WireOptions(header_list_bytes_max=128 * 1024, header_block_bytes_max=128 * 1024)
        async with serving(wide) as (_, port):
            output = await said(
                *("nghttp", "--verbose", "--null-out", f"--data={request}"),
                *("--padding=100", "--window-bits=10", "--continuation", "--no-dep"),
                *(*GRPC, f"http://{HOST}:{port}/test.Wire/Echo"),
            )
        assert "grpc-status: 0" in output, output[-2000:]
        assert (
            re.search(r"recv GOAWAY|RST_STREAM frame.*\n.*error_code=(?!NO_ERROR)", output) is None
        )
        received = re.findall(r"recv DATA frame <length=(\d+)", output)
        assert sum(map(int, received)) == 300_005
        assert max(map(int, received)) <= 16_384

    run(scenario())


@pytest.mark.parametrize(("calls", "size"), [(4_000, 100), (200, 100_000)])
def test_h2load_has_every_call_answered(tmp_path: Path, calls: int, size: int) -> None:
    """Four connections with fifty calls each, all the time."""
    judged_by("h2load", package="nghttp2-client")
    request = tmp_path / "request"
    request.write_bytes(message(bytes(size)))

    async def scenario() -> None:
        async with serving() as (_, port):
            output = await said(
                *("h2load", f"--requests={calls}", "--clients=4", "--max-concurrent-streams=50"),
                *(f"--data={request}", *GRPC, f"http://{HOST}:{port}/test.Wire/Echo"),
            )
        assert f"{calls} succeeded, 0 failed, 0 errored, 0 timeout" in output, output
        assert f"status codes: {calls} 2xx" in output, output

    run(scenario())


class Answering(CallHandler):
    """Answers at once, and ends a little later: so many calls are open at a time."""

    def __init__(self, call: WireCall) -> None:
        self._call = call
        # Opened and ended in one input, perhaps.
        if not call.has_ended:
            call.send([b"answer"])

    def half_closed(self) -> None:
        asyncio.get_running_loop().call_later(0.05, self._call.finish, OK)


def test_h2spec_finds_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests are plain HTTP, and would be refused before their faults are looked for. So they
    are read as if they were gRPC's."""
    if shutil.which("h2spec") is None:
        pytest.skip("h2spec isn't on the PATH, and Debian has no package of it")
    strict = heads.read_request

    def read_as_grpc(headers: Headers) -> RequestHead:
        said = tuple(
            (name, b"POST" if name == b":method" and value in (b"GET", b"HEAD") else value)
            for name, value in headers
        )
        return strict((*said, (b"content-type", b"application/grpc")))

    monkeypatch.setattr(calls, "read_request", read_as_grpc)

    async def scenario() -> None:
        async with serving(WireOptions(streams_max=100), {"/": Answering}) as (_, port):
            command = ("h2spec", "--host", HOST, "--port", str(port), "--timeout", "5")
            output = await said(*command, exit_codes=(0, 1))
        assert re.search(r"14\d tests, 1[34]\d passed, \d skipped, 0 failed", output), output[
            -3000:
        ]

    run(scenario())
