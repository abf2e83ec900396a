"""One broker node: its parts put together, started in order and stopped in order.

Start: registry, data directory (locked, and checked to be of this cluster and node), an
incarnation, the port, the group (which registers the node), the queues. It serves when
it has seen the cluster's state once.

Stop: no more new work, every master handed over to a synchronised mirror, streams told
to move, the registry's lease given up, the store closed clean.

A store that fails (a full disk, an fsync that did not work) takes the node out of its
rings at once, so that the others go on without it; it keeps answering, with the reason.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import uvloop
from grpc_health.v1 import health, health_pb2
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from ringmq.v1 import admin_pb2 as admin
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common
from ringmq_base.limits import MIB
from ringmq_base.ranges import Range
from ringmq_gm import Group, GroupOptions, MemberId, next_incarnation
from ringmq_gm.nodes import NODES, NodeRecord
from ringmq_gm.registry.base import AddressError, Guard, Put, Registry, RegistryError
from ringmq_gm.registry.url import open_registry
from ringmq_node.broker.catalogue import Directory
from ringmq_node.config import ConfigError, NodeConfig
from ringmq_node.doors.grpc.admin import AdminService
from ringmq_node.doors.grpc.broker import BrokerService
from ringmq_node.doors.grpc.peers import Fetcher, FetchService
from ringmq_node.doors.grpc.relay import Channels
from ringmq_node.model.reasons import BrokerError, StartError
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.replica.fetching import Fetched
from ringmq_node.replica.replica import Replica
from ringmq_node.resources import Alarm, ResourceMonitor
from ringmq_node.resources.limits import parse_disk_free_limit, parse_memory_watermark
from ringmq_node.storage import QueueStore, Store, StoreError
from ringmq_node.storage.errors import DiskFullError
from ringmq_node.storage.limits import StoreLimits

logger = logging.getLogger(__name__)

CLUSTER_KEY = "cluster"
IDENTITY_FILE = "identity"
START_DEADLINE_S = 30.0
# Around the bodies of a request: tags, sizes, properties.
REQUEST_OVERHEAD_BYTES = MIB
SERVICES = ("ringmq.v1.Broker", "ringmq.v1.Admin")
PROMOTIONS_AT_ONCE = 16
MASTER_POLL_S = 0.25
# New objects between two collections of the youngest.
GARBAGE_OBJECTS = 20_000


class Node:
    """Made by `start`; `run_node` is the usual way."""

    def __init__(
        self, config: NodeConfig, registry: Registry, cluster_id: str, incarnation: int
    ) -> None:
        self.config = config
        self.registry = registry
        self.cluster_id = cluster_id
        self.me = MemberId(config.node, incarnation)
        self.failed: StoreError | None = None
        self.draining = False
        # What is short or broken here now. Said in the cluster status; flow control will ask, too.
        self.alarms: set[Alarm] = set()
        self.address = config.advertise
        self.directory = Directory(self)
        limit = config.message_bytes_max + REQUEST_OVERHEAD_BYTES
        self.channels = Channels(limit)
        self.store: Store
        self.resources: ResourceMonitor
        self.group: Group
        self._fetcher = Fetcher(self)
        self._health = health.aio.HealthServicer()
        self._tasks: set[asyncio.Task[None]] = set()
        self._fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._by_store: dict[QueueStore, Replica] = {}
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                # Clients may ping an idle stream every 10 s without being told to calm down.
                ("grpc.http2.min_ping_interval_without_data_ms", 5000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.max_ping_strikes", 0),
            ]
        )

    # --- life ---

    async def start(self) -> None:
        """Serves when this returns; raises `StartError`."""
        self.store = self._open_store()
        self.store.on_durable = self._durable
        self.store.on_failed = self.store_failed
        self.resources = self._watch_resources()
        port = self._listen()
        host = self.config.listen.rpartition(":")[0]
        self.address = self.config.advertise or f"{host}:{port}"
        if self.address.endswith(":0"):
            self.address = f"{self.address.rpartition(':')[0]}:{port}"
        identity = await self._own_name()
        self.group = Group(
            self.registry,
            node=self.me.node,
            incarnation=self.me.incarnation,
            address=self.address,
            options=self._group_options(),
            extra={"version": version("ringmq"), "identity": identity},
        )
        self.group.add_to(self._server)
        self.store.on_crowded = self.group.hold_credit
        self._add_services()
        await self._server.start()
        for work, name in (
            (self.store.run(), "store"),
            (self.resources.run(), "resources"),
            (self.group.run(), "group"),
        ):
            self._spawn_vital(work, name)
        try:
            async with asyncio.timeout(START_DEADLINE_S):
                await self._or_fatal(self.group.wait_ready())
                # Not before: it holds the loop for as long as it reads journals.
                self._spawn_vital(self.directory.run(), "directory")
                await self._or_fatal(self.directory.answered.wait())
        except TimeoutError:
            raise StartError(f"registry {self.config.registry}: no answer") from None
        # However much there is to recover.
        await self._or_fatal(self.directory.loaded.wait())
        self._spawn_vital(self.directory.delete_gone(), "transient queues")
        self.directory.drop_leftovers()
        for service in ("", *SERVICES):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    def _group_options(self) -> GroupOptions:
        config = self.config
        return GroupOptions(
            ring_timeout_s=config.ring_timeout_s,
            slow_timeout_s=config.slow_timeout_s,
            lease_ttl_s=config.lease_s,
            cache_bytes_max=config.ring_bytes_max,
            payload_bytes_max=2 * config.message_bytes_max + REQUEST_OVERHEAD_BYTES,
        )

    def _open_store(self) -> Store:
        try:
            return Store.open(
                Path(self.config.data),
                cluster_id=self.cluster_id,
                node=self.config.node,
                limits=StoreLimits(
                    queue_memory_bytes_max=self.config.queue_memory_bytes_max,
                    embed_below=self.config.embed_below,
                    disk_timeout_s=self.config.disk_timeout_s,
                ),
            )
        except (StoreError, OSError) as error:
            raise StartError(f"data directory {self.config.data}: {error}") from error

    async def _own_name(self) -> str:
        """This data directory's identity; raises if another one's node serves under our name.

        A later life of a node takes over from an earlier one: a name given twice by mistake
        must not put a healthy node out.
        """
        path = Path(self.config.data) / IDENTITY_FILE
        if not path.exists():
            path.write_text(uuid.uuid4().hex)
        identity = path.read_text()
        try:
            entry = await self.registry.get(NODES + self.config.node)
        except RegistryError as error:
            raise StartError(f"registry {self.config.registry}: {error}") from error
        if entry is not None:
            other = NodeRecord.decode(self.config.node, entry.value)
            if other.extra.get("identity", identity) != identity:
                raise StartError(
                    f"node {self.config.node} serves at {other.address} from another data directory"
                )
        return identity

    def _listen(self) -> int:
        try:
            return self._server.add_insecure_port(self.config.listen)
        except RuntimeError as error:
            self.store.close()
            raise StartError(
                f"can't listen at {self.config.listen}: the port is taken, or the host not ours"
            ) from error

    def _add_services(self) -> None:
        handlers = (
            BrokerService(self).handler(),
            AdminService(self).handler(),
            FetchService(self).handler(),
        )
        self._server.add_generic_rpc_handlers(handlers)
        add_HealthServicer_to_server(self._health, self._server)
        if self.config.reflection:
            names = (*SERVICES, "grpc.health.v1.Health", reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)

    async def wait_fatal(self) -> None:
        """Raises when a part that the node can't do without has failed."""
        await asyncio.shield(self._fatal)

    async def _or_fatal(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        await asyncio.wait({task, self._fatal}, return_when=asyncio.FIRST_COMPLETED)
        if self._fatal.done():
            task.cancel()
            self._fatal.result()
        await task

    async def stop(self) -> None:
        """Drains and closes; every wait is bounded."""
        self.draining = True
        await self._health.enter_graceful_shutdown()
        if self.failed is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.config.drain_s):
                    await self._hand_over()
        for replica in self.directory.replicas.values():
            replica.close(common.REASON_DRAINING)
        await self._server.stop(grace=1.0)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.channels.close()
        self.store.close()
        await self.registry.close()

    async def _hand_over(self) -> None:
        """Every master here goes to the first synchronised mirror that is there."""
        gate = asyncio.Semaphore(PROMOTIONS_AT_ONCE)

        async def one(replica: Replica) -> None:
            async with gate:
                for member in replica.view.members[1:]:
                    if not member.synced or not self.is_alive(member.id):
                        continue
                    try:
                        await replica.ring.promote(member.id)
                        return
                    except Exception as error:
                        logger.warning("queue %s: %s", replica.record.name, error)

        await asyncio.gather(*(one(replica) for replica in self.directory.masters_here()))

    # --- tasks ---

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A task of a replica; its failure is the node's."""
        return self._spawn_vital(work, name)

    def _spawn_vital(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None or self._fatal.done():
            return
        error = task.exception()
        assert error is not None
        logger.critical("%s has failed", task.get_name(), exc_info=error)
        self._fatal.set_exception(error)

    # --- the store ---

    def _durable(self, queue: QueueStore) -> None:
        replica = self.directory.replicas.get(queue.queue)
        if replica is not None:
            replica.durable()

    def store_failed(self, error: StoreError) -> None:
        """Out of all rings at once: what can't be written must not be promised."""
        if self.failed is not None:
            return
        self.failed = error
        self._alarm(Alarm.STORE, True)
        logger.critical("the store has failed, this node leaves its rings: %s", error)
        for task in self._tasks:
            if task.get_name() == "group":
                task.cancel()
        for replica in self.directory.replicas.values():
            replica.close(self._failure_reason())
        for service in ("", *SERVICES):
            self.spawn(
                self._health.set(service, health_pb2.HealthCheckResponse.NOT_SERVING), "health"
            )

    def _failure_reason(self) -> common.Reason.ValueType:
        full = isinstance(self.failed, DiskFullError)
        return common.REASON_DISK_FULL if full else common.REASON_STORE_FAILED

    async def sync_store(self) -> None:
        await self.store.sync()

    def check_open(self) -> None:
        """Raises if this node takes no calls."""
        if self.failed is not None:
            raise BrokerError(
                self._failure_reason(), f"node {self.me.node}: {self.failed}", node=self.me.node
            )
        if self.draining:
            raise BrokerError(
                common.REASON_DRAINING, f"node {self.me.node} is shutting down", node=self.me.node
            )

    # --- memory and disk ---

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
            self.store.close()
            raise StartError(str(error)) from error
        monitor.look()
        return monitor

    def _alarm(self, kind: Alarm, on: bool) -> None:
        if on:
            self.alarms.add(kind)
        else:
            self.alarms.discard(kind)

    # --- the cluster ---

    def is_alive(self, member: MemberId) -> bool:
        record = self.group.nodes().get(member.node)
        return record is not None and record.incarnation == member.incarnation

    def address_of(self, member: MemberId) -> str:
        if member == self.me:
            return self.address
        record = self.group.nodes().get(member.node)
        if record is None or record.incarnation != member.incarnation:
            raise BrokerError(common.REASON_NO_MASTER, f"node {member} is down")
        return record.address

    async def registered_members(self) -> list[MemberId]:
        """Those that are up, as the registry has them now, not as the watch has shown them.

        A node that has said it is ready must not be left out of a ring that is made next.
        """
        entries = (await self.registry.list(NODES)).entries
        names = [(entry.key.removeprefix(NODES), entry.value) for entry in entries]
        return [NodeRecord.decode(name, value).member_id for name, value in sorted(names)]

    def known_nodes(self) -> list[admin.NodeInfo]:
        """Those that are up, and those that a queue or a ring names and that are not."""
        up = self.group.nodes()
        infos = [
            admin.NodeInfo(
                node=name,
                address=record.address,
                incarnation=record.incarnation,
                state=admin.NODE_STATE_RUNNING,
                version=str(record.extra.get("version", "")),
            )
            for name, record in up.items()
        ]
        named = {node for record in self.directory.records.values() for node in record.nodes}
        infos += [
            admin.NodeInfo(node=name, state=admin.NODE_STATE_DOWN) for name in named - set(up)
        ]
        return sorted(infos, key=lambda info: info.node)

    async def queue_info(self, name: str) -> broker.QueueInfo:
        """The master's word on a queue, once it serves; the caller has the deadline."""
        request = broker.GetQueueRequest(queue=name).SerializeToString()
        while True:
            try:
                master = self.directory.master_of(name)
                if master == self.me:
                    replica = self.directory.replica_of(name)
                    with suppress(TimeoutError):
                        # Meanwhile it may be deleted, or have another master.
                        async with asyncio.timeout(MASTER_POLL_S):
                            await replica.wait_serving()
                        return replica.info()
                    continue
                call: Any = self.channels.to(self.address_of(master)).unary_unary(
                    "/ringmq.v1.Broker/GetQueue"
                )
                data: Any = await call(
                    request, timeout=START_DEADLINE_S, metadata=(("ringmq-relayed", "1"),)
                )
                return broker.GetQueueResponse.FromString(data).queue
            except BrokerError as error:
                if not error.retryable:
                    raise
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise BrokerError(common.REASON_NO_MASTER, str(error.details())) from error
            await asyncio.sleep(0.02)

    # --- what replicas fetch ---

    async def fetch_state(
        self, queue_id: str, source: MemberId, number_min: int
    ) -> ReplicatedState:
        return await self._fetcher.state(queue_id, source, number_min)

    def fetch_messages(
        self, queue_id: str, source: MemberId, ranges: Sequence[Range]
    ) -> AsyncIterator[Fetched]:
        return self._fetcher.messages(queue_id, source, ranges)


async def make_node(config: NodeConfig) -> Node:
    """A node that has its place in the cluster, not started yet."""
    try:
        registry = open_registry(config.registry)
        async with asyncio.timeout(START_DEADLINE_S):
            cluster_id = await _cluster_id(registry, config.cluster)
            incarnation = await next_incarnation(registry, config.node)
    except AddressError as error:
        raise ConfigError(f"registry: {error}") from error
    except (RegistryError, TimeoutError) as error:
        raise StartError(f"registry {config.registry}: {error or 'no answer'}") from error
    return Node(config, registry, cluster_id, incarnation)


async def _cluster_id(registry: Registry, name: str) -> str:
    """The id that the first node gave the cluster; a registry of another name is refused."""
    while True:
        entry = await registry.get(CLUSTER_KEY)
        if entry is not None:
            value = json.loads(entry.value)
            if value["name"] != name:
                raise StartError(f"the registry is of cluster {value['name']!r}, not {name!r}")
            return str(value["id"])
        value = {"name": name, "id": uuid.uuid4().hex}
        await registry.commit(
            [Guard(CLUSTER_KEY, 0)], [Put(CLUSTER_KEY, json.dumps(value).encode())]
        )


async def run_node(config: NodeConfig, *, ready: Callable[[Node], None] | None = None) -> None:
    """Serves until SIGTERM or SIGINT, then drains. Raises `StartError`."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    node = await make_node(config)
    starting = asyncio.ensure_future(node.start())
    stopped = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    fatal = asyncio.ensure_future(node.wait_fatal())
    if starting.done():
        starting.result()
        logger.info("node %s serves at %s, version %s", node.me, node.address, version("ringmq"))
        if ready is not None:
            ready(node)
        await asyncio.wait({fatal, stopped}, return_when=asyncio.FIRST_COMPLETED)
    starting.cancel()
    stopped.cancel()
    await node.stop()
    if fatal.done():
        fatal.result()
    fatal.cancel()


def serve(config: NodeConfig, *, ready: Callable[[Node], None] | None = None) -> None:
    """`run_node` in a process of its own, with what makes a small message cheap."""
    # What is there now lives as long as the process; and a collection for each few hundred
    # objects would look at it all again and again.
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, 20, 50)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_node(config, ready=ready))
