"""A process with one queue that takes in a number of bytes, and drops those for which its
monitor's bound is too short; then all are consumed, and it is idle.

Prints the watermark, the bytes taken in, the largest resident size, that and the bytes
held before the consumption, and the resident size and the bound after it: when both are
at rest, or else at a deadline.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import deque
from pathlib import Path

from loops import run

from ringmq_node.resources import ResourceMonitor
from ringmq_node.resources.allocator import keep_buffers, trim
from ringmq_node.resources.cgroup import resident_bytes
from ringmq_node.resources.limits import Size

MIB = 1 << 20
LIMIT = 256 * MIB
BLOCK_BYTES = 64 << 10
RATE_BYTES_PER_S = 200 * MIB
# As long as it takes: a busy machine gives this process a fraction of the rate.
TAKEN_BYTES = 4 * LIMIT
IDLE_RESIDENT_BYTES = LIMIT // 5
# The allocator rests for fifty times as long as its last trim took, by the clock.
IDLE_S_MAX = 60.0
TICK_S = 0.01
TURN_BYTES_MAX = 8 * MIB


class Queue:
    def __init__(self) -> None:
        self.duration_s = float("inf")
        self.blocks: deque[bytes] = deque()
        # Never dropped: these objects come to lie between the blocks.
        self.entries: list[list[int]] = []
        self.taken_bytes = 0

    def ram_durations(self, now: float) -> list[float]:
        return [self.held_s or float("inf")]

    @property
    def held_s(self) -> float:
        """How long the blocks last at the rate that is meant, which isn't always reached."""
        return len(self.blocks) * BLOCK_BYTES / RATE_BYTES_PER_S

    def set_duration(self, seconds: float) -> None:
        self.duration_s = seconds

    def take(self, size_bytes: int) -> None:
        for _ in range(size_bytes // BLOCK_BYTES):
            request = bytearray(os.urandom(16) * (BLOCK_BYTES // 16))
            self.blocks.append(bytes(request))
            self.entries.append([len(self.entries)] * 60)
            self.taken_bytes += BLOCK_BYTES
        while self.held_s > self.duration_s:
            self.blocks.popleft()


async def main(with_trim: bool) -> None:
    queue = Queue()
    monitor = ResourceMonitor(
        Path.cwd(),
        memory_watermark=Size(LIMIT),
        disk_free_limit=Size(0),
        on_alarm=lambda kind, on: None,
        store=queue,
        trim=trim if with_trim else lambda: None,
    )
    task = asyncio.create_task(monitor.run())
    peak = 0
    last = time.monotonic()
    while queue.taken_bytes < TAKEN_BYTES:
        now = time.monotonic()
        # A machine that was busy elsewhere must not make up for it within one turn of the loop.
        queue.take(min(TURN_BYTES_MAX, int((now - last) * RATE_BYTES_PER_S)))
        last = now
        peak = max(peak, resident_bytes())
        await asyncio.sleep(TICK_S)
    busy, kept = resident_bytes(), len(queue.blocks) * BLOCK_BYTES
    queue.blocks.clear()
    deadline = time.monotonic() + IDLE_S_MAX
    while time.monotonic() < deadline:
        if resident_bytes() < IDLE_RESIDENT_BYTES and queue.duration_s == float("inf"):
            break
        await asyncio.sleep(TICK_S)
    task.cancel()
    print(LIMIT, queue.taken_bytes, peak, busy, kept, resident_bytes(), queue.duration_s)


# As a node's process does.
keep_buffers()
run(main("--without-trim" not in sys.argv))
