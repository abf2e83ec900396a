"""A broker for the client's tests: the real gRPC server, the queues in memory.

It keeps the protocol's promises as far as a client can see them (sequences without a gap,
duplicates trimmed and confirmed, prefetch, redelivery, settles checked against the stream's own
deliveries), and breaks them where a test asks for it: `Faults`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
from fake_cluster import Cluster, Faults, Message, Queue
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status  # type: ignore[import-untyped]

from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq.v1 import topology_pb2 as topology
from ringmq.v1.admin_pb2_grpc import AdminServicer, add_AdminServicer_to_server
from ringmq.v1.broker_pb2_grpc import BrokerServicer, add_BrokerServicer_to_server
from ringmq_base.ranges import RangeSet


def status_of(reason: common.Reason.ValueType, retry_ms: int = 0, **facts: str) -> object:
    """A `google.rpc.Status` as the nodes send it."""
    name = common.Reason.Name(reason).removeprefix("REASON_")
    info = any_pb2.Any()
    info.Pack(error_details_pb2.ErrorInfo(reason=name, domain="ringmq", metadata=facts))
    hint = any_pb2.Any()
    hint.Pack(
        error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(nanos=retry_ms * 10**6))
    )
    retryable = 20 <= reason < 40
    code = grpc.StatusCode.UNAVAILABLE if retryable else grpc.StatusCode.FAILED_PRECONDITION
    return rpc_status.to_status(
        status_pb2.Status(code=code.value[0], message=f"no: {name}", details=[info, hint])
    )


class Stream:
    """A servicer's context on which several tasks may write: gRPC takes one write at a time."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._lock = asyncio.Lock()
        self.read = context.read
        self.abort = context.abort
        self.abort_with_status = context.abort_with_status

    async def write(self, response: object) -> None:
        async with self._lock:
            await self._context.write(response)


class Health(grpc.GenericRpcHandler):
    """Of a `FakeNode`, of which it asks nothing but whether it answers."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method != "/grpc.health.v1.Health/Check":
            return None
        return grpc.unary_unary_rpc_method_handler(self._check)

    async def _check(self, request: bytes, context: Any) -> bytes:
        del request, context
        self._node.checks += 1
        if self._node.faults.silent:
            await asyncio.get_running_loop().create_future()
        return b""


class FakeNode(BrokerServicer, AdminServicer):
    """One node on a loopback port. `async with FakeNode(cluster) as node`."""

    def __init__(self, cluster: Cluster | None = None) -> None:
        self.cluster = cluster or Cluster()
        self.faults = Faults()
        self.message_bytes_max = 1024 * 1024
        self.properties_bytes_max = 128 * 1024
        self.batch_bytes_max = 4 * 1024 * 1024
        self.batch_messages_max = 10_000
        self.heartbeat_ms = 1000
        self.address = ""
        self.opens = 0
        # Of consumers, that were asked for.
        self.pages = 0
        self.locates = 0
        self.checks = 0
        self.batches: list[broker.PublishBatch] = []
        self.heartbeats_seen = 0
        self.ended_producers: list[bytes] = []
        self.settles: list[broker.Settle] = []
        self.policies: dict[str, admin.Policy] = {}
        # Whether there is a binding.
        self.bound = False
        # Drained and evacuated, by node.
        self.standings = {"a": (False, False)}
        self._streams: set[asyncio.Task[None]] = set()
        self._server: grpc.aio.Server | None = None
        # The queue of each consumer's stream, what it holds, and what delivers to it.
        self._consumed: list[tuple[Queue, RangeSet, asyncio.Task[None]]] = []

    async def __aenter__(self) -> FakeNode:
        self._server = grpc.aio.server(
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
        )
        add_BrokerServicer_to_server(self, self._server)
        add_AdminServicer_to_server(self, self._server)
        self._server.add_generic_rpc_handlers((Health(self),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        self.cluster.addresses.append(self.address)
        self.cluster.master = self.cluster.master or self.address
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()

    async def die(self) -> None:
        """At once, with all its streams; like a SIGKILL for those outside."""
        if self._server is not None:
            server, self._server = self._server, None
            self.cluster.addresses.remove(self.address)
            # Before the streams end: clients go on at another node, where all of it is ready.
            for queue, held, deliverer in self._consumed:
                deliverer.cancel()
                queue.give_back(held)
            await server.stop(0)

    def queue(self, name: str) -> Queue:
        return self.cluster.queues.setdefault(name, Queue(name))

    def send_away(self, queue: str) -> None:
        """A consumer of it: the queue has moved, and is back here already."""
        self.faults.sent_away += 1
        self.queue(queue).changed.set()

    async def _check(self, context: Any, queue: str | None = None) -> None:
        if self.faults.silent:
            await asyncio.get_running_loop().create_future()
        if self.faults.fail:
            await context.abort_with_status(status_of(self.faults.fail.pop(0), retry_ms=10))
        if queue is not None and queue not in self.cluster.queues:
            await context.abort_with_status(status_of(common.REASON_QUEUE_NOT_FOUND, queue=queue))

    # --- unary ---

    def _info(self, name: str) -> broker.QueueInfo:
        queue = self.cluster.queues[name]
        return broker.QueueInfo(
            queue=name,
            state=broker.QUEUE_STATE_RUNNING,
            messages_ready=len(queue.ready),
            messages_unacknowledged=len(queue.messages) - len(queue.ready),
            next_position=queue.next_position,
            ring=[broker.ReplicaInfo(node="a", synchronised=True)],
            mode=queue.mode,
            durable=queue.durable,
        )

    async def DeclareQueue(self, request: Any, context: Any) -> Any:
        await self._check(context)
        created = request.queue not in self.cluster.queues
        queue = self.queue(request.queue)
        if created and request.mode:
            queue.mode = request.mode
        if created and request.HasField("durable"):
            queue.durable = request.durable
        return broker.DeclareQueueResponse(queue=self._info(request.queue), created=created)

    async def DeleteQueue(self, request: Any, context: Any) -> Any:
        await self._check(context, request.queue)
        queue = self.cluster.queues[request.queue]
        if request.if_empty and queue.messages:
            await context.abort_with_status(status_of(common.REASON_QUEUE_NOT_EMPTY))
        del self.cluster.queues[request.queue]
        queue.changed.set()
        return broker.DeleteQueueResponse(messages=len(queue.messages))

    async def PurgeQueue(self, request: Any, context: Any) -> Any:
        await self._check(context, request.queue)
        queue = self.cluster.queues[request.queue]
        purged = len(queue.ready)
        for first, last in queue.ready:
            for position in range(first, last + 1):
                del queue.messages[position]
        queue.ready.clear()
        return broker.PurgeQueueResponse(messages=purged)

    async def GetQueue(self, request: Any, context: Any) -> Any:
        await self._check(context, request.queue)
        info = self._info(request.queue)
        ready = info.messages_ready
        info.storage.CopyFrom(broker.QueueStorage(messages_q4=ready, messages_in_memory=ready))
        return broker.GetQueueResponse(queue=info)

    async def SetQueueMode(self, request: Any, context: Any) -> Any:
        await self._check(context, request.queue)
        queue = self.cluster.queues[request.queue]
        before, queue.mode = queue.mode, request.mode
        return broker.SetQueueModeResponse(before=before)

    async def LocateQueue(self, request: Any, context: Any) -> Any:
        self.locates += 1
        await self._check(context, request.queue)
        address, epoch = self.faults.locates or (self.cluster.master, self.cluster.epoch)
        return broker.LocateQueueResponse(node=address, address=address, epoch=epoch)

    async def GetMessages(self, request: Any, context: Any) -> Any:
        await self._check(context, request.queue)
        queue = self.cluster.queues[request.queue]
        deliveries = []
        for position in [p for a, b in queue.ready for p in range(a, b + 1)][
            : request.messages_max
        ]:
            deliveries.append(self._delivery(queue, position))
            if request.mode == broker.GET_MODE_REMOVE:
                queue.ready.remove(position, position)
                del queue.messages[position]
        return broker.GetMessagesResponse(deliveries=deliveries, messages_ready=len(queue.ready))

    async def GetClusterStatus(self, request: Any, context: Any) -> Any:
        await self._check(context)
        return admin.GetClusterStatusResponse(
            cluster_id="fake",
            node=self.address,
            nodes=[
                admin.NodeInfo(node=address, address=address, state=admin.NODE_STATE_RUNNING)
                for address in self.cluster.addresses
            ],
            queues=len(self.cluster.queues),
            registry_available=True,
        )

    async def ListQueues(self, request: Any, context: Any) -> Any:
        await self._check(context)
        names = sorted(
            name
            for name in self.cluster.queues
            if name.startswith(request.prefix) and name > request.after
        )
        page = names[:2]  # small, so that paging is seen
        return admin.ListQueuesResponse(
            queues=[self._info(name) for name in page], next=page[-1] if len(names) > 2 else ""
        )

    async def DiscardDamaged(self, request: Any, context: Any) -> Any:
        await self._check(context, request.queue)
        return admin.DiscardDamagedResponse(messages=3)

    async def SetPolicy(self, request: Any, context: Any) -> Any:
        await self._check(context)
        created = request.policy.name not in self.policies
        self.policies[request.policy.name] = request.policy
        return admin.SetPolicyResponse(created=created, queues=2)

    async def DeletePolicy(self, request: Any, context: Any) -> Any:
        await self._check(context)
        if self.policies.pop(request.name, None) is None:
            await context.abort_with_status(status_of(common.REASON_POLICY_NOT_FOUND))
        return admin.DeletePolicyResponse()

    async def ListPolicies(self, request: Any, context: Any) -> Any:
        return admin.ListPoliciesResponse(policies=self.policies.values())

    async def DrainNode(self, request: Any, context: Any) -> Any:
        await self._check_node(context, request.node)
        self.standings[request.node] = (True, request.evacuate)
        return admin.DrainNodeResponse()

    async def ReviveNode(self, request: Any, context: Any) -> Any:
        await self._check_node(context, request.node)
        self.standings[request.node] = (False, False)
        return admin.ReviveNodeResponse()

    async def ForgetNode(self, request: Any, context: Any) -> Any:
        await self._check_node(context, request.node)
        del self.standings[request.node]
        return admin.ForgetNodeResponse()

    async def DeclareExchange(self, request: Any, context: Any) -> Any:
        return topology.DeclareExchangeResponse(created=True, exchange=request.exchange)

    async def DeleteExchange(self, request: Any, context: Any) -> Any:
        return topology.DeleteExchangeResponse()

    async def ListExchanges(self, request: Any, context: Any) -> Any:
        return topology.ListExchangesResponse()

    async def Bind(self, request: Any, context: Any) -> Any:
        self.bound = True
        return topology.BindResponse(created=True)

    async def Unbind(self, request: Any, context: Any) -> Any:
        removed, self.bound = self.bound, False
        await self._check(context)
        return topology.UnbindResponse(removed=removed)

    async def ListBindings(self, request: Any, context: Any) -> Any:
        return topology.ListBindingsResponse()

    async def CreateVhost(self, request: Any, context: Any) -> Any:
        return topology.CreateVhostResponse(created=True)

    async def DeleteVhost(self, request: Any, context: Any) -> Any:
        return topology.DeleteVhostResponse()

    async def ListVhosts(self, request: Any, context: Any) -> Any:
        return topology.ListVhostsResponse()

    async def ExportDefinitions(self, request: Any, context: Any) -> Any:
        return topology.ExportDefinitionsResponse(definitions=b"{}")

    async def ImportDefinitions(self, request: Any, context: Any) -> Any:
        return topology.ImportDefinitionsResponse()

    async def _check_node(self, context: Any, node: str) -> None:
        await self._check(context)
        if node not in self.standings:
            await context.abort_with_status(status_of(common.REASON_NODE_NOT_FOUND))

    async def ListConnections(self, request: Any, context: Any) -> Any:
        """Three, a page each."""
        await self._check(context)
        at = int(request.after or 0)
        state: Any = (admin.CONNECTION_STATE_RUNNING, admin.CONNECTION_STATE_FLOW, 99)[at]
        reasons = [broker.BLOCK_REASON_RING_FULL] if at == 1 else []
        info = admin.ConnectionInfo(
            node="a", peer=f"p{at}", state=state, flow_reasons=reasons, publishers=at, consumers=1
        )
        return admin.ListConnectionsResponse(
            connections=[info], next="" if at == 2 else str(at + 1), silent_nodes=["b"]
        )

    async def ListConsumers(self, request: Any, context: Any) -> Any:
        """Three, a page each, of a master that is followed by another behind the first page."""
        await self._check(context)
        self.pages += 1
        state: Any = (admin.CONSUMER_STATE_SINGLE_ACTIVE, admin.CONSUMER_STATE_WAITING, 99)[
            request.after
        ]
        info = admin.ConsumerInfo(
            number=request.after + 1,
            consumer_tag=f"{request.queue}{request.after}",
            node="b",
            state=state,
            share=broker.WindowShare(messages=3, bytes=4) if request.after else None,
        )
        return admin.ListConsumersResponse(
            consumers=[info],
            next=0 if request.after == 2 else request.after + 1,
            node="a",
            epoch=1 if self.pages == 1 else 2,
        )

    async def RebalanceQueues(self, request: Any, context: Any) -> Any:
        await self._check(context)
        moves = [
            admin.MasterMove(
                queue=name,
                old_master="a",
                new_master="b",
                error="" if request.dry_run else "in the way",
            )
            for name in self.cluster.queues
            if name.startswith(request.prefix)
        ]
        return admin.RebalanceQueuesResponse(moves=moves)

    async def PromoteMirror(self, request: Any, context: Any) -> Any:
        await self._check(context, request.queue)
        return admin.PromoteMirrorResponse(old_master="a", new_master=request.node, epoch=2)

    async def VerifyQueue(self, request: Any, context: Any) -> Any:
        await self._check(context, request.queue)
        yield admin.VerifyQueueResponse(positions=1, positions_total=2)
        yield admin.VerifyQueueResponse(positions=2, positions_total=2, done=True, nodes=["a"])

    async def SyncQueue(self, request: Any, context: Any) -> Any:
        await self._check(context, request.queue)
        return admin.SyncQueueResponse(nodes=[request.node or "b"])

    async def GetReplica(self, request: Any, context: Any) -> Any:
        await self._check(context, request.queue)
        return admin.GetReplicaResponse(replica=admin.Replica(node="a", master=True))

    async def GetResources(self, request: Any, context: Any) -> Any:
        return admin.GetResourcesResponse()

    # --- publish ---

    async def Connect(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        """The connection's id is as long as the real ones; the client ends it."""
        del request_iterator
        context = Stream(context)
        await context.read()
        opened = broker.ConnectOpened(connection="a.1.1.secret", heartbeat_ms=1000, node="a")
        await context.write(broker.ConnectResponse(opened=opened))
        while await context.read() is not None:
            pass

    async def Publish(  # type: ignore[override]
        self, request_iterator: Any, context: Any
    ) -> None:
        del request_iterator
        context = Stream(context)
        first = await context.read()
        queue = await self._opened(first.open.queue, context, broker.PublishResponse)
        if queue is None:
            return
        producer = bytes(first.open.producer_id)
        await context.write(
            broker.PublishResponse(
                opened=broker.PublishOpened(
                    last_sequence=queue.producers.get(producer, 0),
                    message_bytes_max=self.message_bytes_max,
                    properties_bytes_max=self.properties_bytes_max,
                    batch_bytes_max=self.batch_bytes_max,
                    batch_messages_max=self.batch_messages_max,
                    heartbeat_ms=self.heartbeat_ms,
                    node=self.address,
                    epoch=self.cluster.epoch,
                )
            )
        )
        die_after = self.faults.die_after_batches.pop(0) if self.faults.die_after_batches else 0
        hang_ups = self.faults.hang_up_after_batches
        hang_up_after = hang_ups.pop(0) if hang_ups else 0
        async with self._beating(context, broker.PublishResponse(heartbeat=broker.Heartbeat())):
            taken = 0
            while (request := await context.read()) is not grpc.aio.EOF:
                if request.HasField("heartbeat"):
                    self.heartbeats_seen += 1
                if request.HasField("end"):
                    self.ended_producers.append(producer)
                if not request.HasField("batch"):
                    continue
                taken += 1
                self.batches.append(request.batch)
                if taken == die_after and not self.faults.enqueue_the_last:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "killed")
                response = self._take(queue, producer, request.batch)
                if taken == die_after:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "killed")
                told = self.faults.blocked.pop(0) if self.faults.blocked else None
                if told:
                    blocked = broker.Blocked(reasons=told)
                    await context.write(broker.PublishResponse(blocked=blocked))
                elif told is not None:
                    unblocked = broker.Unblocked()
                    await context.write(broker.PublishResponse(unblocked=unblocked))
                if self.faults.confirm_delay_s:
                    await asyncio.sleep(self.faults.confirm_delay_s)
                await context.write(response)
                if taken == hang_up_after:
                    return

    async def _opened(self, name: str, context: Any, kind: Any) -> Queue | None:
        self.opens += 1
        await self._check(context, name)
        if self.faults.refuse:
            await context.abort_with_status(status_of(self.faults.refuse.pop(0), retry_ms=10))
        await asyncio.sleep(self.faults.open_delay_s)
        if self.faults.open_silently:
            await asyncio.get_running_loop().create_future()
        if self.faults.moved and (address := self.faults.moved.pop(0)) is not None:
            epoch = self.faults.moved_epoch
            await context.write(
                kind(moved=broker.Moved(node=address, address=address, epoch=epoch))
            )
            return None
        return self.cluster.queues[name]

    def _take(
        self, queue: Queue, producer: bytes, batch: broker.PublishBatch
    ) -> broker.PublishResponse:
        first, count = batch.first_sequence, len(batch.bodies)
        sequences = common.Range(first=first, last=first + count - 1)
        refusal = self.faults.reject.pop(0) if self.faults.reject else None
        last = queue.producers.get(producer, 0)
        if refusal is None and first > last + 1:
            refusal = broker.Rejected(reason=common.REASON_SEQUENCE_GAP)
        if refusal is not None:
            refusal.sequences.CopyFrom(sequences)
            return broker.PublishResponse(rejected=refusal)
        for index in range(max(0, last + 1 - first), count):
            properties = None
            if batch.properties:
                properties = batch.properties[index if len(batch.properties) > 1 else 0]
            queue.append(Message(batch.bodies[index], properties))
        queue.producers[producer] = max(last, sequences.last)
        return broker.PublishResponse(confirmed=broker.Confirmed(sequences=[sequences]))

    @contextlib.asynccontextmanager
    async def _beating(self, context: Any, beat: Any) -> AsyncIterator[None]:
        async def beating() -> None:
            while self.faults.heartbeats:
                await asyncio.sleep(self.heartbeat_ms / 1000)
                await context.write(beat)

        task = asyncio.create_task(beating())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    # --- consume ---

    @staticmethod
    def _delivery(queue: Queue, position: int) -> broker.Delivery:
        message = queue.messages[position]
        return broker.Delivery(
            first_position=position,
            bodies=[message.body],
            properties=[] if message.properties is None else [message.properties],
            redelivered=message.delivered,
        )

    async def Consume(  # type: ignore[override]
        self, request_iterator: Any, context: Any
    ) -> None:
        del request_iterator
        context = Stream(context)
        first = await context.read()
        queue = await self._opened(first.open.queue, context, broker.ConsumeResponse)
        if queue is None:
            return
        prefetch = first.open.prefetch_messages or 1000
        await context.write(
            broker.ConsumeResponse(
                opened=broker.ConsumeOpened(
                    consumer_tag=first.open.consumer_tag or "fake-tag",
                    prefetch_messages=prefetch,
                    heartbeat_ms=self.heartbeat_ms,
                    node=self.address,
                    epoch=self.cluster.epoch,
                )
            )
        )
        held = RangeSet()
        deliverer = asyncio.create_task(self._deliver(queue, held, prefetch, context))
        consumed = queue, held, deliverer
        self._consumed.append(consumed)
        try:
            async with self._beating(context, broker.ConsumeResponse(heartbeat=broker.Heartbeat())):
                while (request := await context.read()) is not grpc.aio.EOF:
                    if request.HasField("heartbeat"):
                        self.heartbeats_seen += 1
                    if request.HasField("cancel"):
                        deliverer.cancel()
                    if request.HasField("settle"):
                        await self._settle(queue, held, request.settle, context)
        finally:
            deliverer.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await deliverer
            self._consumed.remove(consumed)
            queue.give_back(held)

    async def _deliver(self, queue: Queue, held: RangeSet, prefetch: int, context: Any) -> None:
        while True:
            if self.cluster.queues.get(queue.name) is not queue:
                await context.write(
                    broker.ConsumeResponse(
                        cancelled=broker.ConsumeCancelled(reason=common.REASON_QUEUE_NOT_FOUND)
                    )
                )
                return
            if self.faults.sent_away:
                self.faults.sent_away -= 1
                there = broker.Moved(node=self.address, address=self.address)
                await context.write(broker.ConsumeResponse(moved=there))
                return
            # Cleared before looking, so that a change during the write below is seen.
            queue.changed.clear()
            deliveries = []
            while queue.ready and len(held) < prefetch:
                position = queue.ready.first
                queue.ready.remove(position, position)
                held.add(position, position)
                deliveries.append(self._delivery(queue, position))
                queue.messages[position].delivered = True
            if deliveries:
                await context.write(
                    broker.ConsumeResponse(deliveries=broker.Deliveries(deliveries=deliveries))
                )
            await queue.changed.wait()

    async def _settle(
        self, queue: Queue, held: RangeSet, settle: broker.Settle, context: Any
    ) -> None:
        self.settles.append(settle)
        every = [*settle.ack, *settle.requeue, *settle.discard]
        if not all(held.contains_all(each.first, each.last) for each in every):
            await context.abort_with_status(status_of(common.REASON_UNKNOWN_DELIVERY))
        for each in every:
            held.remove(each.first, each.last)
        for each in settle.requeue:
            queue.ready.add(each.first, each.last)
        gone = [*settle.ack, *settle.discard]
        for each in gone:
            for position in range(each.first, each.last + 1):
                del queue.messages[position]
        queue.changed.set()
        if gone and not self.faults.settle_silently:
            await context.write(broker.ConsumeResponse(settled=broker.Settled(positions=gone)))
