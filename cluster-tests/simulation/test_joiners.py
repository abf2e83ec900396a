"""A joiner that is slow, or takes nothing, doesn't hold up its ring.

Three nodes and `min_insync` 2; c joins. docs/ring.md draws it.
"""

from __future__ import annotations

import random

import pytest
from faults.vocabulary import Block, Crash, Fault, SlowDisk, TakesNothing
from ringsim.simulator.course import Course
from ringsim.simulator.runs import run_scenario
from ringsim.simulator.scenarios import Latencies, Publish, Scenario
from ringsim.simulator.world import World

from ringmq_gm.core.cache import Budgets

NODES = ("a", "b", "c")
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
        NODES,
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
@pytest.mark.compute
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


@pytest.mark.compute
@pytest.mark.slow
@pytest.mark.parametrize("disk_s", [0.0, 0.03, 0.1])
def test_a_stream_that_never_pauses_keeps_no_joiner_out(disk_s: float) -> None:
    """Its disk was always behind what the others had received: counted by chance, or not at all."""
    publishes = tuple(Publish(0.3 + 0.003 * at, 1, False) for at in range(900))
    faults = (Crash(0.5, "c", 0.3), SlowDisk(0.1, "c", disk_s, 9.0))
    for seed in DELAYS:
        world = World(Scenario(NODES, 3, 2, publishes, faults), random.Random(seed))
        course = Course(world)
        course.begin()
        course.run_until(2.8)
        assert [member_id.node for member_id in world.registry.view.synced][2:] == ["c"]


@pytest.mark.parametrize("from_master", [False, True], ids=["from upstream", "from the master"])
def test_a_joiner_has_no_op_that_the_ring_has_not_brought(from_master: bool) -> None:
    """c fetches a state with two ops that it hasn't received. They aren't confirmed, so it is
    counted without them; then b and a die, and it numbers other ops so (seed 534818)."""
    publishes = tuple(Publish(at, 1, False) for at in (0.3, 0.4, 0.84, 0.85, 4.5, 4.6))
    faults = (
        Crash(0.5, "c", 0.2),
        TakesNothing(0.6, "c", 2.0),
        Block(0.83, ("b",), ("a",), both_ways=False, for_s=0.35),
        Crash(1.1, "b", 6.0),
        Crash(1.7, "a", 2.0),
    )
    latencies = Latencies(fetch_s=0.2, watch_s=0.005, fetch_from_master=from_master)
    for seed in DELAYS:
        failure = run_scenario(Scenario(NODES, 3, 2, publishes, faults, latencies), seed)
        assert failure is None, failure.reason
