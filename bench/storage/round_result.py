"""The result of one round of one variant: figures by name, and series for the plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bench.storage.observations import Observations

OURS = "ringmq"
# As many points of a series as a plot can show.
POINTS_MAX = 400
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RoundResult:
    """`samples` are (s, phase, resident bytes, disk bytes), `progress` (s, phase, messages,
    live body bytes or 0). Seconds count from the first `begin`."""

    case: str
    variant: str
    round: int
    figures: dict[str, float]
    samples: list[tuple[float, str, int, int]] = field(default_factory=list)
    progress: list[tuple[float, str, int, int]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "case": self.case,
            "variant": self.variant,
            "round": self.round,
            "figures": self.figures,
            "samples": [[round(row[0], 3), *row[1:]] for row in thinned(self.samples)],
            "progress": [[round(row[0], 3), *row[1:]] for row in thinned(self.progress)],
        }


def thinned(rows: Sequence[T], points_max: int = POINTS_MAX) -> list[T]:
    """Every n-th row, so that at most `points_max` are left, and the last row."""
    step = -(-len(rows) // points_max) or 1
    kept = [*rows[::step]]
    if rows and (len(rows) - 1) % step:
        kept.append(rows[-1])
    return kept


def round_result(
    case: str, variant: str, round_number: int, observed: Observations, figures: dict[str, float]
) -> RoundResult:
    start = observed.events[0].at_s
    return RoundResult(
        case,
        variant,
        round_number,
        figures,
        samples=[
            (each.at_s - start, each.phase, each.rss_bytes, each.disk_bytes)
            for each in observed.samples
            if each.at_s >= start
        ],
        progress=[
            (each.at_s - start, each.phase, each.done, int(each.figures.get("live_bytes", 0)))
            for each in observed.events
            if each.event != "result"
        ],
    )
