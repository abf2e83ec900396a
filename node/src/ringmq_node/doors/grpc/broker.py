"""`ringmq.v1.Broker`: queues, publishing, consuming."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from google.protobuf.message import Message

from ringmq.v1 import broker_pb2 as broker
from ringmq_base.limits import HEARTBEATS_MISSED_MAX
from ringmq_node.broker.arguments import QueueArguments
from ringmq_node.broker.broker import Broker
from ringmq_node.broker.peers import DeleteConditions
from ringmq_node.doors.grpc.channels import PeerChannels
from ringmq_node.doors.grpc.connections import ConnectStream
from ringmq_node.doors.grpc.deliveries import get_response
from ringmq_node.doors.grpc.peers import BROKER
from ringmq_node.doors.grpc.policies import locator_from_wire
from ringmq_node.doors.grpc.relay import relay_stream
from ringmq_node.doors.grpc.routed import RoutedStream
from ringmq_node.doors.grpc.rules import rules_from_wire
from ringmq_node.doors.grpc.service import (
    Context,
    caller_of,
    is_node,
    parse_request,
    routes,
    write_in_time,
)
from ringmq_node.doors.grpc.streams import ConsumeStream, PublishStream
from ringmq_node.doors.grpc.topology import TopologyDoor
from ringmq_node.doors.grpc.wire import mode_from_wire, mode_to_wire, queue_to_wire
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.model.settings import GET_BYTES_MAX
from ringmq_node.resources.connection_states import PeerStream
from ringmq_wire import Accept

Request = TypeVar("Request", bound=Message)
NamesQueue = (
    broker.PublishOpen
    | broker.ConsumeOpen
    | broker.DeclareQueueRequest
    | broker.SetQueueModeRequest
    | broker.DeleteQueueRequest
    | broker.PurgeQueueRequest
    | broker.GetQueueRequest
    | broker.LocateQueueRequest
    | broker.GetMessagesRequest
)


class BrokerService:
    """Translates between `ringmq.v1.Broker` and `broker.Broker`."""

    def __init__(self, door: Broker, channels: PeerChannels) -> None:
        self._broker = door
        self._channels = channels

    def routes(self) -> dict[str, Accept]:
        return routes(
            BROKER,
            unary={
                "DeclareQueue": self._declare,
                "DeleteQueue": self._delete,
                "PurgeQueue": self._purge,
                "GetQueue": self._get_queue,
                "SetQueueMode": self._set_mode,
                "LocateQueue": self._locate,
                **TopologyDoor(self._broker.topology).broker_methods(),
            },
            unary_stream={"GetMessages": self._get_messages},
            streams={
                "Connect": self._connect,
                "Publish": self._publish,
                "Consume": self._consume,
            },
        )

    # --- streams ---

    async def _connect(self, context: Context) -> None:
        request = parse_request(broker.ConnectRequest, await self._first(context))
        if request.WhichOneof("request") != "open":
            raise bad_request("a connect stream begins with Open", field="request")
        with self._broker.connections.states.stream(context.call.peer):
            await ConnectStream(context, self._broker).run()

    async def _publish(self, context: Context) -> None:
        data = await self._first(context)
        request = parse_request(broker.PublishRequest, data)
        if request.WhichOneof("request") != "open":
            raise bad_request("a publish stream begins with Open", field="request")
        states = self._broker.connections.states
        with states.stream(
            context.call.peer, relayed=is_node(context.call), publishes=True
        ) as peer:
            await self._publish_as(peer, request, data, context)

    async def _publish_as(
        self, peer: PeerStream, request: broker.PublishRequest, data: bytes, context: Context
    ) -> None:
        if request.open.HasField("exchange"):
            await (await RoutedStream.open(context, self._broker, request.open, peer)).run()
            return
        request.open.queue = await self._queue_of(request.open)
        queue = request.open.queue
        if request.open.with_gaps and not is_node(context.call):
            raise BrokerError(
                Reason.ACCESS_REFUSED, "only nodes publish with gaps", field="with_gaps"
            )
        address = await self._broker.route(queue, caller_of(context))
        if not await self._relayed(queue, address, "Publish", data, context):
            await (await PublishStream.open(context, self._broker, request.open, peer)).run()

    async def _consume(self, context: Context) -> None:
        data = await self._first(context)
        request = parse_request(broker.ConsumeRequest, data)
        if request.WhichOneof("request") != "open":
            raise bad_request("a consume stream begins with Open", field="request")
        request.open.queue = await self._queue_of(request.open)
        caller = caller_of(context)
        queue = request.open.queue
        states = self._broker.connections.states
        with states.stream(context.call.peer, relayed=is_node(context.call), consumes=True):
            address = await self._broker.route(queue, caller, consumes=True)
            if not await self._relayed(queue, address, "Consume", data, context):
                await (await ConsumeStream.open(context, self._broker, request.open)).run()

    async def _first(self, context: Context) -> bytes:
        """The stream's first message, which a client sends at once."""
        async with asyncio.timeout(self._broker.settings.heartbeat_s * HEARTBEATS_MISSED_MAX):
            data = await context.read()
        if data is None:
            raise bad_request("the stream ended before its Open", field="request")
        return data

    async def _relayed(
        self, queue: str, address: str, method: str, data: bytes, context: Context
    ) -> bool:
        """Relays the stream to the master's node, to its end; False if that is this node."""
        if address:
            moved = self._broker.wait_moved(queue, address)
            await relay_stream(self._channels, address, f"/{BROKER}/{method}", data, context, moved)
        return bool(address)

    # --- queues ---

    async def _queue_of(self, request: NamesQueue) -> str:
        """The internal name of the queue of a request, whose vhost has to be there."""
        return await self._broker.topology.internal_name(request.vhost, request.queue)

    async def _declare(self, data: bytes, context: Context) -> bytes:
        request = parse_request(broker.DeclareQueueRequest, data)
        queue = await self._queue_of(request)
        caller = caller_of(context)
        if request.passive:
            declared = await self._broker.declare_passively(queue, caller)
            return broker.DeclareQueueResponse(
                queue=queue_to_wire(declared.info)
            ).SerializeToString()
        arguments = QueueArguments(
            replicas=request.replicas,
            min_insync=request.min_insync,
            mode=mode_from_wire(request.mode),
            durable=request.durable if request.HasField("durable") else None,
            master_locator=locator_from_wire(request.master_locator),
            rules=rules_from_wire(request.rules),
            auto_delete=request.auto_delete if request.HasField("auto_delete") else None,
            exclusive=request.exclusive if request.HasField("exclusive") else None,
            exact=request.exact,
            names_replicas=True,
        )
        declared = await self._broker.declare(
            queue, arguments, caller, name_token=request.name_token
        )
        return broker.DeclareQueueResponse(
            queue=queue_to_wire(declared.info), created=declared.created
        ).SerializeToString()

    async def _set_mode(self, data: bytes, context: Context) -> bytes:
        request = parse_request(broker.SetQueueModeRequest, data)
        queue = await self._queue_of(request)
        mode = mode_from_wire(request.mode)
        if mode is None:
            raise bad_request("say which mode", field="mode")
        before = await self._broker.set_mode(queue, mode, caller_of(context))
        return broker.SetQueueModeResponse(before=mode_to_wire(before)).SerializeToString()

    async def _delete(self, data: bytes, context: Context) -> bytes:
        request = parse_request(broker.DeleteQueueRequest, data)
        queue = await self._queue_of(request)
        conditions = DeleteConditions(request.if_empty, request.if_unused)
        caller = caller_of(context)
        if not request.force:
            messages = await self._broker.delete(queue, conditions, caller)
            return broker.DeleteQueueResponse(messages=messages).SerializeToString()
        if conditions:
            raise bad_request(
                "a delete that is forced checks nothing: neither if_empty nor if_unused",
                field="force",
            )
        await self._broker.delete_by_force(queue, caller)
        return broker.DeleteQueueResponse().SerializeToString()

    async def _purge(self, data: bytes, context: Context) -> bytes:
        request = parse_request(broker.PurgeQueueRequest, data)
        queue = await self._queue_of(request)
        messages = await self._broker.purge(queue, caller_of(context))
        return broker.PurgeQueueResponse(messages=messages).SerializeToString()

    async def _get_queue(self, data: bytes, context: Context) -> bytes:
        request = parse_request(broker.GetQueueRequest, data)
        queue = await self._queue_of(request)
        info = await self._broker.queue_info(queue, caller_of(context))
        return broker.GetQueueResponse(queue=queue_to_wire(info)).SerializeToString()

    async def _locate(self, data: bytes, context: Context) -> bytes:
        request = parse_request(broker.LocateQueueRequest, data)
        queue = await self._queue_of(request)
        location = await self._broker.locate(queue)
        return broker.LocateQueueResponse(
            node=location.node, address=location.address, epoch=location.epoch
        ).SerializeToString()

    async def _get_messages(self, data: bytes, context: Context) -> None:
        request = parse_request(broker.GetMessagesRequest, data)
        queue = await self._queue_of(request)
        if request.mode not in (broker.GET_MODE_PEEK, broker.GET_MODE_REMOVE):
            raise bad_request("say whether to remove or to peek", field="mode")
        caller = caller_of(context)
        budget = self._broker.buffers.gets
        async with asyncio.timeout(caller.deadline_s) as deadline:
            async with budget.reserved(min(request.bytes_max or GET_BYTES_MAX, GET_BYTES_MAX)):
                got = await self._broker.get(
                    queue,
                    caller,
                    messages_max=request.messages_max,
                    bytes_max=request.bytes_max,
                    remove=request.mode == broker.GET_MODE_REMOVE,
                )
                answer = get_response(got.runs, messages_ready=got.messages_ready)
                # It is the caller's turn, whatever is left of that.
                deadline.reschedule(None)
                await write_in_time(context, answer)
