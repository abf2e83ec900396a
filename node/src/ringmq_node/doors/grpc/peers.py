"""The other nodes over gRPC: their brokers (`broker.peers`) and replicas (`replica.fetching`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TypedDict, TypeVar

from google.protobuf.message import Message

from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import ring_pb2 as ring
from ringmq_base.pieces import Pieces
from ringmq_base.ranges import Range
from ringmq_gm import MemberId
from ringmq_node.broker.cluster import Cluster
from ringmq_node.broker.peers import Acceptance, DeleteConditions, Got, Promoted, QueuesAt
from ringmq_node.doors.grpc import wire
from ringmq_node.doors.grpc.channels import PeerChannels
from ringmq_node.doors.grpc.connection_wire import connection_from_wire
from ringmq_node.doors.grpc.consumer_wire import consumers_from_wire
from ringmq_node.doors.grpc.service import RELAYED_METADATA, parse
from ringmq_node.doors.grpc.status import from_call
from ringmq_node.model.consumers import ConsumerPage
from ringmq_node.model.info import ConnectionInfo, NodeResources, QueueInfo, ReplicaInfo
from ringmq_node.model.names import DEFAULT_VHOST, split_name
from ringmq_node.model.reasons import BrokerError
from ringmq_node.model.records import QueueMode
from ringmq_node.queue.block import Block, BlockError
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.replica.catchup import FETCH_BYTES_MAX
from ringmq_node.replica.comparing import Digests
from ringmq_node.replica.fetching import Fetched, Lacking, SourceError
from ringmq_wire import RpcError, WireChannel

BROKER = "ringmq.v1.Broker"
ADMIN = "ringmq.v1.Admin"
RING = "ringmq.v1.Ring"
STATE_DEADLINE_S = 10.0
MESSAGES_DEADLINE_S = 60.0
# gRPC takes no larger timeout for granted.
TIMEOUT_S_MAX = 3600.0

Response = TypeVar("Response", bound=Message)


class _Named(TypedDict):
    vhost: str
    queue: str


class GrpcPeers:
    """Implements `broker.peers.Peers`; the errors are described there."""

    def __init__(self, channels: PeerChannels) -> None:
        self._channels = channels

    async def _ask(
        self,
        address: str,
        method: str,
        request: Message,
        kind: type[Response],
        *,
        deadline_s: float,
        repeatable: bool,
    ) -> Response:
        """`repeatable`: the call does no harm if it is carried out twice."""
        try:
            data = await self._channels.to(address).unary(
                f"/{method}",
                request.SerializeToString(),
                timeout_s=min(deadline_s, TIMEOUT_S_MAX),
                metadata=RELAYED_METADATA,
            )
        except RpcError as error:
            raise from_call(error, repeatable=repeatable) from error
        return parse(kind, data)

    async def queue_info(self, address: str, queue: str, *, deadline_s: float) -> QueueInfo:
        response = await self._ask(
            address,
            f"{BROKER}/GetQueue",
            broker.GetQueueRequest(**_named(queue)),
            broker.GetQueueResponse,
            deadline_s=deadline_s,
            repeatable=True,
        )
        return wire.queue_from_wire(response.queue)

    async def set_mode(
        self, address: str, queue: str, mode: QueueMode, *, deadline_s: float
    ) -> QueueMode:
        response = await self._ask(
            address,
            f"{BROKER}/SetQueueMode",
            broker.SetQueueModeRequest(**_named(queue), mode=wire.mode_to_wire(mode)),
            broker.SetQueueModeResponse,
            deadline_s=deadline_s,
            repeatable=True,
        )
        return wire.mode_from_wire(response.before) or QueueMode.DEFAULT

    async def delete(
        self, address: str, queue: str, conditions: DeleteConditions, *, deadline_s: float
    ) -> int:
        response = await self._ask(
            address,
            f"{BROKER}/DeleteQueue",
            broker.DeleteQueueRequest(
                **_named(queue), if_empty=conditions.if_empty, if_unused=conditions.if_unused
            ),
            broker.DeleteQueueResponse,
            deadline_s=deadline_s,
            repeatable=False,
        )
        return response.messages

    async def purge(self, address: str, queue: str, *, deadline_s: float) -> int:
        response = await self._ask(
            address,
            f"{BROKER}/PurgeQueue",
            broker.PurgeQueueRequest(**_named(queue)),
            broker.PurgeQueueResponse,
            deadline_s=deadline_s,
            repeatable=False,
        )
        return response.messages

    async def get(
        self,
        address: str,
        queue: str,
        messages_max: int,
        bytes_max: int,
        *,
        remove: bool,
        deadline_s: float,
    ) -> Got:
        response = await self._ask(
            address,
            f"{BROKER}/GetMessages",
            broker.GetMessagesRequest(
                **_named(queue),
                messages_max=messages_max,
                bytes_max=bytes_max,
                mode=broker.GET_MODE_REMOVE if remove else broker.GET_MODE_PEEK,
            ),
            broker.GetMessagesResponse,
            deadline_s=deadline_s,
            repeatable=not remove,
        )
        return Got(
            [wire.run_from_wire(each) for each in response.deliveries], response.messages_ready
        )

    async def discard_damaged(self, address: str, queue: str, *, deadline_s: float) -> int:
        response = await self._ask(
            address,
            f"{ADMIN}/DiscardDamaged",
            admin.DiscardDamagedRequest(**_named(queue)),
            admin.DiscardDamagedResponse,
            deadline_s=deadline_s,
            repeatable=True,
        )
        return response.messages

    async def replica_info(self, address: str, queue: str, *, deadline_s: float) -> ReplicaInfo:
        response = await self._ask(
            address,
            f"{ADMIN}/GetReplica",
            admin.GetReplicaRequest(**_named(queue)),
            admin.GetReplicaResponse,
            deadline_s=deadline_s,
            repeatable=True,
        )
        return wire.replica_from_wire(response.replica)

    async def promote(
        self, address: str, queue: str, node: str, acceptance: Acceptance, *, deadline_s: float
    ) -> Promoted:
        response = await self._ask(
            address,
            f"{ADMIN}/PromoteMirror",
            admin.PromoteMirrorRequest(
                **_named(queue),
                node=node,
                accept_loss=acceptance.is_given,
                operator=acceptance.operator,
            ),
            admin.PromoteMirrorResponse,
            deadline_s=deadline_s,
            # To promote the master does nothing, but a loss is accepted once.
            repeatable=not acceptance.is_given,
        )
        return wire.promoted_from_wire(response)

    async def sync_replica(
        self, address: str, queue: str, node: str, *, cancel: bool, deadline_s: float
    ) -> list[str]:
        response = await self._ask(
            address,
            f"{ADMIN}/SyncQueue",
            admin.SyncQueueRequest(**_named(queue), node=node, cancel=cancel),
            admin.SyncQueueResponse,
            deadline_s=deadline_s,
            repeatable=True,
        )
        return [*response.nodes]

    async def own_queues(
        self, address: str, queues: Sequence[str], *, deadline_s: float
    ) -> QueuesAt:
        response = await self._ask(
            address,
            f"{ADMIN}/ListQueues",
            admin.ListQueuesRequest(queues=queues),
            admin.ListQueuesResponse,
            deadline_s=deadline_s,
            repeatable=True,
        )
        pieces = Pieces()
        infos: list[QueueInfo] = []
        for info in response.queues:
            infos.append(wire.queue_from_wire(info))
            await pieces.step()
        joining = {each.queue: wire.sync_from_wire(each.sync) for each in response.joining}
        return QueuesAt(infos, joining)

    async def own_connections(
        self, address: str, after: str, connections_max: int, *, deadline_s: float
    ) -> list[ConnectionInfo]:
        response = await self._ask(
            address,
            f"{ADMIN}/ListConnections",
            admin.ListConnectionsRequest(connections_max=connections_max, after=after),
            admin.ListConnectionsResponse,
            deadline_s=deadline_s,
            repeatable=True,
        )
        return [*map(connection_from_wire, response.connections)]

    async def consumers(
        self, address: str, queue: str, after: int, consumers_max: int, *, deadline_s: float
    ) -> ConsumerPage:
        response = await self._ask(
            address,
            f"{ADMIN}/ListConsumers",
            admin.ListConsumersRequest(**_named(queue), consumers_max=consumers_max, after=after),
            admin.ListConsumersResponse,
            deadline_s=deadline_s,
            repeatable=True,
        )
        return consumers_from_wire(response)

    async def resources(self, address: str, *, deadline_s: float) -> NodeResources:
        response = await self._ask(
            address,
            f"{ADMIN}/GetResources",
            admin.GetResourcesRequest(),
            admin.GetResourcesResponse,
            deadline_s=deadline_s,
            repeatable=True,
        )
        return wire.resources_from_wire(response.resources)


def _named(queue: str) -> _Named:
    """A queue as requests name it."""
    vhost, name = split_name(queue)
    return {"vhost": "" if vhost == DEFAULT_VHOST else vhost, "queue": name}


class GrpcDigests:
    """Implements `broker.verifying.DigestSources`."""

    def __init__(self, channels: PeerChannels) -> None:
        self._channels = channels

    async def digests(
        self, address: str, node: str, queue_id: str, first: int, last: int, *, number_min: int
    ) -> Digests:
        request = ring.DigestMessagesRequest(
            queue=queue_id, number_min=number_min, first_position=first, last_position=last
        )
        channel = self._channels.to(address)
        try:
            data = await channel.unary(
                f"/{RING}/DigestMessages", request.SerializeToString(), timeout_s=STATE_DEADLINE_S
            )
        except RpcError as error:
            raise from_call(error, repeatable=True) from error
        return wire.digests_from_wire(node, first, parse(ring.DigestMessagesResponse, data))


class GrpcSources:
    """Implements `replica.fetching.Sources`: state and bodies of other nodes' replicas."""

    def __init__(self, channels: PeerChannels, cluster: Cluster) -> None:
        self._channels = channels
        self._cluster = cluster

    def _channel(self, source: MemberId) -> WireChannel:
        if source == self._cluster.me:
            raise SourceError("this is the node itself")
        try:
            return self._channels.to(self._cluster.address_of(source))
        except BrokerError as error:
            raise SourceError(str(error)) from error

    async def fetch_state(
        self, queue_id: str, source: MemberId, number_min: int
    ) -> ReplicatedState:
        request = ring.FetchStateRequest(queue=queue_id, number_min=number_min)
        channel = self._channel(source)
        try:
            data = await channel.unary(
                f"/{RING}/FetchState", request.SerializeToString(), timeout_s=STATE_DEADLINE_S
            )
        except RpcError as error:
            raise SourceError(f"no state from {source}: {error.status.message}") from error
        try:
            return await wire.state_from_wire(parse(ring.FetchStateResponse, data))
        except ValueError as error:
            raise SourceError(f"no good state from {source}: {error}") from error

    async def fetch_messages(
        self,
        queue_id: str,
        source: MemberId,
        ranges: Sequence[Range],
        *,
        bytes_max: int = FETCH_BYTES_MAX,
    ) -> AsyncIterator[Fetched]:
        request = ring.FetchMessagesRequest(
            queue=queue_id, positions=wire.ranges_to_wire(ranges), bytes_max=bytes_max
        )
        channel = self._channel(source)
        try:
            call = await channel.stream(f"/{RING}/FetchMessages", timeout_s=MESSAGES_DEADLINE_S)
        except RpcError as error:
            raise SourceError(f"no messages from {source}: {error.status.message}") from error
        try:
            await call.write(request.SerializeToString())
            call.half_close()
            while (data := await call.read()) is not None:
                response = parse(ring.FetchMessagesResponse, data)
                if response.missing:
                    yield Lacking(tuple(wire.ranges_from_wire(response.missing)))
                for run in response.runs:
                    yield run.first_position, Block(run.block), run.transient
        except RpcError as error:
            raise SourceError(f"no messages from {source}: {error.status.message}") from error
        except BlockError as error:
            raise SourceError(f"no good messages from {source}: {error}") from error
        finally:
            # Does nothing to a call that has ended.
            call.cancel()
