"""How slow this machine is here and now, for bounds of CPU time.

CPU time isn't the same everywhere: a core that shares its caches and units with a busy one takes up
to twice the time for a piece of work. A bound is meant for the machine of reference, and multiplied
by the slowness of this one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

REFERENCE_STEPS = 100_000
# The CPU time of such a piece on a core of 4 GHz that nobody else uses.
REFERENCE_S = 0.0035
# However slow the machine is, a piece that takes three times the limit is found.
SLOWNESS_MAX = 3.0


def cpu_s(work: Callable[[], object]) -> float:
    """The CPU time that this thread takes for `work`."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


class MachineSpeed:
    """How much longer a piece of work takes here and now than on the machine of reference."""

    def __init__(self) -> None:
        self._slowest_s = 0.0

    @property
    def slowness(self) -> float:
        """1 or more; of the slowest piece that was timed."""
        return min(max(1.0, self._slowest_s / REFERENCE_S), SLOWNESS_MAX)

    def time_a_piece(self) -> None:
        def piece() -> None:
            total = 0
            for number in range(REFERENCE_STEPS):
                total += number

        self._slowest_s = max(self._slowest_s, cpu_s(piece))

    def cpu_s(self, work: Callable[[], object]) -> float:
        """The CPU time of `work` as the machine of reference would need it."""
        self.time_a_piece()
        took_s = cpu_s(work)
        self.time_a_piece()
        return took_s / self.slowness

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Times a piece five times a second, beside what the block does."""

        async def watch() -> None:
            while True:
                self.time_a_piece()
                await asyncio.sleep(0.2)

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()
