"""The way in which one member brings about a change of the view: suspect, probe, propose.

Every member may propose; the registry's compare-and-set lets one win, and all others learn of
it. A change goes through four stages:

    Idle -> Probing    ask all members of the wanted view: are you there?
         -> Proposing  compare-and-set, if this member can close the view
         -> Waiting    after a refusal or a failure: back off, with jitter; and ask the others
         -> Idle

Why the probe. A master that sees nobody but still sees the registry would otherwise vote the
healthy majority out of the ring. So a member proposes only a view of which it has just reached
every member, and which keeps `min_insync` synchronised members unless the leases of those it
drops have run out (`View.may_follow`). Neither rule is needed for safety, which rests on the
confirm rule of the master; both are needed so that the ring stays where it can be used.

A member that is cut from the registry asks the other members of its proposal to make it in its
place (`ViewWanted`); it knows best whom it can't reach. For the registry that is a proposal which
was late on its way: a compare-and-set on the epoch, like any other. For both members it may take
effect until the epoch ends, so both count it (`unresolved`):

1. the master a is cut from the registry, and asks b to propose that c is synchronised, 2. a gives
up, and forgets it, 3. b proposes it, and it takes effect, 4. a confirms an op that c doesn't have.

A node is dead to a member if the link to it is down, or if a later life of it has been seen: behind
a link, in a frame or in the registry. A joiner trusts its own links less, as it may sit behind a
broken one: it counts only earlier lives, and members that don't answer and whose lease has run out.

How long an answer is waited for. Of a node that dies in ten thousand rings, all of them probe at
once, and answers take seconds for no other reason than that. A probe that gave up, and asked again
from the start, would only add to what the others have to read: 97 of 100 probes came to nothing
that way, and four fifths of the queues stayed without a master. So an answer counts that comes
after the time, until the next view; and each time that answers are missing the next ones get twice
the time, up to `probe_s_max`, until a link or a lease changes. (Not for beginning again: an older
answer may tell of a log that was cut since.)

A member outside a ring in which nobody is left that could go on begins it again: see `restarts`.
With a loss that an operator has accepted: see `losses`.
"""

from __future__ import annotations

from ringmq_gm.core import losses, restarts
from ringmq_gm.core.chance import Chance
from ringmq_gm.core.events import (
    Effect,
    LeasesLearned,
    LossAccepted,
    LossEnded,
    LossOutcome,
    NodesKnown,
    ProposalOutcome,
    Propose,
    RefreshView,
    Send,
)
from ringmq_gm.core.frames import Ping, Pong, ViewWanted
from ringmq_gm.core.held_ops import LogEnd
from ringmq_gm.core.hold_off import HoldOff
from ringmq_gm.core.lives import Lives
from ringmq_gm.core.stages import IDLE, PROPOSING, Log, Probing, Purpose, Stage, Waiting
from ringmq_gm.core.timing import Timing
from ringmq_gm.core.views import MemberId, View


class ViewChanger:
    """Pure; its owner passes events on, and asks `next_deadline`."""

    def __init__(self, me: MemberId, ring: str, timing: Timing, chance: Chance) -> None:
        self.lives = Lives()
        self.lives.saw(me)
        # Whether this member is wanted in the ring. If not, it doesn't join it; but it answers for
        # its log, and so it begins the ring again if that is the longest: others wait for it.
        self.is_wanted = False
        # The views that were proposed in this epoch and may take effect: now or, if the answer
        # was lost, at any later time. The master counts their synchronised members as such.
        self.unresolved: list[View] = []
        self._stage: Stage = IDLE
        self._me = me
        self._ring = ring
        self._timing = timing
        self._chance = chance
        self._hold_off = HoldOff()
        # How many proposals have failed in this epoch; and the one that another member wanted.
        self._failures = 0
        self._for_another: View | None = None
        # The number of the newest probe, and of the oldest one to which an answer counts.
        self._nonce = 0
        self._nonce_min = 0
        # How long the next probe waits for answers.
        self._patience_s = timing.probe_s
        # An operator's decision that has not been answered.
        self._accepted: LossAccepted | None = None
        # The members whose disks seemed to hang when the last probe for that began.
        self._stalled: frozenset[MemberId] = frozenset()
        # The view that was asked about last, and this member's neighbours in it.
        self._neighbours: tuple[View, tuple[MemberId, ...]] | None = None

    @property
    def is_idle(self) -> bool:
        return self._stage is IDLE

    def next_deadline(self) -> float | None:
        held_off_until = self._hold_off.until
        if self._stage is IDLE:
            return held_off_until  # Asked after every step, and this is nearly always so.
        match self._stage:
            case Probing(deadline=deadline) | Waiting(deadline=deadline):
                return deadline if held_off_until is None else min(deadline, held_off_until)
            case _:
                return held_off_until

    # --- the situation ---

    def view_entered(self, view: View | None) -> list[Effect]:
        """A change under way is overtaken. None: the ring is deleted."""
        ended = self.loss_ended(losses.outcome_in(view, self._me))
        ended += losses.told(self._ring, view, self._me, self.lives)
        # Proposals of the epoch before can't take effect any more: each was a compare-and-set on
        # that epoch.
        self._stage = IDLE
        self.unresolved = []
        self._failures, self._for_another = 0, None
        self._nonce_min = self._nonce + 1
        self._patience_s = self._timing.probe_s
        return ended

    def came_in(self, now: float) -> None:
        """This member is in the ring."""
        self._hold_off.came_in(now)

    def put_out(self, now: float) -> None:
        """This member isn't in the ring any more, and didn't ask for that.

        To come back at once would be an endless to and fro: two members that can't see each other
        would put each other out by turns.
        """
        self._wait(now)
        self._hold_off.put_out(now, self._timing, self._chance)

    def situation_changed(self) -> None:
        """A link or a lease is not as it was: there is no reason to go on waiting."""
        stage = self._stage
        if isinstance(stage, Waiting) or (isinstance(stage, Probing) and stage.may_wait):
            self._stage = IDLE
        self._patience_s = self._timing.probe_s

    def member_gone(self, member_id: MemberId) -> None:
        """It has failed. Its node goes on answering heartbeats, so nothing else would show it."""
        self.lives.has_gone(member_id)
        self.situation_changed()

    def nodes_learned(self, event: LeasesLearned | NodesKnown) -> list[Effect]:
        """The registry has told which lives hold a lease, or which nodes aren't forgotten."""
        match event:
            case LeasesLearned(alive):
                if self.lives.learn_leases(alive):
                    self.situation_changed()
            case NodesKnown(nodes):
                self.lives.known = nodes
        return []

    # --- beginning ---

    def seek_drop(self, view: View, log: Log, now: float) -> list[Effect]:
        """A member with a dead neighbour, or a master without contact: begins a change, while none
        is under way."""
        if self._stage is not IDLE:
            return []
        # All of the dead, not only the neighbour: one view for two deaths.
        dead = self._dead_of(view)
        left = tuple(m.node for m in view.ids if m not in dead and m != self._me)
        return self._probe(Purpose.DROP, left, view, log, now)

    def seek_stalled(
        self, stalled: frozenset[MemberId], view: View, log: Log, now: float
    ) -> list[Effect]:
        """The master finds that these disks hang: drops their members if all others answer."""
        left = tuple(m.node for m in view.synced if m not in stalled and m != self._me)
        self._stalled = stalled
        return self._probe(Purpose.STALLED, left, view, log, now)

    def seek_entry(self, view: View, log: Log, now: float) -> list[Effect]:
        """Outside the ring: begins it again, or joins it if it is wanted there."""
        if self._stage is not IDLE:
            return []
        if self._none_can_go_on(view):
            # Even if this log isn't whole, and this member can't begin the ring. Another one may
            # wait for its answer, and the last one was given before this member knew the view.
            targets = tuple(m.node for m in view.candidates if m.node != self._me.node)
            return self._probe(Purpose.RESTART, targets, view, log, now)
        if not self.is_wanted or (self._hold_off.until is not None and view.has_quorum):
            return []
        return self._seek_join(view, log, now)

    def _seek_join(self, view: View, log: Log, now: float) -> list[Effect]:
        if not self.is_wanted:
            self._wait(now)  # It may ask again whether anybody goes on, but not at once.
            return []
        earlier = {m for m in view.ids if self.lives.is_superseded(m)}
        joined = view.with_joiner(self._me, earlier)
        if joined is None:
            return []
        targets = tuple(m.node for m in joined.ids if m != self._me)
        return self._probe(Purpose.JOIN, targets, view, log, now)

    def accept_loss(self, asked: LossAccepted, view: View, log: Log, now: float) -> list[Effect]:
        """An operator wants the ring begun again from this member's log, which may lack ops."""
        if self._stage is PROPOSING or self._accepted is not None:
            return [LossEnded(LossOutcome.BUSY)]
        if not restarts.all_gone(view, self.lives):
            return [LossEnded(LossOutcome.MEMBERS_LIVE)]
        self._accepted = asked
        targets = tuple({m.node: None for m in view.candidates if m.node != self._me.node})
        return self._probe(Purpose.LOSS, targets, view, log, now)

    def loss_ended(self, outcome: LossOutcome) -> list[Effect]:
        """Answers the operator, if one waits."""
        if self._accepted is None:
            return []
        self._accepted = None
        return [LossEnded(outcome)]

    @property
    def loss_is_open(self) -> bool:
        """Whether a loss that an operator has accepted here may take effect in this epoch.

        Also after the operator was told that the registry did not answer.
        """
        is_proposed = any(proposal.own_loss is not None for proposal in self.unresolved)
        return is_proposed or self._accepted is not None

    def propose_unprobed(self, view: View | None) -> list[Effect]:
        """For a change that needs no probe: it drops nobody, or a member that is merely slow. None:
        no change is wanted."""
        assert self._stage is IDLE
        return [] if view is None else self._propose(view)

    def has_dead_neighbour(self, view: View) -> bool:
        """Whether a neighbour of this member is dead; it is in `view`."""
        lives = self.lives
        if lives.all_well_in is view and not lives.down and not lives.gone:
            return False  # Asked at every step, and this is nearly always so.
        if self._neighbours is None or self._neighbours[0] is not view:
            index = view.index_of(self._me)
            assert index is not None
            around = (view.ids[index - 1], view.ids[(index + 1) % len(view.members)])
            self._neighbours = view, tuple(m for m in around if m != self._me)
        found = any(map(lives.is_dead, self._neighbours[1]))
        lives.all_well_in = None if found else view
        return found

    def knows_dead(self, view: View) -> bool:
        """Whether any member of the view is dead, a neighbour or not."""
        return bool(self._dead_of(view))

    def _dead_of(self, view: View) -> set[MemberId]:
        return {m for m in view.ids if self.lives.is_dead(m)}

    def _probe(
        self, purpose: Purpose, targets: tuple[str, ...], view: View, log: Log, now: float
    ) -> list[Effect]:
        patience_s = self._patience_s
        if purpose is Purpose.JOIN and self._is_out_of_reach(targets, view):
            # Its link or its lease has to change first. A node that returns to ten thousand rings
            # would do nothing but ask in vain, and have no time for the link.
            patience_s = self._timing.probe_s_max
        probe = self._stage = Probing(purpose, targets, now + patience_s)
        self._nonce += 1
        if probe.asks_all:
            probe.deadline = now + self._timing.restart_grace_s
            # What was said of a log before may not be true any more.
            self._nonce_min = self._nonce
        else:
            probe.is_patient = patience_s > self._timing.probe_s
        if not targets:
            return self._conclude(probe, view, log, now)
        return [Send(node, self._ping(view)) for node in targets]

    def _is_out_of_reach(self, targets: tuple[str, ...], view: View) -> bool:
        """Whether one of these nodes can't answer now, and no view without it may follow."""
        down = self.lives.down.intersection(targets)
        # Mostly there is none. And a member that has lost its lease can be left out.
        return bool(down) and any(m.node in down and not self.lives.is_lapsed(m) for m in view.ids)

    def _ping(self, view: View) -> Ping:
        return Ping(self._ring, view.epoch, self._nonce)

    # --- going on ---

    def link_up(self, life: MemberId, view: View | None) -> list[Effect]:
        """A probe that went to a node before its link was up goes again."""
        node = life.node
        # A new life that can't read the view has no frame to send, and may hold no lease. Its link
        # alone shows that the life before it is dead.
        self.lives.saw(life)
        self.lives.down.discard(node)
        self.situation_changed()
        probe = self._stage
        if view is None or not isinstance(probe, Probing):
            return []
        if node in probe.targets and node not in probe.replies:
            return [Send(node, self._ping(view))]
        return []

    def link_down(self, node: str) -> list[Effect]:
        self.lives.down.add(node)
        self.situation_changed()
        return []

    def pong(self, sender: MemberId, frame: Pong, view: View, log: Log, now: float) -> list[Effect]:
        stage = self._stage
        probe = stage.lacking if isinstance(stage, Waiting) else stage
        if not isinstance(probe, Probing) or not self._nonce_min <= frame.nonce <= self._nonce:
            return []
        if probe.asks_all:
            if sender in view.synced:
                # It goes on by itself, or will find that it can't.
                self._stage = IDLE
                ended = self.loss_ended(LossOutcome.MEMBERS_LIVE)
                return ended or self._seek_join(view, log, now)
            if frame.epoch != view.epoch:
                return []
        # By node: the answer may come from another life than the one that was asked.
        if sender.node in probe.targets:
            end = LogEnd(frame.log_epoch, frame.log_number)
            probe.replies[sender.node] = (sender, Log(end, frame.log_is_whole))
        if probe.is_answered:
            return self._conclude(probe, view, log, now)
        logs = probe.logs(self._me, log)
        if probe.purpose is Purpose.RESTART and restarts.are_enough(view, logs, self.lives):
            probe.deadline = min(probe.deadline, now + self._timing.probe_s)
        return []

    def pinged(self, sender: MemberId, frame: Ping, view: View) -> list[Effect]:
        """Asks a candidate again that knows this view by now. Its first answer may not have
        counted, because it had just been started and knew no view."""
        probe = self._stage
        if not isinstance(probe, Probing):
            return []
        if not probe.asks_all:
            return []
        if frame.epoch != view.epoch or sender.node in probe.replies:
            return []
        return [Send(sender.node, self._ping(view))] if sender.node in probe.targets else []

    def tick(self, view: View, log: Log, now: float) -> list[Effect]:
        self._hold_off.tick(now)
        match self._stage:
            case Probing(deadline=deadline) as probe if now >= deadline:
                self._patience_s = min(2 * self._patience_s, self._timing.probe_s_max)
                return self._conclude(probe, view, log, now)
            case Waiting(deadline=deadline) if now >= deadline:
                self._stage = IDLE
        return []

    def proposal_failed(
        self, proposal: View, outcome: ProposalOutcome, view: View | None, now: float
    ) -> list[Effect]:
        """The proposal did not win, for all that is known (one that won is learned as the view)."""
        if self._stage is not PROPOSING or proposal not in self.unresolved:
            return []
        # An UNKNOWN one stays: it may take effect as long as the epoch is the same.
        if outcome is ProposalOutcome.LOST:
            self.unresolved.remove(proposal)
        self._wait(now)
        self._failures += 1
        ended = LossOutcome.RING_CHANGED if outcome is ProposalOutcome.LOST else LossOutcome.UNKNOWN
        effects: list[Effect] = [*self.loss_ended(ended), RefreshView()]
        # One that is lost has mostly come second; a registry that is away loses every one.
        if outcome is ProposalOutcome.UNKNOWN or self._failures > 1:
            effects += self._ask_others(proposal, view)
        return effects

    def _ask_others(self, proposal: View, view: View | None) -> list[Effect]:
        """Asks the other members of this proposal, which has failed here, to make it. And all
        candidates, if it begins the ring again: they wait for the longest log, and its member may
        be the only one of the proposal."""
        # The operator who has accepted a loss was told that it has failed.
        if proposal == self._for_another or proposal.own_loss is not None:
            return []
        asked = {m.node: None for m in proposal.ids}
        if view is not None and not set(proposal.ids).intersection(view.synced):
            asked |= {m.node: None for m in view.candidates}
        nodes = [name for name in asked if name not in {self._me.node, *self.lives.down}]
        if not nodes:
            return []
        if proposal not in self.unresolved:
            self.unresolved.append(proposal)
        wanted = ViewWanted(self._ring, proposal.epoch - 1, proposal)
        return [Send(node, wanted) for node in nodes]

    def propose_for_another(self, proposal: View) -> list[Effect]:
        """Another member wants this view, which follows the present one, and is cut from the
        registry. It asks again if nothing comes of it."""
        if self._stage is PROPOSING or self._accepted is not None:
            return []
        self._for_another = proposal
        return self._propose(proposal)

    # --- concluding ---

    def _conclude(self, probe: Probing, view: View, log: Log, now: float) -> list[Effect]:
        reached = {self._me, *(member_id for member_id, _ in probe.replies.values())}
        if probe.purpose is Purpose.LOSS:
            return self._conclude_loss(probe, view, log, now)
        if probe.purpose is Purpose.RESTART:
            proposal = self._restarted(probe, view, log)
        else:
            proposal = self._changed(probe.purpose, view, reached)
        if proposal is None:
            is_open = probe.purpose in (Purpose.DROP, Purpose.JOIN) and not probe.is_answered
            self._wait(now, probe if is_open else None)
            return []
        return self._propose(proposal)

    def _changed(self, purpose: Purpose, view: View, reached: set[MemberId]) -> View | None:
        """The view after a death or a joining; None if this member can't close it."""
        lapsed = self.lives.lapsed_of(view)
        if purpose is Purpose.STALLED:
            left = view.without(self._stalled)
            return left if left is not None and reached.issuperset(left.synced) else None
        if purpose is Purpose.DROP:
            # As it is now, not as it was when the probe began: a link may be up again.
            proposal = view.without(self._dead_of(view))
        else:
            # A member that has merely lost its lease is still one: 1. the registry is away until
            # all leases have run out, 2. two nodes join, each without the other, for ever.
            proposal = view.with_joiner(self._me, lapsed - reached)
        if proposal is None or not proposal.may_follow(view, reached=reached, lapsed=lapsed):
            return None
        return proposal

    def _none_can_go_on(self, view: View) -> bool:
        return restarts.none_can_go_on(view, self._me, self.lives)

    def _restarted(self, probe: Probing, view: View, log: Log) -> View | None:
        if not self._none_can_go_on(view):
            return None
        return restarts.begun_again(view, self._me, probe.logs(self._me, log), self.lives)

    def _conclude_loss(self, probe: Probing, view: View, log: Log, now: float) -> list[Effect]:
        """Carries out the operator's decision, unless nothing or less need be lost."""
        asked = self._accepted
        assert asked is not None
        logs = probe.logs(self._me, log)
        refusal: LossOutcome | None
        if not restarts.all_gone(view, self.lives):
            refusal = LossOutcome.MEMBERS_LIVE
        elif view.may_begin_again(restarts.heard(view, logs, self.lives)):
            refusal = LossOutcome.NOT_NEEDED
        else:
            refusal = losses.refusal(asked, view, self._me, logs)
        if refusal is not None:
            self._wait(now)
            return self.loss_ended(refusal)
        return self._propose(losses.begun_with(asked, view, self._me))

    def _propose(self, proposal: View) -> list[Effect]:
        self._stage = PROPOSING
        self.unresolved.append(proposal)
        return [Propose(proposal.epoch - 1, proposal)]

    def _wait(self, now: float, lacking: Probing | None = None) -> None:
        pause_s = self._timing.retry_s * (0.5 + self._chance.random())
        self._stage = Waiting(now + pause_s, lacking)
