"""Several rings on the same nodes: they share processes, links, disks' faults and a byte budget.

Each ring is a world of its own, with members, logs, views and an oracle, on the clock and network
of the first one. A node's process dies in all of them at once.

The budget is the shipped one (`PublishBudget`): it bounds the publishes that a node has under way
in all rings together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ringmq_gm.core.events import Event, MembershipWanted, Received
from ringmq_gm.core.member import RingMember
from ringmq_node.resources.budget import PublishBudget
from ringsim.simulator.application import LogApplication
from ringsim.simulator.clock import Clock
from ringsim.simulator.course import Course
from ringsim.simulator.machines import Machine
from ringsim.simulator.network import Network
from ringsim.simulator.world import World

# Ops of other rings than the first one have numbers from here on: no two rings have the same op.
PAYLOADS = 10_000


class SharedMachine(Machine):
    """A node as another ring sees it: what befalls the process or its disk's speed is shared."""

    def __init__(self, node: Machine) -> None:
        self._node = node
        super().__init__(node.name)

    @property
    def paused(self) -> int:
        return self._node.paused

    @paused.setter
    def paused(self, count: int) -> None:
        """The node's own world counts the pauses."""

    @property
    def sync_delay_s(self) -> float:
        return self._node.sync_delay_s

    @sync_delay_s.setter
    def sync_delay_s(self, delay_s: float) -> None:
        """As for `paused`."""


class RingBeside(World):
    """Another ring on the nodes of `first`."""

    def __init__(self, first: RingsWorld, ring: str, **options: Any) -> None:
        self._first = first
        super().__init__(first.scenario, first.rng, ring=ring, **options)
        self.coverage, self.trace = first.coverage, first.trace

    def _new_machine(self, name: str) -> Machine:
        return SharedMachine(self._first.machines[name])

    def _new_clock(self) -> Clock:
        return self._first.clock

    def _new_network(self) -> Network:
        return self._first.network

    def admits(self, machine: Machine) -> bool:
        return self._first.has_room(self, machine.name)

    def begin(self, machine: Machine) -> None:
        """The node's process has begun."""
        # A link names one life of the node to all of its rings.
        assert machine.me == self._first.machines[machine.name].me
        self._begin_member(machine)
        machine.app = LogApplication(machine.disk)
        self.registry.started(machine)
        self.give(machine.name, MembershipWanted(True))

    def end(self, machine: Machine) -> None:
        """The node's process has died."""
        unsynced = machine.app.unsynced
        machine.app.crash(self.rng.randint(0, unsynced) if unsynced > 0 else 0)
        machine.member = None
        machine.disk.incarnation += 1
        machine.backlog.clear()
        self.registry.out_of_touch(machine.name)


def _unsynced_bytes(app: LogApplication) -> int:
    return sum(len(payload) for _, payload in app.log[len(app.disk.log) :])


@dataclass(frozen=True, slots=True)
class _Publishable:
    cached_bytes: int


class RingsWorld(World):
    """The first ring, with the others of its nodes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._others: list[RingBeside] = []
        super().__init__(*arguments, **options)
        self.coverage.counts["rings: runs"] += 1
        names = (f"r{number}" for number in range(2, self.scenario.rings + 1))
        make_member = options.get("make_member", RingMember)
        self._others = [RingBeside(self, name, make_member=make_member) for name in names]

    @property
    def rings(self) -> Sequence[World]:
        return (self, *self._others)

    @property
    def others(self) -> Sequence[RingBeside]:
        return self._others

    def heard(self, name: str, event: Event) -> None:
        """A frame is for one ring, whatever befalls a link for all of them."""
        for world in self.rings:
            if not isinstance(event, Received) or event.envelope.frame.ring == world.ring:
                world.give(name, event)

    def start(self, machine: Machine) -> None:
        if machine.member is not None:
            return
        super().start(machine)
        for other in self._others:
            # The first ring's member may have died in its first step.
            if machine.member is not None:
                other.begin(other.machines[machine.name])

    def crash(self, machine: Machine, down_s: float) -> None:
        if machine.member is None:
            return
        super().crash(machine, down_s)
        for other in self._others:
            beside = other.machines[machine.name]
            if beside.member is not None:
                other.end(beside)

    def resumed(self, machine: Machine) -> None:
        super().resumed(machine)
        for other in self._others:
            other.resumed(other.machines[machine.name])

    def admits(self, machine: Machine) -> bool:
        return self.has_room(self, machine.name)

    def has_room(self, ring: World, name: str) -> bool:
        """Whether the node's budget lets this ring take a publish."""
        nodes = [world.machines[name] for world in self.rings]
        waiting = [node.member.waiting_bytes for node in nodes if node.member is not None]
        unsynced = [_unsynced_bytes(node.app) for node in nodes]
        budget = PublishBudget(self.scenario.node_bytes_max, lambda: sum(waiting) + sum(unsynced))
        member = ring.machines[name].member
        assert member is not None
        has_room = budget.admits(_Publishable(member.waiting_bytes))
        self.coverage.counts["rings: the node's budget holds a publish"] += not has_room
        return has_room


class RingsCourse(Course):
    """The faults befall the nodes; each ring is published to, and judged by itself."""

    def __init__(self, world: RingsWorld) -> None:
        super().__init__(world)
        self._others = [
            Course(other, first_payload=PAYLOADS * number)
            for number, other in enumerate(world.others, 1)
        ]

    def begin(self) -> float:
        ends = super().begin()
        clock, rng = self._world.clock, self._world.rng
        for other in self._others:
            for publish in self._world.scenario.publishes:
                clock.at(publish.at + 0.2 * rng.random(), other._publish, publish)
        return ends + 0.2

    def _look(self) -> None:
        super()._look()
        for other in self._others:
            other._look()

    def _finish(self) -> None:
        super()._finish()
        for other in self._others:
            other._finish()
