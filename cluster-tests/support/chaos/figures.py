"""How a run went, computed from its history: rates, latencies, and how long nobody was served.

Pure. *Without service* means: no confirm of an application's publisher came, although it had
messages to send all the time. A round counts from its first fault until the cluster is whole
again, and of its queues the one that fared worst.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from history.records import Confirm, Nemesis, Publish, Record, Whole

LIBRARY = "lib-"


@dataclass(slots=True)
class RoundSeen:
    number: int
    kind: str
    began_at: float
    # The last of its faults; and when all was whole again, the end of the history if it never was.
    ended_at: float
    whole_at: float
    faults: list[Nemesis] = field(default_factory=list)


@dataclass(slots=True)
class Seen:
    """What the figures and the picture need of a history. Times are as in the history."""

    began_at: float = 0.0
    ended_at: float = 0.0
    # By queue: when confirms came, how many messages each had, and how long they had taken.
    confirmed_at: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    messages: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    latency_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    rounds: list[RoundSeen] = field(default_factory=list)


def look_at(records: Iterable[Record]) -> Seen:
    seen = Seen()
    handed_over: dict[tuple[str, int], float] = {}
    rounds: dict[int, RoundSeen] = {}
    for record in records:
        seen.began_at = seen.began_at or record.at
        seen.ended_at = record.at
        match record:
            case Publish(at, _, tag, first) if tag.startswith(LIBRARY):
                handed_over[(tag, first)] = at
            case Confirm(at, queue, tag, first, last) if tag.startswith(LIBRARY):
                began_at = handed_over.pop((tag, first), at)
                seen.confirmed_at[queue].append(at)
                seen.messages[queue].append(last - first + 1)
                seen.latency_s[queue].append(at - began_at)
            case Nemesis(at, begins, number, kind):
                if number not in rounds:
                    rounds[number] = RoundSeen(number, kind, at, at, 0.0)
                rounds[number].ended_at = at
                if begins:
                    rounds[number].faults.append(record)
            case Whole(at, number) if number in rounds:
                rounds[number].whole_at = at
            case _:
                pass
    seen.rounds = list(rounds.values())
    for each in seen.rounds:
        each.whole_at = each.whole_at or seen.ended_at
    return seen


def longest_gap_s(confirmed_at: Mapping[str, list[float]], began_at: float, end_at: float) -> float:
    """The longest time without a confirm in the queue that fared worst. A gap that had begun
    before counts from `began_at` on, and one that goes on up to `end_at`."""
    longest = 0.0
    for times in confirmed_at.values():
        inside = times[bisect_left(times, began_at) : bisect_right(times, end_at)]
        edges = [began_at, *inside, end_at]
        longest = max(longest, *(after - before for before, after in pairwise(edges)))
    return longest


@dataclass(frozen=True, slots=True)
class KindFigures:
    """Of the rounds of one kind, in seconds."""

    kind: str
    rounds: int
    without_service_p50_s: float
    without_service_max_s: float
    # From the end of the last fault until all replicas are synchronised again.
    whole_p50_s: float
    whole_max_s: float


def by_kind(seen: Seen) -> list[KindFigures]:
    """The worst first."""
    gaps: dict[str, list[float]] = defaultdict(list)
    whole: dict[str, list[float]] = defaultdict(list)
    for each in seen.rounds:
        gaps[each.kind].append(longest_gap_s(seen.confirmed_at, each.began_at, each.whole_at))
        whole[each.kind].append(each.whole_at - each.ended_at)
    figures = [
        KindFigures(
            kind, len(gaps[kind]), median(gaps[kind]), max(gaps[kind]),
            median(whole[kind]), max(whole[kind]),
        )
        for kind in gaps
    ]  # fmt: skip
    return sorted(figures, key=lambda each: -each.without_service_max_s)


def median(values: list[float]) -> float:
    """The middle one; of an even number the lower."""
    return sorted(values)[(len(values) - 1) // 2]
