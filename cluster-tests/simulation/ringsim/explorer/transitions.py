"""The transitions between states: an event is taken, its effects are carried out.

Effects that only one node can see change its disk; the others change channels, links, the
registry's view and the proposals on their way to it. `rules` looks at each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf

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


class Even:
    """No chance: every back-off is the mean."""

    def random(self) -> float:
        return 0.5


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
        self._steps: dict[tuple[int, Event], tuple[int, tuple[Effect, ...]]] = {}

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
                    state = self.step(state, index, LinkUp(other.node), None)
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

    def delivered_event(self, state: State, at: int) -> Event:
        source = at // self._count
        sender = self._tables.nodes[state.nodes[source]].me
        return Received(Envelope(sender, self._tables.frames[state.channels[at][0]]))

    def without_first(self, state: State, at: int) -> State:
        channels = state.channels
        shorter = (*channels[:at], channels[at][1:], *channels[at + 1 :])
        return State(state.nodes, shorter, *state[2:])

    def deliver(self, state: State, at: int, path: Path | None) -> State:
        event = self.delivered_event(state, at)
        return self.step(self.without_first(state, at), at % self._count, event, path)

    def stepped(self, number: int, event: Event, now: float) -> tuple[int, tuple[Effect, ...]]:
        """The node after the event, with the same disk, and the effects of the step.

        Each pair of a node and an event is stepped once: this is where the speed comes from.
        """
        memo = (number, event)
        found = self._steps.get(memo)
        if found is None:
            node = self._tables.nodes[number]
            assert node.member is not None
            member = clone(node.member)
            effects = tuple(member.step(event, now=now))
            member.check()
            after = replace(node, member=member, member_key=self._tables.member_number(member))
            found = self._steps[memo] = (self._tables.node_number(after), effects)
        return found

    def step(
        self,
        state: State,
        index: int,
        event: Event,
        path: Path | None,
        *,
        now: float = 0.0,
        limit: int | None = None,
    ) -> State:
        number, effects = self.stepped(state.nodes[index], event, now)
        nodes = state.nodes
        # As `_replace`, which takes a tenth of the explorer's time where it is called most.
        state = State((*nodes[:index], number, *nodes[index + 1 :]), *state[1:])
        for effect in effects[:limit]:
            state = self._perform(state, index, effect, path)
        self._rules.check_stable(state, index, path)
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
                longer = (*channels[at], self._tables.frame_number(frame))
                sent = (*channels[:at], longer, *channels[at + 1 :])
                return State(state.nodes, sent, *state[2:])
            case Deliver(number, epoch, payload):
                node = self._tables.nodes[state.nodes[index]]
                return self._tables.with_node(
                    state, index, self._delivered(node, number, (epoch, payload), path)
                )
            case Watermarks():
                return self._rules.check_confirm(state, index, effect, path)
            case Propose(_, view):
                incarnation = self._tables.nodes[state.nodes[index]].me.incarnation
                proposal = (index, incarnation, self._tables.view_number(view), True)
                return state._replace(pending=tuple(sorted((*state.pending, proposal))))
            case RoleChanged(Role.MASTER, view):
                self._rules.check_master(state, index, view, path)
            case RoleChanged(Role.OUTSIDE, _):
                node = self._tables.nodes[state.nodes[index]]
                if node.tail_from is not None:
                    return self._tables.with_node(
                        state, index, replace(node, tail_from=None, tail=())
                    )
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
        node = self._tables.nodes[state.nodes[index]]
        synced = self._tables.with_node(state, index, replace(node, synced=len(node.log)))
        return self.step(synced, index, Persisted(len(node.log)), path)

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
