"""The master in one view: numbers ops, confirms them, and decides on the next view.

The confirm rule (`_counted`, `confirm`): an op is confirmed when every member has it that is
synchronised in the view, or would be in a proposal of this master that may yet take effect; and
when the view has `min_insync` synchronised members.

The master alone may propose two kinds of views: a joiner becomes synchronised, and the ring
goes to another master (`handover` has the rules and the danger).
"""

from __future__ import annotations

from collections.abc import Sequence

from ringmq_gm.core.cache import CachedOp
from ringmq_gm.core.events import (
    Effect,
    MinInsyncAsked,
    PromotionEnded,
    PromotionOutcome,
    Refusal,
    RemovalAsked,
    Role,
    Watermarks,
)
from ringmq_gm.core.frames import EpochFrame, Hello, Mark, MarksFrame, OpFrame, Resume, Submit
from ringmq_gm.core.handover import Handover, is_drained, refusal_of
from ringmq_gm.core.held_ops import HeldOps
from ringmq_gm.core.in_view import InView
from ringmq_gm.core.timing import Timing
from ringmq_gm.core.views import MemberId, View


class Master(InView):
    """See the module. `unresolved` are this master's own proposals that may yet take effect."""

    __slots__ = ("_cache_bytes_max", "_timing", "entered_at", "handover", "stable_due")

    def __init__(self, ops: HeldOps, view: View, timing: Timing, cache_bytes_max: int) -> None:
        super().__init__(ops, view, 0, Role.MASTER)
        self._timing = timing
        self._cache_bytes_max = cache_bytes_max
        # The last op that this member had on becoming master. The master before may have
        # confirmed any op up to here without this one having heard of it.
        self.entered_at = ops.last
        # When to say `stable` if no op goes out until then; None if it has been said.
        self.stable_due: float | None = None
        # The hand-over under way; None if there is none.
        self.handover: Handover | None = None

    # --- a trip ---

    def refusal(self) -> Refusal | None:
        """Why no op can be taken now; None if one can."""
        if self.handover is not None:
            return Refusal.DRAINING
        if self.ops.cache.size_bytes >= self._cache_bytes_max:
            return Refusal.FULL
        return None

    def multicast(self, payload: bytes, urgent: bool, unresolved: Sequence[View]) -> list[Effect]:
        op = CachedOp(self.view.epoch, self.ops.last + 1, urgent, payload)
        return self.accept(op) + self.confirm(unresolved)

    def received(
        self, sender: MemberId, frame: EpochFrame, unresolved: Sequence[View], now: float
    ) -> list[Effect]:
        match frame:
            case MarksFrame():
                return self._marks_received(sender, frame, unresolved, now)
            case Resume():
                return self._resume_received(sender, frame)
            case Submit():
                if self.refusal() is None:
                    return self.multicast(frame.payload, frame.urgent, unresolved)
                return []  # A submitted op arrives at most once.
            case OpFrame() | Hello():
                return []  # No member is upstream of a master.

    def _marks_received(
        self, sender: MemberId, frame: MarksFrame, unresolved: Sequence[View], now: float
    ) -> list[Effect]:
        # Only the last member has the marks of all.
        if sender != self.view.ids[-1]:
            return []
        # One for each member after the master. Another count could not be matched with them.
        if len(frame.marks) == len(self.view.members) - 1:
            self.others = frame.marks
        return self.advance(unresolved, now)

    def advance(self, unresolved: Sequence[View], now: float) -> list[Effect]:
        """Marks have changed: drops the copies that all have, and confirms."""
        stable = self._received_by_all()
        if stable is not None:
            self.ops.trim(stable)
        # Not at once: the next op takes it along, and a busy ring needs no frame for it.
        if self.stable_sent < self.ops.stable and self.stable_due is None:
            self.stable_due = now + self._timing.stable_delay_s
        return self.confirm(unresolved)

    def confirm(self, unresolved: Sequence[View]) -> list[Effect]:
        """New watermarks, if all those have the ops that must, before these are confirmed."""
        counted = self._counted(unresolved)
        if counted is None or not self.view.has_quorum:
            return []
        ops = self.ops
        # A joiner that begins to count may be behind: watermarks never fall.
        received = max(min(mark.received for mark in counted), ops.confirmed[0])
        persisted = max(self.persisted_by_all(counted), ops.confirmed[1])
        if (received, persisted) == ops.confirmed:
            return []
        ops.confirmed = (received, persisted)
        return [Watermarks(received, persisted)]

    def persisted_by_all(self, counted: Sequence[Mark]) -> int:
        return min(mark.persisted for mark in counted)

    def _received_by_all(self) -> int | None:
        """Up to where every member, joiners too, has received all; None if that isn't known."""
        if len(self.view.members) == 1:
            return self.ops.last
        return None if self.others is None else min(mark.received for mark in self.others)

    def _counted(self, unresolved: Sequence[View]) -> list[Mark] | None:
        """The marks that a confirm has to wait for; None if some aren't known.

        They are those of every member that is synchronised, or may have become so without this
        master knowing it yet: 1. I propose that C is synchronised, and the answer is lost,
        2. the proposal took effect, 3. I confirm an op that C doesn't have, 4. I die, and C
        becomes master without that op.
        """
        wanted = self.synced_others
        if unresolved:
            counted = {*self.view.synced, *(m for view in unresolved for m in view.synced)}
            wanted = tuple(i for i, m in enumerate(self.view.ids[1:]) if m in counted)
        own = self.ops.mark()
        if not wanted:
            return [own]
        others = self.others
        return None if others is None else [own, *(others[index] for index in wanted)]

    # --- the next view ---

    def next_view(self) -> View | None:
        """The view that this master wants now, which drops nobody; None if it wants none."""
        if self.handover is not None:
            # No joiner is counted meanwhile: that view would end the hand-over.
            target = self.handover.target
            if is_drained(self.marks_known(), self.view, target, self.ops.last):
                return self.view.with_master(target)
            return None
        caught_up = self.joiner_to_count()
        return self.view.with_synced(caught_up) if caught_up is not None else None

    def joiner_to_count(self) -> MemberId | None:
        """A joiner that lacks nothing, and has on disk every op that may have been confirmed:
        by this master, and by the one before it (see `entered_at`)."""
        if len(self.synced_others) == len(self.view.members) - 1:
            return None  # Looked for at every step: the common case is a ring without joiners.
        needed = max(*self.ops.confirmed, self.entered_at)
        for member, mark in zip(self.view.members[1:], self.others or (), strict=False):
            if not member.synced and mark.complete and mark.persisted >= needed:
                return member.id
        return None

    def view_asked(self, asked: RemovalAsked | MinInsyncAsked) -> View | None:
        """The next view as it is asked for; None if it must not be, or not now."""
        match asked:
            case RemovalAsked(target):
                return self._view_without(target)
            case MinInsyncAsked(count):
                return self._view_with_min_insync(count)

    def _view_without(self, target: MemberId) -> View | None:
        """The next view without `target`; None if it must not go, or not now.

        A synchronised member goes only if a quorum is left, or the ring would stop for the sake of
        a change that can wait. No probe comes first: nobody is suspected.
        """
        index = self.view.index_of(target)
        if not index or self.handover is not None:
            return None
        proposal = self.view.without({target})
        if proposal is None or (self.view.members[index].synced and not proposal.has_quorum):
            return None
        return proposal

    def _view_with_min_insync(self, count: int) -> View | None:
        """The next view with another `min_insync`; None if it must not be, or not now.

        It rises only as far as members are synchronised: until then the ring keeps what it has
        promised so far, and goes on.
        """
        if self.handover is not None or count in (0, self.view.min_insync):
            return None
        if self.view.min_insync < count and len(self.view.synced) < count:
            return None
        return self.view.with_min_insync(count)

    def promotion_asked(self, target: MemberId, now: float) -> list[Effect]:
        if self.handover is not None:
            return [PromotionEnded(PromotionOutcome.ANOTHER_UNDER_WAY)]
        refusal = refusal_of(self.view, target)
        if refusal is not None:
            return [PromotionEnded(refusal)]
        self.handover = Handover(target, now + self._timing.drain_s)
        return []

    def handover_ended_by(self, view: View) -> list[Effect]:
        """A new view has come: it is the one that a promotion wanted, or ends it."""
        handover, self.handover = self.handover, None
        if handover is None:
            return []
        if view.master == handover.target:
            return [PromotionEnded(PromotionOutcome.DONE)]
        return [PromotionEnded(PromotionOutcome.RING_CHANGED)]

    def may_be_turned(self, unresolved: Sequence[View]) -> bool:
        """Whether the registry may yet give the ring to another master."""
        return any(proposed.master != self.view.master for proposed in unresolved)

    # --- time ---

    def next_deadline(self) -> float | None:
        handover = None if self.handover is None else self.handover.deadline
        if self.stable_due is None or handover is None:
            return handover if self.stable_due is None else self.stable_due
        return min(self.stable_due, handover)

    def tick(self, unresolved: Sequence[View], now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.stable_due is not None and now >= self.stable_due:
            self.stable_due = None
            effects += self.pass_on()
        if self.handover is not None and now >= self.handover.deadline:
            if self.may_be_turned(unresolved):
                # The registry has been asked and may yet do it: see `handover`.
                self.handover.deadline = now + self._timing.drain_s
            else:
                self.handover = None
                effects.append(PromotionEnded(PromotionOutcome.NOT_DRAINED))
        return effects
