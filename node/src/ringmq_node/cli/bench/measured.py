"""The parts of a bench: its settings, and one queue's load, deliveries and latencies."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from ringmq import Batch
from ringmq_node.cli.load.bodies import StampedBodies, times_ns
from ringmq_node.cli.load.latencies import Latencies
from ringmq_node.cli.load.windowed import WindowedLoad


class BenchKind(Enum):
    """The value is the verb on the command line and in the report."""

    PUBLISH = "publish"
    CONSUME = "consume"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """`count` is of all queues together; None: until `seconds` have passed.

    With `queues` empty, `fresh` new queues are declared, and deleted afterwards. A `batch`
    of 0 leaves the chunk size to the load.
    """

    kind: BenchKind
    queues: tuple[str, ...]
    fresh: int
    count: int | None
    size_bytes: int
    window: int
    batch: int
    seconds: float | None
    prefetch: int

    @property
    def consumes_for_a_time(self) -> bool:
        """Whether consuming ends by the clock: then messages may be left in the queues."""
        return self.kind is BenchKind.CONSUME and self.seconds is not None

    def share(self, number: int, queues: int) -> int | None:
        """The messages of queue `number` of `queues`; None without a `count`."""
        if self.count is None:
            return None
        return self.count // queues + (number < self.count % queues)


@dataclass(slots=True)
class MeasuredQueue:
    """One queue of the run: the load published to it, and the deliveries from it."""

    queue: str
    load: WindowedLoad
    bodies: StampedBodies
    # Whether every message in the queue was published by this run.
    ours: bool
    # The number of messages to consume, where it is known beforehand.
    wanted: int | None = None
    publishing: bool = False
    consumed: int = 0
    end_to_end: Latencies = field(default_factory=Latencies)

    @property
    def judged(self) -> bool:
        """Whether deliveries can be tallied: each body tells its message."""
        return self.ours and self.bodies.has_stamp

    def take(self, batch: Batch) -> None:
        self.consumed += len(batch)
        now_ns = time.time_ns()
        for part in batch.parts:
            sent_ns: Sequence[int]
            if self.judged:
                indexes, sent_ns = self.bodies.read(part.bodies)
                self.load.tally.deliver(indexes, part.first, redelivered=part.redelivered)
            else:
                sent_ns = times_ns(part.bodies)
            # All messages of a published chunk have the same time: one sample for each chunk.
            for moment_ns, messages in Counter(sent_ns).items():
                if moment_ns:
                    self.end_to_end.add((now_ns - moment_ns) / 1e9, messages)

    @property
    def has_all(self) -> bool:
        """Whether every message that is known to have gone in has come out."""
        if self.publishing:
            return False
        if self.judged:
            return self.load.tally.complete
        wanted = len(self.load.tally.confirmed) if self.wanted is None else self.wanted
        return self.consumed >= wanted
