"""The lives of the other nodes, as one member knows them: seen, unreachable, without a lease."""

from __future__ import annotations

from dataclasses import dataclass, field

from ringmq_gm.core.views import MemberId, View


@dataclass(slots=True)
class Lives:
    """Filled by links (a life was seen, a node can't be reached) and by the registry (leases)."""

    # Nodes whose link is down.
    down: set[str] = field(default_factory=set)
    # The highest incarnation seen of each node.
    incarnations: dict[str, int] = field(default_factory=dict)
    # The lives that hold a lease; None until the registry has told them for the first time.
    leased: frozenset[MemberId] | None = None

    def saw(self, member_id: MemberId) -> None:
        if member_id.incarnation > self.incarnations.get(member_id.node, -1):
            self.incarnations[member_id.node] = member_id.incarnation

    def is_superseded(self, member_id: MemberId) -> bool:
        """Whether a later life of its node has been seen."""
        return self.incarnations.get(member_id.node, -1) > member_id.incarnation

    def is_dead(self, member_id: MemberId) -> bool:
        """As far as this member's own links can tell."""
        node, incarnation = member_id.node, member_id.incarnation
        return node in self.down or self.incarnations.get(node, -1) > incarnation

    def is_lapsed(self, member_id: MemberId) -> bool:
        """Whether this life can't come back: it is superseded, or its lease has run out."""
        if self.is_superseded(member_id):
            return True
        # Before the registry has told any lease, none counts as lapsed: a member that has just
        # started would otherwise take the whole ring for dead.
        return self.leased is not None and member_id not in self.leased

    def lapsed_of(self, view: View) -> set[MemberId]:
        return {member_id for member_id in view.ids if self.is_lapsed(member_id)}
