"""Strangers on the port: each gets a clear answer or a closed connection, and the node goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message
from loops import run
from nemesis import Cluster
from nemesis.wire import RawStream, Refusal, call

import ringmq
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_base.limits import SETTLE_RANGES_MAX
from ringmq_node.doors.grpc.node_key import NodeKey

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

MESSAGE_BYTES_MAX = 64 * 1024
MIB = 1024 * 1024
UNARY = (
    "Broker/DeclareQueue",
    "Broker/DeleteQueue",
    "Broker/PurgeQueue",
    "Broker/GetQueue",
    "Broker/SetQueueMode",
    "Broker/LocateQueue",
    "Broker/GetMessages",
    "Admin/GetClusterStatus",
    "Admin/ListQueues",
    "Admin/PromoteMirror",
    "Admin/GetReplica",
    "Admin/GetResources",
    "Ring/FetchState",
)
SECRET = "the secret of two nodes"
AS_A_NODE = NodeKey(SECRET.encode(), "c").metadata
# A field of a wire type that does not exist.
GARBAGE = b"\xff\xff\xff\xff"


@asynccontextmanager
async def two_nodes(folder: Path) -> AsyncIterator[Cluster]:
    """A cluster of two with queue q, which has to work as before when the block is left."""
    async with (
        Cluster(
            folder,
            nodes=("a", "b"),
            message_bytes_max=MESSAGE_BYTES_MAX,
            cluster_secret=SECRET,
        ) as cluster,
        asyncio.timeout(30),
    ):
        await cluster.declare("q")
        yield cluster
        assert all(map(cluster.is_running, cluster.nodes))
        async with cluster.publishing("q", total=50) as load:
            await load.finishes(within_s=10)
        assert load.errors == []
        (await cluster.drained("q")).judge(load)
        for name in cluster.nodes:
            assert "Traceback" not in cluster.log(name, lines=1000), cluster.log(name)


def test_bytes_that_are_no_grpc(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as cluster:
            chance = random.Random(7)
            greetings = [
                b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                b"\x00" * 1000,
                chance.randbytes(100_000),
                # HTTP/2's own beginning, and then nonsense.
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + chance.randbytes(5000),
            ]
            for address in cluster.seeds:
                host, _, port = address.partition(":")
                for greeting in greetings:
                    reader, writer = await asyncio.open_connection(host, int(port))
                    writer.write(greeting)
                    # The node may close the connection while the test is still writing.
                    with suppress(ConnectionError):
                        await writer.drain()
                        async with asyncio.timeout(30):
                            await reader.read()  # Until the node closes it.
                    writer.transport.abort()

    run(story())


def test_methods_and_messages_that_are_not_ours(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as cluster:
            for address in cluster.seeds:
                for method in ("Broker/Nothing", "Nothing/GetQueue"):
                    with pytest.raises(Refusal) as caught:
                        await call(address, method, b"")
                    assert caught.value.code is grpc.StatusCode.UNIMPLEMENTED
                for method in UNARY:
                    with pytest.raises(Refusal) as caught:
                        await call(address, method, GARBAGE, AS_A_NODE)
                    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT, method
                    assert (caught.value.reason, caught.value.domain) == ("BAD_REQUEST", "ringmq")
                for method in ("Publish", "Consume"):
                    await stream_of_garbage(address, method)

    run(story())


async def stream_of_garbage(address: str, method: str) -> None:
    """Garbage as the first message of a stream, and after a good Open."""
    for opened in (False, True):
        async with RawStream(address, method) as stream:
            if opened and method == "Publish":
                await stream.open_publisher("q", b"p")
            elif opened:
                await stream.open_consumer("q")
            with pytest.raises(Refusal) as caught:
                await stream.sent(GARBAGE)
            assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
            assert caught.value.reason == "BAD_REQUEST"


def test_streams_in_the_wrong_order(tmp_path: Path) -> None:
    """A batch or an ack first, a second Open, nothing at all, ranges that run backwards or are too
    many."""

    async def story() -> None:
        async with two_nodes(tmp_path) as cluster:
            batch = broker.PublishRequest(batch=broker.PublishBatch(bodies=[b"x"]))
            ack = broker.ConsumeRequest(settle=broker.Settle(ack=[common.Range(first=0, last=9)]))
            backwards = broker.ConsumeRequest(
                settle=broker.Settle(ack=[common.Range(first=9, last=0)])
            )
            many = broker.ConsumeRequest(
                settle=broker.Settle(
                    ack=[common.Range()] * SETTLE_RANGES_MAX, requeue=[common.Range()]
                )
            )
            publish = broker.PublishRequest(open=broker.PublishOpen(queue="q"))
            consume = broker.ConsumeRequest(open=broker.ConsumeOpen(queue="q"))
            unknown = broker.ConsumeRequest(open=broker.ConsumeOpen(queue="nothing"))
            cases: list[tuple[str, list[Message], str]] = [
                ("Publish", [batch], "BAD_REQUEST"),
                ("Publish", [broker.PublishRequest()], "BAD_REQUEST"),
                ("Publish", [publish, publish], "BAD_REQUEST"),
                ("Consume", [ack], "BAD_REQUEST"),
                ("Consume", [consume, consume], "BAD_REQUEST"),
                ("Consume", [consume, backwards], "BAD_REQUEST"),
                ("Consume", [consume, ack], "UNKNOWN_DELIVERY"),
                ("Consume", [consume, many], "LIMIT_EXCEEDED"),
                ("Consume", [unknown], "QUEUE_NOT_FOUND"),
            ]
            for address in cluster.seeds:
                for method, requests, reason in cases:
                    async with RawStream(address, method) as stream:
                        with pytest.raises(Refusal) as caught:
                            await stream.sent(*requests)
                        assert caught.value.reason == reason, requests

    run(story())


def test_names(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as cluster, cluster.client() as client:
            for name in ("", "n" * 256, "é" * 128, "a\nb", "a\0b", "\x1f", "a\x7fb", "\x85"):
                with pytest.raises(ringmq.BadRequestError):
                    await client.queue(name)
                # Without a name the cluster makes one.
                if name:
                    with pytest.raises(ringmq.BadRequestError, match="1 to 255 bytes"):
                        await client.declare_queue(name)
            for name in ("n" * 255, "a/b c%2F../..", "ü€", ".."):
                await client.declare_queue(name)
                assert (await client.queue(name)).queue == name
                assert await client.delete_queue(name) == 0
            with pytest.raises(ringmq.QueueNotFoundError):
                await client.queue("nothing")
            with pytest.raises(ringmq.QueueNotFoundError):
                async with client.publisher("nothing"):
                    pass

    run(story())


def test_modes_that_there_are_not(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as cluster:
            unknown = common.QueueMode.ValueType(7)
            cases: list[tuple[str, Message]] = [
                ("DeclareQueue", broker.DeclareQueueRequest(queue="new", mode=unknown)),
                ("SetQueueMode", broker.SetQueueModeRequest(queue="q", mode=unknown)),
                ("SetQueueMode", broker.SetQueueModeRequest(queue="q")),
            ]
            for address in cluster.seeds:
                for method, request in cases:
                    with pytest.raises(Refusal) as caught:
                        await call(address, f"Broker/{method}", request.SerializeToString())
                    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
                    assert caught.value.metadata["field"] == "mode"
            async with cluster.client() as client:
                assert [each.queue for each in await client.queues()] == ["q"]
                with pytest.raises(ringmq.QueueNotFoundError):
                    await client.set_queue_mode("nothing", ringmq.QueueMode.LAZY)

    run(story())


def test_too_large_a_message(tmp_path: Path) -> None:
    """A message over the limit is refused by name; far over it, by its length, unread."""

    async def story() -> None:
        async with two_nodes(tmp_path) as cluster:
            async with cluster.client() as client, client.publisher("q") as publisher:
                with pytest.raises(ringmq.MessageTooLargeError) as large:
                    await publisher.publish(b"x" * (MESSAGE_BYTES_MAX + 1))
                assert large.value.limit_bytes == MESSAGE_BYTES_MAX
                assert large.value.size_bytes == MESSAGE_BYTES_MAX + 1
                await publisher.publish(b"p 0 ".ljust(MESSAGE_BYTES_MAX, b"."))
            for address in cluster.seeds:
                async with RawStream(address, "Publish") as stream:
                    await stream.open_publisher("q", b"p")
                    await stream.send_batch(1, [b"x" * (MESSAGE_BYTES_MAX + 1)])
                    rejected = (await stream.receive()).rejected
                    assert rejected.reason == common.REASON_MESSAGE_TOO_LARGE
                    assert not rejected.retryable
                    await stream.send_batch(1, [b"x" * (8 * MIB)])
                    with pytest.raises(Refusal, match="at most 1114112 are allowed") as caught:
                        await stream.receive()
                    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            async with cluster.client() as client:
                assert await client.purge_queue("q") == 1

    run(story())
