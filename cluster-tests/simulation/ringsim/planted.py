"""How surely random seeds find each planted bug.

A trial is 3 000 seeds, a third of what CI simulates, and each trial has seeds of its own. No seed
is picked, and no scenario is made for a bug: it counts as found if 9 of 10 trials find it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from faults.vocabulary import RegistryPutBack

from ringmq_gm.core.member import RingMember
from ringmq_gm.core.quick import QuickMember
from ringsim import mutations, rings_mutations
from ringsim.processes import over_all
from ringsim.queues.mutations import QUEUE_BUGS
from ringsim.registry_mutations import REGISTRY_BUGS
from ringsim.rings_mutations import RINGS_BUGS
from ringsim.simulator.runs import failures_of
from ringsim.simulator.scenarios import Scenario, scenario_of

# Of one trial.
SEEDS = 3000
TRIALS = 10
FOUND_MIN = 9

# They look like bugs and are none.
HARMLESS: tuple[type[RingMember], ...] = (
    mutations.AppliesBeforeForwarding,
    mutations.ProposesUnseen,
)
# What seeds find of it is the mistake that it makes besides (`TellsNoViews`): a scenario shows it.
NOT_BY_SEEDS: tuple[type[RingMember], ...] = (mutations.CountsStaleAnswers,)


@dataclass(frozen=True, slots=True)
class Bug:
    """`member` makes the mistake, or the code does within `planted`. Only scenarios that it `needs`
    can show it: no others are played."""

    name: str
    member: type[RingMember] = QuickMember
    planted: Callable[[], AbstractContextManager[object]] = nullcontext
    needs: Callable[[Scenario], bool] | None = None

    def found_by(self, seeds: range) -> int | None:
        """The first of the seeds that shows it."""
        played = filter(self._may_show, seeds)
        with self.planted():
            failure = next(failures_of(played, self.member), None)
        return None if failure is None else failure.seed

    def _may_show(self, seed: int) -> bool:
        return self.needs is None or self.needs(scenario_of(random.Random(seed)))


def members() -> Iterator[type[RingMember]]:
    """Every member of `mutations` and `rings_mutations` that makes a mistake, or seems to."""
    for name, kind in (*vars(mutations).items(), *vars(rings_mutations).items()):
        if name.startswith("_") or not isinstance(kind, type):
            continue
        if issubclass(kind, RingMember) and kind is not RingMember:
            yield kind


def _puts_registry_back(scenario: Scenario) -> bool:
    return any(isinstance(fault, RegistryPutBack) for fault in scenario.faults)


def _has_several_rings(scenario: Scenario) -> bool:
    return scenario.rings > 1


def _bug_of(member: type[RingMember]) -> Bug:
    needs = _has_several_rings if member in RINGS_BUGS else None
    return Bug(member.__name__, member, needs=needs)


BUGS: dict[str, Bug] = {
    bug.name: bug
    for bug in (
        *(_bug_of(kind) for kind in members() if kind not in HARMLESS + NOT_BY_SEEDS),
        *(Bug(planted.__name__, planted=planted) for planted in QUEUE_BUGS),
        *(Bug(each.__name__, planted=each, needs=_puts_registry_back) for each in REGISTRY_BUGS),
    )
}


@dataclass(frozen=True, slots=True)
class Finding:
    """How many seeds each trial took to find the bug; None where it didn't."""

    name: str
    took: tuple[int | None, ...]

    @property
    def found(self) -> int:
        return sum(seeds is not None for seeds in self.took)

    @property
    def is_enough(self) -> bool:
        return self.found * TRIALS >= FOUND_MIN * len(self.took)

    def __str__(self) -> str:
        took = ", ".join("-" if seeds is None else str(seeds) for seeds in self.took)
        return f"{self.found:2} of {len(self.took)}  {self.name}: after {took} seeds"


def try_all(
    names: list[str], *, trials: int = TRIALS, processes: int | None = None
) -> Iterator[Finding]:
    """Each bug in all trials, over all processors; all bugs if none is named."""
    names = names or list(BUGS)
    parts = [(name, trial) for name in names for trial in range(trials)]
    took: dict[str, list[int | None]] = {name: [] for name in names}
    for (name, _), seeds in zip(parts, over_all(_try, parts, processes), strict=True):
        took[name].append(seeds)
        if len(took[name]) == trials:
            yield Finding(name, tuple(took[name]))


def _try(part: tuple[str, int]) -> int | None:
    name, trial = part
    first = trial * SEEDS
    seed = BUGS[name].found_by(range(first, first + SEEDS))
    return None if seed is None else seed - first + 1
