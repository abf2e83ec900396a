"""The physical footing: the same bytes, written and synced by a bare loop.

No broker can confirm faster than its disk. One file, one copy: `window`
messages a time are gathered into one `writev`, then `fdatasync`; a message's
latency is that of its batch. Three nodes on one disk have three times this to
write, and a network between them, so the row is a ceiling and not a rival.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from bench import procs
from bench.measure import ClientReport, Point
from bench.stats import client_report

# IOV_MAX of Linux: more buffers than this a writev refuses.
_BUFFERS_MAX = 1024


class Footing:
    """The bare disk as a peer. Its only process is the benchmark's own."""

    name = "disk"

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def describe(self) -> dict[str, str]:
        return {"nodes": "0", "queue": "one file", "messages": "writev + fdatasync per window"}

    def broker_pids(self) -> Sequence[int]:
        return ()

    def handed_bytes(self) -> int | None:
        return None

    def prepare(self, queues: Sequence[str]) -> None:
        (queue,) = queues
        self._file(queue).touch(0o600, exist_ok=False)

    def publish(self, point: Point, queues: Sequence[str]) -> ClientReport:
        (queue,) = queues
        body = os.urandom(point.size_bytes)
        latencies_s: list[float] = []
        cpu_before = procs.own_cpu_s()
        descriptor = os.open(self._file(queue), os.O_WRONLY)
        try:
            started = time.perf_counter()
            left = point.count
            while left:
                batch = min(point.window, left)
                before = time.perf_counter()
                write_all(descriptor, body, batch)
                os.fdatasync(descriptor)
                latencies_s.extend([time.perf_counter() - before] * batch)
                left -= batch
            seconds = time.perf_counter() - started
        finally:
            os.close(descriptor)
        return client_report(
            latencies_s,
            seconds=seconds,
            acked=point.count,
            client_cpu_s=procs.own_cpu_s() - cpu_before,
        )

    def remove(self, queues: Sequence[str]) -> None:
        (queue,) = queues
        self._file(queue).unlink()

    def _file(self, queue: str) -> Path:
        return self._directory / f"footing.{queue}"


def write_all(descriptor: int, body: bytes, count: int) -> None:
    """`body`, `count` times, in as few calls as the system allows. Raises `OSError`."""
    while count:
        batch = min(count, _BUFFERS_MAX)
        written = os.writev(descriptor, [body] * batch)
        if written != batch * len(body):
            raise OSError(f"a short write: {written} of {batch * len(body)} bytes; disk full?")
        count -= batch
