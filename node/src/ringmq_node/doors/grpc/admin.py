"""`ringmq.v1.Admin`: the cluster as an operator sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import topology_pb2 as topology
from ringmq_base.pieces import Pieces
from ringmq_node.broker.arguments import QueueArguments
from ringmq_node.broker.broker import Broker
from ringmq_node.broker.peers import Acceptance
from ringmq_node.doors.grpc.connection_wire import connection_to_wire
from ringmq_node.doors.grpc.consumer_wire import consumers_to_wire
from ringmq_node.doors.grpc.peers import ADMIN
from ringmq_node.doors.grpc.policies import policy_from_wire, policy_to_wire
from ringmq_node.doors.grpc.service import Context, caller_of, parse_request, routes
from ringmq_node.doors.grpc.topology import TopologyDoor
from ringmq_node.doors.grpc.wire import (
    promoted_to_wire,
    queue_to_wire,
    replica_to_wire,
    resources_to_wire,
    status_to_wire,
    sync_to_wire,
    verify_to_wire,
)
from ringmq_node.model.info import QueueInfo, SyncInfo
from ringmq_node.model.names import shown_text, split_name, vhost_of
from ringmq_node.model.reasons import bad_request
from ringmq_node.model.settings import LIST_MAX
from ringmq_wire import Accept

NamesQueue = (
    admin.GetReplicaRequest
    | admin.DiscardDamagedRequest
    | admin.VerifyQueueRequest
    | admin.SyncQueueRequest
    | admin.PromoteMirrorRequest
    | admin.ListConsumersRequest
)


class AdminService:
    """Translates between `ringmq.v1.Admin` and `broker.Broker`."""

    def __init__(self, door: Broker) -> None:
        self._broker = door

    def routes(self) -> dict[str, Accept]:
        return routes(
            ADMIN,
            unary={
                "GetClusterStatus": self._status,
                "ListQueues": self._list_queues,
                "ListConnections": self._list_connections,
                "ListConsumers": self._list_consumers,
                "PromoteMirror": self._promote,
                "SyncQueue": self._sync_queue,
                "DiscardDamaged": self._discard_damaged,
                "SetPolicy": self._set_policy,
                "DeletePolicy": self._delete_policy,
                "ListPolicies": self._list_policies,
                "DrainNode": self._drain_node,
                "ReviveNode": self._revive_node,
                "ForgetNode": self._forget_node,
                "RebalanceQueues": self._rebalance,
                "GetReplica": self._get_replica,
                "GetResources": self._get_resources,
                **TopologyDoor(self._broker.topology).admin_methods(),
                "ExportDefinitions": self._export_definitions,
                "ImportDefinitions": self._import_definitions,
            },
            unary_stream={"VerifyQueue": self._verify_queue},
        )

    async def _status(self, data: bytes, context: Context) -> bytes:
        request = parse_request(admin.GetClusterStatusRequest, data)
        status = await self._broker.status(
            with_resources=request.with_resources, with_needing=request.with_queues_needing
        )
        return status_to_wire(status).SerializeToString()

    async def _get_resources(self, data: bytes, context: Context) -> bytes:
        parse_request(admin.GetResourcesRequest, data)
        resources = resources_to_wire(self._broker.resources())
        return admin.GetResourcesResponse(resources=resources).SerializeToString()

    async def _list_queues(self, data: bytes, context: Context) -> bytes:
        request = parse_request(admin.ListQueuesRequest, data)
        if caller_of(context).forwarded:
            # Another node collects a listing, and wants what only this one knows.
            if len(request.queues) > LIST_MAX:
                raise bad_request(
                    f"{len(request.queues)} queues, at most {LIST_MAX} are described at a time",
                    field="queues",
                )
            own = await self._broker.own_queues(request.queues)
            return await _listed(own.queues, "", own.joining)
        name = self._broker.topology.internal_name
        page = await self._broker.queues(
            await name(request.vhost, request.prefix),
            after=await name(request.vhost, request.after) if request.after else "",
            queues_max=request.queues_max,
        )
        return await _listed(page.queues, split_name(page.next)[1])

    async def _list_connections(self, data: bytes, context: Context) -> bytes:
        request = parse_request(admin.ListConnectionsRequest, data)
        page = await self._broker.connections.page(
            caller_of(context), after=request.after, connections_max=request.connections_max
        )
        return admin.ListConnectionsResponse(
            connections=map(connection_to_wire, page.connections),
            next=page.next,
            silent_nodes=page.silent_nodes,
        ).SerializeToString()

    async def _list_consumers(self, data: bytes, context: Context) -> bytes:
        request = parse_request(admin.ListConsumersRequest, data)
        queue = await self._queue_of(request)
        page = await self._broker.consumers.page(
            queue, caller_of(context), after=request.after, consumers_max=request.consumers_max
        )
        return consumers_to_wire(page).SerializeToString()

    # --- policies ---

    async def _set_policy(self, data: bytes, context: Context) -> bytes:
        policy = policy_from_wire(parse_request(admin.SetPolicyRequest, data).policy)
        done = await self._broker.operating.set_policy(policy, caller_of(context).deadline_s)
        return admin.SetPolicyResponse(
            created=done.created, queues=done.queues, exchanges=done.exchanges
        ).SerializeToString()

    async def _delete_policy(self, data: bytes, context: Context) -> bytes:
        request = parse_request(admin.DeletePolicyRequest, data)
        await self._broker.operating.delete_policy(
            request.vhost,
            request.name,
            caller_of(context).deadline_s,
            is_operator=request.is_operator,
        )
        return admin.DeletePolicyResponse().SerializeToString()

    async def _list_policies(self, data: bytes, context: Context) -> bytes:
        request = parse_request(admin.ListPoliciesRequest, data)
        found = await self._broker.operating.policies_of(request.vhost)
        return admin.ListPoliciesResponse(policies=map(policy_to_wire, found)).SerializeToString()

    # --- definitions ---

    async def _export_definitions(self, data: bytes, context: Context) -> bytes:
        parse_request(topology.ExportDefinitionsRequest, data)
        document = await self._broker.definitions.export_json()
        return topology.ExportDefinitionsResponse(definitions=document).SerializeToString()

    async def _import_definitions(self, data: bytes, context: Context) -> bytes:
        request = parse_request(topology.ImportDefinitionsRequest, data)
        caller = caller_of(context)

        async def declare(queue: str, arguments: QueueArguments) -> bool:
            return (await self._broker.declare(queue, arguments, caller)).created

        imported = await self._broker.definitions.import_json(
            request.definitions, caller, declare, vhost=request.vhost, nodes=dict(request.nodes)
        )
        return topology.ImportDefinitionsResponse(
            created=imported.created,
            existing=imported.existing,
            unmapped=imported.unmapped,
            failed=imported.failed,
        ).SerializeToString()

    # --- nodes ---

    async def _drain_node(self, data: bytes, context: Context) -> bytes:
        request = parse_request(admin.DrainNodeRequest, data)
        await self._broker.operating.drain(
            request.node, caller_of(context).deadline_s, evacuate=request.evacuate
        )
        return admin.DrainNodeResponse().SerializeToString()

    async def _revive_node(self, data: bytes, context: Context) -> bytes:
        request = parse_request(admin.ReviveNodeRequest, data)
        await self._broker.operating.revive(request.node, caller_of(context).deadline_s)
        return admin.ReviveNodeResponse().SerializeToString()

    async def _forget_node(self, data: bytes, context: Context) -> bytes:
        request = parse_request(admin.ForgetNodeRequest, data)
        await self._broker.operating.forget(request.node, caller_of(context).deadline_s)
        return admin.ForgetNodeResponse().SerializeToString()

    async def _rebalance(self, data: bytes, context: Context) -> bytes:
        request = parse_request(admin.RebalanceQueuesRequest, data)
        moves = await self._broker.rebalance(
            await self._broker.topology.internal_name(request.vhost, request.prefix),
            caller_of(context),
            dry_run=request.dry_run,
            every_vhost=not request.vhost,
        )
        return admin.RebalanceQueuesResponse(
            moves=[
                admin.MasterMove(
                    vhost=vhost_of(move.queue),
                    queue=split_name(move.queue)[1],
                    old_master=move.old_master,
                    new_master=move.new_master,
                    error=shown_text(move.error),
                )
                for move in moves
            ]
        ).SerializeToString()

    async def _queue_of(self, request: NamesQueue) -> str:
        """The internal name of the queue of a request, whose vhost has to be there."""
        return await self._broker.topology.internal_name(request.vhost, request.queue)

    # --- one node's own ---

    async def _get_replica(self, data: bytes, context: Context) -> bytes:
        request = parse_request(admin.GetReplicaRequest, data)
        queue = await self._queue_of(request)
        replica = replica_to_wire(self._broker.replica_info(queue))
        return admin.GetReplicaResponse(replica=replica).SerializeToString()

    async def _discard_damaged(self, data: bytes, context: Context) -> bytes:
        request = parse_request(admin.DiscardDamagedRequest, data)
        queue = await self._queue_of(request)
        messages = await self._broker.discard_damaged(queue, caller_of(context))
        return admin.DiscardDamagedResponse(messages=messages).SerializeToString()

    async def _verify_queue(self, data: bytes, context: Context) -> None:
        request = parse_request(admin.VerifyQueueRequest, data)
        queue = await self._queue_of(request)
        told = self._broker.verify(queue, rate_bytes_max=request.rate_bytes_max)
        async for info in told:
            await context.write(verify_to_wire(info).SerializeToString())

    async def _sync_queue(self, data: bytes, context: Context) -> bytes:
        request = parse_request(admin.SyncQueueRequest, data)
        queue = await self._queue_of(request)
        nodes = await self._broker.sync_queue(
            queue, request.node, caller_of(context), cancel=request.cancel
        )
        return admin.SyncQueueResponse(nodes=nodes).SerializeToString()

    async def _promote(self, data: bytes, context: Context) -> bytes:
        request = parse_request(admin.PromoteMirrorRequest, data)
        queue = await self._queue_of(request)
        acceptance = Acceptance(request.accept_loss, request.operator or context.call.peer)
        promoted = await self._broker.promote(queue, request.node, caller_of(context), acceptance)
        return promoted_to_wire(promoted).SerializeToString()


async def _listed(
    infos: Sequence[QueueInfo], after: str, joining: Mapping[str, SyncInfo] | None = None
) -> bytes:
    pieces = Pieces()
    response = admin.ListQueuesResponse(
        next=after,
        joining=[
            admin.JoiningReplica(queue=queue_id, sync=sync_to_wire(sync))
            for queue_id, sync in (joining or {}).items()
        ],
    )
    for info in infos:
        response.queues.append(queue_to_wire(info))
        await pieces.step()
    return response.SerializeToString()
