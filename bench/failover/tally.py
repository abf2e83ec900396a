"""What a failover run says of itself. Pure.

The *gap* of a fault is the longest time without a confirm from the fault until the cluster is whole
again. A message is *lost* if it was confirmed and isn't in the queue when that is drained;
*duplicated* copies are those beyond the first, whether or not the message was confirmed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise

from bench.stats import percentile


def longest_gap_s(confirmed_at: Sequence[float], began_at: float, ended_at: float) -> float:
    """The longest time without a confirm between two moments, which bound it. `confirmed_at` is in
    order."""
    inside = confirmed_at[
        bisect_left(confirmed_at, began_at) : bisect_right(confirmed_at, ended_at)
    ]
    return max(after - before for before, after in pairwise([began_at, *inside, ended_at]))


@dataclass(frozen=True, slots=True)
class Contents:
    """A drained queue against what its publisher knows."""

    confirmed: int
    lost: int
    duplicated: int


def contents(confirmed: AbstractSet[int], drained: Iterable[int]) -> Contents:
    copies = Counter(drained)
    return Contents(
        confirmed=len(confirmed),
        lost=len(confirmed - copies.keys()),
        duplicated=sum(copies.values()) - len(copies),
    )


@dataclass(frozen=True, slots=True)
class FaultSeen:
    """One fault of the master of one system's queue. `whole_s` is from the end of the fault (the
    restart, the healing) until all replicas are synchronised."""

    system: str
    fault: str
    number: int
    gap_s: float
    whole_s: float
    # False: no confirm of a message published after the fault came before the limit.
    served_again: bool
    found: Contents


@dataclass(frozen=True, slots=True)
class FaultFigures:
    """Of all faults of one kind of one system, in seconds and messages."""

    system: str
    fault: str
    faults: int
    gap_p50_s: float
    gap_max_s: float
    whole_p50_s: float
    confirmed: int
    lost: int
    duplicated: int


def figures(seen: Sequence[FaultSeen]) -> list[FaultFigures]:
    """A row for each kind of fault and system, in the order in which they first came."""
    rows = []
    for fault in dict.fromkeys(each.fault for each in seen):
        for system in dict.fromkeys(each.system for each in seen):
            group = [each for each in seen if (each.system, each.fault) == (system, fault)]
            if group:
                gaps = sorted(each.gap_s for each in group)
                rows.append(
                    FaultFigures(
                        system=system,
                        fault=fault,
                        faults=len(group),
                        gap_p50_s=percentile(gaps, 50),
                        gap_max_s=gaps[-1],
                        whole_p50_s=percentile(sorted(each.whole_s for each in group), 50),
                        confirmed=sum(each.found.confirmed for each in group),
                        lost=sum(each.found.lost for each in group),
                        duplicated=sum(each.found.duplicated for each in group),
                    )
                )
    return rows


@dataclass(frozen=True, slots=True)
class CatchUpSeen:
    """A mirror that lacked `missed` of `messages` and came back.

    `received_bytes` are all bytes that its link took in from its start until it was synchronised;
    `published_bytes` of them at least are bodies published meanwhile. `gap_s` is the longest time
    without a confirm of the publisher meanwhile.
    """

    system: str
    messages: int
    missed: int
    size_bytes: int
    received_bytes: int
    published_bytes: int
    synchronised_s: float
    gap_s: float
