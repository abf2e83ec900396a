"""How a run went, computed from its history: rates, latencies, and how long nobody was served.

Pure. *Without service* means: no confirm of an application's publisher came, although it had
messages to send all the time. A round counts from its first fault until the cluster is whole
again, and of its queues the one that fared worst.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from history.records import Confirm, Nemesis, Publish, Record, Whole

from chaos.excuses import RoundSeen, Span, allowed_s, served

LIBRARY = "lib-"


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
            case Nemesis(at, _, number, kind):
                if number not in rounds:
                    rounds[number] = RoundSeen(number, kind, at, at, 0.0)
                _note_fault(rounds[number], record)
            case Whole(at, number) if number in rounds:
                rounds[number].whole_at = at
            case _:
                pass
    seen.rounds = list(rounds.values())
    for each in seen.rounds:
        each.whole_at = each.whole_at or seen.ended_at
        for span in each.spans:
            span.ended_at = span.ended_at or seen.ended_at
    return seen


def _note_fault(seen: RoundSeen, record: Nemesis) -> None:
    seen.ended_at = record.at
    if record.begins:
        kind = record.fault.partition("(")[0]
        seen.spans.append(Span(kind, record.fault, record.nodes, record.at))
        return
    for span in seen.spans:
        if span.fault == record.fault and not span.ended_at:
            span.ended_at = record.at
            return


def gaps(
    confirmed_at: Mapping[str, list[float]], parts: Iterable[tuple[float, float]]
) -> Iterator[tuple[float, float]]:
    """The times between two confirms of each queue, within one of these parts of a round. A gap
    that had begun before counts from the part's begin on, and one that goes on up to its end."""
    for began_at, end_at in parts:
        for times in confirmed_at.values():
            inside = times[bisect_left(times, began_at) : bisect_right(times, end_at)]
            yield from pairwise([began_at, *inside, end_at])


def longest_s(found: Iterable[tuple[float, float]]) -> float:
    return max((end - begin for begin, end in found), default=0.0)


@dataclass(frozen=True, slots=True)
class KindFigures:
    """Of the rounds of one kind, in seconds."""

    kind: str
    rounds: int
    without_service_p50_s: float
    without_service_max_s: float
    # The longest part of it in which somebody could have been served (`excuses`).
    judged_max_s: float
    # Whether that was too long in one of the rounds.
    is_too_long: bool
    # From the end of the last fault until all replicas are synchronised again.
    whole_p50_s: float
    whole_max_s: float


def by_kind(seen: Seen) -> list[KindFigures]:
    """The worst first."""
    without: dict[str, list[float]] = defaultdict(list)
    judged: dict[str, list[float]] = defaultdict(list)
    whole: dict[str, list[float]] = defaultdict(list)
    late = {each.kind for each in seen.rounds if late_gaps(seen.confirmed_at, each)}
    for each in seen.rounds:
        everything = [(each.began_at, each.whole_at)]
        without[each.kind].append(longest_s(gaps(seen.confirmed_at, everything)))
        judged[each.kind].append(judged_s(seen.confirmed_at, each))
        whole[each.kind].append(each.whole_at - each.ended_at)
    figures = [
        KindFigures(
            kind, len(without[kind]), median(without[kind]), max(without[kind]), max(judged[kind]),
            kind in late, median(whole[kind]), max(whole[kind]),
        )
        for kind in without
    ]  # fmt: skip
    return sorted(figures, key=lambda each: -each.without_service_max_s)


def too_long(seen: Seen) -> list[str]:
    """The rounds in which nobody was served for longer than there is a reason for."""
    found: list[str] = []
    for each in seen.rounds:
        late = late_gaps(seen.confirmed_at, each)
        if late:
            faults = ", ".join(span.fault for span in each.spans)
            began_at, end_at = max(late, key=lambda gap: gap[1] - gap[0])
            found.append(
                f"round {each.number}, {each.kind}: without service for {end_at - began_at:.1f} s, "
                f"{allowed_s(each, (began_at, end_at)):g} s are allowed: {faults}"
            )
    return found


def judged_s(confirmed_at: Mapping[str, list[float]], each: RoundSeen) -> float:
    """The longest time without a confirm in this round for which there is no excuse."""
    return longest_s(gaps(confirmed_at, served(each)))


def late_gaps(
    confirmed_at: Mapping[str, list[float]], each: RoundSeen
) -> list[tuple[float, float]]:
    """The times without a confirm that are too long."""
    found = gaps(confirmed_at, served(each))
    return [gap for gap in found if gap[1] - gap[0] > allowed_s(each, gap)]


def median(values: list[float]) -> float:
    """The middle one; of an even number the lower."""
    return sorted(values)[(len(values) - 1) // 2]
