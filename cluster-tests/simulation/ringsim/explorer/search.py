"""Every interleaving of a small case: three members, a few ops, a few faults.

The search begins with a quiet ring, and takes every possible event in every state that it gets
to, once. `events` has the list of events, and of those that are left out.

States are told apart by 64-bit hashes: among ten million, two are taken for one with a chance
of 3 in a million.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass

from ringmq_gm.core.quick import QuickMember
from ringsim.explorer.events import PossibleEvents
from ringsim.explorer.rules import Rules
from ringsim.explorer.states import NAMES, Case, Path, State, Tables
from ringsim.explorer.transitions import MakeMember, Transitions

# Of one case, when many are explored.
STATES_MAX = 8_000_000


@dataclass(slots=True)
class Exploration:
    """How many states a search has visited, how many events it took, and where it stopped."""

    states: int = 0
    transitions: int = 0
    # States in which no event but a fault is left.
    ends: int = 0
    is_complete: bool = False


class Explorer:
    """See the module. `run` raises `ExploredError` at the first broken invariant."""

    def __init__(self, case: Case, make_member: MakeMember = QuickMember) -> None:
        count = case.members + case.joiners
        index_of = {name: index for index, name in enumerate(NAMES[:count])}
        tables = Tables()
        self._rules = Rules(case, tables, index_of)
        self._transitions = Transitions(case, tables, self._rules, index_of, make_member)
        self._events = PossibleEvents(case, tables, self._rules, self._transitions)

    def run(self, states_max: int | None = None) -> Exploration:
        """Visits every state, or `states_max` of them; `is_complete` says which."""
        # All that is made here is kept until the end: a tenth of the time would go into looking
        # for what isn't.
        gc.disable()
        try:
            return self._search(states_max)
        finally:
            gc.enable()

    def _search(self, states_max: int | None) -> Exploration:
        done = Exploration()
        start = self._transitions.start()
        visited = {hash(start)}
        stack: list[tuple[State, Path | None]] = [(start, None)]
        while stack:
            state, path = stack.pop()
            is_end = True
            for name, following, is_fault in self._events.after(state, path):
                done.transitions += 1
                is_end &= is_fault
                mark = hash(following)
                if mark not in visited:
                    if states_max is not None and len(visited) >= states_max:
                        done.states = len(visited)
                        return done
                    visited.add(mark)
                    stack.append((following, (name, path)))
            if is_end:
                done.ends += 1
                self._rules.check_end(state, path)
        done.states = len(visited)
        done.is_complete = True
        return done


def explored(case: Case) -> Exploration:
    """A case, up to `STATES_MAX`."""
    return Explorer(case).run(STATES_MAX)
