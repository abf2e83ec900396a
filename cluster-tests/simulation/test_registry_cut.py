"""One member alone reaches the registry, and tells the others the views that it brings about.

Three nodes and `min_insync` 2; one is cut from the registry, then another one dies. The two that
are left see each other, so they go on. docs/ring.md draws it.

Or one dies and is back before anybody has missed it, and says nothing: its new life can't read the
view. The links tell the others that it is a new life.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from faults.vocabulary import Block, Crash, Fault, RegistryCut, RegistryOutage
from ringsim.simulator.course import Course
from ringsim.simulator.network import RING_TIMEOUT_S
from ringsim.simulator.registry import REQUEST_TIMEOUT_S
from ringsim.simulator.runs import run_scenario
from ringsim.simulator.scenarios import Publish, Scenario
from ringsim.simulator.world import World

from ringmq_gm.core.timing import Timing

DELAYS = range(3)
CUT_AT = 2.0
DEAD_AT = 3.0
TIMING = Timing()
TRY_S = TIMING.probe_s + REQUEST_TIMEOUT_S + 1.5 * TIMING.retry_s
# The death is noticed, its neighbour asks the others, writes the view, and tells it on. Twice, as
# the neighbour that can't reach the registry may hold the first try up.
SERVED_BY = DEAD_AT + 2 * RING_TIMEOUT_S + 2 * TRY_S + TIMING.tell_s
# All leases lapse while the registry is away, so nobody reads there that a new life has begun.
AWAY_S = 2.0
# A node finds within half a second that the registry is back.
SERVED_AGAIN_BY = CUT_AT + AWAY_S + 0.5 + 2 * TRY_S + TIMING.tell_s

CASES: dict[str, tuple[Fault, ...]] = {
    "master cut, mirror dies": (RegistryCut(CUT_AT, "a", 9.0), Crash(DEAD_AT, "b", 4.0)),
    "master cut, last dies": (RegistryCut(CUT_AT, "a", 9.0), Crash(DEAD_AT, "c", 4.0)),
    "mirror cut, last dies": (RegistryCut(CUT_AT, "b", 9.0), Crash(DEAD_AT, "c", 4.0)),
    "last cut, mirror dies": (RegistryCut(CUT_AT, "c", 9.0), Crash(DEAD_AT, "b", 4.0)),
    "mirror cut, master dies": (RegistryCut(CUT_AT, "b", 9.0), Crash(DEAD_AT, "a", 4.0)),
    "last cut, master dies": (RegistryCut(CUT_AT, "c", 9.0), Crash(DEAD_AT, "a", 4.0)),
    "mirrors cut, and from each other": (
        RegistryCut(CUT_AT, "b", 9.0),
        RegistryCut(CUT_AT, "c", 9.0),
        Block(DEAD_AT, ("b",), ("c",), both_ways=True, for_s=6.0),
    ),
    "master cut, mirror isolated": (
        RegistryCut(CUT_AT, "a", 9.0),
        Block(DEAD_AT, ("b",), ("a", "c"), both_ways=True, for_s=6.0),
    ),
}


def assert_served(
    faults: tuple[Fault, ...], *, publishes: int, by_s: float, seeds: Iterable[int]
) -> None:
    """Something is confirmed in the 0.4 s after `by_s`, and the whole run breaks no invariant."""
    published = tuple(Publish(0.3 + 0.1 * at, 1, False) for at in range(publishes))
    played = Scenario(("a", "b", "c"), 3, 2, published, faults)
    for seed in seeds:
        world = World(played, random.Random(seed))
        course = Course(world)
        course.begin()
        course.run_until(by_s)
        before = world.oracle.confirmed_last
        course.run_until(by_s + 0.4)
        assert world.oracle.confirmed_last > before, f"seed {seed}: {world.registry.view}"
        assert run_scenario(played, seed) is None


@pytest.mark.parametrize("faults", CASES.values(), ids=CASES)
def test_two_go_on_though_one_of_them_is_cut_from_the_registry(faults: tuple[Fault, ...]) -> None:
    # Still before the one that died is back.
    assert_served(faults, publishes=100, by_s=SERVED_BY, seeds=DELAYS)


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_two_go_on_though_the_third_is_a_new_life_that_says_nothing(name: str) -> None:
    faults = (
        RegistryOutage(CUT_AT, AWAY_S, leases_lapse=True),
        RegistryCut(CUT_AT, name, 9.0),
        Crash(CUT_AT + 0.3, name, 0.03),
    )
    # Still before the new life can read the view.
    assert_served(faults, publishes=110, by_s=SERVED_AGAIN_BY, seeds=range(8))
