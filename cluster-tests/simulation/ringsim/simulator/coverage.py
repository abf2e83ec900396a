"""What runs have reached: changes of the view and of a member's role, frames of rare kinds, and
pairs of faults that lasted at the same time. A count of 0 shows what seeds don't draw."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from faults.vocabulary import Fault, ends_at

from ringmq_gm.core.events import Role
from ringmq_gm.core.frames import Frame, Gone, ViewAsked, ViewTold, ViewWanted
from ringmq_gm.core.views import View

RARE = (Gone, ViewAsked, ViewTold, ViewWanted)
# Every change of a view that the rules know.
CHANGES = (
    "view: a mirror leaves",
    "view: the master leaves",
    "view: a joiner leaves",
    "view: one joins",
    "view: one is synchronised",
    "view: handed over",
    "view: begun again",
    "view: begun with a loss",
    "view: another min_insync",
    "view: too small to confirm",
    "view: large enough again",
)
# A registry that is put back to a copy: whether that was noticed, by whom, and what was left out of
# the run because nothing would have shown it.
REGISTRY_KINDS = (
    "registry: put back",
    "registry: not put back, as one process would not see it",
    "registry: a look is refused",
    "registry: a start is refused",
    "registry: a start is left out",
    "registry: confirmed meanwhile",
)
# Of an accepted loss (`overruled`).
OVERRULED_CONFIRMS = "loss: an overruled master confirms an op"
OVERRULED_HEARS = "loss: an overruled master hears of it"
# Of nodes with several rings.
RINGS_KINDS = ("rings: runs", "rings: the node's budget holds a publish")
# Not in runs of queues, whose masters wait for room.
CACHE_FULL = "ring: a full cache takes no op"
# What a queue's clients have met.
QUEUE_KINDS = (
    "queue: delivered",
    "queue: redelivered",
    "queue: a producer's program dies",
    "queue: producers forgotten",
    "queue: a producer is told that it is forgotten",
    "queue: refused: TOO_FEW_SYNCHRONISED",
    "queue: refused: DRAINING",
    "queue: a joiner's log has parted from the ring's",
    "queue: bodies are fetched",
    "queue: the end of a log is set aside",
)
# Said though it is 0.
ALWAYS_SAID = (
    *(*CHANGES, CACHE_FULL, *REGISTRY_KINDS),
    *(OVERRULED_CONFIRMS, OVERRULED_HEARS, *RINGS_KINDS, *QUEUE_KINDS),
)


class Coverage:
    """Of one run. `counts` can be added up over many."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(ALWAYS_SAID, 0))
        self._roles: dict[object, Role] = {}
        for fault in faults:
            self.counts[f"fault: {type(fault).__name__}"] += 1
        for one, two in combinations(sorted(faults, key=lambda fault: fault.at), 2):
            if two.at <= ends_at(one):
                pair = sorted((type(one).__name__, type(two).__name__))
                self.counts[f"faults at once: {' + '.join(pair)}"] += 1

    def role_changed(self, member: object, role: Role) -> None:
        before = self._roles.get(member, Role.OUTSIDE)
        self._roles[member] = role
        if before is not role:
            self.counts[f"role: {before.value} -> {role.value}"] += 1

    def sent(self, frame: Frame) -> None:
        if isinstance(frame, RARE):
            self.counts[f"frame: {type(frame).__name__}"] += 1

    def view_set(self, before: View, view: View) -> None:
        for kind in _kinds(before, view):
            self.counts[f"view: {kind}"] += 1


def _kinds(before: View, view: View) -> list[str]:
    """A view may change in several ways at once."""
    if view.own_loss is not None:
        return ["begun with a loss"]
    if not set(view.synced) <= set(before.ids):
        return ["begun again"]
    kinds: list[str] = []
    gone = set(before.ids) - set(view.ids)
    if before.master in gone:
        kinds.append("the master leaves")
    elif view.master != before.master:
        kinds.append("handed over")
    if gone & set(before.synced[1:]):
        kinds.append("a mirror leaves")
    if gone & set(before.joiners):
        kinds.append("a joiner leaves")
    if set(view.ids) - set(before.ids):
        kinds.append("one joins")
    if set(view.synced) - set(before.synced):
        kinds.append("one is synchronised")
    if view.min_insync != before.min_insync:
        kinds.append("another min_insync")
    if view.has_quorum != before.has_quorum:
        kinds.append("large enough again" if view.has_quorum else "too small to confirm")
    return kinds
