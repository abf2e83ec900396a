"""Beginning a ring again: when, from which logs, and who is not waited for.

When no synchronised member of the view is left that could go on, the ring is begun again from the
logs of the candidates (`View.candidates`). That is so when each of them is an earlier life or has
lost its lease; in a view without a quorum it is enough that this member can't reach them, because
they confirm nothing:

1. a and b lose their leases while c is cut from them, 2. c makes itself the whole view, which is
too small to confirm anything, 3. a and b have the registry again, and can't reach c. They hold
everything that was confirmed, are enough, and go on without c.

A member outside the ring asks all other candidates. If a synchronised member of the view answers,
this one joins it instead. Else it waits for all of them, at most `restart_grace_s`, and the one
with the longest whole log among those heard proposes, if enough were heard
(`View.may_begin_again`). An answer counts only if its sender knows the same view: it is outside,
as this member is, and its log can't grow before the next view. A life that still believes an older
view could take ops after its answer, and would bring them into the new ring:

1. b, which doesn't know that it is out, answers that its log ends at 10, 2. b takes op 11 from the
master of the older view, 3. a begins the ring again with b as its equal, and numbers another op 11.

Who is waited for. The time of `restart_grace_s` is for nodes that are being started, as all have
been killed together. A candidate without an answer whose life holds a lease isn't started: it runs,
and is cut off from here. In the case above c was waited for in vain, by every publisher. So in a
view without a quorum, if those who have answered are enough and nobody else could be on the way,
they wait for no more than an answer takes. One of them may reach c, and joins it in that time.
"""

from __future__ import annotations

from collections.abc import Mapping

from ringmq_gm.core.lives import Lives
from ringmq_gm.core.stages import Log
from ringmq_gm.core.views import MemberId, View


def none_can_go_on(view: View, me: MemberId, lives: Lives) -> bool:
    """Whether this node is a candidate, and no synchronised member is known to be there."""
    return me.node in {m.node for m in view.candidates} and all_gone(view, lives)


def all_gone(view: View, lives: Lives) -> bool:
    """Whether no synchronised member could go on, for all that is known here."""
    return all(
        # A view with a quorum may be confirming ops where this member can't see it.
        lives.is_lapsed(m) or (m.node in lives.down and not view.has_quorum)
        for m in view.synced
    )


def heard(view: View, logs: Mapping[MemberId, Log], lives: Lives) -> dict[str, bool]:
    """Which candidates are accounted for, and whether their logs are whole.

    A node that was forgotten counts like one that has answered that its disk is lost. If it answers
    all the same, its answer counts.
    """
    lost = {m.node: False for m in view.candidates if lives.is_forgotten(m.node)}
    return lost | {member_id.node: found.is_whole for member_id, found in logs.items()}


def are_enough(view: View, logs: Mapping[MemberId, Log], lives: Lives) -> bool:
    """Whether nobody else is waited for; see the module."""
    if view.has_quorum:
        return False
    known = heard(view, logs, lives)
    missing = [m for m in view.candidates if m.node not in known]
    return all(map(lives.is_cut_off, missing)) and view.may_begin_again(known)


def begun_again(
    view: View, me: MemberId, logs: Mapping[MemberId, Log], lives: Lives
) -> View | None:
    """The ring begun again from the longest log; None unless that is this member's, and enough are
    heard. To be asked while `none_can_go_on`.

    No synchronised member of the view has answered: it might take ops between its answer and
    the new view, and would bring them in. It may be there all the same, cut off. If the view
    has a quorum, its lease has run out. If not, it has confirmed nothing, and joins again.
    """
    if not view.may_begin_again(heard(view, logs, lives)):
        return None
    order = [member_id.node for member_id in view.candidates]
    whole = {m: found.end for m, found in logs.items() if found.is_whole}
    best = max(whole, key=lambda m: (whole[m], -order.index(m.node)))
    if best != me:
        return None
    end = logs[me].end
    equals = [m for m in whole if whole[m] == end]
    ordered = sorted(equals, key=lambda m: order.index(m.node))
    return view.restarted(me, ordered, (end.epoch, end.number))
