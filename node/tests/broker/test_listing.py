"""Listing queues beside peers that are played."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from loops import run

from ringmq_node.broker.cluster_settings import ClusterSettings
from ringmq_node.broker.listing import Listing
from ringmq_node.broker.peers import QueuesAt
from ringmq_node.model.info import NodeCondition, NodeInfo
from ringmq_node.model.records import QueueRecord


def test_a_queue_that_is_deleted_while_the_masters_are_asked_is_not_listed() -> None:
    records = {name: QueueRecord(name, name, ("a",), 1) for name in ("p", "q")}

    async def own_queues(*_: Any, **__: Any) -> QueuesAt:
        del records["q"]
        return QueuesAt([], {})

    listing = Listing(
        cast(Any, SimpleNamespace(records=records, unreadable={})),
        cast(
            Any,
            SimpleNamespace(
                me=SimpleNamespace(node="b"),
                nodes=lambda named: [NodeInfo("a", NodeCondition.RUNNING, address="there")],
            ),
        ),
        cast(Any, SimpleNamespace(view=lambda ring: None, unreadable_views=dict)),
        cast(Any, SimpleNamespace(replicas={}, failed={})),
        cast(Any, SimpleNamespace(own_queues=own_queues)),
        settings=cast(Any, ClusterSettings(cast(Any, None))),
        gate=cast(Any, None),
        store=cast(Any, None),
        monitor=cast(Any, None),
        budget=cast(Any, None),
        buffers=cast(Any, None),
    )
    page = run(listing.queues("", after="", queues_max=0))
    assert [info.queue for info in page.queues] == ["p"]
