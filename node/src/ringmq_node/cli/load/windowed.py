"""Publishing at full speed under an exact window, and what it took.

*Lanes*: a few tasks that take the next chunk of messages in turn, hand it to the
publisher and wait for its confirm. The chunks in flight add up to the window, so
there are never more unconfirmed messages than it says; and order is kept, because
a lane takes its chunk and hands it over without a pause in between. At window 1
there is one lane with chunks of one message: publish, confirm, publish.

Latency runs from handing a chunk to the client to the confirm of its last message,
and counts for each of its messages.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ringmq import RequestError, RingMQError
from ringmq_node.cli.load.tally import Tally

LANES = 4
PERCENTILES = (50, 95, 99)


class Latencies:
    """Samples, each for a number of messages. Percentiles by nearest rank."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, int]] = []

    def add(self, seconds: float, messages: int) -> None:
        self._samples.append((seconds, messages))

    @classmethod
    def of(cls, parts: Iterable[Latencies]) -> Latencies:
        """All samples of several."""
        whole = cls()
        for part in parts:
            whole._samples += part._samples
        return whole

    def summary_ms(self) -> dict[str, float] | None:
        """{"p50", "p95", "p99", "max"} in milliseconds; None without a sample."""
        if not self._samples:
            return None
        ordered = sorted(self._samples)
        total = sum(messages for _, messages in ordered)
        ranks = [math.ceil(total * percent / 100) for percent in PERCENTILES]
        found: list[float] = []
        passed = 0
        for seconds, messages in ordered:
            passed += messages
            while len(found) < len(ranks) and ranks[len(found)] <= passed:
                found.append(seconds)
        named = dict(zip((f"p{percent}" for percent in PERCENTILES), found, strict=True))
        named["max"] = ordered[-1][0]
        return {name: round(seconds * 1000, 3) for name, seconds in named.items()}


def lane_sizes(window: int, batch: int = 0) -> list[int]:
    """The chunk of each lane; they add up to `window`. `batch`: the largest; 0: choose."""
    assert window >= 1, window
    lanes = math.ceil(window / batch) if batch else LANES
    lanes = min(max(lanes, 1), window)
    return [window // lanes + (lane < window % lanes) for lane in range(lanes)]


class BatchPublisher(Protocol):
    """What is wanted of a `ringmq.Publisher`."""

    async def publish_batch(self, bodies: Sequence[bytes], /) -> None: ...


@dataclass(slots=True)
class Load:
    """One queue's messages: what to publish, and how it went.

    `body_of(first, count)` makes the bodies of the messages `first` to `first + count
    - 1`. Publishing ends after `count` messages, or when `stop` says so. `gate` is
    awaited with the number of messages handed over so far, before the next ones are.
    `on_confirm` gets a chunk's size and when it was handed over (`time.perf_counter`).
    """

    tally: Tally
    body_of: Callable[[int, int], Sequence[bytes]]
    count: int
    stop: Callable[[], bool] = lambda: False
    gate: Callable[[int], Awaitable[None]] | None = None
    on_confirm: Callable[[int, float], None] | None = None
    latencies: Latencies = field(default_factory=Latencies)
    # Not confirmed: refused, or unknown at the deadline.
    failed: int = 0
    failure: RingMQError | None = None

    async def publish(self, publisher: BatchPublisher, *, window: int, batch: int = 0) -> None:
        """Publishes it all. A failure ends it, and is kept in `failure`; one that says
        that the request itself is wrong is raised."""
        async with asyncio.TaskGroup() as lanes:
            for size in lane_sizes(window, batch):
                lanes.create_task(self._lane(publisher, size))
        if isinstance(self.failure, RequestError):
            raise self.failure

    async def _lane(self, publisher: BatchPublisher, size: int) -> None:
        while self.failure is None and not self.stop():
            if self.gate is not None:
                await self.gate(self.tally.published)
            size = min(size, self.count - self.tally.published)
            if size <= 0:
                return
            # From here to the hand-over nothing waits, or lanes would overtake each other.
            first = self.tally.publish(size)
            bodies = self.body_of(first, size)
            started = time.perf_counter()
            try:
                await publisher.publish_batch(bodies)
            except RingMQError as error:
                self._note_failure(first, size, error)
                return
            self.latencies.add(time.perf_counter() - started, size)
            self.tally.confirm(first, first + size - 1)
            if self.on_confirm is not None:
                self.on_confirm(size, started)

    def _note_failure(self, first: int, size: int, error: RingMQError) -> None:
        self.failure = self.failure or error
        confirmed_from = 0
        for start, end in error.failed or ((0, size - 1),):
            if confirmed_from < start:
                self.tally.confirm(first + confirmed_from, first + start - 1)
            confirmed_from = end + 1
            self.failed += end - start + 1
        if confirmed_from < size:
            self.tally.confirm(first + confirmed_from, first + size - 1)
