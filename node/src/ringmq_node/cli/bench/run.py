"""One run of `ringmq bench`: its queues, publishers and consumers, and the timed part.

Imports, connections, declarations and the opening of streams come before the timed part,
closing and deleting after it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from os import urandom
from typing import Any

from rich.progress import Progress

from ringmq import Client, Consumer, Publisher, RingMQError
from ringmq_node.cli.bench.measured import BenchKind, BenchSettings, MeasuredQueue
from ringmq_node.cli.bench.report import Durations, bench_report, total_counts
from ringmq_node.cli.load.bodies import StampedBodies
from ringmq_node.cli.load.drained import is_drained
from ringmq_node.cli.load.tally import Tally, TallyCounts
from ringmq_node.cli.load.windowed import ENDLESS, WindowedLoad
from ringmq_node.cli.output import progress_bar

# A consumer that gets nothing for this long, while it should, gives up.
SILENCE_S = 30.0
_IDLE_S = 0.2


class UnfitQueueError(Exception):
    """A bench of this queue would count messages that it hasn't published."""


class BenchRun:
    """One run: await `run`, then ask for its `report`."""

    def __init__(self, client: Client, settings: BenchSettings) -> None:
        self._client = client
        self._settings = settings
        self._queues: list[MeasuredQueue] = []
        self._ends_at = float("inf")
        self._started = self._cpu_started_s = 0.0
        self._took = Durations()
        #: Why the run isn't complete, in one line; empty if it is.
        self.failure = ""

    async def run(self) -> None:
        """Raises `UnfitQueueError`, or the client's error if the run can't begin."""
        settings = self._settings
        run_name = f"bench.{urandom(4).hex()}"
        names = settings.queues or tuple(f"{run_name}.{n}" for n in range(settings.fresh))
        try:
            for number, queue in enumerate(names):
                self._queues.append(await self._prepare(queue, settings.share(number, len(names))))
            if settings.kind is BenchKind.CONSUME:
                await self._run_consume()
            else:
                await self._run_publish()
        finally:
            if not settings.queues:
                for each in self._queues:
                    await self._client.delete_queue(each.queue)

    async def _prepare(self, queue: str, share: int | None) -> MeasuredQueue:
        settings = self._settings
        if not settings.queues:
            await self._client.declare_queue(queue)
        ready = (await self._client.queue(queue)).messages_ready
        both = settings.kind is BenchKind.BOTH
        if both and ready:
            raise UnfitQueueError(
                f"queue {queue!r} holds {ready} messages, which would be counted: purge it first"
            )
        count = ENDLESS if share is None else share
        bodies = StampedBodies(settings.size_bytes)
        load = WindowedLoad(Tally(), bodies.make, count, stop=self._is_over)
        measured = MeasuredQueue(queue, load, bodies, ours=both or not settings.queues)
        if settings.kind is BenchKind.CONSUME and settings.queues:
            measured.wanted = min(ready, count)
        return measured

    async def _run_publish(self) -> None:
        """`publish` and `both`: all streams are open when the clock starts."""
        async with AsyncExitStack() as stack:
            publishers = await self._publishers(stack)
            both = self._settings.kind is BenchKind.BOTH
            consumers = await self._consumers(stack) if both else []
            self._start_clock()
            with progress_bar() as bar:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._publish_all(publishers, bar))
                    for measured, consumer in zip(self._queues, consumers, strict=False):
                        group.create_task(self._consume(measured, consumer, bar))
            self._stop_clock()

    async def _run_consume(self) -> None:
        """The clock starts before the consumers are opened.

        A node delivers as soon as a consumer is there: with the clock started later, the
        first prefetch window would have been delivered in no time.
        """
        async with AsyncExitStack() as stack:
            with progress_bar() as bar:
                if not self._settings.queues:
                    await self._publish_all(await self._publishers(stack), bar)
                self._start_clock()
                consumers = await self._consumers(stack)
                async with asyncio.TaskGroup() as group:
                    for measured, consumer in zip(self._queues, consumers, strict=True):
                        group.create_task(self._consume(measured, consumer, bar))
            self._stop_clock()

    def _is_over(self) -> bool:
        return time.perf_counter() >= self._ends_at

    def _start_clock(self) -> None:
        self._started = time.perf_counter()
        self._cpu_started_s = time.process_time()
        if self._settings.seconds is not None:
            self._ends_at = self._started + self._settings.seconds

    def _stop_clock(self) -> None:
        self._took.cpu_s = time.process_time() - self._cpu_started_s

    async def _publishers(self, stack: AsyncExitStack) -> list[Publisher]:
        window = self._settings.window
        publishers = [
            self._client.publisher(each.queue, window_messages=window) for each in self._queues
        ]
        for publisher in publishers:
            await stack.enter_async_context(publisher)
        return publishers

    async def _consumers(self, stack: AsyncExitStack) -> list[Consumer]:
        prefetch = self._settings.prefetch
        consumers = [self._client.consumer(each.queue, prefetch=prefetch) for each in self._queues]
        for consumer in consumers:
            await stack.enter_async_context(consumer)
        return consumers

    # --- publishing ---

    async def _publish_all(self, publishers: Sequence[Publisher], bar: Progress) -> None:
        started = time.perf_counter()
        shown = bar.add_task("publish", total=self._settings.count, note="")
        for measured in self._queues:
            measured.publishing = True
            measured.load.on_confirm = lambda count, _: bar.advance(shown, count)
        async with asyncio.TaskGroup() as group:
            for measured, publisher in zip(self._queues, publishers, strict=True):
                group.create_task(self._publish(measured, publisher))
        self._took.publish_s = time.perf_counter() - started

    async def _publish(self, measured: MeasuredQueue, publisher: Publisher) -> None:
        settings = self._settings
        try:
            await measured.load.publish(publisher, window=settings.window, batch=settings.batch)
        finally:
            measured.publishing = False
        failure = measured.load.failure
        if failure is not None:
            self.failure = f"{measured.load.failed} not confirmed: {failure}"

    # --- consuming ---

    async def _consume(self, measured: MeasuredQueue, consumer: Consumer, bar: Progress) -> None:
        try:
            await self._consume_all(measured, consumer, bar)
        except RingMQError as error:
            self.failure = self.failure or f"queue {measured.queue!r}: {error}"

    async def _consume_all(
        self, measured: MeasuredQueue, consumer: Consumer, bar: Progress
    ) -> None:
        """Ends when all messages have come and the queue is empty, by the clock, or in silence."""
        shown = bar.add_task("consume", total=self._settings.count, note="")
        heard_at = time.perf_counter()
        timed = self._settings.consumes_for_a_time
        while not (timed and self._is_over()):
            if measured.has_all and not measured.judged:
                return
            batch = await consumer.next_batch(timeout_s=_IDLE_S)
            if batch is not None:
                measured.take(batch)
                await consumer.ack(batch)
                heard_at = time.perf_counter()
                self._took.consume_s = heard_at - self._started
                bar.advance(shown, len(batch))
            elif measured.has_all and await is_drained(self._client, measured.queue):
                return
            elif not measured.publishing and time.perf_counter() - heard_at > SILENCE_S:
                self.failure = f"queue {measured.queue!r}: nothing came for {SILENCE_S:g} s"
                return

    # --- the outcome ---

    @property
    def _drained(self) -> bool:
        """Whether every message was waited for. If not, a missing one isn't known to be lost."""
        return not self.failure and not self._settings.consumes_for_a_time

    def _counts(self) -> TallyCounts | None:
        return total_counts(self._settings.kind, self._queues)

    @property
    def broken(self) -> bool:
        """Whether a guarantee doesn't hold, as far as that can be judged."""
        counts = self._counts()
        if counts is None:
            return False
        return (counts if self._drained else replace(counts, lost=0)).broken

    def report(self) -> dict[str, Any]:
        """The report that `--json` prints."""
        return bench_report(
            self._settings,
            self._queues,
            self._took,
            counts=self._counts(),
            drained=self._drained,
        )
