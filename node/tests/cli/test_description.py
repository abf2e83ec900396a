"""What `cluster status --json` says of a node."""

from __future__ import annotations

from typing import Any

from ringmq import ClusterStatus
from ringmq.v1 import admin_pb2 as admin
from ringmq_node.cli.cluster.description import status_json
from ringmq_node.model.names import join_name


def test_what_is_kept_of_a_queue_is_named_by_its_vhost_and_its_name() -> None:
    inside = join_name("shop", "orders")
    resources = admin.Resources(
        leftovers=[admin.Leftover(queue=inside, id="1"), admin.Leftover(queue="plain", id="2")],
        set_aside=[admin.SetAside(queue=inside, id="3")],
    )
    of_a = admin.NodeInfo(node="a", state=admin.NODE_STATE_RUNNING, resources=resources)
    status = ClusterStatus.from_wire(admin.GetClusterStatusResponse(nodes=[of_a]))
    shown: dict[str, Any] = status_json(status)["nodes"][0]["resources"]
    kept = [*shown["leftovers"], *shown["set_aside"]]
    assert [(each["vhost"], each["queue"], each["id"]) for each in kept] == [
        ("shop", "orders", "1"),
        ("/", "plain", "2"),
        ("shop", "orders", "3"),
    ]
