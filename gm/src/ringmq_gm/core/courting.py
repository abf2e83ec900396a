"""How a joiner gets to be counted in a ring whose ops don't stop. Pure.

A joiner is proposed as synchronised when it has on disk all that may have been confirmed
(`Master.joiner_to_count`). What it lacks is what its disk writes just now, or what is on its way.
But ops that the others have received meanwhile are confirmed all the time:

1. op 10 is on the joiner's disk, and its mark goes to the master, 2. the others receive op 11, and
the master confirms that it was received, 3. the mark comes: 10, and 11 is needed.

So with ops that come more densely than a sync takes, the joiner is counted by chance, or when
there is a pause.

The master courts a joiner that is close behind: one that has on disk, within `court_s`, all that
had been confirmed at some moment. While it is courted, nothing is confirmed that is not on its disk
as well. To count one more can't be wrong. So the joiner lacks nothing that is confirmed as soon as
it has reached the point at which this began, and it is proposed then. If it doesn't get there
within twice that time, the others go on without it, and it isn't courted again for `COURTED_AGAIN`
times `court_s`. So a joiner that stops just then costs the publishers half a second, and seldom.
"""

from __future__ import annotations

from ringmq_gm.core.frames import Mark
from ringmq_gm.core.timing import Timing
from ringmq_gm.core.views import MemberId

COURTED_AGAIN = 20


class Courting:
    """See the module. For one epoch; `due` is when to `tick`."""

    __slots__ = ("_again_at", "_since", "_target", "_who", "courted", "due")

    def __init__(self) -> None:
        # Confirms wait for its disk.
        self.courted: MemberId | None = None
        self.due: float | None = None
        # Since when this joiner has been on its way to `_target`.
        self._who: MemberId | None = None
        self._target = 0
        self._since = 0.0
        self._again_at = 0.0

    def look(
        self, first: tuple[MemberId, Mark] | None, needed: int, timing: Timing, now: float
    ) -> None:
        """A mark has come of a joiner. `first` is the next one to be counted, None if there is
        none; `needed` is what it would have to have on disk."""
        if first is None:
            self._who = self.courted = self.due = None
            return
        joiner, mark = first
        if self.courted is not None or now < self._again_at:
            return
        if joiner != self._who:
            self._who, self._target, self._since = joiner, needed, now
        elif mark.persisted >= self._target:
            if now - self._since <= timing.court_s:
                self.courted, self.due = joiner, now + 2 * timing.court_s
            self._target, self._since = needed, now

    def tick(self, timing: Timing, now: float) -> bool:
        """Whether the others go on without it, from now on."""
        if self.due is None or now < self.due:
            return False
        self._again_at = now + COURTED_AGAIN * timing.court_s
        self._who = self.courted = self.due = None
        return True
