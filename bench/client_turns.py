"""One client of `bench client`, in a process of its own: its turns, and what is measured in each.

    python -m bench.client_turns Publisher|SyncPublisher ROUND SEEDS QUEUE COUNT

It publishes one message after the other's confirm, in four turns, and prints its figures as JSON:

1. some messages that nobody counts;
2. timed messages: rate, latency, and the processor time of all threads of the process;
3. messages between two collections of garbage: blocks of memory that are still taken afterwards;
4. messages under tracemalloc: the most memory that a publish takes at a time, above what was taken
   before it. All messages have the same body, which isn't in it.

Both clients run on uvloop. What this module doesn't need isn't imported, as the collector would go
through it during the turns.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
import tracemalloc
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Protocol

import uvloop

import ringmq
from bench.stats import percentile

ASYNC, SYNC = "Publisher", "SyncPublisher"
KINDS = (ASYNC, SYNC)
BODY = bytes(1024)
# Of the timed messages: so many are published before them, uncounted.
_WARM_UP_SHARE = 5
COLLECTIONS_MAX = 10


@dataclass(frozen=True, slots=True)
class ClientRun:
    """The figures of one process. `kept_blocks` and `peak_bytes` are of one publish."""

    kind: str
    round: int
    rate_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    kept_blocks: float
    peak_bytes: float


class Turn(Protocol):
    """`begin`, then `handed` and `confirmed` around each message, then `end`."""

    def begin(self) -> None: ...

    def handed(self) -> None: ...

    def confirmed(self) -> None: ...

    def end(self) -> None: ...


class Uncounted:
    def begin(self) -> None: ...

    def handed(self) -> None: ...

    def confirmed(self) -> None: ...

    def end(self) -> None: ...


class Timed(Uncounted):
    """Latencies, and the time and the processor time of the whole turn."""

    def __init__(self) -> None:
        self.latencies_s: list[float] = []
        self.seconds = self.cpu_s = 0.0
        self._began = self._cpu_began = self._handed = 0.0

    def begin(self) -> None:
        self._began, self._cpu_began = time.perf_counter(), time.process_time()

    def handed(self) -> None:
        self._handed = time.perf_counter()

    def confirmed(self) -> None:
        self.latencies_s.append(time.perf_counter() - self._handed)

    def end(self) -> None:
        self.cpu_s = time.process_time() - self._cpu_began
        self.seconds = time.perf_counter() - self._began


class Kept(Uncounted):
    """The blocks of memory that the turn has left behind, garbage not counted."""

    def __init__(self) -> None:
        self.blocks = 0

    def begin(self) -> None:
        _collect_all()
        self.blocks = -sys.getallocatedblocks()

    def end(self) -> None:
        _collect_all()
        self.blocks += sys.getallocatedblocks()


def _collect_all() -> None:
    # What a finalizer lets go of is only found by the next collection, and so on.
    for _ in range(COLLECTIONS_MAX):
        if not gc.collect():
            return


class Peaks(Uncounted):
    """For each message, how much memory was taken at most until its confirm, by all threads."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self._before = 0

    def begin(self) -> None:
        tracemalloc.start()

    def handed(self) -> None:
        tracemalloc.reset_peak()
        self._before, _ = tracemalloc.get_traced_memory()

    def confirmed(self) -> None:
        _, peak = tracemalloc.get_traced_memory()
        self.bytes.append(peak - self._before)

    def end(self) -> None:
        tracemalloc.stop()


async def _publish(seeds: str, queue: str, turns: Sequence[tuple[Turn, int]]) -> None:
    async with (
        ringmq.connect(seeds) as client,
        client.publisher(queue, window_messages=1) as publisher,
    ):
        for turn, count in turns:
            turn.begin()
            for _ in range(count):
                turn.handed()
                await publisher.publish(BODY)
                turn.confirmed()
            turn.end()


def _publish_sync(seeds: str, queue: str, turns: Sequence[tuple[Turn, int]]) -> None:
    with (
        ringmq.connect_sync(seeds) as client,
        client.publisher(queue, window_messages=1) as publisher,
    ):
        for turn, count in turns:
            turn.begin()
            for _ in range(count):
                turn.handed()
                publisher.publish(BODY)
                turn.confirmed()
            turn.end()


def run_client(kind: str, round_number: int, seeds: str, queue: str, count: int) -> ClientRun:
    """Publishes in this process."""
    timed, kept, peaks = Timed(), Kept(), Peaks()
    turns = (
        (Uncounted(), max(count // _WARM_UP_SHARE, 1)),
        (timed, count),
        (kept, count),
        (peaks, count),
    )
    if kind == SYNC:
        _publish_sync(seeds, queue, turns)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_publish(seeds, queue, turns))
    ordered = sorted(timed.latencies_s)
    return ClientRun(
        kind=kind,
        round=round_number,
        rate_per_s=count / timed.seconds,
        p50_ms=percentile(ordered, 50) * 1e3,
        p99_ms=percentile(ordered, 99) * 1e3,
        cpu_us=timed.cpu_s / count * 1e6,
        kept_blocks=kept.blocks / count,
        peak_bytes=median(peaks.bytes),
    )


def child(words: Sequence[str]) -> None:
    kind, number, seeds, queue, count = words
    print(json.dumps(asdict(run_client(kind, int(number), seeds, queue, int(count)))))


if __name__ == "__main__":
    child(sys.argv[1:])
