"""The connections of all nodes, as an operator sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ringmq_node.broker.caller import Caller
from ringmq_node.broker.cluster import Cluster
from ringmq_node.broker.peers import Peers
from ringmq_node.model.info import ConnectionInfo, NodeInfo
from ringmq_node.model.reasons import BrokerError
from ringmq_node.model.settings import LIST_MAX
from ringmq_node.resources.budget import PublishBudget
from ringmq_node.resources.connection_states import ConnectionStates, place_of

# A listing must not wait for a node that hangs.
DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True)
class ConnectionPage:
    """In order. `next` is the last one's place if there are more, or empty."""

    connections: tuple[ConnectionInfo, ...]
    next: str
    # They are up, and haven't answered.
    silent_nodes: tuple[str, ...]


class ConnectionListing:
    """`states` are those of this node; doors tell it of their streams. `nodes`: of the cluster."""

    def __init__(
        self,
        cluster: Cluster,
        nodes: Callable[[], list[NodeInfo]],
        peers: Peers,
        budget: PublishBudget,
    ) -> None:
        clock = asyncio.get_running_loop().time
        self.states = ConnectionStates(cluster.me.node, clock, lambda: budget.alarms)
        self._me = cluster.me.node
        self._nodes = nodes
        self._peers = peers

    async def page(self, caller: Caller, *, after: str, connections_max: int) -> ConnectionPage:
        """0: the largest page. A node that collects one wants those of this node."""
        count = min(connections_max or LIST_MAX, LIST_MAX)
        silent: list[str] = []

        async def ask(node: NodeInfo) -> list[ConnectionInfo]:
            try:
                return await self._peers.own_connections(
                    node.address, after, count, deadline_s=DEADLINE_S
                )
            except BrokerError:
                silent.append(node.node)
                return []

        # One more than it returns says whether there are more. Another node may not be asked for
        # more than a page: it may have more if it has given all that it was asked for.
        found = self.states.infos(after, count + 1)
        is_cut = False
        if not caller.forwarded:
            others = [each for each in self._nodes() if each.address and each.node != self._me]
            for answer in await asyncio.gather(*map(ask, others)):
                found += answer
                is_cut = is_cut or len(answer) == count
        found.sort(key=_place)
        page = found[:count]
        following = _place(page[-1]) if len(found) > count or is_cut else ""
        return ConnectionPage(tuple(page), following, tuple(sorted(silent)))


def _place(info: ConnectionInfo) -> str:
    return place_of(info.node, info.peer, info.relayed)
