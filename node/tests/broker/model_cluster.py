"""A cluster in a few lines: enough of a ring to see where the reconciler's steps lead.

Members join, synchronise, die and come back as the rules of views have it
(`ringmq_gm.core.views`), the record is changed by compare-and-set, and the reconciler runs where
the master is. Everything takes one call; nothing happens by itself.
"""

from __future__ import annotations

from dataclasses import replace

from ringmq_gm import MemberId, View, first_view
from ringmq_node.broker.placement import Fleet, FleetNode, NodeStanding
from ringmq_node.broker.reconciler import (
    Assign,
    DeadlineCame,
    Effect,
    FleetSeen,
    HandOver,
    LookAtAll,
    QueueFacts,
    QueueSeen,
    Reconciler,
    RemoveMember,
    SetMinInsync,
    StepEnded,
    check_step,
)
from ringmq_node.model.policies import Policy, Wanted, wanted_of
from ringmq_node.model.records import QueueRecord

REPLACE_AFTER_S = 100.0
RETRY_S = 1.0


class ModelCluster:
    """One queue on some of `nodes`, all of which are up at first."""

    def __init__(self, nodes: str, placed: str, *, min_insync: int) -> None:
        self.now = 0.0
        self.lives = dict.fromkeys(nodes, 1)
        self.down: dict[str, float] = {}
        self.standings = dict.fromkeys(nodes, NodeStanding())
        self.record = QueueRecord("q", "id", tuple(placed), 0)
        self.policy: Policy | None = None
        self.view: View = first_view([self.life(node) for node in placed], min_insync)
        self.steps: list[Effect] = []
        # Effects that were given and not carried out yet.
        self.pending: list[Effect] = []
        self._began: tuple[MemberId, Reconciler] | None = None

    # --- what there is ---

    def life(self, node: str) -> MemberId:
        return MemberId(node, self.lives[node])

    def is_alive(self, member: MemberId) -> bool:
        return member.node not in self.down and self.lives[member.node] == member.incarnation

    def fleet(self) -> Fleet:
        return Fleet(
            {
                name: FleetNode(
                    name,
                    None if name in self.down else self.life(name),
                    self.down.get(name),
                    drained=standing.drained or standing.evacuated,
                    evacuated=standing.evacuated,
                )
                for name, standing in self.standings.items()
            }
        )

    def wanted(self) -> Wanted:
        known = [name for name, standing in self.standings.items() if not standing.evacuated]
        return wanted_of(self.record, self.policy, None, known)

    def facts(self) -> QueueFacts:
        return QueueFacts(self.record, self.wanted(), self.view)

    def synced(self) -> set[str]:
        return {member.node for member in self.view.synced if self.is_alive(member)}

    # --- faults ---

    def kill(self, node: str) -> None:
        self.down.setdefault(node, self.now)

    def start(self, node: str) -> None:
        if self.down.pop(node, None) is not None:
            self.lives[node] += 1

    def crash_reconciler(self) -> None:
        self._began = None
        self.pending.clear()

    # --- the ring ---

    def ring_acts(self) -> None:
        """The dead are dropped if a quorum is left, then whoever should be in the ring joins."""
        dead = {member for member in self.view.ids if not self.is_alive(member)}
        if not self.synced():
            self._begin_again()
        elif dead:
            self._propose(self.view.without(dead))
        for node in self.record.nodes:
            wants = node not in self.record.leaving and node not in self.down
            if wants and self.synced() and self.life(node) not in self.view.ids:
                self._propose(self.view.with_joiner(self.life(node), ()))

    def catches_up(self, node: str) -> None:
        member = next((m for m in self.view.members if m.id.node == node), None)
        if member is None or member.synced:
            return
        if self.is_alive(self.view.master) and self.is_alive(member.id):
            self.view = self.view.with_synced(member.id)

    def _begin_again(self) -> None:
        nodes = {member.node for member in self.view.candidates}
        up = [node for node in sorted(nodes) if node in self.record.nodes and node not in self.down]
        if len(up) >= self.view.min_insync or len(up) == len(nodes):
            lives = [self.life(node) for node in up]
            self.view = self.view.restarted(lives[0], lives[1:], (self.view.epoch, 1))

    def _propose(self, view: View | None) -> None:
        if view is not None:
            self.view = view

    # --- the reconciler ---

    def reconcile(self, *, carried_out: bool = True) -> None:
        """Shows it everything, at the master's node, and carries its steps out or loses them."""
        if not self.is_alive(self.view.master):
            return
        core = self._core()
        given = core.step(FleetSeen(self.fleet()), now=self.now)
        given += core.step(QueueSeen(self.facts()), now=self.now)
        given += core.step(DeadlineCame(), now=self.now)
        given += core.step(QueueSeen(self.facts()), now=self.now)
        for effect in given:
            if isinstance(effect, LookAtAll):
                continue
            check_step(effect, self.fleet())
            self.steps.append(effect)
            if carried_out:
                self._carry_out(effect)
            again = core.step(StepEnded(effect.facts.record.id), now=self.now)
            assert again == [], "a step is repeated at once"

    def _core(self) -> Reconciler:
        """A new one for each mastership: nothing is handed on."""
        if self._began is None or self._began[0] != self.view.master:
            core = Reconciler(replace_after_s=REPLACE_AFTER_S, retry_s=RETRY_S)
            self._began = self.view.master, core
        return self._began[1]

    def _carry_out(self, step: Effect) -> None:
        match step:
            case Assign(facts, nodes, leaving):
                if (facts.record, facts.view) == (self.record, self.view):
                    self.record = replace(self.record, nodes=nodes, leaving=leaving)
            case RemoveMember(_, member):
                left = self.view.without({member})
                if left is not None and (member not in self.view.synced or left.has_quorum):
                    self.view = left
            case HandOver(_, target):
                if target in self.view.synced and self.is_alive(target):
                    self.view = self.view.with_master(target)
            case SetMinInsync(_, count):
                self.view = self.view.with_min_insync(count)

    def settle(self, *, rounds: int = 60) -> None:
        """Everything happens that can, until nothing does any more."""
        quiet = 0
        for _ in range(rounds):
            self.now += 2 * RETRY_S
            before = self.record, self.view
            self.ring_acts()
            for node in self.record.nodes:
                self.catches_up(node)
            self.reconcile()
            quiet = quiet + 1 if before == (self.record, self.view) else 0
            if quiet == 3:
                return
        raise AssertionError(f"no end: {self.record}, {self.view}, {self.steps[-6:]}")
