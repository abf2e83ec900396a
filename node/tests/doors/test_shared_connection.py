"""Publishers and consumers of one client share its connection to a node, and writes on it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from loops import run
from node.tests.nodes import called_node, running_nodes
from waiting import until

import ringmq
from ringmq.v1 import broker_pb2 as broker
from ringmq_base.pieces import timed_by
from ringmq_node.doors.grpc.service import RELAYED_KEY
from ringmq_node.node import Node
from ringmq_wire import CallStream, WireChannel

STREAMS = 100
CONFIRMED_QUEUES = 10
QUEUES = 6
PATHS = ("/ringmq.v1.Broker/Publish", "/ringmq.v1.Broker/Consume")


class CountedWrites:
    """A connection's transport; keeps what it was given to write, piece by piece."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.pieces.append(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def opened(channel: WireChannel, queue: str) -> CallStream:
    stream = await channel.stream(PATHS[0])
    opening = broker.PublishRequest(open=broker.PublishOpen(queue=queue))
    await stream.write(opening.SerializeToString())
    assert broker.PublishResponse.FromString(await stream.read() or b"").HasField("opened")
    return stream


async def confirmed(stream: CallStream) -> None:
    response = broker.PublishResponse.FromString(await stream.read() or b"")
    assert [(pair.first, pair.last) for pair in response.confirmed.sequences] == [(1, 1)], response


def test_confirms_of_a_hundred_streams_go_out_in_one_write(tmp_path: Path) -> None:
    """They are of ten queues; one round of the store has all their messages."""

    async def story(node: Node, channel: WireChannel) -> None:
        async with ringmq.connect(node.address) as client:
            for number in range(CONFIRMED_QUEUES):
                await client.declare_queue(f"q{number}")
        queues = [f"q{number % CONFIRMED_QUEUES}" for number in range(STREAMS)]
        streams = [await opened(channel, queue) for queue in queues]
        (connection,) = (each for each in node._server.connections if each.core.calls.streams)
        counted: Any = CountedWrites(connection._transport)
        connection._transport = counted
        batch = broker.PublishBatch(first_sequence=1, bodies=[b"x"])
        request = broker.PublishRequest(batch=batch).SerializeToString()
        # However busy the machine is, no piece of work ends in the midst of the streams.
        with timed_by(lambda: 0.0):
            for stream in streams:
                stream.call.send([request])
            await asyncio.gather(*map(confirmed, streams))
        # A frame of DATA with a confirm has more bytes than any that gives credit.
        writes = [piece for piece in counted.pieces if len(piece) > 100]
        assert len(writes) == 1, [len(piece) for piece in counted.pieces]
        for stream in streams:
            stream.cancel()

    async def main() -> None:
        async with called_node(tmp_path) as called, asyncio.timeout(60):
            await story(*called)

    run(main())


def of_clients(node: Node) -> list[int]:
    """The connections of clients by which messages come or go: how many streams each has."""
    found = []
    for connection in node._server.connections:
        calls = [stream.owner for stream in connection.core.calls.streams.values()]
        direct = [
            call
            for call in calls
            if call.path in PATHS and not any(key == RELAYED_KEY for key, _ in call.metadata)
        ]
        if direct:
            found.append(len(direct))
    return found


@pytest.mark.slow
def test_a_client_has_one_connection_to_each_node(tmp_path: Path) -> None:
    """Whatever number of publishers and consumers it has, of queues with masters on all nodes."""

    async def main() -> None:
        async with running_nodes(tmp_path, "abc") as nodes:
            first = nodes["a"].address
            async with ringmq.connect(first) as client, AsyncExitStack() as everyone:
                names = [f"q{number}" for number in range(QUEUES)]
                for name in names:
                    await client.declare_queue(name)
                masters = {(await client.queue(name)).master for name in names}
                assert len(masters) > 1
                publishers = [client.publisher(name) for name in names for _ in range(2)]
                consumers = [client.consumer(name) for name in names for _ in range(2)]
                for publisher in publishers:
                    await everyone.enter_async_context(publisher)
                for consumer in consumers:
                    await everyone.enter_async_context(consumer)
                count = len(publishers) + len(consumers)

                def streams() -> list[list[int]]:
                    return [of_clients(node) for node in nodes.values()]

                await until(lambda: sum(map(sum, streams())) == count, "all are open")
                assert max(map(len, streams())) == 1, streams()
                for publisher in publishers:
                    await publisher.publish(b"x")
                assert max(map(len, streams())) == 1, streams()

    run(main())
