"""On which nodes a queue's replicas go, and which of these is the master. Pure.

`place` decides for a new queue, among the nodes that are up. `choose` decides for one that exists,
again and again: it says how the queue should be placed now. Which of the steps there may be taken,
and when, is the reconciler's business.

Nodes with few masters come first, so that masters are spread evenly; among equals the one with the
fewest mirrors, then by name, so that every node would decide the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ringmq_gm.core.views import MemberId, View
from ringmq_node.model.policies import Wanted
from ringmq_node.model.reasons import BrokerError, Reason
from ringmq_node.model.records import MasterLocator


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """A node's place in the cluster. `drained`: it gets no master and no further replica.
    `evacuated`: those that it has move elsewhere; such a node is drained, too."""

    drained: bool = False
    evacuated: bool = False

    @property
    def is_drained(self) -> bool:
        return self.drained or self.evacuated

    def encode(self) -> bytes:
        value = {"drained": self.drained, "evacuated": self.evacuated}
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> NodeStanding:
        """Raises `ValueError` or `KeyError`."""
        value = json.loads(data)
        return cls(bool(value["drained"]), bool(value["evacuated"]))


@dataclass(frozen=True, slots=True)
class FleetNode:
    """One node that belongs to the cluster."""

    node: str
    # Its life that holds a lease; None: the node is down.
    alive: MemberId | None = None
    # When it was found to be down; None while it is up.
    down_since: float | None = None
    # An operator has drained it: it gets no master and no further replica.
    drained: bool = False
    # Its replicas have to go as well.
    evacuated: bool = False


@dataclass(frozen=True, slots=True)
class Fleet:
    """The nodes that belong to the cluster, and how many masters and mirrors each of them has."""

    nodes: Mapping[str, FleetNode] = field(default_factory=dict)
    masters: Mapping[str, int] = field(default_factory=dict)
    mirrors: Mapping[str, int] = field(default_factory=dict)

    def by_load(self, names: Collection[str]) -> list[str]:
        """The least busy node first."""
        return sorted(names, key=self._load)

    def _load(self, name: str) -> tuple[int, int, str]:
        return self.masters.get(name, 0), self.mirrors.get(name, 0), name

    def takes_replicas(self, name: str) -> bool:
        node = self.nodes.get(name)
        return node is not None and node.alive is not None and not (node.drained or node.evacuated)

    def is_alive(self, member: MemberId) -> bool:
        node = self.nodes.get(member.node)
        return node is not None and node.alive == member


@dataclass(frozen=True, slots=True)
class Placement:
    """How a queue should be placed: its nodes, and which of them should be its master.

    The master need not be among the nodes: then it stays only until a mirror is synchronised.
    """

    nodes: tuple[str, ...]
    master: str


def place(
    wanted: Wanted, fleet: Fleet, *, local: str, choice: Callable[[Sequence[str]], str]
) -> tuple[MemberId, ...]:
    """The members of a new queue's first ring, its master first.

    `local` is the node that the client is connected to, `choice` picks one by chance. They may be
    fewer than are wanted: nodes that are down get their replicas when they are back. Raises
    `BrokerError` if no node can take any.
    """
    able = [name for name in wanted.mirrors.pool(fleet.nodes) if fleet.takes_replicas(name)]
    if not able:
        raise BrokerError(
            Reason.LIMIT_EXCEEDED,
            f"no node that may have a replica takes one: mirrors are {wanted.mirrors}, "
            f"and the cluster has {_told(fleet)}",
            limit="replicas",
        )
    order = fleet.by_load(able)
    match wanted.master_locator:
        case MasterLocator.CLIENT_LOCAL if local in order:
            master = local
        case MasterLocator.RANDOM:
            master = choice(order)
        case _:
            master = order[0]
    chosen = [master, *(name for name in order if name != master)][: wanted.replicas]
    lives = (fleet.nodes[name].alive for name in chosen)
    return tuple(life for life in lives if life is not None)


def _told(fleet: Fleet) -> str:
    return ", ".join(f"{name} ({_condition(node)})" for name, node in sorted(fleet.nodes.items()))


def _condition(node: FleetNode) -> str:
    if node.alive is None:
        return "down"
    return "drained" if node.drained or node.evacuated else "up"


def choose(
    current: Sequence[str],
    view: View,
    wanted: Wanted,
    fleet: Fleet,
    *,
    is_missed: Callable[[FleetNode], bool],
) -> Placement:
    """How an existing queue should be placed. `current` are the nodes of its record.

    `is_missed`: whether a node has been down for so long that another should take its place.
    Whatever is there already is kept, as far as it is allowed and not too much. Of too many
    replicas synchronised ones are kept first, then those that are up, then older ones.
    """
    pool = set(wanted.mirrors.pool(fleet.nodes))
    allowed = [name for name in current if name in pool and not fleet.nodes[name].evacuated]
    missed = [name for name in allowed if is_missed(fleet.nodes[name])]
    synced = {member.node for member in view.synced if fleet.is_alive(member)}
    master = _master(allowed, view, wanted, fleet)

    def rank(name: str) -> tuple[bool, bool, bool, int]:
        down = fleet.nodes[name].alive is None
        return name != master, name not in synced, down, allowed.index(name)

    keep = sorted((name for name in allowed if name not in missed), key=rank)[: wanted.replicas]
    free = wanted.replicas - len(keep)
    able = [n for n in pool if n not in current and fleet.takes_replicas(n)]
    added = fleet.by_load(able)[:free]
    # Without a substitute the place of a node that is missed stays its own.
    waited = missed[: free - len(added)]
    nodes = tuple(name for name in current if name in keep or name in waited) + tuple(added)
    # Nowhere to go: a queue isn't given up because its policy names nodes that aren't there.
    return Placement(nodes or (view.master.node,), master)


def _master(allowed: Sequence[str], view: View, wanted: Wanted, fleet: Fleet) -> str:
    """The present master if it may be one; else a synchronised mirror that may, if there is one."""
    present = view.master.node
    if present in allowed and not fleet.nodes[present].drained:
        return present
    able = [
        member.node
        for member in view.synced
        if member.node in allowed
        and fleet.is_alive(member)
        and not fleet.nodes[member.node].drained
    ]
    return fleet.by_load(able)[0] if able else present
