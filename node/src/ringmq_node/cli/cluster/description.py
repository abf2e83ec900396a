"""A cluster's status in words: the JSON of `cluster status`, and the texts of its table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ringmq import ClusterStatus, NodeInfo, Resources
from ringmq_node.cli.output import size_text
from ringmq_node.model.names import split_name


def status_json(status: ClusterStatus) -> dict[str, Any]:
    return {
        "cluster": status.cluster_id,
        "answered_by": status.node,
        "registry_available": status.registry_available,
        "queues": status.queues,
        "nodes": [_node_json(info) for info in status.nodes],
    }


def _node_json(info: NodeInfo) -> dict[str, Any]:
    return {
        "node": info.node,
        "address": info.address,
        "state": info.state.name.lower(),
        "incarnation": info.incarnation,
        "version": info.version,
        "masters": info.masters,
        "mirrors": info.mirrors,
        "quarantine": info.quarantine or None,
        "resources": None if info.resources is None else _resources_json(info.resources),
    }


def _resources_json(resources: Resources) -> dict[str, Any]:
    fields = asdict(resources)
    for kept in (*fields["leftovers"], *fields["set_aside"]):
        # A node's disk has the queue's name inside a node.
        kept["vhost"], kept["queue"] = split_name(kept["queue"])
    return fields


def resources_texts(resources: Resources | None) -> tuple[str, str, str]:
    """Memory used of its limit, free disk, and the alarms that are on; `-`: none, or not known."""
    if resources is None:
        return "-", "-", "-"
    used, limit = resources.memory_used_bytes, resources.memory_limit_bytes
    alarms = {
        "memory": resources.memory_alarm,
        "disk": resources.disk_alarm,
        "store": resources.store_failure is not None,
    }
    return (
        f"{size_text(used)} of {size_text(limit)}",
        size_text(resources.disk_free_bytes),
        " ".join(name for name, on in alarms.items() if on) or "-",
    )
