"""Liveness while faults last: a ring that can confirm something does so within a bound.

It can if some synchronised members of the newest view run, all see each other, are `min_insync` or
more, and one of them reaches the registry. If that is so, and no fault begins or ends, then the
ring confirms an op within `bound_s`. The others may be dead, cut off or stopped, may see some of
these members and not the rest, and may be its master.

The bound follows from the settings: each end of a link notices a silence within two ring time-outs;
a change of the view costs a probe, a request to the registry and a pause, and may fail twice,
because members that are cut off, or don't know the others' view, try as well; then the view is
told, and the op goes to the disks. A member that takes nothing is put out after the slow time-out,
one whose disk hangs after `disk_stall_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

from ringmq_gm.core.timing import Timing
from ringsim.simulator.application import BrokenInvariantError
from ringsim.simulator.network import RING_TIMEOUT_S, SLOW_TIMEOUT_S
from ringsim.simulator.registry import REQUEST_TIMEOUT_S
from ringsim.simulator.world import World

LOOK_S = 0.25
TRIES = 3


def bound_s(world: World) -> float:
    """How long a ring that can confirm something may confirm nothing, in seconds."""
    timing, latencies = Timing(), world.scenario.latencies
    noticed_s = 2 * RING_TIMEOUT_S + timing.contact_s
    try_s = timing.probe_s + REQUEST_TIMEOUT_S + 1.5 * timing.retry_s + latencies.watch_s
    syncs_s = 3 * (latencies.sync_s + max(m.sync_delay_s for m in world.machines.values()))
    slow_s = 2 * SLOW_TIMEOUT_S if any(map(world.network.takes_nothing, world.machines)) else 0.0
    return noticed_s + TRIES * try_s + timing.tell_s + syncs_s + slow_s


class Liveness:
    """See the module. `publish` gives an op to every member that takes it."""

    def __init__(self, world: World, publish: Callable[[], None]) -> None:
        self._world = world
        self._publish = publish
        # Since when the faults are as they are, and the ring can confirm; None if it can't.
        self._since: float | None = None
        self._faults: object = None
        self._confirms = 0

    def look(self) -> None:
        """Raises `BrokenInvariantError`; to be called each `LOOK_S`."""
        world, now = self._world, self._world.clock.now
        faults = self._faults_now()
        confirms = world.oracle.confirms
        can_confirm = self._can_confirm()
        if faults != self._faults or confirms != self._confirms or not can_confirm:
            self._since, self._faults, self._confirms = None, faults, confirms
        if not can_confirm:
            return
        if self._since is None:
            self._since = now
        waited_s, allowed_s = now - self._since, bound_s(world)
        if waited_s > allowed_s:
            raise BrokenInvariantError(
                f"nothing was confirmed for {waited_s:.2f} s, {allowed_s:.2f} s are allowed:"
                f" {world.registry.view}, {world.network.cuts()}, registry cut {world.registry.cut}"
            )
        # Early enough that a healthy ring has the time to confirm it.
        if waited_s > allowed_s / 2:
            self._publish()

    def _faults_now(self) -> object:
        world = self._world
        lives = tuple((m.me, m.is_running, m.sync_delay_s) for m in world.machines.values())
        return lives, world.network.condition(), world.registry.condition()

    def _can_confirm(self) -> bool:
        return any(True for _ in self._quorums())

    def _quorums(self) -> Iterator[tuple[str, ...]]:
        """The sets of members that can go on without the others, or with them."""
        world = self._world
        view, network = world.registry.view, world.network
        healthy = [
            member_id.node
            for member_id in view.synced
            if world.machines[member_id.node].is_running
            and world.machines[member_id.node].me == member_id
            and not network.takes_nothing(member_id.node)
        ]
        for names in combinations(healthy, view.min_insync):
            sees_all = not any(network.is_blocked(*pair) for pair in combinations(names, 2))
            if sees_all and any(world.registry.answers(name) for name in names):
                yield names
