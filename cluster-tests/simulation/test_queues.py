"""Whole queues in simulated rings: producers and consumers beside every fault of the rings.

The replicas, their masterships, the catching up and the producers' core are the shipped ones.
"""

from __future__ import annotations

import pytest
from ringsim.queues.mutations import QUEUE_BUGS, Planted
from ringsim.simulator.coverage import QUEUE_KINDS
from ringsim.simulator.runs import play, run_seed, world_of

QUICK = range(30)
# Each planted bug is found by one of so many queues at the latest.
SEEDS = range(1000, 1400)


@pytest.mark.slow
def test_producers_and_consumers_of_thirty_queues_see_no_mistake() -> None:
    """What is confirmed is delivered, once and in order; acks that are safe stay so; a producer is
    told no sequence that may be lost; and in the end all replicas are equal."""
    for seed in QUICK:
        failure = run_seed(seed, is_queue=True)
        assert failure is None, failure.reason


@pytest.mark.slow
@pytest.mark.parametrize("planted", QUEUE_BUGS, ids=lambda planted: planted.__name__)
def test_the_simulator_catches(planted: Planted) -> None:
    with planted():
        assert any(run_seed(seed, is_queue=True) is not None for seed in SEEDS)


@pytest.mark.slow
@pytest.mark.compute
def test_the_seeds_reach_what_queues_know() -> None:
    # Two are rare: one run in some hundreds comes to them.
    rare = ("queue: refused: TOO_FEW_SYNCHRONISED", "queue: the end of a log is set aside")
    reached = {kind: 0 for kind in QUEUE_KINDS if kind not in rare}
    for seed in range(120):
        world = world_of(seed, is_queue=True)
        play(world)
        for kind in reached:
            reached[kind] += world.coverage.counts[kind]
    assert all(reached.values()), reached
