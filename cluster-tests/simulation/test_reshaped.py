"""Rings whose members are removed and whose `min_insync` changes, while others fail.

Three nodes and `min_insync` 2. The simulated members all want to be in the ring, so one that was
removed joins again and catches up.
"""

from __future__ import annotations

import itertools

import pytest
from faults.vocabulary import (
    Block,
    Crash,
    DiskLost,
    Fault,
    PowerCut,
    RegistryFlaky,
    RegistryOutage,
    Remove,
    SetMinInsync,
    SlowDisk,
)
from ringsim.simulator.runs import run_scenario
from ringsim.simulator.scenarios import Publish, Scenario

SEEDS = range(3)
# After the change was asked for: before the registry has it, before all have heard, and later.
SOON_S = (0.0, 0.01, 0.03, 0.3)

CHANGES: dict[str, tuple[Fault, ...]] = {
    "mirror removed": (Remove(1.0, "b"),),
    "last removed": (Remove(1.0, "c"),),
    "both removed": (Remove(1.0, "b"), Remove(1.01, "c"), Remove(1.4, "c")),
    "all have to have it": (SetMinInsync(1.0, 3),),
    "one is enough, then two": (SetMinInsync(0.8, 1), Remove(0.9, "b"), SetMinInsync(1.0, 2)),
}


def fails(at: float) -> list[Fault]:
    return [
        Crash(at, "a", 2.0),
        Crash(at, "b", 2.0),
        DiskLost(at, "c", 1.0),
        PowerCut(at, 1.0),
        Block(at, ("a",), ("b", "c"), both_ways=True, for_s=3.0),
        RegistryFlaky(at, 0.5),
        RegistryOutage(at, 2.0, leases_lapse=True),
        SlowDisk(at - 0.2, "c", 0.3, 1.0),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_lost_and_the_ring_comes_back(change: str) -> None:
    publishes = tuple(Publish(0.3 + 0.1 * at, 1, False) for at in range(14))
    for soon_s, index in itertools.product(SOON_S, range(len(fails(1.0)))):
        faults = (*CHANGES[change], fails(1.0 + soon_s)[index])
        told = Scenario(("a", "b", "c"), 3, 2, publishes, faults)
        for seed in SEEDS:
            assert run_scenario(told, seed) is None, (change, faults, seed)
