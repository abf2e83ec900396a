"""The rules of a planned change of the master: drain the ring, then turn it.

While it drains, the master takes no new ops. Once every synchronised member has received all of
them and the new master has them on disk, the ring is turned: a view with these members in the
same order, beginning with another one. All hold the same then, so it makes no difference which
of them came before which. Joiners aren't waited for, and stay at the end: each of them holds a
part of the same ops, and gets the rest from the member that is before it then.

A turned view that has been proposed can't be called off, only decided:

1. A proposes (C, A, B), and the answer is lost. 2. A gives up, and takes op 10.
3. The proposal takes effect after all: C is master, and gives number 10 to another op.
4. A and B have an op 10, and take the new one for a repeat.

So A takes no ops until it knows the next view, and proposes the turned view again until it
does. This costs availability only if the registry goes away in just this moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ringmq_gm.core.events import PromotionOutcome
from ringmq_gm.core.frames import Mark
from ringmq_gm.core.views import MemberId, View


@dataclass(slots=True)
class Handover:
    """A hand-over that drains the ring. After `deadline` it is called off, if it can be."""

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
    """Whether all synchronised members have received all ops, and the old and the new master have
    them on disk."""
    # A member whose mark isn't known may lack any op, so it counts as not drained.
    return (
        all(member in marks and marks[member].received == last for member in view.synced)
        and marks[target].persisted == last
        and marks[view.master].persisted == last
    )
