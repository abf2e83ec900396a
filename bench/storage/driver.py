"""Drives the engine as a node does: ops with a window of unconfirmed ones, reads, acks.

In each turn of the event loop at most half a window of ops is appended. Publishers of a node
behave so: those that have heard their confirms send their next messages together, and these
gather while the other half is on its way to the disk. An op is *confirmed* when
`queue.durable_number` has reached its number, which the store tells through `on_durable`.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import uvloop

from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove
from ringmq_node.resources import Alarm, ResourceMonitor
from ringmq_node.resources.limits import Size
from ringmq_node.storage import QueueStore, Store, StoreError

READ_BYTES_MAX = 1 << 20
READ_MESSAGES_MAX = 1000
LAST_POSITION = (1 << 62) - 1

Told = Callable[[int], None]


def run(work: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run` on the loop and with the garbage collection of a node."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


class KnownBodies:
    """`count` random bodies, given out in turn by position: so each position's body is known."""

    def __init__(self, count: int, size_bytes: int) -> None:
        noise = os.urandom(size_bytes + count)
        self._bodies = [noise[at : at + size_bytes] for at in range(count)]

    def block(self, first_position: int, count: int) -> Block:
        """A block with memory of its own, as one that came over the network has."""
        size = len(self._bodies)
        return Block.of(
            [self._bodies[at % size] for at in range(first_position, first_position + count)]
        )

    def check(self, position: int, body: bytes) -> None:
        assert body == self._bodies[position % len(self._bodies)], f"wrong body at {position}"


class Engine:
    """One running store. `async with` it; at the end everything is made durable.

    With a budget the store has the monitor of a node whose `memory_watermark` is that budget,
    and pages from half of it on. A node blocks its publishers while the monitor's alarm is on.
    Here the alarm is only counted, in `alarms`, and the store has to get along.
    """

    def __init__(self, directory: Path, budget_bytes: int | None = None) -> None:
        self.store = Store.open(directory, cluster_id="bench", node="bench")
        self.alarms = 0
        self._monitor: ResourceMonitor | None = None
        if budget_bytes is not None:
            self._monitor = ResourceMonitor(
                directory,
                memory_watermark=Size(budget_bytes),
                disk_free_limit=Size(0),
                on_alarm=self._alarm,
                store=self.store,
            )
        self.store.on_durable = self._moved
        self.store.on_failed = self._failed
        self._failure: StoreError | None = None
        self._progress = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []
        self._appended_in_turn = 0

    async def __aenter__(self) -> Engine:
        self._running.append(asyncio.create_task(self.store.run()))
        if self._monitor is not None:
            self._running.append(asyncio.create_task(self._monitor.run()))
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.store.close()
        for task in self._running[1:]:
            task.cancel()
        for ended in await asyncio.gather(*self._running, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    async def append(self, queue: QueueStore, op: Op, window: int) -> None:
        """Appends when fewer than `window` ops of the queue are unconfirmed."""
        if self._appended_in_turn >= max(window // 2, 1):
            self._appended_in_turn = 0
            await asyncio.sleep(0)
        await self._room(queue, window)
        queue.append(queue.state.last_number + 1, op, ops.encode(op))
        self._appended_in_turn += 1

    async def confirmed(self, queue: QueueStore) -> None:
        """Returns when all that was appended to `queue` is durable."""
        await self._room(queue, 1)

    async def publish(
        self,
        queue: QueueStore,
        bodies: KnownBodies,
        *,
        messages: int,
        batch: int,
        window: int,
        told: Told,
    ) -> None:
        """Returns when all are confirmed. `told` hears how many messages are."""
        first = queue.state.next_position
        while (position := queue.state.next_position) < first + messages:
            count = min(batch, first + messages - position)
            await self.append(queue, Publish(position, bodies.block(position, count)), window)
            unconfirmed = batch * (queue.state.last_number - queue.durable_number)
            told(max(0, queue.state.next_position - first - unconfirmed))
        await self.confirmed(queue)
        told(messages)

    async def drain(
        self, queue: QueueStore, bodies: KnownBodies, *, window: int, told: Told
    ) -> int:
        """Reads and acks all that is live, from the front. Returns the number of messages.

        Acks are ops, of which `window` may be unconfirmed. One body of each run is checked.
        """
        done = 0
        while queue.state.live:
            runs = queue.fetch(
                queue.state.live.first,
                LAST_POSITION,
                bytes_max=READ_BYTES_MAX,
                messages_max=READ_MESSAGES_MAX,
            )
            assert runs, "live messages that can't be read"
            for run in runs:
                bodies.check(run.first_position, run.block.bodies(0, 1)[0])
                done += run.block.count
            acked = tuple((run.first_position, run.last_position) for run in runs)
            await self.append(queue, Remove(joined(acked)), window)
            told(done)
        await self.confirmed(queue)
        return done

    async def _room(self, queue: QueueStore, window: int) -> None:
        # No deadline here: `Watched.follow` ends a process that hangs.
        while queue.state.last_number - queue.durable_number >= window:
            if self._failure is not None:
                raise self._failure
            self._appended_in_turn = 0
            self._progress.clear()
            await self._progress.wait()

    def _moved(self, _queue: QueueStore) -> None:
        self._progress.set()

    def _alarm(self, _kind: Alarm, on: bool) -> None:
        self.alarms += on

    def _failed(self, error: StoreError) -> None:
        self._failure = error
        self._progress.set()


def joined(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ascending ranges, those that touch made one."""
    result: list[tuple[int, int]] = []
    for first, last in ranges:
        if result and result[-1][1] + 1 == first:
            result[-1] = (result[-1][0], last)
        else:
            result.append((first, last))
    return tuple(result)
