"""The answer of a get counts in the node's budget until its caller has taken it, or for so long."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from loops import run
from node.tests.nodes import lone_node
from waiting import until

import ringmq
from ringmq.v1 import broker_pb2 as broker
from ringmq_base.limits import KIB, MIB
from ringmq_node.node import Node
from ringmq_wire import CallHandler, Code, RpcStatus, WireChannel, WireOptions

ASKED = broker.GetMessagesRequest(
    queue="q", messages_max=100, bytes_max=MIB, mode=broker.GET_MODE_PEEK
).SerializeToString()


class Unread(CallHandler):
    """A caller that takes what comes, and gives no credit for it."""

    def __init__(self) -> None:
        self.bodies = 0
        self.status: RpcStatus | None = None

    def received(self, messages: list[bytes]) -> None:
        for message in messages:
            for delivery in broker.GetMessagesResponse.FromString(message).deliveries:
                self.bodies += len(delivery.bodies)

    def ended(self, status: RpcStatus) -> None:
        self.status = status


@pytest.mark.parametrize("is_taken", [True, False], ids=["is taken", "is never taken"])
def test_an_answer_counts_until(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_taken: bool
) -> None:
    if not is_taken:
        monkeypatch.setattr("ringmq_node.doors.grpc.service.TAKING_S", 0.2)

    async def story(node: Node, channel: WireChannel) -> None:
        async with ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                await publisher.publish_batch([bytes(50 * KIB)] * 10)
        gets = node.broker.buffers.gets
        handler = Unread()
        call = await channel.open("/ringmq.v1.Broker/GetMessages", handler)
        # The connection's window is used up: no part of a message is let through.
        connections = node._server.connections
        await until(lambda: any(each.core.calls.streams for each in connections))
        (connection,) = (each for each in connections if each.core.calls.streams)
        window = connection.core.outflow.window
        connection.core.outflow.window = 0
        call.send([ASKED])
        call.half_close()
        await until(lambda: gets.used_bytes == MIB)
        (stream,) = connection.core.calls.streams.values()
        await until(lambda: stream.queued_bytes > 500 * KIB)
        assert gets.used_bytes == MIB
        if is_taken:
            connection.core.outflow.widen_connection(window)
            connection.flush()
        await until(lambda: gets.used_bytes == 0)
        assert not stream.queued_bytes
        await until(lambda: handler.status is not None)
        assert handler.status is not None
        assert handler.status.code is (Code.OK if is_taken else Code.CANCELLED)
        assert handler.bodies == (10 if is_taken else 0)
        await until(lambda: not connection.core.calls.streams)

    async def main() -> None:
        node = await lone_node(tmp_path)
        await node.start()
        options = WireOptions(stream_window_bytes=4 * MIB, connection_window_bytes=4 * MIB)
        channel = WireChannel(node.address, options)
        try:
            async with asyncio.timeout(60):
                await story(node, channel)
        finally:
            await channel.close()
            await node.stop()

    run(main())
