"""The transitions between states: an event is taken, its effects are carried out.

Effects that only one node can see change its disk; the others change channels, links, the
registry's view and the proposals on their way to it. `rules` looks at each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import NamedTuple

from ringmq_gm.core.events import (
    CaughtUp,
    Deliver,
    Effect,
    Event,
    LinkUp,
    MembershipWanted,
    Persisted,
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
from ringmq_gm.core.frames import Envelope
from ringmq_gm.core.held_ops import LogEnd
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.timing import Timing
from ringmq_gm.core.views import MemberId, first_view
from ringsim.explorer.rules import Rules
from ringsim.explorer.snapshots import clone
from ringsim.explorer.states import (
    DOWN,
    LOST,
    NAMES,
    OPENING,
    UP,
    Case,
    NodeState,
    Path,
    State,
    Tables,
)
from ringsim.simulator.application import LogEntry

MakeMember = Callable[..., RingMember]


# No disk is ever taken for one that hangs: that depends on time alone.
TIMING = Timing(disk_stall_s=inf)


# After every deadline.
LATER = 1e6


class Even:
    """No chance: every back-off is the mean."""

    def random(self) -> float:
        return 0.5


class Stepped(NamedTuple):
    """What one event does to one node, found out once."""

    # The node after the step, with the disk that it had before.
    node: int
    # An act for each effect, in their order: a `_Send`, the number of the node whose disk has
    # changed, or an effect that looks at the whole state.
    acts: tuple[_Send | int | Effect, ...]
    # After how many effects a crash makes a difference to others.
    torn: tuple[int, ...]


class _Send(NamedTuple):
    """A frame for another node: its channel, the link's other end, and the frame's number."""

    at: int
    back: int
    frame: int


class Transitions:
    """Each method returns the state after one event; `path` is for the account of a failure."""

    def __init__(
        self, case: Case, tables: Tables, rules: Rules, index_of: dict[str, int], make: MakeMember
    ) -> None:
        self._case = case
        self._tables = tables
        self._rules = rules
        self._index = index_of
        self._count = len(index_of)
        self._make_member = make
        # By the numbers of the node and of the event.
        self._steps: dict[tuple[int, int], Stepped] = {}
        # By a node's number: that after its disk has all ops, and the event that it is told then.
        self._syncs: dict[int, tuple[int, int]] = {}
        # By the sender's index and life, and the frame's number: the event's number.
        self._arrivals: dict[tuple[int, int, int], int] = {}

    # --- the beginning ---

    def start(self) -> State:
        """A ring that has shaken hands and is quiet; the joiners are yet to begin."""
        n, case = self._count, self._case
        ids = [MemberId(name, 1) for name in self._index]
        view = first_view(ids[: case.members], case.min_insync)
        nodes = tuple(self._tables.node_number(self._new_node(me, (), whole=True)) for me in ids)
        state = State(
            nodes,
            ((),) * (n * n),
            (UP,) * (n * n),
            self._tables.view_number(view),
            (),
            self._tables.confirmed_number({}),
            case.ops,
            case.crashes,
            case.link_breaks,
            case.unknowns,
            case.disk_losses,
        )
        for index in range(n):
            for other in ids:
                if other != ids[index]:
                    state = self.step(state, index, LinkUp(other), None)
            state = self.step(state, index, ViewLearned(view), None)
        while any(state.channels):
            at = next(at for at, channel in enumerate(state.channels) if channel)
            state = self.deliver(state, at, None)
        for index in range(n):
            state = self.step(state, index, MembershipWanted(True), None)
        return state

    def _new_node(self, me: MemberId, log: tuple[LogEntry, ...], *, whole: bool) -> NodeState:
        end = LogEnd(log[-1][0], len(log)) if log else LogEnd()
        member = self._make_member(me, "r", end, log_is_whole=whole, chance=Even(), timing=TIMING)
        key = self._tables.member_number(member)
        return NodeState(me, member, log, len(log), whole, member_key=key)

    # --- steps of members ---

    def arrival(self, state: State, at: int) -> int:
        """The number of the event that the first frame of this channel arrives."""
        number = state.nodes[at // self._count]
        frame = state.channels[at][0]
        key = (at, self._tables.facts[number].incarnation, frame)
        found = self._arrivals.get(key)
        if found is None:
            envelope = Envelope(self._tables.nodes[number].me, self._tables.frames[frame])
            found = self._arrivals[key] = self._tables.event_number(Received(envelope))
        return found

    def deliver(self, state: State, at: int, path: Path | None, limit: int | None = None) -> State:
        """The first frame of this channel arrives."""
        event = self.arrival(state, at)
        index = at % self._count
        return self._stepped_state(state, index, state.nodes[index], event, path, limit, at)

    def stepped(self, number: int, event: int, path: Path | None) -> Stepped:
        """The node after the event, and the effects of the step.

        Each pair of a node and an event is stepped once: this is where the speed comes from.
        """
        found = self._steps.get((number, event))
        if found is None:
            found = self._steps[number, event] = self._step_once(number, event, path)
        return found

    def _step_once(self, number: int, event_number: int, path: Path | None) -> Stepped:
        node, event = self._tables.nodes[number], self._tables.events[event_number]
        assert node.member is not None
        member = clone(node.member)
        # The explorer has no clock. A timer fires after every deadline.
        effects = member.step(event, now=LATER if isinstance(event, Tick) else 0.0)
        member.check()
        node = replace(node, member=member, member_key=self._tables.member_number(member))
        after = self._tables.node_number(node)
        acts: list[_Send | int | Effect] = []
        index = self._index[node.me.node]
        for effect in effects:
            act: _Send | int | Effect = effect
            match effect:
                case Send(name, frame):
                    target = self._index[name]
                    at, back = index * self._count + target, target * self._count + index
                    act = _Send(at, back, self._tables.frame_number(frame))
                case Deliver(op, epoch, payload):
                    node = self._delivered(node, op, (epoch, payload), path)
                    act = self._tables.node_number(node)
                case RoleChanged(Role.OUTSIDE, _):
                    node = replace(node, tail_from=None, tail=())
                    act = self._tables.node_number(node)
                case StartCatchUp(op):
                    node = replace(node, whole=False, tail_from=op, tail=())
            acts.append(act)
        return Stepped(after, tuple(acts), _torn_after(effects))

    def step(
        self, state: State, index: int, event: Event, path: Path | None, limit: int | None = None
    ) -> State:
        """This node takes the event, and carries out all effects of it, or `limit` of them."""
        number = self._tables.event_number(event)
        return self._stepped_state(state, index, state.nodes[index], number, path, limit)

    def _stepped_state(
        self,
        state: State,
        index: int,
        node: int,
        event: int,
        path: Path | None,
        limit: int | None = None,
        taken_at: int | None = None,
    ) -> State:
        """`node` is at `index` now. `taken_at`: the event is the first frame of this channel."""
        number, acts, _ = self.stepped(node, event, path)
        links = state.links
        nodes, channels = list(state.nodes), list(state.channels)
        nodes[index] = number
        if taken_at is not None:
            channels[taken_at] = channels[taken_at][1:]
        for act in acts if limit is None else acts[:limit]:
            if type(act) is _Send:
                at, back, frame = act
                if links[at] == UP and links[back] in (UP, OPENING):
                    channels[at] = (*channels[at], frame)
            elif type(act) is int:
                nodes[index] = act
            else:
                # As `_replace`, which takes a tenth of the explorer's time where it is called most.
                state = State(tuple(nodes), tuple(channels), *state[2:])
                state = self._perform(state, index, act, path)  # type: ignore[arg-type]
                nodes = list(state.nodes)
        state = State(tuple(nodes), tuple(channels), *state[2:])
        self._rules.check_stable(state, index, path)
        return state

    def _perform(self, state: State, index: int, effect: Effect, path: Path | None) -> State:
        """An effect for which the whole state counts. None of them sends."""
        match effect:
            case Watermarks():
                return self._rules.check_confirm(state, index, effect, path)
            case Propose(_, view):
                incarnation = self._tables.nodes[state.nodes[index]].me.incarnation
                proposal = (index, incarnation, self._tables.view_number(view), True)
                return state._replace(pending=tuple(sorted((*state.pending, proposal))))
            case RoleChanged(Role.MASTER, view):
                self._rules.check_master(state, index, view, path)
            case StartCatchUp(number):
                node = self._tables.nodes[state.nodes[index]]
                self._rules.require(
                    node.me not in self._tables.views[state.view].synced,
                    path,
                    f"{node.me} cuts its log",
                )
                return self._tables.with_node(
                    state, index, replace(node, whole=False, tail_from=number, tail=())
                )
            case _:
                pass
        return state

    def _delivered(
        self, node: NodeState, number: int, entry: LogEntry, path: Path | None
    ) -> NodeState:
        if node.tail_from is not None:
            fits = number == node.tail_from + len(node.tail) + 1
            self._rules.require(fits, path, f"{node.me} delivers {number} out of order")
            return replace(node, tail=(*node.tail, entry))
        if number <= len(node.log):
            same = node.log[number - 1] == entry
            self._rules.require(same, path, f"{node.me} delivers another {number}: {entry}")
            return node
        self._rules.require(number == len(node.log) + 1, path, f"{node.me} skips to {number}")
        return replace(node, log=(*node.log, entry))

    # --- disks ---

    def sync(self, state: State, index: int, path: Path | None) -> State:
        number = state.nodes[index]
        found = self._syncs.get(number)
        if found is None:
            node = self._tables.nodes[number]
            count = len(node.log)
            synced = self._tables.node_number(replace(node, synced=count))
            found = self._syncs[number] = (
                synced,
                self._tables.event_number(Persisted(count)),
            )
        return self._stepped_state(state, index, *found, path)

    def fetch(self, state: State, index: int, node: NodeState, path: Path | None) -> State | None:
        """A joiner has fetched the state of its upstream neighbour; None if that can't be now,
        because the neighbour is down, cut off, in another view, or ahead."""
        member = node.member
        assert member is not None
        assert member.view is not None
        at = member.view.index_of(node.me)
        assert at
        source_id = member.view.ids[at - 1]
        source_index = self._index[source_id.node]
        source = self._tables.nodes[state.nodes[source_index]]
        if source.member is None or source.me != source_id or source.tail_from is not None:
            return None
        if source.member.view != member.view:
            return None
        if state.links[index * self._count + source_index] != UP:
            return None
        assert node.tail_from is not None
        if len(source.log) > node.tail_from + len(node.tail):
            return None  # Its last ops have yet to come here.
        behind = node.tail[max(0, len(source.log) - node.tail_from) :]
        overlap = source.log[node.tail_from :]
        self._rules.require(
            overlap[: len(node.tail)] == node.tail[: len(overlap)], path, f"{node.me}: logs part"
        )
        log = (*source.log, *behind)
        caught_up = replace(node, log=log, synced=len(log), whole=True, tail_from=None, tail=())
        state = self._tables.with_node(state, index, caught_up)
        return self.step(state, index, CaughtUp(len(log)), path)

    # --- links and processes ---

    def set_link(
        self, state: State, end: int, other: int, status: int, *, clear: bool = True
    ) -> State:
        """`end` sees its link to `other` so from now on. `clear`: frames on their way to it are
        lost."""
        n = self._count
        links = list(state.links)
        links[end * n + other] = status
        channels = state.channels
        at = other * n + end
        if clear and channels[at]:
            channels = (*channels[:at], (), *channels[at + 1 :])
        return state._replace(links=tuple(links), channels=channels)

    def crash(self, state: State, index: int) -> State:
        n = self._count
        node = self._tables.nodes[state.nodes[index]]
        log = node.log if self._case.restarts else node.log[: node.synced]
        state = self._tables.with_node(
            state, index, NodeState(node.me, None, log, node.synced, node.whole)
        )
        links, channels = list(state.links), list(state.channels)
        for other in range(n):
            if other == index:
                continue
            # Its last frames may still arrive, until the other end notices the crash.
            if links[other * n + index] in (UP, OPENING):
                links[other * n + index] = LOST
            # What is on its way to it is lost.
            links[index * n + other] = DOWN
            channels[other * n + index] = ()
        return state._replace(
            links=tuple(links), channels=tuple(channels), crashes=state.crashes - 1
        )

    def restart(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        """One start for each length of log that a torn write may have left, with its name."""
        node = self._tables.nodes[state.nodes[index]]
        for kept in range(node.synced, len(node.log) + 1):
            me = MemberId(node.me.node, node.me.incarnation + 1)
            log = node.log[:kept] if node.whole else ()
            started = self._tables.with_node(
                state, index, self._new_node(me, log, whole=node.whole)
            )
            started = self.step(started, index, MembershipWanted(True), None)
            yield f"restart {NAMES[index]} {kept}", started

    def restart_empty(self, state: State, index: int) -> State:
        """A start with an empty disk, which the application notices."""
        node = self._tables.nodes[state.nodes[index]]
        me = MemberId(node.me.node, node.me.incarnation + 1)
        started = self._tables.with_node(state, index, self._new_node(me, (), whole=False))
        started = started._replace(disk_losses=state.disk_losses - 1)
        return self.step(started, index, MembershipWanted(True), None)


def _torn_after(effects: list[Effect]) -> tuple[int, ...]:
    """Effects that nobody sees after the crash make no difference."""
    last = max((at for at, effect in enumerate(effects) if _is_seen(effect)), default=-1)
    return tuple(count for count in range(1, last + 1) if _is_seen(effects[count - 1]))


def _is_seen(effect: Effect) -> bool:
    """Whether other nodes can tell that it was done before a crash."""
    return isinstance(effect, (Send, Propose, Watermarks))
