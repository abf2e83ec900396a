"""The master in one view: numbers ops, confirms them, and decides on the next view.

The confirm rule (`_counted`, `confirm`): an op is confirmed when every member has it that is
synchronised in the view, or would be in a proposal of this master that may yet take effect; and
when the view has `min_insync` synchronised members.

Copies (`_drop_copies`). An op that one of these members lacks is kept, and counts for
`cache_bytes_max`: above that no op is taken. An op that all of them have is kept for the joiners
that lack it, up to `joiner_bytes_max`. Joiners that need more than that are left behind: the ops
are dropped all the same, and the master puts these joiners out of the ring. So a joiner that takes
nothing, or less than the ring brings, costs its own place and never the publishers' time.

The master alone may propose four kinds of views: a joiner becomes synchronised, joiners that were
left behind are put out, members whose disks hang are (`stalls`), and the ring goes to another
master (`handover` has the rules and the danger).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ringmq_gm.core.cache import Budgets, CachedOp
from ringmq_gm.core.contact import has_contact
from ringmq_gm.core.courting import Courting
from ringmq_gm.core.events import (
    ContactChanged,
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
from ringmq_gm.core.lives import Lives
from ringmq_gm.core.stalls import DiskWatch, look_s
from ringmq_gm.core.timing import Timing
from ringmq_gm.core.views import MemberId, View


class Master(InView):
    """See the module. `unresolved` are this master's own proposals that may yet take effect."""

    __slots__ = (
        "_budgets",
        "_timing",
        "contact_due",
        "courting",
        "disks",
        "entered_at",
        "handover",
        "has_contact",
        "joiner_ids",
        "joiners",
        "left_behind",
        "stable_due",
    )

    def __init__(self, ops: HeldOps, view: View, timing: Timing, budgets: Budgets) -> None:
        super().__init__(ops, view, 0, Role.MASTER)
        self._timing = timing
        self._budgets = budgets
        if len(view.synced) == 1:
            self.others = ()
        self.joiner_ids = view.joiners
        # The marks that joiners have told.
        self.joiners: dict[MemberId, Mark] = {}
        # The joiners that lack ops which nobody keeps for them. They stay so in this view.
        self.left_behind: set[MemberId] = set()
        # The last op that this member had on becoming master. The master before may have
        # confirmed any op up to here without this one having heard of it.
        self.entered_at = ops.last
        # `contact` has the rule. If it doesn't hold any more, the members have until `contact_due`
        # to be heard again.
        self.has_contact = True
        self.contact_due: float | None = None
        self.disks = DiskWatch()
        self.courting = Courting()
        # When to say `stable` and `safe` if no op goes out until then; None if they have been said.
        self.stable_due: float | None = None
        # The hand-over under way; None if there is none.
        self.handover: Handover | None = None

    # --- a trip ---

    def _note_sent(self) -> None:
        super()._note_sent()
        # An op has taken it along: a ring whose ops follow each other needs no tick for it.
        self.stable_due = None

    @property
    def waiting_bytes(self) -> int:
        """Payloads that some synchronised member hasn't received yet."""
        return self.ops.cache.size_bytes - self.ops.cache.held_bytes

    def refusal(self) -> Refusal | None:
        """Why no op can be taken now; None if one can."""
        if not self.has_contact:
            return Refusal.OUT_OF_CONTACT
        if self.handover is not None:
            return Refusal.DRAINING
        if self.waiting_bytes >= self._budgets.cache_bytes_max:
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
        marks, view = frame.marks, self.view
        count = len(view.synced) - 1
        if count and sender == view.synced[-1]:
            # The last synchronised member has the marks of all of them. Another number could not
            # be matched with the members.
            if len(marks) == count:
                self.others = marks
        elif sender in self.joiner_ids and len(marks) == 1:
            self.joiners[sender] = marks[0]
            first = next(self.complete_joiners(), None)
            self.courting.look(first, self._needed(), self._timing, now)
        else:
            return []
        return self.advance(unresolved, now)

    def advance(self, unresolved: Sequence[View], now: float) -> list[Effect]:
        """Marks have changed: drops the copies that nobody needs, and confirms."""
        counted = self._counted(unresolved)
        if counted is not None:
            self._drop_copies(min([mark.received for mark in counted]))
        confirms = self.confirm(unresolved)
        # Not at once: the next op takes it along, and a busy ring needs no frame for it.
        if self.stable_due is None and self.has_to_tell:
            self.stable_due = now + self._timing.stable_delay_s
        return confirms

    def _drop_copies(self, held: int) -> None:
        """Every member that a confirm waits for has received the ops up to `held`."""
        ops, cache = self.ops, self.ops.cache
        cache.hold(held)
        ops.trim(min(held, self._received_by_joiners(held)))
        if cache.held_bytes > self._budgets.joiner_bytes_max:
            # A joiner that may be synchronised already is among those that hold these ops.
            behind = (each for each in self.joiner_ids if self._received_by(each) < held)
            self.left_behind.update(behind)
            ops.trim(min(held, self._received_by_joiners(held)))

    def _received_by_joiners(self, otherwise: int) -> int:
        """How far the joiners are for which copies are kept; `otherwise` if there are none."""
        if not self.joiner_ids:
            return otherwise
        kept_for = (each for each in self.joiner_ids if each not in self.left_behind)
        return min(map(self._received_by, kept_for), default=otherwise)

    def _received_by(self, joiner: MemberId) -> int:
        # A joiner that has told nothing may begin with any op that isn't stable.
        mark = self.joiners.get(joiner)
        return 0 if mark is None else mark.received

    def confirm(self, unresolved: Sequence[View]) -> list[Effect]:
        """New watermarks, if all those have the ops that must, before these are confirmed."""
        counted = self._counted(unresolved)
        if counted is None or not self.view.has_quorum:
            return []
        courted = self.courting.courted
        if courted is not None:
            mark = self.joiners[courted]
            counted.append(Mark(mark.persisted, mark.persisted, mark.complete))
        ops = self.ops
        # A joiner that begins to count may be behind: watermarks never fall.
        received = max(min([mark.received for mark in counted]), ops.confirmed[0])
        persisted = max(self.persisted_by_all(counted), ops.confirmed[1])
        if (received, persisted) == ops.confirmed:
            return []
        ops.confirmed = (received, persisted)
        ops.safe = max(ops.safe, persisted)
        return [Watermarks(received, persisted)]

    def persisted_by_all(self, counted: Sequence[Mark]) -> int:
        return min([mark.persisted for mark in counted])

    def _counted(self, unresolved: Sequence[View]) -> list[Mark] | None:
        """The marks that a confirm has to wait for; None if some aren't known.

        They are those of every member that is synchronised, or may have become so without this
        master knowing it yet: 1. I propose that C is synchronised, and the answer is lost,
        2. the proposal took effect, 3. I confirm an op that C doesn't have, 4. I die, and C
        becomes master without that op.
        """
        others = self.others
        if others is None:
            return None
        counted = [self.ops.mark(), *others]
        if unresolved:
            proposed = {m for view in unresolved for m in view.synced}
            # A joiner was proposed because of a mark that it had told.
            counted += (self.joiners[each] for each in self.joiner_ids if each in proposed)
        return counted

    def marks_known(self) -> dict[MemberId, Mark]:
        return {**super().marks_known(), **self.joiners}

    # --- the next view ---

    def next_view(self) -> View | None:
        """The view that this master wants now, and needs no probe for; None if it wants none."""
        if self.handover is not None:
            # No joiner is counted meanwhile: that view would end the hand-over.
            target = self.handover.target
            if is_drained(self.marks_known(), self.view, target, self.ops.last):
                return self.view.with_master(target)
            return None
        if self.left_behind:
            return self.view.without(self.left_behind)
        if self.stalled_to_drop():
            return None
        caught_up = self.joiner_to_count()
        return self.view.with_synced(caught_up) if caught_up is not None else None

    def stalled_to_drop(self) -> frozenset[MemberId]:
        """The members whose disks hang, if the ring can go on without them. That needs a probe."""
        stalled = self.disks.stalled
        if not stalled or self.handover is not None or self.left_behind:
            return frozenset()
        left = self.view.without(stalled)
        return stalled if left is not None and left.has_quorum else frozenset()

    def joiner_to_count(self) -> MemberId | None:
        """A joiner that lacks nothing, and has on disk every op that may have been confirmed:
        by this master, and by the one before it (see `entered_at`)."""
        if not self.joiners:
            return None  # Looked for at every step: the common case is a ring without joiners.
        needed = self._needed()
        for joiner, mark in self.complete_joiners():
            if mark.persisted >= needed:
                return joiner
        return None

    def _needed(self) -> int:
        return max(*self.ops.confirmed, self.entered_at)

    def complete_joiners(self) -> Iterator[tuple[MemberId, Mark]]:
        """In the order of the ring: a joiner that is counted pushes those before it out."""
        for joiner in self.joiner_ids:
            mark = self.joiners.get(joiner)
            if mark is not None and mark.complete and joiner not in self.left_behind:
                yield joiner, mark

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

    def look_around(self, lives: Lives, timing: Timing, now: float) -> list[Effect]:
        """After each step: watches the disks of the ring if ops wait for them, and says that this
        master has lost contact, or has it again."""
        if self.disks.due is None and self.ops.confirmed[1] < self.ops.last:
            self.disks.due = now + look_s(timing)
        found = has_contact(self.view, lives)
        if found and self.has_contact and self.contact_due is None:
            return []  # Asked at every step, and this is nearly always so.
        if found or not self.has_contact:
            self.contact_due = None
        elif self.contact_due is None:
            self.contact_due = now + self._timing.contact_s
        elif now >= self.contact_due:
            self.contact_due, self.has_contact = None, False
            return [ContactChanged(has_contact=False)]
        if found and not self.has_contact:
            self.has_contact = True
            return [ContactChanged(has_contact=True)]
        return []

    def _look_at_disks(self, now: float) -> None:
        is_waiting = self.ops.confirmed[1] < self.ops.last and self.view.has_quorum
        if not is_waiting or self.others is None:
            self.disks.clear()
        else:
            self.disks.look(self.view, (self.ops.mark(), *self.others), self._timing, now)

    # --- time ---

    def next_deadline(self) -> float | None:
        stable, disks = self.stable_due, self.disks.due
        if self.handover is None and self.contact_due is None and self.courting.due is None:
            # Asked after every step: the common case first.
            if stable is None or disks is None:
                return disks if stable is None else stable
            return min(stable, disks)
        handover = None if self.handover is None else self.handover.deadline
        dues = (stable, disks, self.contact_due, self.courting.due, handover)
        return min((due for due in dues if due is not None), default=None)

    def tick(self, unresolved: Sequence[View], now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.stable_due is not None and now >= self.stable_due:
            self.stable_due = None
            effects += self.pass_on()
        if self.disks.due is not None and now >= self.disks.due:
            self._look_at_disks(now)
        if self.courting.tick(self._timing, now):
            effects += self.confirm(unresolved)
        if self.handover is not None and now >= self.handover.deadline:
            if self.may_be_turned(unresolved):
                # The registry has been asked and may yet do it: see `handover`.
                self.handover.deadline = now + self._timing.drain_s
            else:
                self.handover = None
                effects.append(PromotionEnded(PromotionOutcome.NOT_DRAINED))
        return effects
