"""Lazy queues: straight to disk, switched in steps that leave room for others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from node.tests.storage.simulated_disk import SimulatedDisk
from node.tests.storage.workload import QUEUE, bodies, open_store, run_store

from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove, Requeue
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage import QueueStore, Store, StoreLimits
from ringmq_node.storage import store as store_module
from ringmq_node.storage.queue import pager
from ringmq_node.storage.queue.paging import Chain

ROOMY = StoreLimits(queue_memory_bytes_max=64 << 20)
# A journal of a few messages, which is flushed as soon as it is sealed.
FLUSHING = StoreLimits(
    queue_memory_bytes_max=64 << 20, journal_entries_max=40, flush_piece_bytes_max=700
)
COUNT = 300


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two or three entries in each."""
    monkeypatch.setattr(pager, "_REDUCE_STEP", 30)
    monkeypatch.setattr(store_module, "TICK_S", 0.02)


def append(queue: QueueStore, op: Op) -> None:
    queue.append(queue.state.last_number + 1, op, ops.encode(op))


def publish_each(queue: QueueStore, count: int, *, transient: bool = False) -> None:
    """An entry for each message."""
    for _ in range(count):
        first = queue.state.next_position
        append(queue, Publish(first, Block.of([b"%d" % first]), transient))


def in_memory(queue: QueueStore) -> int:
    return queue.bodies.index.messages_in_memory


def expected(count: int) -> dict[int, bytes]:
    return {position: b"%d" % position for position in range(count)}


async def until(condition: Callable[[], bool]) -> int:
    """Returns how many turns of the loop it took."""
    turns = 0
    async with asyncio.timeout(30):
        while not condition():
            turns += 1
            await asyncio.sleep(0)
    return turns


def store_with(limits: StoreLimits = ROOMY) -> tuple[Store, QueueStore]:
    store = open_store(SimulatedDisk(), limits)
    return store, store.open_queue(QUEUE)


def test_nothing_that_is_on_disk_is_in_memory() -> None:
    store, queue = store_with()
    queue.pager.set_lazy(True)

    async def work() -> None:
        publish_each(queue, COUNT)
        await store.sync()
        assert in_memory(queue) == 0
        assert queue.pager.chain() == Chain(0, 0, COUNT, 0, 0, 0)
        assert bodies(queue) == expected(COUNT)

    run_store(store, work)


def test_transient_messages_go_to_the_disk_too() -> None:
    store, queue = store_with()
    queue.pager.set_lazy(True)

    async def work() -> None:
        publish_each(queue, COUNT, transient=True)
        await until(lambda: in_memory(queue) == 0)
        assert bodies(queue) == expected(COUNT)
        append(queue, Remove(((0, COUNT - 1),)))
        await store.sync()
        assert store.statistics().messages_transient.records_now == 0

    run_store(store, work)


@pytest.mark.parametrize("transient", [False, True], ids=["persistent", "transient"])
@pytest.mark.parametrize("limits", [ROOMY, FLUSHING], ids=["in the journal", "being flushed"])
def test_switch_leaves_others_their_turns(limits: StoreLimits, transient: bool) -> None:
    store, queue = store_with(limits)

    async def work() -> None:
        publish_each(queue, COUNT, transient=transient)
        if not transient:
            await store.sync()
        assert in_memory(queue) == COUNT
        assert queue.pager.chain() == Chain(0, COUNT, 0, 0, 0, 0)
        queue.pager.set_lazy(True)
        if not transient:
            assert in_memory(queue) >= COUNT - 3
        assert await until(lambda: in_memory(queue) == 0) > 5
        queue.check()
        assert bodies(queue) == expected(COUNT)

    run_store(store, work)


def test_switch_that_is_taken_back_half_way() -> None:
    store, queue = store_with()

    async def work() -> None:
        publish_each(queue, COUNT)
        await store.sync()
        queue.pager.set_lazy(True)
        await until(lambda: in_memory(queue) < COUNT - 20)
        queue.pager.set_lazy(False)
        left = in_memory(queue)
        for _ in range(20):
            await asyncio.sleep(0)
        assert in_memory(queue) >= left - 3 > 0
        publish_each(queue, 1)
        await store.sync()
        assert in_memory(queue) > 0
        queue.pager.set_lazy(True)
        await until(lambda: in_memory(queue) == 0)
        assert bodies(queue) == expected(COUNT + 1)

    run_store(store, work)


def test_messages_that_die_during_the_switch_are_passed_over() -> None:
    store, queue = store_with()

    async def work() -> None:
        publish_each(queue, COUNT)
        await store.sync()
        queue.pager.set_lazy(True)
        append(queue, Remove(((COUNT // 2, COUNT - 1),)))
        await until(lambda: in_memory(queue) == 0)
        queue.check()
        assert bodies(queue) == expected(COUNT // 2)

    run_store(store, work)


def test_state_that_is_installed_during_the_switch() -> None:
    store, queue = store_with()

    async def work() -> None:
        publish_each(queue, COUNT)
        await store.sync()
        queue.pager.set_lazy(True)
        state = ReplicatedState(
            last_number=COUNT, next_position=COUNT, live=queue.state.live.copy()
        )
        queue.install(state, keep_below=COUNT // 2)
        for _ in range(COUNT):
            await asyncio.sleep(0)
        queue.check()
        assert bodies(queue) == expected(COUNT // 2)
        queue.fill(COUNT // 2, Block.of([b"%d" % at for at in range(COUNT // 2, COUNT)]), False)
        await store.sync()
        assert bodies(queue) == expected(COUNT)

    run_store(store, work)


def test_queue_that_is_deleted_during_the_switch() -> None:
    store, queue = store_with()

    async def work() -> None:
        publish_each(queue, COUNT)
        await store.sync()
        queue.pager.set_lazy(True)
        store.delete_queue(QUEUE)
        for _ in range(50):
            await asyncio.sleep(0)
        assert store.statistics().queue_memory_bytes_now == 0

    run_store(store, work)


def test_what_a_consumer_gives_back_does_not_stay_in_memory() -> None:
    store, queue = store_with()
    queue.pager.set_lazy(True)

    async def work() -> None:
        publish_each(queue, COUNT)
        await store.sync()
        queue.fetch(0, COUNT, bytes_max=1 << 20, messages_max=COUNT)
        assert in_memory(queue) == COUNT
        await asyncio.sleep(3 * store_module.TICK_S)
        # They are with the consumer.
        assert in_memory(queue) == COUNT
        append(queue, Requeue(((0, COUNT - 1),)))
        await until(lambda: in_memory(queue) == 0)
        assert bodies(queue) == expected(COUNT)

    run_store(store, work)


def test_pending_messages_of_a_queue_that_is_all_in_memory() -> None:
    """Are counted without a look at the entries, and just as with it."""
    store, queue = store_with()

    async def work() -> None:
        publish_each(queue, COUNT)
        await store.sync()
        queue.fetch(0, COUNT, bytes_max=1 << 20, messages_max=100)
        append(queue, Remove(((10, 19), (150, 159))))
        assert queue.pager.chain() == Chain(90, COUNT - 110, 0, 0, 0, 0)
        queue.pager.set_lazy(True)
        await until(lambda: in_memory(queue) == 0)
        assert queue.pager.chain() == Chain(90, 0, COUNT - 110, 0, 0, 0)

    run_store(store, work)
