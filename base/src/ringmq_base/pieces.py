"""Long work on the event loop, cut into pieces that everything else runs between.

    pieces = Pieces()
    for item in items:
        work_on(item)
        await pieces.step()

Others run whenever `step` yields. So what the loop goes over must not change under it, and what it
works on has to be right after each step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# A tenth of a heartbeat's pause at most, and long enough for the turn of the loop to be cheap.
PIECE_S_MAX = 0.01

# Seconds; it has to go on while the loop is held, as a loop's own time doesn't.
Clock = Callable[[], float]
_clock: Clock = time.perf_counter


@contextmanager
def timed_by(clock: Clock) -> Iterator[None]:
    """Pieces end by `clock` meanwhile: a simulation has to end them at the same places each time it
    runs, however busy the machine is."""
    global _clock
    before, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = before


class Pieces:
    """One piece of work on a loop."""

    def __init__(self, piece_s_max: float = PIECE_S_MAX) -> None:
        self._piece_s_max = piece_s_max
        self._began = _clock()

    @property
    def is_over(self) -> bool:
        """Whether this piece has taken its time."""
        return _clock() - self._began >= self._piece_s_max

    async def step(self) -> None:
        """Yields for a turn of the loop if this piece has taken its time."""
        if self.is_over:
            await asyncio.sleep(0)
            self._began = _clock()
