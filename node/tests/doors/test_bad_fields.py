"""Each number, text and enum of each unary request, with values that can't be, through a real
node's door. The refusal has to name the field, or the one that has it. Both values
of a bool can be; streams are in `test_bad_stream_fields`.

The fields come from the descriptors, so none can be left out: a new call needs a row in `GOOD`,
and a new field is refused with what can't be, or stands in `ANYTHING` with those that take all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status  # type: ignore[import-untyped]
from loops import run
from node.tests.nodes import lone_node

import ringmq
from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq.v1 import reader_pb2 as reader
from ringmq.v1 import topology_pb2 as topology
from ringmq_node.doors.grpc.service import parse_request
from ringmq_node.model.reasons import BrokerError

SERVICES = [
    module.DESCRIPTOR.services_by_name[name]
    for module, name in ((broker, "Broker"), (admin, "Admin"), (reader, "Reader"))
]
METHODS = {
    f"{service.name}/{method.name}": method
    for service in SERVICES
    for method in service.methods
    if not method.client_streaming
}
Q: dict[str, Any] = {"queue": "q"}
EXCHANGE = topology.Exchange(exchange="x", type="direct")
BINDING = topology.Binding(source="amq.direct", destination="q", routing_key="k")
POLICY = admin.Policy(
    name="p", pattern="^q", definition=admin.PolicyDefinition(rules=common.QueueRules(max_length=5))
)
LEASE: dict[str, Any] = {**Q, "lease": "l", "token": 1}
# What a request needs beside the one bad field.
GOOD: dict[str, dict[str, Any]] = {
    "Broker/DeclareQueue": {"queue": "new"},
    "Broker/DeleteQueue": {"queue": "new"},
    "Broker/PurgeQueue": Q,
    "Broker/GetQueue": Q,
    "Broker/SetQueueMode": {**Q, "mode": common.QUEUE_MODE_DEFAULT},
    "Broker/LocateQueue": Q,
    "Broker/GetMessages": {**Q, "mode": broker.GET_MODE_PEEK, "messages_max": 1},
    "Broker/DeclareExchange": {"exchange": EXCHANGE},
    "Broker/DeleteExchange": {"exchange": "x"},
    "Broker/Bind": {"binding": BINDING},
    "Broker/Unbind": {"binding": BINDING},
    "Admin/GetClusterStatus": {},
    "Admin/ListQueues": {},
    "Admin/ListConnections": {},
    "Admin/ListConsumers": Q,
    "Admin/PromoteMirror": {**Q, "node": "a"},
    "Admin/VerifyQueue": Q,
    "Admin/SyncQueue": {**Q, "node": "a"},
    "Admin/DiscardDamaged": Q,
    "Admin/SetPolicy": {"policy": POLICY},
    "Admin/DeletePolicy": {"name": "p"},
    "Admin/ListPolicies": {},
    "Admin/DrainNode": {"node": "b"},
    "Admin/ReviveNode": {"node": "b"},
    "Admin/ForgetNode": {"node": "b"},
    "Admin/RebalanceQueues": {"dry_run": True},
    "Admin/GetReplica": Q,
    "Admin/GetResources": {},
    "Admin/ListExchanges": {},
    "Admin/ListBindings": {},
    "Admin/CreateVhost": {"vhost": "v"},
    "Admin/DeleteVhost": {"vhost": "v"},
    "Admin/ListVhosts": {},
    "Admin/ExportDefinitions": {},
    "Admin/ImportDefinitions": {"definitions": b"{}"},
    "Reader/QueueStat": Q,
    "Reader/RangeEnd": Q,
    "Reader/Browse": Q,
    "Reader/AckUpTo": Q,
    "Reader/AcquireLease": {**Q, "lease": "l", "holder": "h", "instance": b"i", "ttl_ms": 5000},
    "Reader/RenewLease": {**LEASE, "ttl_ms": 5000},
    "Reader/ReleaseLease": LEASE,
}
# Any value of these is right: the most of something, where there may be less, and what is looked
# for and isn't there.
ANYTHING = frozenset(
    (
        "GetMessagesRequest.messages_max",
        "GetMessagesRequest.bytes_max",
        "RangeEndRequest.messages_max",
        "RangeEndRequest.bytes_max",
        "BrowseRequest.body_bytes_max",
        "VerifyQueueRequest.rate_bytes_max",
        "ListQueuesRequest.queues_max",
        "ListConnectionsRequest.connections_max",
        "ListConnectionsRequest.after",
        "ListConsumersRequest.consumers_max",
        "ListConsumersRequest.after",
        "ListExchangesRequest.exchanges_max",
        "ListBindingsRequest.bindings_max",
        "ListQueuesRequest.prefix",
        "ListQueuesRequest.after",
        "ListQueuesRequest.queues",
        "ListExchangesRequest.after",
        "ListBindingsRequest.after",
        "RebalanceQueuesRequest.prefix",
        # A repeated call finds its work done; a token counts with a lease's name alone.
        "Unbind: Binding.routing_key",
        "ReleaseLeaseRequest.token",
        "AckUpToRequest.token",
        "Policy.priority",
        # Of use with an empty name, and see the row of that.
        "DeclareQueueRequest.name_token",
    )
)

BAD: dict[int, list[Any]] = {
    FieldDescriptor.CPPTYPE_STRING: ["\x1f", "\x00", "x" * 20_000],
    FieldDescriptor.CPPTYPE_ENUM: [99],
    FieldDescriptor.CPPTYPE_UINT64: [2**64 - 1],
    FieldDescriptor.CPPTYPE_UINT32: [2**32 - 1],
    FieldDescriptor.CPPTYPE_INT32: [2**31 - 1, -(2**31)],
    FieldDescriptor.CPPTYPE_INT64: [2**63 - 1],
}
# Field 1007: a number.
UNKNOWN = b"\xf8\x3e\x01"
BYTES = [b"\xff" * 20_000]
REFUSED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def bad_requests(good: Message) -> Iterator[tuple[str, Sequence[str], Message]]:
    """The name of a message, of the fields that lead to one of its fields, that one last, and the
    request that is bad there."""
    for message, path in messages_of(good, ()):
        for field in message.fields:
            if field.cpp_type in (FieldDescriptor.CPPTYPE_BOOL, FieldDescriptor.CPPTYPE_MESSAGE):
                continue
            is_bytes = field.type == FieldDescriptor.TYPE_BYTES
            for value in BYTES if is_bytes else BAD[field.cpp_type]:
                request = type(good)()
                request.CopyFrom(good)
                inner: Any = request
                for step in path:
                    inner = getattr(inner, step)
                if field.is_repeated:
                    getattr(inner, field.name).append(value)
                else:
                    setattr(inner, field.name, value)
                yield message.name, (*path, field.name), request


def messages_of(good: Message, path: tuple[str, ...]) -> Iterator[tuple[Any, tuple[str, ...]]]:
    inner: Any = good
    for step in path:
        inner = getattr(inner, step)
    yield inner.DESCRIPTOR, path
    for field in inner.DESCRIPTOR.fields:
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE and not field.is_repeated:
            yield from messages_of(good, (*path, field.name))


def bad_arguments() -> Iterator[topology.BindRequest]:
    """The one map of all requests: a name or a value that can't be, and too many of them."""
    many = {str(number): "v" for number in range(65)}
    for texts in ({"": "v"}, {"h" * 2000: "v"}, {"h": "v" * 2000}, many):
        request = topology.BindRequest(binding=BINDING)
        for name, text in texts.items():
            request.binding.arguments[name].text = text
        yield request


def test_every_call_has_a_row() -> None:
    assert set(GOOD) == set(METHODS)


async def outcome(
    channel: grpc.aio.Channel, method: MethodDescriptor, request: Message, fields: Sequence[str]
) -> str:
    """Empty: it was refused with a status and its details, which name the field, or the one that
    has it."""
    path = f"/ringmq.v1.{method.containing_service.name}/{method.name}"
    answer = GetMessageClass(method.output_type).FromString
    kind = channel.unary_stream if method.server_streaming else channel.unary_unary
    call: Any = kind(path, type(request).SerializeToString, answer)(request, timeout=10)
    try:
        if method.server_streaming:
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        status = rpc_status.from_call(error)
        if error.code() not in REFUSED or status is None:
            return f"{error.code().name}: {error.details()}"
        info = error_details_pb2.ErrorInfo()
        if not (status.details[0].Unpack(info) and info.reason):
            return "no details"
        named = info.metadata.get("field", "")
        is_named = named in fields[-2:] or info.reason != "BAD_REQUEST"
        return "" if is_named else f"it names {named!r}: {error.details()}"
    return "accepted"


def test_what_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    async def main() -> None:
        node = await lone_node(tmp_path)
        await node.start()
        found: dict[str, str] = {}
        try:
            async with ringmq.connect(node.address) as client:
                await client.declare_queue("q")
            async with grpc.aio.insecure_channel(node.address) as channel, asyncio.timeout(120):
                for name, method in METHODS.items():
                    good = GetMessageClass(method.input_type)(**GOOD[name])
                    for message, fields, request in bad_requests(good):
                        place = f"{message}.{fields[-1]}"
                        if {place, f"{method.name}: {place}"} & ANYTHING:
                            continue
                        told = await outcome(channel, method, request, fields)
                        if told:
                            found[place] = f"{name}: {told}"
                nameless = broker.DeclareQueueRequest(name_token=BYTES[0])
                declare = METHODS["Broker/DeclareQueue"]
                assert not await outcome(channel, declare, nameless, ["name_token"])
                for request in bad_arguments():
                    told = await outcome(channel, METHODS["Broker/Bind"], request, ["arguments"])
                    assert not told, told
        finally:
            await node.stop()
        assert found == {}, "\n".join(f"{k}: {v}" for k, v in found.items())

    run(main())


def test_a_field_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    """Of each call: what it asks for would be left out, and the caller told that all went well."""

    async def main() -> None:
        node = await lone_node(tmp_path)
        await node.start()
        taken: list[str] = []
        try:
            async with grpc.aio.insecure_channel(node.address) as channel, asyncio.timeout(60):
                for name, method in METHODS.items():
                    kind = GetMessageClass(method.input_type)
                    request = kind.FromString(kind(**GOOD[name]).SerializeToString() + UNKNOWN)
                    told = await outcome(channel, method, request, ["", "-"])
                    if told:
                        taken.append(f"{name}: {told}")
        finally:
            await node.stop()
        assert taken == []

    run(main())


@pytest.mark.parametrize(
    ("request_of", "place"),
    [
        (lambda inner: inner, "DeclareQueueRequest"),
        (lambda inner: broker.DeclareQueueRequest(rules=inner), "QueueRules"),
        (lambda inner: broker.ConsumeRequest(settle=broker.Settle(ack=[inner])), "Range"),
    ],
)
def test_a_field_that_nobody_knows_is_named(request_of: Any, place: str) -> None:
    kinds: dict[str, Any] = {
        "DeclareQueueRequest": broker.DeclareQueueRequest,
        "QueueRules": common.QueueRules,
        "Range": common.Range,
    }
    request = request_of(kinds[place].FromString(UNKNOWN))
    with pytest.raises(BrokerError, match=f"doesn't know field 1007 of {place}"):
        parse_request(type(request), request.SerializeToString())
    request.DiscardUnknownFields()
    assert parse_request(type(request), request.SerializeToString()) == request
