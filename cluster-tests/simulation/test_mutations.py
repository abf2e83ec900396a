"""The simulator and the explorer catch planted bugs: else their silence would be no evidence."""

from __future__ import annotations

from itertools import chain

import pytest
from faults.vocabulary import (
    Block,
    BreakLink,
    Crash,
    DiskCutUnseen,
    Promote,
    RegistryCut,
    RegistryOutage,
    TakesNothing,
)
from ringsim import mutations
from ringsim.explorer.search import Explorer
from ringsim.explorer.states import Case, ExploredError
from ringsim.simulator.runs import failures_of, run_scenario
from ringsim.simulator.scenarios import Latencies, Publish, Scenario

from ringmq_gm.core.cache import Budgets
from ringmq_gm.core.member import RingMember

# The master doesn't learn that it has been put out of the ring, and keeps its links.
STALE_MASTER = Scenario(
    nodes=("a", "b", "c"),
    first_count=3,
    min_insync=2,
    publishes=tuple(Publish(0.3 + 0.02 * at, 1, False) for at in range(60)),
    faults=(RegistryCut(0.25, "a", 3.0), BreakLink(0.4, "a", "b"), BreakLink(0.6, "a", "b")),
)
# A proposal to hand over gets lost on its way, and arrives after all.
LATE_HANDOVER = Scenario(
    nodes=("a", "b", "c"),
    first_count=3,
    min_insync=2,
    publishes=tuple(Publish(0.4 + 0.1 * at, 1, False) for at in range(85)),
    faults=(RegistryOutage(0.45, 5.3, False), Promote(0.5, "b")),
)

# d is cut off, and makes itself the whole view. a knows that. b and c can't see the registry and
# don't; they take another op between their answers to a and the new view. They have a quarter of a
# second for it, until their master finds that it hears too few: so ops come closely spaced.
STALE_ANSWERS = Scenario(
    nodes=("b", "c", "a", "d"),
    first_count=4,
    min_insync=3,
    publishes=tuple(Publish(0.3 + 0.05 * at, 1, False) for at in range(180)),
    faults=(
        RegistryCut(1.0, "b", 7.0),
        RegistryCut(1.0, "c", 7.0),
        RegistryCut(1.0, "a", 2.0),
        Block(1.0, ("d",), ("a", "b", "c"), True, 20.0),
    ),
)
# All are killed. The log of one is cut without anybody noticing, and it is up alone for a while.
CUT_ONE_FIRST = Scenario(
    nodes=("a", "b", "c"),
    first_count=3,
    min_insync=2,
    publishes=tuple(Publish(0.3 + 0.1 * at, 1, False) for at in range(11)),
    faults=(Crash(1.5, "b", 8.0), Crash(1.5, "c", 8.0), DiskCutUnseen(1.5, "a", 0.5, 0.1)),
)
# c is left behind while the registry is away, so that it can't be put out. Then the master dies.
LEFT_BEHIND = Scenario(
    nodes=("a", "b", "c", "d"),
    first_count=4,
    min_insync=2,
    publishes=tuple(Publish(0.3 + 0.05 * at, 1, False) for at in range(120)),
    faults=(
        Crash(0.35, "c", 0.2),
        TakesNothing(0.35, "c", 2.65),
        RegistryOutage(1.5, 1.5, False),
        Crash(2.5, "a", 20.0),
    ),
    latencies=Latencies(fetch_s=0.5),
    budgets=Budgets(joiner_bytes_max=20),
)

BY_SEEDS: dict[type[RingMember], range] = {
    mutations.ForwardsOnlyNewOps: range(50),
    mutations.ConfirmsAtReceived: range(50),
    mutations.DropsBeforeStable: range(50),
    # About one seed in 500 shows it; two of these do. The explorer always does.
    mutations.CountsAJoinerTooSoon: range(100, 700),
    mutations.BeginsFromADamagedLog: range(200),
    mutations.IgnoresTheEligible: range(300),
    mutations.KeepsTheEligible: range(50),
    mutations.PromotesAJoiner: range(600),
    mutations.CountsOneLeftBehind: range(300),
    mutations.TellsNoViews: range(300),
    mutations.BeginsAlone: range(600),
    mutations.PromotesTheSecond: range(600),
    mutations.AcceptsStaleEpochs: range(600),
}
BY_EXPLORER: dict[type[RingMember], Case] = {
    mutations.ForwardsOnlyNewOps: Case(ops=2, crashes=1),
    mutations.AppliesFirstAndForgets: Case(ops=2, crashes=1),
    mutations.ConfirmsAtReceived: Case(ops=2, crashes=1),
    mutations.DropsBeforeStable: Case(ops=2, crashes=1),
    mutations.PromotesTheSecond: Case(ops=2, crashes=1),
    mutations.CountsAJoinerLate: Case(members=2, joiners=1, ops=2, crashes=1),
    mutations.CountsAJoinerTooSoon: Case(members=2, joiners=1, ops=2, crashes=1),
}
# These look like bugs and are none: the whole case is explored, with a crash in between.
HARMLESS: dict[type[RingMember], Case] = {
    mutations.AppliesBeforeForwarding: Case(ops=2, crashes=1),
}
BY_SCENARIO: dict[type[RingMember], Scenario] = {
    mutations.AcceptsStaleEpochs: STALE_MASTER,
    mutations.CallsOffAProposedHandover: LATE_HANDOVER,
    mutations.BeginsAlone: CUT_ONE_FIRST,
    mutations.CountsStaleAnswers: STALE_ANSWERS,
    mutations.GoesOnBehindAGap: LEFT_BEHIND,
}
STATES_MAX = 60_000
DELAYS = range(150)


def name_of(value: object) -> str:
    return value.__name__ if isinstance(value, type) else ""


@pytest.mark.parametrize(("mutation", "seeds"), BY_SEEDS.items(), ids=name_of)
@pytest.mark.slow
def test_the_simulator_catches(mutation: type[RingMember], seeds: range) -> None:
    assert next(failures_of(seeds, mutation), None) is not None


@pytest.mark.parametrize(("mutation", "case"), BY_EXPLORER.items(), ids=name_of)
@pytest.mark.slow
def test_the_explorer_catches(mutation: type[RingMember], case: Case) -> None:
    with pytest.raises(ExploredError):
        Explorer(case, mutation).run(STATES_MAX)


@pytest.mark.parametrize(("mutation", "scenario"), BY_SCENARIO.items(), ids=name_of)
@pytest.mark.slow
def test_a_scenario_catches(mutation: type[RingMember], scenario: Scenario) -> None:
    """With the delays of some seed; and with the same seed the real core shows nothing."""
    for seed in DELAYS:
        if run_scenario(scenario, seed, mutation) is not None:
            assert run_scenario(scenario, seed) is None
            return
    pytest.fail("the planted bug was not seen")


@pytest.mark.parametrize(("mutation", "case"), HARMLESS.items(), ids=name_of)
@pytest.mark.slow
def test_the_explorer_finds_nothing(mutation: type[RingMember], case: Case) -> None:
    Explorer(case, mutation).run()


def test_every_planted_bug_is_looked_for() -> None:
    planted = {
        kind
        for name, kind in vars(mutations).items()
        if isinstance(kind, type) and issubclass(kind, RingMember) and kind is not RingMember
        if not name.startswith("_")
    }
    assert planted == set(chain(BY_SEEDS, BY_EXPLORER, BY_SCENARIO, HARMLESS))
