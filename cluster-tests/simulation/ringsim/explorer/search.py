"""Every interleaving of a small case: three members, a few ops, a few faults.

It begins with a ring that is quiet, and from then on takes every next event that
is possible, in every state that it gets to, once:

* a frame arrives (links keep order; each link by itself);
* a member's disk has all that was delivered to it;
* the application multicasts an op at a member that takes it;
* a process dies, also between any two effects of one step; with `restarts` it
  comes back with any part of what it had not synced;
* a link breaks without a crash, and is opened again;
* an end of a link is told that it is down, whereby the rest of its frames is lost;
* a proposal reaches the registry and is answered; or is answered UNKNOWN, and
  reaches the registry later, or never;
* a member learns the newest view, or who holds a lease; a joiner fetches its state.

What is left out, to keep the number of states small:

* Timers fire only when nothing but a fault could happen otherwise.
* A sync covers all that has been delivered, and isn't overtaken by a later op.
* A watch shows the newest view, never one that has been followed by another.
* A fetch by a joiner, and its write, are one event.
* An answer to a proposal isn't overtaken by the view that it brought about.

These are in the simulator. States are told apart by 64-bit hashes: among ten
million, two are taken for one with a chance of 3 in a million.

How it is fast: a node's step depends on nothing but the node and the event, so
each pair is stepped once, and a state of the whole is a tuple of small numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

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
    Persisted,
    ProposalEnded,
    ProposalOutcome,
    Propose,
    Received,
    Role,
    RoleChanged,
    Send,
    StartCatchUp,
    Tick,
    ViewLearned,
    Watermarks,
)
from ringmq_gm.core.frames import Envelope, Frame
from ringmq_gm.core.held_ops import LogEnd
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.views import MemberId, View, first_view
from ringsim.explorer.snapshots import clone, key_of
from ringsim.simulator.application import BrokenInvariantError, LogEntry

LATER = 1e6
NAMES = ("a", "b", "c", "d")


class Even:
    """No chance: every back-off is the mean."""

    def random(self) -> float:
        return 0.5


@dataclass(frozen=True, slots=True)
class Case:
    """What may happen at most."""

    members: int = 3
    joiners: int = 0
    ops: int = 3
    crashes: int = 2
    link_breaks: int = 0
    unknowns: int = 0
    restarts: bool = False
    leases: bool = False
    min_insync: int = 1
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A process and its disk, as they are at one moment; never changed."""

    me: MemberId
    member: RingMember | None
    log: tuple[LogEntry, ...]
    # How much of `log` is on disk, and whether that is a log (not one that is being cut).
    synced: int
    whole: bool
    # While catching up: the number after which the ops come that are in `tail`.
    tail_from: int | None = None
    tail: tuple[LogEntry, ...] = ()
    # What it was last told of the leases.
    leases: frozenset[MemberId] | None = None
    # The number of what `key_of` says of the member; 0 if there is none.
    member_key: int = 0

    def key(self) -> Hashable:
        return (
            self.me,
            self.member_key,
            self.log,
            self.synced,
            self.whole,
            self.tail_from,
            self.tail,
            self.leases,
        )

    def holds(self, number: int, entry: LogEntry) -> bool:
        return self.whole and number <= self.synced and self.log[number - 1] == entry


class Facts(NamedTuple):
    """What the explorer asks of a node for every state, looked up once."""

    up: bool
    epoch: int
    role: Role
    stable: int
    last: int
    takes_ops: bool
    has_deadline: bool
    unsynced: bool


class State(NamedTuple):
    """All of it. Nodes, frames and views are numbers of tables in the explorer."""

    nodes: tuple[int, ...]
    # By `source * n + target`.
    channels: tuple[tuple[int, ...], ...]
    # By `end * n + other`: see UP and its like.
    links: tuple[int, ...]
    view: int
    # (proposer, its life, proposal, whether it still waits for the answer)
    pending: tuple[tuple[int, int, int, bool], ...]
    # By number: what has been confirmed, and in which epoch first.
    confirmed: int
    ops: int
    crashes: int
    breaks: int
    unknowns: int


# How an end sees its link.
UP, LOST, DOWN, OPENING = range(4)

Path = tuple[str, "Path | None"]


class ExploredError(BrokenInvariantError):
    """A broken invariant, with the shortest account of how it came: the events."""


@dataclass(slots=True)
class Outcomes:
    """What an exploration came to."""

    states: int = 0
    transitions: int = 0
    ends: int = 0
    is_complete: bool = False


class Explorer:
    """See the module. `run` raises `ExploredError` at the first broken invariant."""

    def __init__(self, case: Case, make_member: Callable[..., RingMember] = RingMember) -> None:
        self.case = case
        self._make_member = make_member
        self._count = case.members + case.joiners
        self._index = {name: index for index, name in enumerate(NAMES[: self._count])}
        self._nodes: list[Node] = []
        self._facts: list[Facts] = []
        self._node_numbers: dict[Hashable, int] = {}
        self._member_numbers: dict[Hashable, int] = {}
        self._frames: list[Frame] = []
        self._frame_numbers: dict[Frame, int] = {}
        self._views: list[View] = []
        self._view_numbers: dict[View, int] = {}
        self._confirmed: list[dict[int, tuple[LogEntry, int]]] = []
        self._confirmed_numbers: dict[Hashable, int] = {}
        self._steps: dict[tuple[int, Hashable], tuple[int, tuple[Effect, ...]]] = {}

    # --- numbers ---

    def _node_number(self, node: Node) -> int:
        key = node.key()
        found = self._node_numbers.get(key)
        if found is None:
            found = self._node_numbers[key] = len(self._nodes)
            self._nodes.append(node)
            self._facts.append(_facts_of(node))
        return found

    def _member_number(self, member: RingMember) -> int:
        return self._member_numbers.setdefault(key_of(member), len(self._member_numbers) + 1)

    def _frame_number(self, frame: Frame) -> int:
        found = self._frame_numbers.get(frame)
        if found is None:
            found = self._frame_numbers[frame] = len(self._frames)
            self._frames.append(frame)
        return found

    def _view_number(self, view: View) -> int:
        found = self._view_numbers.get(view)
        if found is None:
            found = self._view_numbers[view] = len(self._views)
            self._views.append(view)
        return found

    def _confirmed_number(self, confirmed: dict[int, tuple[LogEntry, int]]) -> int:
        key = tuple(sorted(confirmed.items()))
        found = self._confirmed_numbers.get(key)
        if found is None:
            found = self._confirmed_numbers[key] = len(self._confirmed)
            self._confirmed.append(confirmed)
        return found

    # --- running ---

    def run(self, states_max: int | None = None) -> Outcomes:
        """Visits every state, or `states_max` of them; the answer says which."""
        outcomes = Outcomes()
        start = self._start()
        visited = {hash(start)}
        stack: list[tuple[State, Path | None]] = [(start, None)]
        while stack:
            state, path = stack.pop()
            is_end = True
            for name, following in self._expand(state, path):
                outcomes.transitions += 1
                is_end &= name.startswith(FAULTS)
                mark = hash(following)
                if mark not in visited:
                    if states_max is not None and len(visited) >= states_max:
                        outcomes.states = len(visited)
                        return outcomes
                    visited.add(mark)
                    stack.append((following, (name, path)))
            if is_end:
                outcomes.ends += 1
                self._check_end(state, path)
        outcomes.states = len(visited)
        outcomes.is_complete = True
        return outcomes

    def _start(self) -> State:
        """A ring that has shaken hands and is quiet; the joiners are yet to begin."""
        n, case = self._count, self.case
        ids = [MemberId(name, 1) for name in self._index]
        view = first_view(ids[: case.members], case.min_insync)
        nodes = tuple(self._node_number(self._new_node(me, (), whole=True)) for me in ids)
        state = State(
            nodes,
            ((),) * (n * n),
            (UP,) * (n * n),
            self._view_number(view),
            (),
            self._confirmed_number({}),
            case.ops,
            case.crashes,
            case.link_breaks,
            case.unknowns,
        )
        for index in range(n):
            for other in ids:
                if other != ids[index]:
                    state = self._step(state, index, LinkUp(other.node), None)
            state = self._step(state, index, ViewLearned(view), None)
        while any(state.channels):
            at = next(at for at, channel in enumerate(state.channels) if channel)
            state = self._deliver(state, at, None)
        for index in range(n):
            state = self._step(state, index, MembershipWanted(True), None)
        return state

    def _new_node(self, me: MemberId, log: tuple[LogEntry, ...], *, whole: bool) -> Node:
        end = LogEnd(log[-1][0], len(log)) if log else LogEnd()
        member = self._make_member(me, "r", end, log_is_whole=whole, chance=Even())
        key = self._member_number(member)
        return Node(me, member, log, len(log), whole, member_key=key)

    # --- what may happen next ---

    def _expand(self, state: State, path: Path | None) -> Iterator[tuple[str, State]]:
        found = False
        for name, following in self._events(state, path):
            found = True
            yield name, following
        if not found:
            for index, number in enumerate(state.nodes):
                if self._facts[number].has_deadline:
                    yield f"tick {NAMES[index]}", self._step(state, index, Tick(), path, now=LATER)
        yield from self._faults(state, path)

    def _events(self, state: State, path: Path | None) -> Iterator[tuple[str, State]]:
        n, facts = self._count, self._facts
        for at, channel in enumerate(state.channels):
            if channel and state.links[(at % n) * n + at // n] in (UP, LOST):
                source, target = divmod(at, n)
                if facts[state.nodes[target]].up:
                    step = self._deliver
                    yield f"{NAMES[source]}>{NAMES[target]}", step(state, at, path)
                    yield from self._torn(state, target, self._delivered_event(state, at), path, at)
        newest = self._views[state.view].epoch
        for index, number in enumerate(state.nodes):
            fact = facts[number]
            if not fact.up:
                continue
            name = NAMES[index]
            if fact.unsynced:
                yield f"synced {name}", self._sync(state, index, path)
            if fact.epoch < newest:
                event = ViewLearned(self._views[state.view])
                yield f"view {name}", self._step(state, index, event, path)
                yield from self._torn(state, index, event, path)
            if state.ops and fact.takes_ops:
                event_ = Multicast(b"%d" % state.ops, self.case.urgent)
                taken = state._replace(ops=state.ops - 1)
                yield f"op {name}", self._step(taken, index, event_, path)
                yield from self._torn(taken, index, event_, path)
            yield from self._link_events(state, index, path)
            yield from self._slow_events(state, index, path)
        for at in range(len(state.pending)):
            yield from self._registry_events(state, at, path)

    def _link_events(
        self, state: State, index: int, path: Path | None
    ) -> Iterator[tuple[str, State]]:
        n, name = self._count, NAMES[index]
        for other in range(n):
            at = index * n + other
            status = state.links[at]
            if status == LOST:
                told = self._set_link(state, index, other, DOWN)
                yield (
                    f"down {name}-{NAMES[other]}",
                    self._step(told, index, LinkDown(NAMES[other]), path),
                )
            elif status == OPENING:
                told = self._set_link(state, index, other, UP, clear=False)
                yield (
                    f"up {name}-{NAMES[other]}",
                    self._step(told, index, LinkUp(NAMES[other]), path),
                )
            if (
                index < other
                and status in (LOST, DOWN)
                and state.links[other * n + index] in (LOST, DOWN)
                and self._facts[state.nodes[other]].up
            ):
                opened = self._set_link(state, index, other, OPENING)
                yield f"open {name}-{NAMES[other]}", self._set_link(opened, other, index, OPENING)

    def _slow_events(
        self, state: State, index: int, path: Path | None
    ) -> Iterator[tuple[str, State]]:
        node = self._nodes[state.nodes[index]]
        if node.tail_from is not None:
            fetched = self._fetch(state, index, node, path)
            if fetched is not None:
                yield f"fetched {NAMES[index]}", fetched
        if self.case.leases:
            alive = frozenset(
                self._nodes[number].me for number in state.nodes if self._facts[number].up
            )
            if node.leases != alive:
                told = self._with_node(state, index, replace(node, leases=alive))
                yield f"leases {NAMES[index]}", self._step(told, index, LeasesLearned(alive), path)

    def _registry_events(
        self, state: State, at: int, path: Path | None
    ) -> Iterator[tuple[str, State]]:
        index, incarnation, number, is_waiting = state.pending[at]
        name, proposal = NAMES[index], self._views[number]
        node = self._nodes[state.nodes[index]]
        is_waiting = is_waiting and node.member is not None and node.me.incarnation == incarnation
        rest = state._replace(pending=state.pending[:at] + state.pending[at + 1 :])
        won = self._views[state.view].epoch == proposal.epoch - 1
        arrived = self._view_set(rest, proposal, path) if won else rest
        if not is_waiting:
            yield f"late {name}", arrived
            return
        outcome = ProposalEnded(proposal, ProposalOutcome.WON if won else ProposalOutcome.LOST)
        yield f"cas {name}", self._step(arrived, index, outcome, path)
        yield from self._torn(arrived, index, outcome, path)
        if state.unknowns:
            left = (*rest.pending, (index, incarnation, number, False))
            unknown = rest._replace(pending=tuple(sorted(left)), unknowns=state.unknowns - 1)
            event = ProposalEnded(proposal, ProposalOutcome.UNKNOWN)
            yield f"unknown {name}", self._step(unknown, index, event, path)

    def _faults(self, state: State, path: Path | None) -> Iterator[tuple[str, State]]:
        n = self._count
        for index, number in enumerate(state.nodes):
            if self._facts[number].up:
                if state.crashes:
                    yield f"crash {NAMES[index]}", self._crash(state, index)
            elif self.case.restarts:
                yield from self._restart(state, index)
        if state.breaks:
            for one in range(n):
                for two in range(one + 1, n):
                    if state.links[one * n + two] == state.links[two * n + one] == UP:
                        lost = self._set_link(state, one, two, LOST, clear=False)
                        lost = self._set_link(lost, two, one, LOST, clear=False)
                        yield (
                            f"break {NAMES[one]}-{NAMES[two]}",
                            lost._replace(breaks=state.breaks - 1),
                        )

    def _torn(
        self, state: State, index: int, event: Event, path: Path | None, taken_at: int | None = None
    ) -> Iterator[tuple[str, State]]:
        """The process dies in this step, between two of its effects."""
        if not state.crashes:
            return
        effects = self._stepped(state.nodes[index], event, 0.0)[1]
        last = max((at for at, e in enumerate(effects) if _is_seen(e)), default=-1)
        for count in range(1, len(effects)):
            # Effects that nobody sees after the crash make no difference.
            if count <= last and _is_seen(effects[count - 1]):
                began = state if taken_at is None else self._without_first(state, taken_at)
                done = self._step(began, index, event, path, limit=count)
                yield f"torn {NAMES[index]} {count}", self._crash(done, index)

    # --- making it happen ---

    def _delivered_event(self, state: State, at: int) -> Event:
        source = at // self._count
        sender = self._nodes[state.nodes[source]].me
        return Received(Envelope(sender, self._frames[state.channels[at][0]]))

    def _without_first(self, state: State, at: int) -> State:
        channels = state.channels
        return state._replace(channels=(*channels[:at], channels[at][1:], *channels[at + 1 :]))

    def _deliver(self, state: State, at: int, path: Path | None) -> State:
        event = self._delivered_event(state, at)
        return self._step(self._without_first(state, at), at % self._count, event, path)

    def _stepped(self, number: int, event: Event, now: float) -> tuple[int, tuple[Effect, ...]]:
        """The node after the event, its disk untouched, and the effects that it asks for."""
        memo = (number, event)
        found = self._steps.get(memo)
        if found is None:
            node = self._nodes[number]
            assert node.member is not None
            member = clone(node.member)
            effects = tuple(member.step(event, now=now))
            member.check()
            after = replace(node, member=member, member_key=self._member_number(member))
            found = self._steps[memo] = (self._node_number(after), effects)
        return found

    def _step(
        self,
        state: State,
        index: int,
        event: Event,
        path: Path | None,
        *,
        now: float = 0.0,
        limit: int | None = None,
    ) -> State:
        number, effects = self._stepped(state.nodes[index], event, now)
        state = state._replace(nodes=(*state.nodes[:index], number, *state.nodes[index + 1 :]))
        for effect in effects[:limit]:
            state = self._perform(state, index, effect, path)
        self._check_stable(state, index, path)
        return state

    def _perform(self, state: State, index: int, effect: Effect, path: Path | None) -> State:
        match effect:
            case Send(name, frame):
                target = self._index[name]
                at = index * self._count + target
                ends = (state.links[at], state.links[target * self._count + index])
                if ends[0] != UP or ends[1] not in (UP, OPENING):
                    return state
                channels = state.channels
                longer = (*channels[at], self._frame_number(frame))
                return state._replace(channels=(*channels[:at], longer, *channels[at + 1 :]))
            case Deliver(number, epoch, payload):
                node = self._nodes[state.nodes[index]]
                return self._with_node(
                    state, index, self._delivered(node, number, (epoch, payload), path)
                )
            case Watermarks():
                return self._check_confirm(state, index, effect, path)
            case Propose(_, view):
                incarnation = self._nodes[state.nodes[index]].me.incarnation
                proposal = (index, incarnation, self._view_number(view), True)
                return state._replace(pending=tuple(sorted((*state.pending, proposal))))
            case RoleChanged(Role.MASTER, view):
                self._check_master(state, index, view, path)
            case RoleChanged(Role.OUTSIDE, _):
                node = self._nodes[state.nodes[index]]
                if node.tail_from is not None:
                    return self._with_node(state, index, replace(node, tail_from=None, tail=()))
            case StartCatchUp(number):
                node = self._nodes[state.nodes[index]]
                self._require(
                    node.me not in self._views[state.view].synced, path, f"{node.me} cuts its log"
                )
                return self._with_node(
                    state, index, replace(node, whole=False, tail_from=number, tail=())
                )
            case _:
                pass
        return state

    def _delivered(self, node: Node, number: int, entry: LogEntry, path: Path | None) -> Node:
        if node.tail_from is not None:
            fits = number == node.tail_from + len(node.tail) + 1
            self._require(fits, path, f"{node.me} delivers {number} out of order")
            return replace(node, tail=(*node.tail, entry))
        if number <= len(node.log):
            same = node.log[number - 1] == entry
            self._require(same, path, f"{node.me} delivers another {number}: {entry}")
            return node
        self._require(number == len(node.log) + 1, path, f"{node.me} skips to {number}")
        return replace(node, log=(*node.log, entry))

    def _with_node(self, state: State, index: int, node: Node) -> State:
        number = self._node_number(node)
        return state._replace(nodes=(*state.nodes[:index], number, *state.nodes[index + 1 :]))

    def _sync(self, state: State, index: int, path: Path | None) -> State:
        node = self._nodes[state.nodes[index]]
        synced = self._with_node(state, index, replace(node, synced=len(node.log)))
        return self._step(synced, index, Persisted(len(node.log)), path)

    def _fetch(self, state: State, index: int, node: Node, path: Path | None) -> State | None:
        """From the member upstream, if it is there and in the same view."""
        member = node.member
        assert member is not None
        assert member.view is not None
        at = member.view.index_of(node.me)
        assert at
        source_id = member.view.ids[at - 1]
        source_index = self._index[source_id.node]
        source = self._nodes[state.nodes[source_index]]
        if source.member is None or source.me != source_id or source.tail_from is not None:
            return None
        if source.member.view != member.view:
            return None
        if state.links[index * self._count + source_index] != UP:
            return None
        assert node.tail_from is not None
        behind = node.tail[max(0, len(source.log) - node.tail_from) :]
        overlap = source.log[node.tail_from :]
        self._require(
            overlap[: len(node.tail)] == node.tail[: len(overlap)], path, f"{node.me}: logs part"
        )
        log = (*source.log, *behind)
        caught_up = replace(node, log=log, synced=len(log), whole=True, tail_from=None, tail=())
        state = self._with_node(state, index, caught_up)
        return self._step(state, index, CaughtUp(len(log)), path)

    def _set_link(
        self, state: State, end: int, other: int, status: int, *, clear: bool = True
    ) -> State:
        """How `end` sees its link to `other`; `clear`: what is on its way to it is lost."""
        n = self._count
        links = list(state.links)
        links[end * n + other] = status
        channels = state.channels
        at = other * n + end
        if clear and channels[at]:
            channels = (*channels[:at], (), *channels[at + 1 :])
        return state._replace(links=tuple(links), channels=channels)

    def _crash(self, state: State, index: int) -> State:
        n = self._count
        node = self._nodes[state.nodes[index]]
        log = node.log if self.case.restarts else node.log[: node.synced]
        state = self._with_node(state, index, Node(node.me, None, log, node.synced, node.whole))
        for other in range(n):
            if other == index:
                continue
            # What it has sent may still come in, until the other end notices.
            if state.links[other * n + index] in (UP, OPENING):
                state = self._set_link(state, other, index, LOST, clear=False)
            state = self._set_link(state, index, other, DOWN)
        return state._replace(crashes=state.crashes - 1)

    def _restart(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        """With each length of log that the torn write may have left."""
        node = self._nodes[state.nodes[index]]
        for kept in range(node.synced, len(node.log) + 1):
            me = MemberId(node.me.node, node.me.incarnation + 1)
            log = node.log[:kept] if node.whole else ()
            started = self._with_node(state, index, self._new_node(me, log, whole=node.whole))
            started = self._step(started, index, MembershipWanted(True), None)
            yield f"restart {NAMES[index]} {kept}", started

    # --- what must hold ---

    def _require(self, holds: bool, path: Path | None, message: str) -> None:
        if holds:
            return
        events: list[str] = []
        while path is not None:
            name, path = path
            events.append(name)
        raise ExploredError(f"{message}\nin {self.case}\nafter: {', '.join(reversed(events))}")

    def _check_stable(self, state: State, index: int, path: Path | None) -> None:
        mine = self._facts[state.nodes[index]]
        if mine.role is Role.OUTSIDE:
            return
        for number in state.nodes:
            other = self._facts[number]
            if other.up and other.epoch == mine.epoch and other.role is not Role.OUTSIDE:
                fine = mine.stable <= other.last and other.stable <= mine.last
                self._require(fine, path, "dropped what another member lacks")

    def _check_confirm(
        self, state: State, index: int, marks: Watermarks, path: Path | None
    ) -> State:
        node = self._nodes[state.nodes[index]]
        member = node.member
        assert member is not None
        view = member.view
        assert view is not None
        self._require(view.master == node.me, path, f"{node.me} confirms, and isn't master")
        self._require(len(view.synced) >= view.min_insync, path, f"{node.me} has no quorum")
        upto = marks.received if self.case.urgent else marks.persisted
        confirmed = dict(self._confirmed[state.confirmed])
        for number in range(1, upto + 1):
            entry = node.log[number - 1]
            known = confirmed.setdefault(number, (entry, view.epoch))
            self._require(known[0] == entry, path, f"op {number} confirmed twice")
        state = state._replace(confirmed=self._confirmed_number(confirmed))
        self._check_disks(state, path)
        return state

    def _check_disks(self, state: State, path: Path | None) -> None:
        if self.case.urgent:
            return
        for member_id in self._views[state.view].synced:
            node = self._nodes[state.nodes[self._index[member_id.node]]]
            for number, (entry, _) in self._confirmed[state.confirmed].items():
                fine = node.holds(number, entry)
                self._require(fine, path, f"{member_id} has not op {number} on disk")

    def _view_set(self, state: State, view: View, path: Path | None) -> State:
        state = state._replace(view=self._view_number(view))
        self._check_disks(state, path)
        return state

    def _check_master(self, state: State, index: int, view: View, path: Path | None) -> None:
        node = self._nodes[state.nodes[index]]
        for number, (entry, epoch) in self._confirmed[state.confirmed].items():
            fine = epoch > view.epoch or (number <= len(node.log) and node.log[number - 1] == entry)
            self._require(fine, path, f"{node.me} is master without op {number}")

    def _check_end(self, state: State, path: Path | None) -> None:
        """Nothing more happens by itself: the ring must be whole, and all of it confirmed."""
        nodes = [self._nodes[n] for n in state.nodes if self._facts[n].up]
        view = self._views[state.view]
        if not nodes or len(view.synced) < view.min_insync:
            return
        held = {node.me for node in nodes} | {
            m for m in view.ids if not self._facts[state.nodes[self._index[m.node]]].up
        }
        if not set(view.ids) <= held or any(m not in {x.me for x in nodes} for m in view.ids):
            # A dead member is left in: only if it can't be known that it is dead.
            self._require(False, path, f"it ends with {view}, up are {[n.me for n in nodes]}")
        self._require(not state.ops, path, "it ends, and no member takes ops")
        logs = {node.log for node in nodes}
        self._require(len(logs) == 1, path, f"it ends with different logs: {logs}")
        for node in nodes:
            assert node.member is not None
            self._require(
                len(node.member.ops.cache) == 0,
                path,
                f"{node.me} ends with ops that are not stable",
            )
        count = len(self._confirmed[state.confirmed])
        self._require(count == len(nodes[0].log), path, f"it ends with {count} ops confirmed")


# Prefixes of the names of what doesn't happen by itself.
FAULTS = ("crash", "break", "torn", "unknown")


def _is_seen(effect: Effect) -> bool:
    """Whether others can tell that it was done before a crash."""
    return isinstance(effect, (Send, Propose, Watermarks))


def _facts_of(node: Node) -> Facts:
    member = node.member
    if member is None:
        return Facts(False, 0, Role.OUTSIDE, 0, 0, False, False, False)
    role = Role.OUTSIDE if member.awaits_start else member.role
    return Facts(
        True,
        member.view.epoch if member.view else 0,
        role,
        member.ops.stable,
        member.ops.last,
        member.refusal() is None and member.has_quorum,
        member.next_deadline() is not None,
        node.tail_from is None and node.synced < len(node.log),
    )


# Of one case, when many are explored.
STATES_MAX = 5_000_000


def explored(case: Case) -> Outcomes:
    """A case, up to `STATES_MAX`."""
    return Explorer(case).run(STATES_MAX)
