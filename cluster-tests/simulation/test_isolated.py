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


def scenario(faults: tuple[Fault, ...], until: float = 8.3) -> Scenario:
    publishes = tuple(Publish(0.3 + 0.1 * at, 1, False) for at in range(int(10 * until) - 3))
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


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["a", "b", "c", "ab", "bc", "ac"])
@pytest.mark.parametrize("period_s", [0.3, 0.6, 1.5])
def test_a_cut_that_flaps_costs_a_few_time_outs(pair: str, period_s: float) -> None:
    """Of one node, or between two. Each time that the node is synchronised again and then cut, the
    others have to find out. So it stays away for longer each time."""
    others = tuple(pair[1:]) or tuple(name for name in "abc" if name != pair)
    played = scenario((Flap(CUT_AT, (pair[0],), others, period_s, 20.0),), until=21.0)
    for seed in range(4):
        pauses_s = without_service(played, 21.0, seed)
        assert max(pauses_s, default=0.0) < 2 * RING_TIMEOUT_S + 0.5
        # A cut that is shorter than the time-out costs as long as it lasts, and no view. Between
        # two nodes each may put the other out.
        most = 5 if len(pair) == 1 else 8
        assert len(pauses_s) <= most or period_s < RING_TIMEOUT_S, pauses_s


def without_service(played: Scenario, until: float, seed: int) -> list[float]:
    """Each time for which nothing was confirmed, if it is as long as a ring time-out."""
    world = World(played, random.Random(seed))
    course = Course(world)
    course.begin()
    pauses_s: list[float] = []
    confirmed_at, confirmed = 0.3, 0
    while world.clock.now < until:
        course.run_until(world.clock.now + 0.02)
        if world.oracle.confirmed_last > confirmed:
            pauses_s.append(world.clock.now - confirmed_at)
            confirmed_at, confirmed = world.clock.now, world.oracle.confirmed_last
    return [pause_s for pause_s in pauses_s if pause_s > RING_TIMEOUT_S]


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
