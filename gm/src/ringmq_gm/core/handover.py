"""Handing the ring to another master as planned: drain, then turn the ring.

While it drains the master takes no new ops. Once every member has received all
of them and the new master has them on disk, the ring is turned (a view with the
same members, in the same order, another one first): all hold the same, so it
doesn't matter who was before whom.

Once the turned view has been proposed, it can't be called off, only decided:

1. A proposes (C, A, B) and the answer is lost. 2. A gives up, and takes op 10.
3. The proposal takes effect after all: C is master, and gives number 10 to
another op. 4. A and B, who have an op 10, take it for a repeat.

So A takes no ops until it knows which view came next; it proposes again until
it does. This costs availability only if the registry goes away in this moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ringmq_gm.core.events import PromotionOutcome
from ringmq_gm.core.frames import Mark
from ringmq_gm.core.views import MemberId, View


@dataclass(slots=True)
class Handover:
    """One that is draining the ring."""

    target: MemberId
    deadline: float


def refusal_of(view: View, target: MemberId) -> PromotionOutcome | None:
    """Why the master of `view` can't hand the ring to `target`; None if it can."""
    if target == view.master:
        return PromotionOutcome.ALREADY_MASTER
    index = view.index_of(target)
    if index is None:
        return PromotionOutcome.NOT_A_MEMBER
    return None if view.members[index].synced else PromotionOutcome.NOT_SYNCHRONISED


def is_drained(marks: Mapping[MemberId, Mark], view: View, target: MemberId, last: int) -> bool:
    """Everybody has received everything, and the old and the new master have it on disk."""
    return (
        len(marks) == len(view.members)
        and all(mark.received == last for mark in marks.values())
        and marks[target].persisted == last
        and marks[view.master].persisted == last
    )
