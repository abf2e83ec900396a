"""Hostile peers on the port of a node that serves others meanwhile.

Each flood ends its own connection with the GOAWAY that says why, the node's memory stays within a
bound, and a client of the same node goes on: it publishes with a window of one, and each of its
messages is confirmed in time. What a flood is stands in `wire/src/ringmq_wire/budgets.py`.
"""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest
from loops import run
from nemesis.attack import CONFIRMS, Attacked, attacked, call_to, connected
from wirepair import block, request

from ringmq.v1 import broker_pb2 as broker
from ringmq_base.limits import KIB, MIB
from ringmq_wire import frames
from ringmq_wire.codes import ErrorCode

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

# What the node may hold for its clients where the test says it.
BUFFER_BYTES_MAX = 16 * MIB
# Beside that: of each consumer one delivery, in several copies, and the store's cache.
UNREAD_GROWTH_BYTES_MAX = 120 * MIB
PUBLISH, GET = "/ringmq.v1.Broker/Publish", "/ringmq.v1.Broker/GetMessages"
U32 = struct.Struct(">L").pack


def raw(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frames.frame(kind, flags, stream_id, payload)


def rapid_resets() -> bytes:
    return b"".join(
        request(number, headers=call_to(PUBLISH)) + frames.rst_stream(number, ErrorCode.CANCEL)
        for number in range(1, 2_400, 2)
    )


def provoked_resets() -> bytes:
    """CVE-2025-8671: each stream is broken, so that the node resets it."""
    return b"".join(
        request(number, headers=call_to(PUBLISH)) + frames.window_update(number, 0)
        for number in range(1, 2_400, 2)
    )


OPEN = request(1, headers=call_to(PUBLISH))
CALM = ErrorCode.ENHANCE_YOUR_CALM
FIELDS = b"\x00\x01a\x01b" * 1_000
# What is sent behind the preface and SETTINGS, and the code that ends the connection.
FLOODS = {
    "rapid reset": (rapid_resets(), CALM),
    "provoked resets": (provoked_resets(), CALM),
    "SETTINGS": (frames.settings([(frames.INITIAL_WINDOW_SIZE, 70_000)]) * 20_000, CALM),
    "PING": (raw(frames.PING, 0, 0, bytes(8)) * 20_000, CALM),
    "PRIORITY": (raw(frames.PRIORITY, 0, 1, bytes(5)) * 20_000, CALM),
    "unknown frames": (raw(0x77, 0, 0, bytes(100)) * 20_000, CALM),
    "WINDOW_UPDATE": (frames.window_update(0, 1) * 20_000, CALM),
    "WINDOW_UPDATE of a stream": (OPEN + frames.window_update(1, 1) * 20_000, CALM),
    "empty DATA": (OPEN + raw(frames.DATA, 0, 1) * 20_000, CALM),
    "DATA of padding": (
        OPEN + raw(frames.DATA, frames.PADDED, 1, b"\xff" + bytes(255)) * 400,
        CALM,
    ),
    "empty CONTINUATION": (
        raw(frames.HEADERS, 0, 1, block()) + raw(frames.CONTINUATION, 0, 1) * 20_000,
        CALM,
    ),
    "CONTINUATION": (
        raw(frames.HEADERS, 0, 1, FIELDS) + raw(frames.CONTINUATION, 0, 1, FIELDS) * 1_000,
        CALM,
    ),
    "header bomb": (
        # An entry of 4000 bytes in the table, and 10 000 references to it.
        raw(frames.HEADERS, 4, 1, b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4_000 + b"\xbe" * 10_000),
        CALM,
    ),
    "a frame too large": (b"\xff\xff\xff" + bytes(1 << 20), ErrorCode.FRAME_SIZE_ERROR),
    "a window too large": (frames.window_update(0, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
}


async def flood(node: Attacked, data: bytes) -> ErrorCode | None:
    """Over one connection, until the node has ended it."""
    peer = await connected(node.address)
    peer.transport.write(frames.PREFACE + frames.settings([]) + data)
    while not peer.lost.done():
        node.look()
        await asyncio.wait([peer.lost], timeout=0.02)
    return peer.goaway


def test_a_flood_ends_its_own_connection_and_is_told_why(tmp_path: Path) -> None:
    async def story() -> None:
        async with attacked(tmp_path) as node:
            for what, (data, code) in FLOODS.items():
                # Over one connection after the other.
                until_confirms = node.calm.confirms + CONFIRMS
                times = 0
                while node.calm.confirms < until_confirms:
                    assert await flood(node, data) is code, what
                    times += 1
                assert times
                node.assert_untouched(what)

    run(story())


def peeks(count: int, first: int) -> bytes:
    """So many calls for 4 MiB of messages, each message of the queue as often as it likes."""
    asked = broker.GetMessagesRequest(
        queue="large", messages_max=1_000, bytes_max=4 * MIB, mode=broker.GET_MODE_PEEK
    ).SerializeToString()
    message = struct.pack(">BL", 0, len(asked)) + asked
    return b"".join(
        request(number, headers=call_to(GET)) + raw(frames.DATA, frames.END_STREAM, number, message)
        for number in range(first, first + 2 * count, 2)
    )


@pytest.mark.parametrize("window", [0, 1_000], ids=["no window", "a small window"])
def test_answers_that_nobody_reads_are_bounded(tmp_path: Path, window: int) -> None:
    """Of 150 calls each would have 4 MiB of answer. Without a window nothing of them can be sent;
    the peer asks each second again, so that it is no idle one."""

    async def story() -> None:
        async with attacked(tmp_path, buffer_bytes_max=BUFFER_BYTES_MAX) as node:
            async with node.cluster.client() as client:
                await client.declare_queue("large")
                async with client.publisher("large") as publisher:
                    await publisher.publish_batch([bytes(64 * KIB)] * 100)
            node.before = node.cluster.resident_bytes("a")
            peer = await connected(node.address)
            settings = frames.settings([(frames.INITIAL_WINDOW_SIZE, window)])
            peer.transport.write(frames.PREFACE + settings)
            for turn in range(3):
                peer.transport.write(peeks(50, first=1 + 100 * turn))
                confirms = node.calm.confirms
                for _ in range(50):
                    node.look()
                    await asyncio.sleep(0.02)
                assert node.calm.confirms > confirms
            node.assert_untouched("unread answers")
            assert peer.goaway is None
            peer.transport.abort()

    run(story())


def test_a_consumer_that_does_not_read_is_bounded(tmp_path: Path) -> None:
    """There are 300 MiB for its twenty streams, whose windows are all open, and it reads nothing.
    All of them were given out in one turn of the loop, whatever the budget said."""

    async def story() -> None:
        # What the queue itself keeps of them is little.
        bounds = {"buffer_bytes_max": BUFFER_BYTES_MAX, "queue_memory_bytes_max": 4 * MIB}
        async with attacked(tmp_path, **bounds) as node:
            async with node.cluster.client() as client:
                await client.declare_queue("large")
                async with client.publisher("large") as publisher:
                    for _ in range(48):
                        await publisher.publish_batch([bytes(64 * KIB)] * 100)
            node.before = node.cluster.resident_bytes("a")
            peer = await connected(node.address)
            peer.transport.pause_reading()
            opening = broker.ConsumeRequest(
                open=broker.ConsumeOpen(queue="large", prefetch_messages=10_000)
            ).SerializeToString()
            message = struct.pack(">BL", 0, len(opening)) + opening
            settings = frames.settings([(frames.INITIAL_WINDOW_SIZE, 2**30)])
            peer.transport.write(
                frames.PREFACE
                + settings
                + frames.window_update(0, 2**30)
                + b"".join(
                    request(number, headers=call_to("/ringmq.v1.Broker/Consume"))
                    + raw(frames.DATA, 0, number, message)
                    for number in range(1, 40, 2)
                )
            )
            confirms = node.calm.confirms
            for _ in range(100):
                node.look()
                await asyncio.sleep(0.02)
            assert node.calm.confirms > confirms
            node.assert_untouched("unread deliveries", UNREAD_GROWTH_BYTES_MAX)
            peer.transport.abort()

    run(story())
