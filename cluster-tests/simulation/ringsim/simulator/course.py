"""Plays a scenario on a world: publishes, faults, and the judgement once the faults are over."""

from __future__ import annotations

from faults.vocabulary import ends_at

from ringmq_gm.core.events import Multicast, Refusal
from ringsim.simulator.application import BrokenInvariantError, LogEntry
from ringsim.simulator.coverage import CACHE_FULL
from ringsim.simulator.liveness import LOOK_S, Liveness
from ringsim.simulator.nemesis import Nemesis
from ringsim.simulator.overruled import Hearing
from ringsim.simulator.scenarios import Publish
from ringsim.simulator.world import World

# Once all faults are mended, the ring has so long to become whole.
# Longer than any pause of a member that was put out often (`Timing.put_out_s_max`).
SETTLE_S = 60.0


class Course:
    """One run of a world's scenario."""

    settle_s = SETTLE_S

    def __init__(self, world: World, *, first_payload: int = 0) -> None:
        self._world = world
        self._nemesis = Nemesis(world)
        self._payloads = first_payload
        self._confirms = 0
        # False if the ring can never be whole again.
        self._settled = True
        self._liveness = Liveness(world, self._publish_anything)
        self._hearing = Hearing(world)

    def play(self) -> None:
        """The whole scenario. Raises `BrokenInvariantError`, or whatever a member raises."""
        ends = self.begin() + 0.1
        clock = self._world.clock
        while clock.now < ends:
            self.run_until(min(clock.now + LOOK_S, ends))
            self._look()
        self._nemesis.heal()
        self._finish()

    def _look(self) -> None:
        self._liveness.look()
        self._hearing.look()
        self._count_confirms()

    def _count_confirms(self) -> None:
        """Those that have come while the registry was an older one."""
        world, confirms = self._world, self._world.oracle.confirms
        if world.registry.is_put_back:
            world.coverage.counts["registry: confirmed meanwhile"] += confirms - self._confirms
        self._confirms = confirms

    def _finish(self) -> None:
        """The ring has to become whole, and to take another op."""
        if self._settle("after the faults"):
            clock = self._world.clock
            limit = clock.now + self.settle_s
            while not self._publish(Publish(clock.now, 1, False)):
                if clock.now > limit:
                    raise BrokenInvariantError("no member takes one more op")
                self.run_until(clock.now + 0.25)
            self._settle("after one more op")

    def begin(self) -> float:
        """Starts the processes, and plans publishes and faults; returns when these are over."""
        world, scenario = self._world, self._world.scenario
        for machine in world.machines.values():
            world.start(machine)
        ends = 0.0
        for publish in scenario.publishes:
            world.clock.at(publish.at, self._publish, publish)
            ends = max(ends, publish.at)
        for fault in scenario.faults:
            world.clock.at(fault.at, self._nemesis.begin, fault)
            ends = max(ends, ends_at(fault))
        return ends

    def run_until(self, when: float) -> None:
        self._world.clock.run_until(when)

    def _settle(self, when: str) -> bool:
        """Goes on until the ring is whole and quiet. False if that can never be."""
        clock = self._world.clock
        limit = clock.now + self.settle_s
        while (reason := self._unsettled()) is not None:
            if self._is_lost():
                self._settled = False
                return False
            if clock.now > limit:
                raise BrokenInvariantError(f"not settled {when}: {reason}")
            self.run_until(clock.now + 0.25)
        return True

    def _is_lost(self) -> bool:
        """Whether every candidate has died and lost its disk: then nobody may begin the ring."""
        machines = self._world.machines
        return all(
            machines[member_id.node].me != member_id and not machines[member_id.node].disk.whole
            for member_id in self._world.registry.view.candidates
        )

    def _unsettled(self) -> str | None:
        """Why the ring is not whole and quiet; None if it is."""
        world = self._world
        view = world.registry.view
        if len(view.synced) != len(world.machines):
            return f"the view is {view}"
        logs: list[list[LogEntry]] = []
        for machine in world.machines.values():
            member = machine.member
            if member is None or member.view != view:
                return f"{machine.name} is not in the newest view"
            if len(member.ops.cache):
                return f"{machine.name} keeps {len(member.ops.cache)} ops that should be stable"
            if machine.disk.log != machine.app.log or not machine.disk.whole:
                return f"{machine.name} has not written everything"
            logs.append(machine.app.log)
        if any(log != logs[0] for log in logs):
            return "the logs differ"
        confirmed = world.oracle.confirmed_last
        if confirmed != len(logs[0]):
            return f"{len(logs[0])} ops, confirmed up to {confirmed}"
        return None

    def _publish_anything(self) -> None:
        """An op, so that there is something to be confirmed."""
        self._publish(Publish(0.0, 1, False))

    def _publish(self, publish: Publish) -> bool:
        """Gives the ops to every member that takes them: two masters must not confirm. Whether
        there is one."""
        world, before = self._world, self._payloads
        for _ in range(publish.count):
            for machine in world.machines.values():
                member = machine.member
                if member is None or machine.paused:
                    continue
                refusal = member.refusal()
                world.coverage.counts[CACHE_FULL] += refusal is Refusal.FULL
                is_open = refusal is None and member.has_quorum
                if is_open and world.admits(machine):
                    self._payloads += 1
                    world.step(machine, Multicast(b"%d" % self._payloads, publish.urgent))
        return self._payloads > before
