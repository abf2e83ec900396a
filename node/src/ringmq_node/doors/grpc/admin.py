"""`ringmq.v1.Admin`: the cluster as an operator sees it."""

from __future__ import annotations

import asyncio
import logging
import time
from math import isfinite
from typing import TYPE_CHECKING, Any

import grpc

from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_gm import PromotionError, PromotionOutcome
from ringmq_node.doors.grpc.relay import METADATA, UNARY_DEADLINE_S, relay_unary
from ringmq_node.doors.grpc.service import Context, Service, is_relayed, parse
from ringmq_node.doors.grpc.wire import storage_to_wire, store_to_wire
from ringmq_node.model.reasons import BrokerError
from ringmq_node.model.records import QueueMode, mode_to_wire
from ringmq_node.resources import Usage
from ringmq_node.storage import Store

if TYPE_CHECKING:
    from ringmq_node.node import Node

NAME = "ringmq.v1.Admin"
logger = logging.getLogger(__name__)

LIST_MAX = 1000
LIST_DEADLINE_S = 5.0
# A status must not wait for a node that hangs.
RESOURCES_DEADLINE_S = 0.5

PROMOTION_REASONS = {
    PromotionOutcome.NOT_A_MEMBER: common.REASON_NOT_A_MEMBER,
    PromotionOutcome.NOT_SYNCHRONISED: common.REASON_NOT_SYNCHRONISED,
    PromotionOutcome.NOT_MASTER: common.REASON_NOT_MASTER,
    PromotionOutcome.ALREADY_MASTER: common.REASON_BAD_REQUEST,
}


def resources_to_wire(usage: Usage, store: Store, store_failure: object) -> admin.Resources:
    return admin.Resources(
        store=store_to_wire(store),
        memory_used_bytes=usage.memory_used,
        memory_limit_bytes=usage.memory_limit,
        memory_total_bytes=usage.memory_total,
        memory_alarm=usage.memory_alarm,
        disk_free_bytes=usage.disk_free,
        disk_limit_bytes=usage.disk_limit,
        disk_alarm=usage.disk_alarm,
        desired_duration_s=usage.duration_s if isfinite(usage.duration_s) else None,
        store_failure="" if store_failure is None else str(store_failure),
    )


class AdminService:
    """Answers for the cluster, asking the other nodes where they know better."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def handler(self) -> grpc.GenericRpcHandler:
        return Service(
            NAME,
            unary={
                "GetClusterStatus": self._status,
                "ListQueues": self._list_queues,
                "PromoteMirror": self._promote,
                "DiscardDamaged": self._discard_damaged,
                "GetReplica": self._get_replica,
                "GetResources": self._get_resources,
            },
            streams={},
        )

    async def _status(self, data: bytes, context: Context) -> bytes:
        request = parse(admin.GetClusterStatusRequest, data)
        node = self._node
        response = admin.GetClusterStatusResponse(
            cluster_id=node.cluster_id,
            node=node.config.node,
            queues=len(node.directory.records),
            registry_available=node.group.registry_available,
        )
        masters, mirrors = node.directory.count_roles()
        infos = node.known_nodes()
        for info in infos:
            info.masters = masters.get(info.node, 0)
            info.mirrors = mirrors.get(info.node, 0)
        if request.with_resources:
            await asyncio.gather(*map(self._ask_resources, infos))
        response.nodes.extend(infos)
        return response.SerializeToString()

    async def _ask_resources(self, info: admin.NodeInfo) -> None:
        """Sets them, if the node answers in time."""
        node = self._node
        if (info.node, info.incarnation) == (node.me.node, node.me.incarnation):
            info.resources.CopyFrom(self._own_resources())
            return
        if not info.address:
            return
        call: Any = node.channels.to(info.address).unary_unary(f"/{NAME}/GetResources")
        try:
            data = await call(b"", timeout=RESOURCES_DEADLINE_S)
        except grpc.aio.AioRpcError:
            return  # The status is of all that are there, also of one that hangs.
        info.resources.CopyFrom(parse(admin.GetResourcesResponse, data).resources)

    async def _get_resources(self, data: bytes, context: Context) -> bytes:
        parse(admin.GetResourcesRequest, data)
        return admin.GetResourcesResponse(resources=self._own_resources()).SerializeToString()

    def _own_resources(self) -> admin.Resources:
        node = self._node
        return resources_to_wire(node.resources.usage(), node.store, node.failed)

    async def _list_queues(self, data: bytes, context: Context) -> bytes:
        """Each master knows its queues best: they are asked, all at once."""
        request = parse(admin.ListQueuesRequest, data)
        if is_relayed(context):
            infos = [
                replica.info()
                for replica in self._node.directory.replicas.values()
                if replica.master is not None and replica.record.name.startswith(request.prefix)
            ]
            return admin.ListQueuesResponse(queues=infos).SerializeToString()
        count = min(request.queues_max or LIST_MAX, LIST_MAX)
        names = sorted(
            name
            for name in self._node.directory.records
            if name.startswith(request.prefix) and name > request.after
        )
        page = names[:count]
        known = await self._ask_masters(request.prefix)
        records = self._node.directory.records
        # Some may have been deleted while the masters were asked.
        there = [name for name in page if name in known or name in records]
        queues = [known.get(name) or self._without_master(name) for name in there]
        following = page[-1] if len(names) > count else ""
        return admin.ListQueuesResponse(queues=queues, next=following).SerializeToString()

    async def _ask_masters(self, prefix: str) -> dict[str, broker.QueueInfo]:
        request = admin.ListQueuesRequest(prefix=prefix).SerializeToString()

        async def ask(address: str) -> list[broker.QueueInfo]:
            call: Any = self._node.channels.to(address).unary_unary(f"/{NAME}/ListQueues")
            try:
                data = await call(request, timeout=LIST_DEADLINE_S, metadata=METADATA)
            except grpc.aio.AioRpcError:
                return []  # Its queues are listed as far as this node knows them.
            return list(parse(admin.ListQueuesResponse, data).queues)

        addresses = [info.address for info in self._node.known_nodes() if info.address]
        answers = await asyncio.gather(*map(ask, addresses))
        return {info.queue: info for infos in answers for info in infos}

    def _without_master(self, name: str) -> broker.QueueInfo:
        """A queue whose master did not answer: what the registry says of it."""
        record = self._node.directory.records[name]
        info = broker.QueueInfo(
            queue=name,
            id=record.id,
            replicas_wanted=len(record.nodes),
            min_insync=record.min_insync,
            mode=mode_to_wire(record.mode),
            durable=record.durable,
            state=broker.QUEUE_STATE_DOWN,
        )
        view = self._node.group.view(record.id)
        if view is not None:
            info.epoch = view.epoch
            for member in view.members:
                info.ring.add(
                    node=member.id.node,
                    incarnation=member.id.incarnation,
                    synchronised=member.synced,
                )
        return info

    async def _get_replica(self, data: bytes, context: Context) -> bytes:
        request = parse(admin.GetReplicaRequest, data)
        node = self._node
        replica = node.directory.replica_of(request.queue)
        state = replica.store.state
        view = node.directory.view_of(request.queue)
        synced = node.me in view.synced
        found = admin.Replica(
            node=node.me.node,
            incarnation=node.me.incarnation,
            synchronised=synced,
            master=view.master == node.me,
            epoch=view.epoch,
            last_number=state.last_number,
            next_position=state.next_position,
            messages=len(state.live),
            messages_missing=len(replica.store.missing),
            digest=state.digest(),
            mode=mode_to_wire(
                QueueMode.LAZY if replica.store.bodies.pager.lazy else QueueMode.DEFAULT
            ),
            storage=storage_to_wire(replica.store),
        )
        return admin.GetReplicaResponse(replica=found).SerializeToString()

    async def _discard_damaged(self, data: bytes, context: Context) -> bytes:
        request = parse(admin.DiscardDamagedRequest, data)
        node = self._node
        node.check_open()
        await node.directory.ensure_known(request.queue)
        master = node.directory.master_of(request.queue)
        if master != node.me:
            if is_relayed(context):
                raise BrokerError(common.REASON_NOT_MASTER, f"the master is {master}")
            address = node.address_of(master)
            path = f"/{NAME}/DiscardDamaged"
            return await relay_unary(node.channels, address, path, data, context)
        replica = node.directory.replica_of(request.queue)
        async with asyncio.timeout(context.time_remaining() or UNARY_DEADLINE_S):
            messages = await replica.discard_damaged()
        logger.warning("queue %s: %d damaged messages discarded", request.queue, messages)
        return admin.DiscardDamagedResponse(messages=messages).SerializeToString()

    async def _promote(self, data: bytes, context: Context) -> bytes:
        request = parse(admin.PromoteMirrorRequest, data)
        node = self._node
        master = node.directory.master_of(request.queue)
        if master != node.me:
            if is_relayed(context):
                raise BrokerError(common.REASON_NOT_MASTER, f"the master is {master}")
            address = node.address_of(master)
            return await relay_unary(
                node.channels, address, f"/{NAME}/PromoteMirror", data, context
            )
        began = time.monotonic()
        async with asyncio.timeout(context.time_remaining() or UNARY_DEADLINE_S):
            await self.promote(request.queue, request.node)
            await node.queue_info(request.queue)
        return admin.PromoteMirrorResponse(
            old_master=master.node,
            new_master=node.directory.master_of(request.queue).node,
            epoch=node.directory.view_of(request.queue).epoch,
            took_ms=round((time.monotonic() - began) * 1000),
        ).SerializeToString()

    async def promote(self, queue: str, target_node: str) -> None:
        """Hands the queue, whose master is here, over to `target_node`."""
        replica = self._node.directory.replica_of(queue)
        target = next((m.id for m in replica.view.members if m.id.node == target_node), None)
        if target is None:
            raise BrokerError(
                common.REASON_NOT_A_MEMBER,
                f"queue {queue!r} has no replica on node {target_node!r}",
                queue=queue,
                node=target_node,
            )
        try:
            await replica.ring.promote(target)
        except PromotionError as error:
            raise BrokerError(
                PROMOTION_REASONS.get(error.outcome, common.REASON_DRAINING),
                f"queue {queue!r}: {target_node!r} was not promoted: {error.outcome.value}",
                queue=queue,
                node=target_node,
            ) from error
