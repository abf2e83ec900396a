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

# A tenth of a heartbeat's pause at most, and long enough for the turn of the loop to be cheap.
PIECE_S_MAX = 0.01


class Pieces:
    """One piece of work on a loop."""

    def __init__(self, piece_s_max: float = PIECE_S_MAX) -> None:
        self._piece_s_max = piece_s_max
        self._began = time.perf_counter()

    @property
    def is_over(self) -> bool:
        """Whether this piece has taken its time."""
        return time.perf_counter() - self._began >= self._piece_s_max

    async def step(self) -> None:
        """Yields for a turn of the loop if this piece has taken its time."""
        if self.is_over:
            await asyncio.sleep(0)
            self._began = time.perf_counter()
