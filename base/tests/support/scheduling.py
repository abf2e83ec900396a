"""Deals the tests of a run out to its workers: no more tests of one kind at once than may be.

A *unit* is tests that one worker runs, one after the other: those of one `xdist_group`, or a single
test. A unit whose group is `KIND:NAME` is of that kind. A kind may have so many workers at most;
a worker that has a unit of it unfinished goes on with the next one. So the workers that share a
kind end at about the same time, whatever their units take. With units dealt out before the run,
one of them had half as much again as another.

xdist gives a worker its next unit when two tests are left of those that it has.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController


class KindScheduling(LoadGroupScheduling):  # type: ignore[misc] # xdist has no types
    """`workers_max`: of each kind that has a bound."""

    def __init__(
        self, config: pytest.Config, log: Producer | None, workers_max: Mapping[str, int]
    ) -> None:
        super().__init__(config, log)
        self._workers_max = workers_max

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        super().mark_test_complete(node, item_index, duration)
        # xdist counts all units that a worker ever had, at each end of a test.
        units = self.assigned_work[node]
        for unit in [name for name, tests in units.items() if all(tests.values())]:
            del units[unit]

    def _assign_work_unit(self, node: WorkerController) -> None:
        unit = next((unit for unit in self.workqueue if self._may_have(node, unit)), None)
        if unit is None:
            # All that is left is of kinds that others work at, and they will not need this one.
            node.shutdown()
            return
        self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)
        # A worker begins a test once it knows the one after it. If this one waited for that, and
        # what is left were of its kind, nobody would go on.
        if self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)

    def _may_have(self, node: WorkerController, unit: str) -> bool:
        kind = kind_of(unit)
        if kind not in self._workers_max:
            return True
        workers = [each for each, units in self.assigned_work.items() if _has(units, kind)]
        return node in workers or len(workers) < self._workers_max[kind]


def kind_of(unit: str) -> str:
    return unit.partition(":")[0]


def _has(units: Mapping[str, Mapping[str, bool]], kind: str) -> bool:
    return any(kind_of(unit) == kind and not all(tests.values()) for unit, tests in units.items())
