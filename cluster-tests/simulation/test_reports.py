"""Failures that users reported of other mirrored brokers, as scenarios of simulated rings.

docs/scenarios.md has the whole list, with the tests of real processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

import pytest
from faults.vocabulary import Block, Crash, Fault, Promote, RegistryCut, RegistryOutage
from ringsim.simulator.runs import run_scenario
from ringsim.simulator.scenarios import Publish, Scenario

NODES = ("a", "b", "c")
ORDERS = tuple(permutations(NODES))
SEEDS = range(3)
BEGINS_AT = 1.5


def survives(
    faults: Sequence[Fault], *, publish_each_s: float, until: float, seeds: Iterable[int] = SEEDS
) -> None:
    """No rule is broken at any moment, and the ring is whole and confirms after the faults."""
    times = (publish_each_s * turn for turn in range(1, int(until / publish_each_s)))
    publishes = tuple(Publish(at, 1, False) for at in times)
    for seed in seeds:
        failure = run_scenario(Scenario(NODES, 3, 2, publishes, tuple(faults)), seed)
        assert failure is None, failure.reason


@pytest.mark.parametrize("gap_s", [0.0, 1.0, 4.0], ids=lambda gap_s: f"{gap_s:g} s apart")
@pytest.mark.parametrize("order", ORDERS, ids="".join)
def test_cold_start_of_all_in_every_order(order: tuple[str, ...], gap_s: float) -> None:
    """A broker that wants a minimum of synchronised replicas may wait for ever for the others."""
    faults = [Crash(BEGINS_AT, node, 0.5 + gap_s * turn) for turn, node in enumerate(order)]
    survives(faults, publish_each_s=0.2, until=BEGINS_AT + 3 * gap_s + 2.0)


@pytest.mark.parametrize("order", ORDERS, ids="".join)
def test_stopped_one_by_one_and_started_in_the_same_order(order: tuple[str, ...]) -> None:
    """The one that has stopped first lacks what was confirmed since, and is up first."""
    faults = [Crash(BEGINS_AT + 2.0 * turn, node, 8.0) for turn, node in enumerate(order)]
    survives(faults, publish_each_s=0.2, until=BEGINS_AT + 14.0)


@pytest.mark.compute
@pytest.mark.slow
@pytest.mark.parametrize("node", NODES)
def test_stopped_and_started_a_hundred_times_under_load(node: str) -> None:
    """Whatever a member leaves behind when it goes, it must not add up."""
    faults = [Crash(BEGINS_AT + 1.5 * turn, node, 0.4) for turn in range(100)]
    survives(faults, publish_each_s=0.2, until=BEGINS_AT + 150.0, seeds=[0])


@pytest.mark.compute
@pytest.mark.slow
def test_masters_change_fifty_times() -> None:
    """Twenty-five times as an operator wishes, and as often because the master is killed."""
    faults: list[Fault] = []
    for turn in range(25):
        at = BEGINS_AT + 4.0 * turn
        faults.append(Promote(at, NODES[turn % 3]))
        faults.append(Crash(at + 1.5, NODES[turn % 3], 0.3))
    survives(faults, publish_each_s=0.2, until=BEGINS_AT + 100.0)


@pytest.mark.parametrize("node", NODES)
def test_one_that_takes_nothing_does_not_block_the_others(node: str) -> None:
    """Nothing gets to it or away from it, while it keeps its lease; then it comes back."""
    others = tuple(each for each in NODES if each != node)
    survives(
        [Block(BEGINS_AT, (node,), others, both_ways=True, for_s=5.0)],
        publish_each_s=0.1,
        until=BEGINS_AT + 6.0,
    )


@pytest.mark.parametrize("node", NODES)
def test_a_lease_lapses_while_its_node_waits_to_be_synchronised(node: str) -> None:
    """It joins, loses the registry for longer than its lease lasts, and joins again."""
    for after_s in (0.1, 0.2, 0.4, 0.8):
        back_at = BEGINS_AT + 1.0
        survives(
            [Crash(BEGINS_AT, node, 1.0), RegistryCut(back_at + after_s, node, 2.5)],
            publish_each_s=0.1,
            until=back_at + 4.0,
        )


@pytest.mark.parametrize("leases_lapse", [False, True], ids=["leases go on", "leases lapse"])
@pytest.mark.parametrize("node", [None, *NODES], ids=lambda node: f"killed: {node}")
def test_the_registry_restarts(node: str | None, leases_lapse: bool) -> None:
    faults: list[Fault] = [RegistryOutage(BEGINS_AT, 3.0, leases_lapse)]
    if node is not None:
        faults.append(Crash(BEGINS_AT + 1.0, node, 0.5))
    survives(faults, publish_each_s=0.1, until=BEGINS_AT + 5.0)
