"""A joiner that is slow, or takes nothing, doesn't hold up its ring.

Three nodes and `min_insync` 2; c joins. docs/ring.md draws it.
"""

from __future__ import annotations

import random

import pytest
from faults.vocabulary import Crash, Fault, SlowDisk, TakesNothing
from ringsim.simulator.course import Course
from ringsim.simulator.runs import run_scenario
from ringsim.simulator.scenarios import Latencies, Publish, Scenario
from ringsim.simulator.world import World

from ringmq_gm.core.cache import Budgets

DELAYS = range(8)
FAULT_S = 20.0
# Longer than this no publisher waits for a confirm.
PAUSE_S_MAX = 1.0

# c joins a and b, and takes no op.
TAKES_NOTHING = (TakesNothing(0.0, "c", FAULT_S),)
# c dies and comes back, while it takes nothing.
TAKES_NOTHING_AFTER_A_RESTART = (Crash(0.3, "c", 0.5), TakesNothing(0.7, "c", FAULT_S))
# c takes a few ops now and then.
TRICKLES = tuple(TakesNothing(1.5 * at, "c", 1.45) for at in range(14))


def scenario(faults: tuple[Fault, ...], first_count: int = 2) -> Scenario:
    publishes = tuple(Publish(0.02 + 0.05 * at, 1, False) for at in range(400))
    return Scenario(
        ("a", "b", "c"),
        first_count,
        2,
        publishes,
        faults,
        Latencies(fetch_s=0.5),
        Budgets(cache_bytes_max=60, joiner_bytes_max=60),
    )


@pytest.mark.parametrize(
    ("faults", "first_count"),
    [(TAKES_NOTHING, 2), (TAKES_NOTHING_AFTER_A_RESTART, 3), (TRICKLES, 2)],
    ids=["takes nothing", "takes nothing after a restart", "trickles"],
)
@pytest.mark.slow
def test_the_ring_goes_on_without_it(faults: tuple[Fault, ...], first_count: int) -> None:
    played = scenario(faults, first_count)
    for seed in DELAYS:
        world = World(played, random.Random(seed))
        course = Course(world)
        course.begin()
        course.run_until(3.0)
        while world.clock.now < FAULT_S:
            before = world.oracle.confirmed_last
            course.run_until(world.clock.now + PAUSE_S_MAX)
            assert world.oracle.confirmed_last > before, world.clock.now
        assert run_scenario(played, seed) is None


@pytest.mark.slow
@pytest.mark.parametrize("disk_s", [0.0, 0.03, 0.1])
def test_a_stream_that_never_pauses_keeps_no_joiner_out(disk_s: float) -> None:
    """Its disk was always behind what the others had received: counted by chance, or not at all."""
    publishes = tuple(Publish(0.3 + 0.003 * at, 1, False) for at in range(900))
    faults = (Crash(0.5, "c", 0.3), SlowDisk(0.1, "c", disk_s, 9.0))
    for seed in DELAYS:
        world = World(Scenario(("a", "b", "c"), 3, 2, publishes, faults), random.Random(seed))
        course = Course(world)
        course.begin()
        course.run_until(2.8)
        assert [member_id.node for member_id in world.registry.view.synced][2:] == ["c"]
