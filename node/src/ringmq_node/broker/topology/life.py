"""The life of the cluster: it ends when no node of it is up any more. Pure.

    topology/life   JSON {"id": ..., "members": {<node>: <incarnation>}}

A transient exchange goes with the life in which it was declared. A node that starts can't tell by
itself whether others are up: their leases may not have run out yet. So no node takes itself into a
life. Its members do: a member that sees a newcomer adds it, at the latest half a second after
it has heard of it. Each member thereby witnesses that the life goes on.

A node begins a new life only if it knows of every member that this one has ended: a later
incarnation of the member's node was seen, or an operator has forgotten the node. A member that
merely doesn't answer may be up. Then the old life goes on, and its exchanges stay: too many of
them harm less than too few.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from ringmq_gm.core.views import MemberId
from ringmq_node.model.topology import TOPOLOGY, TopologyRecordError

LIFE_KEY = TOPOLOGY + "life"


@dataclass(frozen=True, slots=True)
class ClusterLife:
    id: str
    members: Mapping[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        value = {"id": self.id, "members": dict(self.members)}
        return json.dumps(value, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> ClusterLife:
        """Raises `TopologyRecordError`."""
        try:
            value = json.loads(data)
            life = ClusterLife(value["id"], value["members"])
            members = [*life.members.items()]
            good = type(life.id) is str and life.id and all(type(n) is int for _, n in members)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TopologyRecordError(f"registry key {LIFE_KEY!r}: {data[:80]!r}") from error
        if not good:
            raise TopologyRecordError(f"registry key {LIFE_KEY!r}: {data[:80]!r}")
        return life


def next_life(
    life: ClusterLife | None,
    me: MemberId,
    *,
    alive: Mapping[str, int],
    latest: Callable[[str], int],
    belongs: Collection[str],
    new_id: str,
) -> ClusterLife | None:
    """The record that the node `me` should write; None if there is nothing to write.

    `alive`: the nodes with a lease, and their incarnations. `latest(node)`: the highest
    incarnation that was seen. `belongs`: the nodes of the cluster.
    """
    began = ClusterLife(new_id, {me.node: me.incarnation})
    if life is None:
        return began
    members = {
        node: incarnation
        for node, incarnation in life.members.items()
        if node in belongs and latest(node) <= incarnation
    }
    if life.members.get(me.node) == me.incarnation:
        members[me.node] = me.incarnation
        for node, incarnation in alive.items():
            members[node] = max(incarnation, members.get(node, 0))
        return None if members == life.members else replace(life, members=members)
    return None if members else began
