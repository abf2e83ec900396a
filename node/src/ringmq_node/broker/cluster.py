"""The nodes of the cluster as this one knows them: lives, addresses, numbers of replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ringmq_base.pieces import Pieces
from ringmq_gm import Group, MemberId
from ringmq_gm.nodes import NODES, NodeRecord, NodeRecordError
from ringmq_gm.registry.base import Registry
from ringmq_node.broker.placement import Fleet, FleetNode, NodeStanding
from ringmq_node.model.info import NodeCondition, NodeInfo
from ringmq_node.model.reasons import BrokerError, Reason


class Cluster:
    """See the module. `address` is where other nodes and clients reach this node."""

    def __init__(self, group: Group, registry: Registry, *, cluster_id: str, address: str) -> None:
        self.id = cluster_id
        self.address = address
        self._group = group
        self._registry = registry
        # When nodes that belong to the cluster were found to be down.
        self._down_since: dict[str, float] = {}

    @property
    def me(self) -> MemberId:
        return self._group.me

    @property
    def registry_available(self) -> bool:
        return self._group.registry_available

    def is_alive(self, member: MemberId) -> bool:
        """Whether this life of the node holds a lease, as far as this node has heard, or is linked
        with this one."""
        return self._group.address_of(member) is not None

    def life_of(self, node: str) -> MemberId | None:
        """The node's present life; None if it is down, as far as this node has heard."""
        record = self._group.nodes().get(node)
        return None if record is None else record.member_id

    def address_of(self, member: MemberId) -> str:
        """Raises `BrokerError` if that life of the node is over."""
        if member == self.me:
            return self.address
        address = self._group.address_of(member)
        if address is None:
            raise BrokerError(Reason.NO_MASTER, f"node {member} is down")
        return address

    def address_of_node(self, node: str) -> str:
        """The address of a node's present life. Raises `BrokerError` if it is down."""
        record = self._group.nodes().get(node)
        if record is None:
            raise BrokerError(Reason.NO_MASTER, f"node {node!r} is down")
        return record.address

    async def registered_members(self) -> list[MemberId]:
        """The nodes that are up, read from the registry instead of the watch.

        A node that has just said it is ready must not be left out of the next ring that is made.
        One whose record can't be read is left out. Raises `RegistryError`.
        """
        entries = (await self._registry.list(NODES)).entries
        members: list[MemberId] = []
        for entry in sorted(entries, key=lambda entry: entry.key):
            try:
                record = NodeRecord.decode(entry.key.removeprefix(NODES), entry.value)
            except NodeRecordError:
                continue  # The watch has logged it.
            members.append(record.member_id)
        return members

    def fleet(self, belonging: Mapping[str, NodeStanding], now: float) -> Fleet:
        """The nodes for placement, as this node has heard; `now` is on the event loop's clock."""
        up = [record.member_id for record in self._group.nodes().values()]
        names = {member.node for member in up}
        self._down_since = {
            name: self._down_since.get(name, now) for name in belonging if name not in names
        }
        return self.fleet_of(up, belonging)

    def fleet_of(self, up: Iterable[MemberId], belonging: Mapping[str, NodeStanding]) -> Fleet:
        """The nodes for placement, of which these are up."""
        alive = {member.node: member for member in up}
        masters, mirrors = self.count_roles()
        # A node that has just started may be ahead of the watch on the settings.
        standings = {**dict.fromkeys(alive, NodeStanding()), **belonging}
        nodes = {
            name: FleetNode(
                name,
                alive.get(name),
                self._down_since.get(name),
                drained=standing.is_drained,
                evacuated=standing.evacuated,
            )
            for name, standing in sorted(standings.items())
        }
        return Fleet(nodes, masters, mirrors)

    def count_roles(self) -> tuple[Counter[str], Counter[str]]:
        """How many masters and mirrors each node has, by the views that this one knows."""
        return self._group.role_counts()

    def nodes(self, belonging: Mapping[str, NodeStanding]) -> list[NodeInfo]:
        """The nodes that are up, and those that are down or can't be read."""
        masters, mirrors = self.count_roles()
        up = self._group.nodes()
        unreadable = self._group.unreadable_nodes()
        infos = [
            NodeInfo(
                node=name,
                condition=(
                    NodeCondition.DRAINING
                    if belonging.get(name, NodeStanding()).is_drained
                    else NodeCondition.RUNNING
                ),
                address=record.address,
                incarnation=record.incarnation,
                version=str(record.extra.get("version", "")),
                masters=masters[name],
                mirrors=mirrors[name],
                quarantine=unreadable.get(name, ""),
            )
            for name, record in up.items()
        ]
        infos += [
            NodeInfo(
                node=name,
                condition=(NodeCondition.QUARANTINED if name in unreadable else NodeCondition.DOWN),
                masters=masters[name],
                mirrors=mirrors[name],
                quarantine=unreadable.get(name, ""),
            )
            for name in {*belonging, *unreadable} - set(up)
        ]
        infos = [_with_standing(info, belonging.get(info.node)) for info in infos]
        return sorted(infos, key=lambda info: info.node)

    async def count_needing(self, queue_ids: Iterable[str]) -> Counter[str]:
        """How many of these queues would be below `min_insync` without each node, or without a
        replica that has everything. Where too few are left already, each node counts whose disk may
        hold everything: the ring may have to be begun again from it, though it is no member."""
        needing: Counter[str] = Counter()
        pieces = Pieces()
        for queue_id in queue_ids:
            view = self._group.view(queue_id)
            if view is not None:
                alive = {member.node for member in view.synced if self.is_alive(member)}
                if len(alive) < view.min_insync:
                    needing.update({member.node for member in view.candidates})
                elif len(alive) == view.min_insync:
                    needing.update(alive)
            await pieces.step()
        return needing


def _with_standing(info: NodeInfo, standing: NodeStanding | None) -> NodeInfo:
    if standing is None or not standing.is_drained:
        return info
    return replace(info, drained=True, evacuated=standing.evacuated)
