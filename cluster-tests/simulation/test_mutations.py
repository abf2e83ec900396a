"""The simulator and the explorer catch planted bugs: else their silence would be no evidence."""

from __future__ import annotations

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
from ringsim.planted import BUGS, HARMLESS, SEEDS, Bug, Finding, members
from ringsim.simulator.runs import run_scenario
from ringsim.simulator.scenarios import Latencies, Publish, Scenario

from ringmq_gm.core.cache import Budgets
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.quick import QuickMember

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

JOIN_AND_LOST_DISK = Case(members=1, joiners=1, ops=1, crashes=1, restarts=True, disk_losses=1)
BY_EXPLORER: dict[type[RingMember], Case] = {
    mutations.ForwardsOnlyNewOps: Case(ops=2, crashes=1),
    mutations.AppliesFirstAndForgets: Case(ops=2, crashes=1),
    mutations.ConfirmsAtReceived: Case(ops=2, crashes=1),
    mutations.DropsBeforeStable: Case(ops=2, crashes=1),
    mutations.PromotesTheSecond: Case(ops=2, crashes=1),
    mutations.CountsAJoinerLate: Case(members=2, joiners=1, ops=2, crashes=1),
    mutations.CountsAJoinerTooSoon: Case(members=2, joiners=1, ops=2, crashes=1),
    mutations.BeginsFromADamagedLog: JOIN_AND_LOST_DISK,
    mutations.PromotesAJoiner: JOIN_AND_LOST_DISK,
}
# These look like bugs and are none: the whole case is explored, with a crash in between.
HARMLESS_CASES: dict[type[RingMember], Case] = {
    mutations.AppliesBeforeForwarding: Case(ops=2, crashes=1),
    # No safety rests on it; and whom it has put out begin the ring again, as they are eligible.
    mutations.ProposesUnseen: Case(ops=1, crashes=1, min_insync=2, leases=True),
}
BY_SCENARIO: dict[type[RingMember], Scenario] = {
    mutations.AcceptsStaleEpochs: STALE_MASTER,
    mutations.CallsOffAProposedHandover: LATE_HANDOVER,
    mutations.BeginsAlone: CUT_ONE_FIRST,
    mutations.CountsStaleAnswers: STALE_ANSWERS,
    mutations.GoesOnBehindAGap: LEFT_BEHIND,
}
# Those of queues are looked for in `test_queues`.
RING_BUGS = [bug for bug in BUGS.values() if bug.member is not QuickMember]
STATES_MAX = 60_000
DELAYS = range(150)


def name_of(value: object) -> str:
    return value.__name__ if isinstance(value, type) else ""


@pytest.mark.parametrize("bug", RING_BUGS, ids=lambda bug: bug.name)
@pytest.mark.slow
@pytest.mark.compute
def test_the_simulator_catches(bug: Bug) -> None:
    """One trial; `make evidence` makes ten."""
    assert bug.found_by(range(SEEDS)) is not None


def test_nine_trials_of_ten_are_enough_and_eight_are_not() -> None:
    assert Finding("example", (*(1,) * 9, None)).is_enough
    assert not Finding("example", (*(1,) * 8, None, None)).is_enough


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


@pytest.mark.parametrize(("mutation", "case"), HARMLESS_CASES.items(), ids=name_of)
@pytest.mark.slow
@pytest.mark.compute
def test_the_explorer_finds_nothing(mutation: type[RingMember], case: Case) -> None:
    Explorer(case, mutation).run()


def test_every_planted_bug_is_looked_for() -> None:
    assert set(HARMLESS) == set(HARMLESS_CASES)
    by_seeds = {bug.member for bug in BUGS.values()}
    assert set(members()) == by_seeds.union(BY_SCENARIO, HARMLESS) - {QuickMember}
