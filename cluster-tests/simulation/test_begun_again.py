"""Rings that begin again after disks were lost or the view had shrunk, as scenarios by hand.

Three nodes and `min_insync` 2. docs/ring.md draws them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from faults.vocabulary import (
    Block,
    Crash,
    DiskCutUnseen,
    DiskLost,
    DiskRestored,
    Fault,
    RegistryCut,
    SlowDisk,
)
from ringsim.simulator.course import Course
from ringsim.simulator.runs import run_scenario
from ringsim.simulator.scenarios import Publish, Scenario
from ringsim.simulator.world import World

DELAYS = range(8)

# All are killed. The one with the bad disk is up first, and waits alone for longer than it takes
# for the leases to lapse and for `restart_grace_s` to pass.
EMPTY_ONE_FIRST = (Crash(1.5, "b", 8.0), Crash(1.5, "c", 8.0), DiskLost(1.5, "a", 0.1))
OLD_COPY_FIRST = (
    DiskRestored(0.8, "a", 0.7, 0.1),
    Crash(1.5, "b", 8.0),
    Crash(1.5, "c", 8.0),
)
CUT_ONE_FIRST = (Crash(1.5, "b", 8.0), Crash(1.5, "c", 8.0), DiskCutUnseen(1.5, "a", 0.5, 0.1))

# The other two have heard that c has everything. Then it dies, its log is cut, and the ring begins
# again with the life of c that they heard.
CUT_AFTER_ITS_LAST_WORD = (
    Crash(1.5, "a", 1.0),
    Crash(1.5, "c", 0.3),
    DiskLost(1.5, "b", 2.5),
    DiskCutUnseen(3.6, "c", 0.5, 1.5),
)

# a leaves, then b, then c, whose disk is lost. b has everything that was confirmed.
STOPPED_ONE_BY_ONE = (Crash(1.5, "a", 6.0), Crash(3.0, "b", 5.0), DiskLost(4.5, "c", 3.0))

# a and b lose the registry for longer than their leases last, while c is cut from them.
LAST_ONE_CUT_OFF = (
    RegistryCut(1.5, "a", 2.0),
    RegistryCut(1.5, "b", 2.0),
    Block(1.5, ("c",), ("a", "b"), both_ways=True, for_s=30.0),
)
# The same, and soon a can reach c again; b never can.
ONE_WAY_LEFT = (
    *LAST_ONE_CUT_OFF[:2],
    Block(1.5, ("c",), ("a",), both_ways=True, for_s=2.5),
    Block(1.5, ("c",), ("b",), both_ways=True, for_s=30.0),
)

# All are killed just after c has synced an op that a and b haven't. c comes back with the others.
LONGEST_AT_C: tuple[Fault, ...] = (
    SlowDisk(1.0, "a", 0.5, 1.0),
    SlowDisk(1.0, "b", 0.5, 1.0),
    *(Crash(1.42, name, 2.0) for name in "abc"),
)
FROM_THE_REGISTRY = RegistryCut(1.45, "c", 60.0)


def scenario(faults: tuple[Fault, ...]) -> Scenario:
    publishes = tuple(Publish(0.3 + 0.1 * at, 1, False) for at in range(11))
    return Scenario(("a", "b", "c"), 3, 2, publishes, faults)


def world_at(when: float, faults: tuple[Fault, ...], seed: int) -> World:
    """The world at that moment, with the faults that still last."""
    world = World(scenario(faults), random.Random(seed))
    course = Course(world)
    course.begin()
    course.run_until(when)
    return world


@pytest.mark.parametrize(
    "faults",
    [
        EMPTY_ONE_FIRST,
        OLD_COPY_FIRST,
        CUT_ONE_FIRST,
        CUT_AFTER_ITS_LAST_WORD,
        STOPPED_ONE_BY_ONE,
        LAST_ONE_CUT_OFF,
    ],
    ids=[
        "empty disk",
        "old copy",
        "log cut unseen",
        "cut after its last word",
        "stopped one by one",
        "last one cut off",
    ],
)
def test_nothing_is_lost_and_the_ring_comes_back(faults: tuple[Fault, ...]) -> None:
    for seed in DELAYS:
        assert run_scenario(scenario(faults), seed) is None


@pytest.mark.parametrize(
    "faults",
    [EMPTY_ONE_FIRST, OLD_COPY_FIRST, CUT_ONE_FIRST],
    ids=["empty disk", "old copy", "log cut unseen"],
)
def test_a_bad_disk_that_is_up_first_waits_for_the_others(faults: tuple[Fault, ...]) -> None:
    for seed in DELAYS:
        world = world_at(9.0, faults, seed)
        assert world.machines["a"].member is not None
        assert world.registry.view.epoch == 1


def test_b_brings_the_ring_back_though_it_had_left_before_c() -> None:
    for seed in DELAYS:
        world = world_at(14.0, STOPPED_ONE_BY_ONE, seed)
        assert len(world.registry.view.synced) == 3
        assert world.oracle.confirmed_last == len(world.machines["b"].disk.log) > 0


def test_two_go_on_without_the_third_that_is_cut_off() -> None:
    for seed in DELAYS:
        view = world_at(12.0, LAST_ONE_CUT_OFF, seed).registry.view
        assert {member_id.node for member_id in view.synced} == {"a", "b"}


def test_one_that_can_reach_the_last_member_joins_it_and_there_is_no_to_and_fro() -> None:
    for seed in DELAYS:
        view = world_at(12.0, ONE_WAY_LEFT, seed).registry.view
        assert {member_id.node for member_id in view.synced} == {"a", "c"}
        # It shrank to c, then a joined, and was synchronised.
        assert view.epoch <= 6


def longest_at_c(faults: tuple[Fault, ...], leaving: set[str]) -> Iterator[World]:
    """Worlds in which all are up again, c has the longest log, and it holds no lease."""
    for seed in range(3 * len(DELAYS)):
        world = World(scenario(faults), random.Random(seed))
        world.leaving = leaving
        course = Course(world)
        course.begin()
        course.run_until(1.5)
        ends = {name: len(world.machines[name].disk.log) for name in "abc"}
        if ends["c"] > max(ends["a"], ends["b"]):
            course.run_until(20.0)
            yield world


@pytest.mark.parametrize("leaving", [set(), {"c"}], ids=["wanted", "leaving"])
def test_who_has_the_longest_log_begins_the_ring_though_it_is_to_leave_it(
    leaving: set[str],
) -> None:
    """An evacuation had just begun when all were killed. The others waited for it for good."""
    worlds = [*longest_at_c(LONGEST_AT_C, leaving)]
    assert len(worlds) >= 5
    for world in worlds:
        view = world.registry.view
        assert {member_id.node for member_id in view.synced} == {"a", "b", "c"}
        assert len({len(machine.disk.log) for machine in world.machines.values()}) == 1


def test_others_propose_for_the_longest_log_what_it_can_not_propose_itself() -> None:
    """It is cut from the registry alone, and the ring that it would begin has nobody but itself."""
    worlds = [*longest_at_c((*LONGEST_AT_C, FROM_THE_REGISTRY), set())]
    assert len(worlds) >= 5
    for world in worlds:
        view = world.registry.view
        assert view.begun
        assert len(view.synced) >= 2


def test_who_is_to_leave_joins_no_ring_that_goes_on() -> None:
    """It asks now and then whether anybody does, as its log may be wanted."""
    for seed in DELAYS:
        faults = (Crash(1.5, "c", 1.0), RegistryCut(3.0, "a", 10.0))
        world = World(scenario(faults), random.Random(seed))
        world.leaving = {"c"}
        course = Course(world)
        course.begin()
        course.run_until(8.0)
        assert {member_id.node for member_id in world.registry.view.ids} == {"a", "b"}
        before = world.steps
        course.run_until(9.0)
        assert world.steps - before < 500
