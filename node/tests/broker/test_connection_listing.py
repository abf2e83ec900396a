"""Connections of all nodes, page by page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from loops import run

from ringmq_gm import MemberId
from ringmq_node.broker.caller import Caller
from ringmq_node.broker.connection_listing import ConnectionListing
from ringmq_node.model.info import ConnectionCondition, ConnectionInfo, NodeCondition, NodeInfo
from ringmq_node.resources.connection_states import place_of


class OtherNodes:
    """They answer for connections that the test gives them, by address."""

    def __init__(self, **counts: int) -> None:
        self._counts = counts

    async def own_connections(
        self, address: str, after: str, connections_max: int, *, deadline_s: float
    ) -> list[ConnectionInfo]:
        found = (
            ConnectionInfo(address, f"{number:04}", ConnectionCondition.RUNNING, (), 1, 0, False)
            for number in range(self._counts[address])
        )
        later = [each for each in found if place_of(each.node, each.peer, False) > after]
        return later[:connections_max]


@pytest.mark.parametrize("counts", [{"b": 25}, {"b": 10}, {"b": 9, "c": 1}, {"b": 25, "c": 12}])
def test_every_connection_of_another_node_is_on_some_page(counts: dict[str, int]) -> None:
    async def main() -> None:
        listing = ConnectionListing(
            cast(Any, SimpleNamespace(me=MemberId("a", 1))),
            lambda: [NodeInfo(node, NodeCondition.RUNNING, node) for node in counts],
            cast(Any, OtherNodes(**counts)),
            cast(Any, SimpleNamespace(alarms=frozenset())),
        )
        found: list[ConnectionInfo] = []
        after = ""
        while True:
            page = await listing.page(Caller(), after=after, connections_max=10)
            assert len(page.connections) <= 10
            found += page.connections
            after = page.next
            if not after:
                break
        assert [each.node for each in found] == [
            node for node, count in counts.items() for _ in range(count)
        ]

    run(main())
