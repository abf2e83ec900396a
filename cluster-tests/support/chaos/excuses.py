"""When nobody can be served, whatever the nodes do: which times without service aren't judged.

Of some faults the guarantees say that nothing may be confirmed while they last (docs/guarantees.md,
G1 and G3), for the reason that `REASONS` gives for each kind. These times are left out. What is
left of a time without service, before and after, has to be shorter than `WITHOUT_SERVICE_S_MAX`, or
twice that if two faults harm one node at the same time: one may be found out behind the other.

Pure. A ring has three replicas here, and `min_insync` 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from faults.rounds import TWO_DISKS
from faults.vocabulary import CLIENTS

# The ring time-out of 2 s, a quarter more by jitter, and a second for all that follows.
WITHOUT_SERVICE_S_MAX = 3.5
# A lease of 6 s, and until etcd has noticed. A node whose disk was lost waits for the lease of the
# life before; so do the others, if they need to know that this life is over.
LEASE_OVER_S = 7.0
REPLICAS = 3
# From the start of a process until its replicas are synchronised.
BACK_S = 2.0

ALL_KILLED = (
    "all killed",
    "all killed, a disk lost",
    TWO_DISKS,
    "all killed, a log cut unseen",
    "all killed again and again",
)
ONE_BY_ONE = "one by one, the last disk lost"
LAST_ONE = "the last one cut off"
REGISTRY_AND_KILL = "registry away and a kill"
OVERLAPPING = ("storm", "two at once")
REGISTRY = "registry"

KILLED = frozenset({"Crash"})
# Killed as well, and what comes back may begin no ring: its disk isn't what it had.
UNWHOLE = frozenset({"DiskLost", "DiskRestored", "DiskCutUnseen"})

# As the fault is written, in either direction.
NODE_CUT_FROM_CLIENTS = re.compile(
    rf"sources=\('{CLIENTS}',\), targets=\('(\w+)',\)"
    rf"|sources=\('(\w+)',\), targets=\('{CLIENTS}',\)"
)

# By kind: of which time nobody can be served in, and why. Of all other kinds there is none.
REASONS: Mapping[str, str] = {
    **dict.fromkeys(
        ALL_KILLED, "too few whole logs are up to begin the ring again (decision 0020)"
    ),
    ONE_BY_ONE: "two of three are dead, or the lease of the one with the lost disk still runs",
    LAST_ONE: "one is cut off, and the others reach no registry that would take a view without it",
    REGISTRY_AND_KILL: "one is dead, and no registry is there that would take a view without it",
    **dict.fromkeys(OVERLAPPING, "two are harmed, or one and the registry, or they come back"),
}


@dataclass(slots=True)
class Span:
    """One fault of a round, from its begin to its end as they were."""

    # The name of its class, and all of it to be read.
    kind: str
    fault: str
    nodes: tuple[str, ...]
    began_at: float
    # 0 while it lasts; the end of the history if it never ended.
    ended_at: float = 0.0


@dataclass(slots=True)
class RoundSeen:
    number: int
    kind: str
    began_at: float
    # The last of its faults; and when all was whole again, the end of the history if it never was.
    ended_at: float
    whole_at: float
    spans: list[Span] = field(default_factory=list)


def served(each: RoundSeen) -> list[tuple[float, float]]:
    """The parts of the round in which somebody can be served, in order."""
    found: list[tuple[float, float]] = []
    free_at = each.began_at
    for began_at, ended_at in sorted(excused(each)):
        if began_at > free_at:
            found.append((free_at, min(began_at, each.whole_at)))
        free_at = max(free_at, ended_at)
    if free_at < each.whole_at:
        found.append((free_at, each.whole_at))
    return found


def excused(each: RoundSeen) -> list[tuple[float, float]]:
    """The times of this round in which nobody can be served; they may overlap."""
    began_at, ended_at = each.began_at, each.ended_at
    killed = [span for span in each.spans if span.kind in (KILLED | UNWHOLE)]
    lost = [span for span in each.spans if span.kind == "DiskLost"]
    leases_over_at = max((span.began_at + LEASE_OVER_S for span in lost), default=0.0)
    if each.kind in ALL_KILLED:
        return [(began_at, max(ended_at, leases_over_at))]
    if each.kind == ONE_BY_ONE:
        second_at = sorted(span.began_at for span in killed)[1]
        return [(second_at, max(ended_at, leases_over_at))]
    if each.kind == LAST_ONE:
        return [(began_at, _last_end(each.spans, "RegistryCut"))]
    if each.kind == REGISTRY_AND_KILL:
        return [(began_at, _last_end(each.spans, "RegistryOutage"))]
    if each.kind in OVERLAPPING:
        return list(_overlapping([_until_whole(span, each.spans) for span in each.spans]))
    return []


def allowed_s(each: RoundSeen, gap: tuple[float, float]) -> float:
    """How long this time without service may be, if somebody can be served."""
    if each.kind in OVERLAPPING:
        for one, other in combinations(each.spans, 2):
            began_at = max(gap[0], one.began_at, other.began_at)
            ended_at = min(gap[1], one.ended_at, other.ended_at)
            if (_harmed(one) & _harmed(other)) - {REGISTRY} and began_at < ended_at:
                return 2 * WITHOUT_SERVICE_S_MAX
    return WITHOUT_SERVICE_S_MAX


def _last_end(spans: Iterable[Span], kind: str) -> float:
    return max(span.ended_at for span in spans if span.kind == kind)


def _until_whole(span: Span, spans: Sequence[Span]) -> Span:
    """A node whose disk was lost waits for its lease. One whose disk isn't what it had joins a ring
    that is there: if all members were killed together, it is harmed until the last one is back."""
    if span.kind not in UNWHOLE:
        return span
    if span.kind == "DiskLost":
        span = replace(span, ended_at=max(span.ended_at, span.began_at + LEASE_OVER_S))
    together = [
        other
        for other in spans
        if other.kind in (KILLED | UNWHOLE)
        and other.began_at < span.ended_at + BACK_S
        and span.began_at < other.ended_at + BACK_S
    ]
    if len({node for other in together for node in other.nodes}) < REPLICAS:
        return span
    return replace(span, ended_at=max(other.ended_at for other in together))


def _overlapping(spans: Iterable[Span]) -> Iterator[tuple[float, float]]:
    """The times in which two faults harm more than one node or the registry, and until these are
    back."""
    for one, other in combinations(spans, 2):
        if not _harmed(one) or not _harmed(other) or len(_harmed(one) | _harmed(other)) < 2:
            continue
        began_at = max(one.began_at, other.began_at)
        # A node that was down comes back after its fault has ended.
        ended_at = min(one.ended_at, other.ended_at) + BACK_S
        if began_at < ended_at:
            yield began_at, ended_at


def _harmed(span: Span) -> frozenset[str]:
    """The nodes, or the registry; nobody by a promotion. A node that no client reaches may be
    master all the same, if another one is harmed."""
    if span.kind == "Promote":
        return frozenset()
    cut_off = NODE_CUT_FROM_CLIENTS.search(span.fault)
    if cut_off is not None:
        return frozenset(filter(None, cut_off.groups()))
    return frozenset(span.nodes or (REGISTRY,))
