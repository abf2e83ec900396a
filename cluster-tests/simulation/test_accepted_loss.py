"""An operator lets the ring go on with a loss, when those that had everything are gone for good, or
seem to be.

Most of them three nodes and `min_insync` 2, as scenarios by hand.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from faults.vocabulary import (
    AcceptLoss,
    Block,
    Crash,
    DiskLost,
    DiskRestored,
    Fault,
    RegistryCut,
    SlowDisk,
)
from ringsim import mutations
from ringsim.queues.world import QueueWorld
from ringsim.simulator.application import BrokenInvariantError
from ringsim.simulator.course import Course
from ringsim.simulator.coverage import OVERRULED_CONFIRMS
from ringsim.simulator.network import RING_TIMEOUT_S
from ringsim.simulator.overruled import Overruled
from ringsim.simulator.runs import play, run_scenario
from ringsim.simulator.scenarios import Latencies, Publish, Scenario
from ringsim.simulator.world import World

from ringmq_gm.core.events import LossOutcome, Role
from ringmq_gm.core.member import RingMember

DELAYS = range(8)

# c goes, a and b confirm on, and lose their disks. What c has is all that is left.
TWO_DISKS_LOST = (Crash(1.2, "c", 8.0), DiskLost(4.0, "a", 1.0), DiskLost(4.0, "b", 1.5))
# The same, but a and b never come back before the operator decides.
TWO_NODES_GONE = (Crash(1.2, "c", 8.0), DiskLost(4.0, "a", 20.0), DiskLost(4.0, "b", 20.0))
# And c's disk was replaced by an old copy, which nobody takes for whole.
OLD_COPY_LEFT = (DiskRestored(0.8, "c", 0.4, 8.0), *TWO_DISKS_LOST[1:])
# a is alone, b and c join it, and its disk is lost before they are synchronised.
JOINERS_LEFT = (Crash(1.2, "b", 2.0), Crash(1.2, "c", 2.0), DiskLost(4.5, "a", 1.0))
# a comes back and has the ops again, not yet all bodies, when the others lose their disks.
BODIES_LEFT_BEHIND = (
    Crash(0.97, "a", 1.61),
    DiskLost(3.44, "b", 5.2),
    DiskLost(3.44, "c", 9.4),
    AcceptLoss(9.97, "a"),
)
# The same, and a was still giving b and c their states.
JOINERS_FETCH = (*JOINERS_LEFT[:2], DiskLost(4.5, "a", 20.0))
# The same, and the disks of the others were slow: the last ops weren't confirmed yet.
UNCONFIRMED_LEFT_BEHIND = (
    SlowDisk(1.5, "b", 1.0, 5.0),
    SlowDisk(1.5, "c", 1.0, 5.0),
    Crash(0.97, "a", 0.6),
    DiskLost(2.6, "b", 5.2),
    DiskLost(2.6, "c", 9.4),
    AcceptLoss(9.97, "a"),
)
# c was put out. a and b confirm on, lose the registry and their leases, and nobody reaches them.
SEEN_AGAIN_AT = 12.0
ALL_CUT_OFF = (
    Block(0.5, ("c",), ("a", "b"), True, SEEN_AGAIN_AT - 0.5),
    RegistryCut(1.5, "a", 20.0),
    RegistryCut(1.5, "b", 20.0),
    AcceptLoss(5.0, "c"),
)
QUICK = Latencies()
SLOW_FETCH = Latencies(fetch_s=8.0)
DECIDED_AT = 13.0


def scenario(faults: tuple[Fault, ...], latencies: Latencies = QUICK) -> Scenario:
    publishes = tuple(Publish(0.3 + 0.1 * at, 1, False) for at in range(30))
    return Scenario(("a", "b", "c"), 3, 2, publishes, faults, latencies)


def world_at(
    when: float, faults: tuple[Fault, ...], seed: int, latencies: Latencies = QUICK
) -> World:
    world = World(scenario(faults, latencies), random.Random(seed))
    course = Course(world)
    course.begin()
    course.run_until(when)
    return world


def test_the_ring_is_down_until_somebody_decides() -> None:
    for seed in DELAYS:
        world = world_at(DECIDED_AT, TWO_DISKS_LOST, seed)
        assert {member_id.node for member_id in world.registry.view.candidates} == {"a", "b"}
        assert all(m.member and m.member.role.value == "outside" for m in world.machines.values())


def test_the_ring_goes_on_from_the_named_log_and_the_view_keeps_a_record() -> None:
    for faults in (TWO_DISKS_LOST, TWO_NODES_GONE, OLD_COPY_LEFT):
        decided = (*faults, AcceptLoss(DECIDED_AT, "c"))
        for seed in DELAYS:
            before = world_at(DECIDED_AT, faults, seed)
            end = before.machines["c"].disk.end()
            assert before.oracle.confirmed_last > end.number > 0
            assert run_scenario(scenario(decided), seed) is None
            world = world_at(DECIDED_AT + 5.0, decided, seed)
            assert world.losses_ended == [LossOutcome.DONE]
            (loss,) = world.registry.view.losses
            assert (loss.member.node, loss.log_epoch, loss.log_number) == (
                "c",
                end.epoch,
                end.number,
            )
            assert {member_id.node for member_id in loss.overruled} == {"a", "b"}


def test_a_disk_that_turns_up_later_is_overruled() -> None:
    for seed in DELAYS:
        had = world_at(3.9, TWO_DISKS_LOST, seed).machines["a"].disk.end()
        view = world_at(
            DECIDED_AT + 5.0, (*TWO_DISKS_LOST, AcceptLoss(DECIDED_AT, "c")), seed
        ).registry.view
        assert view.overrules(had.epoch, had.number) == view.losses[0]
        loss = view.losses[0]
        assert view.overrules(loss.log_epoch, loss.log_number) is None
        assert view.overrules(loss.epoch, had.number + 1) is None


def test_nothing_is_begun_with_a_loss_while_those_that_have_everything_are_up() -> None:
    """The decision may be older than the return of a node."""
    back = (Crash(1.2, "c", 3.5), Crash(4.0, "a", 8.5), Crash(4.0, "b", 8.5))
    # a and b are down and hold their leases; they have just been started; they are the ring again.
    for at in (4.9, 12.6, 15.0):
        for seed in DELAYS:
            faults = (*back, AcceptLoss(at, "c"))
            assert run_scenario(scenario(faults), seed) is None
            world = world_at(at + 5.0, faults, seed)
            assert world.registry.view.losses == ()
            assert world.losses_ended in (
                [LossOutcome.MEMBERS_LIVE],
                [LossOutcome.NOT_NEEDED],
                [LossOutcome.RING_CHANGED],
                [LossOutcome.IN_RING],
            )


def test_the_last_whole_disk_is_lost_while_the_others_catch_up() -> None:
    """b and c had every confirmed op, and had cut their logs to join a. No ring is begun with less
    (0020, "not solved"): it is down, its view names a as the one that had everything, and the ends
    of the logs that b and c have left say what can be had of them."""
    for seed in DELAYS:
        before = world_at(4.4, JOINERS_LEFT, seed, SLOW_FETCH)
        assert before.registry.view.synced == (before.machines["a"].me,)
        assert len(before.registry.view.joiners) == 2
        world = world_at(DECIDED_AT, JOINERS_LEFT, seed, SLOW_FETCH)
        assert {member_id.node for member_id in world.registry.view.candidates} == {"a"}
        members = [machine.member for machine in world.machines.values()]
        assert not any(member is None or member.role is Role.MASTER for member in members)
        assert world.oracle.confirmed_last > 0
        assert world.oracle.lost == 0
        assert max(world.machines[name].disk.end().number for name in "bc") > 0
        assert run_scenario(scenario(JOINERS_LEFT, SLOW_FETCH), seed) is None


def test_a_joiner_that_was_left_alone_goes_on_with_what_it_has() -> None:
    decided = (*JOINERS_LEFT, AcceptLoss(DECIDED_AT, "b"))
    joiners = 0
    for seed in DELAYS:
        left = world_at(DECIDED_AT, JOINERS_LEFT, seed, SLOW_FETCH).machines["b"].member
        assert left is not None
        joiners += left.role is Role.JOINER
        assert run_scenario(scenario(decided, SLOW_FETCH), seed) is None
    assert joiners > 4


def test_a_state_that_was_on_its_way_does_not_move_the_end_that_was_named() -> None:
    """The view would record another end than the log has (seed 175802)."""
    done = 0
    for at in (6.0, 8.0):
        faults = (*JOINERS_FETCH, AcceptLoss(at, "b"))
        for seed in DELAYS:
            assert run_scenario(scenario(faults, SLOW_FETCH), seed) is None
            world = world_at(at + 6.0, faults, seed, SLOW_FETCH)
            done += world.losses_ended == [LossOutcome.DONE]
    assert done > 8


def test_a_decision_to_which_the_registry_does_not_answer_keeps_no_joiner_outside() -> None:
    """It may take effect until the epoch ends, so the joiner ends it. a is back by then."""
    unknown = 0
    for cut_at in (6.5, 7.5, 8.5):
        away = (RegistryCut(cut_at, "b", 6.0), Crash(4.5, "a", 9.0))
        faults = (*JOINERS_FETCH[:2], *away, AcceptLoss(6.0, "b"))
        for seed in DELAYS:
            assert run_scenario(scenario(faults, SLOW_FETCH), seed) is None
            world = world_at(DECIDED_AT, faults, seed, SLOW_FETCH)
            unknown += LossOutcome.UNKNOWN in world.losses_ended
    assert unknown


def test_messages_whose_bodies_the_named_replica_had_not_fetched_are_lost_with_the_others() -> None:
    """Of a queue. It has their ops, so the end of its log doesn't tell (0024; seed 21156)."""
    latencies = Latencies(frame_s=0.05, fetch_s=0.5)
    played = replace(scenario(BODIES_LEFT_BEHIND, latencies), is_queue=True)
    lost = 0
    for seed in DELAYS:
        assert run_scenario(played, seed) is None
        world = QueueWorld(played, random.Random(seed))
        play(world)
        lost += len(world.oracle.without_bodies)
    assert lost


def test_a_body_that_is_missing_may_be_of_a_message_that_was_not_confirmed() -> None:
    """Its publisher is told later that it is: the op is there (0207; seeds 173543 and 252013)."""
    played = replace(
        scenario(UNCONFIRMED_LEFT_BEHIND, Latencies(frame_s=0.05, fetch_s=0.5)), is_queue=True
    )
    unconfirmed = 0
    for seed in DELAYS:
        assert run_scenario(played, seed) is None
        world = QueueWorld(played, random.Random(seed))
        play(world)
        unconfirmed += world.oracle.unconfirmed_without_bodies
    assert unconfirmed


def overruled_alive(min_insync: int) -> Scenario:
    """Ops are given all the time to every member that takes them."""
    publishes = tuple(Publish(0.3 + 0.1 * at, 1, False) for at in range(150))
    if min_insync == 2:
        return Scenario(("a", "b", "c"), 3, 2, publishes, ALL_CUT_OFF)
    # Two nodes: the master alone is cut off (seed 983543).
    faults = (
        Block(0.5, ("b",), ("a",), True, SEEN_AGAIN_AT - 0.5),
        RegistryCut(1.5, "a", 20.0),
        AcceptLoss(5.0, "b"),
    )
    return Scenario(("a", "b"), 2, 1, publishes, faults)


def begun(played: Scenario, seed: int) -> tuple[World, Course]:
    world = World(played, random.Random(seed))
    course = Course(world)
    course.begin()
    return world, course


@pytest.mark.parametrize("min_insync", [1, 2])
def test_an_overruled_master_that_is_cut_off_confirms_until_a_link_is_up(min_insync: int) -> None:
    """Nothing tells it from one whose registry is away (0240; seed 983543)."""
    played = overruled_alive(min_insync)
    decided = 0
    for seed in DELAYS:
        world, course = begun(played, seed)
        course.run_until(SEEN_AGAIN_AT - 0.1)
        if world.losses_ended != [LossOutcome.DONE]:
            continue  # Whoever was to be named has put the others out.
        decided += 1
        reached = world.coverage.counts
        (loss,) = world.registry.view.losses
        (old,) = (
            machine.member
            for machine in world.machines.values()
            if machine.member is not None
            and machine.member.role is Role.MASTER
            and machine.me in loss.overruled
        )
        before = reached[OVERRULED_CONFIRMS]
        assert before > 20
        # The registry is still away. The link tells it, before a ring time-out is over.
        course.run_until(SEEN_AGAIN_AT + 2 * RING_TIMEOUT_S)
        assert old.role is not Role.MASTER
        after = reached[OVERRULED_CONFIRMS]
        course.run_until(SEEN_AGAIN_AT + 4.0)
        assert reached[OVERRULED_CONFIRMS] == after
        assert run_scenario(played, seed) is None
    assert decided > 2


def judge_after_a_loss(seed: int) -> tuple[World, Course]:
    world, course = begun(overruled_alive(min_insync=2), seed)
    course.run_until(8.0)
    assert world.losses_ended == [LossOutcome.DONE]
    return world, course


def test_only_the_overruled_are_excused() -> None:
    """Who confirms by a mistake after a loss is found out as before it."""
    world, _ = judge_after_a_loss(0)
    (loss,) = world.registry.view.losses
    master = world.machines[loss.overruled[0].node]
    member = master.member
    assert member is not None
    view, log = member.view, master.app.log
    assert view is not None
    assert view.master == member.me
    overruled = Overruled(world.machines, world.coverage.counts)
    overruled.decided(loss, log[: loss.log_number])
    beyond = loss.log_number + 1
    assert overruled.excuses(member.me, view, beyond, log[beyond - 1])
    # Another member, a later view, an op that the named log has.
    assert not overruled.excuses(loss.member, view, beyond, log[beyond - 1])
    assert not overruled.excuses(member.me, world.registry.view, beyond, log[beyond - 1])
    assert not overruled.excuses(member.me, view, loss.log_number, log[loss.log_number - 1])
    # It has to be on the disks of its own view, and to be set aside when one of these joins.
    assert overruled.confirmed(view, beyond, log[beyond - 1])
    assert not overruled.confirmed(view, beyond, log[beyond - 1])
    with pytest.raises(BrokenInvariantError, match="without op"):
        overruled.confirmed(view, len(log) + 1, (view.epoch, b"never written"))
    overruled.cut(world.registry.view, log)
    with pytest.raises(BrokenInvariantError, match="isn't set aside"):
        overruled.cut(replace(world.registry.view, losses=()), log)


@pytest.mark.parametrize(
    ("mutation", "reason"),
    [
        (mutations.LeavesTheOverruledAlone, "is overruled, and isn't told so"),
        (mutations.ForgetsTheDecision, "isn't set aside"),
    ],
)
def test_a_ring_that_does_not_care_for_the_overruled_is_found_out(
    mutation: type[RingMember], reason: str
) -> None:
    found = [run_scenario(overruled_alive(2), seed, mutation) for seed in DELAYS]
    assert any(failure is not None and reason in failure.reason for failure in found), found
