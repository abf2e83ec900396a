"""The phases of a ring member. `member` says which may follow which.

Each is a class with just the fields that exist in it, so that no field has to mean "not yet".
"""

from __future__ import annotations

from ringmq_gm.core.events import Effect, Role
from ringmq_gm.core.lives import Lives
from ringmq_gm.core.master import Master
from ringmq_gm.core.mirror import Mirror
from ringmq_gm.core.timing import Timing


class Outside:
    """Not in the newest view that is known, or no view is known yet."""

    __slots__ = ()
    role = Role.OUTSIDE
    waiting_bytes = 0

    def look_around(self, lives: Lives, timing: Timing, now: float) -> list[Effect]:
        return []

    def next_deadline(self) -> float | None:
        return None


class Deleted(Outside):
    """The registry has no such ring any more."""

    __slots__ = ()


Phase = Outside | Mirror | Master

OUTSIDE = Outside()
DELETED = Deleted()
