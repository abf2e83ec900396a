"""A registry that is put back to a copy, and whether processes and starting nodes notice.

Both rules are the shipped ones. A process keeps the newest revision that it has seen, with its mark
(`FileHistory`, as for a SQLite file); a node's disk remembers its lives (`is_forgotten`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from ringmq_gm.core.views import MemberId, View
from ringmq_gm.registry.base import RegistryWentBackError
from ringmq_gm.registry.sqlite.history import FileHistory, Seen
from ringmq_node import identity
from ringmq_node.storage import StoreLife
from ringsim.simulator.machines import Machine


@dataclass(slots=True)
class State:
    """All that the registry holds. `marks[revision]` is the mark of a commit."""

    view: View
    leases: dict[str, MemberId] = field(default_factory=dict)
    # The last life of each node.
    lives: dict[str, int] = field(default_factory=dict)
    marks: list[int] = field(default_factory=lambda: [0])

    def copy(self) -> State:
        return State(self.view, self.leases.copy(), self.lives.copy(), self.marks.copy())


class Histories:
    """What each life of a process has seen of the registry."""

    def __init__(self, reached: Counter[str]) -> None:
        self._reached = reached
        # No two commits have the same mark, in whatever history.
        self._new_marks = count(1)
        self._of: dict[str, FileHistory] = {}

    def began(self, name: str) -> None:
        """Another life of this machine's process, which has seen nothing yet."""
        self._of[name] = FileHistory(f"registry of {name}")

    def commit(self, state: State) -> None:
        state.marks.append(next(self._new_marks))

    def takes(self, name: str, state: State) -> bool:
        """The machine's process looks at the registry: whether it takes what that shows."""
        history = self._of[name]
        marks = state.marks
        found = Seen(len(marks) - 1, marks[-1])
        try:
            expected = history.newest()
            mark = marks[expected.revision] if expected.revision < len(marks) else 0
            history.judge(found, expected, mark)
        except RegistryWentBackError:
            self._reached["registry: a look is refused"] += 1
            return False
        return True

    def refuses(self, name: str) -> bool:
        """Whether the machine's process has seen that the registry went back."""
        try:
            self._of[name].newest()
        except RegistryWentBackError:
            return True
        return False

    def knows_later(self, name: str, copy: State) -> bool:
        """Whether the machine's process has seen something that isn't in the copy."""
        return self.refuses(name) or self._of[name].newest().revision >= len(copy.marks)

    def admits(self, machine: Machine, state: State, newest: State | None) -> bool:
        """Whether a node may begin another life, which it gets of the registry."""
        name, disk = machine.name, machine.disk
        life = state.lives.get(name, 0) + 1
        if identity.is_forgotten(StoreLife(name, disk.incarnation - 1), life):
            self._reached["registry: a start is refused"] += 1
            return False
        if newest is not None and newest.lives.get(name) == state.lives.get(name):
            # Nothing shows it the older state: operators are told not to restart such a node.
            self._reached["registry: a start is left out"] += 1
            return False
        disk.incarnation = life
        return True
