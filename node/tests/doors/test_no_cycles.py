"""Streams that have ended go at once on a node, and aren't left to the garbage collector."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import cycles
import pytest
from cycles import collected_by_hand, living
from loops import run
from node.tests.nodes import lone_node, running_nodes

from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_gm import RingClosedError
from ringmq_node.broker.routing.session import RoutedSession
from ringmq_node.doors.grpc.blocked import BlockTeller
from ringmq_node.doors.grpc.connections import ConnectStream
from ringmq_node.doors.grpc.held import HeldBatches
from ringmq_node.doors.grpc.relay import _Pump
from ringmq_node.doors.grpc.routed import RoutedStream
from ringmq_node.doors.grpc.streams import ConsumeStream, PublishStream
from ringmq_node.doors.grpc.writer import StreamWriter
from ringmq_node.node import Node
from ringmq_node.resources.connection_states import ConnectionStates
from ringmq_node.resources.credit import Credit
from ringmq_node.resources.flow import Reasons
from ringmq_wire import CallStream, RpcError, WireCall, WireChannel
from ringmq_wire.connection import Connection
from ringmq_wire.transport import WireProtocol

DOOR = "/ringmq.v1.Broker"
STREAMS = (PublishStream, ConsumeStream, RoutedStream, RoutedSession, ConnectStream, StreamWriter)
ALL = (*STREAMS, CallStream, WireCall, WireProtocol, Connection)
NOTHING = broker.PublishRequest().SerializeToString()


@pytest.fixture(autouse=True)
def collector_is_off() -> Iterator[None]:
    with collected_by_hand():
        yield


gone = partial(cycles.gone, modules=("ringmq",), within_s=3)


async def published(channel: WireChannel) -> CallStream:
    return await _published(channel, broker.PublishOpen(queue="q", producer_id=b"p"))


async def routed(channel: WireChannel) -> CallStream:
    return await _published(channel, broker.PublishOpen(exchange=""))


async def _published(channel: WireChannel, opening: broker.PublishOpen) -> CallStream:
    stream = await channel.stream(f"{DOOR}/Publish")
    await stream.write(broker.PublishRequest(open=opening).SerializeToString())
    batch = broker.PublishBatch(first_sequence=1, bodies=[b"x"] * 3, routing_key="q")
    await stream.write(broker.PublishRequest(batch=batch).SerializeToString())
    confirmed = 0
    while confirmed < 3:
        answer = await stream.read()
        assert answer is not None
        for each in broker.PublishResponse.FromString(answer).confirmed.sequences:
            confirmed = each.last
    return stream


async def consumed(channel: WireChannel) -> CallStream:
    stream = await channel.stream(f"{DOOR}/Consume")
    opening = broker.ConsumeOpen(queue="q")
    await stream.write(broker.ConsumeRequest(open=opening).SerializeToString())
    while answer := await stream.read():
        found = broker.ConsumeResponse.FromString(answer).deliveries.deliveries
        if found:
            first = found[0].first_position
            settle = broker.Settle(ack=[common.Range(first=first, last=first)])
            await stream.write(broker.ConsumeRequest(settle=settle).SerializeToString())
            break
    return stream


async def pulled(channel: WireChannel) -> CallStream:
    stream = await channel.stream(f"{DOOR}/Consume")
    opening = broker.ConsumeOpen(queue="q", pulls=True)
    await stream.write(broker.ConsumeRequest(open=opening).SerializeToString())
    pull = broker.Pull(messages_max=1)
    await stream.write(broker.ConsumeRequest(pull=pull).SerializeToString())
    for _ in range(2):
        assert await stream.read() is not None
    return stream


async def connected(channel: WireChannel) -> CallStream:
    stream = await channel.stream(f"{DOOR}/Connect")
    await stream.write(broker.ConnectRequest(open=broker.ConnectOpen()).SerializeToString())
    assert await stream.read() is not None
    return stream


async def rest_of(stream: CallStream) -> None:
    while await stream.read() is not None:
        pass


async def finished(node: Node, stream: CallStream) -> None:
    stream.half_close()
    await rest_of(stream)


async def cancelled(node: Node, stream: CallStream) -> None:
    stream.cancel()


async def refused(node: Node, stream: CallStream) -> None:
    """For a message that can't be there."""
    await stream.write(NOTHING)
    with pytest.raises(RpcError, match="after Open"):
        await rest_of(stream)


async def aborted(node: Node, stream: CallStream) -> None:
    for connection in list(node._server.connections):
        connection.abandon()
    with pytest.raises(RpcError):
        await rest_of(stream)


Use = Callable[[WireChannel], Awaitable[CallStream]]
End = Callable[[Node, CallStream], Awaitable[None]]


ENDS = [finished, cancelled, refused, aborted]


async def declare(channel: WireChannel) -> None:
    """The queue q, with one replica."""
    asked = broker.DeclareQueueRequest(queue="q", replicas=1)
    await channel.unary(f"{DOOR}/DeclareQueue", asked.SerializeToString())


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("use", [published, routed, consumed, pulled, connected])
def test_a_stream_leaves_nothing(tmp_path: Path, use: Use, end: End) -> None:
    async def main() -> None:
        node = await lone_node(tmp_path)
        await node.start()
        try:
            async with asyncio.timeout(60):
                channel = WireChannel(node.address)
                await declare(channel)
                await finished(node, await published(channel))
                await end(node, await use(channel))
                await channel.close()
                del channel
                await gone(*ALL)
        finally:
            await node.stop()

    run(main())


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("use", [published, consumed])
def test_a_relayed_stream_leaves_nothing(tmp_path: Path, use: Use, end: End) -> None:
    async def main() -> None:
        async with running_nodes(tmp_path, "ab") as nodes, asyncio.timeout(60):
            to_master, channel = [WireChannel(node.address) for node in nodes.values()]
            await declare(to_master)
            await finished(nodes["a"], await published(to_master))
            await to_master.close()
            stream = await use(channel)
            assert living(_Pump)["_Pump"] == 1
            await end(nodes["b"], stream)
            del stream
            await channel.close()
            await gone(*STREAMS, _Pump)

    run(main())


class Failing:
    """A queue that takes nothing, and then fails."""

    queue_id = "q"

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.fails = asyncio.Event()

    def park(self, size_bytes: int) -> None: ...

    def block_reasons(self) -> Reasons:
        return ()

    async def wait_room(self, size_bytes: int) -> None:
        self.asked.set()
        await self.fails.wait()
        raise RingClosedError("its master is another one")


def test_batches_whose_queue_has_failed_leave_nothing() -> None:
    async def fail() -> None:
        queue = cast(Any, Failing())
        states = ConnectionStates("a", asyncio.get_running_loop().time, frozenset)
        with states.stream("ipv4:127.0.0.1:1") as peer:
            teller = BlockTeller(queue.block_reasons, lambda told: None, peer)
            held = HeldBatches(queue, Credit(1, 1, 1), teller)
            held.add(broker.PublishBatch(bodies=[b"x"]), 1, lambda batch: None)
            await queue.asked.wait()
            queue.fails.set()
            with pytest.raises(RingClosedError, match="another one"):
                await held.wait_credit()
            held.close()
            teller.close()
            with pytest.raises(RingClosedError, match="closed"):
                await held.wait_credit()

    async def main() -> None:
        await fail()
        await gone(HeldBatches, BlockTeller)

    run(main())
