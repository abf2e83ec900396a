"""Several rings on the same nodes: what befalls a node befalls all of them, and each is judged."""

from __future__ import annotations

import random

import pytest
from faults.vocabulary import Crash, TakesNothing
from ringsim.simulator.coverage import RINGS_KINDS
from ringsim.simulator.rings import RingsCourse, RingsWorld
from ringsim.simulator.runs import play, run_scenario, world_of
from ringsim.simulator.scenarios import RINGS, Publish, Scenario

DELAYS = range(2)
PUBLISHES = tuple(Publish(0.3 + 0.02 * at, 1, False) for at in range(150))
A_DIES = Scenario(("a", "b", "c"), 3, 2, PUBLISHES, (Crash(1.0, "a", 4.5),), rings=3)
# With `min_insync` 3 b can't be put out: what it lacks fills the budget of a.
B_TAKES_NOTHING = Scenario(
    ("a", "b", "c"), 3, 3, PUBLISHES, (TakesNothing(1.0, "b", 8.0),), rings=2, node_bytes_max=200
)


def played_until(scenario: Scenario, seed: int, when: float) -> RingsWorld:
    world = RingsWorld(scenario, random.Random(seed))
    course = RingsCourse(world)
    course.begin()
    course.run_until(when)
    return world


def test_the_death_of_a_node_ends_its_memberships_in_all_rings() -> None:
    for seed in DELAYS:
        world = played_until(A_DIES, seed, 5.0)
        assert [[m.id.node for m in ring.registry.view.members] for ring in world.rings] == [
            ["b", "c"],
            ["b", "c"],
            ["b", "c"],
        ]
        assert run_scenario(A_DIES, seed) is None


def test_the_rings_of_a_node_have_one_budget() -> None:
    for seed in DELAYS:
        world = played_until(B_TAKES_NOTHING, seed, 8.0)
        waiting = sum(
            ring.machines["a"].member.waiting_bytes
            for ring in world.rings
            if ring.machines["a"].member is not None
        )
        # An op has 5 bytes at most.
        assert 100 < waiting <= 200 + 5
        assert world.coverage.counts["rings: the node's budget holds a publish"] > 0
        assert run_scenario(B_TAKES_NOTHING, seed) is None


@pytest.mark.slow
def test_the_seeds_reach_several_rings() -> None:
    reached = dict.fromkeys(RINGS_KINDS, 0)
    for seed in range(int(20 / RINGS)):
        world = world_of(seed, is_queue=False)
        if world.scenario.rings > 1:
            play(world)
            for kind in reached:
                reached[kind] += world.coverage.counts[kind]
    assert all(reached.values()), reached
