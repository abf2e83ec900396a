"""The events that are possible in a state, each with the state after it.

Members take every event that waits for them, in every order:

* a frame arrives (links keep order; each link by itself);
* a member's disk has all ops that were delivered to it;
* the application multicasts an op at a member that takes it;
* a process dies, also between any two effects of one step; with `restarts` it comes back with
  any part of the ops that it had not synced, or with an empty disk;
* a link breaks without a crash, and is opened again;
* an end of a link is told that it is down, whereby the rest of its frames is lost;
* a proposal reaches the registry and is answered; or is answered UNKNOWN, and reaches the
  registry later, or never;
* a member learns the newest view, or the leases; a joiner fetches its state.

Left out, to keep the number of states small (the simulator has all of these):

* Timers fire only when nothing but a fault could happen otherwise.
* No disk hangs for long enough to be found out.
* A sync covers all ops that have been delivered, and isn't overtaken by a later op.
* A watch shows the newest view, never one that has been followed by another.
* A fetch by a joiner, and its write, are one event.
* An answer to a proposal isn't overtaken by the view that it brought about.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ringmq_gm.core.events import (
    Event,
    LeasesLearned,
    LinkDown,
    LinkUp,
    Multicast,
    ProposalEnded,
    ProposalOutcome,
    Tick,
    ViewLearned,
)
from ringsim.explorer.rules import Rules
from ringsim.explorer.states import DOWN, LOST, NAMES, OPENING, UP, Case, Path, State, Tables
from ringsim.explorer.transitions import Transitions


class Happening(NamedTuple):
    """One event, the state after it, and whether it happens only if something goes wrong."""

    name: str
    state: State
    is_fault: bool = False


class PossibleEvents:
    """See the module."""

    def __init__(self, case: Case, tables: Tables, rules: Rules, transitions: Transitions) -> None:
        self._case = case
        self._tables = tables
        self._rules = rules
        self._make = transitions
        self._count = case.members + case.joiners
        self._all_up = (UP,) * self._count**2

    def after(self, state: State, path: Path | None) -> Iterator[Happening]:
        """Each event that may come next, and the state after it."""
        found = False
        for happening in self._events(state, path):
            found = True
            yield happening
        if not found:
            for index, number in enumerate(state.nodes):
                if self._tables.facts[number].has_deadline:
                    ticked = self._make.step(state, index, Tick(), path)
                    yield Happening(f"tick {NAMES[index]}", ticked)
        yield from self._faults(state, path)

    def _events(self, state: State, path: Path | None) -> Iterator[Happening]:
        n, facts = self._count, self._tables.facts
        for at, channel in enumerate(state.channels):
            if channel and state.links[(at % n) * n + at // n] in (UP, LOST):
                source, target = divmod(at, n)
                if facts[state.nodes[target]].up:
                    delivered = self._make.deliver(state, at, path)
                    yield Happening(f"{NAMES[source]}>{NAMES[target]}", delivered)
                    if state.crashes:
                        yield from self._torn_arrivals(state, at, path)
        newest = self._tables.views[state.view].epoch
        for index, number in enumerate(state.nodes):
            fact = facts[number]
            if not fact.up:
                continue
            name = NAMES[index]
            if fact.unsynced:
                yield Happening(f"synced {name}", self._make.sync(state, index, path))
            if fact.epoch < newest:
                event = ViewLearned(self._tables.views[state.view])
                yield Happening(f"view {name}", self._make.step(state, index, event, path))
                yield from self._torn(state, index, event, path)
            if state.ops and fact.takes_ops:
                event_ = Multicast(b"%d" % state.ops, self._case.urgent)
                taken = state._replace(ops=state.ops - 1)
                yield Happening(f"op {name}", self._make.step(taken, index, event_, path))
                yield from self._torn(taken, index, event_, path)
            if state.links != self._all_up:
                yield from self._link_events(state, index, path)
            if fact.is_fetching or self._case.leases:
                yield from self._slow_events(state, index, path)
        for at in range(len(state.pending)):
            yield from self._registry_events(state, at, path)

    def _link_events(self, state: State, index: int, path: Path | None) -> Iterator[Happening]:
        n, name = self._count, NAMES[index]
        for other in range(n):
            at = index * n + other
            status = state.links[at]
            if status == LOST:
                told = self._make.set_link(state, index, other, DOWN)
                stepped = self._make.step(told, index, LinkDown(NAMES[other]), path)
                yield Happening(f"down {name}-{NAMES[other]}", stepped)
            elif status == OPENING:
                told = self._make.set_link(state, index, other, UP, clear=False)
                life = self._tables.nodes[state.nodes[other]].me
                stepped = self._make.step(told, index, LinkUp(life), path)
                yield Happening(f"up {name}-{NAMES[other]}", stepped)
            if (
                index < other
                and status in (LOST, DOWN)
                and state.links[other * n + index] in (LOST, DOWN)
                and self._tables.facts[state.nodes[other]].up
            ):
                opened = self._make.set_link(state, index, other, OPENING)
                opened = self._make.set_link(opened, other, index, OPENING)
                yield Happening(f"open {name}-{NAMES[other]}", opened)

    def _slow_events(self, state: State, index: int, path: Path | None) -> Iterator[Happening]:
        """A joiner's fetch, and news of the leases."""
        node = self._tables.nodes[state.nodes[index]]
        if node.tail_from is not None:
            fetched = self._make.fetch(state, index, node, path)
            if fetched is not None:
                yield Happening(f"fetched {NAMES[index]}", fetched)
        if self._case.leases:
            tables = self._tables
            alive = frozenset(tables.nodes[n].me for n in state.nodes if tables.facts[n].up)
            if node.leases != alive:
                told = self._tables.with_node(state, index, replace(node, leases=alive))
                stepped = self._make.step(told, index, LeasesLearned(alive), path)
                yield Happening(f"leases {NAMES[index]}", stepped)

    def _registry_events(self, state: State, at: int, path: Path | None) -> Iterator[Happening]:
        index, incarnation, number, is_waiting = state.pending[at]
        name, proposal = NAMES[index], self._tables.views[number]
        node = self._tables.nodes[state.nodes[index]]
        is_waiting = is_waiting and node.member is not None and node.me.incarnation == incarnation
        rest = state._replace(pending=state.pending[:at] + state.pending[at + 1 :])
        won = self._tables.views[state.view].epoch == proposal.epoch - 1
        arrived = self._rules.view_set(rest, proposal, path) if won else rest
        if not is_waiting:
            yield Happening(f"late {name}", arrived)
            return
        outcome = ProposalEnded(proposal, ProposalOutcome.WON if won else ProposalOutcome.LOST)
        yield Happening(f"cas {name}", self._make.step(arrived, index, outcome, path))
        yield from self._torn(arrived, index, outcome, path)
        if state.unknowns:
            left = (*rest.pending, (index, incarnation, number, False))
            unknown = rest._replace(pending=tuple(sorted(left)), unknowns=state.unknowns - 1)
            event = ProposalEnded(proposal, ProposalOutcome.UNKNOWN)
            stepped = self._make.step(unknown, index, event, path)
            yield Happening(f"unknown {name}", stepped, is_fault=True)

    def _faults(self, state: State, path: Path | None) -> Iterator[Happening]:
        n = self._count
        for index, number in enumerate(state.nodes):
            if self._tables.facts[number].up:
                if state.crashes:
                    crashed = self._make.crash(state, index)
                    yield Happening(f"crash {NAMES[index]}", crashed, is_fault=True)
            elif self._case.restarts:
                for name, started in self._make.restart(state, index):
                    yield Happening(name, started)
                if state.disk_losses:
                    emptied = self._make.restart_empty(state, index)
                    yield Happening(f"restart {NAMES[index]} empty", emptied, is_fault=True)
        if state.breaks:
            for one in range(n):
                for two in range(one + 1, n):
                    if state.links[one * n + two] == state.links[two * n + one] == UP:
                        lost = self._make.set_link(state, one, two, LOST, clear=False)
                        lost = self._make.set_link(lost, two, one, LOST, clear=False)
                        lost = lost._replace(breaks=state.breaks - 1)
                        yield Happening(f"break {NAMES[one]}-{NAMES[two]}", lost, is_fault=True)

    def _torn(
        self, state: State, index: int, event: Event, path: Path | None
    ) -> Iterator[Happening]:
        """The process dies in this step, between two of its effects."""
        if not state.crashes:
            return
        number = self._tables.event_number(event)
        for count in self._make.stepped(state.nodes[index], number, path).torn:
            done = self._make.step(state, index, event, path, limit=count)
            yield self._crash_after(done, index, count)

    def _torn_arrivals(self, state: State, at: int, path: Path | None) -> Iterator[Happening]:
        """The same in the step that takes the first frame of a channel."""
        target = at % self._count
        number = self._make.arrival(state, at)
        for count in self._make.stepped(state.nodes[target], number, path).torn:
            done = self._make.deliver(state, at, path, limit=count)
            yield self._crash_after(done, target, count)

    def _crash_after(self, state: State, index: int, count: int) -> Happening:
        crashed = self._make.crash(state, index)
        return Happening(f"torn {NAMES[index]} {count}", crashed, is_fault=True)
