"""The registry: one linearizable value, the view, and leases; seen late, and not always.

A request takes a while to get there, an answer to come back; either may be lost,
then the proposer is told UNKNOWN, and the request may take effect all the same,
at once or much later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringmq_gm.core.events import LeasesLearned, ProposalEnded, ProposalOutcome, ViewLearned
from ringmq_gm.core.views import MemberId, View

if TYPE_CHECKING:
    from ringsim.simulator.world import Node, World

DELAY_S = 0.005
REQUEST_TIMEOUT_S = 0.5
LEASE_TTL_S = 1.2


class Request:
    """A compare-and-set on its way."""

    __slots__ = ("answered", "current_epoch", "incarnation", "node", "view")

    def __init__(self, node: Node, current_epoch: int, view: View) -> None:
        self.node = node
        self.incarnation = node.incarnation
        self.current_epoch = current_epoch
        self.view = view
        self.answered = False


class VirtualRegistry:
    def __init__(self, world: World, view: View) -> None:
        self._world = world
        self._clock = world.clock
        self._rng = world.rng
        self.view = view
        self.out = 0
        self.flaky = 0
        self.cut: dict[str, int] = {}
        self._leases: dict[str, MemberId] = {}

    def reaches(self, name: str) -> bool:
        return not self.out and not self.cut.get(name)

    # --- compare-and-set ---

    def propose(self, node: Node, current_epoch: int, view: View) -> None:
        request = Request(node, current_epoch, view)
        rng = self._rng
        self._clock.after(REQUEST_TIMEOUT_S, self._answer, request, ProposalOutcome.UNKNOWN)
        delay = DELAY_S * rng.random()
        if self.flaky and rng.random() < 0.5:
            if rng.random() < 0.5:
                return
            delay += 2.0 * rng.random()
        self._clock.after(delay, self._arrive, request)

    def _arrive(self, request: Request) -> None:
        rng = self._rng
        if not self.reaches(request.node.name):
            # A proxy may have it, and deliver it later.
            if rng.random() < 0.3:
                self._clock.after(2.0 * rng.random(), self._arrive, request)
            return
        won = self.view.epoch == request.current_epoch
        if won:
            old, self.view = self.view, request.view
            self._world.oracle.view_set(old, self.view)
            self._world.note(f"registry: {self.view}")
            for name in self._world.nodes:
                self.tell_view(name)
        if self.flaky and rng.random() < 0.4:
            return
        outcome = ProposalOutcome.WON if won else ProposalOutcome.LOST
        self._clock.after(DELAY_S * rng.random(), self._answer, request, outcome)

    def _answer(self, request: Request, outcome: ProposalOutcome) -> None:
        if request.answered:
            return
        if outcome is not ProposalOutcome.UNKNOWN and not self.reaches(request.node.name):
            return
        request.answered = True
        if request.node.incarnation == request.incarnation:
            self._world.give(request.node.name, ProposalEnded(request.view, outcome))

    # --- reading and watching ---

    def tell_view(self, name: str, *, quickly: bool = False) -> None:
        """A node's watch, or its read, shows the view as it is when this is called."""
        lag = DELAY_S if quickly else self._world.scenario.pace.watch_s
        if self.reaches(name):
            self._clock.after(lag * self._rng.random(), self._view_seen, name, self.view)

    def _view_seen(self, name: str, view: View) -> None:
        if self.reaches(name):
            self._world.give(name, ViewLearned(view))

    # --- leases ---

    def started(self, node: Node) -> None:
        self._leases[node.name] = node.me
        self._tell_leases()
        self.tell_view(node.name)

    def out_of_touch(self, name: str) -> None:
        """A node can't renew; the lease of the life that it has now runs out."""
        self._clock.after(LEASE_TTL_S, self._expire, name, self._leases.get(name))

    def _expire(self, name: str, lease: MemberId | None) -> None:
        node = self._world.nodes[name]
        renewing = node.is_running and not self.cut.get(name)
        if lease is None or self._leases.get(name) != lease or (renewing and node.me == lease):
            return
        del self._leases[name]
        self._tell_leases()

    def in_touch(self, name: str) -> None:
        """A node sees the registry again: its lease is renewed or taken anew."""
        node = self._world.nodes[name]
        if not node.is_running or self.cut.get(name):
            return
        if self._leases.get(name) != node.me:
            self._leases[name] = node.me
            self._tell_leases()
        self.tell_view(name)
        self._clock.after(DELAY_S, self._leases_seen, name, self._alive())

    def _alive(self) -> frozenset[MemberId]:
        return frozenset(self._leases.values())

    def _tell_leases(self) -> None:
        for name in self._world.nodes:
            delay = 0.05 * self._rng.random()
            if self.reaches(name):
                self._clock.after(delay, self._leases_seen, name, self._alive())

    def _leases_seen(self, name: str, alive: frozenset[MemberId]) -> None:
        # Watches don't go back: what is shown is never older than what was.
        if self.reaches(name):
            self._world.give(name, LeasesLearned(self._alive()))

    # --- faults ---

    def cut_off(self, name: str) -> None:
        self.cut[name] = self.cut.get(name, 0) + 1
        self.out_of_touch(name)

    def mend(self, name: str) -> None:
        self.cut[name] = max(0, self.cut.get(name, 0) - 1)
        if not self.cut[name]:
            self.in_touch(name)

    def go_out(self) -> None:
        self.out += 1

    def come_back(self, leases_lapse: bool) -> None:
        self.out = max(0, self.out - 1)
        if self.out:
            return
        if leases_lapse:
            self._leases.clear()
            self._tell_leases()
        for name in self._world.nodes:
            # Each notices by itself.
            self._clock.after(0.5 * self._rng.random(), self.in_touch, name)

    def heal(self) -> None:
        self.flaky = 0
        self.cut.clear()
        self.out = 1
        self.come_back(leases_lapse=False)
