"""Each call that names a queue, made by a stranger to an exclusive one, through a real node's door.

It is refused with `QUEUE_LOCKED`, or stands in `ALLOWED` with the reason. The calls come from the
descriptors of all services: a new one has to be entered here, whether it names a queue or not.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import Descriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status  # type: ignore[import-untyped]
from loops import run
from node.tests.nodes import lone_node

from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq.v1 import reader_pb2 as reader
from ringmq.v1 import ring_pb2 as ring
from ringmq.v1 import topology_pb2 as topology
from ringmq_node.doors.grpc.service import CONNECTION_KEY
from ringmq_node.node import Node

SERVICES = {
    name: module.DESCRIPTOR.services_by_name[name]
    for module, name in (
        (broker, "Broker"),
        (admin, "Admin"),
        (reader, "Reader"),
        (ring, "Ring"),
    )
}
METHODS: dict[str, MethodDescriptor] = {
    f"{name}/{method.name}": method
    for name, service in SERVICES.items()
    for method in service.methods
}
CALL_S_MAX = 10.0

X = "x"
BINDING = topology.Binding(source="amq.direct", destination=X, routing_key="k")
LEASE: dict[str, Any] = {"queue": X, "lease": "l"}
DEFINITIONS = {
    "queues": [{"name": X, "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}],
    "bindings": [
        {
            "source": "amq.direct",
            "vhost": "/",
            "destination": X,
            "destination_type": "queue",
            "routing_key": "imported",
            "arguments": {},
        }
    ],
}


@dataclass(frozen=True)
class Case:
    method: str
    request: Message

    def __str__(self) -> str:
        fields = [field.name for field, _ in self.request.ListFields()]
        return f"{self.method} {' '.join(fields)}"


def consume(**terms: Any) -> broker.ConsumeRequest:
    return broker.ConsumeRequest(open=broker.ConsumeOpen(queue=X, **terms))


def get(mode: broker.GetMode.ValueType) -> broker.GetMessagesRequest:
    return broker.GetMessagesRequest(queue=X, mode=mode)


# The deletions are last: for the queue's own connection they are carried out.
REFUSED = [
    Case("Broker/DeclareQueue", broker.DeclareQueueRequest(queue=X)),
    Case("Broker/DeclareQueue", broker.DeclareQueueRequest(queue=X, passive=True)),
    Case("Broker/SetQueueMode", broker.SetQueueModeRequest(queue=X, mode=common.QUEUE_MODE_LAZY)),
    Case("Broker/GetMessages", get(broker.GET_MODE_PEEK)),
    Case("Broker/GetMessages", get(broker.GET_MODE_REMOVE)),
    Case("Broker/Consume", consume()),
    Case("Broker/Consume", consume(pulls=True)),
    Case("Broker/Consume", consume(auto_ack=True)),
    Case("Broker/Bind", topology.BindRequest(binding=BINDING)),
    Case("Broker/Unbind", topology.UnbindRequest(binding=BINDING)),
    Case("Reader/QueueStat", reader.QueueStatRequest(queue=X)),
    Case("Reader/RangeEnd", reader.RangeEndRequest(queue=X)),
    Case("Reader/Browse", reader.BrowseRequest(queue=X)),
    Case("Reader/Browse", reader.BrowseRequest(queue=X, source=reader.BROWSE_SOURCE_ANY)),
    Case("Reader/AckUpTo", reader.AckUpToRequest(queue=X)),
    Case(
        "Reader/AcquireLease",
        reader.AcquireLeaseRequest(**LEASE, holder="h", instance=b"i", ttl_ms=5000),
    ),
    Case("Reader/RenewLease", reader.RenewLeaseRequest(**LEASE, token=1, ttl_ms=5000)),
    Case("Reader/ReleaseLease", reader.ReleaseLeaseRequest(**LEASE, token=1)),
    Case("Admin/DiscardDamaged", admin.DiscardDamagedRequest(queue=X)),
    Case("Broker/PurgeQueue", broker.PurgeQueueRequest(queue=X)),
    Case("Broker/DeleteQueue", broker.DeleteQueueRequest(queue=X, if_empty=True)),
    Case("Broker/DeleteQueue", broker.DeleteQueueRequest(queue=X)),
    Case("Broker/DeleteQueue", broker.DeleteQueueRequest(queue=X, force=True)),
]
PUBLISH = broker.PublishRequest(open=broker.PublishOpen(queue=X))
IMPORT = topology.ImportDefinitionsRequest(definitions=json.dumps(DEFINITIONS).encode())
LOOK = "a look from outside, as RabbitMQ's listings: counts and places, and nothing of the messages"
OPERATOR = (
    "an operator's work on the replicas of any queue: it neither reads messages nor takes any"
)
ALLOWED = [
    (Case("Broker/Publish", PUBLISH), "replies come from others"),
    (Case("Broker/GetQueue", broker.GetQueueRequest(queue=X)), LOOK),
    (Case("Broker/LocateQueue", broker.LocateQueueRequest(queue=X)), LOOK),
    (Case("Admin/ListQueues", admin.ListQueuesRequest(queues=[X])), LOOK),
    (Case("Admin/ListConsumers", admin.ListConsumersRequest(queue=X)), LOOK),
    (Case("Admin/ListBindings", topology.ListBindingsRequest(destination=X)), LOOK),
    (Case("Admin/GetReplica", admin.GetReplicaRequest(queue=X)), LOOK),
    (Case("Admin/VerifyQueue", admin.VerifyQueueRequest(queue=X)), OPERATOR),
    (Case("Admin/SyncQueue", admin.SyncQueueRequest(queue=X)), OPERATOR),
    (Case("Admin/PromoteMirror", admin.PromoteMirrorRequest(queue=X, node="a")), OPERATOR),
    (
        Case("Admin/ImportDefinitions", IMPORT),
        "it says which of its entries were refused, and declares the others",
    ),
]
# Of all queues, of those of a prefix or of a policy's pattern, or of none.
NAMES_NONE = frozenset(
    (
        "Broker/Connect",
        "Broker/DeclareExchange",
        "Broker/DeleteExchange",
        "Admin/GetClusterStatus",
        "Admin/SetPolicy",
        "Admin/DeletePolicy",
        "Admin/ListPolicies",
        "Admin/DrainNode",
        "Admin/ReviveNode",
        "Admin/ForgetNode",
        "Admin/RebalanceQueues",
        "Admin/GetResources",
        "Admin/ListConnections",
        "Admin/ListExchanges",
        "Admin/CreateVhost",
        "Admin/DeleteVhost",
        "Admin/ListVhosts",
        "Admin/ExportDefinitions",
    )
)
# Clients may call none of these, whatever they name.
NODES_ONLY = frozenset(name for name in METHODS if name.startswith("Ring/"))
# Fields in which a request says which queue it means.
NAMING = frozenset(("queue", "queues", "destination", "definitions"))


def field_names(message: Descriptor, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """Of a request and all that is in it."""
    for field in message.fields:
        yield field.name
        inner = field.message_type
        if inner is not None and inner.full_name not in seen:
            yield from field_names(inner, seen | {inner.full_name})


def test_every_call_is_listed_once_by_whether_it_names_a_queue() -> None:
    refused = {case.method for case in REFUSED}
    allowed = {case.method for case, _ in ALLOWED}
    lists = (refused, allowed, NAMES_NONE, NODES_ONLY)
    listed = [name for names in lists for name in names]
    assert sorted(listed) == sorted(METHODS)
    for name in NAMES_NONE:
        assert not NAMING & {*field_names(METHODS[name].input_type)}, name
    for name in refused | allowed:
        assert NAMING & {*field_names(METHODS[name].input_type)}, name


async def reason_of(channel: grpc.aio.Channel, case: Case, connection: str) -> str:
    """Why the call was refused; empty: it wasn't, and a stream has its first answer.

    A stream between nodes is refused for its head. grpcio says INTERNAL where that comes while it
    writes a message.
    """
    metadata = [(CONNECTION_KEY, connection)] if connection else []
    method = METHODS[case.method]
    path = f"/ringmq.v1.{case.method}"
    coders = (
        type(case.request).SerializeToString,
        GetMessageClass(method.output_type).FromString,
    )
    call: Any
    try:
        if method.client_streaming:
            call = channel.stream_stream(path, *coders)(timeout=CALL_S_MAX, metadata=metadata)
            if case.method not in NODES_ONLY:
                await call.write(case.request)
            await call.read()
            call.cancel()
        elif method.server_streaming:
            call = channel.unary_stream(path, *coders)
            async for _ in call(case.request, timeout=CALL_S_MAX, metadata=metadata):
                pass
        else:
            call = channel.unary_unary(path, *coders)
            await call(case.request, timeout=CALL_S_MAX, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        return refusal(error)
    return ""


def refusal(error: grpc.aio.AioRpcError) -> str:
    status = rpc_status.from_call(error)
    assert status is not None, f"{error.code()} {error.details()}"
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return str(info.reason)


class ExclusiveQueue:
    """Queue `x` of a node: exclusive to a connection, with a message, a binding and a lease."""

    def __init__(self, node: Node, channel: grpc.aio.Channel) -> None:
        self._node = node
        self._channel = channel
        self.owner = node.broker.orphans.open().id
        self.other = node.broker.orphans.open().id

    async def ask(self, method: str, request: Message, connection: str) -> Any:
        """The answer to a unary call that has to succeed."""
        call: Any = self._channel.unary_unary(
            f"/ringmq.v1.{method}",
            type(request).SerializeToString,
            GetMessageClass(METHODS[method].output_type).FromString,
        )
        return await call(request, metadata=[(CONNECTION_KEY, connection)] if connection else [])

    async def set_up(self) -> None:
        declare = broker.DeclareQueueRequest(queue=X, exclusive=True)
        await self.ask("Broker/DeclareQueue", declare, self.owner)
        await self.ask("Broker/Bind", topology.BindRequest(binding=BINDING), self.owner)
        take = reader.AcquireLeaseRequest(**LEASE, holder="h", instance=b"i", ttl_ms=60_000)
        await self.ask("Reader/AcquireLease", take, self.owner)

    async def seen(self) -> list[object]:
        """All that a stranger could have changed."""
        stat = await self.ask("Reader/QueueStat", reader.QueueStatRequest(queue=X), self.owner)
        stat.time_ms = 0
        asked = topology.ListBindingsRequest(destination=X)
        bindings = await self.ask("Admin/ListBindings", asked, "")
        info = await self.ask("Broker/GetQueue", broker.GetQueueRequest(queue=X), "")
        queue = info.queue
        return [stat, bindings, queue.id, queue.mode, queue.consumers, queue.messages_ready]


def with_queue(folder: Path, work: Any) -> None:
    async def main() -> None:
        node = await lone_node(folder)
        await node.start()
        try:
            async with (
                asyncio.timeout(60),
                grpc.aio.insecure_channel(node.address) as channel,
            ):
                queue = ExclusiveQueue(node, channel)
                await queue.set_up()
                publisher: Any = channel.stream_stream(
                    "/ringmq.v1.Broker/Publish",
                    broker.PublishRequest.SerializeToString,
                    broker.PublishResponse.FromString,
                )()
                await publisher.write(PUBLISH)
                batch = broker.PublishBatch(first_sequence=1, bodies=[b"answer"])
                await publisher.write(broker.PublishRequest(batch=batch))
                while not (await publisher.read()).HasField("confirmed"):
                    pass
                publisher.cancel()
                await work(queue, channel)
        finally:
            await node.stop()

    run(main())


def test_strangers_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async def work(queue: ExclusiveQueue, channel: grpc.aio.Channel) -> None:
        before = await queue.seen()
        for stranger in ("", queue.other):
            for case in REFUSED:
                assert await reason_of(channel, case, stranger) == "QUEUE_LOCKED", str(case)
                assert await queue.seen() == before, str(case)
            for case, why in ALLOWED:
                assert await reason_of(channel, case, stranger) == "", f"{case}: {why}"
                assert await queue.seen() == before, str(case)

    with_queue(tmp_path, work)


def test_its_own_connection_is_not(tmp_path: Path) -> None:
    async def work(queue: ExclusiveQueue, channel: grpc.aio.Channel) -> None:
        for case in REFUSED:
            await queue.set_up()
            assert await reason_of(channel, case, queue.owner) != "QUEUE_LOCKED", str(case)

    with_queue(tmp_path, work)


def test_an_import_says_that_the_queue_is_locked(tmp_path: Path) -> None:
    async def work(queue: ExclusiveQueue, channel: grpc.aio.Channel) -> None:
        imported = await queue.ask("Admin/ImportDefinitions", IMPORT, queue.other)
        assert imported.created == 0
        assert len(imported.failed) == 2
        assert all("exclusive to another connection" in line for line in imported.failed)
        # The queue's own connection has the binding made, and is told of the queue that differs.
        mine = await queue.ask("Admin/ImportDefinitions", IMPORT, queue.owner)
        assert (mine.created, mine.existing) == (1, 0)
        (differs,) = mine.failed
        assert "exists with exclusive yes, not no" in differs

    with_queue(tmp_path, work)


@pytest.mark.parametrize("method", sorted(NODES_ONLY))
def test_calls_between_nodes_are_not_a_client_s(method: str, tmp_path: Path) -> None:
    async def work(queue: ExclusiveQueue, channel: grpc.aio.Channel) -> None:
        request = GetMessageClass(METHODS[method].input_type)()
        assert await reason_of(channel, Case(method, request), queue.owner) == "ACCESS_REFUSED"

    with_queue(tmp_path, work)
