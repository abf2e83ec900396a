"""One member of a ring, as a state machine without I/O.

Its guarantees, as long as its caller carries out the effects in order:

* Every op that the master multicasts gets the next number, over all epochs without a gap, and
  every member delivers the ops in that order, each once.
* `Watermarks(received, persisted)` says of an op that every synchronised member holds it (on
  disk), and that there are `min_insync` of them. Any later master has delivered it, whichever
  members die.
* A member that isn't in the newest view that it knows serves nobody, and frames of an older
  epoch are refused. Two masters can't both get watermarks, because each would need the same
  members to accept its epoch.
* Its memory is bounded: `cache_bytes_max` of ops that aren't stable.

It doesn't agree on the view (the registry does), nor move bytes (the links do), nor keep ops
over a restart (the application does, and says how far its log goes).

A member is in one of four phases, each a class with just the fields that exist in it:

    Outside -> Mirror | Master   a view has come with this member in it
    Mirror  -> Master            the masters before it are gone, or have handed over
    Master  -> Mirror            it has handed over
    Mirror | Master -> Outside   a view has come without it: it stops at once
    any     -> Deleted           the ring is no more; no event has any effect from then on

`_enter` makes all of these changes but the last. Each new view makes a new Mirror or Master.

The parts: `held_ops` is how far this member is, and the ops that it can send again; `in_view`,
`mirror` and `master` are its behaviour within one epoch; `changes` brings about new views, and
`telling` brings them to others.

Invariants (`check`): those of `HeldOps`; the phase belongs to the newest view; only the member
that comes first in it is a Master; only a joiner lacks ops from before it joined.

docs/ring.md tells the whole protocol, with the duties of the parts that all this rests on.
"""

from __future__ import annotations

from typing import assert_never

from ringmq_gm.core.cache import Budgets
from ringmq_gm.core.chance import Chance
from ringmq_gm.core.changes import ViewChanger
from ringmq_gm.core.events import (
    CaughtUp,
    Effect,
    Event,
    LeasesLearned,
    LinkDown,
    LinkUp,
    LossAccepted,
    LossEnded,
    LossOutcome,
    MembershipWanted,
    MinInsyncAsked,
    Multicast,
    NodesKnown,
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
    RemovalAsked,
    RingDeleted,
    Role,
    RoleChanged,
    Send,
    Tick,
    ViewLearned,
)
from ringmq_gm.core.frames import (
    EPOCH_FRAMES,
    EpochFrame,
    Frame,
    Gone,
    Hello,
    Mark,
    Ping,
    Pong,
    ViewAsked,
    ViewTold,
    ViewWanted,
)
from ringmq_gm.core.held_ops import HeldOps, LogEnd
from ringmq_gm.core.master import Master
from ringmq_gm.core.mirror import Mirror
from ringmq_gm.core.phases import DELETED, OUTSIDE, Outside, Phase
from ringmq_gm.core.stages import Log
from ringmq_gm.core.telling import EarlyHello, told_if_older, told_to_overruled
from ringmq_gm.core.timing import Timing
from ringmq_gm.core.views import MemberId, View


class RingMember:
    """See the module. Create it with the end of the log that the application has on disk.

    A member whose log isn't whole may join, but not begin a ring again. `log_is_whole` is the
    application's word for the disk that it found. From then on the views decide: a synchronised
    member's log is whole, a joiner's isn't.
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
        budgets: Budgets | None = None,
    ) -> None:
        self.me = me
        self.ring = ring
        # The newest view that is known; None until the registry has shown one.
        self.view: View | None = None
        self.ops = HeldOps(ring, log)
        self._phase: Phase = OUTSIDE
        self._timing = timing or Timing()
        self._budgets = budgets or Budgets()
        self._log_is_whole = log_is_whole
        self._changer = ViewChanger(me, ring, self._timing, chance)
        self._early_hello = EarlyHello()

    # --- questions ---

    @property
    def role(self) -> Role:
        return self._phase.role

    def refusal(self) -> Refusal | None:
        """Why a `Multicast` can't be taken now; None if it can."""
        return self._phase.refusal() if isinstance(self._phase, Master) else Refusal.NOT_MASTER

    @property
    def has_quorum(self) -> bool:
        """Whether enough members are synchronised for anything to be confirmed."""
        return self.view is not None and self.view.has_quorum

    @property
    def waiting_bytes(self) -> int:
        return self._phase.waiting_bytes

    @property
    def log_is_whole(self) -> bool:
        return self._log_is_whole

    @property
    def loss_is_open(self) -> bool:
        """Whether an accepted loss may yet take effect: the application's log must keep its end."""
        return self._changer.loss_is_open

    @property
    def awaits_start(self) -> bool:
        """Whether it has just joined, and not yet been told after which op it begins."""
        return isinstance(self._phase, Mirror) and self._phase.awaits_start

    def marks(self) -> dict[MemberId, Mark]:
        """How far each member is, as far as this one knows."""
        return {} if isinstance(self._phase, Outside) else self._phase.marks_known()

    def next_deadline(self) -> float | None:
        """When to send a `Tick`, at the latest."""
        change, own = self._changer.next_deadline(), self._phase.next_deadline()
        if change is None or own is None:
            return own if change is None else change
        return min(change, own)

    def check(self) -> None:
        """The invariants, for tests and simulations."""
        self.ops.check()
        phase = self._phase
        if not isinstance(phase, Outside):
            assert phase.view is self.view
            assert phase.ops is self.ops
            assert (phase.index == 0) == (phase.role is Role.MASTER) == isinstance(phase, Master)
            assert phase.view.ids[phase.index] == self.me
            assert self.ops.complete or phase.role is Role.JOINER

    # --- the one entrance ---

    def step(self, event: Event, *, now: float) -> list[Effect]:
        """Takes one event; returns the effects to be carried out, in order."""
        if self._phase is DELETED:
            return []  # A frame or an answer that was on its way when the ring was deleted.
        effects = self._handle(event, now)
        effects += self._phase.look_around(self._changer.lives, self._timing, now)
        effects += self._seek_change(now)
        return effects

    def _handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            # These three make up a trip. A pattern with fields in it would take twice as long.
            case Received():
                return self._received(event.envelope.sender, event.envelope.frame, now)
            case Multicast():
                return self._multicast(event.payload, event.urgent)
            case Persisted():
                return self._persisted(event.number, now)
            case ViewLearned(view):
                return self._view_learned(view, now)
            case LinkUp(life):
                return self._link_up(life)
            case LinkDown(node):
                return self._changer.link_down(node)
            case PeerStalled(node):
                return self._peer_stalled(node)
            case LeasesLearned() | NodesKnown():
                return self._changer.nodes_learned(event)
            case CaughtUp(persisted):
                mirror = self._phase
                return mirror.caught_up(persisted) if isinstance(mirror, Mirror) else []
            case MembershipWanted(wanted):
                self._changer.is_wanted = wanted
                return []
            case PromotionAsked(target):
                return self._promotion_asked(target, now)
            case LossAccepted():
                return self._loss_accepted(event, now)
            case RemovalAsked() | MinInsyncAsked():
                return self._view_asked(event)
            case ProposalEnded(view, outcome):
                return self._proposal_ended(view, outcome, now)
            case Tick():
                return self._tick(now)
            case _:
                assert_never(event)

    # --- the application ---

    def _multicast(self, payload: bytes, urgent: bool) -> list[Effect]:
        phase = self._phase
        assert self.refusal() is None, self.refusal()
        assert isinstance(phase, Master)
        return phase.multicast(payload, urgent, self._changer.unresolved)

    def _persisted(self, number: int, now: float) -> list[Effect]:
        ops, phase = self.ops, self._phase
        # While incomplete, the application may speak of the log that it is about to cut.
        if number <= ops.on_disk or not ops.complete:
            return []
        ops.on_disk = number
        if isinstance(phase, Master):
            return phase.advance(self._changer.unresolved, now)
        return phase.send_marks() if isinstance(phase, Mirror) else []

    def _promotion_asked(self, target: MemberId, now: float) -> list[Effect]:
        phase = self._phase
        if not isinstance(phase, Master):
            return [PromotionEnded(PromotionOutcome.NOT_MASTER)]
        return phase.promotion_asked(target, now)

    def _loss_accepted(self, asked: LossAccepted, now: float) -> list[Effect]:
        # A joiner may be all that is left of a ring, and can't leave it by itself.
        if self.role not in (Role.OUTSIDE, Role.JOINER):
            return [LossEnded(LossOutcome.IN_RING)]
        if self.view is None or self._phase is DELETED:
            return [LossEnded(LossOutcome.NO_VIEW)]
        effects = self._changer.accept_loss(asked, self.view, self._log(), now)
        if isinstance(self._phase, Mirror) and self.loss_is_open:
            self._phase.hold()
        return effects

    def _view_asked(self, asked: RemovalAsked | MinInsyncAsked) -> list[Effect]:
        phase = self._phase
        if not isinstance(phase, Master) or not self._changer.is_idle:
            return []
        return self._changer.propose_unprobed(phase.view_asked(asked))

    # --- frames ---

    def _received(self, sender: MemberId, frame: Frame, now: float) -> list[Effect]:
        # Before anything else: a frame of a later life proves the death of the earlier one, even
        # if no link has broken yet.
        self._changer.lives.saw(sender)
        if isinstance(frame, EPOCH_FRAMES):
            return self._ring_frame(sender, frame, now)
        match frame:
            case Ping():
                # In every phase and epoch: members outside ask too, and a ring that begins again
                # needs the logs of members that are outside.
                return self._pinged(sender, frame)
            case Pong():
                return self._ponged(sender, frame, now)
            case ViewTold(ring, epoch, view):
                learned = self._view_learned(view, now)
                return learned + told_if_older(ring, self.view, sender.node, epoch)
            case ViewAsked():
                return told_if_older(self.ring, self.view, sender.node, frame.epoch)
            case ViewWanted():
                return self._view_wanted(sender, frame)
            case Gone():
                self._changer.member_gone(sender)
                return self._refresh_before(frame.epoch)

    def _pinged(self, sender: MemberId, ping: Ping) -> list[Effect]:
        epoch = self.view.epoch if self.view else 0
        end = self.ops.end
        pong = Pong(self.ring, epoch, ping.nonce, end.epoch, end.number, self._log_is_whole)
        effects: list[Effect] = [Send(sender.node, pong), *self._refresh_before(ping.epoch)]
        effects += told_if_older(self.ring, self.view, sender.node, ping.epoch)
        if self.view is not None:
            effects += self._changer.pinged(sender, ping, self.view)
        return effects

    def _ponged(self, sender: MemberId, pong: Pong, now: float) -> list[Effect]:
        if self.view is None:
            return []
        effects = self._changer.pong(sender, pong, self.view, self._log(), now)
        effects += told_if_older(self.ring, self.view, sender.node, pong.epoch)
        return effects + self._refresh_before(pong.epoch)

    def _view_wanted(self, sender: MemberId, wanted: ViewWanted) -> list[Effect]:
        if self.view is not None and wanted.epoch == self.view.epoch:
            return self._changer.propose_for_another(wanted.view)
        effects = self._refresh_before(wanted.epoch)
        return effects + told_if_older(self.ring, self.view, sender.node, wanted.epoch)

    def _refresh_before(self, epoch: int) -> list[Effect]:
        """Reads the registry if another member knows a later view."""
        lives = self._changer.lives
        lives.newest_epoch = max(lives.newest_epoch, epoch)
        return [RefreshView()] if epoch > (self.view.epoch if self.view else 0) else []

    def _ring_frame(self, sender: MemberId, frame: EpochFrame, now: float) -> list[Effect]:
        """A frame that belongs to an epoch: refused if that has passed."""
        mine = self.view.epoch if self.view else 0
        if frame.epoch < mine:
            # Its sender may have been put out without knowing. No frame of it may count, or a
            # master of that epoch could confirm.
            return told_if_older(self.ring, self.view, sender.node, frame.epoch)
        if frame.epoch > mine:
            # Its sender has heard of a view that this member hasn't. A Hello is kept, as it is
            # sent once in an epoch; all other frames are sent again after the handshake.
            effects = self._refresh_before(frame.epoch)
            if isinstance(frame, Hello):
                self._early_hello.keep(sender, frame)
                effects.append(Send(sender.node, ViewAsked(self.ring, mine)))
            return effects
        phase = self._phase
        if isinstance(phase, Mirror):
            return phase.received(sender, frame)
        if isinstance(phase, Outside):
            return []  # This member has no part in the epoch.
        return phase.received(sender, frame, self._changer.unresolved, now)

    # --- views ---

    def _view_learned(self, view: View | None, now: float) -> list[Effect]:
        if view is None:
            return [] if self.view is None else self._delete()
        # A watch, a read and an answer to a proposal race each other: an older view may come last.
        if self.view is not None and view.epoch <= self.view.epoch:
            return []
        return self._enter(view, now)

    def _delete(self) -> list[Effect]:
        ended: list[Effect] = []
        if isinstance(self._phase, Master) and self._phase.handover is not None:
            ended = [PromotionEnded(PromotionOutcome.RING_DELETED)]
        self._phase = DELETED
        self.ops.drop_copies()
        return [*ended, *self._changer.view_entered(None), RingDeleted()]

    def _enter(self, view: View, now: float) -> list[Effect]:
        """Everything that belongs to a change of the phase happens here."""
        before = self._phase
        ended = before.handover_ended_by(view) if isinstance(before, Master) else []
        self.view = view
        ended += self._changer.view_entered(view)
        index = view.index_of(self.me)
        if index is not None:
            # A joiner cuts its log as soon as it is greeted. Once it is out again, this log is
            # neither its old one nor that of the ring.
            self._log_is_whole = view.members[index].synced
        if index is None:
            self._phase = OUTSIDE
            self.ops.drop_copies()
            if not isinstance(before, Outside):
                self._changer.put_out(now)
            return [*ended, RoleChanged(Role.OUTSIDE, view)]
        if isinstance(before, Outside):
            self._changer.came_in(now)
        loss = view.own_loss
        if loss is not None and loss.member == self.me:
            # Whatever this member held as a joiner: the application goes on from its own log.
            self.ops = HeldOps(self.ring, LogEnd(loss.log_epoch, loss.log_number))
        elif isinstance(before, Outside):
            # A joiner has to fetch the past. A synchronised member has it: it is in the first
            # view of the ring, or the ring was begun again from its disk.
            self.ops.complete = view.members[index].synced
        if index == 0:
            effects = self._become_master(view, now)
        else:
            effects = self._become_mirror(view, index, before, now)
        # The Hello last: the application has to hear of the new role before `StartCatchUp`.
        return [*ended, *effects, *self._take_early_hello(view)]

    def _become_master(self, view: View, now: float) -> list[Effect]:
        phase = self._phase = self._new_master(view)
        effects = [RoleChanged(phase.role, view), *phase.hello()]
        return effects + phase.advance(self._changer.unresolved, now)

    def _become_mirror(self, view: View, index: int, before: Phase, now: float) -> list[Effect]:
        if isinstance(before, Outside):
            awaits_start = not view.members[index].synced
        else:
            # Still true if this view came before the first Hello of the one that it joined in.
            awaits_start = isinstance(before, Mirror) and before.awaits_start
        phase = self._phase = self._new_mirror(view, index, awaits_start=awaits_start)
        phase.tell_due = now + self._timing.tell_s
        return [RoleChanged(phase.role, view), *phase.hello()]

    def _new_master(self, view: View) -> Master:
        return Master(self.ops, view, self._timing, self._budgets)

    def _new_mirror(self, view: View, index: int, *, awaits_start: bool) -> Mirror:
        return Mirror(self.ops, view, index, awaits_start=awaits_start)

    def _take_early_hello(self, view: View) -> list[Effect]:
        """Takes the Hello that came before this view."""
        early = self._early_hello.take(view)
        if early is None or not isinstance(self._phase, Mirror):
            return []
        return self._phase.hello_received(*early)

    def _proposal_ended(self, view: View, outcome: ProposalOutcome, now: float) -> list[Effect]:
        if outcome is ProposalOutcome.WON:
            # The watch would bring it as well, only later.
            return self._view_learned(view, now)
        return self._changer.proposal_failed(view, outcome, self.view, now)

    # --- links and leases ---

    def _link_up(self, life: MemberId) -> list[Effect]:
        """Frames that were sent before may be lost: greets, asks and tells again."""
        effects = self._changer.link_up(life, self.view)
        if not isinstance(self._phase, Outside):
            effects += self._phase.link_up(life.node)
        return effects + told_to_overruled(self.ring, self.view, (life,))

    def _peer_stalled(self, node: str) -> list[Effect]:
        """A slow downstream neighbour is put out of the ring, but never below `min_insync`.

        No probe first: the neighbour would answer, as control overtakes the bodies that wait.
        """
        phase = self._phase
        if isinstance(phase, Outside) or not self._changer.is_idle:
            return []
        return self._changer.propose_unprobed(phase.view_without_slow(node))

    # --- changes that this member brings about ---

    def _log(self) -> Log:
        return Log(self.ops.end, self._log_is_whole)

    def _seek_change(self, now: float) -> list[Effect]:
        """Looked at after every event, so that no change depends on one certain event."""
        view, changer, phase = self.view, self._changer, self._phase
        if view is None or not changer.is_idle or phase is DELETED:
            return []
        if isinstance(phase, Outside):
            return changer.seek_entry(view, self._log(), now)
        if isinstance(phase, Mirror) and phase.is_held:
            if changer.loss_is_open:
                return changer.propose_unprobed(view.without({self.me}))
            return phase.go_on()
        # A master without contact takes no ops. If its own neighbours are there, nobody else may
        # have a reason to change the view: it goes on without the members that it doesn't hear.
        cut_off = isinstance(phase, Master) and not phase.has_contact
        if changer.has_dead_neighbour(view) or (cut_off and changer.knows_dead(view)):
            effects = changer.seek_drop(view, self._log(), now)
            if effects or not changer.is_idle:
                return effects
        if not isinstance(phase, Master):
            return []
        if stalled := phase.stalled_to_drop():
            return changer.seek_stalled(stalled, view, self._log(), now)
        return changer.propose_unprobed(phase.next_view())

    # --- time ---

    def _tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(self._phase, Master):
            effects = self._phase.tick(self._changer.unresolved, now)
        elif isinstance(self._phase, Mirror):
            effects = self._phase.tick(now)
        if self.view is not None:
            effects += self._changer.tick(self.view, self._log(), now)
        return effects
