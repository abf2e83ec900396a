"""How long a member that was put out of its ring stays away before it joins again. Pure.

It was put out because another member can't reach it, or because it is too slow. The first time it
comes back soon: it waits for `retry_s` like a member whose proposal has failed
(`ViewChanger.put_out`), or until a link comes up. If it is put out again before it has stayed in
the ring for `settled_s`, then it stays away for `put_out_s_min`, and each time after that for twice
as long as the time before.

A link that comes up doesn't end these pauses. It would be the wrong sign:

1. the link between a and c comes and goes, and c is put out, 2. the link is up, c joins and is
synchronised, 3. the link is down: no op is confirmed until a and b have found out, for the whole
ring time-out, 4. the link is up, and so on. As often as that happens the publishers wait, though a
and b would be enough. A slow disk does the same, with the slow time-out.

A ring that can confirm nothing needs every member that it can get: then nobody asks for the pause
(`ViewChanger.seek_entry`).
"""

from __future__ import annotations

from ringmq_gm.core.chance import Chance
from ringmq_gm.core.timing import Timing


class HoldOff:
    """See the module."""

    __slots__ = ("_came_in_at", "_pause_s", "until")

    def __init__(self) -> None:
        # When the pause ends; None if there is none.
        self.until: float | None = None
        # The mean length of the next one; None if it comes back soon.
        self._pause_s: float | None = None
        self._came_in_at = 0.0

    def came_in(self, now: float) -> None:
        """The member is in the ring."""
        self.until = None
        self._came_in_at = now

    def put_out(self, now: float, timing: Timing, chance: Chance) -> None:
        pause_s = self._pause_s
        if pause_s is None or now >= self._came_in_at + timing.settled_s:
            self._pause_s = timing.put_out_s_min
            return
        self.until = now + pause_s * (0.5 + chance.random())
        self._pause_s = min(2 * pause_s, timing.put_out_s_max)

    def tick(self, now: float) -> None:
        if self.until is not None and now >= self.until:
            self.until = None
