"""Stock gRPC clients on a node's port: each method, streams of all sizes, and each way to end.

Our own client isn't one of them, so what any other language's client relies on is asked here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from loops import run
from nemesis import Cluster
from nemesis.wire import RawStream, Refusal
from waiting import until

from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq.v1 import reader_pb2 as reader
from ringmq.v1 import ring_pb2 as ring
from ringmq.v1 import topology_pb2 as topology
from ringmq.v1.admin_pb2_grpc import AdminStub
from ringmq.v1.broker_pb2_grpc import BrokerStub
from ringmq.v1.reader_pb2_grpc import ReaderStub
from ringmq.v1.ring_pb2_grpc import RingStub
from ringmq_node.doors.grpc.node_key import NodeKey

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

MIB = 1024 * 1024
SIZES = [0, 1, 100, 16_384, 65_535, 65_536, 300_000, MIB, 4 * MIB - 100]
STUBS: dict[str, Any] = {
    "Broker": BrokerStub,
    "Admin": AdminStub,
    "Reader": ReaderStub,
    "Ring": RingStub,
}
OPTIONS = [
    ("grpc.max_receive_message_length", 64 * MIB),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]
TIMEOUT_S = 10.0


SECRET = "the secret of two nodes"
AS_A_NODE = NodeKey(SECRET.encode(), "c").metadata


def cluster_of_two(folder: Path) -> Cluster:
    return Cluster(folder, nodes=("a", "b"), message_bytes_max=4 * MIB, cluster_secret=SECRET)


def body(number: int) -> bytes:
    size = SIZES[number % len(SIZES)]
    return (b"%d " % number).ljust(size, b".")[:size]


def questions(queue_id: str) -> Iterator[tuple[str, Message, Callable[[Any], bool]]]:
    """Unary calls, in order, and what their answers have."""
    yield "Broker/DeclareQueue", broker.DeclareQueueRequest(queue="n"), lambda r: r.created
    yield "Broker/GetQueue", broker.GetQueueRequest(queue="n"), lambda r: r.queue.queue == "n"
    lazy = broker.SetQueueModeRequest(queue="n", mode=common.QUEUE_MODE_LAZY)
    yield "Broker/SetQueueMode", lazy, lambda r: r.before == common.QUEUE_MODE_DEFAULT
    yield "Broker/LocateQueue", broker.LocateQueueRequest(queue="n"), lambda r: r.address != ""
    peek = broker.GetMessagesRequest(queue="q", messages_max=1, mode=broker.GET_MODE_PEEK)
    yield "Broker/GetMessages", peek, lambda r: len(r.deliveries) == 1
    yield "Broker/PurgeQueue", broker.PurgeQueueRequest(queue="n"), lambda r: r.messages == 0
    status = admin.GetClusterStatusRequest(with_resources=True, with_queues_needing=True)
    yield "Admin/GetClusterStatus", status, lambda r: len(r.nodes) == 2
    yield "Admin/ListQueues", admin.ListQueuesRequest(), lambda r: len(r.queues) == 2
    yield "Admin/ListConnections", admin.ListConnectionsRequest(), lambda r: not r.silent_nodes
    consumers = admin.ListConsumersRequest(queue="q")
    yield "Admin/ListConsumers", consumers, lambda r: r.node != "" and not r.next
    yield "Admin/SyncQueue", admin.SyncQueueRequest(queue="q"), lambda r: not r.nodes
    yield "Admin/DiscardDamaged", admin.DiscardDamagedRequest(queue="q"), lambda r: not r.messages
    definition = admin.PolicyDefinition(mirrors=admin.Mirrors(count=2))
    policy = admin.Policy(name="p", pattern="^nothing$", definition=definition)
    yield "Admin/SetPolicy", admin.SetPolicyRequest(policy=policy), lambda r: r.created
    yield "Admin/ListPolicies", admin.ListPoliciesRequest(), lambda r: len(r.policies) == 1
    yield "Admin/DeletePolicy", admin.DeletePolicyRequest(name="p"), lambda r: True
    yield "Admin/RebalanceQueues", admin.RebalanceQueuesRequest(dry_run=True), lambda r: True
    yield "Admin/GetReplica", admin.GetReplicaRequest(queue="q"), lambda r: r.replica.node != ""
    yield "Admin/GetResources", admin.GetResourcesRequest(), lambda r: r.HasField("resources")
    state = ring.FetchStateRequest(queue=queue_id)
    yield "Ring/FetchState", state, lambda r: r.next_position > 0
    digests = ring.DigestMessagesRequest(queue=queue_id, first_position=0, last_position=9)
    yield "Ring/DigestMessages", digests, lambda r: len(r.digests) >= 16
    yield from topology_questions()
    yield "Reader/QueueStat", reader.QueueStatRequest(queue="q"), lambda r: r.end > 0
    whole = reader.RangeEndRequest(queue="q", messages_max=2)
    yield "Reader/RangeEnd", whole, lambda r: r.messages == 2
    yield "Reader/AckUpTo", reader.AckUpToRequest(queue="n"), lambda r: not r.messages
    lease = reader.AcquireLeaseRequest(
        queue="q", lease="l", holder="h", instance=b"i", ttl_ms=60_000
    )
    yield "Reader/AcquireLease", lease, lambda r: r.lease.holder == "h"
    yield "Reader/ReleaseLease", reader.ReleaseLeaseRequest(queue="q", lease="l"), lambda r: True
    yield "Broker/DeleteQueue", broker.DeleteQueueRequest(queue="n"), lambda r: True


def topology_questions() -> Iterator[tuple[str, Message, Callable[[Any], bool]]]:
    """Exchanges, bindings and vhosts: made, listed and gone."""
    shop = topology.CreateVhostRequest(vhost="shop")
    yield "Admin/CreateVhost", shop, lambda r: r.created
    yield "Admin/ListVhosts", topology.ListVhostsRequest(), lambda r: len(r.vhosts) == 2
    yield "Admin/DeleteVhost", topology.DeleteVhostRequest(vhost="shop"), lambda r: not r.queues
    export = topology.ExportDefinitionsRequest()
    yield "Admin/ExportDefinitions", export, lambda r: b'"q"' in r.definitions
    nothing = topology.ImportDefinitionsRequest(definitions=b"{}")
    yield "Admin/ImportDefinitions", nothing, lambda r: not r.created
    exchange = topology.Exchange(exchange="x", type="direct", durable=True)
    declare = topology.DeclareExchangeRequest(exchange=exchange)
    yield "Broker/DeclareExchange", declare, lambda r: r.created
    listed = topology.ListExchangesRequest()
    yield "Admin/ListExchanges", listed, lambda r: "x" in [each.exchange for each in r.exchanges]
    binding = topology.Binding(source="x", destination="n", routing_key="k")
    yield "Broker/Bind", topology.BindRequest(binding=binding), lambda r: r.created
    bound = topology.ListBindingsRequest(source="x")
    yield "Admin/ListBindings", bound, lambda r: len(r.bindings) == 1
    yield "Broker/Unbind", topology.UnbindRequest(binding=binding), lambda r: r.removed
    gone = topology.DeleteExchangeRequest(exchange="x")
    yield "Broker/DeleteExchange", gone, lambda r: True


WRONG_LEASES: list[dict[str, Any]] = [
    {"lease": "", "holder": "h", "instance": b"i", "ttl_ms": 1000},
    {"lease": "l" * 256, "holder": "h", "instance": b"i", "ttl_ms": 1000},
    {"lease": "l", "holder": "\n", "instance": b"i", "ttl_ms": 1000},
    {"lease": "l", "holder": "h", "instance": b"", "ttl_ms": 1000},
    {"lease": "l", "holder": "h", "instance": b"i" * 65, "ttl_ms": 1000},
    {"lease": "l", "holder": "h", "instance": b"i", "ttl_ms": 99},
    {"lease": "l", "holder": "h", "instance": b"i", "ttl_ms": 1 << 40},
]
# Refused: a node that is up isn't forgotten, and this one isn't drained for long.
REFUSED: list[tuple[str, Message, str]] = [
    ("Admin/ForgetNode", admin.ForgetNodeRequest(node="a"), "NODE_IS_UP"),
    ("Admin/DrainNode", admin.DrainNodeRequest(node="x"), "NODE_NOT_FOUND"),
    ("Admin/ReviveNode", admin.ReviveNodeRequest(node="x"), "NODE_NOT_FOUND"),
    ("Admin/PromoteMirror", admin.PromoteMirrorRequest(queue="q", node="x"), "NOT_A_MEMBER"),
    (
        "Reader/RenewLease",
        reader.RenewLeaseRequest(queue="q", lease="l", token=1, ttl_ms=1000),
        "LEASE_LOST",
    ),
    ("Reader/QueueStat", reader.QueueStatRequest(queue="none"), "QUEUE_NOT_FOUND"),
    ("Reader/RangeEnd", reader.RangeEndRequest(queue="q", first=1 << 63), "BAD_REQUEST"),
    ("Reader/AckUpTo", reader.AckUpToRequest(queue="q", end=1 << 63), "BAD_REQUEST"),
    (
        "Reader/AckUpTo",
        reader.AckUpToRequest(queue="q", numbering=reader.Numbering(queue_id="another")),
        "POSITIONS_MOVED",
    ),
    ("Reader/AckUpTo", reader.AckUpToRequest(queue="q", lease="none", token=9), "LEASE_LOST"),
    *(
        ("Reader/AcquireLease", reader.AcquireLeaseRequest(queue="q", **wrong), "BAD_REQUEST")
        for wrong in WRONG_LEASES
    ),
]
WRONG_BROWSES: list[dict[str, Any]] = [
    {"first": 3, "end": 2},
    {"first": 1 << 63},
    {"source": 9},
    {"encoding": 9},
]
STREAMS = {
    "Broker/Connect",
    "Broker/Publish",
    "Broker/Consume",
    "Admin/VerifyQueue",
    "Reader/Browse",
    "Ring/Link",
    "Ring/FetchMessages",
}


async def publish(address: str, queue: str, count: int) -> broker.PublishOpened:
    async with RawStream(address, "Publish") as stream:
        opened = await stream.open_publisher(queue, b"p")
        for number in range(count):
            await stream.send_batch(number + 1, [body(number)])
        await stream.confirmed_up_to(count)
        return opened


def method_of(channel: Any, method: str) -> Any:
    service, _, name = method.partition("/")
    asked = getattr(STUBS[service](channel), name)
    # Only nodes may call that one.
    return partial(asked, metadata=AS_A_NODE) if service == "Ring" else asked


def test_every_method(tmp_path: Path) -> None:
    services = [
        module.DESCRIPTOR.services_by_name.values() for module in (broker, admin, reader, ring)
    ]
    named = {f"{each.name}/{m.name}" for kind in services for each in kind for m in each.methods}
    asked = {method for method, _, _ in questions("")} | {method for method, _, _ in REFUSED}
    assert asked | STREAMS == named

    async def story() -> None:
        async with cluster_of_two(tmp_path) as cluster, asyncio.timeout(60):
            await cluster.declare("q")
            queue_id = (await publish(cluster.seeds[0], "q", len(SIZES))).queue_id
            await cluster.wait_synchronised("q")
            for address in cluster.seeds:
                async with grpc.aio.insecure_channel(address, OPTIONS) as channel:
                    await ask_everything(channel, queue_id)
                with grpc.insecure_channel(address, OPTIONS) as threaded:
                    await asyncio.to_thread(ask_in_a_thread, threaded, queue_id)

    run(story())


async def ask_everything(channel: Any, queue_id: str) -> None:
    for method, request, is_right in questions(queue_id):
        answer = await method_of(channel, method)(request, timeout=TIMEOUT_S)
        assert is_right(answer), (method, answer)
    for method, request, reason in REFUSED:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method_of(channel, method)(request, timeout=TIMEOUT_S)
        assert Refusal(caught.value).reason == reason
    verify = method_of(channel, "Admin/VerifyQueue")(
        admin.VerifyQueueRequest(queue="q"), timeout=TIMEOUT_S
    )
    assert [answer.done async for answer in verify][-1]
    browse = method_of(channel, "Reader/Browse")
    pieces = [piece async for piece in browse(reader.BrowseRequest(queue="q"), timeout=TIMEOUT_S)]
    assert [piece.first for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end == len(SIZES)
    assert pieces[0].runs[0].bodies[0] == body(0)
    for wrong in WRONG_BROWSES:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in browse(reader.BrowseRequest(queue="q", **wrong), timeout=TIMEOUT_S):
                pass
        assert Refusal(caught.value).reason == "BAD_REQUEST"
    fetch = ring.FetchMessagesRequest(
        queue=queue_id, positions=[common.Range(first=0, last=99)], bytes_max=64 * MIB
    )
    answers = method_of(channel, "Ring/FetchMessages")(fetch, timeout=TIMEOUT_S)
    runs = [each async for answer in answers for each in answer.runs]
    assert 0 < sum(each.count for each in runs) <= len(SIZES)
    # A link that begins with anything but a handshake is refused.
    link = method_of(channel, "Ring/Link")(
        iter([ring.LinkMessage(frames=b"\xff" * 9)]), timeout=TIMEOUT_S
    )
    with pytest.raises(grpc.aio.AioRpcError):
        assert [each async for each in link] == []


def ask_in_a_thread(channel: Any, queue_id: str) -> None:
    for method, request, is_right in questions(queue_id):
        assert is_right(method_of(channel, method)(request, timeout=TIMEOUT_S)), method


def test_streams_of_all_sizes(tmp_path: Path) -> None:
    """Through the master, and relayed; written and read by a thread, and by a task."""
    count = 2 * len(SIZES)

    async def story() -> None:
        async with cluster_of_two(tmp_path) as cluster, asyncio.timeout(60):
            for number, address in enumerate(cluster.seeds):
                queue = f"q{number}"
                await cluster.declare(queue)
                if await cluster.master_of(queue) != "a":
                    await cluster.wait_synchronised(queue)
                    await cluster.promote(queue, "a")
                with grpc.insecure_channel(address, OPTIONS) as threaded:
                    await asyncio.to_thread(publish_in_a_thread, threaded, queue, count)
                    got = await asyncio.to_thread(consume_in_a_thread, threaded, queue, count)
                assert got == [body(each) for each in range(count)]
                # Nothing was acknowledged, so all of it comes again.
                assert await consume_slowly(address, queue, count) == got

    run(story())


def publish_in_a_thread(channel: Any, queue: str, count: int) -> None:
    """As most do it: the requests come to an end, and the answers are read to theirs."""

    def requests() -> Iterator[broker.PublishRequest]:
        yield broker.PublishRequest(open=broker.PublishOpen(queue=queue, producer_id=b"p"))
        for number in range(count):
            batch = broker.PublishBatch(first_sequence=number + 1, bodies=[body(number)])
            yield broker.PublishRequest(batch=batch)

    # The generated types are those of grpc.aio.
    answers: Any = BrokerStub(channel).Publish(requests(), timeout=TIMEOUT_S)
    confirmed = [each for answer in answers for each in answer.confirmed.sequences]
    assert sum(each.last - each.first + 1 for each in confirmed) == count
    assert answers.code() is grpc.StatusCode.OK


def consume_in_a_thread(channel: Any, queue: str, count: int) -> list[bytes]:
    done = threading.Event()

    def requests() -> Iterator[broker.ConsumeRequest]:
        yield broker.ConsumeRequest(open=broker.ConsumeOpen(queue=queue))
        done.wait()

    bodies: list[bytes] = []
    try:
        answers: Any = BrokerStub(channel).Consume(requests(), timeout=TIMEOUT_S)
        while len(bodies) < count:
            deliveries = next(answers).deliveries.deliveries
            bodies += [each for run in deliveries for each in run.bodies]
    finally:
        done.set()
    assert answers.code() is grpc.StatusCode.OK
    return bodies


async def consume_slowly(address: str, queue: str, count: int) -> list[bytes]:
    async with RawStream(address, "Consume") as stream:
        await stream.open_consumer(queue)
        bodies: list[bytes] = []
        while len(bodies) < count:
            await asyncio.sleep(0.02)
            answer = await stream.receive()
            bodies += [each for run in answer.deliveries.deliveries for each in run.bodies]
        return bodies


def test_calls_that_end_early(tmp_path: Path) -> None:
    """Cancelled by the client, by its deadline, with its connection; and refused with details."""

    async def story() -> None:
        async with cluster_of_two(tmp_path) as cluster, asyncio.timeout(60):
            await cluster.declare("q")
            queue_id = (await publish(cluster.seeds[0], "q", 1)).queue_id

            async def consumers() -> int:
                return (await cluster.info("q")).consumers

            async def has_consumers(number: int) -> bool:
                return await consumers() == number

            for address in cluster.seeds:
                async with grpc.aio.insecure_channel(address, OPTIONS) as channel:
                    opening = broker.ConsumeRequest(open=broker.ConsumeOpen(queue="q"))
                    cancelled: Any = BrokerStub(channel).Consume()
                    await cancelled.write(opening)
                    assert (await cancelled.read()).HasField("opened")
                    cut: Any = BrokerStub(channel).Consume()
                    await cut.write(opening)
                    assert (await cut.read()).HasField("opened")
                    await until(lambda: has_consumers(2))
                    cancelled.cancel()
                    await until(lambda: has_consumers(1))
                    # The next one ends by its deadline, though it is alive.
                    late: Any = BrokerStub(channel).Consume(timeout=0.3)
                    await late.write(opening)
                    with suppress(grpc.aio.AioRpcError):
                        while await late.read() is not grpc.aio.EOF:
                            continue
                    assert await late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                    waits = ring.FetchStateRequest(queue=queue_id, number_min=10**9)
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await method_of(channel, "Ring/FetchState")(waits, timeout=0.3)
                    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                    nothing = broker.GetQueueRequest(queue="ä%")
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await method_of(channel, "Broker/GetQueue")(nothing, timeout=TIMEOUT_S)
                    refusal = Refusal(caught.value)
                    assert refusal.code is grpc.StatusCode.NOT_FOUND
                    assert (refusal.reason, refusal.metadata["queue"]) == ("QUEUE_NOT_FOUND", "ä%")
                # With its connection.
                await until(lambda: has_consumers(0))

    run(story())
