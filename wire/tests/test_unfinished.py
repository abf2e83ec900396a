"""A peer that begins messages and doesn't end them: its bytes are bounded on all streams."""

from __future__ import annotations

import asyncio
import logging
import struct

import pytest
from loops import run
from waiting import until
from wirepair import REQUEST, End, request, server_ready
from wireserver import HOST, ROUTES

from ringmq_wire import Code, WireChannel, WireOptions, WireServer, frames
from ringmq_wire.events import CallEnded

MIB = 1024 * 1024
WINDOW = 65_535
OPTIONS = WireOptions(stream_window_bytes=WINDOW, unfinished_bytes_max=1 * MIB)
# A message of 65 530 bytes, but for the last of them.
BEGINNING = (struct.pack(">BL", 0, 65_530) + bytes(65_529))[:WINDOW]


def data(stream_id: int, content: bytes) -> bytes:
    return b"".join(
        frames.frame(frames.DATA, 0, stream_id, content[at : at + 16_384])
        for at in range(0, len(content), 16_384)
    )


def kept_bytes(end: End) -> int:
    return sum(s.reassembly.held_bytes for s in end.core.calls.streams.values())


def ended(end: End) -> list[CallEnded]:
    return [event for event in end.events if isinstance(event, CallEnded)]


def test_beginnings_on_many_streams_have_one_budget() -> None:
    server = server_ready(OPTIONS)
    for stream_id in range(1, 400, 2):
        server.receive(request(stream_id) + data(stream_id, BEGINNING))
        server.core.check()
        assert kept_bytes(server) <= 1 * MIB + WINDOW
        server.output()
    assert not server.core.closed
    refused = ended(server)
    assert len(refused) == 200 - 15
    assert {each.status.code for each in refused} == {Code.UNAVAILABLE}
    # Those that were begun in time go on, and make room.
    server.receive(frames.frame(frames.DATA, 0, 1, b"\0"))
    assert [len(message) for message in server.messages(1)] == [65_530]
    server.receive(request(401) + data(401, BEGINNING))
    assert len(ended(server)) == len(refused)
    server.core.check()


def test_pieces_of_one_byte_count_for_the_memory_that_they_take() -> None:
    server = server_ready(WireOptions(unfinished_bytes_max=100_000))
    for stream_id in range(1, 40, 2):
        server.receive(request(stream_id) + data(stream_id, struct.pack(">BL", 0, 5_000)))
        for _ in range(500):
            server.receive(frames.frame(frames.DATA, 0, stream_id, b"x"))
            server.output()
        server.core.check()
    # Three times 500 objects of 65 bytes.
    assert len(server.core.calls.streams) == 3


def test_one_large_message_passes_alone() -> None:
    server = server_ready(WireOptions(unfinished_bytes_max=WINDOW))
    server.receive(request(1) + data(1, struct.pack(">BL", 0, 2 * MIB)))
    for _ in range(2 * MIB // 16_384):
        server.receive(data(1, bytes(16_384)))
        server.output()
    assert [len(message) for message in server.messages()] == [2 * MIB]
    server.core.check()


def test_a_server_sheds_those_who_keep_the_most(caplog: pytest.LogCaptureFixture) -> None:
    """Connections without number, each below its own limit."""

    async def scenario() -> None:
        server = WireServer(ROUTES, OPTIONS, unfinished_bytes_max=3 * MIB)
        port = await server.listen(HOST, 0)
        honest = WireChannel(f"{HOST}:{port}")
        stream = await honest.stream("/test.Wire/EchoStream")
        await stream.write(bytes(30_000))
        assert await stream.read() == bytes(30_000)
        hostile = []
        echo = tuple(
            (name, b"/test.Wire/EchoStream" if name == b":path" else value)
            for name, value in REQUEST
        )
        begin = frames.PREFACE + frames.settings([])
        for stream_id in range(1, 30, 2):
            begin += request(stream_id, headers=echo) + data(stream_id, BEGINNING)
        try:
            for _ in range(6):
                _, writer = await asyncio.open_connection(HOST, port)
                writer.write(begin)
                hostile.append(writer)
            await until(lambda: len(server.connections) == 7)
            calls = [connection.core.calls for connection in server.connections]
            await until(lambda: all(each.last_peer_id in (1, 29) for each in calls))
            await until(lambda: server.unfinished.kept_bytes <= 3 * MIB, within_s=3)
            # Each of the six would keep fifteen streams.
            assert 15 <= sum(len(each.streams) for each in calls) - 1 <= 4 * 15
            await stream.write(b"after")
            assert await stream.read() == b"after"
        finally:
            for writer in hostile:
                writer.transport.abort()
            await honest.close()
            await server.stop(0)
        assert server.unfinished.kept_bytes == 0

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert any("unfinished messages" in record.message for record in caplog.records)
