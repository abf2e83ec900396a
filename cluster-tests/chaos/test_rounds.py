"""Rounds of faults: the same for a seed, within the guarantees, survived by simulated rings."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from chaos.disks import NoDisksError
from chaos.excuses import REASONS
from chaos.run import Options
from chaos.run import drawn as drawn_for_a_run
from faults.rounds import (
    BIT_FLIPS,
    JOIN,
    KINDS,
    STAYS_AWAY,
    TWO_DISKS,
    Round,
    rounds,
)
from faults.vocabulary import (
    CLIENTS,
    REAL_ONLY,
    SIMULATED_ONLY,
    Block,
    Crash,
    DiskCutUnseen,
    DiskFault,
    DiskLost,
    Fault,
    PowerCut,
    SlowDisk,
    nodes_of,
)
from ringsim.simulator.runs import run_scenario
from ringsim.simulator.scenarios import Publish, Scenario

NODES = ("a", "b", "c")
SPARE = "d"
SEEDS = range(40)


# Every run has all but one of them; the join only once.
DEAL = len(KINDS) - 1


def drawn(seed: int, count: int = 2 * DEAL, kinds: tuple[str, ...] = ()) -> list[Round]:
    return list(islice(rounds(random.Random(seed), NODES, kinds, SPARE), count))


def test_a_seed_gives_the_same_rounds_again() -> None:
    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)


def test_every_kind_comes_before_any_comes_again() -> None:
    for seed in SEEDS:
        found = [each.kind for each in drawn(seed, 4 * DEAL)]
        first = found[: DEAL - 1]
        assert len(set(first)) == len(first)
        assert set(KINDS) - set(found) in ({BIT_FLIPS}, {TWO_DISKS})
        assert found.count(JOIN) == 1
        # Nobody is replaced before there is a node that can take over.
        assert STAYS_AWAY not in found[: found.index(JOIN)]


def test_the_spare_node_suffers_nothing_before_it_has_joined() -> None:
    for seed in SEEDS:
        found = drawn(seed)
        joins = next(place for place, each in enumerate(found) if each.kind == JOIN)
        for each in found[:joins]:
            assert SPARE not in {node for fault in each.faults for node in nodes_of(fault)}
        assert any(SPARE in nodes_of(fault) for each in found[joins:] for fault in each.faults)


def test_without_a_spare_node_nobody_joins() -> None:
    found = list(islice(rounds(random.Random(1), NODES), 3 * DEAL))
    assert not {each.kind for each in found} & {JOIN, STAYS_AWAY}


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {JOIN, STAYS_AWAY}))
def test_a_kind_that_is_named_is_drawn_alone(kind: str) -> None:
    assert {each.kind for each in drawn(1, 5, (kind,))} == {kind}


def lost_disks(found: Iterable[Fault]) -> list[str]:
    return [fault.node for fault in found if isinstance(fault, DiskFault)]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_more_disks_are_lost_than_the_guarantees_allow(seed: int) -> None:
    for each in drawn(seed):
        lost = lost_disks(each.faults)
        if len(lost) > 1:
            # All nodes are killed in one moment, and nothing else happens.
            crashes = [fault for fault in each.faults if isinstance(fault, Crash)]
            others = [f for f in each.faults if not isinstance(f, Crash | DiskLost)]
            assert {crash.node for crash in crashes} >= set(NODES)
            assert {crash.at for crash in crashes} == {0.0}
            assert others == []
            assert len(set(lost)) == len(lost) == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_only_faults_that_a_real_cluster_knows_are_drawn(seed: int) -> None:
    for each in drawn(seed):
        assert not any(isinstance(fault, SIMULATED_ONLY) for fault in each.faults)
        assert each.lasts_s < 45.0


def simulated(each: Round) -> list[Fault]:
    """The faults of a round that the simulator knows, a second later, when its ring has begun."""
    known = (
        fault
        for fault in each.faults
        if not isinstance(fault, REAL_ONLY)
        and not (isinstance(fault, Block) and CLIENTS in (*fault.sources, *fault.targets))
    )
    return [replace(fault, at=fault.at + 1.0) for fault in known]


@pytest.mark.compute
@pytest.mark.slow
def test_simulated_rings_survive_the_same_rounds() -> None:
    """The rounds that real processes suffer, six of each kind."""
    count = 0
    publishes = tuple(Publish(0.25 * turn, 2, False) for turn in range(1, 40))
    for kind in KINDS:
        named = rounds(random.Random(3), NODES, (kind,))
        for seed, each in enumerate(islice(named, 6)):
            found = tuple(simulated(each))
            if found:
                failure = run_scenario(Scenario(NODES, 3, 2, publishes, found), seed)
                assert failure is None, f"{kind}, {each.faults}: {failure and failure.reason}"
                count += 1
    assert count >= 6 * (len(KINDS) - len(REAL_ONLY) - 4)


def test_kinds_without_a_quorum_are_kinds() -> None:
    assert set(REASONS) < set(KINDS)


def test_what_is_simulated_or_real_only_is_no_fault_of_both() -> None:
    assert not set(REAL_ONLY) & set(SIMULATED_ONLY)
    assert not {PowerCut, DiskCutUnseen} & {*REAL_ONLY, *SIMULATED_ONLY}


def options(*kinds: str) -> Options:
    return Options(1, 1.0, Path(), kinds=kinds)


def test_where_no_disk_can_be_frozen_none_is_slow() -> None:
    found = list(islice(drawn_for_a_run(options(), can_freeze=False), 3 * DEAL))
    assert not any(isinstance(fault, SlowDisk) for each in found for fault in each.faults)
    with pytest.raises(NoDisksError, match="hanging disk"):
        next(drawn_for_a_run(options("hanging disk"), can_freeze=False))
    assert next(drawn_for_a_run(options("hanging disk"), can_freeze=True)).kind == "hanging disk"
