"""What a node opens before it is one: its store, its place in the cluster, its group's settings."""

from __future__ import annotations

import logging
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from ringmq_gm import GroupOptions, next_incarnation
from ringmq_gm.nodes import NODES, NodeRecord, NodeRecordError
from ringmq_gm.registry.base import AddressError, Registry, RegistryError
from ringmq_node.broker.cluster_settings import NODES_SET, enrol
from ringmq_node.config import REQUEST_OVERHEAD_BYTES, ConfigError, NodeConfig
from ringmq_node.doors.grpc.node_key import NodeKey
from ringmq_node.doors.grpc.options import wire_options
from ringmq_node.errors import StartError
from ringmq_node.identity import cluster_id_of, cluster_secret, patiently
from ringmq_node.resources.buffers import ClientBuffers
from ringmq_node.resources.credit import Credit
from ringmq_node.storage import Store, StoreError
from ringmq_node.storage.limits import StoreLimits
from ringmq_wire import WireServer

logger = logging.getLogger(__name__)


def group_options(config: NodeConfig, key: NodeKey) -> GroupOptions:
    return GroupOptions(
        metadata=key.metadata,
        ring_timeout_s=config.ring_timeout_s,
        slow_timeout_s=config.slow_timeout_s,
        lease_ttl_s=config.lease_s,
        cache_bytes_max=config.ring_bytes_max,
        joiner_bytes_max=config.ring_bytes_max,
        payload_bytes_max=2 * config.message_bytes_max + REQUEST_OVERHEAD_BYTES,
    )


def credit_of(config: NodeConfig) -> Credit:
    return Credit(config.credit_messages, config.credit_more_after, config.credit_bytes)


def server_of(config: NodeConfig, message_bytes_max: int) -> tuple[WireServer, ClientBuffers]:
    """The port's server, which isn't bound yet, and what the node may hold for its clients."""
    limit_bytes = config.buffer_bytes_max
    server = WireServer(options=wire_options(message_bytes_max), unread_bytes_max=limit_bytes)
    return server, ClientBuffers(limit_bytes, server.unread, credit_of(config))


async def place_of(registry: Registry, config: NodeConfig) -> tuple[str, NodeKey, int]:
    """The cluster's id, this node's key, and the incarnation that it begins now.

    Raises `StartError` and `ConfigError`.
    """
    await check_found(registry, config)
    try:
        cluster_id = await patiently(lambda: cluster_id_of(registry, config.cluster))
        key = NodeKey(await patiently(lambda: cluster_secret(registry, config)), config.node)
        return cluster_id, key, await patiently(lambda: next_incarnation(registry, config.node))
    except AddressError as error:
        raise ConfigError(f"registry: {error}") from error
    except NodeRecordError as error:
        raise StartError(
            f"{error}. Put back a number that is no lower than the node's last incarnation"
        ) from error
    except RegistryError as error:
        raise StartError(f"registry {config.registry}: {error}") from error


async def check_found(registry: Registry, config: NodeConfig) -> None:
    """Whether the nodes of several machines find each other: where one is registered at every
    address of its machine, each of the others finds itself. A node that isn't one of the cluster
    yet is refused; of others it is said. Raises `StartError`."""
    if config.registry.startswith("sqlite:"):
        return  # All on one machine.
    try:
        enrolled = (await patiently(lambda: registry.list(NODES_SET))).entries
        live = (await patiently(lambda: registry.list(NODES))).entries
    except RegistryError as error:
        raise StartError(f"registry {config.registry}: {error}") from error
    names = {entry.key.removeprefix(NODES_SET) for entry in enrolled}
    address = config.advertise or config.listen
    others = sorted(names - {config.node})
    if others and is_any_address(address):
        why = (
            f"advertise: {address} is every address of this machine, and the cluster has other "
            f"nodes ({', '.join(others)}): give the one where they find node {config.node}"
        )
        if config.node not in names:
            raise StartError(why)
        logger.warning("%s", why)
    for entry in live:
        with suppress(NodeRecordError):
            record = NodeRecord.decode(entry.key.removeprefix(NODES), entry.value)
            if record.node != config.node and is_any_address(record.address):
                logger.warning(
                    "node %r is registered at %s, where nobody finds it: it lacks `advertise`",
                    record.node,
                    record.address,
                )


def is_any_address(address: str) -> bool:
    """Whether "host:port" means every address of the machine that uses it."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return host in ("", "0")


async def enrol_node(registry: Registry, config: NodeConfig) -> None:
    try:
        await patiently(lambda: enrol(registry, config.node))
    except RegistryError as error:
        raise StartError(f"registry {config.registry}: {error}") from error


def open_store(config: NodeConfig, cluster_id: str) -> Store:
    try:
        return Store.open(
            Path(config.data),
            cluster_id=cluster_id,
            node=config.node,
            limits=StoreLimits(
                queue_memory_bytes_max=config.queue_memory_bytes_max,
                embed_below=config.embed_below,
                disk_timeout_s=config.disk_timeout_s,
                sync_in_place_bytes_max=config.sync_in_place_bytes_max,
                unsynced_bytes_max=config.unsynced_bytes_max,
            ),
        )
    except (StoreError, OSError) as error:
        raise StartError(f"data directory {config.data}: {error}") from error
