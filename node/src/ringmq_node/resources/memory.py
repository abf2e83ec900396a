"""How many seconds of messages the queues may keep in memory, and when memory is short.

Two marks, in bytes used: at `limit` (the watermark) the alarm goes on, at `paging` (half of
it) queues begin to move messages to disk. Each state ends no earlier than a tenth below the
mark where it begins, so that neither flaps.

The result is a *bound* in seconds, the same for all queues: each may keep in memory as many
messages as come and go in that time at its own rates. So messages that are consumed quickly
stay in memory, a backlog is paged out, and an idle queue is paged out altogether. Let `held`
be the seconds that a queue's messages in memory last now, `mean` and `longest` those of all
queues that aren't idle, and `expected` the bytes in use at the next look if they grow as
they have since the last one. The next bound:

    a tenth above `paging`   min(before, mean * paging / expected)
    from there down to it    min(before, longest * paging / expected)
    below it                 before * paging / expected, at least before, at most 1.25 * before
    a tenth below it         none, once the line above gives twice the longest `held`

Why not RabbitMQ's formula: it divides `mean` by used / limit. That quotient is below one
until the limit is reached, so its queues grow right into the alarm. And it drops the bound
at once when memory falls below the mark, so a fast publisher fills memory up again and the
paging flaps. Here the measure is the mark where paging begins. Memory comes to rest there;
the rest up to the limit is reserve for the growth between two looks. To keep that growth
small, looks come closer the sooner a mark can be reached: at the growth that was seen, or
at the growth of a busy node if that is more, as a quiet node may become busy at any moment.

Why two formulas above the mark: the longest cuts the largest backlog alone. The mean also
cuts a fast queue that holds many bytes in few seconds among slow ones that hold few bytes
for long; but if most queues hold nearly nothing and one has a backlog, the mean takes all of
that backlog. So it comes second, if cutting the longest wasn't enough.

Why a bound falls from `held`, not from the bound before: a store may need several looks to
write its pages out, and must not be told to write more at each of them. Why it rises from
the bound before: most queues may hold nothing and one everything. If the bound has risen far
above every `held`, the first look above the mark takes it back.

If all queues are idle there is no mean: then the bound is a finite one, because any finite
bound pages idle queues out.

A full disk doesn't end paging, as it does in RabbitMQ: most messages that are paged out are
on disk already, for their confirms.

Pure: the caller passes in the bytes used, the durations and the time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isfinite

LOOK_S_MAX = 2.5
LOOK_S_MIN = 0.25
# Publishers are blocked while the alarm is on: it must not last much longer than its cause.
ALARMED_LOOK_S_MAX = 1.0
PAGING_RATIO = 0.5
# The alarm, and paging, end a tenth below the mark where they begin.
MARGIN_SHARE = 10
# Memory of a busy node grows this fast.
GROWTH_BYTES_PER_S = 250_000_000
RISE_RATIO_MAX = 1.25
RISE_FROM_S = 0.01
# The bound is dropped when it is this many times the longest `held`: it binds no queue then.
RELEASE_RATIO = 2.0
# Growth up to the next look is believed up to this multiple of the memory in use.
EXPECTED_RATIO_MAX = 2.0
# The bound when all queues are idle and memory has to be freed.
IDLE_DURATION_S = 60.0


@dataclass(frozen=True, slots=True)
class MemoryState:
    """The finding of one look, and the decisions that follow from it."""

    used_bytes: int = 0
    # The bound; `inf`: none.
    duration_s: float = inf
    alarmed: bool = False
    # From this look to the next.
    look_s: float = LOOK_S_MAX


class MemoryMonitor:
    """Invariants, after each look:

    * the alarm is on at `limit` or more, off below 0.9 of it, else as it was;
    * at `paging` or more the bound is finite and doesn't rise; below `paging` it doesn't fall,
      and it is dropped only below 0.9 of that;
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
        # Before the first look no growth is known: it counts as 0.
        self._looked_at = -inf

    def wants_durations(self, used_bytes: int) -> bool:
        """Whether `step` needs the queues' durations: to ask 10 000 queues takes a while."""
        return used_bytes >= self.paging_bytes or isfinite(self.state.duration_s)

    def step(self, used_bytes: int, durations: Iterable[float], *, now: float) -> MemoryState:
        """One look: the bytes in use, and for each queue the seconds that its messages in memory
        last (`inf`: an idle queue). Without `wants_durations` the durations aren't read."""
        before = self.state
        alarmed = used_bytes >= (self.limit_end_bytes if before.alarmed else self.limit_bytes)
        growth = self._growth(used_bytes, now)
        look_s = self._until_next(used_bytes, growth, alarmed)
        duration_s = inf
        if self.wants_durations(used_bytes):
            expected = min(used_bytes + growth * look_s, used_bytes * EXPECTED_RATIO_MAX)
            duration_s = self._duration(used_bytes, expected, durations)
        self._looked_at = now
        self.state = MemoryState(used_bytes, duration_s, alarmed, look_s)
        self.check()
        return self.state

    def _growth(self, used_bytes: int, now: float) -> float:
        """Bytes per second since the last look; not negative."""
        if now <= self._looked_at:
            return 0.0
        grown = used_bytes - self.state.used_bytes
        # Two looks in quick succession (the loop was late) would make any change look fast.
        return max(0.0, grown / max(now - self._looked_at, LOOK_S_MIN))

    def _until_next(self, used_bytes: int, growth: float, alarmed: bool) -> float:
        """Half the time in which the next mark can be reached."""
        longest = ALARMED_LOOK_S_MAX if alarmed else LOOK_S_MAX
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
        # A bound of 0 would stay 0 at any ratio.
        risen = max(before, RISE_FROM_S) * min(max(1.0, fitting), RISE_RATIO_MAX)
        binds = risen <= max(held, default=0.0) * RELEASE_RATIO
        return risen if binds or used_bytes >= self.paging_end_bytes else inf

    def check(self) -> None:
        """Asserts the invariants."""
        state = self.state
        if state.used_bytes >= self.limit_bytes:
            assert state.alarmed
        if state.used_bytes < self.limit_end_bytes:
            assert not state.alarmed
        if state.used_bytes >= self.paging_bytes:
            assert isfinite(state.duration_s)
        assert state.duration_s >= 0.0
        assert LOOK_S_MIN <= state.look_s <= LOOK_S_MAX
