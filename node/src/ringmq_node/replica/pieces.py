"""Long work on the loop, in pieces: everybody else gets a turn between two of them.

A queue's journal is read on the loop (about a second for 65 000 publishes of one message).
Heartbeats of the rings that are open already, and the node's own lease, must not wait for
all the queues that are still to come. One turn of the loop is too little: a call takes
several, from the socket to the answer. So the others get time, in proportion to what was
taken from them.

    pace = Pace("opening", 30)
    await pace.turn()
    for each of them:
        work()
        await pace.step()
    pace.end()
"""

from __future__ import annotations

import asyncio
import logging
import time

logger = logging.getLogger(__name__)

# Pieces that together take less are done at one go.
HELD_S_MAX = 0.05
# Of the time that the loop was held, what the others get then; and the least.
SHARE = 0.1
PAUSE_S_MIN = 0.01
LOG_S = 5.0


class Pace:
    """`name` and `pieces` are for the log: nothing is said of what takes less than `log_s`."""

    def __init__(self, name: str, pieces: int, *, log_s: float = LOG_S) -> None:
        self._name = name
        self._pieces = pieces
        self._log_s = log_s
        self._done = 0
        self._began = self._held_since = self._logged = time.monotonic()

    async def turn(self) -> None:
        """Those who wait for what was done before the first piece get on with it."""
        await asyncio.sleep(PAUSE_S_MIN)
        self._held_since = time.monotonic()

    async def step(self) -> None:
        """After each piece."""
        self._done += 1
        now = time.monotonic()
        if now - self._logged >= self._log_s:
            self._logged = now
            self._log("under way")
        held_s = now - self._held_since
        if held_s >= HELD_S_MAX:
            await asyncio.sleep(max(held_s * SHARE, PAUSE_S_MIN))
            self._held_since = time.monotonic()

    def end(self) -> None:
        if self._logged != self._began:
            self._log("done")

    def _log(self, state: str) -> None:
        logger.info(
            "%s %s: %d of %d queues, %.1f s",
            self._name,
            state,
            self._done,
            self._pieces,
            time.monotonic() - self._began,
        )
