"""A master that is cut off stops serving by itself, and the others go on. One that has merely lost
its lease goes on as well.

Three nodes and `min_insync` 2. docs/ring.md draws it.
"""

from __future__ import annotations

import random

import pytest
from faults.vocabulary import Block, Fault, Flap, RegistryCut
from ringsim.simulator.course import Course
from ringsim.simulator.network import RING_TIMEOUT_S
from ringsim.simulator.runs import run_scenario
from ringsim.simulator.scenarios import Publish, Scenario
from ringsim.simulator.world import World

from ringmq_gm.core.events import Refusal, Role
from ringmq_gm.core.timing import Timing

DELAYS = range(8)
CUT_AT = 1.0
# The links break after the time-out, each end notices within another one, and a little more.
ALONE_BY = CUT_AT + 2 * RING_TIMEOUT_S + Timing().contact_s + 0.1

FROM_THE_RING = (Block(CUT_AT, ("a",), ("b", "c"), both_ways=True, for_s=8.0),)
FROM_ALL = (*FROM_THE_RING, RegistryCut(CUT_AT, "a", 8.0))


def scenario(faults: tuple[Fault, ...]) -> Scenario:
    publishes = tuple(Publish(0.3 + 0.1 * at, 1, False) for at in range(80))
    return Scenario(("a", "b", "c"), 3, 2, publishes, faults)


@pytest.mark.parametrize("faults", [FROM_THE_RING, FROM_ALL], ids=["ring", "ring and registry"])
def test_it_refuses_while_the_others_go_on(faults: tuple[Fault, ...]) -> None:
    for seed in DELAYS:
        world = World(scenario(faults), random.Random(seed))
        course = Course(world)
        course.begin()
        course.run_until(ALONE_BY)
        isolated = world.machines["a"].member
        assert isolated is not None
        if isolated.role is Role.MASTER:
            assert isolated.refusal() is Refusal.OUT_OF_CONTACT
        before = world.oracle.confirmed_last
        course.run_until(ALONE_BY + 2.0)
        assert isolated.refusal() in (Refusal.OUT_OF_CONTACT, Refusal.NOT_MASTER)
        assert world.oracle.confirmed_last > before
        assert run_scenario(scenario(faults), seed) is None


@pytest.mark.parametrize("node", ["a", "b", "c"])
@pytest.mark.parametrize("period_s", [0.3, 0.6, 1.5])
def test_a_cut_that_flaps_costs_a_time_out_each_time(node: str, period_s: float) -> None:
    """Each time that the node is synchronised again and then cut, the others have to find out."""
    others = tuple(name for name in "abc" if name != node)
    faults = (Flap(CUT_AT, (node,), others, period_s, 8.0),)
    world = World(scenario(faults), random.Random(0))
    course = Course(world)
    course.begin()
    confirmed_at, confirmed = 0.0, 0
    while world.clock.now < 8.0:
        course.run_until(world.clock.now + 0.05)
        if world.oracle.confirmed_last > confirmed:
            confirmed_at, confirmed = world.clock.now, world.oracle.confirmed_last
        assert world.clock.now - confirmed_at < 2 * RING_TIMEOUT_S + 0.5


def test_a_master_that_lost_only_its_lease_goes_on() -> None:
    """Its ring is healthy: the view stays, and every publish is confirmed."""
    played = scenario((RegistryCut(CUT_AT, "a", 7.0),))
    for seed in DELAYS:
        world = World(played, random.Random(seed))
        course = Course(world)
        course.begin()
        course.run_until(8.0)
        assert world.registry.view.epoch == 1
        assert world.oracle.confirmed_last >= 75
        assert run_scenario(played, seed) is None
