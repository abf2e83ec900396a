"""Journals that are sealed faster than they are flushed: rounds wait, and never for good."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from node.tests.storage.simulated_disk import SimulatedDisk
from node.tests.storage.workload import LIMITS, bodies, open_store, run_store

from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove
from ringmq_node.storage import QueueStore, Store

JOURNAL_BYTES = LIMITS.journal_bytes_max
SEALED_BYTES_MAX = 20 * JOURNAL_BYTES
BATCH_BYTES = 5_000
# Ops of a queue that are not durable yet: the ring's window.
WINDOW = 4
BATCHES = 300
QUEUES = ("a", "b")


class SlowSegments(SimulatedDisk):
    """Segments take several times as long to write as the rounds that fill them."""

    delay_s = 0.004

    def __init__(self) -> None:
        super().__init__()
        # Bytes written to segments since the last round, and the most there ever were.
        self.flushed_bytes = 0
        self.flushed_bytes_most = 0

    def write(
        self, path: Path, offset: int, buffers: Sequence[bytes | memoryview], *, sync: bool = False
    ) -> None:
        if ".idx" in path.suffixes:
            time.sleep(self.delay_s)
            self.flushed_bytes += sum(map(len, buffers))
            self.flushed_bytes_most = max(self.flushed_bytes, self.flushed_bytes_most)
        elif ".jif" in path.suffixes:
            self.flushed_bytes = 0
        super().write(path, offset, buffers, sync=sync)

    def sealed_bytes(self) -> int:
        return sum(
            size_bytes
            for path, size_bytes in self.sizes().items()
            if path.suffix == ".jif" and path.stem != "journal"
        )


def append(queue: QueueStore, op: Op) -> None:
    queue.append(queue.state.last_number + 1, op, ops.encode(op))


def publish(queue: QueueStore) -> None:
    first = queue.state.next_position
    append(queue, Publish(first, Block.of([b"%d" % first + bytes(BATCH_BYTES)]), False))


def opened(disk: SimulatedDisk, sealed_bytes_max: int) -> tuple[Store, asyncio.Event]:
    limits = replace(LIMITS, sealed_bytes_max=sealed_bytes_max, queue_memory_bytes_max=1 << 20)
    # Embedded, else nothing is copied.
    store = open_store(disk, replace(limits, embed_below=1 << 20))
    durable = asyncio.Event()
    store.on_durable = lambda queue: durable.set()
    return store, durable


def test_sealed_journals_stay_below_their_limit() -> None:
    disk = SlowSegments()
    store, durable = opened(disk, SEALED_BYTES_MAX)
    queues = [store.open_queue(name) for name in QUEUES]
    most = 0
    # Two may come through when the flush waits for one.
    rounds = 2 * len(QUEUES) * (WINDOW + 1) * BATCH_BYTES

    async def work() -> None:
        nonlocal most
        for _ in range(BATCHES):
            for queue in queues:
                publish(queue)
            while any(queue.state.last_number - queue.durable_number > WINDOW for queue in queues):
                durable.clear()
                await durable.wait()
            most = max(most, disk.sealed_bytes())
        await store.sync()

    run_store(store, work)
    assert store.statistics().journals_sealed > 30
    # Rounds wait for about as much as they bring, not until all of the backlog is flushed.
    assert disk.flushed_bytes_most < SEALED_BYTES_MAX / 2 + rounds
    assert 2 * JOURNAL_BYTES < most <= SEALED_BYTES_MAX + rounds + len(QUEUES) * JOURNAL_BYTES
    for queue in queues:
        again = open_store(disk).open_queue(queue.queue)
        assert [*bodies(again)] == [*range(BATCHES)]


@pytest.mark.parametrize("removed", [False, True], ids=["kept", "removed"])
def test_rounds_and_flushes_never_wait_for_each_other(removed: bool) -> None:
    """Without any room for sealed journals all of it becomes durable, and is flushed."""
    disk = SlowSegments()
    disk.delay_s = 0.0
    store, durable = opened(disk, 0)
    queue = store.open_queue("a")

    async def work() -> None:
        for _ in range(100):
            publish(queue)
            position = queue.state.next_position - 5
            if removed and position >= 0:
                append(queue, Remove(((position, position),)))
            while queue.state.last_number - queue.durable_number > WINDOW:
                durable.clear()
                await durable.wait()
        await store.sync()
        while disk.sealed_bytes():  # noqa: ASYNC110 - a disk has no event
            await asyncio.sleep(0)
        assert store.statistics().sealed_bytes_now == 0

    run_store(store, work, timeout_s=20)
    found = store.statistics()
    assert found.journals_sealed > 15
    assert found.segment_bytes_written > 0


def test_deleted_queue_gives_back_its_share_of_the_limit() -> None:
    disk = SlowSegments()
    store, _ = opened(disk, 0)
    queues = [store.open_queue(name) for name in QUEUES]

    async def work() -> None:
        for _ in range(40):
            publish(queues[0])
        await store.sync()
        assert store.statistics().sealed_bytes_now > 0
        publish(queues[1])
        store.delete_queue("a")
        await store.sync()
        assert store.statistics().sealed_bytes_now == 0
        assert queues[1].durable_number == 1

    run_store(store, work, timeout_s=20)


def test_what_is_sealed_is_counted_again_at_a_start() -> None:
    disk = SimulatedDisk()
    store, _ = opened(disk, 4 * JOURNAL_BYTES)
    queue = store.open_queue("a")
    for _ in range(40):
        publish(queue)
    # Commits without flushing.
    store.close()
    sealed = store.statistics().sealed_bytes_now
    assert sealed > 4 * JOURNAL_BYTES
    again, _ = opened(disk, 4 * JOURNAL_BYTES)
    again.open_queue("a")
    assert again.statistics().sealed_bytes_now == sealed

    async def work() -> None:
        publish(again.open_queue("a"))
        await again.sync()

    run_store(again, work)
    assert again.open_queue("a").durable_number == 41
