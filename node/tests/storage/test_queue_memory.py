"""The looks at the memory of many queues: what they cost, and that they miss nobody."""

from __future__ import annotations

import pytest
from node.tests.storage.simulated_disk import SimulatedDisk
from node.tests.storage.workload import open_store, run_store

from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Requeue
from ringmq_node.storage import QueueStore, Store, StoreLimits
from ringmq_node.storage.memory import LOOKED_AT_MAX
from ringmq_node.storage.queue import paging

LOOK_S = 2.5


class Looks:
    """The rates that were updated since the last `take`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._updated: list[paging.Rates] = []
        update = paging.Rates.update

        def counted(rates: paging.Rates, now: float) -> None:
            self._updated.append(rates)
            update(rates, now)

        patch.setattr(paging.Rates, "update", counted)

    def take(self) -> list[paging.Rates]:
        updated, self._updated = self._updated, []
        return updated


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def queues_of(store: Store, count: int) -> list[QueueStore]:
    return [store.open_queue(f"{number:032x}") for number in range(count)]


def append(queue: QueueStore, op: Op) -> None:
    queue.append(queue.state.last_number + 1, op, ops.encode(op))


def publish(queue: QueueStore, count: int = 1) -> None:
    append(queue, Publish(queue.state.next_position, Block.of([b"x"] * count), False))


@pytest.mark.parametrize("count", [100, 1000])
def test_looks_at_the_memory_of_idle_queues_cost_nothing(looks: Looks, count: int) -> None:
    """With 10 000 queues each look held the loop for 100 ms."""
    store = open_store(SimulatedDisk(), StoreLimits())
    queues = queues_of(store, count)
    assert store.ram_durations(0.0) == []
    publish(queues[5])
    assert len(store.ram_durations(LOOK_S)) == 1
    assert looks.take() == [queues[5].pager.rates]
    # It is idle once its rates have died away.
    for number in range(2, 40):
        store.ram_durations(number * LOOK_S)
    looks.take()
    assert store.ram_durations(100 * LOOK_S) == []
    assert looks.take() == []
    store.close()


def test_a_queue_that_moves_again_after_a_long_time_has_the_rate_since_the_last_look() -> None:
    store = open_store(SimulatedDisk(), StoreLimits())
    one, other = queues_of(store, 2)
    publish(one)
    for number in range(100):
        publish(other, 10)
        store.ram_durations(number * LOOK_S)
    publish(one, 1000)
    publish(other, 1000)
    before = other.pager.rates.publish
    assert before == pytest.approx(4.0, rel=0.01)
    store.ram_durations(100 * LOOK_S)
    keep = 0.5 ** (LOOK_S / paging.HALF_LIFE_S)
    rate = (1 - keep) * 1000 / LOOK_S
    assert one.pager.rates.publish == pytest.approx(rate)
    assert other.pager.rates.publish == pytest.approx(rate + keep * before)
    store.close()


@pytest.mark.slow
def test_of_very_many_busy_queues_each_look_takes_its_share(looks: Looks) -> None:
    store = open_store(SimulatedDisk(), StoreLimits())
    queues = queues_of(store, LOOKED_AT_MAX + 10)
    store.ram_durations(0.0)
    seen: set[int] = set()
    for number in range(1, 3):
        for queue in queues:
            publish(queue)
        assert len(store.ram_durations(number * LOOK_S)) == len(queues)
        updated = looks.take()
        assert len(updated) == LOOKED_AT_MAX
        seen |= {id(rates) for rates in updated}
    assert len(seen) == len(queues)
    store.close()


def test_messages_that_come_back_to_a_lazy_queue_are_let_go_of_by_the_next_tick() -> None:
    store = open_store(SimulatedDisk(), StoreLimits())
    queue = queues_of(store, 1)[0]
    queue.pager.set_lazy(True)
    store.ram_durations(0.0)
    append(queue, Requeue(()))
    publish(queue)
    for number in range(1, 40):
        store.ram_durations(number * LOOK_S)
    queue.pager.requeued()
    assert queue.pager.wants_reducing
    # However long it takes until then.
    for number in range(40, 80):
        store.ram_durations(number * LOOK_S)
    store._memory.keep_budget(store.queues())
    assert not queue.pager.wants_reducing
    store.close()


def test_a_queue_that_was_given_up_has_no_share_of_the_memory() -> None:
    """The other queues would have less, until the node is started again; and rounds would wait for
    a flush of its journals that never comes."""
    store = open_store(SimulatedDisk(), StoreLimits(journal_entries_max=100))
    bad, good = store.open_queue("bad"), store.open_queue("good")

    async def work() -> None:
        publish(good)
        await store.sync()
        own = store.counters.queue_memory_bytes - bad.bodies.index.memory_bytes
        store._background.stop()
        for _ in range(150):
            publish(bad)
            await store.sync()
        assert store.counters.queue_memory_bytes > own
        assert store.counters.sealed_bytes > 0
        # A consumer of it has read something in the moment in which it failed.
        reading = bad.bodies
        store.abandon(bad)
        assert (store.counters.queue_memory_bytes, store.counters.sealed_bytes) == (own, 0)
        reading.forget(bad.state.live.ranges())
        store.delete_queue("bad")
        assert (store.counters.queue_memory_bytes, store.counters.sealed_bytes) == (own, 0)

    run_store(store, work)
