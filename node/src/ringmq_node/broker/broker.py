"""`Broker`: one method for each request that a door can make.

Each method does the same: it checks that this node takes calls, finds the queue's master, and
serves the call here or forwards it to the master's node. All methods raise `BrokerError`, and
`TimeoutError` when the caller's deadline passes; then it isn't known whether the call was carried
out.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from ringmq_node.broker.arguments import QueueArguments, check_arguments
from ringmq_node.broker.browsing import Browsing
from ringmq_node.broker.caller import Caller
from ringmq_node.broker.catalogue import QueueCatalogue, by_registry
from ringmq_node.broker.cluster import Cluster
from ringmq_node.broker.connection_listing import ConnectionListing
from ringmq_node.broker.consuming.channel import ConsumeChannel
from ringmq_node.broker.consuming.feed import Subscriber
from ringmq_node.broker.consuming.listing import ConsumerListing
from ringmq_node.broker.consuming.subscribing import DEFAULT_TERMS, Subscribing
from ringmq_node.broker.consuming.subscription import QueueSubscription
from ringmq_node.broker.declaring import Declaring
from ringmq_node.broker.definitions.service import DefinitionsService
from ringmq_node.broker.deleting import Deleting, check_conditions
from ringmq_node.broker.descriptions import Descriptions
from ringmq_node.broker.gate import NodeGate
from ringmq_node.broker.listing import Listing, Page
from ringmq_node.broker.locating import Location, Locator
from ringmq_node.broker.operating import Operating
from ringmq_node.broker.orphans import Orphans
from ringmq_node.broker.ownership import named
from ringmq_node.broker.peers import (
    NOT_ACCEPTED,
    Acceptance,
    DeleteConditions,
    Got,
    Peers,
    Promoted,
    QueuesAt,
)
from ringmq_node.broker.promoting import Promoting
from ringmq_node.broker.publishing import Publishing
from ringmq_node.broker.rebalancing import MasterMove
from ringmq_node.broker.replicas import Replicas
from ringmq_node.broker.routing.routing import Routing
from ringmq_node.broker.routing.session import RoutedSession, SessionClient
from ringmq_node.broker.topology.service import TopologyService
from ringmq_node.broker.verifying import Verifying
from ringmq_node.model.connections import SECRET_BYTES, owner_of
from ringmq_node.model.info import ClusterStatus, NodeResources, QueueInfo, ReplicaInfo, VerifyInfo
from ringmq_node.model.names import split_name
from ringmq_node.model.reasons import BrokerError, Reason, bad_request
from ringmq_node.model.records import QueueMode, check_queue_name
from ringmq_node.model.settings import GET_BYTES_MAX, GET_MESSAGES_MAX, BrokerSettings
from ringmq_node.queue.consumers import ConsumerTerms
from ringmq_node.replica.description import queue_info, replica_info
from ringmq_node.replica.mastership import Mastership
from ringmq_node.replica.sessions import PublisherSession
from ringmq_node.resources.budget import PublishBudget
from ringmq_node.resources.buffers import ClientBuffers

logger = logging.getLogger(__name__)

# While a master is waited for: how long its replica here is waited for at once, and the pause
# before the cluster is looked at again.
MASTER_POLL_S = 0.25
# One master that is moved for a rebalancing.
MOVE_DEADLINE_S = 15.0
MASTER_PAUSE_S = 0.02

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Declared:
    info: QueueInfo
    created: bool


class Broker:
    """See the module; `Node` puts the parts together."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        gate: NodeGate,
        catalogue: QueueCatalogue,
        cluster: Cluster,
        locator: Locator,
        declaring: Declaring,
        deleting: Deleting,
        listing: Listing,
        operating: Operating,
        promoting: Promoting,
        replicas: Replicas,
        verifying: Verifying,
        browsing: Browsing,
        peers: Peers,
        descriptions: Descriptions,
        budget: PublishBudget,
        routing: Routing,
        buffers: ClientBuffers,
        topology: TopologyService,
        orphans: Orphans,
        consuming: Subscribing,
        connections: ConnectionListing,
    ) -> None:
        self.settings = settings
        self.node = cluster.me.node
        self._gate = gate
        self._catalogue = catalogue
        self._cluster = cluster
        self._locator = locator
        self._declaring = declaring
        self._deleting = deleting
        self._listing = listing
        self.operating = operating
        self.topology = topology
        self.definitions = DefinitionsService(topology, catalogue, operating)
        self._promoting = promoting
        self._replicas = replicas
        self._verifying = verifying
        self.browsing = browsing
        self.wait_moved = locator.wait_moved
        self._peers = peers
        self.budget = budget
        self.buffers = buffers
        self.routing = routing
        open_here = partial(self.open_publisher, with_gaps=True)
        routing.begin(locator, cluster, gate, budget, topology, settings, open_here=open_here)
        self._descriptions = descriptions
        # For doors: clients' connections.
        self.orphans = orphans
        self.connections = connections
        self.consumers = ConsumerListing(self.node, self._at_master, peers)
        self.consuming = consuming
        consuming.begin(routing, locator, orphans)

    # --- sessions ---

    async def route(self, queue: str, caller: Caller, *, consumes: bool = False) -> str:
        """The address to which a stream on `queue` is to be relayed; empty: it is served here."""
        self._gate.check()
        address = await self._locator.route(queue, forwarded=caller.forwarded)
        if consumes:
            self._check_usable(queue, caller)
        return address

    async def open_publisher(
        self,
        queue: str,
        session: PublisherSession,
        *,
        producer_id: bytes = b"",
        with_gaps: bool = False,
    ) -> Publishing:
        """On the master's node only (see `route`)."""
        return await Publishing.open(
            await self._locator.serving(queue),
            self.settings,
            session,
            producer_id=producer_id,
            budget=self.budget,
            successor=self._locator.successor,
            with_gaps=with_gaps,
        )

    async def open_routed(
        self, vhost: str, session: SessionClient, *, producer_id: bytes = b""
    ) -> RoutedSession:
        """A publisher to the exchanges of a vhost, on any node. Without a producer id of the
        client, queues forget the session's when it ends."""
        self._gate.check()
        await self.topology.check_vhost(vhost)
        return self.routing.open(vhost, session, producer_id=producer_id)

    async def subscribe(
        self,
        channel: ConsumeChannel,
        queue: str,
        subscriber: Subscriber,
        caller: Caller,
        terms: ConsumerTerms = DEFAULT_TERMS,
        *,
        auto_ack: bool = False,
    ) -> QueueSubscription:
        """A consumer of a queue that is mastered anywhere, to be opened by the caller."""
        await self._know(queue)
        self._check_usable(queue, caller)
        return channel.subscribe(queue, subscriber, terms, auto_ack=auto_ack)

    # --- queues ---

    async def declare(
        self, queue: str, arguments: QueueArguments, caller: Caller, *, name_token: bytes = b""
    ) -> Declared:
        """Creates the queue, or finds that it exists with these arguments. An empty name: the queue
        is given one, the same for the same `name_token`."""
        if not name_token and not split_name(queue)[1]:
            name_token = secrets.token_bytes(SECRET_BYTES)
        queue = named(queue, name_token, restores=arguments.restores)
        check_arguments(arguments)
        self._gate.check()
        owner = owner_of(caller.connection).encode() if caller.connection else ""
        if arguments.exclusive and not owner:
            raise bad_request("an exclusive queue needs a connection", field="exclusive")
        arguments = replace(arguments, owner=owner)
        while True:
            created = await by_registry(
                self._declaring.declare(queue, arguments), caller.deadline_s
            )
            try:
                async with asyncio.timeout(caller.deadline_s):
                    info = await self._wait_info(queue)
                    if not created:
                        await self._note_use(queue, info, caller)
                return Declared(replace(info, storage=None), created)
            except BrokerError as error:
                # Deleted since it was declared: a transient one that nobody held, for example.
                if error.reason is not Reason.QUEUE_NOT_FOUND:
                    raise

    async def declare_passively(self, queue: str, caller: Caller) -> Declared:
        """Finds that the queue exists, and is not another connection's. This is a use of the queue,
        as each declaration."""
        await self._know(queue)
        self._check_usable(queue, caller)
        async with asyncio.timeout(caller.deadline_s):
            info = await self.queue_info(queue, caller)
            await self._note_use(queue, info, caller)
        return Declared(replace(info, storage=None), created=False)

    async def _note_use(self, queue: str, info: QueueInfo, caller: Caller) -> None:
        """Has the master of a queue that may expire know that it was declared again."""
        if "expires_ms" in info.wanted:
            # A look is a use, and nothing else tells the master of this one.
            await self.get(queue, caller, messages_max=1, bytes_max=1, remove=False)

    async def _wait_info(self, queue: str) -> QueueInfo:
        """The master's description, once a master serves; the caller has the deadline."""
        while True:
            try:
                master = self._locator.master_of(queue)
                if master == self._cluster.me:
                    replica = self._locator.replica_of(queue)
                    try:
                        # Not for longer: the queue may be deleted, or get another master.
                        async with asyncio.timeout(MASTER_POLL_S):
                            await replica.wait_serving()
                        return queue_info(replica)
                    except TimeoutError:
                        continue
                info = await self._descriptions.of(queue, self._cluster.address_of(master))
                if info is not None:
                    return info
            except BrokerError as error:
                # The caller has to hear why, and would only hear that its time has run out.
                if not error.retryable or error.reason is Reason.QUARANTINED:
                    raise
            await asyncio.sleep(MASTER_PAUSE_S)

    async def locate(self, queue: str) -> Location:
        await self._know(queue)
        return self._locator.locate(queue)

    async def queue_info(self, queue: str, caller: Caller) -> QueueInfo:
        """The master's description, with its storage."""

        async def here(mastership: Mastership) -> QueueInfo:
            info = queue_info(self._locator.replica_of(queue), with_storage=True)
            return await self._listing.with_progress(self._listing.with_quarantine(info))

        return await self._at_master(
            queue,
            caller,
            here,
            lambda address: self._peers.queue_info(address, queue, deadline_s=caller.deadline_s),
            only_looks=True,
        )

    async def set_mode(self, queue: str, mode: QueueMode, caller: Caller) -> QueueMode:
        """Changes where the queue keeps its messages; returns the mode before.

        On the master's node, so that a client that asks the master next sees the change.
        """
        self._gate.check()
        address = await self._locator.route(queue, forwarded=caller.forwarded)
        self._check_usable(queue, caller)
        if address:
            return await self._peers.set_mode(address, queue, mode, deadline_s=caller.deadline_s)
        return await by_registry(self._declaring.set_mode(queue, mode), caller.deadline_s)

    async def delete(self, queue: str, conditions: DeleteConditions, caller: Caller) -> int:
        """Deletes the queue if the conditions hold; returns how many messages it had."""

        async def here(mastership: Mastership) -> int:
            # Damaged messages, and those about to be requeued, can't be delivered now, but they
            # are in the queue all the same.
            messages = mastership.queue.messages
            if conditions:
                await self._deleting.delete_if(
                    self._locator.replica_of(queue),
                    lambda: check_conditions(mastership, conditions),
                )
            else:
                await self._deleting.delete(queue)
            return messages

        return await self._at_master(
            queue,
            caller,
            here,
            lambda address: self._deleting.delete_there(
                queue,
                self._peers.delete(address, queue, conditions, deadline_s=caller.deadline_s),
                caller.deadline_s,
            ),
        )

    async def delete_by_force(self, queue: str, caller: Caller) -> None:
        """Deletes the queue from any node, with or without a master; it isn't asked for anything
        but not to be another connection's."""
        check_queue_name(queue)
        self._gate.check()
        async with asyncio.timeout(caller.deadline_s):
            await self._catalogue.ensure_known(queue)
            self._check_usable(queue, caller)
            await self._deleting.delete(queue)
        logger.warning("queue %s: deleted without asking its master", queue)

    # --- messages without a stream ---

    async def purge(self, queue: str, caller: Caller) -> int:
        """Removes the ready messages; returns how many."""
        return await self._at_master(
            queue,
            caller,
            lambda mastership: mastership.purge(),
            lambda address: self._peers.purge(address, queue, deadline_s=caller.deadline_s),
        )

    async def get(
        self, queue: str, caller: Caller, *, messages_max: int, bytes_max: int, remove: bool
    ) -> Got:
        """The first messages, removed or left where they are.

        `messages_max` 0 is one message, `bytes_max` 0 the largest answer.
        """
        messages_max = min(messages_max or 1, GET_MESSAGES_MAX)
        bytes_max = min(bytes_max or GET_BYTES_MAX, GET_BYTES_MAX)

        async def here(mastership: Mastership) -> Got:
            take = mastership.take if remove else mastership.peek
            runs = await take(messages_max, bytes_max)
            # Nothing may be refused from here on: the messages may have been removed, and this
            # answer is all that is left of them.
            return Got(runs, 0 if mastership.ended else len(mastership.queue.ready))

        return await self._at_master(
            queue,
            caller,
            here,
            lambda address: self._peers.get(
                address,
                queue,
                messages_max,
                bytes_max,
                remove=remove,
                deadline_s=caller.deadline_s,
            ),
        )

    async def discard_damaged(self, queue: str, caller: Caller) -> int:
        """Removes the messages whose bodies no replica has; returns how many."""

        async def here(mastership: Mastership) -> int:
            messages = await mastership.discard_damaged()
            logger.warning("queue %s: %d damaged messages discarded", queue, messages)
            return messages

        return await self._at_master(
            queue,
            caller,
            here,
            lambda address: self._peers.discard_damaged(
                address, queue, deadline_s=caller.deadline_s
            ),
        )

    # --- operating ---

    async def promote(
        self, queue: str, node: str, caller: Caller, acceptance: Acceptance = NOT_ACCEPTED
    ) -> Promoted:
        """Makes the replica on `node` the master. It has to be synchronised, unless the queue has
        no master, can't get one by itself, and `acceptance` is given."""
        self._gate.check()
        return await self._promoting.promote(
            queue,
            node,
            acceptance,
            forwarded=caller.forwarded,
            deadline_s=caller.deadline_s,
            wait_serving=self._wait_info,
        )

    async def queues(self, prefix: str, *, after: str, queues_max: int) -> Page:
        return await self._listing.queues(prefix, after=after, queues_max=queues_max)

    async def own_queues(self, queues: Sequence[str]) -> QueuesAt:
        """What only this node knows of these queues: those that it masters, its quarantined
        replicas, and its joining ones."""
        return await self._listing.own_queues(queues)

    async def verify(self, queue: str, *, rate_bytes_max: int) -> AsyncIterator[VerifyInfo]:
        """Compares the synchronised replicas: the progress now and then, and at last the result."""
        await self._know(queue)
        record = self._catalogue.record_of(queue)
        async for info in self._verifying.verify(queue, record.id, rate_bytes_max=rate_bytes_max):
            yield info

    async def sync_queue(self, queue: str, node: str, caller: Caller, *, cancel: bool) -> list[str]:
        """Has replicas that aren't synchronised fetch what they lack, or stop fetching. `node`:
        only the one there; empty: all of them. Returns the nodes that were told."""
        await self._know(queue)
        if caller.forwarded:
            return self._replicas.sync_here(queue, cancel=cancel)
        return await self._replicas.sync(queue, node, cancel=cancel, deadline_s=caller.deadline_s)

    async def status(self, *, with_resources: bool, with_needing: bool = False) -> ClusterStatus:
        return await self._listing.status(with_resources=with_resources, with_needing=with_needing)

    async def rebalance(
        self, prefix: str, caller: Caller, *, dry_run: bool, every_vhost: bool = True
    ) -> Sequence[MasterMove]:
        """Spreads the masters of these queues over the nodes. Names are internal ones."""
        self._gate.check()

        async def move(queue: str, node: str) -> None:
            await self.promote(queue, node, Caller(MOVE_DEADLINE_S))

        return await self.operating.rebalance(
            prefix, caller.deadline_s, move=None if dry_run else move, every_vhost=every_vhost
        )

    def resources(self) -> NodeResources:
        """This node's memory, disk and store."""
        return self._listing.own_resources()

    def replica_info(self, queue: str) -> ReplicaInfo:
        """This node's replica of the queue."""
        view = self._locator.view_of(queue)
        me = self._cluster.me
        return replica_info(
            self._locator.replica_of(queue),
            synchronised=me in view.synced,
            master=view.master == me,
            epoch=view.epoch,
        )

    # --- here or there ---

    async def _know(self, queue: str) -> None:
        """Raises `BrokerError` unless this node takes calls and there is such a queue."""
        self._gate.check()
        check_queue_name(queue)
        await self._catalogue.ensure_known(queue)

    def _check_usable(self, queue: str, caller: Caller) -> None:
        """Raises `BrokerError` if the queue, which is known, is another connection's."""
        caller.check_may_use(self._catalogue.dependent.get(queue))

    async def _at_master(
        self,
        queue: str,
        caller: Caller,
        here: Callable[[Mastership], Awaitable[T]],
        there: Callable[[str], Awaitable[T]],
        *,
        only_looks: bool = False,
    ) -> T:
        """Carries the call out at the queue's master: `here`, or `there`, at that address.
        `only_looks`: at the queue itself, which may be anybody's."""
        self._gate.check()
        address = await self._locator.route(queue, forwarded=caller.forwarded)
        if not only_looks:
            self._check_usable(queue, caller)
        if address:
            return await there(address)
        async with asyncio.timeout(caller.deadline_s):
            return await here(await self._locator.serving(queue))
