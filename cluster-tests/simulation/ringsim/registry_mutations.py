"""Planted bugs of the rules by which processes refuse a registry that was put back to a copy.

Each takes the place of one function of the shipped code for as long as a run lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest.mock import patch

from ringmq_gm.registry.sqlite.history import FileHistory, Seen
from ringmq_node import identity

Planted = Callable[[], AbstractContextManager[object]]


def older_registry_taken() -> AbstractContextManager[object]:
    """A process takes what an older registry shows."""

    def judge(self: FileHistory, found: Seen, expected: Seen, mark: int) -> None:
        self.note(found)

    return patch.object(FileHistory, "judge", judge)


def forgotten_life_begun_again() -> AbstractContextManager[object]:
    """A node starts though the registry gives it a life that its disk remembers."""
    return patch.object(identity, "is_forgotten", lambda own, incarnation: False)


REGISTRY_BUGS: tuple[Planted, ...] = (older_registry_taken, forgotten_life_begun_again)
