"""`ringmq.v1.Ring`, as far as it isn't links: state and bodies for replicas that join, and
bodies for those that have found theirs damaged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import grpc

from ringmq.v1 import common_pb2 as common
from ringmq.v1 import ring_pb2 as wire
from ringmq_base.ranges import Range
from ringmq_gm import MemberId, Role
from ringmq_node.doors.grpc.service import Context, Service, parse
from ringmq_node.model.reasons import BrokerError
from ringmq_node.queue.block import Block, BlockError
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.replica.catchup import FETCH_BYTES_MAX, state_from_wire, state_to_wire
from ringmq_node.replica.fetching import Fetched, Lacking, SourceError
from ringmq_node.replica.reading import read_whole
from ringmq_node.replica.replica import Replica
from ringmq_node.storage import StoreError

if TYPE_CHECKING:
    from ringmq_node.node import Node

NAME = "ringmq.v1.Ring"
STATE_DEADLINE_S = 10.0
MESSAGES_DEADLINE_S = 60.0
MESSAGES_PER_RUN_MAX = 4096


class FetchService:
    """What this node gives to others."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def handler(self) -> grpc.GenericRpcHandler:
        return Service(
            NAME,
            unary={"FetchState": self._state},
            streams={},
            unary_stream={"FetchMessages": self._messages},
        )

    def _source(self, queue_id: str) -> Replica:
        replica = self._node.directory.replicas.get(queue_id)
        if replica is None or replica.ring.role not in (Role.MASTER, Role.MIRROR):
            raise BrokerError(
                common.REASON_NOT_MASTER, f"no synchronised replica of {queue_id} is here"
            )
        return replica

    async def _state(self, data: bytes, context: Context) -> bytes:
        request = parse(wire.FetchStateRequest, data)
        replica = self._source(request.queue)
        async with asyncio.timeout(context.time_remaining() or STATE_DEADLINE_S):
            await replica.wait_number(request.number_min)
        return state_to_wire(replica.store.state).SerializeToString()

    async def _messages(self, data: bytes, context: Context) -> None:
        request = parse(wire.FetchMessagesRequest, data)
        store = self._source(request.queue).store
        left = min(request.bytes_max or FETCH_BYTES_MAX, FETCH_BYTES_MAX)
        lacking: list[common.Range] = []
        for pair in request.positions:
            first = pair.first
            while left > 0 and first <= pair.last:
                try:
                    runs = read_whole(
                        store,
                        first,
                        pair.last,
                        bytes_max=min(left, 1024 * 1024),
                        messages_max=MESSAGES_PER_RUN_MAX,
                        ahead=False,
                    )
                except StoreError as error:
                    raise BrokerError(common.REASON_STORE_FAILED, str(error)) from error
                if not runs:
                    gaps = store.missing.intersection(first, pair.last)
                    if not gaps:
                        break
                    lacking.append(common.Range(first=gaps[0][0], last=gaps[0][1]))
                    first = gaps[0][1] + 1
                for run in runs:
                    left -= run.block.sent_bytes()
                    first = run.first_position + run.block.count
                    message = wire.FetchMessagesResponse(
                        first_position=run.first_position,
                        count=run.block.count,
                        block=run.block.data,
                        transient=run.transient,
                    )
                    await context.write(message.SerializeToString())
        if lacking:
            message = wire.FetchMessagesResponse(missing=lacking)
            await context.write(message.SerializeToString())


class Fetcher:
    """What this node gets from others."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def _call(self, kind: str, source: MemberId, method: str) -> Any:
        if source == self._node.me:
            raise SourceError("this is the node itself")
        channel = self._node.channels.to(self._node.address_of(source))
        return getattr(channel, kind)(f"/{NAME}/{method}")

    async def state(self, queue_id: str, source: MemberId, number_min: int) -> ReplicatedState:
        request = wire.FetchStateRequest(queue=queue_id, number_min=number_min)
        call = self._call("unary_unary", source, "FetchState")
        try:
            data = await call(request.SerializeToString(), timeout=STATE_DEADLINE_S)
        except grpc.aio.AioRpcError as error:
            raise SourceError(f"no state from {source}: {error.details()}") from error
        return state_from_wire(parse(wire.FetchStateResponse, data))

    async def messages(
        self, queue_id: str, source: MemberId, ranges: Sequence[Range]
    ) -> AsyncIterator[Fetched]:
        request = wire.FetchMessagesRequest(
            queue=queue_id,
            positions=[common.Range(first=first, last=last) for first, last in ranges],
            bytes_max=FETCH_BYTES_MAX,
        )
        method = self._call("unary_stream", source, "FetchMessages")
        call = method(request.SerializeToString(), timeout=MESSAGES_DEADLINE_S)
        try:
            async for data in call:
                response = parse(wire.FetchMessagesResponse, data)
                if response.missing:
                    yield Lacking(tuple((each.first, each.last) for each in response.missing))
                else:
                    yield response.first_position, Block(response.block), response.transient
        except grpc.aio.AioRpcError as error:
            raise SourceError(f"no messages from {source}: {error.details()}") from error
        except BlockError as error:
            raise SourceError(f"no good messages from {source}: {error}") from error
