"""Long work on the event loop, cut into pieces, with time for everything else in between.

A queue's journal is read on the loop (about a second for 65 000 publishes of one message).
Heartbeats of the rings that are open already, and the node's own lease, must not wait until
every queue has been opened. Yielding for one turn of the loop is too little: a call takes
several turns from the socket to the answer. So everything else gets time in proportion to the
time for which the work has held the loop.

    interleaver = Interleaver("opening", 30)
    await interleaver.turn()
    for queue in queues:
        open(queue)
        await interleaver.step()
    interleaver.end()
"""

from __future__ import annotations

import asyncio
import logging
import time

logger = logging.getLogger(__name__)

# The loop may be held for this long before everything else gets a turn.
HELD_S_MAX = 0.02
# The length of that turn, as a share of the time for which the loop was held; and its minimum.
PAUSE_SHARE = 0.1
PAUSE_S_MIN = 0.002
# Time between two lines of progress in the log.
LOG_S = 5.0


class Interleaver:
    """`name` and the number of `pieces` are for the log, which work shorter than `log_s` skips."""

    def __init__(self, name: str, pieces: int, *, log_s: float = LOG_S) -> None:
        self._name = name
        self._pieces = pieces
        self._log_s = log_s
        self._done = 0
        self._began = self._held_since = self._logged = time.monotonic()

    async def turn(self) -> None:
        """Before the first piece: lets tasks proceed that earlier work has woken."""
        await asyncio.sleep(PAUSE_S_MIN)
        self._held_since = time.monotonic()

    async def step(self) -> None:
        """After each piece: yields if the loop has been held for long."""
        self._done += 1
        now = time.monotonic()
        if now - self._logged >= self._log_s:
            self._logged = now
            self._log("under way")
        held_s = now - self._held_since
        if held_s >= HELD_S_MAX:
            await asyncio.sleep(max(held_s * PAUSE_SHARE, PAUSE_S_MIN))
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
