"""One broker node: its parts wired together, started in order and stopped in order.

This module builds and connects; no rule of the broker is here, and nothing is given the whole node.

Start: registry, incarnation, data directory (locked, and checked to be of this cluster and node),
the port, the group (which registers the node), the queues. The node serves once it has seen the
cluster's state and opened its replicas.

Stop: no new work, every master handed over to a synchronised mirror, streams told to move, the
registry's lease given up, the store closed clean.

A store that fails (a full disk, an fsync that did not work) takes the node out of its rings at
once, so that the others go on without it. The node keeps answering, with the reason; `running` has
what comes after.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from grpc_health.v1 import health, health_pb2
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection_pb2_grpc import add_ServerReflectionServicer_to_server

from ringmq_gm import Group, MemberId
from ringmq_gm.registry.base import AddressError, Registry
from ringmq_gm.registry.url import open_registry
from ringmq_node.broker.alarms import ClusterAlarms
from ringmq_node.broker.belonging import keep_belonging
from ringmq_node.broker.broker import Broker
from ringmq_node.broker.browsing import Browsing
from ringmq_node.broker.catalogue import QueueCatalogue
from ringmq_node.broker.cluster import Cluster
from ringmq_node.broker.cluster_settings import ClusterSettings
from ringmq_node.broker.connection_listing import ConnectionListing
from ringmq_node.broker.connections import Connections
from ringmq_node.broker.consuming.subscribing import Subscribing
from ringmq_node.broker.declaring import Declaring
from ringmq_node.broker.deleting import Deleting
from ringmq_node.broker.descriptions import Descriptions
from ringmq_node.broker.gate import NodeGate
from ringmq_node.broker.listing import Listing
from ringmq_node.broker.locating import Locator
from ringmq_node.broker.operating import Operating
from ringmq_node.broker.orphans import Orphans
from ringmq_node.broker.promoting import Promoting
from ringmq_node.broker.reconciler import Reconciler
from ringmq_node.broker.reconciling import Reconciling
from ringmq_node.broker.replicas import Replicas
from ringmq_node.broker.routing.routing import Routing
from ringmq_node.broker.topology.parts import TopologyParts
from ringmq_node.broker.transient import TransientQueues
from ringmq_node.broker.verifying import Verifying
from ringmq_node.config import REQUEST_OVERHEAD_BYTES, ConfigError, NodeConfig
from ringmq_node.doors.grpc.admin import AdminService
from ringmq_node.doors.grpc.broker import BrokerService
from ringmq_node.doors.grpc.channels import PeerChannels
from ringmq_node.doors.grpc.generated import GeneratedServices
from ringmq_node.doors.grpc.node_key import NodeKey
from ringmq_node.doors.grpc.outward import OutwardStreams
from ringmq_node.doors.grpc.peers import ADMIN, BROKER, GrpcDigests, GrpcPeers, GrpcSources
from ringmq_node.doors.grpc.reader import READER, ReaderService
from ringmq_node.doors.grpc.ring import FetchService
from ringmq_node.errors import StartError
from ringmq_node.identity import DiskIdentity, check_own_name, disk_identity
from ringmq_node.model.reasons import Reason
from ringmq_node.opening import enrol_node, group_options, open_store, place_of, server_of
from ringmq_node.replica.hosting import Hosting
from ringmq_node.replica.producer_budget import ProducerBudget, time_step_ms
from ringmq_node.replica.replica import Replica
from ringmq_node.resources import Alarm, ResourceMonitor
from ringmq_node.resources.budget import PublishBudget
from ringmq_node.resources.limits import parse_disk_free_limit, parse_memory_watermark
from ringmq_node.resources.loop_watch import LoopWatch
from ringmq_node.storage import QueueStore, Store, StoreError
from ringmq_node.storage.scrub import Scrub
from ringmq_node.supervisor import Supervisor

logger = logging.getLogger(__name__)

START_DEADLINE_S = 30.0
SERVICES = (BROKER, ADMIN, READER)
PROMOTIONS_AT_ONCE = 16


class Node:
    """Made by `make_node`, whole; `running.run_node` is the usual way."""

    def __init__(
        self,
        config: NodeConfig,
        registry: Registry,
        store: Store,
        *,
        cluster_id: str,
        disk: DiskIdentity,
        key: NodeKey,
    ) -> None:
        """Listens at once, but serves nobody before `start`. Raises `StartError`."""
        self.config = config
        self.registry = registry
        self.store = store
        self.me = MemberId(config.node, disk.life.incarnation)
        self._disk = disk
        self._key = key
        # Resources that are short now, and a store that has failed; for the cluster status.
        self.alarms: set[Alarm] = set()
        self.gate = NodeGate(config.node)
        self.supervisor = Supervisor()
        self.loop_watch = LoopWatch()
        limit = config.message_bytes_max + REQUEST_OVERHEAD_BYTES
        self._server, self.buffers = server_of(config, limit)
        self.address = self._listen()
        options = group_options(config, key)
        self.group = Group(
            registry,
            node=config.node,
            incarnation=self.me.incarnation,
            address=self.address,
            options=options,
            extra={"version": version("ringmq"), "identity": disk.life.identity},
        )
        self._group_task: asyncio.Task[None] | None = None
        self.cluster = Cluster(self.group, registry, cluster_id=cluster_id, address=self.address)
        self.channels = PeerChannels(limit, key.metadata, options.unacknowledged_s)
        self.settings = ClusterSettings(registry)
        self.hosting = Hosting(
            store,
            self.group,
            sources=GrpcSources(self.channels, self.cluster),
            spawn=self.supervisor.spawn,
            store_failed=self._store_failed,
            disk_is_trusted=disk.standing.is_trusted,
            leftover_s=config.leftover_s,
            set_aside_s=config.set_aside_s,
            set_aside_bytes_max=config.set_aside_bytes_max,
            time_step_ms=time_step_ms(config.producer_expiry_s),
            wanted_of=self.settings.wanted_of,
        )
        self.budget = PublishBudget(
            config.publish_bytes_max,
            lambda: self.group.cached_bytes + store.counters.unsynced_bytes,
        )
        self.cluster_alarms = ClusterAlarms(config.node, self.group, changed=self.budget.set_alarms)
        # Not before there is somebody who is told of the alarms that it raises at once.
        self.resources = self._watch_resources()
        self.catalogue = QueueCatalogue(registry)
        self.transient = TransientQueues(registry, self.group)
        self.topology = TopologyParts(registry, self.catalogue, self.group, self.settings)
        self.deleting = Deleting(registry, self.catalogue, self.supervisor.spawn)
        self.orphans = self._make_orphans()
        self.broker = self._make_broker()
        self.hosting.begin(self.broker.routing, config.properties_bytes_max)
        self.reconciling = self._make_reconciling()
        self.hosting.on_changed = self.reconciling.queue_changed
        self._health = health.aio.HealthServicer()
        self._add_services()
        self._listen_to_parts()

    # --- wiring ---

    def _listen_to_parts(self) -> None:
        self.store.on_durable = self._durable
        self.store.on_failed = self._store_failed
        self.store.on_crowded = self._crowded
        self.group.on_freed = self.budget.freed
        self.group.on_notices = self.cluster_alarms.learn

    def _make_orphans(self) -> Orphans:
        return Orphans(
            self.catalogue,
            self.cluster,
            self.group,
            self.hosting,
            self.deleting,
            Connections(self.cluster.me),
            gate=self.gate,
            spawn=self.supervisor.spawn,
            grace_s=self.config.orphan_s,
        )

    def _make_broker(self) -> Broker:
        peers, spawn = GrpcPeers(self.channels), self.supervisor.spawn
        locator = Locator(self.catalogue, self.cluster, self.group, self.hosting, self.gate)
        listing = Listing(
            self.catalogue,
            self.cluster,
            self.group,
            self.hosting,
            peers,
            settings=self.settings,
            gate=self.gate,
            store=self.store,
            monitor=self.resources,
            budget=self.budget,
            buffers=self.buffers,
        )
        self.hosting.on_unused = self.deleting.begin_deleting_unused
        return Broker(
            settings=self.config.broker_settings,
            gate=self.gate,
            catalogue=self.catalogue,
            cluster=self.cluster,
            locator=locator,
            declaring=Declaring(
                self.registry,
                self.catalogue,
                self.settings,
                self.cluster,
                self.transient,
                self.orphans.delete_if_gone,
                spawn,
                self.topology.topology,
            ),
            deleting=self.deleting,
            listing=listing,
            operating=Operating(
                self.registry,
                self.settings,
                self.catalogue,
                self.cluster,
                listing,
                self.gate,
                self.topology.topology,
            ),
            replicas=Replicas(self.cluster, locator, peers),
            connections=ConnectionListing(self.cluster, listing.nodes, peers, self.budget),
            verifying=Verifying(self.cluster, locator, GrpcDigests(self.channels)),
            browsing=Browsing(
                self.catalogue, self.cluster, locator, self.gate, now_ms=self.hosting.now_ms
            ),
            promoting=Promoting(self.catalogue, self.cluster, locator, peers),
            peers=peers,
            descriptions=Descriptions(peers, self.supervisor.spawn),
            budget=self.budget,
            buffers=self.buffers,
            routing=Routing(self.topology.topology.router, OutwardStreams(self.channels), spawn),
            consuming=Subscribing(OutwardStreams(self.channels), spawn),
            topology=self.topology.service(self.deleting, self.gate),
            orphans=self.orphans,
        )

    def _make_reconciling(self) -> Reconciling:
        return Reconciling(
            Reconciler(replace_after_s=self.config.replace_after_s),
            self.registry,
            self.catalogue,
            self.settings,
            self.cluster,
            self.group,
            self.hosting,
            gate=self.gate,
            spawn=self.supervisor.spawn,
        )

    def _settings_changed(self) -> None:
        self.group.know_nodes(frozenset(self.settings.nodes))
        self.topology.topology.router.follow_policies(self.settings.exchange_policies())
        self.hosting.configure_all()
        self.reconciling.all_changed()

    def _add_services(self) -> None:
        unacknowledged_s = group_options(self.config, self._key).unacknowledged_s
        for routes in (
            self.group.routes(),
            BrokerService(self.broker, self.channels).routes(),
            AdminService(self.broker).routes(),
            ReaderService(self.broker, self.channels).routes(),
            FetchService(self.hosting).routes(),
        ):
            self._server.add(self._key.guard(routes, unacknowledged_s))
        generated = GeneratedServices()
        # Typed for grpc.aio's server, of which they use what this has.
        add_HealthServicer_to_server(self._health, cast(Any, generated))
        if self.config.reflection:
            names = (*SERVICES, "grpc.health.v1.Health", reflection.SERVICE_NAME)
            reflecting = reflection.aio.ReflectionServicer(names)
            add = cast(Any, add_ServerReflectionServicer_to_server)
            add(reflecting, generated)
        self._server.add(generated.routes)

    def _listen(self) -> str:
        """Binds the port; returns the address under which others find this node."""
        try:
            port = self._server.bind(self.config.listen)
        except (OSError, ValueError) as error:
            raise StartError(
                f"can't listen at {self.config.listen}: the port is taken, or the host not ours"
            ) from error
        host, _, advertised = (self.config.advertise or self.config.listen).rpartition(":")
        self.listens_at = f"{self.config.listen.rpartition(':')[0]}:{port}"
        # Port 0 asks the system for a free one: others need the number that it gave.
        return f"{host}:{port if advertised == '0' else advertised}"

    def _watch_resources(self) -> ResourceMonitor:
        try:
            monitor = ResourceMonitor(
                Path(self.config.data),
                memory_watermark=parse_memory_watermark(self.config.memory_watermark),
                disk_free_limit=parse_disk_free_limit(self.config.disk_free_limit),
                on_alarm=self._alarm,
                store=self.store,
            )
        except OSError as error:
            raise StartError(str(error)) from error
        monitor.look()
        return monitor

    # --- life ---

    async def start(self) -> None:
        """Serves when this returns; raises `StartError`."""
        self.supervisor.spawn(self.loop_watch.run(), "loop watch")
        self._server.start()
        self.supervisor.spawn(self.store.run(), "store")
        self.supervisor.spawn(self.resources.run(), "resources")
        self._group_task = self.supervisor.spawn(self.group.run(), "group")
        or_fatal = self.supervisor.or_fatal
        try:
            async with asyncio.timeout(START_DEADLINE_S):
                await or_fatal(self.group.wait_ready())
                # Once more: an operator could forget the node until its lease was there.
                await or_fatal(enrol_node(self.registry, self.config))
                # Before the queues: a replica is configured when it is opened.
                self.supervisor.spawn(self.settings.follow(self._settings_changed), "settings")
                await or_fatal(self.settings.loaded.wait())
                # Not earlier: opening the replicas holds the loop while it reads their journals,
                # and the group would miss its own deadlines.
                self.supervisor.spawn(
                    self.catalogue.follow(self.topology.after(self.hosting.reconcile)), "catalogue"
                )
                self.supervisor.spawn(self.topology.topology.follow(), "topology")
                await or_fatal(self.catalogue.answered.wait())
        except TimeoutError:
            raise StartError(f"registry {self.config.registry}: no answer") from None
        # Without a deadline: a node may have any amount of data to recover.
        await or_fatal(self.catalogue.loaded.wait())
        await or_fatal(self.topology.begin(self.supervisor.spawn))
        await self._trust_disk()
        self.supervisor.spawn(self.transient.run(self.hosting), "transient queues")
        self.supervisor.spawn(self.orphans.run(), "orphans")
        await or_fatal(self._drop_leftovers())
        self._begin_scrub()
        budget = ProducerBudget(
            self.hosting.replicas.values,
            self.config.producers_max,
            expiry_s=self.config.producer_expiry_s,
        )
        self.supervisor.spawn(budget.run(), "producers")
        self.supervisor.spawn(self.hosting.leftovers.run(self.hosting.is_used), "leftovers")
        self.supervisor.spawn(self.broker.routing.run(), "routing")
        self.supervisor.spawn(self.hosting.set_asides.run(), "set aside")
        self.supervisor.spawn(self.cluster_alarms.watch(), "alarms")
        belonging = keep_belonging(self.registry, self.settings, self.cluster)
        self.supervisor.spawn(belonging, "belonging")
        self.supervisor.spawn(self.reconciling.watch_nodes(), "nodes")
        self.supervisor.spawn(self.reconciling.run(), "reconciler")
        await self._tell_health()

    async def _tell_health(self) -> None:
        answers = health_pb2.HealthCheckResponse
        for service in ("", *SERVICES):
            # The store may have failed before the node was ready.
            is_well = self.gate.failure is None
            await self._health.set(service, answers.SERVING if is_well else answers.NOT_SERVING)

    def _begin_scrub(self) -> None:
        scrub = Scrub(
            self.store,
            lambda: [replica.store for replica in self.hosting.replicas.values()],
            rate_bytes=self.config.scrub_rate_bytes,
            pause_s=self.config.scrub_pause_s,
        )
        self.supervisor.spawn(scrub.run(), "scrub")

    async def _drop_leftovers(self) -> None:
        if self.catalogue.unreadable:
            # Nobody knows the ids of these queues: their replicas look like leftovers.
            logger.warning("no leftover replica is removed while records can't be read")
            return
        await self.hosting.drop_leftovers(self.catalogue.records.values())

    async def _trust_disk(self) -> None:
        """Every replica that an untrusted disk may lack messages of is marked by now.

        Unless the store has failed, the node begun to stop, or a record can't be read: some were
        not even opened, or are lost, and the next life has to find the disk untrusted again.
        """
        were_known = self.gate.is_open and not self.catalogue.unreadable
        if not self._disk.standing.is_trusted and were_known:
            try:
                await self.store.sync_marks()
            except StoreError:
                return  # The node has been told, and stays without its rings.
            await self._disk.record()
            self.hosting.trust_disk()

    async def wait_fatal(self) -> None:
        """Raises when a part has failed that the node can't do without."""
        await self.supervisor.wait_fatal()

    async def stop(self) -> None:
        """Drains and closes; every wait is bounded."""
        self.gate.draining = True
        self.hosting.stop_opening()
        await self._health.enter_graceful_shutdown()
        if self.gate.failure is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.config.drain_s):
                    await self._hand_over()
        self.broker.routing.stop(Reason.DRAINING)
        await self.hosting.close_in_pieces(Reason.DRAINING)
        await self._server.stop(grace_s=1.0)
        await self.supervisor.stop()
        await self.channels.close()
        self.store.close()
        await self.registry.close()

    async def _hand_over(self) -> None:
        """Hands every master here over to the first synchronised mirror that is up."""
        gate = asyncio.Semaphore(PROMOTIONS_AT_ONCE)

        async def one(replica: Replica) -> None:
            async with gate:
                for member in replica.view.members[1:]:
                    if not member.synced or not self.cluster.is_alive(member.id):
                        continue
                    try:
                        await replica.ring.promote(member.id)
                        return
                    except Exception as error:
                        logger.warning("queue %s: %s", replica.record.name, error)

        await asyncio.gather(*(one(replica) for replica in self.hosting.masters()))

    # --- failures and shortages ---

    def _store_failed(self, error: StoreError) -> None:
        """Leaves all rings at once: a node that can't write must not promise anything."""
        if not self.gate.fail(error):
            return
        self._alarm(Alarm.STORE, True)
        logger.critical("the store has failed, this node leaves its rings: %s", error)
        if self._group_task is not None:
            self._group_task.cancel()
        self.hosting.close_all(self.gate.failure_reason)
        self.supervisor.spawn(self._tell_health(), "health")

    def _durable(self, queue: QueueStore) -> None:
        self.hosting.durable(queue)
        self.budget.freed()

    def _crowded(self, on: bool) -> None:
        """The disk is far behind: neither other nodes nor publishers here may bring it more."""
        self.group.hold_credit(on)
        self.budget.is_crowded = on
        self.budget.freed()

    def _alarm(self, kind: Alarm, on: bool) -> None:
        if on:
            self.alarms.add(kind)
        else:
            self.alarms.discard(kind)
        self.cluster_alarms.set_own(kind, on)


async def make_node(config: NodeConfig) -> Node:
    """A node that has its place in the cluster, not started yet. Raises `StartError`; nothing is
    left open then."""
    async with AsyncExitStack() as opened:
        try:
            registry = open_registry(config.registry)
        except AddressError as error:
            raise ConfigError(f"registry: {error}") from error
        opened.push_async_callback(registry.close)
        cluster_id, key, incarnation = await place_of(registry, config)
        store = open_store(config, cluster_id)
        opened.callback(store.close)
        # Before the disk is judged: the node that has this name now may be on the right one.
        await check_own_name(registry, config, store)
        disk = await disk_identity(registry, store, config, incarnation)
        if not disk.standing.is_trusted:
            logger.error(
                "the data directory %s is %s. Its replicas may lack confirmed messages: they begin "
                "no ring, and fetch what is missing from the other members",
                config.data,
                disk.standing.value,
            )
        await enrol_node(registry, config)
        node = Node(config, registry, store, cluster_id=cluster_id, disk=disk, key=key)
        # From here on the node closes them.
        opened.pop_all()
        return node
