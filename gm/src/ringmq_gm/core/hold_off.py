"""How long a member that was put out of its ring stays away before it joins again. Pure.

It was put out because another member can't reach it, or because it is too slow. If it came back
at once, it would be put out again: one with a slow disk would make its rings change their views,
and the masters send their state, over and over. The first time it waits for `retry_s` like a member
whose proposal has failed (`ViewChanger.put_out`). Each pause after that is twice as long as the one
before, until the member has stayed in the ring for `settled_s`.

A ring that can confirm nothing needs every member that it can get: then nobody asks for the pause
(`ViewChanger.seek_entry`).
"""

from __future__ import annotations

from ringmq_gm.core.chance import Chance
from ringmq_gm.core.timing import Timing

# A link that comes up ends the first few pauses: the member was cut off, and isn't any more. A
# slow node whose links break now and then doesn't get round the longer ones by this.
_SHORT = 8


class HoldOff:
    """See the module."""

    __slots__ = ("_came_in_at", "_pause_s", "until")

    def __init__(self, timing: Timing) -> None:
        # When the pause ends; None if there is none.
        self.until: float | None = None
        # The mean length of the next one.
        self._pause_s = timing.retry_s
        self._came_in_at = 0.0

    def came_in(self, now: float) -> None:
        """The member is in the ring."""
        self.until = None
        self._came_in_at = now

    def put_out(self, now: float, timing: Timing, chance: Chance) -> None:
        if now >= self._came_in_at + timing.settled_s:
            self._pause_s = timing.retry_s
        if self._pause_s > timing.retry_s:
            self.until = now + self._pause_s * (0.5 + chance.random())
        self._pause_s = min(2 * self._pause_s, timing.put_out_s_max)

    def situation_changed(self, timing: Timing) -> None:
        if self._pause_s <= _SHORT * timing.retry_s:
            self.until = None

    def tick(self, now: float) -> None:
        if self.until is not None and now >= self.until:
            self.until = None
