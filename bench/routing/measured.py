"""One run of one side at one case, and what a whole run of the benchmark found."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from bench import procs
from bench.measure import SETTLE_S, BenchError, ClientReport, Point
from bench.routing.cases import Case


class Side(Protocol):
    """A started cluster, as a case uses it. `label` is new for each run, and names its queues."""

    @property
    def name(self) -> str: ...

    def broker_pids(self) -> Sequence[int]: ...

    def set_up(self, case: Case, label: str) -> None:
        """Declares and binds; none of it is counted."""
        ...

    def publish(self, case: Case, label: str, point: Point) -> ClientReport:
        """Returns when each message is confirmed by each of its queues."""
        ...

    def depths(self, case: Case, label: str) -> list[int]:
        """The messages in each queue. Raises `BenchError` for a queue that has lost a mirror."""
        ...

    def remove(self, case: Case, label: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Measured:
    side: str
    case: str
    round: int
    rate_per_s: float
    p50_ms: float
    p99_ms: float
    broker_cpu_s_per_million: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(side: Side, case: Case, point: Point, number: int) -> Measured:
    """Raises `BenchError` if a message isn't where the case says that it goes."""
    label = f"r{number}.{case.name.replace(' ', '-').replace(',', '')}"
    side.set_up(case, label)
    before = procs.tree_cpu_s(side.broker_pids())
    report = side.publish(case, label, point)
    # As `bench.measure`: work that is put off until a broker is idle belongs to the messages.
    time.sleep(SETTLE_S)
    cpu_s = procs.tree_cpu_s(side.broker_pids()) - before
    wanted = [point.count] * case.reached + [0] * (case.queues - case.reached)
    found = side.depths(case, label)
    side.remove(case, label)
    if report.acked != point.count or found != wanted:
        raise BenchError(
            f"{side.name}, {case.name}: {report.acked} of {point.count} confirmed; the queues "
            f"have {found} messages, not {wanted}"
        )
    return Measured(
        side=side.name,
        case=case.name,
        round=number,
        rate_per_s=report.rate_per_s,
        p50_ms=report.p50_ms,
        p99_ms=report.p99_ms,
        broker_cpu_s_per_million=cpu_s / point.count * 1e6,
    )
