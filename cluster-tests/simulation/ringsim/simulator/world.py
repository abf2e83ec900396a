"""A ring of simulated machines: carries out effects, brings events, lets processes start and die.

Each machine does the work of the real shell, in virtual time: it gives its member events one by
one, carries out the effects in order, and arms one timer. A crash may come between any two
effects. `course` plays a scenario on a world.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from hashlib import blake2b

from ringmq_gm.core.events import (
    ContactChanged,
    Deliver,
    Effect,
    Event,
    LeasesLearned,
    LossAccepted,
    LossEnded,
    LossOutcome,
    MembershipWanted,
    PromotionEnded,
    Propose,
    RefreshView,
    RingDeleted,
    Role,
    RoleChanged,
    Send,
    StartCatchUp,
    Tick,
    Watermarks,
)
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.quick import QuickMember
from ringmq_gm.core.views import View, first_view
from ringsim.simulator.application import LogApplication
from ringsim.simulator.clock import Clock
from ringsim.simulator.coverage import Coverage
from ringsim.simulator.machines import Machine
from ringsim.simulator.network import Network
from ringsim.simulator.oracle import Oracle
from ringsim.simulator.registry import VirtualRegistry
from ringsim.simulator.scenarios import Scenario
from ringsim.simulator.slow_work import SlowWork

RING = "r"
# A process that has refused to start is started again.
START_AGAIN_S = 1.0

MakeMember = Callable[..., RingMember]


def _as_text(event: Event) -> str:
    """The same in every process: a set's own text follows the hashes of strings."""
    if isinstance(event, LeasesLearned):
        return f"LeasesLearned({', '.join(map(str, sorted(event.alive)))})"
    return str(event)


class World:
    """See the module. `trace` is kept only if asked for: it takes most of the time of a run."""

    def __init__(
        self,
        scenario: Scenario,
        rng: random.Random,
        *,
        make_member: MakeMember = QuickMember,
        tracing: bool = False,
        ring: str = RING,
    ) -> None:
        self.ring = ring
        self.scenario = scenario
        self.rng = rng
        self.trace: list[str] | None = [] if tracing else None
        self.steps = 0
        # Machines whose next lives aren't wanted in the ring.
        self.leaving: set[str] = set()
        # How the operator's decisions ended.
        self.losses_ended: list[LossOutcome] = []
        self.coverage = Coverage(scenario.faults)
        self.clock = self._new_clock()
        self._make_member = make_member
        self.machines = {name: self._new_machine(name) for name in scenario.nodes}
        latencies = scenario.latencies
        parts = (self.clock, rng, self.machines)
        self.network = self._new_network()
        ids = [machine.me for machine in self.machines.values()]
        first = first_view(ids[: scenario.first_count], scenario.min_insync)
        self.oracle = Oracle(self.machines, first, reached=self.coverage.counts)
        self.registry = VirtualRegistry(
            *parts,
            self.give,
            first=first,
            watch_s=latencies.watch_s,
            view_set=self._view_set,
            reached=self.coverage.counts,
        )
        self._slow_work = SlowWork(*parts, self.network, self.give, latencies)

    def _new_machine(self, name: str) -> Machine:
        return Machine(name)

    def _new_clock(self) -> Clock:
        return Clock()

    def _new_network(self) -> Network:
        frame_s = self.scenario.latencies.frame_s
        return Network(self.clock, self.rng, self.machines, self.heard, frame_s=frame_s)

    @property
    def rings(self) -> Sequence[World]:
        """All rings of these nodes: each is a world of its own."""
        return (self,)

    def note(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.clock.now:9.4f} {text}")

    def trace_hash(self) -> str:
        assert self.trace is not None
        return blake2b("\n".join(self.trace).encode(), digest_size=8).hexdigest()

    # --- processes ---

    def _begin_member(self, machine: Machine) -> RingMember:
        """This ring's member in another life of the machine's process."""
        machine.tick_at = None
        machine.member = self._make_member(
            machine.me,
            self.ring,
            machine.disk.end(),
            log_is_whole=machine.disk.whole,
            chance=self.rng,
            budgets=self.scenario.budgets,
        )
        return machine.member

    def start(self, machine: Machine) -> None:
        if machine.member is not None:
            return
        if not self.registry.admits(machine):
            self.note(f"{machine.name} does not start: the registry went back")
            self.clock.after(START_AGAIN_S, self.start, machine)
            return
        self._open(machine, self._begin_member(machine))
        self.note(f"{machine.me} starts with {len(machine.disk.log)} ops")
        self.network.started(machine.name)
        self.registry.started(machine)
        self.give(machine.name, MembershipWanted(machine.name not in self.leaving))

    def _open(self, machine: Machine, member: RingMember) -> None:
        """Begins the memory of this life."""
        machine.app = LogApplication(machine.disk)

    def crash(self, machine: Machine, down_s: float) -> None:
        if machine.member is None:
            return
        self.note(f"{machine.me} crashes")
        unsynced = machine.app.unsynced
        machine.app.crash(self.rng.randint(0, unsynced) if unsynced > 0 else 0)
        machine.member = None
        machine.disk.incarnation += 1
        machine.backlog.clear()
        machine.paused = 0
        machine.crash_after = None
        self.network.stopped(machine.name)
        self.registry.out_of_touch(machine.name)
        self.clock.after(down_s, self.start, machine)

    def resume(self, machine: Machine) -> None:
        """One pause of the process is over."""
        machine.paused = max(0, machine.paused - 1)
        if machine.paused or machine.member is None:
            return
        self.resumed(machine)

    def resumed(self, machine: Machine) -> None:
        """The process goes on."""
        backlog, machine.backlog = machine.backlog, []
        for event in backlog:
            self.give(machine.name, event)
        self.registry.in_touch(machine.name)

    # --- steps ---

    def give(self, name: str, event: Event) -> None:
        """Brings an event to a machine, whose process may be gone, or standing still."""
        machine = self.machines[name]
        if machine.member is None:
            return
        if machine.paused:
            machine.backlog.append(event)
            return
        self.step(machine, event)

    def heard(self, name: str, event: Event) -> None:
        """The network brings an event."""
        self.give(name, event)

    def admits(self, machine: Machine) -> bool:
        """Whether the node has room for a publish."""
        return True

    def step(self, machine: Machine, event: Event) -> None:
        member = machine.member
        assert member is not None
        self.steps += 1
        effects = member.step(event, now=self.clock.now)
        if self.trace is not None:
            self.note(f"{member.me} {_as_text(event)} -> {effects}")
        self.oracle.stepped(machine)
        limit = machine.crash_after
        if limit is not None and len(effects) > limit:
            effects = effects[:limit]
        else:
            limit = None
        for effect in effects:
            self._perform(machine, member, effect)
        if limit is not None:
            self.crash(machine, machine.down_s)
            return
        self.arm(machine, member)

    def arm(self, machine: Machine, member: RingMember) -> None:
        """Has the member's next tick come in time."""
        deadline = member.next_deadline()
        if deadline is not None and deadline != machine.tick_at:
            machine.tick_at = deadline
            self.clock.at(deadline, self._tick, machine, member, deadline)

    def _tick(self, machine: Machine, member: RingMember, deadline: float) -> None:
        if machine.member is member and machine.tick_at == deadline:
            machine.tick_at = None
            self.give(machine.name, Tick())

    def accept_loss(self, machine: Machine) -> None:
        """An operator wants the ring begun again from this machine's log."""
        if machine.member is None or machine.paused:
            return  # His call gets no answer.
        if machine.disk.whole:
            machine.app.sync(len(machine.app.log))
        end = machine.disk.end()
        decision = LossAccepted(end.epoch, end.number, end.number, "operator", 0)
        self.give(machine.name, decision)

    # --- effects ---

    def _perform(self, machine: Machine, member: RingMember, effect: Effect) -> None:
        match effect:
            case Send(target, frame):
                self.coverage.sent(frame)
                self.network.send(machine.name, member.me, target, frame)
            case Deliver(number, epoch, payload):
                machine.app.deliver(number, epoch, payload)
                self.oracle.delivered(machine, number, epoch, payload)
                self._slow_work.write(machine)
            case Watermarks():
                self.oracle.confirmed(machine, effect)
            case RoleChanged(role, view):
                if view.own_loss is not None and role is Role.MASTER:
                    machine.app.begin_with_own_log()
                elif role is Role.OUTSIDE:
                    machine.app.abandon_catch_up()
                self.role_changed(machine, role, view)
            case StartCatchUp(number):
                self.oracle.catch_up_started(machine)
                self._slow_work.catch_up(machine, number)
            case Propose(current_epoch, view):
                self.registry.propose(machine, current_epoch, view)
            case RefreshView():
                self.registry.tell_view(machine.name, quickly=True)
            case LossEnded(outcome):
                self.losses_ended.append(outcome)
            case ContactChanged() | PromotionEnded() | RingDeleted():
                pass

    def role_changed(self, machine: Machine, role: Role, view: View) -> None:
        self.coverage.role_changed(machine.me, role)
        if role is Role.MASTER:
            self.oracle.became_master(machine, view)

    def _view_set(self, before: View, view: View) -> None:
        self.oracle.view_set(before, view)
        self.coverage.view_set(before, view)
        self.note(f"registry: {view}")
