"""`ringmq.v1.Broker`: queues, publishing, consuming."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.message import Message

from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_node.broker.catalogue import registry_away
from ringmq_node.broker.deleting import delete_checked
from ringmq_node.doors.grpc.relay import UNARY_DEADLINE_S, relay_stream, relay_unary
from ringmq_node.doors.grpc.service import Context, Service, is_relayed, parse
from ringmq_node.doors.grpc.streams import (
    ConsumeStream,
    PublishStream,
    StreamLimits,
    delivery_of,
)
from ringmq_node.doors.grpc.wire import storage_to_wire
from ringmq_node.model.reasons import BrokerError
from ringmq_node.model.records import check_queue_name, mode_from_wire, mode_to_wire
from ringmq_node.replica.replica import Replica

if TYPE_CHECKING:
    from ringmq_node.node import Node

logger = logging.getLogger(__name__)

NAME = "ringmq.v1.Broker"
GET_MESSAGES_MAX = 1000
GET_BYTES_MAX = 4 * 1024 * 1024
# How long a stream waits for a master that is just taking over.
SERVING_WAIT_S = 2.0
# Of the time that a call has, what the registry may take.
REGISTRY_SHARE = 0.75

T = TypeVar("T")
Handler = Callable[[bytes, Context], Awaitable[bytes]]


class BrokerService:
    """Finds the queue, passes the call on to its master, or answers here."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._limits = StreamLimits(
            node=node.config.node,
            message_bytes_max=node.config.message_bytes_max,
            properties_bytes_max=node.config.properties_bytes_max,
            heartbeat_s=node.config.heartbeat_s,
            locate=self._locate_now,
        )

    def handler(self) -> grpc.GenericRpcHandler:
        return Service(
            NAME,
            unary={
                "DeclareQueue": self._declare,
                "DeleteQueue": self._delete_anyway(
                    self._at_master("DeleteQueue", broker.DeleteQueueRequest, self._delete)
                ),
                "PurgeQueue": self._at_master("PurgeQueue", broker.PurgeQueueRequest, self._purge),
                "GetQueue": self._at_master("GetQueue", broker.GetQueueRequest, self._get_queue),
                "SetQueueMode": self._set_mode,
                "LocateQueue": self._locate,
                "GetMessages": self._at_master(
                    "GetMessages", broker.GetMessagesRequest, self._get_messages
                ),
            },
            streams={"Publish": self._publish, "Consume": self._consume},
        )

    # --- finding the master ---

    def _locate_now(self, queue: str) -> tuple[str, str]:
        """The master's node and address; empty where unknown."""
        try:
            master = self._node.directory.master_of(queue)
        except BrokerError:
            return "", ""
        if master == self._node.me and (self._node.failed is not None or self._node.draining):
            # It was: this node has left its rings, and hears no more of them.
            return "", ""
        return master.node, self._node.address_of(master)

    def _at_master(
        self,
        method: str,
        kind: type[Any],
        local: Callable[[Any, Replica], Awaitable[Message]],
    ) -> Handler:
        """A unary call on one queue, which its master answers."""

        async def handler(data: bytes, context: Context) -> bytes:
            request = parse(kind, data)
            self._node.check_open()
            address = await self._elsewhere(request.queue, context)
            if address:
                path = f"/{NAME}/{method}"
                repeatable = method == "GetQueue" or (
                    method == "GetMessages" and request.mode != broker.GET_MODE_REMOVE
                )
                return await relay_unary(
                    self._node.channels, address, path, data, context, repeatable=repeatable
                )
            async with asyncio.timeout(context.time_remaining() or UNARY_DEADLINE_S):
                replica = await self._serving(request.queue)
                return (await local(request, replica)).SerializeToString()

        return handler

    async def _elsewhere(self, queue: str, context: Context) -> str:
        """The address of the master's node; empty if it is this one."""
        check_queue_name(queue)
        await self._node.directory.ensure_known(queue)
        master = self._node.directory.master_of(queue)
        if master == self._node.me:
            return ""
        if is_relayed(context):
            raise BrokerError(
                common.REASON_NOT_MASTER,
                f"queue {queue!r}: the master is {master}, not {self._node.me}",
                queue=queue,
                master=self._node.address_of(master),
            )
        return self._node.address_of(master)

    async def _serving(self, queue: str) -> Replica:
        replica = self._node.directory.replica_of(queue)
        try:
            async with asyncio.timeout(SERVING_WAIT_S):
                await replica.wait_serving()
        except TimeoutError:
            replica.serving()
        return replica

    # --- streams ---

    async def _publish(self, context: Context) -> None:
        data = await self._first(context)
        request = parse(broker.PublishRequest, data)
        if request.WhichOneof("request") != "open":
            raise BrokerError(
                common.REASON_BAD_REQUEST, "a publish stream begins with Open", field="request"
            )
        address = await self._elsewhere(request.open.queue, context)
        if address:
            path = f"/{NAME}/Publish"
            await relay_stream(self._node.channels, address, path, data, context)
            return
        replica = await self._serving(request.open.queue)
        await PublishStream(context, replica, self._limits, request.open).run()

    async def _consume(self, context: Context) -> None:
        data = await self._first(context)
        request = parse(broker.ConsumeRequest, data)
        if request.WhichOneof("request") != "open":
            raise BrokerError(
                common.REASON_BAD_REQUEST, "a consume stream begins with Open", field="request"
            )
        address = await self._elsewhere(request.open.queue, context)
        if address:
            path = f"/{NAME}/Consume"
            await relay_stream(self._node.channels, address, path, data, context)
            return
        replica = await self._serving(request.open.queue)
        await ConsumeStream(context, replica, self._limits, request.open).run()

    async def _first(self, context: Context) -> bytes:
        self._node.check_open()
        async with asyncio.timeout(self._limits.heartbeat_s * 3):
            data: Any = await context.read()
        if data is grpc.aio.EOF:
            raise BrokerError(
                common.REASON_BAD_REQUEST, "the stream ended before its Open", field="request"
            )
        opening: bytes = data
        return opening

    # --- queues ---

    async def _declare(self, data: bytes, context: Context) -> bytes:
        request = parse(broker.DeclareQueueRequest, data)
        check_queue_name(request.queue)
        mode = mode_from_wire(request.mode)
        self._node.check_open()
        durable = request.durable if request.HasField("durable") else None
        info: broker.QueueInfo | None = None
        while info is None:
            created = await _by_registry(
                self._node.directory.declare(
                    request.queue, request.replicas, request.min_insync, mode, durable
                ),
                context,
            )
            try:
                async with asyncio.timeout(context.time_remaining() or UNARY_DEADLINE_S):
                    info = await self._node.queue_info(request.queue)
            except BrokerError as error:
                # It was there, and is deleted: a transient one of which nothing was left, say.
                if error.reason != common.REASON_QUEUE_NOT_FOUND:
                    raise
        info.ClearField("storage")
        return broker.DeclareQueueResponse(queue=info, created=created).SerializeToString()

    async def _set_mode(self, data: bytes, context: Context) -> bytes:
        """By the master's node, so that whoever asks it afterwards sees what was done."""
        request = parse(broker.SetQueueModeRequest, data)
        mode = mode_from_wire(request.mode)
        if mode is None:
            raise BrokerError(common.REASON_BAD_REQUEST, "say which mode", field="mode")
        self._node.check_open()
        address = await self._elsewhere(request.queue, context)
        if address:
            path = f"/{NAME}/SetQueueMode"
            return await relay_unary(self._node.channels, address, path, data, context)
        before = await _by_registry(self._node.directory.set_mode(request.queue, mode), context)
        return broker.SetQueueModeResponse(before=mode_to_wire(before)).SerializeToString()

    def _delete_anyway(self, otherwise: Handler) -> Handler:
        """Deletes a queue from any node, with or without a master, if that is asked for."""

        async def handler(data: bytes, context: Context) -> bytes:
            request = parse(broker.DeleteQueueRequest, data)
            if not request.force:
                return await otherwise(data, context)
            if request.if_empty or request.if_unused:
                raise BrokerError(
                    common.REASON_BAD_REQUEST,
                    "a delete that is forced checks nothing: neither if_empty nor if_unused",
                    field="force",
                )
            check_queue_name(request.queue)
            self._node.check_open()
            async with asyncio.timeout(context.time_remaining() or UNARY_DEADLINE_S):
                await self._node.directory.ensure_known(request.queue)
                await self._node.directory.delete(request.queue)
            logger.warning("queue %s: deleted without asking its master", request.queue)
            return broker.DeleteQueueResponse().SerializeToString()

        return handler

    async def _delete(
        self, request: broker.DeleteQueueRequest, replica: Replica
    ) -> broker.DeleteQueueResponse:
        master = replica.serving()
        # What nobody can be given now, as it is damaged or about to be requeued, counts as well.
        messages, consumers = master.messages, len(master.consumers)

        def check() -> None:
            if request.if_empty and messages:
                raise BrokerError(
                    common.REASON_QUEUE_NOT_EMPTY,
                    f"queue {request.queue!r} has {messages} messages",
                    queue=request.queue,
                    messages=messages,
                )
            if request.if_unused and consumers:
                raise BrokerError(
                    common.REASON_QUEUE_IN_USE,
                    f"queue {request.queue!r} has {consumers} consumers",
                    queue=request.queue,
                    consumers=consumers,
                )

        if request.if_empty or request.if_unused:
            await delete_checked(self._node, replica, check)
        else:
            await self._node.directory.delete(request.queue)
        return broker.DeleteQueueResponse(messages=messages)

    async def _purge(
        self, request: broker.PurgeQueueRequest, replica: Replica
    ) -> broker.PurgeQueueResponse:
        return broker.PurgeQueueResponse(messages=await replica.purge())

    async def _get_queue(
        self, request: broker.GetQueueRequest, replica: Replica
    ) -> broker.GetQueueResponse:
        info = replica.info()
        info.storage.CopyFrom(storage_to_wire(replica.store))
        return broker.GetQueueResponse(queue=info)

    async def _locate(self, data: bytes, context: Context) -> bytes:
        request = parse(broker.LocateQueueRequest, data)
        check_queue_name(request.queue)
        self._node.check_open()
        await self._node.directory.ensure_known(request.queue)
        master = self._node.directory.master_of(request.queue)
        return broker.LocateQueueResponse(
            node=master.node,
            address=self._node.address_of(master),
            epoch=self._node.directory.view_of(request.queue).epoch,
        ).SerializeToString()

    async def _get_messages(
        self, request: broker.GetMessagesRequest, replica: Replica
    ) -> broker.GetMessagesResponse:
        messages = min(request.messages_max or 1, GET_MESSAGES_MAX)
        size = min(request.bytes_max or GET_BYTES_MAX, GET_BYTES_MAX)
        match request.mode:
            case broker.GET_MODE_PEEK:
                runs = await replica.peek(messages, size)
            case broker.GET_MODE_REMOVE:
                runs = await replica.take(messages, size)
            case _:
                raise BrokerError(
                    common.REASON_BAD_REQUEST, "say whether to remove or to peek", field="mode"
                )
        # Nothing may be refused from here on: they may have been removed.
        ready = 0 if replica.master is None else len(replica.master.ready)
        return broker.GetMessagesResponse(
            deliveries=[delivery_of(run) for run in runs], messages_ready=ready
        )


async def _by_registry(work: Awaitable[T], context: Context) -> T:
    """`work`, in which the registry has a part. If it doesn't answer, there is time to say so."""
    left_s = context.time_remaining() or UNARY_DEADLINE_S
    try:
        async with asyncio.timeout(left_s * REGISTRY_SHARE):
            return await work
    except TimeoutError:
        raise registry_away() from None
