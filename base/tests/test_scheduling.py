"""Which tests are with which worker: kinds keep to their bounds, and every test is run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from scheduling import KindScheduling, kind_of

WORKERS_MAX = {"cluster": 2, "docker": 1}
MODULES = {"docker:": 5, "cluster:one": 1, "cluster:two": 7, "cluster:three": 3, "cluster:four": 1}
SINGLE = [f"node/tests/test_a.py::test_{number}" for number in range(30)]
TESTS = [
    *(f"m.py::test_{unit}{at}@{unit}" for unit, count in MODULES.items() for at in range(count)),
    *SINGLE,
]


class Worker:
    """A worker that runs its tests in order when it is told to."""

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="worker")
        self.todo: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.todo += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def can_run(self) -> bool:
        # As xdist's: a test begins once the one after it is known.
        return len(self.todo) > 1 or (self.shutting_down and bool(self.todo))


@dataclass
class Settings:
    """As much of pytest's as xdist's scheduler asks."""

    workers: int
    option: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(loadscopereorder=False))

    def getvalue(self, name: str) -> list[str]:
        assert name == "tx"
        return ["popen"] * self.workers


class Run:
    """A run, step by step; `done` has the tests that have ended."""

    def __init__(self, workers: int, tests: Sequence[str] = TESTS) -> None:
        self.tests = [*tests]
        settings: Any = Settings(workers)
        self.scheduling: Any = KindScheduling(settings, None, WORKERS_MAX)
        self.done: list[str] = []
        self.workers = [self.added() for _ in range(workers)]
        self.scheduling.schedule()

    def added(self) -> Worker:
        worker = Worker()
        self.scheduling.add_node(worker)
        self.scheduling.add_node_collection(worker, self.tests)
        return worker

    def step(self, worker: Worker) -> None:
        index = worker.todo.pop(0)
        self.done.append(self.tests[index])
        self.scheduling.mark_test_complete(worker, index)

    def play(self, chance: random.Random) -> None:
        """Until nobody goes on; in any order."""
        while ready := [worker for worker in self.workers if worker.can_run]:
            self.step(chance.choice(ready))
            self.check()
            if self.scheduling.tests_finished:
                # As xdist does it.
                for worker in self.workers:
                    worker.shutdown()

    def crash(self, worker: Worker) -> str | None:
        self.workers.remove(worker)
        crashed: str | None = self.scheduling.remove_node(worker)
        self.workers.append(self.added())
        self.scheduling.schedule()
        return crashed

    def kinds(self) -> Iterator[str]:
        """Of each worker, those of the tests that it has; each once."""
        for worker in self.workers:
            units = {self.tests[index].partition("@")[2] for index in worker.todo}
            yield from {kind_of(unit) for unit in units if unit}

    def check(self) -> None:
        found = [*self.kinds()]
        for kind, workers_max in WORKERS_MAX.items():
            assert found.count(kind) <= workers_max, found


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(20))
def test_kinds_keep_to_their_bounds_and_every_test_is_run(workers: int, seed: int) -> None:
    run = Run(workers)
    run.play(random.Random(seed))
    assert sorted(run.done) == sorted(TESTS)
    assert all(worker.shutting_down for worker in run.workers)


def test_a_module_is_with_one_worker_from_its_first_test_to_its_last() -> None:
    run = Run(5)
    for worker in run.workers:
        for unit, count in MODULES.items():
            mine = [index for index in worker.todo if TESTS[index].endswith(f"@{unit}")]
            assert len(mine) in (0, count)


@pytest.mark.parametrize("seed", range(20))
def test_the_tests_of_a_worker_that_has_crashed_are_run_by_others(seed: int) -> None:
    chance = random.Random(seed)
    run = Run(5)
    for _ in range(chance.randrange(10)):
        run.step(chance.choice([worker for worker in run.workers if worker.can_run]))
    crashed = run.crash(chance.choice([worker for worker in run.workers if worker.todo]))
    assert crashed is not None
    run.play(chance)
    assert {*run.done} == {*TESTS}


def test_a_new_worker_that_has_the_only_lane_of_a_kind_goes_on() -> None:
    """It had one test, and waited for the one after it, which nobody else might have."""
    run = Run(1, [f"m.py::test_{at}@docker:{at}" for at in range(4)])
    run.crash(run.workers[0])
    run.play(random.Random(1))
    assert {*run.done} == {*run.tests}


def test_a_worker_that_nothing_is_left_for_ends_with_the_tests_that_it_has() -> None:
    """It waited with its last test until the lanes of the others had ended."""
    modules = [f"m.py::test_{unit}{at}@docker:{unit}" for unit in range(2) for at in range(9)]
    run = Run(2, [*modules, *SINGLE[:3]])
    other = next(worker for worker in run.workers if len(worker.todo) < 9)
    while other.can_run:
        run.step(other)
    assert {*run.done} == {*SINGLE[:3]}
