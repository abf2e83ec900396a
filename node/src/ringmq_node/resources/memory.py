"""How many seconds of messages the queues may keep in memory, and when memory is short.

Marks, in bytes used: at `limit` (the watermark) the alarm goes on, at `paging` (half of
it) queues begin to move messages to disk. Each ends a tenth below where it begins, at the
earliest, so that neither flaps.

All queues get the same number of *seconds*, not of messages: what comes and goes quickly
stays in memory, what nobody takes is paged out, an idle queue altogether. With `mean`
and `longest` of the seconds which the queues hold now, and `expected` the bytes in use at
the next look if they grow on as they have since the last one:

    a tenth above `paging`   min(before, mean * paging / expected)
    from there down to it    min(before, longest * paging / expected)
    below it                 before * paging / expected, at least before, at most 1.25 * before
    a tenth below it         no bound, once the one above is twice what any queue holds

RabbitMQ divides `mean` by used / limit. That is below one until the limit is reached, so
its queues go on growing right into the alarm; and it drops the bound at once when memory
falls below the mark, so that a fast publisher fills it up again and the paging flaps. Here
it is measured by where paging begins: memory comes to rest there, and all from there to
the limit is reserve for what one look to the next doesn't see. To keep that small, looks
come closer the sooner a mark can be reached: at the growth that was seen, or that of a
busy node if it is more, as nothing says that a quiet node stays so.

The mean finds a fast queue that holds much in few seconds among slow ones that hold little
for long; but where most queues hold nearly nothing and one a backlog, it takes all of
that. So it is for when the longest was not enough.

A shorter time is reckoned from what the queues *hold*, not from what they were told
before: a store that needs several looks to write the pages out isn't told to write more
each time. A longer one is reckoned from what they were told, as most queues may hold
nothing and one everything. If that has run far ahead of what they hold, the first look
above the mark takes it back.

Idle queues don't count for the mean. If there are no others, the bound is a finite one
still, as any finite bound pages idle queues out.

A full disk doesn't end paging, as RabbitMQ has it: most of what is paged out is on disk
already, for its confirm.

Pure: the caller says what is used and when; the same calls give the same answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isfinite

LOOK_S_MAX = 2.5
LOOK_S_MIN = 0.25
# While publishers are blocked, somebody waits for the end of it.
ALARMED_LOOK_S_MAX = 1.0
PAGING_RATIO = 0.5
# A tenth: what ends, ends so far below where it begins.
MARGIN_SHARE = 10
# What a busy node takes in.
GROWTH_BYTES_PER_S = 250_000_000
RISE_RATIO_MAX = 1.25
RISE_FROM_S = 0.01
# The bound goes when it is so many times what any queue holds: then it binds none.
RELEASE_RATIO = 2.0
# Growth since the last look that is believed: at most that everything doubles.
EXPECTED_RATIO_MAX = 2.0
# The bound when all queues are idle and memory has to be freed.
IDLE_DURATION_S = 60.0


@dataclass(frozen=True, slots=True)
class MemoryState:
    """What a look has found and decided."""

    used_bytes: int = 0
    # How long messages may stay in memory, of each queue; `inf`: not bounded.
    duration_s: float = inf
    alarm: bool = False
    # From this look to the next.
    look_s: float = LOOK_S_MAX


class MemoryMonitor:
    """Invariants, after each look:

    * the alarm is on at `limit` or more, off below 0.9 of it, else as it was;
    * the duration is finite at `paging` or more, where it never rises; below it never falls,
      and becomes `inf` only below 0.9 of it;
    * the next look is within `LOOK_S_MIN` to `LOOK_S_MAX`.
    """

    def __init__(self, limit_bytes: int, paging_ratio: float = PAGING_RATIO) -> None:
        assert limit_bytes > 0
        assert 0 < paging_ratio <= 1
        self.limit_bytes = limit_bytes
        self.paging_bytes = max(1, int(limit_bytes * paging_ratio))
        self.limit_end_bytes = limit_bytes - limit_bytes // MARGIN_SHARE
        self.paging_hard_bytes = self.paging_bytes + self.paging_bytes // MARGIN_SHARE
        self.paging_end_bytes = self.paging_bytes - self.paging_bytes // MARGIN_SHARE
        self.state = MemoryState()
        self._looked_at: float | None = None

    def wants_durations(self, used_bytes: int) -> bool:
        """Whether `step` will look at the queues; to ask 10 000 of them takes a while."""
        return used_bytes >= self.paging_bytes or isfinite(self.state.duration_s)

    def step(self, used_bytes: int, durations: Iterable[float], *, now: float) -> MemoryState:
        """One look: bytes in use, and the seconds that each queue's messages in memory last
        (`inf`: idle; anything if `wants_durations` says no)."""
        before = self.state
        alarm = used_bytes >= (self.limit_end_bytes if before.alarm else self.limit_bytes)
        growth = self._growth(used_bytes, now)
        look_s = self._until_next(used_bytes, growth, alarm)
        duration_s = inf
        if self.wants_durations(used_bytes):
            expected = min(used_bytes + growth * look_s, used_bytes * EXPECTED_RATIO_MAX)
            duration_s = self._duration(used_bytes, expected, durations)
        self._looked_at = now
        self.state = MemoryState(used_bytes, duration_s, alarm, look_s)
        self.check()
        return self.state

    def _growth(self, used_bytes: int, now: float) -> float:
        """Bytes per second since the last look; not negative."""
        if self._looked_at is None or now <= self._looked_at:
            return 0.0
        grown = used_bytes - self.state.used_bytes
        # Looks that come late, one after the other, would make anything look fast.
        return max(0.0, grown / max(now - self._looked_at, LOOK_S_MIN))

    def _until_next(self, used_bytes: int, growth: float, alarm: bool) -> float:
        """Half the time in which the next mark can be reached."""
        longest = ALARMED_LOOK_S_MAX if alarm else LOOK_S_MAX
        mark = self.paging_bytes if used_bytes < self.paging_bytes else self.limit_bytes
        if used_bytes >= mark:
            return longest
        soonest = (mark - used_bytes) / max(growth, GROWTH_BYTES_PER_S)
        return min(longest, max(LOOK_S_MIN, soonest / 2))

    def _duration(self, used_bytes: int, expected: float, durations: Iterable[float]) -> float:
        before = self.state.duration_s
        held = [max(0.0, seconds) for seconds in durations if isfinite(seconds)]
        if used_bytes >= self.paging_bytes:
            now_s = min(before, IDLE_DURATION_S)
            if held:
                hard = used_bytes >= self.paging_hard_bytes
                now_s = sum(held) / len(held) if hard else max(held)
            return min(before, now_s * self.paging_bytes / expected)
        fitting = self.paging_bytes / max(1.0, expected)
        # From 0 no ratio leads up.
        risen = max(before, RISE_FROM_S) * min(max(1.0, fitting), RISE_RATIO_MAX)
        binds = risen <= max(held, default=0.0) * RELEASE_RATIO
        return risen if binds or used_bytes >= self.paging_end_bytes else inf

    def check(self) -> None:
        """Asserts the invariants."""
        state = self.state
        if state.used_bytes >= self.limit_bytes:
            assert state.alarm
        if state.used_bytes < self.limit_end_bytes:
            assert not state.alarm
        if state.used_bytes >= self.paging_bytes:
            assert isfinite(state.duration_s)
        assert state.duration_s >= 0.0
        assert LOOK_S_MIN <= state.look_s <= LOOK_S_MAX
