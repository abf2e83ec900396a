"""A publisher and a consumer that run beside a test while it harms the cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import count
from math import inf
from types import TracebackType
from typing import Self

from history.records import Confirm, Publish, Record
from waiting import TooLateError, leeway, until

import ringmq
from nemesis.oracle import Delivered, body_of
from ringmq_base.ranges import RangeSet

_tags = count(1)

BATCH_MESSAGES = 20
BATCHES_AT_ONCE = 4
# Between two batches. At this pace a publisher and three nodes keep a processor busy, and the tests
# judge which messages come out, not how fast.
PAUSE_S = 0.004
# So a publisher takes it easy while its test waits for something else: a node that starts, say.
EASY_PAUSE_S = 0.025
# It hurries while its test waits for confirms, and so much longer: a fault that follows has to meet
# messages on their way.
HURRIES_ON_S = 0.3
MESSAGE_DEADLINE_S = 40.0
# Without a confirm for this long, those on their way to the publisher have arrived.
QUIET_S = 0.5


class _Beside:
    """A client that runs as a task beside the test, from the moment that its stream is open."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self._open = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def _run(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=f"beside the test: {self.tag}")
        opened = asyncio.ensure_future(self._open.wait())
        await asyncio.wait({self._task, opened}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            opened.cancel()
            self._task.result()
        return self


class Publishing(_Beside):
    """Publishes numbered messages until the block is left; knows which were confirmed."""

    def __init__(
        self,
        seeds: list[str],
        queue: str,
        *,
        size_bytes: int = 200,
        deadline_s: float = MESSAGE_DEADLINE_S,
        batch_messages: int = BATCH_MESSAGES,
        batches_at_once: int = BATCHES_AT_ONCE,
        pause_s: float = PAUSE_S,
        total: int | None = None,
        tag: str = "",
    ) -> None:
        """Runs until it is left, or `total` messages have been tried. `deadline_s`: of each.
        `pause_s`: between batches, at full pace."""
        super().__init__(tag or f"p{next(_tags)}")
        self.attempted = 0
        self.confirmed: set[int] = set()
        # When confirms came, by the clock that all processes of a machine share.
        self.confirmed_at: list[float] = []
        self.errors: list[ringmq.RingMQError] = []
        # For the checker of histories; the queue of a test has no name there.
        self.records: list[Record] = []
        # The longest time without a confirm while some were wanted, since `watch_gaps`.
        self.longest_gap_s = 0.0
        # When it ended by the clock of the nodes' logs, and who confirmed before and then.
        self._gap_ended = ""
        self._node = ""
        self._seeds, self._queue = seeds, queue
        self._size_bytes, self._deadline_s = size_bytes, deadline_s
        self._batch, self._total = batch_messages, total
        self._pause_s, self._easy_pause_s = pause_s, max(pause_s, EASY_PAUSE_S)
        # By the loop's clock.
        self._hurries_until = 0.0
        self._stopping = False
        self._last_confirm = 0.0
        self._room = asyncio.Semaphore(batches_at_once)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._task is not None
        self._stopping = True
        if error is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        else:
            await self._task

    async def _run(self) -> None:
        async with (
            ringmq.connect(self._seeds, deadline_s=self._deadline_s) as client,
            client.publisher(self._queue) as publisher,
        ):
            self._open.set()
            self.watch_gaps()
            self._hurries_until = asyncio.get_running_loop().time() + HURRIES_ON_S
            async with asyncio.TaskGroup() as batches:
                while not self._stopping and self._total != self.attempted:
                    await self._room.acquire()
                    first = self.attempted
                    wanted = self._batch
                    if self._total is not None:
                        wanted = min(wanted, self._total - first)
                    self.attempted += wanted
                    batches.create_task(self._publish(publisher, first, wanted))
                    hurries = asyncio.get_running_loop().time() < self._hurries_until
                    await asyncio.sleep(self._pause_s if hurries else self._easy_pause_s)

    @contextmanager
    def hurrying(self) -> Iterator[None]:
        """At full pace, until `HURRIES_ON_S` after the block."""
        self._hurries_until = inf
        try:
            yield
        finally:
            self._hurries_until = asyncio.get_running_loop().time() + HURRIES_ON_S

    async def _publish(self, publisher: ringmq.Publisher, first: int, wanted: int) -> None:
        bodies = [body_of(self.tag, first + i, self._size_bytes) for i in range(wanted)]
        failed: set[int] = set()
        self.records.append(Publish(time.monotonic(), "", self.tag, first, first + wanted - 1))
        try:
            await publisher.publish_batch(bodies)
        except ringmq.RingMQError as error:
            self.errors.append(error)
            for low, high in error.failed:
                failed.update(range(first + low, first + high + 1))
        finally:
            self._room.release()
        got = set(range(first, first + wanted)) - failed
        if got:
            self._note_confirm(asyncio.get_running_loop().time(), publisher.node_address)
            self.confirmed_at.append(time.monotonic())
            self.confirmed |= got
            self.records += [
                Confirm(self.confirmed_at[-1], "", self.tag, low, high)
                for low, high in RangeSet((number, number) for number in sorted(got))
            ]

    def _note_confirm(self, now: float, node: str) -> None:
        if now - self._last_confirm > self.longest_gap_s:
            self.longest_gap_s = now - self._last_confirm
            at = datetime.now().strftime("%H:%M:%S.%f")
            self._gap_ended = f"it ended at {at}; by {self._node} before, by {node} then"
        self._last_confirm, self._node = now, node

    def pauses_less_than(self, seconds: float) -> None:
        """Fails if there was such a time without a confirm since `watch_gaps`."""
        if self.longest_gap_s >= seconds:
            raise TooLateError(f"{self.longest_gap_s:.2f} s: {self._gap_ended}")

    def watch_gaps(self) -> None:
        """From now on `longest_gap_s` counts."""
        self.longest_gap_s = 0.0
        self._last_confirm = asyncio.get_running_loop().time()

    async def confirms(self, messages: int, *, within_s: float = 15.0) -> None:
        """Returns when so many more have been confirmed."""
        wanted = len(self.confirmed) + messages
        with self.hurrying():
            await until(
                lambda: len(self.confirmed) >= wanted or self._ended(),
                f"{messages} more confirms; errors: {self.errors[-3:]}",
                within_s=within_s,
            )

    async def falls_silent(self, *, within_s: float = 10.0) -> None:
        """Returns when no confirm has come for `QUIET_S`: those under way have arrived."""
        last, since = len(self.confirmed), time.monotonic()

        def is_silent() -> bool:
            nonlocal last, since
            if len(self.confirmed) != last:
                last, since = len(self.confirmed), time.monotonic()
            return time.monotonic() - since >= QUIET_S

        await until(is_silent, "the publisher gets no more confirms", within_s=within_s)

    async def confirms_nothing(self, for_s: float) -> None:
        """Fails if anything is confirmed in this time."""
        before = len(self.confirmed)
        await asyncio.sleep(for_s)
        assert len(self.confirmed) == before, f"{len(self.confirmed) - before} confirmed"

    async def finishes(self, *, within_s: float) -> None:
        """Returns when all of `total` have been tried."""
        assert self._task is not None
        within_s = leeway(within_s)
        with self.hurrying():
            done, _ = await asyncio.wait({self._task}, timeout=within_s)
        if not done:
            raise TooLateError(f"{self.attempted} of {self._total} tried in {within_s:g} s")

    def _ended(self) -> bool:
        assert self._task is not None
        if self._task.done():
            self._task.result()
        return False


class Consuming(_Beside):
    """Consumes and acks until the block is left; `delivered` has the deliveries."""

    def __init__(
        self,
        seeds: list[str],
        queue: str,
        *,
        prefetch: int = 500,
        prefetch_bytes: int = 0,
        ack: bool = True,
        safe_acks: bool = False,
    ) -> None:
        """`safe_acks`: waits for each ack to be safe; then the message must never come again."""
        super().__init__(f"c{next(_tags)}")
        self.delivered = Delivered()
        self.messages = 0
        self._seeds, self._queue = seeds, queue
        self._prefetch, self._prefetch_bytes, self._ack = prefetch, prefetch_bytes, ack
        self._safe_acks = safe_acks

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._task is not None
        if self._task.done() and error is None:
            self._task.result()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        async with (
            ringmq.connect(self._seeds) as client,
            client.consumer(
                self._queue, prefetch=self._prefetch, prefetch_bytes=self._prefetch_bytes
            ) as consumer,
        ):
            self._open.set()
            async for batch in consumer:
                self.delivered.note(self.tag, batch)
                self.messages += len(batch)
                if self._ack and await consumer.ack(batch, wait=self._safe_acks):
                    self.delivered.acked(self.tag, batch, safe=self._safe_acks)

    async def gets(self, messages: int, *, within_s: float = 15.0) -> None:
        """Returns when so many more have come, repeats included."""
        await self.has(self.messages + messages, within_s=within_s)

    async def has(self, messages: int, *, within_s: float = 15.0) -> None:
        """Returns when so many have come since it began."""
        await until(
            lambda: self.messages >= messages,
            f"{messages} deliveries",
            within_s=within_s,
        )
