"""What an overruled master confirms after an operator has accepted a loss, and how long it may.

An accepted loss is committed when no member of the old ring holds its lease or answers. Some of
them may live all the same, cut from the registry and from the member that was named. Nothing tells
them apart from a ring whose registry is away, so they go on (decision 0240). The ring loses what
they confirm so, as it has lost what they had confirmed before. That is excused, and no more:

* Only lives that the decision overrules, in an epoch before it.
* Only ops that the named log lacks. All others count like any op.
* Each such op is on the disk of every synchronised member of its master's view, as any op that is
  confirmed, but for those that have left that view since.
* Whoever has it joins the ring only if that view says that its log is overruled: so its messages
  are set aside before they are cut.
* As soon as a member of the new ring and the overruled one reach each other, that one hears of it
  (`Hearing`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ringmq_gm.core.events import Role
from ringmq_gm.core.views import AcceptedLoss, MemberId, View
from ringsim.simulator.application import BrokenInvariantError, LogEntry
from ringsim.simulator.coverage import OVERRULED_CONFIRMS, OVERRULED_HEARS
from ringsim.simulator.machines import Machine, Machines
from ringsim.simulator.network import REDIAL_S, RING_TIMEOUT_S

if TYPE_CHECKING:
    from ringsim.simulator.world import World


class Overruled:
    """Of one ring. `reached` counts what was excused."""

    def __init__(self, machines: Machines, reached: Counter[str]) -> None:
        self._machines = machines
        self._reached = reached
        # The newest decision, and the log that it has named, as it was then.
        self._loss: AcceptedLoss | None = None
        self._named: list[LogEntry] = []
        # The ops that were confirmed and aren't in that log, and those of earlier decisions; with
        # their numbers.
        self._ops: set[tuple[int, LogEntry]] = set()

    def decided(self, loss: AcceptedLoss, named: list[LogEntry]) -> None:
        self._loss, self._named = loss, list(named)

    def lost(self, number: int, entry: LogEntry) -> None:
        """It had been confirmed before the decision."""
        self._ops.add((number, entry))

    def excuses(self, master: MemberId, view: View, number: int, entry: LogEntry) -> bool:
        """Whether the ring may be without an op that `master` confirms in `view`."""
        loss = self._loss
        if loss is None or view.epoch >= loss.epoch or master not in loss.overruled:
            return False
        return not (number <= len(self._named) and self._named[number - 1] == entry)

    def confirmed(self, view: View, number: int, entry: LogEntry) -> bool:
        """An op that is excused was confirmed in `view`. Whether it is a new one."""
        for member_id in view.synced:
            machine = self._machines[member_id.node]
            member = machine.member
            if machine.me != member_id or member is None or member.view != view:
                continue
            if not machine.disk.holds(number, entry):
                raise BrokenInvariantError(f"{member_id} is overruled without op {number} on disk")
        if (number, entry) in self._ops:
            return False
        self._ops.add((number, entry))
        self._reached[OVERRULED_CONFIRMS] += 1
        return True

    def cut(self, view: View, log: list[LogEntry]) -> None:
        """A member is about to cut this log, to join the ring in `view`."""
        if not log or view.overrules(log[-1][0], len(log)) is not None:
            return
        for number, entry in enumerate(log, start=1):
            if (number, entry) in self._ops:
                raise BrokenInvariantError(f"op {number} was confirmed, and isn't set aside")


class Hearing:
    """Demands that overruled masters hear of it from any member of the new ring that they reach.

    To be looked at often. The bound: each end of a link notices that it is broken within a ring
    time-out, dials again, and is told with the first frame.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        # Since when each of them could have heard, with the faults as they have been since.
        self._since: dict[MemberId, tuple[float, object]] = {}

    def look(self) -> None:
        """Raises `BrokenInvariantError`."""
        world, now = self._world, self._world.clock.now
        losses = world.registry.view.losses
        if not losses:
            return
        unheard = {}
        for machine in world.machines.values():
            if not self._has_to_hear(machine, losses[-1]):
                continue
            since, faults = self._since.get(machine.me, (now, self._faults()))
            if faults != self._faults():
                since, faults = now, self._faults()
            if now - since > self._bound_s():
                raise BrokenInvariantError(f"{machine.me} is overruled, and isn't told so")
            unheard[machine.me] = since, faults
        for member_id in self._since.keys() - unheard.keys():
            member = world.machines[member_id.node].member
            if member is not None and member.me == member_id and not _is_deaf(member.view, losses):
                world.coverage.counts[OVERRULED_HEARS] += 1
        self._since = unheard

    def _bound_s(self) -> float:
        frame_s = self._world.scenario.latencies.frame_s + self._world.network.extra_delay_s
        return 2 * RING_TIMEOUT_S + 2 * REDIAL_S + 4 * frame_s

    def _faults(self) -> object:
        world = self._world
        lives = tuple((m.me, m.is_running) for m in world.machines.values())
        return lives, world.network.condition(), world.registry.view.epoch

    def _has_to_hear(self, machine: Machine, loss: AcceptedLoss) -> bool:
        member, world = machine.member, self._world
        if member is None or not machine.is_running or machine.me not in loss.overruled:
            return False
        if member.role is not Role.MASTER or not _is_deaf(member.view, (loss,)):
            return False
        return any(
            world.machines[other.node].is_running
            and world.machines[other.node].me == other
            and not _is_deaf(self._view_at(other), (loss,))
            and not world.network.is_blocked(machine.name, other.node)
            for other in world.registry.view.ids
            if other.node != machine.name
        )

    def _view_at(self, member_id: MemberId) -> View | None:
        member = self._world.machines[member_id.node].member
        return None if member is None else member.view


def _is_deaf(view: View | None, losses: tuple[AcceptedLoss, ...]) -> bool:
    """Whether it is a view from before the newest loss."""
    return view is None or view.epoch < losses[-1].epoch
