"""Medians, spreads, and ratios of runs that stood side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol, TypeVar

from bench.measure import ClientReport, Measurement, Point

Value = Callable[[Measurement], float]


class OfRound(Protocol):
    """A figure, or many, of one round of a run."""

    @property
    def round(self) -> int: ...


R = TypeVar("R", bound=OfRound)


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some runs, with the least and the most."""

    median: float
    least: float
    most: float


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of values that are sorted, and at least one."""
    return ordered[max(math.ceil(percent / 100 * len(ordered)), 1) - 1]


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def select(measurements: Sequence[Measurement], peer: str, point: Point) -> list[Measurement]:
    return [each for each in measurements if each.peer == peer and each.point == point]


def pairs(ours: Sequence[R], theirs: Sequence[R]) -> list[tuple[R, R]]:
    """The two measurements of each round, in the order of `ours`."""
    by_round = {each.round: each for each in theirs}
    return [(each, by_round[each.round]) for each in ours]


def paired_ratio(ours: Sequence[R], theirs: Sequence[R], value: Callable[[R], float]) -> Spread:
    """The ratio ours / theirs, taken in each round first.

    The two runs of a round stand next to each other in time, so that a slow machine slows both:
    the median of ratios is steadier than the ratio of medians.
    """
    return spread([value(one) / value(other) for one, other in pairs(ours, theirs)])


def client_report(
    latencies_s: Sequence[float], *, seconds: float, acked: int, client_cpu_s: float
) -> ClientReport:
    """Of a publisher none of whose messages was refused; `latencies_s` in any order."""
    ordered = sorted(latencies_s)
    return ClientReport(
        seconds=seconds,
        rate_per_s=acked / seconds,
        acked=acked,
        nacked=0,
        client_cpu_s=client_cpu_s,
        p50_ms=percentile(ordered, 50) * 1e3,
        p95_ms=percentile(ordered, 95) * 1e3,
        p99_ms=percentile(ordered, 99) * 1e3,
        max_ms=ordered[-1] * 1e3,
    )


def merged(reports: Sequence[ClientReport]) -> ClientReport:
    """Publishers that have run at the same time, as one.

    Each has its own clock, which starts when it is connected. The slowest one's counts, so that a
    peer gains by this if its publishers didn't start together. Percentiles are the medians of the
    publishers' own.
    """
    seconds = max(each.seconds for each in reports)
    acked = sum(each.acked for each in reports)
    return ClientReport(
        seconds=seconds,
        rate_per_s=acked / seconds,
        acked=acked,
        nacked=sum(each.nacked for each in reports),
        client_cpu_s=sum(each.client_cpu_s for each in reports),
        p50_ms=median(each.p50_ms for each in reports),
        p95_ms=median(each.p95_ms for each in reports),
        p99_ms=median(each.p99_ms for each in reports),
        max_ms=max(each.max_ms for each in reports),
    )
