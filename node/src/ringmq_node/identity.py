"""Which cluster this is, and whether this node's name is its own."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from ringmq_gm.nodes import NODES, NodeRecord
from ringmq_gm.registry.base import Guard, Put, Registry, RegistryError
from ringmq_node.config import NodeConfig

CLUSTER_KEY = "cluster"
IDENTITY_FILE = "identity"


class StartError(Exception):
    """A node can't start; the message says why, in one line."""


async def cluster_id_of(registry: Registry, name: str) -> str:
    """The id that the first node gave the cluster; refuses a registry of another cluster.

    Raises `StartError` and `RegistryError`; the caller has the deadline.
    """
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


async def check_own_name(registry: Registry, config: NodeConfig) -> str:
    """This data directory's identity; refuses a name under which another directory's node serves.

    A later life of a node takes over from an earlier one. So a name that was given to two nodes by
    mistake would make the second put the first, healthy one out of its rings. Raises `StartError`.
    """
    path = Path(config.data) / IDENTITY_FILE
    if not path.exists():
        path.write_text(uuid.uuid4().hex)
    identity = path.read_text()
    try:
        entry = await registry.get(NODES + config.node)
    except RegistryError as error:
        raise StartError(f"registry {config.registry}: {error}") from error
    if entry is not None:
        other = NodeRecord.decode(config.node, entry.value)
        if other.extra.get("identity", identity) != identity:
            raise StartError(
                f"node {config.node} serves at {other.address} from another data directory"
            )
    return identity
