"""What a store is done with goes at once, and isn't left to the garbage collector.

A node freezes the objects that a long collection has found alive (`ringmq_node.resources.garbage`):
what dies in a cycle after that stays in memory for good. Each sealed journal was in one, with an
entry for every batch in it: 110 bytes for each message of a backlog, beside all budgets.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from node.tests.storage.simulated_disk import SimulatedDisk
from node.tests.storage.workload import LIMITS, QUEUE, open_store, run_store
from waiting import until

from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove
from ringmq_node.storage import QueueStore
from ringmq_node.storage.queue.entries import IndexEntry, QueueFile

JOURNALS = 10
# Of the message store's size, and embedded.
BODY_BYTES = {"stored": 5_000, "embedded": 50}


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def append(queue: QueueStore, op: Op) -> None:
    queue.append(queue.state.last_number + 1, op, ops.encode(op))


def entries_and_files() -> tuple[int, int]:
    """How many there are in this process, used or not."""
    kinds = [type(each) for each in gc.get_objects()]
    return kinds.count(IndexEntry), kinds.count(QueueFile)


@pytest.mark.parametrize("body_bytes", BODY_BYTES.values(), ids=BODY_BYTES)
@pytest.mark.parametrize("end", ["kept", "consumed", "deleted"])
def test_sealed_journals_leave_nothing(body_bytes: int, end: str) -> None:
    store = open_store(SimulatedDisk(), LIMITS)
    before = entries_and_files()

    async def work() -> None:
        queue = store.open_queue(QUEUE)
        for _ in range(JOURNALS):
            for _ in range(20):
                append(queue, Publish(queue.state.next_position, Block.of([bytes(body_bytes)] * 4)))
            queue.seal()
            await store.sync()
        last = queue.state.next_position - 1
        if end == "consumed":
            append(queue, Remove(((0, last),)))
            await store.sync()
        await until(lambda: not queue.sealed_count, "all journals are flushed", within_s=20)
        assert store.statistics().journals_sealed >= JOURNALS
        if end == "deleted":
            append(queue, Publish(queue.state.next_position, Block.of([bytes(body_bytes)] * 4)))
            store.delete_queue(QUEUE)
            del queue
            await until(lambda: entries_and_files() == before, "nothing is left of it", within_s=20)
            return
        entries, _ = entries_and_files()
        # And of the last steps, which their tasks may refer to.
        assert entries - before[0] <= len(queue.bodies.index) + 100, (entries, before)

    run_store(store, work)
