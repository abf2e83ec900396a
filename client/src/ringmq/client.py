"""The client: questions and commands to a cluster, and streams to its queues.

    async with ringmq.connect("127.0.0.1:7801,127.0.0.1:7802") as client:
        await client.declare_queue("orders")
        async with client.publisher("orders") as publisher:
            await publisher.publish(b"hello")

Every call has a deadline (`deadline_s`, by default that of `connect`) and is made again at
another node, with jittered backoff, as long as that is safe and there is time. A client belongs to
the event loop on which it was connected (`ringmq.sync` has a loop of its own).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Unpack

from ringmq.calls.arguments import checked_calls
from ringmq.calls.known_nodes import KnownNodes
from ringmq.calls.node_channel import NodeChannel
from ringmq.calls.requests import request_of
from ringmq.calls.retrying import is_refused
from ringmq.connection import ConnectedClient, name_token
from ringmq.consuming.consumer import Consumer, ConsumerOptions
from ringmq.errors import (
    BadRequestError,
    ClosedError,
    OutcomeUnknownError,
    QueueNotFoundError,
    UnavailableError,
)
from ringmq.model.cluster import ClusterStatus
from ringmq.model.messages import Batch
from ringmq.model.policies import MasterLocator
from ringmq.model.positions import Numbering
from ringmq.model.queues import BlockReason, Location, Promotion, QueueInfo, QueueMode, mode_to_wire
from ringmq.model.rules import NO_RULES, QueueRules
from ringmq.operator import Operator
from ringmq.publishing.epochs import SeenEpochs
from ringmq.publishing.publisher import Publisher
from ringmq.reading.reader import Reader
from ringmq.topology import TopologyCalls
from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common

WINDOW_BYTES = 16 * 1024 * 1024
LIST_PAGE = 1000


@checked_calls
class Client(ConnectedClient):
    """Made by `connect`."""

    def __init__(self, nodes: KnownNodes) -> None:
        super().__init__(nodes)
        self._streams: set[Publisher | Consumer] = set()  # Those that are open, or try to be.
        self._seen_epochs = SeenEpochs()
        self._closed = False

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes publishers (without a flush), consumers and connections. Idempotent."""
        self._closed = True
        # All at once: each may wait for a node that doesn't answer.
        await asyncio.gather(
            *(
                stream.close(flush=False) if isinstance(stream, Publisher) else stream.close()
                for stream in list(self._streams)
            )
        )
        await self._connection.close()
        await self._nodes.close()

    @property
    def deadline_s(self) -> float:
        return self._nodes.deadline_s

    # --- queues ---

    async def declare_queue(
        self,
        name: str = "",
        replicas: int = 0,
        min_insync: int = 0,
        *,
        mode: QueueMode | None = None,
        durable: bool | None = None,
        master_locator: MasterLocator | None = None,
        rules: QueueRules = NO_RULES,
        exclusive: bool | None = None,
        auto_delete: bool | None = None,
        exact: bool = False,
        deadline_s: float | None = None,
    ) -> QueueInfo:
        """Creates the queue, unless it exists with the same arguments; else `QueueExistsError`.

        `replicas`: the master included; 0: as many as there are nodes, at most 3.
        `min_insync`: how many must have a message on disk before it is confirmed; 0: the
        majority of the replicas. `mode` None: default for a new queue, any for one that exists.
        `durable` False: a transient queue, which is on no disk, and gone once all nodes that hold
        it have been restarted; None: a new queue is durable, an existing one either.
        `master_locator`: where the master of a new queue goes; None: as a policy says, else to the
        node with the fewest masters. A policy for the queue's name counts over `replicas` and
        `min_insync`. `rules`: limits such as `QueueRules(max_length=1000)`; of an existing queue,
        those that are None may be anything. An empty name: the cluster gives the queue one.
        `exclusive`: for this client, while it is connected. `auto_delete`: until its last consumer
        has left. `exact`: an existing one was declared without what is left out, but for its mode.
        """
        if replicas < 0 or min_insync < 0:
            raise BadRequestError(
                f"{replicas} replicas and min_insync {min_insync}: both are 0 (the default) or more"
            )
        request = request_of(
            broker.DeclareQueueRequest,
            queue=name,
            vhost=self._nodes.vhost,
            replicas=replicas,
            min_insync=min_insync,
            mode=common.QUEUE_MODE_UNSPECIFIED if mode is None else mode_to_wire(mode),
            durable=durable,
            master_locator=None if master_locator is None else master_locator.value,
            rules=rules.to_wire(),
            exclusive=exclusive,
            auto_delete=auto_delete,
            exact=exact,
            name_token=b"" if name else name_token(),
        )
        if exclusive:
            self._open_nodes()
            await self._connection.hold(deadline_s)

        async def attempt(node: NodeChannel, timeout_s: float) -> QueueInfo:
            answer = await node.broker.DeclareQueue(request, timeout=timeout_s)
            return QueueInfo.from_wire(answer.queue)

        return await self._open_nodes().call(attempt, deadline_s=deadline_s, changes=True)

    async def delete_queue(
        self,
        name: str,
        *,
        if_empty: bool = False,
        if_unused: bool = False,
        force: bool = False,
        deadline_s: float | None = None,
    ) -> int:
        """Deletes the queue; returns how many messages were in it.

        `force`: also if it has no master, and even if it holds messages, which nobody counts then.
        0, too, if the answer of a first attempt was lost and the second found no queue.
        """
        request = request_of(
            broker.DeleteQueueRequest,
            queue=name,
            vhost=self._nodes.vhost,
            if_empty=if_empty,
            if_unused=if_unused,
            force=force,
        )
        attempts = 0

        async def attempt(node: NodeChannel, timeout_s: float) -> int:
            nonlocal attempts
            attempts += 1
            answer = await node.broker.DeleteQueue(request, timeout=timeout_s)
            return answer.messages

        try:
            return await self._open_nodes().call(attempt, deadline_s=deadline_s, changes=True)
        except QueueNotFoundError:
            if attempts > 1:
                return 0
            raise

    async def set_queue_mode(
        self, name: str, mode: QueueMode, *, deadline_s: float | None = None
    ) -> QueueMode:
        """Switches where the queue keeps its messages; returns the mode that it had.

        Publishers and consumers go on meanwhile. If the answer of a first attempt was lost, the
        returned mode is the new one: the second attempt found it.
        """
        request = request_of(
            broker.SetQueueModeRequest, vhost=self._nodes.vhost, queue=name, mode=mode_to_wire(mode)
        )

        async def attempt(node: NodeChannel, timeout_s: float) -> QueueMode:
            answer = await node.broker.SetQueueMode(request, timeout=timeout_s)
            return QueueMode(answer.before)

        return await self._open_nodes().call(attempt, deadline_s=deadline_s, changes=True)

    async def purge_queue(self, name: str, *, deadline_s: float | None = None) -> int:
        """Removes the ready messages; returns how many (those of the last attempt)."""
        request = request_of(broker.PurgeQueueRequest, vhost=self._nodes.vhost, queue=name)

        async def attempt(node: NodeChannel, timeout_s: float) -> int:
            return (await node.broker.PurgeQueue(request, timeout=timeout_s)).messages

        return await self._open_nodes().call(attempt, deadline_s=deadline_s, changes=True)

    async def discard_damaged(self, name: str, *, deadline_s: float | None = None) -> int:
        """Removes the messages whose bodies every replica has lost; returns how many (those of
        the last attempt). They are gone for good, also if a replica that has them comes back."""
        request = request_of(admin.DiscardDamagedRequest, vhost=self._nodes.vhost, queue=name)

        async def attempt(node: NodeChannel, timeout_s: float) -> int:
            return (await node.admin.DiscardDamaged(request, timeout=timeout_s)).messages

        return await self._open_nodes().call(attempt, deadline_s=deadline_s, changes=True)

    async def queue(self, name: str, *, deadline_s: float | None = None) -> QueueInfo:
        """The queue's state, counts and replicas now."""
        request = request_of(broker.GetQueueRequest, vhost=self._nodes.vhost, queue=name)

        async def attempt(node: NodeChannel, timeout_s: float) -> QueueInfo:
            answer = await node.broker.GetQueue(request, timeout=timeout_s)
            return QueueInfo.from_wire(answer.queue)

        return await self._open_nodes().call(attempt, deadline_s=deadline_s)

    async def queues(self, prefix: str = "", *, deadline_s: float | None = None) -> list[QueueInfo]:
        """All queues whose names begin with `prefix`, by name. The deadline is per page of 1000."""
        found: list[QueueInfo] = []
        after = ""
        while True:
            request = request_of(
                admin.ListQueuesRequest,
                vhost=self._nodes.vhost,
                prefix=prefix,
                queues_max=LIST_PAGE,
                after=after,
            )

            async def attempt(
                node: NodeChannel, timeout_s: float, request: admin.ListQueuesRequest = request
            ) -> admin.ListQueuesResponse:
                return await node.admin.ListQueues(request, timeout=timeout_s)

            page = await self._open_nodes().call(attempt, deadline_s=deadline_s)
            found += map(QueueInfo.from_wire, page.queues)
            if not page.next:
                return found
            after = page.next

    async def locate_queue(self, name: str, *, deadline_s: float | None = None) -> Location:
        """Where the queue's master is."""
        request = request_of(broker.LocateQueueRequest, vhost=self._nodes.vhost, queue=name)

        async def attempt(node: NodeChannel, timeout_s: float) -> Location:
            answer = await node.broker.LocateQueue(request, timeout=timeout_s)
            return Location(answer.node, answer.address, answer.epoch)

        return await self._open_nodes().call(attempt, deadline_s=deadline_s)

    async def get_messages(
        self,
        queue: str,
        messages_max: int = 100,
        *,
        bytes_max: int = 0,
        remove: bool = False,
        deadline_s: float | None = None,
    ) -> Batch:
        """The first ready messages: a look at them, or with `remove` for good (at most once).

        With `remove`, a lost answer is not asked for again: `OutcomeUnknownError`.
        """
        mode = broker.GET_MODE_REMOVE if remove else broker.GET_MODE_PEEK
        request = request_of(
            broker.GetMessagesRequest,
            queue=queue,
            vhost=self._nodes.vhost,
            messages_max=messages_max,
            bytes_max=bytes_max,
            mode=mode,
        )

        async def attempt(node: NodeChannel, timeout_s: float) -> Batch:
            answer = await node.broker.GetMessages(request, timeout=timeout_s)
            return Batch.from_wire(answer.deliveries, queue)

        nodes = self._open_nodes()
        if not remove:
            return await nodes.call(attempt, deadline_s=deadline_s)
        try:
            return await nodes.call(attempt, deadline_s=deadline_s, again=is_refused)
        except UnavailableError as error:
            # A refusal, or a node that could not be asked, has had no effect.
            if is_refused(error):
                raise
            raise OutcomeUnknownError(
                f"queue {queue!r}: the connection broke before the answer: {error}"
            ) from error

    def reader(
        self,
        queue: str,
        *,
        vhost: str = "",
        numbering: Numbering | None = None,
        deadline_s: float | None = None,
    ) -> Reader:
        """Reads the queue by positions, without consuming (`ringmq.reading.reader`).

        `numbering`: what the caller's positions mean, if they are of an earlier reader.
        """
        return Reader(
            self._open_nodes(),
            queue,
            vhost=vhost or self._nodes.vhost,
            numbering=numbering,
            deadline_s=self.deadline_s if deadline_s is None else deadline_s,
        )

    # --- the cluster ---

    @property
    def topology(self) -> TopologyCalls:
        """Exchanges, bindings and vhosts."""
        return TopologyCalls(self._open_nodes())

    @property
    def operator(self) -> Operator:
        """Policies and nodes: the calls that change the whole cluster."""
        return Operator(self._open_nodes())

    async def cluster_status(
        self,
        *,
        with_resources: bool = False,
        with_queues_needing: bool = False,
        deadline_s: float | None = None,
    ) -> ClusterStatus:
        """The nodes, as one of them sees them.

        `with_resources`: also the memory and disk that each uses; takes half a second longer if
        one of them hangs. `with_queues_needing`: also how many queues can't do without each node.
        """
        request = request_of(
            admin.GetClusterStatusRequest,
            with_resources=with_resources,
            with_queues_needing=with_queues_needing,
        )

        async def attempt(node: NodeChannel, timeout_s: float) -> ClusterStatus:
            answer = await node.admin.GetClusterStatus(request, timeout=timeout_s)
            return ClusterStatus.from_wire(answer)

        nodes = self._open_nodes()
        status = await nodes.call(attempt, deadline_s=deadline_s)
        nodes.learn(node.address for node in status.nodes)
        return status

    async def promote_mirror(
        self,
        queue: str,
        node: str,
        *,
        accept_loss: bool = False,
        operator: str = "",
        deadline_s: float | None = None,
    ) -> Promotion:
        """Makes `node`'s synchronised mirror the master; returns when it serves.

        `accept_loss`: a queue that has no master, and can't get one by itself, goes on with what
        `node` has; without it, `MessagesMayBeLostError` says what each replica has. `operator`,
        who decides that, goes into the queue's record; at most 128 bytes.
        """
        request = request_of(
            admin.PromoteMirrorRequest,
            queue=queue,
            vhost=self._nodes.vhost,
            node=node,
            accept_loss=accept_loss,
            operator=operator,
        )
        wanted_s = self.deadline_s if deadline_s is None else deadline_s

        async def attempt(asked: NodeChannel, timeout_s: float) -> Promotion:
            answer = await asked.admin.PromoteMirror(request, timeout=timeout_s)
            return Promotion.from_wire(answer)

        # A repeat is safe, since to promote the master does nothing. It has the whole deadline:
        # the old master drains first, and an attempt cut short would begin that anew.
        return await self._open_nodes().call(
            attempt, deadline_s=wanted_s, attempt_s=wanted_s, changes=True
        )

    async def sync_queue(
        self,
        queue: str,
        *,
        node: str = "",
        cancel: bool = False,
        deadline_s: float | None = None,
    ) -> list[str]:
        """Has the replicas that aren't synchronised (the one on `node`, if named) fetch what they
        lack; with `cancel`, stop fetching. Returns the nodes of the replicas that were told."""
        request = request_of(
            admin.SyncQueueRequest, vhost=self._nodes.vhost, queue=queue, node=node, cancel=cancel
        )

        async def attempt(asked: NodeChannel, timeout_s: float) -> list[str]:
            return [*(await asked.admin.SyncQueue(request, timeout=timeout_s)).nodes]

        return await self._open_nodes().call(attempt, deadline_s=deadline_s)

    # --- streams ---

    def publisher(
        self,
        queue: str = "",
        *,
        exchange: str | None = None,
        vhost: str = "",
        first_sequence: int | None = None,
        window_messages: int = 1000,
        window_bytes: int = WINDOW_BYTES,
        producer_id: bytes | None = None,
        deadline_s: float | None = None,
        on_blocked: Callable[[tuple[BlockReason, ...]], None] | None = None,
        on_unblocked: Callable[[], None] | None = None,
    ) -> Publisher:
        """A publisher, to be entered with `async with`.

        At most the window (messages, bytes of them) is on its way at a time. A program that retries
        under the same `producer_id` (at most 64 bytes; else a random one), even after a restart,
        enqueues each sequence once.

        `on_blocked(reasons)` is called when the cluster holds the messages: at once for an alarm,
        else after a second, and when the reasons change; `on_unblocked()` when they go on, or the
        publisher is closed. Both on the loop. Until then messages wait, to their deadlines.
        `exchange` instead of a queue ("" is the default exchange): each message goes to the queues
        that are bound for its `routing_key`, and is confirmed when all of them have it. With a
        `producer_id`, `first_sequence` says which message of the program comes next, counted from
        1: no node knows that, and a number that was used before is taken for a repeat.
        """
        return Publisher(
            self._open_nodes(),
            queue,
            self._seen_epochs.of(queue) if exchange is None else None,
            exchange=exchange,
            vhost=vhost or self._nodes.vhost,
            first_sequence=first_sequence,
            window_messages=window_messages,
            window_bytes=window_bytes,
            producer_id=producer_id,
            deadline_s=self.deadline_s if deadline_s is None else deadline_s,
            on_open=self._opens,
            on_close=self._streams.discard,
            on_blocked=on_blocked,
            on_unblocked=on_unblocked,
        )

    def consumer(
        self,
        queue: str,
        *,
        prefetch: int = 1000,
        prefetch_bytes: int = 0,
        consumer_tag: str = "",
        deadline_s: float | None = None,
        **terms: Unpack[ConsumerOptions],
    ) -> Consumer:
        """A consumer, to be entered with `async with` and iterated: see there."""
        return Consumer(
            self._open_nodes(),
            queue,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            consumer_tag=consumer_tag,
            deadline_s=self.deadline_s if deadline_s is None else deadline_s,
            on_open=self._opens,
            on_close=self._streams.discard,
            **terms,
        )

    def _opens(self, stream: Publisher | Consumer) -> None:
        self._open_nodes()
        self._streams.add(stream)

    def _open_nodes(self) -> KnownNodes:
        if self._closed:
            raise ClosedError("this client has been closed; connect again")
        return self._nodes
