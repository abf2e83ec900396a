"""Beginning the ring with a loss, as an operator decides.

If the candidates that have their logs are gone for good, an operator decides (`LossAccepted`) that
the ring goes on from the log of this member, candidate or not. The candidates are asked all the
same (`changes`): the decision is refused if the ring can begin again by itself, or if one that
answers has a longer whole log. The operator may not know that they are up again.

The decision names the end of this log, and the view records it. Until the decision can't take
effect any more (`ViewChanger.loss_is_open`) the log must keep that end: a joiner takes no ops
(`Mirror.hold`), and its application installs no state. Else the ring would number on from an op
that isn't there:

1. d joins, and fetches the master's state, 2. the master dies for good, 3. an operator accepts the
loss at d, whose log ends at 26, 4. d takes the state that was on its way, which ends at 19, 5. the
view says 26.

If the registry didn't answer, a joiner asks to be put out of the view: whatever the next epoch is,
it is the answer.

The overruled members have lost their leases, and don't answer. Whether they have died nobody can
tell: cut from the registry and from this member, they confirm on in their own epoch, as every ring
does while the registry is away. So they are told the new view as soon as a link lets it through
(`told`, and with each link that comes up).
"""

from __future__ import annotations

from collections.abc import Mapping

from ringmq_gm.core.events import Effect, LossAccepted, LossOutcome
from ringmq_gm.core.held_ops import LogEnd
from ringmq_gm.core.lives import Lives
from ringmq_gm.core.stages import Log
from ringmq_gm.core.telling import told_to_overruled
from ringmq_gm.core.views import AcceptedLoss, MemberId, View


def refusal(
    asked: LossAccepted, view: View, me: MemberId, logs: Mapping[MemberId, Log]
) -> LossOutcome | None:
    """Why one of these logs should rather be gone on with; None if it need not."""
    candidates = {member_id.node for member_id in view.candidates}
    end = LogEnd(asked.log_epoch, asked.log_number)
    for member_id, found in logs.items():
        # A candidate with a whole log has everything that was confirmed.
        is_candidate = member_id != me and member_id.node in candidates
        if is_candidate and found.is_whole and found.end > end:
            return LossOutcome.LONGER_LOG
    return None


def begun_with(asked: LossAccepted, view: View, me: MemberId) -> View:
    """The next view, which is `me` alone, and keeps a record of the decision."""
    loss = AcceptedLoss(
        epoch=view.epoch + 1,
        member=me,
        log_epoch=asked.log_epoch,
        log_number=asked.log_number,
        position=asked.position,
        overruled=tuple(m for m in view.candidates if m.node != me.node),
        operator=asked.operator,
        at_ms=asked.at_ms,
    )
    return view.begun_with_loss(loss)


def outcome_in(view: View | None, me: MemberId) -> LossOutcome:
    """What the next view says about a decision that waited. None: the ring is deleted."""
    if view is None:
        return LossOutcome.RING_DELETED
    loss = view.own_loss
    is_mine = loss is not None and loss.member == me
    return LossOutcome.DONE if is_mine else LossOutcome.RING_CHANGED


def told(ring: str, view: View | None, me: MemberId, lives: Lives) -> list[Effect]:
    """`me` enters a view, and tells the lives that were overruled in it or before, unless they are
    over. The link to them may have been up all the time: then no new one gives the occasion."""
    if view is None or me not in view.ids:
        return []
    return told_to_overruled(ring, view, (m for m in view.overruled if not lives.is_over(m)))
