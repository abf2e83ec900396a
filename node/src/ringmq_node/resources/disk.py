"""When the disk under the data directory is nearly full, and how soon to look again.

The alarm is on below `limit` bytes free, and off again from a tenth more than that, so
that a file which comes and goes doesn't make it flap.

The next look is due after half the time in which the rest could be filled: at the speed
that was seen since the last look, or at the speed of a middling disk if that is more, as
a quiet disk may become busy at any moment. Between `LOOK_S_MIN` and `LOOK_S_MAX`. While the
alarm is on, publishers stand still, so the monitor looks each second whether it can end.

No speed bounds what happens between two looks: one call reserves a file of any size, and another
program's files may take the room as well. So `LOOK_S_MAX` is how late an alarm may come, and it is
short: a look takes some microseconds. It asks the file system for a number that is in the kernel's
memory, and waits for no disk, be it full or slow.

Pure: the caller passes in the free bytes and the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

LOOK_S_MIN = 0.1
LOOK_S_MAX = 1.0
ALARMED_LOOK_S = 1.0
# A disk fills at least this fast, until it is seen to be faster.
WRITE_BYTES_PER_S = 250_000_000
# The alarm ends at a tenth more than the limit.
MARGIN_SHARE = 10


@dataclass(frozen=True, slots=True)
class DiskState:
    """The finding of one look, and the decision that follows from it."""

    free_bytes: int = 0
    alarmed: bool = False
    # From this look to the next.
    look_s: float = LOOK_S_MAX


class DiskMonitor:
    """Invariants, after each look: the alarm is on below `limit`, off from 1.1 times that on,
    else as it was; the next look is within `LOOK_S_MIN` to `LOOK_S_MAX`."""

    def __init__(self, limit_bytes: int) -> None:
        assert limit_bytes >= 0
        self.limit_bytes = limit_bytes
        self.end_bytes = limit_bytes + limit_bytes // MARGIN_SHARE
        self.state = DiskState()
        # Before the first look nothing is known of the disk's speed: it counts as 0.
        self._looked_at = -inf

    def step(self, free_bytes: int, *, now: float) -> DiskState:
        """One look: bytes free for this process."""
        before = self.state
        alarmed = free_bytes < (self.end_bytes if before.alarmed else self.limit_bytes)
        look_s = ALARMED_LOOK_S
        if not alarmed:
            speed = max(WRITE_BYTES_PER_S, self._fall(free_bytes, now))
            distance = free_bytes - self.limit_bytes
            look_s = min(LOOK_S_MAX, max(LOOK_S_MIN, distance / speed / 2))
        self._looked_at = now
        self.state = DiskState(free_bytes, alarmed, look_s)
        self.check()
        return self.state

    def _fall(self, free_bytes: int, now: float) -> float:
        """Bytes per second that have been used since the last look."""
        if now <= self._looked_at:
            return 0.0
        # Two looks in quick succession would make any change look fast.
        return (self.state.free_bytes - free_bytes) / max(now - self._looked_at, LOOK_S_MIN)

    def check(self) -> None:
        """Asserts the invariants."""
        state = self.state
        if state.free_bytes < self.limit_bytes:
            assert state.alarmed
        if state.free_bytes >= self.end_bytes:
            assert not state.alarmed
        assert LOOK_S_MIN <= state.look_s <= LOOK_S_MAX
