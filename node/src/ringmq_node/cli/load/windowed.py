"""Publishing at full speed under an exact window of unconfirmed messages.

A few *lanes* (tasks) take turns: a lane takes the next chunk of messages, hands it to the
publisher, and waits for its confirm. The lanes' chunk sizes add up to the window, so there
are never more unconfirmed messages than the window. Messages stay in order because a lane
takes its chunk and hands it over without an `await` in between. At window 1 there is one
lane with chunks of one message: publish, confirm, publish.

A chunk's latency runs from its hand-over to the confirm of its last message, and counts
for each of its messages.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ringmq import RequestError, RingMQError
from ringmq_node.cli.load.latencies import Latencies
from ringmq_node.cli.load.tally import Tally

LANES = 4
# The `count` of a load that only `stop` ends: more messages than any run publishes.
ENDLESS = 2**40


def lane_sizes(window: int, batch: int = 0) -> list[int]:
    """The chunk size of each lane; they add up to `window`.

    `batch` is the largest chunk allowed; 0 leaves the choice to this function.
    """
    assert window >= 1, window
    lanes = math.ceil(window / batch) if batch else LANES
    lanes = min(max(lanes, 1), window)
    return [window // lanes + (lane < window % lanes) for lane in range(lanes)]


class BatchPublisher(Protocol):
    """The one method of `ringmq.Publisher` that a load needs."""

    async def publish_batch(self, bodies: Sequence[bytes], /) -> None: ...


@dataclass(slots=True)
class WindowedLoad:
    """The messages for one queue, and how publishing them went.

    `body_of(first, count)` makes the bodies of the messages `first` to `first + count - 1`.
    Publishing ends after `count` messages, or as soon as `stop` returns true. `gate` is
    awaited before each chunk, with the number of messages handed over so far. `on_confirm`
    gets a confirmed chunk's size and the time of its hand-over (`time.perf_counter`).
    """

    tally: Tally
    body_of: Callable[[int, int], Sequence[bytes]]
    count: int
    stop: Callable[[], bool] = lambda: False
    gate: Callable[[int], Awaitable[None]] | None = None
    on_confirm: Callable[[int, float], None] | None = None
    latencies: Latencies = field(default_factory=Latencies)
    # Messages without a confirm: refused, or their outcome unknown at the deadline.
    failed: int = 0
    failure: RingMQError | None = None

    async def publish(self, publisher: BatchPublisher, *, window: int, batch: int = 0) -> None:
        """Publishes all messages. The first failure ends it, and is kept in `failure`.

        A `RequestError` is raised, too: the request itself is wrong, so the run makes no sense.
        """
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
            # No `await` from here until `publish_batch` has the bodies: another lane would
            # run, and hand over later messages first.
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
        """Counts the chunk's failed messages, and tallies the others as confirmed."""
        self.failure = self.failure or error
        confirmed_from = 0
        for start, end in error.failed or ((0, size - 1),):
            if confirmed_from < start:
                self.tally.confirm(first + confirmed_from, first + start - 1)
            confirmed_from = end + 1
            self.failed += end - start + 1
        if confirmed_from < size:
            self.tally.confirm(first + confirmed_from, first + size - 1)
