"""One member of a ring, as a state machine without I/O.

What it guarantees, as long as its caller carries out the effects in order:

* Every op that the master multicasts gets the next number, over all epochs
  without a gap, and every member delivers the ops in that order, each once.
* `Watermarks(received, persisted)` says of an op that every synchronised member
  holds it (on disk), and at least `min_insync` of them. Any later master has
  delivered it, whichever members die.
* A member that isn't in the newest view that it knows serves nobody, and frames
  of an older epoch are refused. Two masters can't both get watermarks, because
  each would need the same members to accept its epoch.
* What it keeps is bounded: `cache_bytes_max` of ops that aren't stable.

What it doesn't: agree on the view (the registry does), move bytes (the links
do), keep ops over a restart (the application does, and says how far it is).

A trip. The master numbers an op, delivers it to itself and sends it downstream;
it keeps a copy. A mirror forwards, then delivers. Each frame carries the marks
(received, persisted) of the members that it has passed, so the last member knows
all of them and sends them to the master: the op's own bytes need not come back.
The master sends `stable` with whatever goes next; up to there all drop their
copies. This is the ack that returns to the origin (compare RabbitMQ's gm.erl,
whose acks drop "as many as" and not "up to").

A link that has been opened anew, or a new view, begins with a handshake: Hello
downstream, Resume with the last number upstream, and then what comes after, from
the cache. A member that dies is left out; its upstream shakes hands with the
next one. That is all that re-forwarding is. In a new epoch the handshakes go
around the ring, from the master on: whoever has been greeted knows that all
before it, and the master, are in the epoch and will take its frames.

The parts: `place` is what a member knows within one epoch, and the rule of what
may be confirmed; `cache` is what it can send again; `changes` brings about new
views; `handover` is the planned change of the master.

Invariants (`check`): the cache holds exactly the ops from `stable` + 1 to
`last`; marks never fall within an epoch; confirmed <= `last`; only the member
that comes first in the view originates, and only one in the view has a place.

docs/ring.md tells the whole protocol, with what the links, the application and the
registry have to keep for all this to hold.
"""

from __future__ import annotations

from typing import assert_never

from ringmq_gm.core.cache import CachedOp, OpCache
from ringmq_gm.core.chance import Chance
from ringmq_gm.core.changes import LogEnd, Stage, Timing, ViewChanger
from ringmq_gm.core.events import (
    CaughtUp,
    Deliver,
    Effect,
    Event,
    LeasesLearned,
    LinkDown,
    LinkUp,
    MembershipWanted,
    Multicast,
    PeerStalled,
    Persisted,
    PromotionAsked,
    PromotionEnded,
    PromotionOutcome,
    ProposalEnded,
    ProposalOutcome,
    Received,
    RefreshView,
    Refusal,
    RingDeleted,
    Role,
    RoleChanged,
    Send,
    StartCatchUp,
    Tick,
    ViewLearned,
    Watermarks,
)
from ringmq_gm.core.frames import (
    Frame,
    Hello,
    Mark,
    MarksFrame,
    OpFrame,
    Ping,
    Pong,
    Resume,
    Stale,
    Submit,
)
from ringmq_gm.core.handover import Handover, is_drained, refusal_of
from ringmq_gm.core.place import Place, Progress
from ringmq_gm.core.views import MemberId, View

CACHE_BYTES_MAX = 64 * 1024 * 1024


class RingMember:
    """See the module. Create it with what the application has on disk (`log`).

    With a damaged log (`log_is_whole` false) it may join, but not begin a ring again.
    """

    def __init__(
        self,
        me: MemberId,
        ring: str,
        log: LogEnd,
        *,
        log_is_whole: bool = True,
        chance: Chance,
        timing: Timing | None = None,
        cache_bytes_max: int = CACHE_BYTES_MAX,
    ) -> None:
        self.me = me
        self.ring = ring
        self.view: View | None = None
        self.role = Role.OUTSIDE
        self.progress = Progress(log.number, log.epoch, log.number)
        self.cache = OpCache(log.number)
        self._timing = timing or Timing()
        self._cache_bytes_max = cache_bytes_max
        self._log_is_whole = log_is_whole
        self._changer = ViewChanger(me, ring, self._timing, chance)
        # None outside the ring.
        self._place: Place | None = None
        # A Hello of an epoch that I haven't heard of yet; the one of the highest epoch.
        self._early_hello: tuple[MemberId, Hello] | None = None
        self._handover: Handover | None = None
        self._stable_due: float | None = None
        self._wanted = False
        self._is_deleted = False
        # Just joined: where I begin is said by the first Hello.
        self._starts_here = False

    # --- what the application may ask ---

    def refusal(self) -> Refusal | None:
        """Why a `Multicast` can't be taken now; None if it can."""
        if self.role is not Role.MASTER:
            return Refusal.NOT_MASTER
        if self._handover is not None:
            return Refusal.DRAINING
        if self.cache.size_bytes >= self._cache_bytes_max:
            return Refusal.FULL
        return None

    @property
    def has_quorum(self) -> bool:
        """Whether enough members are synchronised for anything to be confirmed."""
        return self.view is not None and len(self.view.synced) >= self.view.min_insync

    @property
    def awaits_start(self) -> bool:
        """Has just joined, and not yet been told after which op it begins."""
        return self._starts_here

    def marks(self) -> dict[MemberId, Mark]:
        """How far each member is, as far as this one knows."""
        if self._place is None:
            return {}
        known = {self.me: self.progress.mark()}
        known.update(zip(self._place.view.ids[1:], self._place.others or (), strict=False))
        return known

    def next_deadline(self) -> float | None:
        """When to send a Tick, at the latest."""
        handover = self._handover.deadline if self._handover else None
        due = (self._changer.next_deadline(), self._stable_due, handover)
        return min((at for at in due if at is not None), default=None)

    def check(self) -> None:
        """The invariants, for tests and simulations."""
        self.cache.check()
        progress = self.progress
        assert self.cache.stable + len(self.cache) == progress.last
        assert max(progress.confirmed) <= progress.last
        assert (self._place is None) == (self.role is Role.OUTSIDE)
        if self._place is not None:
            assert self._place.view is self.view
            assert (self._place.index == 0) == (self.role is Role.MASTER)
            assert progress.complete or self.role is Role.JOINER
        assert self._handover is None or self.role is Role.MASTER

    # --- the one entrance ---

    def step(self, event: Event, *, now: float) -> list[Effect]:
        """Takes one event; returns what is to be done, in order."""
        if self._is_deleted:
            return []
        effects = self._handle(event, now)
        effects += self._seek_change(now)
        return effects

    def _handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received(envelope):
                return self._received(envelope.sender, envelope.frame, now)
            case Multicast(payload, urgent):
                return self._multicast(payload, urgent)
            case Persisted(number):
                return self._persisted(number, now)
            case ViewLearned(view):
                return self._view_learned(view, now)
            case LinkUp(node):
                return self._link_up(node)
            case LinkDown(node):
                self._changer.known.down.add(node)
                self._changer.situation_changed()
                return []
            case PeerStalled(node):
                return self._peer_stalled(node)
            case LeasesLearned(alive):
                return self._leases_learned(alive)
            case CaughtUp(persisted):
                return self._caught_up(persisted)
            case MembershipWanted(wanted):
                self._wanted = wanted
                return []
            case PromotionAsked(target):
                return self._promotion_asked(target, now)
            case ProposalEnded(view, outcome):
                return self._proposal_ended(view, outcome, now)
            case Tick():
                return self._tick(now)
            case _:
                assert_never(event)

    # --- a trip ---

    def _multicast(self, payload: bytes, urgent: bool) -> list[Effect]:
        assert self.refusal() is None, self.refusal()
        place = self._place
        assert place is not None
        op = CachedOp(place.view.epoch, self.progress.last + 1, urgent, payload)
        return self._accept(place, op) + self._confirm(place)

    def _accept(self, place: Place, op: CachedOp) -> list[Effect]:
        """Takes the next op: keep it, pass it on, then deliver it."""
        assert op.number == self.progress.last + 1, (op.number, self.progress.last)
        self.cache.append(op)
        self.progress.last = op.number
        self.progress.last_epoch = op.epoch
        if op.urgent:
            self.progress.urgent = op.number
        effects = self._forward(place, op)
        effects.append(Deliver(op.number, op.epoch, op.payload))
        return effects

    def _forward(self, place: Place, op: CachedOp) -> list[Effect]:
        if place.downstream is None or not place.downstream_ready:
            return []
        marks = place.to_send(self.progress.mark()) or ()
        place.marks_sent(marks)
        place.stable_sent = self.cache.stable
        frame = OpFrame(
            self.ring,
            place.view.epoch,
            self.cache.stable,
            op.epoch,
            op.number,
            op.urgent,
            marks,
            op.payload,
        )
        return [Send(place.downstream.node, frame)]

    def _op_received(self, place: Place, sender: MemberId, frame: OpFrame) -> list[Effect]:
        if sender != place.upstream or not place.is_greeted:
            return []
        if frame.number > self.progress.last + 1:
            # Something between was lost: ask for it again.
            if place.gap_at == self.progress.last:
                return []
            place.gap_at = self.progress.last
            return [Send(sender.node, self._resume(place))]
        place.take(frame.marks)
        self.cache.trim(self._trim_to(frame.stable))
        effects: list[Effect] = []
        if frame.number == self.progress.last + 1:
            op = CachedOp(frame.op_epoch, frame.number, frame.urgent, frame.payload)
            effects += self._accept(place, op)
        return effects + self._pass_on(place)

    def _marks_received(
        self, place: Place, sender: MemberId, frame: MarksFrame, now: float
    ) -> list[Effect]:
        if self.role is Role.MASTER:
            if sender != place.view.ids[-1]:
                return []
            place.take(frame.marks)
            return self._advance(place, now)
        if sender != place.upstream or not place.is_greeted:
            return []
        place.take(frame.marks)
        self.cache.trim(self._trim_to(frame.stable))
        return self._pass_on(place)

    def _trim_to(self, stable: int) -> int:
        """How far copies may be dropped when the ring says that it is stable up to `stable`."""
        return min(stable, self.progress.last)

    def _persisted(self, number: int, now: float) -> list[Effect]:
        progress = self.progress
        if number <= progress.on_disk or not progress.complete:
            return []
        progress.on_disk = number
        place = self._place
        if place is None:
            return []
        return self._advance(place, now) if place.index == 0 else self._send_marks(place)

    def _caught_up(self, persisted: int) -> list[Effect]:
        place = self._place
        if place is None or self.role is not Role.JOINER or self._starts_here:
            return []  # of a joining that has been overtaken
        self.progress.complete = True
        self.progress.on_disk = persisted
        return self._send_marks(place, due=True)

    # --- marks and watermarks ---

    def _send_marks(self, place: Place, *, due: bool = False) -> list[Effect]:
        """Sends the marks on, the last member to the master, if they tell anything new."""
        place.marks_due |= due
        target = place.downstream
        if place.index == 0 or not place.is_greeted:
            return []
        if target is not None and not place.downstream_ready:
            return []
        marks = place.to_send(self.progress.mark())
        if marks is None or place.news_in(marks, self.progress.urgent) is None:
            return []
        place.marks_sent(marks)
        frame = MarksFrame(self.ring, place.view.epoch, self.cache.stable, marks)
        if target is None:
            return [Send(place.view.master.node, frame)]
        place.stable_sent = self.cache.stable
        return [Send(target.node, frame)]

    def _pass_on(self, place: Place) -> list[Effect]:
        """Sends downstream what news there is: marks, or only how far the ring is stable."""
        effects = self._send_marks(place)
        if place.stable_sent < self.cache.stable:
            effects += self._send_stable(place)
        return effects

    def _send_stable(self, place: Place) -> list[Effect]:
        if place.downstream is None or not place.downstream_ready:
            return []
        place.stable_sent = self.cache.stable
        marks = place.to_send(self.progress.mark()) or ()
        frame = MarksFrame(self.ring, place.view.epoch, self.cache.stable, marks)
        return [Send(place.downstream.node, frame)]

    def _advance(self, place: Place, now: float) -> list[Effect]:
        """The master: marks have changed."""
        stable = place.stable(self.progress.last)
        if stable is not None:
            self.cache.trim(self._trim_to(stable))
        if place.stable_sent < self.cache.stable and self._stable_due is None:
            self._stable_due = now + self._timing.stable_delay_s
        return self._confirm(place)

    def _confirm(self, place: Place) -> list[Effect]:
        """New watermarks, if those who have to hold an op before it is confirmed do."""
        counted = place.counted(self.progress.mark(), self._changer.unresolved)
        if counted is None or not self.has_quorum:
            return []
        progress = self.progress
        received = max(min(mark.received for mark in counted), progress.confirmed[0])
        persisted = max(self._persisted_by_all(counted), progress.confirmed[1])
        if (received, persisted) == progress.confirmed:
            return []
        progress.confirmed = (received, persisted)
        return [Watermarks(received, persisted)]

    def _persisted_by_all(self, counted: list[Mark]) -> int:
        return min(mark.persisted for mark in counted)

    # --- frames ---

    def _received(self, sender: MemberId, frame: Frame, now: float) -> list[Effect]:
        self._changer.known.saw(sender)
        match frame:
            case Ping():
                end = self._log_end()
                pong = Pong(self.ring, frame.epoch, frame.nonce, end.epoch, end.number)
                return [Send(sender.node, pong)]
            case Pong():
                if self.view is None:
                    return []
                return self._changer.pong(sender, frame, self.view, self._log_end(), now)
            case Stale():
                mine = self.view.epoch if self.view else 0
                return [RefreshView()] if frame.epoch > mine else []
            case _:
                return self._ring_frame(sender, frame, now)

    def _ring_frame(
        self,
        sender: MemberId,
        frame: Hello | Resume | OpFrame | MarksFrame | Submit,
        now: float,
    ) -> list[Effect]:
        """A frame that belongs to an epoch: refused if that has passed."""
        mine = self.view.epoch if self.view else 0
        if self._is_stale(frame.epoch, mine):
            return [Send(sender.node, Stale(self.ring, mine))]
        if frame.epoch > mine:
            if isinstance(frame, Hello):
                self._keep_early(sender, frame)
            return [RefreshView()]
        place = self._place
        if place is None:
            return []
        match frame:
            case OpFrame():
                return self._op_received(place, sender, frame)
            case MarksFrame():
                return self._marks_received(place, sender, frame, now)
            case Hello():
                return self._hello_received(place, sender, frame)
            case Resume():
                return self._resume_received(place, sender, frame)
            case Submit():
                if self.refusal() is None:
                    return self._multicast(frame.payload, frame.urgent)
                return []

    def _is_stale(self, epoch: int, mine: int) -> bool:
        return epoch < mine

    # --- handshakes ---

    def _hello(self, place: Place) -> list[Effect]:
        """Greets my downstream, once I have been greeted myself.

        Else its marks could reach a master that hasn't entered the epoch, be dropped there,
        and never be sent again.
        """
        if place.downstream is None or not place.is_greeted:
            return []
        place.stable_sent = self.cache.stable
        hello = Hello(self.ring, place.view.epoch, self.progress.last, self.cache.stable)
        return [Send(place.downstream.node, hello)]

    def _keep_early(self, sender: MemberId, hello: Hello) -> None:
        """It isn't sent again; one of an older epoch that comes later must not displace it."""
        if self._early_hello is None or hello.epoch >= self._early_hello[1].epoch:
            self._early_hello = (sender, hello)

    def _early_after(self, epoch: int) -> tuple[MemberId, Hello] | None:
        early = self._early_hello
        return early if early is not None and early[1].epoch > epoch else None

    def _hello_received(self, place: Place, sender: MemberId, hello: Hello) -> list[Effect]:
        if sender != place.upstream:
            return []
        is_first = not place.is_greeted
        place.is_greeted = True
        effects: list[Effect] = []
        if self._starts_here:
            self._starts_here = False
            self.progress = Progress(hello.last, complete=False)
            self.cache.reset(hello.last)
            effects.append(StartCatchUp(hello.last))
        else:
            self.cache.trim(self._trim_to(hello.stable))
        effects.append(Send(sender.node, self._resume(place)))
        if is_first:
            effects += self._hello(place)
        place.marks_due = True
        return effects + self._pass_on(place)

    def _resume(self, place: Place) -> Resume:
        return Resume(self.ring, place.view.epoch, self.progress.last)

    def _resume_received(self, place: Place, sender: MemberId, resume: Resume) -> list[Effect]:
        if sender != place.downstream:
            return []
        place.downstream_ready = True
        place.marks_due = True
        effects: list[Effect] = []
        for op in self._ops_to_resend(resume.last):
            effects += self._forward(place, op)
        return effects + self._pass_on(place)

    def _ops_to_resend(self, last: int) -> list[CachedOp]:
        """What my downstream lacks.

        It can't lack what is stable, even if it says so: 1. I say Hello twice (the link was
        opened anew), 2. it answers Resume(5) twice, 3. the first comes, I send 6 to 10,
        4. its marks reach the master, whose `stable` 10 reaches me, 5. the second comes.
        """
        return list(self.cache.after(max(last, self.cache.stable)))

    # --- views ---

    def _view_learned(self, view: View | None, now: float) -> list[Effect]:
        if view is None:
            if self.view is None:
                return []
            return self._deleted()
        if self.view is not None and view.epoch <= self.view.epoch:
            return []
        return self._enter(view, now)

    def _deleted(self) -> list[Effect]:
        self._is_deleted = True
        self._leave()
        self._changer.view_entered()
        ended: list[Effect] = (
            [PromotionEnded(PromotionOutcome.RING_DELETED)] if self._handover else []
        )
        self._handover = None
        return [*ended, RingDeleted()]

    def _leave(self) -> None:
        self.role = Role.OUTSIDE
        self.cache.reset(self.progress.last)
        self._place = None
        self._stable_due = None
        self._starts_here = False

    def _enter(self, view: View, now: float) -> list[Effect]:
        """Everything that belongs to being in a view begins here."""
        was_outside = self.role is Role.OUTSIDE
        self.view = view
        self._changer.view_entered()
        self._stable_due = None
        index = view.index_of(self.me)
        ended = self._handover_overtaken(view)
        if index is None:
            self._leave()
            if not was_outside:
                self._changer.hold_off(now)
            return [*ended, RoleChanged(self.role, view)]
        place = Place(view, index, entered_at=self.progress.last)
        self._place = place
        self._take_role(view, index, joined=was_outside)
        effects: list[Effect] = [*ended, RoleChanged(self.role, view), *self._hello(place)]
        if self.role is Role.MASTER:
            effects += self._advance(place, now)
        early, self._early_hello = self._early_hello, self._early_after(view.epoch)
        if early is not None and early[1].epoch == view.epoch:
            effects += self._hello_received(place, *early)
        return effects

    def _take_role(self, view: View, index: int, *, joined: bool) -> None:
        is_synced = view.members[index].synced
        if joined:
            self._starts_here = not is_synced
            self.progress.complete = is_synced
        if index == 0:
            self.role = Role.MASTER
        else:
            self.role = Role.MIRROR if is_synced else Role.JOINER

    def _proposal_ended(self, view: View, outcome: ProposalOutcome, now: float) -> list[Effect]:
        if outcome is ProposalOutcome.WON:
            return self._view_learned(view, now)
        return self._changer.ended(view, outcome, now)

    def _link_up(self, node: str) -> list[Effect]:
        """What was sent before may be lost: greet, ask and tell again."""
        self._changer.known.down.discard(node)
        self._changer.situation_changed()
        if self.view is None:
            return []
        effects = self._changer.link_up(node, self.view)
        place = self._place
        if place is None:
            return effects
        if place.downstream is not None and place.downstream.node == node:
            place.downstream_ready = False
            effects += self._hello(place)
        if place.upstream is not None and place.upstream.node == node and place.is_greeted:
            effects.append(Send(node, self._resume(place)))
        if place.downstream is None and place.view.master.node == node:
            effects += self._send_marks(place, due=True)
        return effects

    def _leases_learned(self, alive: frozenset[MemberId]) -> list[Effect]:
        known = self._changer.known
        if known.alive != alive:
            known.alive = alive
            for member_id in sorted(alive):
                known.saw(member_id)
            self._changer.situation_changed()
        return []

    def _peer_stalled(self, node: str) -> list[Effect]:
        """A slow downstream is put out of the ring, but never below `min_insync`."""
        place = self._place
        if place is None or place.downstream is None or place.downstream.node != node:
            return []
        proposal = place.view.without({place.downstream})
        if (
            proposal is None
            or self._changer.stage is not Stage.IDLE
            or len(proposal.synced) < proposal.min_insync
        ):
            return []
        return self._changer.propose_unprobed(proposal)

    # --- changes that this member brings about ---

    def _log_end(self) -> LogEnd:
        if not self._log_is_whole:
            return LogEnd()
        return LogEnd(self.progress.last_epoch, self.progress.last)

    def _seek_change(self, now: float) -> list[Effect]:
        view = self.view
        if view is None or self._changer.stage is not Stage.IDLE:
            return []
        effects = self._changer.seek(
            view,
            outside=self.role is Role.OUTSIDE,
            wanted=self._wanted,
            log=self._log_end(),
            may_restart=self._log_is_whole,
            now=now,
        )
        place = self._place
        if effects or place is None or place.index != 0 or self._changer.stage is not Stage.IDLE:
            return effects
        if self._handover is not None:
            if is_drained(self.marks(), view, self._handover.target, self.progress.last):
                return self._changer.propose_unprobed(view.with_master(self._handover.target))
            return []
        caught_up = self._joiner_to_count(place)
        return self._changer.propose_unprobed(view.with_synced(caught_up)) if caught_up else []

    def _joiner_to_count(self, place: Place) -> MemberId | None:
        return place.joiner_to_count(max(self.progress.confirmed))

    def _promotion_asked(self, target: MemberId, now: float) -> list[Effect]:
        if self._place is None or self.role is not Role.MASTER:
            return [PromotionEnded(PromotionOutcome.NOT_MASTER)]
        if self._handover is not None:
            return [PromotionEnded(PromotionOutcome.ANOTHER_UNDER_WAY)]
        refusal = refusal_of(self._place.view, target)
        if refusal is not None:
            return [PromotionEnded(refusal)]
        self._handover = Handover(target, now + self._timing.drain_s)
        return []

    def _handover_overtaken(self, view: View) -> list[Effect]:
        """A new view while a promotion drains: it is what was wanted, or ends it."""
        handover, self._handover = self._handover, None
        if handover is None:
            return []
        if view.master == handover.target:
            return [PromotionEnded(PromotionOutcome.DONE)]
        return [PromotionEnded(PromotionOutcome.RING_CHANGED)]

    def _call_off_handover(self, handover: Handover, now: float) -> list[Effect]:
        """Not if the registry has been asked, and may yet do it: see `handover`."""
        if self._may_be_turned():
            handover.deadline = now + self._timing.drain_s
            return []
        self._handover = None
        return [PromotionEnded(PromotionOutcome.NOT_DRAINED)]

    def _may_be_turned(self) -> bool:
        return any(proposed.master != self.me for proposed in self._changer.unresolved)

    # --- time ---

    def _tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self._stable_due is not None and now >= self._stable_due:
            self._stable_due = None
            place = self._place
            if place is not None and place.stable_sent < self.cache.stable:
                effects += self._send_stable(place)
        if self._handover is not None and now >= self._handover.deadline:
            effects += self._call_off_handover(self._handover, now)
        if self.view is not None:
            effects += self._changer.tick(self.view, self._log_end(), now)
        return effects
