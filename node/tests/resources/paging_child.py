"""A process with one queue that takes in blocks for some seconds, and drops those that are
older than its monitor allows; then all are consumed, and it is idle.

Prints the watermark, the bytes taken in, the largest resident size, that and the bytes
held before the consumption, and the resident size and the bound some seconds after it.
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
from ringmq_node.resources.allocator import trim
from ringmq_node.resources.cgroup import resident_bytes
from ringmq_node.resources.limits import Size

MIB = 1 << 20
LIMIT = 256 * MIB
BLOCK_BYTES = 64 << 10
RATE_BYTES_PER_S = 200 * MIB
BUSY_S = 5.0
IDLE_S = 3.0
TICK_S = 0.01
TURN_BYTES_MAX = 8 * MIB


class Queue:
    def __init__(self) -> None:
        self.duration_s = float("inf")
        self.blocks: deque[tuple[float, bytes]] = deque()
        # Never dropped: these objects come to lie between the blocks.
        self.entries: list[list[int]] = []
        self.taken_bytes = 0

    def ram_durations(self, now: float) -> dict[str, float]:
        return {"queue": len(self.blocks) * BLOCK_BYTES / RATE_BYTES_PER_S or float("inf")}

    def set_duration(self, seconds: float) -> None:
        self.duration_s = seconds

    def take(self, now: float, size_bytes: int) -> None:
        for _ in range(size_bytes // BLOCK_BYTES):
            request = bytearray(os.urandom(16) * (BLOCK_BYTES // 16))
            self.blocks.append((now, bytes(request)))
            self.entries.append([len(self.entries)] * 60)
            self.taken_bytes += BLOCK_BYTES
        while self.blocks and now - self.blocks[0][0] > self.duration_s:
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
    began = last = time.monotonic()
    while (now := time.monotonic()) < began + BUSY_S:
        # A machine that was busy elsewhere must not make up for it within one turn of the loop.
        queue.take(now, min(TURN_BYTES_MAX, int((now - last) * RATE_BYTES_PER_S)))
        last = now
        peak = max(peak, resident_bytes())
        await asyncio.sleep(TICK_S)
    busy, kept = resident_bytes(), len(queue.blocks) * BLOCK_BYTES
    queue.blocks.clear()
    await asyncio.sleep(IDLE_S)
    task.cancel()
    print(LIMIT, queue.taken_bytes, peak, busy, kept, resident_bytes(), queue.duration_s)


run(main("--without-trim" not in sys.argv))
