"""The registry: one linearizable value, the view, with leases and lives; seen late, not always.

A request takes a while to arrive, and so does its answer. Either may be lost: the proposer is
told UNKNOWN then, and the request may take effect all the same, at once or much later.

It may be put back to a copy of itself (`copies`). Then each process that has seen a later state
refuses it, and so does each node that begins a life and remembers later ones.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from ringmq_gm.core.events import LeasesLearned, ProposalEnded, ProposalOutcome, ViewLearned
from ringmq_gm.core.views import MemberId, View
from ringsim.simulator.clock import Clock
from ringsim.simulator.copies import Histories, State
from ringsim.simulator.machines import Give, Machine, Machines

DELAY_S = 0.005
REQUEST_TIMEOUT_S = 0.5
LEASE_TTL_S = 1.2


class ViewRequest:
    """A compare-and-set on its way."""

    __slots__ = ("answered", "current_epoch", "machine", "proposer", "view")

    def __init__(self, machine: Machine, current_epoch: int, view: View) -> None:
        self.machine = machine
        # The life that asked; a later one gets no answer.
        self.proposer = machine.me
        self.current_epoch = current_epoch
        self.view = view
        self.answered = False


class VirtualRegistry:
    """`view_set` is told the view before and the new one, at the moment of each change."""

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        machines: Machines,
        give: Give,
        *,
        first: View,
        watch_s: float,
        view_set: Callable[[View, View], None],
        reached: Counter[str],
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._machines = machines
        self._give = give
        self._watch_s = watch_s
        self._view_set = view_set
        self._state = State(first)
        self._histories = Histories(reached)
        self._reached = reached
        # While an older state is shown: the newest one.
        self._newest: State | None = None
        # How many outages overlap, and how many cuts of each machine.
        self.out = 0
        self.flaky = 0
        self.cut: dict[str, int] = {}

    @property
    def view(self) -> View:
        return self._state.view

    def reaches(self, name: str) -> bool:
        return not self.out and not self.cut.get(name)

    def answers(self, name: str) -> bool:
        """Whether a machine reaches it, and no answer gets lost."""
        return self.reaches(name) and not self.flaky and not self.is_refused_by(name)

    def condition(self) -> object:
        """Differs from an earlier one if a fault has begun or ended."""
        refusing = tuple(map(self.is_refused_by, self._machines))
        return self.out, self.flaky, tuple(sorted(self.cut.items())), refusing

    def _takes(self, name: str) -> bool:
        """Whether a machine looks at it, and takes what it shows."""
        return self.reaches(name) and self._histories.takes(name, self._state)

    # --- compare-and-set ---

    def propose(self, machine: Machine, current_epoch: int, view: View) -> None:
        request = ViewRequest(machine, current_epoch, view)
        rng = self._rng
        self._clock.after(REQUEST_TIMEOUT_S, self._answer, request, ProposalOutcome.UNKNOWN)
        delay = DELAY_S * rng.random()
        if self.flaky and rng.random() < 0.5:
            if rng.random() < 0.5:
                return
            delay += 2.0 * rng.random()
        self._clock.after(delay, self._arrive, request)

    def _arrive(self, request: ViewRequest) -> None:
        rng = self._rng
        if not self.reaches(request.machine.name):
            # A proxy may have it, and deliver it later.
            if rng.random() < 0.3:
                self._clock.after(2.0 * rng.random(), self._arrive, request)
            return
        if not self._takes(request.machine.name):
            return
        before = self.view
        won = before.epoch == request.current_epoch
        if won:
            self._state.view = request.view
            self._histories.commit(self._state)
            self._view_set(before, self.view)
            for name in self._machines:
                self.tell_view(name)
        if self.flaky and rng.random() < 0.4:
            return
        outcome = ProposalOutcome.WON if won else ProposalOutcome.LOST
        self._clock.after(DELAY_S * rng.random(), self._answer, request, outcome)

    def _answer(self, request: ViewRequest, outcome: ProposalOutcome) -> None:
        if request.answered:
            return
        if outcome is not ProposalOutcome.UNKNOWN and not self.reaches(request.machine.name):
            return
        request.answered = True
        if request.machine.me == request.proposer:
            self._give(request.machine.name, ProposalEnded(request.view, outcome))

    # --- reading and watching ---

    def tell_view(self, name: str, *, quickly: bool = False) -> None:
        """A machine's watch, or its read, shows the view as it is at the time of this call."""
        lag = DELAY_S if quickly else self._watch_s
        if self._takes(name):
            self._clock.after(lag * self._rng.random(), self._view_seen, name, self.view)

    def _view_seen(self, name: str, view: View) -> None:
        if self.reaches(name):
            self._give(name, ViewLearned(view))

    # --- leases ---

    def started(self, machine: Machine) -> None:
        self._histories.began(machine.name)
        self._state.lives[machine.name] = machine.me.incarnation
        self._state.leases[machine.name] = machine.me
        self._tell_leases()
        self.tell_view(machine.name)

    def admits(self, machine: Machine) -> bool:
        """Whether a process may start there."""
        return self._histories.admits(machine, self._state, self._newest)

    def out_of_touch(self, name: str) -> None:
        """A machine can't renew: the lease of its present life runs out."""
        self._clock.after(LEASE_TTL_S, self._expire, name, self._state.leases.get(name))

    def _expire(self, name: str, lease: MemberId | None) -> None:
        machine = self._machines[name]
        renewing = machine.is_running and not self.cut.get(name) and not self.is_refused_by(name)
        leases = self._state.leases
        if lease is None or leases.get(name) != lease or (renewing and machine.me == lease):
            return
        del leases[name]
        self._tell_leases()

    def in_touch(self, name: str) -> None:
        """A machine sees the registry again: its lease is renewed or taken anew."""
        machine = self._machines[name]
        if not machine.is_running or self.cut.get(name):
            return
        if not self._histories.takes(name, self._state):
            return
        leases = self._state.leases
        if leases.get(name) != machine.me:
            leases[name] = machine.me
            self._tell_leases()
        self.tell_view(name)
        self._clock.after(DELAY_S, self._leases_seen, name)

    def _tell_leases(self) -> None:
        self._histories.commit(self._state)
        for name in self._machines:
            delay = 0.05 * self._rng.random()
            if self.reaches(name):
                self._clock.after(delay, self._leases_seen, name)

    def _leases_seen(self, name: str) -> None:
        # As of now, not as of the change: a watch never shows an older state than before.
        if self._takes(name):
            self._give(name, LeasesLearned(frozenset(self._state.leases.values())))

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
            self._state.leases.clear()
            self._tell_leases()
        for name in self._machines:
            # Each notices by itself.
            self._clock.after(0.5 * self._rng.random(), self.in_touch, name)

    def is_refused_by(self, name: str) -> bool:
        """Whether the process on a machine has seen that the registry went back."""
        return self._machines[name].member is not None and self._histories.refuses(name)

    @property
    def is_put_back(self) -> bool:
        return self._newest is not None

    def copy(self) -> State:
        """What `put_back` takes. Right after it somebody writes something else, which all see."""
        copy = self._state.copy()
        self._histories.commit(self._state)
        for name in self._machines:
            self._clock.after(self._watch_s * self._rng.random(), self._takes_if_running, name)
        return copy

    def _takes_if_running(self, name: str) -> None:
        if self._machines[name].is_running:
            self._takes(name)

    def put_back(self, copy: State) -> None:
        """Shows the copy, unless a process runs that has seen nothing later: that one would take
        it, and operators are told so."""
        running = [name for name, machine in self._machines.items() if machine.member is not None]
        if self._newest is not None:
            return
        if not all(self._histories.knows_later(name, copy) for name in running):
            self._reached["registry: not put back, as one process would not see it"] += 1
            return
        self._reached["registry: put back"] += 1
        self._newest = self._state
        self._show(copy)

    def bring_back(self) -> None:
        """Shows the newest state, as it was before it was put back."""
        if self._newest is not None:
            newest, self._newest = self._newest, None
            self._show(newest)

    def _show(self, state: State) -> None:
        self._state = state
        for name in self._machines:
            self.out_of_touch(name)
            # Each looks by itself.
            self._clock.after(0.5 * self._rng.random(), self.in_touch, name)

    def heal(self) -> None:
        self.flaky = 0
        self.cut.clear()
        self.out = 1
        self.come_back(leases_lapse=False)
