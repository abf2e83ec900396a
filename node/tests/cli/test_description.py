"""What `cluster status --json` says of a node, and `policy list` of its rules."""

from __future__ import annotations

from typing import Any

from ringmq import ClusterStatus, QueueRules
from ringmq.v1 import admin_pb2 as admin
from ringmq_node.cli.cluster.description import status_json
from ringmq_node.cli.rules import rules_text
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


def test_an_empty_rule_is_not_shown_as_nothing() -> None:
    """Dead letters go to the default exchange."""
    rules = QueueRules(dead_letter_exchange="", max_length=5)
    assert sorted(rules_text(rules).split(", ")) == ['dead_letter_exchange ""', "max_length 5"]
