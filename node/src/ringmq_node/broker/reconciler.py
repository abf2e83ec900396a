"""Brings the queues that are mastered on this node to what is wanted of them. Pure.

Level-triggered: nothing remembers what an operator has changed. For each queue the present (its
record and the view of its ring) is compared with what is wanted, and the next step towards it is
proposed, one at a time. A step that is lost, refused or overtaken is proposed again when the queue
is looked at next. So a reconciler may die between any two steps; that of the next master goes on.

A replica comes in one step and leaves in three:

    Assign(nodes + n)       n opens a replica, joins the ring, catches up, is synchronised
    Assign(leaving + n)     n doesn't join any more, should it fall out of the ring
    RemoveMember(n)         the ring goes on without n
    Assign(nodes - n)       n deletes its replica

What is never proposed (`check_step` says it again, independently, for tests):

* To take a synchronised replica away before as many others are synchronised as are wanted. Its
  substitute comes first, then it goes. Removing it later costs disk space for a while; removing it
  earlier would leave fewer copies than the queue was promised.
* To take one away below the `min_insync` of the ring, or from a ring without a quorum: that one
  may be the replica that brings the queue back.
* To delete a replica whose life is still in the view, as a member or as an eligible one.
* To hand the queue over to a mirror that isn't synchronised.
* To raise `min_insync` above the synchronised replicas that are up: a change of policy doesn't
  stop a queue.

At most `moves_max` queues get new replicas at a time, as each of these fetches a whole queue. At
most `handovers_max` change their masters at a time, as publishers wait meanwhile.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from itertools import islice

from ringmq_gm.core.views import MemberId, View
from ringmq_node.broker.placement import Fleet, FleetNode, Placement, choose
from ringmq_node.model.policies import Wanted
from ringmq_node.model.records import QueueRecord
from ringmq_node.model.settings import SyncMode


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """One queue as its master's node sees it; `view` has this node as its master."""

    record: QueueRecord
    wanted: Wanted
    view: View


# --- events ---


@dataclass(frozen=True, slots=True)
class FleetSeen:
    """The nodes are like this now. Every queue should be looked at again (`QueueSeen`)."""

    fleet: Fleet


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """This queue is mastered here, and is like this now."""

    facts: QueueFacts


@dataclass(frozen=True, slots=True)
class QueueGone:
    """It isn't mastered here any more, or was deleted."""

    queue_id: str


@dataclass(frozen=True, slots=True)
class StepEnded:
    """The step of this queue has been carried out, or has failed: the facts will show it."""

    queue_id: str


@dataclass(frozen=True, slots=True)
class DeadlineCame:
    """The time of `next_deadline()` has come."""


Event = FleetSeen | QueueSeen | QueueGone | StepEnded | DeadlineCame

# --- effects: each but `LookAtAll` is answered with `StepEnded` ---


@dataclass(frozen=True, slots=True)
class Assign:
    """Change the record, if record and view are still those of `facts`."""

    facts: QueueFacts
    nodes: tuple[str, ...]
    leaving: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoveMember:
    """Put this member out of the ring, if that leaves a quorum."""

    facts: QueueFacts
    member: MemberId


@dataclass(frozen=True, slots=True)
class SetMinInsync:
    """So many synchronised replicas have to have an op from now on."""

    facts: QueueFacts
    count: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """Make this mirror the master."""

    facts: QueueFacts
    target: MemberId


@dataclass(frozen=True, slots=True)
class LookAtAll:
    """A node has been down for so long that it is missed: give all queues again."""


Step = Assign | RemoveMember | SetMinInsync | HandOver
Effect = Step | LookAtAll


# --- one queue ---


def next_step(
    facts: QueueFacts, fleet: Fleet, placement: Placement, *, may_add: bool = True
) -> Step | None:
    """The next step towards `placement`; None if there is none that is safe, or none at all."""
    return (
        _hand_over(facts, placement)
        or _min_insync(facts, fleet)
        or _assigned(facts, fleet, placement, may_add=may_add)
        or _removed(facts, fleet, placement)
    )


def _hand_over(facts: QueueFacts, placement: Placement) -> Step | None:
    view = facts.view
    if placement.master == view.master.node:
        return None
    target = next((m for m in view.synced if m.node == placement.master), None)
    return None if target is None else HandOver(facts, target)


def _min_insync(facts: QueueFacts, fleet: Fleet) -> Step | None:
    now, wanted = facts.view.min_insync, facts.wanted.min_insync
    rises = now < wanted <= _synced_alive(facts.view, fleet)
    return SetMinInsync(facts, wanted) if wanted < now or rises else None


def _assigned(
    facts: QueueFacts, fleet: Fleet, placement: Placement, *, may_add: bool
) -> Step | None:
    """The record: nodes that come, the one that leaves next, and those that have left."""
    record = facts.record
    added = [name for name in placement.nodes if name not in record.nodes]
    surplus = _surplus(facts, placement)
    free = [name for name in surplus if _may_leave(name, facts, fleet, placement)]
    here = {member.node for member in facts.view.candidates} | {m.node for m in facts.view.ids}
    gone = [name for name in free if name not in here]
    nodes = tuple(name for name in record.nodes if name not in gone)
    # One at a time: whether the next one may go is looked at when this one has gone.
    leaving = tuple(name for name in free if name not in gone)[:1]
    if may_add:
        nodes += tuple(added)
    if (nodes, leaving) == (record.nodes, record.leaving):
        return None
    return Assign(facts, nodes, leaving)


def _surplus(facts: QueueFacts, placement: Placement) -> list[str]:
    """The newest first: the reverse of how they came."""
    return [
        name
        for name in reversed(facts.record.nodes)
        if name not in placement.nodes and name != facts.view.master.node
    ]


def _may_leave(name: str, facts: QueueFacts, fleet: Fleet, placement: Placement) -> bool:
    """Whether the queue would still have as many synchronised replicas as it should have."""
    view = facts.view
    left = [m for m in view.synced if m.node != name and fleet.is_alive(m)]
    return (
        view.has_quorum
        and len(left) >= max(view.min_insync, facts.wanted.min_insync, facts.wanted.replicas)
    ) or _is_idle_joiner(name, facts)


def _is_idle_joiner(name: str, facts: QueueFacts) -> bool:
    """A joiner that nobody wants: no confirm waits for it. If its log could not be cut yet, as its
    end may be missed, its node keeps that (`Hosting`)."""
    view = facts.view
    joiners = {member.id.node for member in view.members if not member.synced}
    return name in joiners and name not in {member.node for member in view.candidates}


def _removed(facts: QueueFacts, fleet: Fleet, placement: Placement) -> Step | None:
    """A member that the record names as leaving, or not at all, and that may still go."""
    for member in facts.view.members[1:]:
        name = member.id.node
        # One that isn't named any more has joined while the record was changed. Its node keeps its
        # replica until it is out of the ring.
        is_named = name in facts.record.nodes and name not in facts.record.leaving
        if not is_named and _may_leave(name, facts, fleet, placement):
            return RemoveMember(facts, member.id)
    return None


def _synced_alive(view: View, fleet: Fleet) -> int:
    return sum(map(fleet.is_alive, view.synced))


def check_step(step: Step, fleet: Fleet) -> None:
    """The module's promises, for tests: raises `AssertionError` if the step breaks one."""
    facts = step.facts
    record, view, wanted = facts.record, facts.view, facts.wanted
    synced = {member.node for member in view.synced if fleet.is_alive(member)}
    members = {member.id.node for member in view.members}
    match step:
        case Assign(_, nodes, leaving):
            assert view.master.node not in (*leaving, *(set(record.nodes) - set(nodes)))
            assert set(leaving) <= set(nodes)
            assert len(set(nodes)) == len(nodes)
            for name in set(record.nodes) - set(nodes):
                assert name not in members
                assert name not in {member.node for member in view.eligible}
                assert view.has_quorum
            for name in synced & set(leaving):
                assert len(synced - {name}) >= max(wanted.replicas, view.min_insync)
        case RemoveMember(_, member):
            assert member != view.master
            if member in view.synced:
                assert view.has_quorum
                left = len(synced - {member.node})
                assert left >= max(wanted.replicas, wanted.min_insync, view.min_insync)
        case HandOver(_, target):
            assert target.node in synced
        case SetMinInsync(_, count):
            assert count < view.min_insync or count <= len(synced)


# --- all queues ---


@dataclass(slots=True)
class _Queue:
    facts: QueueFacts
    # The step under way.
    step: Step | None = None
    # The facts on which the last step was proposed, and when it may be proposed again.
    acted_on: QueueFacts | None = None
    retry_at: float = 0.0


@dataclass(frozen=True, slots=True)
class _Move:
    """A queue that has got new nodes; it counts until they are synchronised, or `until`."""

    nodes: frozenset[str]
    until: float


class Reconciler:
    """See the module. Durations in seconds."""

    def __init__(
        self,
        *,
        moves_max: int = 8,
        handovers_max: int = 16,
        replace_after_s: float = 300.0,
        retry_s: float = 1.0,
        move_patience_s: float = 600.0,
    ) -> None:
        """`replace_after_s`: a node that has been down for so long is missed. `move_patience_s`: a
        replica that isn't synchronised after that stops no other queue's move any more."""
        self._moves_max = moves_max
        self._handovers_max = handovers_max
        self._replace_after_s = replace_after_s
        self._retry_s = retry_s
        self._move_patience_s = move_patience_s
        self._fleet = Fleet()
        self._queues: dict[str, _Queue] = {}
        self._moves: dict[str, _Move] = {}
        self._handovers = 0
        # Queues that wait for a move, or for a hand-over, of others to end; the first one first.
        self._held_moves: dict[str, None] = {}
        self._held_handovers: dict[str, None] = {}
        # (time, queue): when to look at a queue again. Entries may be outdated.
        self._due: list[tuple[float, str]] = []
        # When the next node begins to be missed.
        self._missed_at: float | None = None

    def next_deadline(self) -> float | None:
        """When to send a `DeadlineCame`, at the latest."""
        times = [*(time for time, _ in self._due[:1]), self._missed_at]
        return min((time for time in times if time is not None), default=None)

    def queue_ids(self) -> list[str]:
        """The queues that it was shown and that aren't gone."""
        return [*self._queues]

    def step(self, event: Event, *, now: float) -> list[Effect]:
        """Takes one event; returns the effects to be carried out."""
        effects: list[Effect] = []
        match event:
            case FleetSeen(fleet):
                self._fleet = fleet
                self._watch_missed(now)
            case QueueSeen(facts):
                queue_id = facts.record.id
                queue = self._queues.setdefault(queue_id, _Queue(facts))
                queue.facts = facts
                effects += self._look(queue_id, now)
            case QueueGone(queue_id):
                self._forget(queue_id)
            case StepEnded(queue_id):
                self._step_ended(queue_id)
                effects += self._look(queue_id, now)
            case DeadlineCame():
                effects += self._tick(now)
        return effects + self._look_at_held(now)

    # --- time ---

    def _watch_missed(self, now: float) -> None:
        downs = (node.down_since for node in self._fleet.nodes.values())
        times = (since + self._replace_after_s for since in downs if since is not None)
        self._missed_at = min((time for time in times if time > now), default=None)

    def _tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self._missed_at is not None and now >= self._missed_at:
            self._watch_missed(now)
            effects.append(LookAtAll())
        while self._due and self._due[0][0] <= now:
            effects += self._look(heapq.heappop(self._due)[1], now)
        return effects

    def _is_missed(self, node: FleetNode, now: float) -> bool:
        return node.down_since is not None and now >= node.down_since + self._replace_after_s

    # --- looking ---

    def _look(self, queue_id: str, now: float) -> list[Effect]:
        queue = self._queues.get(queue_id)
        if queue is None or queue.step is not None:
            return []
        self._end_move(queue_id, queue, now)
        facts, fleet = queue.facts, self._fleet
        if facts == queue.acted_on and now < queue.retry_at:
            return []
        placement = choose(
            facts.record.nodes,
            facts.view,
            facts.wanted,
            fleet,
            is_missed=lambda node: self._is_missed(node, now),
        )
        # A queue that moves already may change its mind.
        may_add = queue_id in self._moves or len(self._moves) < self._moves_max
        step = next_step(facts, fleet, placement, may_add=may_add)
        if isinstance(step, HandOver) and self._handovers >= self._handovers_max:
            self._held_handovers[queue_id] = None
            return []
        if not may_add and set(placement.nodes) - set(facts.record.nodes):
            self._held_moves[queue_id] = None
        if step is None:
            return []
        self._begin(queue_id, queue, step, now)
        return [step]

    def _begin(self, queue_id: str, queue: _Queue, step: Step, now: float) -> None:
        queue.step, queue.acted_on, queue.retry_at = step, queue.facts, now + self._retry_s
        heapq.heappush(self._due, (queue.retry_at, queue_id))
        if isinstance(step, HandOver):
            self._handovers += 1
        if isinstance(step, Assign):
            added = frozenset(step.nodes) - frozenset(queue.facts.record.nodes)
            self._count(added)
            # A replica that is to be synchronised by hand would take its place for ever.
            if added and queue.facts.wanted.sync.mode is SyncMode.AUTOMATIC:
                until = now + self._move_patience_s
                self._moves[queue_id] = _Move(added, until)
                heapq.heappush(self._due, (until, queue_id))

    def _count(self, added: frozenset[str]) -> None:
        """The next queue is placed in view of these, not only when the nodes are seen again."""
        mirrors = dict(self._fleet.mirrors)
        for name in added:
            mirrors[name] = mirrors.get(name, 0) + 1
        self._fleet = replace(self._fleet, mirrors=mirrors)

    def _step_ended(self, queue_id: str) -> None:
        queue = self._queues.get(queue_id)
        if queue is None or queue.step is None:
            return
        if isinstance(queue.step, HandOver):
            self._handovers -= 1
        queue.step = None

    def _end_move(self, queue_id: str, queue: _Queue, now: float) -> None:
        move = self._moves.get(queue_id)
        if move is None:
            return
        facts, fleet = queue.facts, self._fleet
        synced = {member.node for member in facts.view.synced}
        # The facts may still be those from before the record was changed.
        named = move.nodes if facts == queue.acted_on else frozenset(facts.record.nodes)
        on_the_way = {
            name
            for name in (move.nodes & named) - synced
            if name in fleet.nodes and fleet.nodes[name].alive is not None
        }
        if not on_the_way or now >= move.until:
            del self._moves[queue_id]

    def _forget(self, queue_id: str) -> None:
        self._step_ended(queue_id)
        self._queues.pop(queue_id, None)
        self._moves.pop(queue_id, None)
        self._held_moves.pop(queue_id, None)
        self._held_handovers.pop(queue_id, None)

    def _look_at_held(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for held, free in (
            (self._held_moves, self._moves_max - len(self._moves)),
            (self._held_handovers, self._handovers_max - self._handovers),
        ):
            # One that gets no place after all is held again, at the end.
            for queue_id in [*islice(held, max(free, 0))]:
                del held[queue_id]
                effects += self._look(queue_id, now)
        return effects
