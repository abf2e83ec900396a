"""A hundred thousand messages on one stream: in order, all of them, and in little memory."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

from loops import run
from wireserver import connected, serving

from ringmq_wire import CallStream, WireChannel, WireOptions, WireServer, streaming
from ringmq_wire.transport import WireProtocol

KIB = 1024
MIB = 1024 * 1024
MESSAGES = 100_000
NUMBER = struct.Struct(">Q")
REST = bytes(KIB - NUMBER.size)
# Of all that goes by, 98 MiB, so much may be in memory: windows and queues of both ends, a few
# inputs of the loop, and what the allocator keeps.
GROWTH_BYTES_MAX = 24 * MIB


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4 * KIB


class Memory:
    """The most bytes that the process and the two ends of a stream had; looked at again and
    again."""

    def __init__(self) -> None:
        self._before = resident_bytes()
        self.growth_bytes = self.queued_bytes = self.held_bytes = 0

    def look(self, *ends: WireProtocol) -> None:
        self.growth_bytes = max(self.growth_bytes, resident_bytes() - self._before)
        for end in ends:
            for stream in end.core.calls.streams.values():
                self.queued_bytes = max(self.queued_bytes, stream.queued_bytes)
                self.held_bytes = max(self.held_bytes, stream.held_bytes)


async def send_all(stream: CallStream) -> None:
    for first in range(0, MESSAGES, 100):
        await stream.write_batch([NUMBER.pack(first + n) + REST for n in range(100)])


async def receive_all(stream: CallStream, memory: Memory, *ends: WireProtocol) -> None:
    """At less than the sender's pace: it has to wait."""
    expected = 0
    while await stream.wait_message():
        memory.look(*ends)
        for message in await stream.read_batch():
            assert NUMBER.unpack_from(message) == (expected,)
            expected += 1
        # The loop has a turn in between, in which the sender could send everything.
        await asyncio.sleep(0)
    assert expected == MESSAGES


def ends_of(server: WireServer, channel: WireChannel) -> tuple[WireProtocol, WireProtocol]:
    (there,) = server.connections
    here = channel._current
    assert here is not None
    return here, there


def assert_bounded(memory: Memory) -> None:
    options = WireOptions()
    # It passes the mark by one batch, and is asked to pause then.
    assert 0 < memory.queued_bytes <= options.send_bytes_high + 100 * (KIB + 5)
    assert 0 < memory.held_bytes <= options.stream_window_bytes
    assert memory.growth_bytes <= GROWTH_BYTES_MAX


def test_a_hundred_thousand_messages_to_a_client() -> None:
    async def scenario() -> None:
        routes = {"/test.Wire/Long": streaming(send_all)}
        memory = Memory()
        async with serving(routes=routes) as (server, port):
            channel = WireChannel(f"127.0.0.1:{port}")
            stream = await channel.stream("/test.Wire/Long")
            await receive_all(stream, memory, *ends_of(server, channel))
            assert stream.status is not None
            await channel.close()
        assert_bounded(memory)

    run(scenario())


def test_a_hundred_thousand_messages_to_a_server() -> None:
    async def scenario() -> None:
        memory = Memory()
        ends: list[WireProtocol] = []

        async def take(stream: CallStream) -> None:
            await receive_all(stream, memory, *ends)
            await stream.write(b"all")

        routes = {"/test.Wire/Long": streaming(take)}
        async with serving(routes=routes) as (server, port):
            channel = WireChannel(f"127.0.0.1:{port}")
            stream = await channel.stream("/test.Wire/Long")
            ends += ends_of(server, channel)
            await send_all(stream)
            stream.half_close()
            assert await stream.read() == b"all"
            await channel.close()
        assert_bounded(memory)

    run(scenario())


def test_a_hundred_thousand_messages_there_and_back() -> None:
    """Never more than a window of them are under way, so none are kept back for a batch."""
    window = 100

    async def scenario() -> None:
        memory = Memory()
        async with connected() as (server, channel):
            stream = await channel.stream("/test.Wire/EchoStream")
            ends = ends_of(server, channel)
            sent = received = 0
            while received < MESSAGES:
                more = min(MESSAGES - sent, window - (sent - received))
                if more:
                    await stream.write_batch([NUMBER.pack(sent + n) for n in range(more)])
                    sent += more
                for message in await stream.read_batch():
                    assert message == NUMBER.pack(received)
                    received += 1
                memory.look(*ends)
            stream.half_close()
            assert await stream.read() is None
        assert memory.queued_bytes <= window * (NUMBER.size + 5)
        assert memory.held_bytes <= window * (NUMBER.size + 5)
        assert memory.growth_bytes <= GROWTH_BYTES_MAX

    run(scenario())
