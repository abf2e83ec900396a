"""Watches how long one piece of work holds the event loop.

Everything of a node shares one thread: heartbeats of rings, leases, all streams of clients. A piece
of work that doesn't yield for as long as a ring's time-out makes the node look dead to the others.
So pieces are bounded (`HELD_S_MAX`), and this watch finds those that are longer. It logs a warning
that says how long, and what ran.

Time is CPU time of the loop's thread, not time on the clock: on a busy machine a short piece takes
long, and that is no fault of the piece. The other side of it: a piece that waits in a system call
isn't seen. (`storage.disk.watch` looks after the disk's calls.)

The loop's timer beats each `BEAT_S`, each `BUSY_BEAT_S` while there is work, at the first turn of
the loop after that. All CPU time since the moment at which a beat was due is one turn's. What was
used before that moment, at most the time between two beats, may have been another's: it isn't
counted, so a warning is never false, and a piece is told as that much shorter at most.

A thread takes a sample of the loop's stack when much of that time is used up: after the piece
nobody could tell what it was. While it runs without releasing the interpreter's lock (a large sort,
a garbage collection), the sample has to wait, and shows the line after it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

HELD_S_MAX = 0.05
BEAT_S = 0.02
BUSY_BEAT_S = 0.004
# The loop is busy if it has used so much of the CPU since the last beat.
BUSY_S = 0.001
# How often the thread looks; and the share of `HELD_S_MAX` from which on it takes a sample.
LOOK_S = 0.025
SAMPLE_SHARE = 0.5
# The innermost frames of a sample that are logged.
FRAMES_SHOWN = 6
# Time between two warnings. Pieces in between are counted, and the longest is told.
WARN_S = 1.0


class LoopWatch:
    """Of the loop that calls `run`."""

    def __init__(self, *, held_s_max: float = HELD_S_MAX, warn_s: float = WARN_S) -> None:
        # The longest piece so far, and the number of those above the limit.
        self.longest_s = 0.0
        self.pieces = 0
        self._held_s_max = held_s_max
        self._warn_s = warn_s
        self._warned_at = -warn_s
        self._untold = 0
        self._untold_longest_s = 0.0
        # Both clocks at the last beat, and the time from there to the next one.
        self._cpu_s = 0.0
        self._beat_at = 0.0
        self._beat_s = BEAT_S
        self._sample = ""
        self._collecting_since: float | None = None
        self._collected_s = 0.0
        self._ended = threading.Event()

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        thread = threading.Thread(
            target=self._look, args=(threading.get_ident(),), name="loop-watch", daemon=True
        )
        self._cpu_s, self._beat_at = time.thread_time(), loop.time()
        gc.callbacks.append(self._collected)
        thread.start()
        timer = loop.call_later(BEAT_S, lambda: None)

        def beat() -> None:
            nonlocal timer
            self._beat(loop.time())
            timer = loop.call_later(self._beat_s, beat)

        beat()
        try:
            await loop.create_future()
        finally:
            timer.cancel()
            self._ended.set()
            gc.callbacks.remove(self._collected)

    def _beat(self, now: float) -> None:
        cpu_s = time.thread_time()
        used_s, passed_s = cpu_s - self._cpu_s, now - self._beat_at
        held_s = used_s - self._beat_s
        self._beat_s = BUSY_BEAT_S if used_s > BUSY_S else BEAT_S
        collected_s, self._collected_s = self._collected_s, 0.0
        self._cpu_s, self._beat_at = cpu_s, now
        self.longest_s = max(self.longest_s, held_s)
        if held_s <= self._held_s_max:
            self._sample = ""
            return
        self.pieces += 1
        sample, self._sample = self._sample, ""
        if now - self._warned_at < self._warn_s:
            self._untold += 1
            self._untold_longest_s = max(self._untold_longest_s, held_s)
            return
        self._warn(held_s, passed_s, collected_s, sample)
        # What the warning itself has cost is no piece of the node's.
        self._cpu_s = time.thread_time()
        self._warned_at = now

    def _warn(self, held_s: float, passed_s: float, collected_s: float, sample: str) -> None:
        more = ""
        if self._untold:
            more = f"; {self._untold} since the last warning, {self._untold_longest_s * 1e3:.0f} ms"
            self._untold, self._untold_longest_s = 0, 0.0
        logger.warning(
            "the event loop was held for at least %.0f ms of CPU time in %.0f ms, %.0f ms of it by "
            "the garbage collector, at most %.0f ms are meant to be%s: %s",
            held_s * 1e3,
            passed_s * 1e3,
            collected_s * 1e3,
            self._held_s_max * 1e3,
            more,
            sample or "no sample was taken",
        )

    def _collected(self, phase: str, _: dict[str, Any]) -> None:
        """Called by the collector, in whichever thread it runs."""
        now = time.perf_counter()
        if phase == "start":
            self._collecting_since = now
        elif self._collecting_since is not None:
            self._collected_s += now - self._collecting_since
            self._collecting_since = None

    # -- the thread

    def _look(self, thread: int) -> None:
        cpu_clock = time.pthread_getcpuclockid(thread)
        while not self._ended.wait(LOOK_S):
            held_s = time.clock_gettime(cpu_clock) - self._cpu_s
            if held_s >= self._held_s_max * SAMPLE_SHARE and not self._sample:
                frame = sys._current_frames().get(thread)
                if frame is not None:
                    self._sample = _described(frame)


def _described(frame: FrameType) -> str:
    """The innermost frames, from the outside in: `file:line function > ...`.

    By hand, as `traceback` reads the files for their lines: until this thread had the interpreter's
    lock again after each of them, the piece was over, and told without a sample.
    """
    shown: list[str] = []
    inner: FrameType | None = frame
    while inner is not None and len(shown) < FRAMES_SHOWN:
        code = inner.f_code
        file = code.co_filename.rpartition("site-packages/")[2].rpartition("/src/")[2]
        shown.append(f"{file}:{inner.f_lineno} {code.co_name}")
        inner = inner.f_back
    return " > ".join(reversed(shown))
