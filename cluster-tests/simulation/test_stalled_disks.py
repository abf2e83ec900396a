"""A disk that hangs stops the ring for no longer than `Timing.disk_stall_s` and a little more.

Three nodes and `min_insync` 2. docs/ring.md draws it.
"""

from __future__ import annotations

import random

import pytest
from faults.vocabulary import SlowDisk
from ringsim.simulator.course import Course
from ringsim.simulator.runs import run_scenario
from ringsim.simulator.scenarios import Publish, Scenario
from ringsim.simulator.world import World

from ringmq_gm.core.stalls import look_s
from ringmq_gm.core.timing import Timing

DELAYS = range(3)
HANGS_AT = 2.0
HANGS_S = 11.0
TIMING = Timing()
# A sync under way takes all the time at once; a mark is told with the next look, and judged with
# the one after.
SERVED_BY = HANGS_AT + TIMING.disk_stall_s + 3 * look_s(TIMING) + 0.3


def played(*names: str) -> Scenario:
    publishes = tuple(Publish(0.3 + 0.1 * at, 1, False) for at in range(140))
    faults = tuple(SlowDisk(HANGS_AT, name, HANGS_S, HANGS_S) for name in names)
    return Scenario(("a", "b", "c"), 3, 2, publishes, faults)


@pytest.mark.parametrize("name", ["a", "b", "c"], ids=["master", "mirror", "last"])
def test_the_ring_goes_on_without_it_and_takes_it_back(name: str) -> None:
    for seed in DELAYS:
        world = World(played(name), random.Random(seed))
        course = Course(world)
        course.begin()
        course.run_until(SERVED_BY)
        before = world.oracle.confirmed_last
        course.run_until(SERVED_BY + 0.5)
        assert world.oracle.confirmed_last > before
        assert name not in {member_id.node for member_id in world.registry.view.synced}
        assert run_scenario(played(name), seed) is None


@pytest.mark.parametrize("names", ["ab", "bc", "abc"])
def test_nobody_is_put_out_if_too_few_disks_are_better(names: str) -> None:
    world = World(played(*names), random.Random(0))
    course = Course(world)
    course.begin()
    course.run_until(HANGS_AT + HANGS_S)
    assert world.registry.view.epoch == 1
    assert run_scenario(played(*names)) is None
