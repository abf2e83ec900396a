"""The registry is put back to a copy of itself: nodes refuse it, and nothing confirmed is lost.

As docs/operations.md says, an operator then brings back its newest state, and restarts the nodes
that have refused it one after the other.
"""

from __future__ import annotations

import random

import pytest
from faults.vocabulary import Block, Crash, Fault, RegistryCut, RegistryPutBack
from ringsim.planted import BUGS, SEEDS
from ringsim.registry_mutations import REGISTRY_BUGS, Planted
from ringsim.simulator.course import Course
from ringsim.simulator.coverage import REGISTRY_KINDS
from ringsim.simulator.runs import play, run_scenario, world_of
from ringsim.simulator.scenarios import PUT_BACK, Publish, Scenario
from ringsim.simulator.world import World

NODES = ("a", "b", "c")
DELAYS = range(3)
COPIED_AT = 0.5
BACK_AT = 2.5
NEWEST_AT = 6.0
PUT_BACK_WHILE_THEY_RUN = RegistryPutBack(COPIED_AT, BACK_AT - COPIED_AT, NEWEST_AT - BACK_AT)


def played(*faults: Fault, min_insync: int = 2) -> Scenario:
    publishes = tuple(Publish(0.3 + 0.1 * at, 1, False) for at in range(70))
    return Scenario(NODES, 3, min_insync, publishes, (PUT_BACK_WHILE_THEY_RUN, *faults))


# All begin a life that the copy doesn't know, and are killed again once the registry is put back.
STARTED_SINCE = played(
    *(Crash(0.8 + 0.01 * at, name, 0.1) for at, name in enumerate(NODES)),
    *(Crash(3.0 + 0.01 * at, name, 0.2) for at, name in enumerate(NODES)),
)
# a misses the view without it, and comes back to a registry that has forgotten that view.
MISSED_A_VIEW = played(
    RegistryCut(1.1, "a", 1.6), Block(1.1, ("a",), ("b", "c"), True, 4.0), min_insync=1
)
LOST_BY: dict[Planted, Scenario] = dict(
    zip(REGISTRY_BUGS, (MISSED_A_VIEW, STARTED_SINCE), strict=True)
)


def name_of(value: object) -> str:
    return getattr(value, "__name__", "")


@pytest.mark.logs("the registry went back")
def test_a_ring_serves_while_its_nodes_refuse_the_registry_and_comes_back_by_restarts() -> None:
    for seed in DELAYS:
        world = World(played(), random.Random(seed))
        course = Course(world)
        course.begin()
        course.run_until(BACK_AT + 1.0)
        assert all(world.registry.is_refused_by(name) for name in NODES)
        before = world.oracle.confirmed_last
        course.run_until(NEWEST_AT - 0.1)
        assert world.oracle.confirmed_last > before + 20
        course.run_until(NEWEST_AT + 12.0)
        assert not any(world.registry.is_refused_by(name) for name in NODES)
        assert [m.me.incarnation for m in world.machines.values()] == [2, 2, 2]
        assert set(world.registry.view.synced) == {m.me for m in world.machines.values()}
        assert run_scenario(played(), seed) is None


@pytest.mark.logs("the registry went back")
def test_no_node_starts_whose_lives_the_registry_has_forgotten() -> None:
    for seed in DELAYS:
        world = World(STARTED_SINCE, random.Random(seed))
        course = Course(world)
        course.begin()
        course.run_until(NEWEST_AT - 0.1)
        assert all(machine.member is None for machine in world.machines.values())
        assert world.coverage.counts["registry: a start is refused"] > 3
        assert run_scenario(STARTED_SINCE, seed) is None


@pytest.mark.parametrize(("planted", "scenario"), LOST_BY.items(), ids=name_of)
def test_a_scenario_needs_the_rule(planted: Planted, scenario: Scenario) -> None:
    """With the delays of some seed."""
    for seed in range(20):
        with planted():
            failure = run_scenario(scenario, seed)
        if failure is not None:
            assert run_scenario(scenario, seed) is None
            return
    pytest.fail("the planted bug was not seen")


@pytest.mark.slow
@pytest.mark.parametrize("planted", REGISTRY_BUGS, ids=name_of)
def test_random_seeds_find(planted: Planted) -> None:
    assert BUGS[planted.__name__].found_by(range(SEEDS)) is not None


@pytest.mark.slow
def test_the_seeds_reach_what_the_rules_know() -> None:
    reached = dict.fromkeys(REGISTRY_KINDS, 0)
    for seed in range(int(20 / PUT_BACK)):
        world = world_of(seed, is_queue=False)
        if RegistryPutBack in map(type, world.scenario.faults):
            play(world)
            for kind in reached:
                reached[kind] += world.coverage.counts[kind]
    assert all(reached.values()), reached
