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

Why a vector of marks and not two minima: the master then knows how far each
mirror is, can leave out a joiner until it asks for it to count, and count it from
then on, in one and the same watermark.

A link that has been opened anew, or a new view, begins with a handshake: Hello
downstream, Resume with the last number upstream, and then what comes after, from
the cache. A member that dies is left out; its upstream shakes hands with the
next one. That is all that re-forwarding is.

Invariants (`check`): the cache holds exactly the ops from `stable` + 1 to
`last`; marks never fall within an epoch; `persisted` <= `last`; confirmed <=
`last`; only the member that comes first in the view originates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from ringmq_gm.cache import CachedOp, OpCache
from ringmq_gm.changes import Chance, LogEnd, Stage, Timing, ViewChanger
from ringmq_gm.events import (
    CaughtUp,
    Deliver,
    Effect,
    Event,
    LeasesLearned,
    LinkDown,
    LinkUp,
    MembershipWanted,
    Multicast,
    Outcome,
    PeerStalled,
    Persisted,
    PromotionAsked,
    PromotionEnded,
    ProposalEnded,
    Received,
    RefreshView,
    RingDeleted,
    Role,
    RoleChanged,
    Send,
    StartCatchUp,
    Tick,
    ViewLearned,
    Watermarks,
)
from ringmq_gm.frames import (
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
from ringmq_gm.views import MemberId, View

CACHE_BYTES_MAX = 64 * 1024 * 1024


@dataclass(slots=True)
class Position:
    """What holds for one epoch: where I am in the ring, and what has been shaken hands on."""

    index: int
    count: int
    upstream: MemberId | None
    downstream: MemberId | None
    # The number after which my upstream sends; None before its Hello.
    hello: Hello | None = None
    # My downstream has said where to resume.
    downstream_ready: bool = False
    # A mirror: the marks of those before me. The master: those of all others.
    marks: tuple[Mark, ...] | None = None
    # The lowest persisted and received of the marks that I sent last.
    sent_floor: tuple[int, int] = (-1, -1)
    # Marks are to be sent whatever they say: the one before may have been lost.
    marks_due: bool = True
    stable_sent: int = 0
    # The last op that I had when I entered: an earlier master may have confirmed it.
    entered_at: int = 0
    # Where the last gap was: it is asked for once.
    gap_at: int = -1


@dataclass(slots=True)
class Promotion:
    """A hand-over that is draining the ring."""

    target: MemberId
    deadline: float


@dataclass(slots=True)
class Progress:
    """How far this member is. Only ever rises while it is in the ring."""

    last: int = 0
    last_epoch: int = 0
    persisted: int = 0
    complete: bool = True
    # The last op that somebody waits for to be received, not persisted.
    urgent: int = 0
    confirmed: tuple[int, int] = (0, 0)


class RingMember:
    """See the module. Create it with what the application has on disk (`log`)."""

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
        # With a damaged log I may join, but not begin a ring again from it.
        self._log_is_whole = log_is_whole
        self._changer = ViewChanger(me, ring, self._timing, chance)
        self._position = Position(0, 1, None, None)
        # A Hello of an epoch that I haven't heard of yet.
        self._early_hello: tuple[MemberId, Hello] | None = None
        self._promotion: Promotion | None = None
        self._stable_due: float | None = None
        self._wanted = False
        # Just joined: where I begin is said by the first Hello.
        self._starts_here = False

    # --- what the application may ask ---

    def refusal(self) -> str | None:
        """Why a Multicast can't be taken now: "not master", "draining" or "full"; or None."""
        if self.role is not Role.MASTER:
            return "not master"
        if self._promotion is not None:
            return "draining"
        if self.cache.size_bytes >= self._cache_bytes_max:
            return "full"
        return None

    @property
    def has_quorum(self) -> bool:
        """Whether enough members are synchronised for anything to be confirmed."""
        return self.view is not None and len(self.view.synced) >= self.view.min_insync

    def marks(self) -> dict[MemberId, Mark]:
        """How far each member is, as far as this one knows."""
        if self.view is None or self.role is Role.OUTSIDE:
            return {}
        known = {self.me: self._own_mark()}
        known.update(zip(self.view.ids[1:], self._position.marks or (), strict=False))
        return known

    def next_deadline(self) -> float | None:
        """When to send a Tick, at the latest."""
        promotion = self._promotion.deadline if self._promotion else None
        due = (self._changer.next_deadline(), self._stable_due, promotion)
        return min((at for at in due if at is not None), default=None)

    def check(self) -> None:
        """The invariants, for tests and simulations."""
        self.cache.check()
        progress = self.progress
        assert self.cache.stable + len(self.cache) == progress.last
        assert progress.persisted <= progress.last
        assert max(progress.confirmed) <= progress.last
        if self.role is Role.MASTER:
            assert self.view is not None
            assert self.view.master == self.me

    # --- the one entrance ---

    def step(self, event: Event, *, now: float) -> list[Effect]:
        """Takes one event; returns what is to be done, in order."""
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
        assert self.view is not None
        return (
            self._accept(CachedOp(self.view.epoch, self.progress.last + 1, urgent, payload))
            + self._confirm()
        )

    def _accept(self, op: CachedOp) -> list[Effect]:
        """Takes the next op: keep it, pass it on, then deliver it."""
        assert op.number == self.progress.last + 1, (op.number, self.progress.last)
        self.cache.append(op)
        self.progress.last = op.number
        self.progress.last_epoch = op.epoch
        if op.urgent:
            self.progress.urgent = op.number
        effects = self._forward(op)
        effects.append(Deliver(op.number, op.epoch, op.payload))
        return effects

    def _forward(self, op: CachedOp) -> list[Effect]:
        position = self._position
        if position.downstream is None or not position.downstream_ready:
            return []
        assert self.view is not None
        marks = self._marks_downstream() or ()
        position.stable_sent = self.cache.stable
        if marks:
            self._marks_sent(marks)
        frame = OpFrame(
            self.ring,
            self.view.epoch,
            self.cache.stable,
            op.epoch,
            op.number,
            op.urgent,
            marks,
            op.payload,
        )
        return [Send(position.downstream.node, frame)]

    def _op_received(self, sender: MemberId, frame: OpFrame, now: float) -> list[Effect]:
        position = self._position
        if sender != position.upstream or position.hello is None:
            return []
        if frame.number > self.progress.last + 1:
            # Something between was lost: ask for it again.
            if position.gap_at == self.progress.last:
                return []
            position.gap_at = self.progress.last
            return [Send(sender.node, self._resume())]
        self._take_marks(frame.marks)
        effects: list[Effect] = []
        if frame.number == self.progress.last + 1:
            effects += self._accept(
                CachedOp(frame.op_epoch, frame.number, frame.urgent, frame.payload)
            )
        self.cache.trim(self._trim_to(frame.stable))
        return effects + self._send_marks()

    def _marks_received(self, sender: MemberId, frame: MarksFrame, now: float) -> list[Effect]:
        position = self._position
        if self.role is Role.MASTER:
            assert self.view is not None
            if sender == self.view.ids[-1] and len(frame.marks) == position.count - 1:
                self._take_marks(frame.marks)
                return self._advance(now)
            return []
        if sender != position.upstream or position.hello is None:
            return []
        self._take_marks(frame.marks)
        self.cache.trim(self._trim_to(frame.stable))
        effects = self._send_marks()
        if not effects and position.stable_sent < self.cache.stable:
            effects = self._send_stable()
        return effects

    def _trim_to(self, stable: int) -> int:
        """How far copies may be dropped when the ring says that it is stable up to `stable`."""
        return min(stable, self.progress.last)

    def _take_marks(self, marks: tuple[Mark, ...]) -> None:
        position = self._position
        if self.role is Role.MASTER or len(marks) == position.index - 1:
            position.marks = marks

    def _persisted(self, number: int, now: float) -> list[Effect]:
        progress = self.progress
        if number <= progress.persisted or not progress.complete:
            return []
        progress.persisted = min(number, progress.last)
        return self._advance(now) if self.role is Role.MASTER else self._send_marks()

    def _caught_up(self, persisted: int) -> list[Effect]:
        if self.role is not Role.JOINER or self._starts_here:
            return []  # of a joining that has been overtaken
        self.progress.complete = True
        self.progress.persisted = min(persisted, self.progress.last)
        return self._send_marks(due=True)

    # --- marks and watermarks ---

    def _own_mark(self) -> Mark:
        progress = self.progress
        return Mark(progress.last, progress.persisted, progress.complete)

    def _marks_downstream(self) -> tuple[Mark, ...] | None:
        """The marks of members 1 to me; None while those before me haven't told theirs."""
        if self._position.index == 0:
            return ()
        if self._position.index == 1:
            return (self._own_mark(),)
        before = self._position.marks
        return None if before is None else (*before, self._own_mark())

    def _floor(self, marks: tuple[Mark, ...]) -> tuple[int, int]:
        """The lowest persisted and received among those that the master may wait for."""
        assert self.view is not None
        counted = [
            mark
            for mark, member in zip(marks, self.view.members[1:], strict=False)
            if member.synced or mark.complete
        ]
        if not counted:
            return marks[-1].persisted, marks[-1].received
        return min(m.persisted for m in counted), min(m.received for m in counted)

    def _marks_sent(self, marks: tuple[Mark, ...]) -> None:
        self._position.sent_floor = self._floor(marks)
        self._position.marks_due = False

    def _send_marks(self, *, due: bool = False) -> list[Effect]:
        """Sends the marks on if that tells the master anything that it may wait for.

        A mark that says "received" only is worth a frame if somebody waits for just
        that; else it goes with the next one that says "persisted".
        """
        position = self._position
        position.marks_due |= due
        if self.role in (Role.MASTER, Role.OUTSIDE) or position.hello is None:
            return []
        marks = self._marks_downstream()
        if marks is None:
            return []
        assert self.view is not None
        persisted, received = self._floor(marks)
        old_persisted, old_received = position.sent_floor
        waited_for = received > old_received and old_received < self.progress.urgent
        if not (position.marks_due or persisted > old_persisted or waited_for):
            return []
        target = position.downstream
        if target is not None and not position.downstream_ready:
            return []
        self._marks_sent(marks)
        frame = MarksFrame(self.ring, self.view.epoch, self.cache.stable, marks)
        if target is None:
            return [Send(self.view.master.node, frame)]
        position.stable_sent = self.cache.stable
        return [Send(target.node, frame)]

    def _send_stable(self) -> list[Effect]:
        """Passes `stable` on when nothing else goes downstream."""
        position = self._position
        if position.downstream is None or not position.downstream_ready:
            return []
        assert self.view is not None
        position.stable_sent = self.cache.stable
        marks = self._marks_downstream() or ()
        frame = MarksFrame(self.ring, self.view.epoch, self.cache.stable, marks)
        return [Send(position.downstream.node, frame)]

    def _advance(self, now: float) -> list[Effect]:
        """The master: marks have changed."""
        marks = self._position.marks
        if marks is not None:
            stable = min(mark.received for mark in marks)
            self.cache.trim(self._trim_to(stable))
        elif self._position.count == 1:
            self.cache.trim(self._trim_to(self.progress.last))
        if self._position.stable_sent < self.cache.stable and self._stable_due is None:
            self._stable_due = now + self._timing.stable_delay_s
        return self._confirm()

    def _confirm(self) -> list[Effect]:
        """New watermarks, if those who have to hold an op before it is confirmed do."""
        assert self.view is not None
        counted = self._counted_marks()
        if counted is None or not self.has_quorum:
            return []
        progress = self.progress
        received = max(min(mark.received for mark in counted), progress.confirmed[0])
        persisted = max(min(mark.persisted for mark in counted), progress.confirmed[1])
        if (received, persisted) == progress.confirmed:
            return []
        progress.confirmed = (received, persisted)
        return [Watermarks(received, persisted)]

    def _counted_marks(self) -> list[Mark] | None:
        """Of every member that is synchronised, or may have become so without my knowing yet."""
        assert self.view is not None
        wanted = set(self.view.synced)
        for proposed in self._changer.unresolved:
            wanted.update(proposed.synced)
        counted = [self._own_mark()]
        others = [m for m in self.view.ids[1:] if m in wanted]
        if not others:
            return counted
        marks = self._position.marks
        if marks is None:
            return None
        by_id = dict(zip(self.view.ids[1:], marks, strict=True))
        return counted + [by_id[member_id] for member_id in others]

    # --- frames ---

    def _received(self, sender: MemberId, frame: object, now: float) -> list[Effect]:
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
            case Hello() | Resume() | OpFrame() | MarksFrame() | Submit():
                return self._ring_frame(sender, frame, now)
            case _:
                raise AssertionError(f"no such frame: {frame!r}")

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
                self._early_hello = (sender, frame)
            return [RefreshView()]
        if self.role is Role.OUTSIDE:
            return []
        match frame:
            case OpFrame():
                return self._op_received(sender, frame, now)
            case MarksFrame():
                return self._marks_received(sender, frame, now)
            case Hello():
                return self._hello_received(sender, frame)
            case Resume():
                return self._resume_received(sender, frame)
            case Submit():
                if self.refusal() is None:
                    return self._multicast(frame.payload, frame.urgent)
                return []

    def _is_stale(self, epoch: int, mine: int) -> bool:
        return epoch < mine

    # --- handshakes ---

    def _hello(self) -> list[Effect]:
        position = self._position
        if position.downstream is None:
            return []
        assert self.view is not None
        if self.role is Role.JOINER and position.hello is None:
            return []  # I don't know yet where I begin.
        hello = Hello(self.ring, self.view.epoch, self.progress.last, self.cache.stable)
        return [Send(position.downstream.node, hello)]

    def _hello_received(self, sender: MemberId, hello: Hello) -> list[Effect]:
        position = self._position
        if sender != position.upstream:
            return []
        first = position.hello is None
        position.hello = hello
        effects: list[Effect] = []
        if self.role is Role.JOINER and self._starts_here:
            self._starts_here = False
            self.progress = Progress(hello.last, complete=False)
            self.cache.reset(hello.last)
            effects.append(StartCatchUp(hello.last))
            effects += self._hello()
        elif first and self.role is Role.JOINER:
            effects += self._hello()
        effects.append(Send(sender.node, self._resume()))
        return effects + self._send_marks(due=True)

    def _resume(self) -> Resume:
        assert self.view is not None
        return Resume(self.ring, self.view.epoch, self.progress.last)

    def _resume_received(self, sender: MemberId, resume: Resume) -> list[Effect]:
        position = self._position
        if sender != position.downstream:
            return []
        position.downstream_ready = True
        effects: list[Effect] = []
        for op in self._ops_to_resend(resume.last):
            effects += self._forward(op)
        return effects + self._send_marks(due=True)

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
            self.role = Role.OUTSIDE
            self._wanted = False
            return [RingDeleted()]
        if self.view is not None and view.epoch <= self.view.epoch:
            return []
        return self._enter(view, now)

    def _enter(self, view: View, now: float) -> list[Effect]:
        """Everything that belongs to being in a view begins here."""
        old_role = self.role
        self.view = view
        self._changer.view_entered()
        self._stable_due = None
        index = view.index_of(self.me)
        ended = self._promotion_overtaken(view)
        if index is None:
            self.role = Role.OUTSIDE
            self.cache.reset(self.progress.last)
            self._position = Position(0, 1, None, None)
            return [*ended, RoleChanged(self.role, view)]
        count = len(view.members)
        self._position = Position(
            index,
            count,
            upstream=view.ids[index - 1] if index > 0 else None,
            downstream=view.ids[index + 1] if index + 1 < count else None,
            stable_sent=self.cache.stable,
            entered_at=self.progress.last,
        )
        self._take_role(view, index, joined=old_role is Role.OUTSIDE)
        effects: list[Effect] = [*ended, RoleChanged(self.role, view), *self._hello()]
        if self.role is Role.MASTER:
            effects += self._advance(now)
        if self._early_hello is not None:
            sender, hello = self._early_hello
            if hello.epoch == view.epoch:
                effects += self._hello_received(sender, hello)
        return effects

    def _take_role(self, view: View, index: int, *, joined: bool) -> None:
        if joined:
            self._starts_here = not view.members[index].synced
            self.progress.complete = view.members[index].synced
        if index == 0:
            self.role = Role.MASTER
        elif view.members[index].synced:
            self.role = Role.MIRROR
        else:
            self.role = Role.JOINER

    def _proposal_ended(self, view: View, outcome: Outcome, now: float) -> list[Effect]:
        if outcome is Outcome.WON:
            return self._view_learned(view, now)
        return self._changer.ended(view, outcome, now)

    def _link_up(self, node: str) -> list[Effect]:
        self._changer.known.down.discard(node)
        self._changer.situation_changed()
        if self.view is None:
            return []
        effects = self._changer.link_up(node, self.view)
        position = self._position
        if position.downstream is not None and position.downstream.node == node:
            position.downstream_ready = False
            effects += self._hello()
        if position.upstream is not None and position.upstream.node == node and position.hello:
            effects.append(Send(node, self._resume()))
        if position.downstream is None and self.view.master.node == node:
            effects += self._send_marks(due=True)
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
        position = self._position
        slow = position.downstream
        if self.view is None or slow is None or slow.node != node:
            return []
        proposal = self.view.without({slow})
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
        if effects or self.role is not Role.MASTER or self._changer.stage is not Stage.IDLE:
            return effects
        if self._promotion is not None:
            if self._is_drained(self._promotion.target):
                return self._changer.propose_unprobed(view.with_master(self._promotion.target))
            return []
        caught_up = self._joiner_to_count()
        return self._changer.propose_unprobed(view.with_synced(caught_up)) if caught_up else []

    def _joiner_to_count(self) -> MemberId | None:
        """A joiner that lacks nothing, and has on disk all that has been confirmed so far,
        by me or, for all I know, by the master before me."""
        assert self.view is not None
        marks = self._position.marks or ()
        confirmed = max(*self.progress.confirmed, self._position.entered_at)
        for member, mark in zip(self.view.members[1:], marks, strict=False):
            if (
                not member.synced
                and mark.complete
                and mark.persisted >= max(self.progress.confirmed)
            ):
                return member.id
        return None

    def _promotion_asked(self, target: MemberId, now: float) -> list[Effect]:
        reason = self._promotion_refusal(target)
        if reason:
            return [PromotionEnded(reason)]
        self._promotion = Promotion(target, now + self._timing.drain_s)
        return []

    def _promotion_refusal(self, target: MemberId) -> str:
        if self.role is not Role.MASTER:
            return "not master"
        assert self.view is not None
        if self._promotion is not None:
            return "another promotion is under way"
        if target == self.me:
            return "already master"
        index = self.view.index_of(target)
        if index is None:
            return "not a member"
        return "" if self.view.members[index].synced else "not synchronised"

    def _is_drained(self, target: MemberId) -> bool:
        """Everybody has received everything, and the new master has it on disk."""
        last = self.progress.last
        marks = self.marks()
        return (
            len(marks) == self._position.count
            and all(mark.received == last for mark in marks.values())
            and marks[target].persisted == last
            and self.progress.persisted == last
        )

    def _promotion_overtaken(self, view: View) -> list[Effect]:
        """A new view while a promotion drains: it is what was wanted, or ends it."""
        promotion, self._promotion = self._promotion, None
        if promotion is None:
            return []
        reason = "" if view.master == promotion.target else "the ring has changed meanwhile"
        return [PromotionEnded(reason)]

    # --- time ---

    def _tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self._stable_due is not None and now >= self._stable_due:
            self._stable_due = None
            if self._position.stable_sent < self.cache.stable:
                effects += self._send_stable()
        if self._promotion is not None and now >= self._promotion.deadline:
            if self._changer.stage is Stage.PROPOSING:
                # Too late to call it off: the registry decides.
                self._promotion.deadline = now + self._timing.drain_s
            else:
                self._promotion = None
                effects.append(PromotionEnded("the ring did not drain in time"))
        if self.view is not None:
            effects += self._changer.tick(self.view, self._log_end(), now)
        return effects
