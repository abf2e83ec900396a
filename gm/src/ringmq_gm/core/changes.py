"""How one member brings about a change of the view: suspects, probes, proposals.

Every member may propose; the registry's compare-and-set lets one win, and all
others learn of it. A change goes through four stages:

    IDLE -> PROBING   ask everybody who would be in the next view: are you there?
         -> PROPOSING compare-and-set, if the view is one that I can close
         -> WAITING   after a refusal or a failure: back off, with jitter
         -> IDLE

Why the probe. A master that sees nobody but still sees the registry would
otherwise vote the healthy majority out of the ring. So a member proposes only a
view of which it has just reached every member, and which keeps `min_insync`
synchronised members unless the leases of those it drops have run out
(`View.may_follow`). Neither rule is needed for safety, which rests on the
confirm rule; both are needed so that the ring stays where it can be used.

Who is dead: a node to which the link is down, or which has been seen in a later
life. A joiner trusts its own links less (it may sit behind a broken one), and
counts only earlier lives, and those who don't answer and whose lease has run out.

A ring whose synchronised members have all been restarted begins again from their
disks, if none of the old lives answers; the one with the most proposes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ringmq_gm.core.chance import Chance
from ringmq_gm.core.events import Effect, ProposalOutcome, Propose, RefreshView, Send
from ringmq_gm.core.frames import Ping, Pong
from ringmq_gm.core.views import MemberId, View


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things may take, in seconds."""

    # Waiting for the answers of those who would be in the next view.
    probe_s: float = 0.5
    # The mean pause before the next try. Each is 0.5 to 1.5 times this.
    retry_s: float = 0.3
    # After a whole ring has been restarted: for the others to come up as well.
    restart_grace_s: float = 3.0
    # A promotion that has not drained by then is called off.
    drain_s: float = 5.0
    # An idle master says "stable" after this.
    stable_delay_s: float = 0.05


class Purpose(Enum):
    """Why the view should change."""

    DROP = "drop"
    JOIN = "join"
    RESTART = "restart"


class Stage(Enum):
    IDLE = "idle"
    PROBING = "probing"
    PROPOSING = "proposing"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True, order=True)
class LogEnd:
    """How far a log goes. Ordered: the later epoch wins, then the higher number."""

    epoch: int = 0
    number: int = 0


@dataclass(slots=True)
class Known:
    """What a member knows of the others' lives."""

    # Nodes whose link is down.
    down: set[str] = field(default_factory=set)
    # The highest incarnation seen of each node.
    incarnations: dict[str, int] = field(default_factory=dict)
    # Those with a lease; None before the registry has said anything.
    alive: frozenset[MemberId] | None = None

    def saw(self, member_id: MemberId) -> None:
        if member_id.incarnation > self.incarnations.get(member_id.node, -1):
            self.incarnations[member_id.node] = member_id.incarnation

    def is_superseded(self, member_id: MemberId) -> bool:
        return self.incarnations.get(member_id.node, -1) > member_id.incarnation

    def is_dead(self, member_id: MemberId) -> bool:
        return member_id.node in self.down or self.is_superseded(member_id)

    def is_lapsed(self, member_id: MemberId) -> bool:
        if self.is_superseded(member_id):
            return True
        return self.alive is not None and member_id not in self.alive

    def lapsed_of(self, view: View) -> set[MemberId]:
        return {member_id for member_id in view.ids if self.is_lapsed(member_id)}


@dataclass(slots=True)
class Probe:
    """One round of asking who is there; `replies` by node."""

    kind: Purpose
    targets: tuple[str, ...]
    replies: dict[str, tuple[MemberId, LogEnd]] = field(default_factory=dict)


class ViewChanger:
    """Pure; its owner passes events on, and asks `next_deadline`."""

    def __init__(self, me: MemberId, ring: str, timing: Timing, chance: Chance) -> None:
        self.known = Known()
        self.known.saw(me)
        self.stage = Stage.IDLE
        # What has been proposed in this epoch and may take effect, now or, if the answer
        # was lost, at any later time. Who is synchronised in one of them counts as such.
        self.unresolved: list[View] = []
        self._me = me
        self._ring = ring
        self._timing = timing
        self._chance = chance
        self._nonce = 0
        self._neighbours: tuple[View, tuple[MemberId, ...]] | None = None
        # While PROBING.
        self._probed: Probe | None = None
        self._deadline: float | None = None

    def next_deadline(self) -> float | None:
        return self._deadline

    def view_entered(self) -> None:
        """What was under way is overtaken."""
        self._become(Stage.IDLE)
        self.unresolved = []

    def hold_off(self, now: float) -> None:
        """Have been put out of the ring: whoever did it can't reach me, or I am slow. To come
        back at once would be an endless to and fro."""
        self._wait(now)

    def situation_changed(self) -> None:
        """A link or a lease is not as it was: no reason to go on waiting."""
        if self.stage is Stage.WAITING:
            self._become(Stage.IDLE)

    # --- beginning ---

    def seek(
        self,
        view: View,
        *,
        outside: bool,
        wanted: bool,
        log: LogEnd,
        may_restart: bool,
        now: float,
    ) -> list[Effect]:
        """Begins a change if one is called for and none is under way."""
        if self.stage is not Stage.IDLE:
            return []
        if not outside:
            if self._neighbour_is_dead(view):
                dead = {m for m in view.ids if self.known.is_dead(m)}
                left = tuple(m.node for m in view.ids if m not in dead and m != self._me)
                return self._probe(Purpose.DROP, left, view, log, now)
            return []
        if not wanted:
            return []
        if may_restart and self._may_restart(view):
            targets = tuple(m.node for m in view.synced if m.node != self._me.node)
            return self._probe(Purpose.RESTART, targets, view, log, now)
        earlier = {m for m in view.ids if self.known.is_superseded(m)}
        joined = view.with_joiner(self._me, earlier)
        if joined is None:
            return []
        targets = tuple(m.node for m in joined.ids if m != self._me)
        return self._probe(Purpose.JOIN, targets, view, log, now)

    def propose_unprobed(self, view: View) -> list[Effect]:
        """For a change by the master that drops nobody."""
        assert self.stage is Stage.IDLE
        return self._propose(view)

    def _neighbour_is_dead(self, view: View) -> bool:
        # Asked at every step, so the neighbours of a view are worked out once.
        if self._neighbours is None or self._neighbours[0] is not view:
            index = view.index_of(self._me)
            assert index is not None
            around = (view.ids[index - 1], view.ids[(index + 1) % len(view.members)])
            self._neighbours = view, tuple(m for m in around if m != self._me)
        return any(self.known.is_dead(member_id) for member_id in self._neighbours[1])

    def _may_restart(self, view: View) -> bool:
        """Every synchronised member is an earlier life, and mine is one of them."""
        return self._me.node in {m.node for m in view.synced} and all(
            self.known.is_lapsed(member_id) for member_id in view.synced
        )

    def _probe(
        self, kind: Purpose, targets: tuple[str, ...], view: View, log: LogEnd, now: float
    ) -> list[Effect]:
        self._become(Stage.PROBING)
        self._nonce += 1
        self._probed = Probe(kind, targets)
        timing = self._timing
        self._deadline = now + (
            timing.restart_grace_s if kind is Purpose.RESTART else timing.probe_s
        )
        if not targets:
            return self._conclude(view, log, now)
        return [Send(node, self._ping(view)) for node in targets]

    def _ping(self, view: View) -> Ping:
        return Ping(self._ring, view.epoch, self._nonce)

    # --- going on ---

    def link_up(self, node: str, view: View) -> list[Effect]:
        """A probe that went to a node before its link was up goes again."""
        probe = self._probed
        if probe is not None and node in probe.targets and node not in probe.replies:
            return [Send(node, self._ping(view))]
        return []

    def pong(
        self, sender: MemberId, frame: Pong, view: View, log: LogEnd, now: float
    ) -> list[Effect]:
        probe = self._probed
        if probe is None or frame.nonce != self._nonce:
            return []
        if sender.node in probe.targets:
            probe.replies[sender.node] = (sender, LogEnd(frame.log_epoch, frame.log_number))
        if len(probe.replies) < len(probe.targets):
            return []
        return self._conclude(view, log, now)

    def tick(self, view: View, log: LogEnd, now: float) -> list[Effect]:
        if self._deadline is None or now < self._deadline:
            return []
        if self.stage is Stage.PROBING:
            return self._conclude(view, log, now)
        self._become(Stage.IDLE)
        return []

    def ended(self, proposal: View, outcome: ProposalOutcome, now: float) -> list[Effect]:
        """The proposal did not win (one that won is learned as the view)."""
        if self.stage is not Stage.PROPOSING or proposal not in self.unresolved:
            return []
        if outcome is ProposalOutcome.LOST:
            self.unresolved.remove(proposal)
        self._wait(now)
        return [RefreshView()]

    # --- concluding ---

    def _conclude(self, view: View, log: LogEnd, now: float) -> list[Effect]:
        probe = self._probed
        assert probe is not None
        reached = {self._me, *(member_id for member_id, _ in probe.replies.values())}
        lapsed = self.known.lapsed_of(view)
        proposal = self._proposal(probe, view, log, reached, lapsed)
        if proposal is None or not proposal.may_follow(view, reached=reached, lapsed=lapsed):
            self._wait(now)
            return []
        return self._propose(proposal)

    def _proposal(
        self,
        probe: Probe,
        view: View,
        log: LogEnd,
        reached: set[MemberId],
        lapsed: set[MemberId],
    ) -> View | None:
        if probe.kind is Purpose.DROP:
            return view.without({m for m in view.ids if self.known.is_dead(m)})
        if probe.kind is Purpose.RESTART and not any(m in reached for m in view.ids):
            return self._restarted(probe, view, log)
        # A member that has merely lost its lease is still one: 1. the registry is away until
        # all leases have run out, 2. two nodes join, each without the other, for ever.
        return view.with_joiner(self._me, lapsed - reached)

    def _restarted(self, probe: Probe, view: View, log: LogEnd) -> View | None:
        """Mine to propose only if nobody who answered has more than I.

        And only if no life answered that is in the view: it may take ops between its answer
        and the new view, and would bring them in.
        """
        if not self._may_restart(view):
            return None
        order = [member_id.node for member_id in view.synced]
        logs = {self._me: log, **dict(probe.replies.values())}
        best = max(logs, key=lambda m: (logs[m], -order.index(m.node)))
        if best != self._me:
            return None
        # An empty log is also what one says whose log is damaged.
        equals = [m for m in logs if logs[m] == log] if log != LogEnd() else []
        return view.restarted(self._me, sorted(equals, key=lambda m: order.index(m.node)))

    def _propose(self, proposal: View) -> list[Effect]:
        self._become(Stage.PROPOSING)
        self.unresolved.append(proposal)
        return [Propose(proposal.epoch - 1, proposal)]

    def _wait(self, now: float) -> None:
        self._become(Stage.WAITING)
        self._deadline = now + self._timing.retry_s * (0.5 + self._chance.random())

    def _become(self, stage: Stage) -> None:
        self.stage = stage
        self._probed = None
        self._deadline = None
