"""The state of a whole ring, small and hashable, and the tables behind its numbers.

A node's step depends on nothing but the node and the event. So nodes, frames and views are kept
once each, in tables, and a state of the whole ring is a tuple of small numbers.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from ringmq_gm.core.events import Event, Role
from ringmq_gm.core.frames import Frame
from ringmq_gm.core.member import RingMember
from ringmq_gm.core.views import MemberId, View
from ringsim.explorer.snapshots import key_of
from ringsim.simulator.application import BrokenInvariantError, LogEntry

NAMES = ("a", "b", "c", "d")


@dataclass(frozen=True, slots=True)
class Case:
    """How much may happen at most."""

    members: int = 3
    joiners: int = 0
    ops: int = 3
    crashes: int = 2
    link_breaks: int = 0
    unknowns: int = 0
    restarts: bool = False
    # How many times a node may come back with an empty disk.
    disk_losses: int = 0
    leases: bool = False
    min_insync: int = 1
    urgent: bool = False


@dataclass(frozen=True, slots=True)
class NodeState:
    """A process and its disk, as they are at one moment. Never changed."""

    me: MemberId
    member: RingMember | None
    log: tuple[LogEntry, ...]
    # How much of `log` is on disk, and whether that is a log (not one that is being cut).
    synced: int
    whole: bool
    # While catching up: the number after which the ops come that are in `tail`.
    tail_from: int | None = None
    tail: tuple[LogEntry, ...] = ()
    # The leases that it was told last.
    leases: frozenset[MemberId] | None = None
    # The number of the member's `key_of`; 0 if there is no member.
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
    """The facts of a node that the explorer asks for in every state, looked up once."""

    up: bool
    epoch: int
    role: Role
    stable: int
    last: int
    takes_ops: bool
    has_deadline: bool
    unsynced: bool
    is_fetching: bool
    incarnation: int


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
    # The number of the confirmed ops.
    confirmed: int
    ops: int
    crashes: int
    breaks: int
    unknowns: int
    disk_losses: int


# How an end sees its link.
UP, LOST, DOWN, OPENING = range(4)

# The events that led to a state, the last one first.
Path = tuple[str, "Path | None"]


class ExploredError(BrokenInvariantError):
    """A broken invariant, with the shortest account of how it came: the events."""


class Tables:
    """Everything that a `State` refers to by number."""

    def __init__(self) -> None:
        self.nodes: list[NodeState] = []
        self.facts: list[Facts] = []
        self.frames: list[Frame] = []
        self.views: list[View] = []
        self.events: list[Event] = []
        # Each: the confirmed ops by number, and in which epoch they were confirmed first.
        self.confirmed: list[dict[int, tuple[LogEntry, int]]] = []
        self._node_numbers: dict[Hashable, int] = {}
        self._member_numbers: dict[Hashable, int] = {}
        self._frame_numbers: dict[Frame, int] = {}
        self._view_numbers: dict[View, int] = {}
        self._event_numbers: dict[Event, int] = {}
        self._confirmed_numbers: dict[Hashable, int] = {}

    def with_node(self, state: State, index: int, node: NodeState) -> State:
        """The state in which the node at `index` is this one."""
        number = self.node_number(node)
        nodes = state.nodes
        return State((*nodes[:index], number, *nodes[index + 1 :]), *state[1:])

    def node_number(self, node: NodeState) -> int:
        key = node.key()
        found = self._node_numbers.get(key)
        if found is None:
            found = self._node_numbers[key] = len(self.nodes)
            self.nodes.append(node)
            self.facts.append(_facts_of(node))
        return found

    def member_number(self, member: RingMember) -> int:
        return self._member_numbers.setdefault(key_of(member), len(self._member_numbers) + 1)

    def frame_number(self, frame: Frame) -> int:
        found = self._frame_numbers.get(frame)
        if found is None:
            found = self._frame_numbers[frame] = len(self.frames)
            self.frames.append(frame)
        return found

    def view_number(self, view: View) -> int:
        found = self._view_numbers.get(view)
        if found is None:
            found = self._view_numbers[view] = len(self.views)
            self.views.append(view)
        return found

    def event_number(self, event: Event) -> int:
        found = self._event_numbers.get(event)
        if found is None:
            found = self._event_numbers[event] = len(self.events)
            self.events.append(event)
        return found

    def confirmed_number(self, confirmed: dict[int, tuple[LogEntry, int]]) -> int:
        key = tuple(sorted(confirmed.items()))
        found = self._confirmed_numbers.get(key)
        if found is None:
            found = self._confirmed_numbers[key] = len(self.confirmed)
            self.confirmed.append(confirmed)
        return found


def _facts_of(node: NodeState) -> Facts:
    member = node.member
    if member is None:
        return Facts(False, 0, Role.OUTSIDE, 0, 0, False, False, False, False, node.me.incarnation)
    role = Role.OUTSIDE if member.awaits_start else member.role
    return Facts(
        True,
        member.view.epoch if member.view else 0,
        role,
        member.ops.stable,
        member.ops.last,
        member.refusal() is None and member.has_quorum,
        (member.next_deadline() or inf) < inf,
        node.tail_from is None and node.synced < len(node.log),
        node.tail_from is not None,
        node.me.incarnation,
    )
