"""When the disk under the data directory is nearly full, and how soon to look again.

The alarm is on below `limit` bytes free, and off again from a tenth more than that, so
that a file which comes and goes doesn't make it flap.

The next look is due after half the time in which the rest could be filled: at the speed
that was seen since the last look, or at that of a middling disk if that is more, as
nothing says that a quiet disk stays so. Between `LOOK_S_MIN` and `LOOK_S_MAX`. While the
alarm is on publishers stand still, so the end of it is looked for each second.

Pure: the caller says what is free and when.
"""

from __future__ import annotations

from dataclasses import dataclass

LOOK_S_MIN = 0.1
LOOK_S_MAX = 10.0
ALARMED_LOOK_S = 1.0
# A disk fills at least this fast, until it is seen to be faster.
WRITE_BYTES_PER_S = 250_000_000
# The alarm ends at a tenth more than the limit.
MARGIN_SHARE = 10


@dataclass(frozen=True, slots=True)
class DiskState:
    """What a look has found and decided."""

    free_bytes: int = 0
    alarm: bool = False
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
        self._looked_at: float | None = None

    def step(self, free_bytes: int, *, now: float) -> DiskState:
        """One look: bytes free for this process."""
        before = self.state
        alarm = free_bytes < (self.end_bytes if before.alarm else self.limit_bytes)
        look_s = ALARMED_LOOK_S
        if not alarm:
            speed = max(WRITE_BYTES_PER_S, self._fall(free_bytes, now))
            distance = free_bytes - self.limit_bytes
            look_s = min(LOOK_S_MAX, max(LOOK_S_MIN, distance / speed / 2))
        self._looked_at = now
        self.state = DiskState(free_bytes, alarm, look_s)
        self.check()
        return self.state

    def _fall(self, free_bytes: int, now: float) -> float:
        """Bytes per second that have been used since the last look."""
        if self._looked_at is None or now <= self._looked_at:
            return 0.0
        return (self.state.free_bytes - free_bytes) / max(now - self._looked_at, LOOK_S_MIN)

    def check(self) -> None:
        """Asserts the invariants."""
        state = self.state
        if state.free_bytes < self.limit_bytes:
            assert state.alarm
        if state.free_bytes >= self.end_bytes:
            assert not state.alarm
        assert LOOK_S_MIN <= state.look_s <= LOOK_S_MAX
