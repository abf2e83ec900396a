"""The lives of the other nodes, as one member knows them: seen, unreachable, without a lease, or
alive without a member of this ring."""

from __future__ import annotations

from dataclasses import dataclass, field

from ringmq_gm.core.views import MemberId, View


@dataclass(slots=True)
class Lives:
    """Filled by links (a life was seen, a node can't be reached) and by the registry (leases)."""

    # Nodes whose link is down.
    down: set[str] = field(default_factory=set)
    # The highest incarnation seen of each node: behind a link, in a frame, or with a lease.
    incarnations: dict[str, int] = field(default_factory=dict)
    # The newest life of each node that has said that its member of this ring has failed. Such a
    # member isn't opened again in that life, so this is never taken back.
    gone: dict[str, int] = field(default_factory=dict)
    # The highest epoch that another member has named.
    newest_epoch: int = 0
    # The lives that hold a lease; None until the registry has told them for the first time.
    leased: frozenset[MemberId] | None = None
    # The nodes that no operator has forgotten; None until this is told: then none is forgotten.
    known: frozenset[str] | None = None
    # The view in which this member's neighbours were found to live. Forgotten with each life that
    # is seen; it doesn't hold either while a node is down or gone.
    all_well_in: View | None = None

    def saw(self, member_id: MemberId) -> None:
        if member_id.incarnation > self.incarnations.get(member_id.node, -1):
            self.incarnations[member_id.node] = member_id.incarnation
            self.all_well_in = None

    def learn_leases(self, alive: frozenset[MemberId]) -> bool:
        """Whether this is news."""
        if self.leased == alive:
            return False
        self.leased = alive
        # A lease of a later life shows that the earlier one is dead. Sorted, because a set has
        # another order in each process, and a seed must give the same run in all of them.
        for member_id in sorted(alive):
            self.saw(member_id)
        return True

    def is_forgotten(self, node: str) -> bool:
        """Whether an operator says that this node and its disk will not come back."""
        return self.known is not None and node not in self.known

    def is_superseded(self, member_id: MemberId) -> bool:
        """Whether a later life of its node has been seen."""
        return self.incarnations.get(member_id.node, -1) > member_id.incarnation

    def has_gone(self, member_id: MemberId) -> None:
        """This life has no member of the ring any more, though its node lives."""
        if member_id.incarnation > self.gone.get(member_id.node, -1):
            self.gone[member_id.node] = member_id.incarnation

    def is_over(self, member_id: MemberId) -> bool:
        """Whether this life will never again take part in the ring."""
        return (
            self.is_superseded(member_id)
            or self.gone.get(member_id.node, -1) >= member_id.incarnation
        )

    def is_dead(self, member_id: MemberId) -> bool:
        """As far as this member's own links can tell."""
        node, incarnation = member_id.node, member_id.incarnation
        return (
            node in self.down
            or self.incarnations.get(node, -1) > incarnation
            or (bool(self.gone) and self.gone.get(node, -1) >= incarnation)
        )

    def is_lapsed(self, member_id: MemberId) -> bool:
        """Whether this life can't come back: it is over, or its lease has run out."""
        # A member that has failed keeps its node's lease, and would otherwise stand for ever in the
        # way of a view without it.
        if self.is_over(member_id):
            return True
        # Before the registry has told any lease, none counts as lapsed: a member that has just
        # started would otherwise take the whole ring for dead.
        return self.leased is not None and member_id not in self.leased

    def is_cut_off(self, member_id: MemberId) -> bool:
        """Whether this life runs, for all that is known, and can't be reached."""
        has_lease = self.leased is not None and member_id in self.leased
        return member_id.node in self.down and has_lease and not self.is_over(member_id)

    def lapsed_of(self, view: View) -> set[MemberId]:
        return {member_id for member_id in view.ids if self.is_lapsed(member_id)}
