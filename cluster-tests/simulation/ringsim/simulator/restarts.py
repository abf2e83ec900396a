"""An operator restarts the nodes that take nothing of the registry, once its newest state is back.

One after the other, each when the replicas of those before are synchronised again, as
docs/operations.md says. One that doesn't get there is left to itself after `PATIENCE_S`.
"""

from __future__ import annotations

from ringsim.simulator.world import World

LOOK_S = 0.25
DOWN_S = 0.2
PATIENCE_S = 5.0


class RollingRestart:
    """See the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_busy = False

    def begin(self) -> None:
        if not self._is_busy:
            self._is_busy = True
            self._go_on(self._world.clock.now)

    def _go_on(self, since: float) -> None:
        world, now = self._world, self._world.clock.now
        machines, registry = world.machines.values(), world.registry
        refusing = [machine for machine in machines if registry.is_refused_by(machine.name)]
        if not refusing:
            self._is_busy = False
            return
        others = (machine for machine in machines if machine not in refusing)
        is_whole = all(machine.me in registry.view.synced for machine in others)
        if is_whole or now - since > PATIENCE_S:
            since = now
            world.crash(refusing[0], DOWN_S)
        world.clock.after(LOOK_S, self._go_on, since)
