"""A world whose machines run whole replicas of a queue (`process`) instead of a log alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from ringmq_gm.core.cache import Budgets
from ringmq_gm.core.events import Effect, Event, PromotionAsked
from ringmq_gm.core.member import RingMember
from ringsim.queues.process import Process, ProcessDiedError
from ringsim.queues.store import QueueDisk
from ringsim.simulator.application import LogApplication
from ringsim.simulator.machines import Machine
from ringsim.simulator.scenarios import Scenario
from ringsim.simulator.world import World, _as_text

# How much larger ops are here than those of a plain ring, for which the budgets are drawn.
OP_BYTES = 60


class QueueMachine(Machine):
    """`process` is None while it is down; `app` is the memory of its store."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.disk = QueueDisk(incarnation=1)
        self.process: Process | None = None


class QueueWorld(World):
    """See the module."""

    machines: dict[str, QueueMachine]  # type: ignore[assignment]

    def __init__(self, scenario: Scenario, *arguments: Any, **options: Any) -> None:
        # All processes that there have been: their tasks are ended in good order.
        self._processes: list[Process] = []
        budgets = Budgets(
            scenario.budgets.cache_bytes_max * OP_BYTES,
            scenario.budgets.joiner_bytes_max * OP_BYTES,
        )
        super().__init__(replace(scenario, budgets=budgets), *arguments, **options)

    def _new_machine(self, name: str) -> Machine:
        return QueueMachine(name)

    def _open(self, machine: Machine, member: RingMember) -> None:
        assert isinstance(machine, QueueMachine)
        self._watch(machine, member)
        process = machine.process = Process(self, machine, member)
        self._processes.append(process)
        machine.app = cast(LogApplication, process.store)

    def _watch(self, machine: QueueMachine, member: RingMember) -> None:
        """The ring gives the member its events. This sees each step, and cuts off the effects that
        come after a crash."""
        plain_step = member.step

        def step(event: Event, *, now: float) -> list[Effect]:
            if machine.member is not member:
                # Whoever tidies up on its way out of a call that a crash has ended.
                raise ProcessDiedError
            self.steps += 1
            effects = plain_step(event, now=now)
            if self.trace is not None:
                self.note(f"{member.me} {_as_text(event)} -> {effects}")
            self.oracle.stepped(machine)
            limit = machine.crash_after
            if limit is not None and len(effects) > limit and machine.process is not None:
                machine.process.dies = True
                return effects[:limit]
            return effects

        member.step = step  # type: ignore[method-assign]

    def crash(self, machine: Machine, down_s: float) -> None:
        assert isinstance(machine, QueueMachine)
        if machine.process is not None:
            machine.process.end()
        super().crash(machine, down_s)
        machine.process = None

    def resume(self, machine: Machine) -> None:
        assert isinstance(machine, QueueMachine)
        super().resume(machine)
        if not machine.paused and machine.process is not None:
            machine.process.resumed()

    def step(self, machine: Machine, event: Event) -> None:
        assert isinstance(machine, QueueMachine)
        process = machine.process
        assert process is not None
        if isinstance(event, PromotionAsked):
            process.run(lambda: process.promote(event))
        else:
            process.run(lambda: process.ring.step(event))

    def accept_loss(self, machine: Machine) -> None:
        assert isinstance(machine, QueueMachine)
        process = machine.process
        if process is not None:
            process.run(process.accept_loss)

    def dispose(self) -> None:
        for process in self._processes:
            process.dispose()
