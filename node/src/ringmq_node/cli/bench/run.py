"""What `ringmq bench` does: queues, publishers, consumers, and the timed part.

Imports, connections, declarations and the opening of streams come before the timed
part, closing and deleting after it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from os import urandom
from typing import Any, Literal

from rich.progress import Progress

from ringmq import Batch, Client, Consumer, Publisher, RingMQError
from ringmq_node.cli.bench.bodies import Bodies, times_ns
from ringmq_node.cli.load.tally import Tally
from ringmq_node.cli.load.windowed import Latencies, Load
from ringmq_node.cli.output import progress_bar

Kind = Literal["publish", "consume", "both"]

# A consumer that gets nothing for this long, while there should be something, gives up.
SILENCE_S = 30.0
_IDLE_S = 0.2
# What of a tally never may be.
BROKEN = ("lost", "duplicated", "reordered", "unexpected")
# Ended by `seconds`: more than any run publishes.
_ENDLESS = 2**40


class BenchError(Exception):
    """The run makes no sense, or can't go on."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`count` is of all queues together; None: until `seconds` have passed.

    `queues` empty: `fresh` new ones, deleted afterwards. `batch` 0: chosen.
    """

    kind: Kind
    queues: tuple[str, ...]
    fresh: int
    count: int | None
    size_bytes: int
    window: int
    batch: int
    seconds: float | None
    prefetch: int


@dataclass(slots=True)
class Subject:
    """One queue: what is published to it, and what came out of it."""

    queue: str
    load: Load
    bodies: Bodies
    # Whether all that is in the queue is of this run.
    ours: bool
    # How many to consume, where that is known beforehand.
    wanted: int | None = None
    publishing: bool = False
    consumed: int = 0
    end_to_end: Latencies = field(default_factory=Latencies)

    @property
    def judged(self) -> bool:
        return self.ours and self.bodies.has_header

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
            # Those of one chunk have the same.
            for moment_ns, messages in Counter(sent_ns).items():
                if moment_ns:
                    self.end_to_end.add((now_ns - moment_ns) / 1e9, messages)

    @property
    def has_all(self) -> bool:
        """Whether all has come out that is known to have gone in."""
        if self.publishing:
            return False
        if self.judged:
            return self.load.tally.complete
        wanted = len(self.load.tally.confirmed) if self.wanted is None else self.wanted
        return self.consumed >= wanted


class Bench:
    """One run: `run`, then `report`."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._subjects: list[Subject] = []
        self._ends_at = float("inf")
        self._started = self._cpu_started_s = 0.0
        # How long publishing took, and consuming until the last message.
        self._publish_s = self._consume_s = self._cpu_s = 0.0
        #: Why it is not what it should be: one line.
        self.failure = ""

    async def run(self) -> None:
        settings = self._settings
        run_name = f"bench.{urandom(4).hex()}"
        names = settings.queues or tuple(f"{run_name}.{n}" for n in range(settings.fresh))
        try:
            for number, queue in enumerate(names):
                self._subjects.append(await self._prepare(queue, number, len(names)))
            if settings.kind == "consume":
                await self._run_consume()
            else:
                await self._run_publish()
        finally:
            if not settings.queues:
                for subject in self._subjects:
                    await self._client.delete_queue(subject.queue)

    async def _prepare(self, queue: str, number: int, queues: int) -> Subject:
        settings = self._settings
        if not settings.queues:
            await self._client.declare_queue(queue)
        ready = (await self._client.queue(queue)).messages_ready
        if settings.kind == "both" and ready:
            raise BenchError(f"queue {queue!r} holds {ready} messages, which would be counted")
        count = settings.count
        share = _ENDLESS if count is None else count // queues + (number < count % queues)
        bodies = Bodies(settings.size_bytes)
        load = Load(Tally(), bodies.make, share, stop=self._is_over)
        subject = Subject(queue, load, bodies, ours=settings.kind == "both" or not settings.queues)
        if settings.kind == "consume" and settings.queues:
            subject.wanted = min(ready, share)
        return subject

    async def _run_publish(self) -> None:
        """`publish` and `both`: all streams are open when the clock starts."""
        async with AsyncExitStack() as stack:
            publishers = await self._publishers(stack)
            both = self._settings.kind == "both"
            consumers = await self._consumers(stack) if both else []
            self._start_clock()
            with progress_bar() as bar:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._publish_all(publishers, bar))
                    for subject, consumer in zip(self._subjects, consumers, strict=False):
                        group.create_task(self._consume(subject, consumer, bar))
            self._stop_clock()

    async def _run_consume(self) -> None:
        """The clock starts before the consumers do: they would have much in hand already."""
        async with AsyncExitStack() as stack:
            with progress_bar() as bar:
                if not self._settings.queues:
                    await self._publish_all(await self._publishers(stack), bar)
                self._start_clock()
                consumers = await self._consumers(stack)
                async with asyncio.TaskGroup() as group:
                    for subject, consumer in zip(self._subjects, consumers, strict=True):
                        group.create_task(self._consume(subject, consumer, bar))
            self._stop_clock()

    def _is_over(self) -> bool:
        return time.perf_counter() >= self._ends_at

    def _start_clock(self) -> None:
        self._started = time.perf_counter()
        self._cpu_started_s = time.process_time()
        if self._settings.seconds is not None:
            self._ends_at = self._started + self._settings.seconds

    def _stop_clock(self) -> None:
        self._cpu_s = time.process_time() - self._cpu_started_s

    async def _publishers(self, stack: AsyncExitStack) -> list[Publisher]:
        window = self._settings.window
        publishers = [
            self._client.publisher(subject.queue, window_messages=window)
            for subject in self._subjects
        ]
        for publisher in publishers:
            await stack.enter_async_context(publisher)
        return publishers

    async def _consumers(self, stack: AsyncExitStack) -> list[Consumer]:
        prefetch = self._settings.prefetch
        consumers = [
            self._client.consumer(subject.queue, prefetch=prefetch) for subject in self._subjects
        ]
        for consumer in consumers:
            await stack.enter_async_context(consumer)
        return consumers

    async def _publish_all(self, publishers: Sequence[Publisher], bar: Progress) -> None:
        started = time.perf_counter()
        shown = bar.add_task("publish", total=self._settings.count, note="")
        for subject in self._subjects:
            subject.publishing = True
            subject.load.on_confirm = lambda count, _: bar.advance(shown, count)
        async with asyncio.TaskGroup() as group:
            for subject, publisher in zip(self._subjects, publishers, strict=True):
                group.create_task(self._publish(subject, publisher))
        self._publish_s = time.perf_counter() - started

    async def _publish(self, subject: Subject, publisher: Publisher) -> None:
        settings = self._settings
        try:
            await subject.load.publish(publisher, window=settings.window, batch=settings.batch)
        finally:
            subject.publishing = False
        failure = subject.load.failure
        if failure is not None:
            self.failure = f"{subject.load.failed} not confirmed: {failure}"

    async def _consume(self, subject: Subject, consumer: Consumer, bar: Progress) -> None:
        try:
            await self._consume_all(subject, consumer, bar)
        except RingMQError as error:
            self.failure = self.failure or f"queue {subject.queue!r}: {error}"

    async def _consume_all(self, subject: Subject, consumer: Consumer, bar: Progress) -> None:
        """Until all is there and the queue empty; or for `seconds`; or nothing comes."""
        shown = bar.add_task("consume", total=self._settings.count, note="")
        heard_at = time.perf_counter()
        timed_only = self._settings.kind == "consume" and self._settings.seconds is not None
        while not (timed_only and self._is_over()):
            if subject.has_all and not subject.judged:
                return
            batch = await consumer.next_batch(timeout_s=_IDLE_S)
            if batch is not None:
                subject.take(batch)
                await consumer.ack(batch)
                heard_at = time.perf_counter()
                self._consume_s = heard_at - self._started
                bar.advance(shown, len(batch))
            elif subject.has_all and await self._is_empty(subject.queue):
                # A duplicate would have been behind the last message.
                return
            elif not subject.publishing and time.perf_counter() - heard_at > SILENCE_S:
                self.failure = f"queue {subject.queue!r}: nothing came for {SILENCE_S:g} s"
                return

    async def _is_empty(self, queue: str) -> bool:
        info = await self._client.queue(queue)
        return info.messages_ready == info.messages_unacknowledged == 0

    # --- what came of it ---

    @property
    def broken(self) -> bool:
        """Whether a guarantee was broken, as far as it can be judged."""
        return any(self._sum(name) for name in BROKEN)

    @property
    def _drained(self) -> bool:
        """Whether all was awaited that could have come: else nobody knows what is lost."""
        stopped_early = self._settings.kind == "consume" and self._settings.seconds is not None
        return not self.failure and not stopped_early

    def _sum(self, name: str) -> int | None:
        """Of all tallies; None where it can't be told."""
        if self._settings.kind == "publish" or not all(each.judged for each in self._subjects):
            return None
        if name == "lost" and not self._drained:
            return None
        return sum(int(getattr(each.load.tally, name)) for each in self._subjects)

    def report(self) -> dict[str, Any]:
        """What `--json` prints; see docs/cli.md. Unknown is None."""
        settings = self._settings
        facts: dict[str, Any] = {
            "kind": settings.kind,
            "queues": len(self._subjects),
            "size_bytes": settings.size_bytes,
        }
        if settings.kind != "consume":
            facts |= self._published()
        if settings.kind != "publish":
            facts |= self._consumed()
        return facts | {"client_cpu_s": round(self._cpu_s, 6)}

    def _published(self) -> dict[str, Any]:
        loads = [subject.load for subject in self._subjects]
        confirmed = sum(len(load.tally.confirmed) for load in loads)
        return {
            "count": sum(load.tally.published for load in loads),
            "confirmed": confirmed,
            "nacked": sum(load.failed for load in loads),
            "window": self._settings.window,
            "seconds": round(self._publish_s, 6),
            "rate_per_s": _rate(confirmed, self._publish_s),
            "confirm_ms": Latencies.of(load.latencies for load in loads).summary_ms(),
        }

    def _consumed(self) -> dict[str, Any]:
        subjects = self._subjects
        consumed = sum(subject.consumed for subject in subjects)
        facts: dict[str, Any] = {
            "consumed": consumed,
            "consume_seconds": round(self._consume_s, 6),
            "consume_rate_per_s": _rate(consumed, self._consume_s),
            "end_to_end_ms": Latencies.of(s.end_to_end for s in subjects).summary_ms(),
        }
        for name in ("lost", "duplicated", "reordered", "redelivered", "unexpected"):
            facts[name] = self._sum(name)
        return facts


def _rate(messages: int, seconds: float) -> float:
    return round(messages / seconds, 1) if seconds else 0.0
