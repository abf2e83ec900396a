"""What a queue with a hole at every other position costs the event loop.

CPU time of this thread is measured, as the machine of reference would need it. The bounds are
several times what the work takes, and a small part of what it took when each range was cut out of
a copy of all ranges.
"""

from __future__ import annotations

import pytest
from loops import run
from machine_speed import MachineSpeed
from node.tests.storage.simulated_disk import SimulatedDisk
from node.tests.storage.workload import QUEUE, open_store

from ringmq_base.ranges import RangeSet
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.consumers import ConsumerTerms, NotOutstandingError, Subscriptions
from ringmq_node.queue.ops import Publish, Remove
from ringmq_node.storage import QueueStore, Store, StoreLimits

RANGES = 100_000
BATCH = 2000
# Seals no journal, so that the entries stay in memory.
LIMITS = StoreLimits(journal_entries_max=1 << 30)


def with_holes(store: Store) -> QueueStore:
    queue = store.open_queue(QUEUE)
    for first in range(0, 2 * RANGES, BATCH):
        block = Block.of([b"%d" % at for at in range(first, first + BATCH)])
        op = Publish(first, block)
        queue.append(queue.state.last_number + 1, op, ops.encode(op))
    for first in range(1, 2 * RANGES, BATCH):
        removal = Remove(tuple((at, at) for at in range(first, first + BATCH, 2)))
        queue.append(queue.state.last_number + 1, removal, ops.encode(removal))
    assert queue.state.live.range_count == RANGES
    return queue


@pytest.mark.slow
def test_an_ack_of_very_many_ranges() -> None:
    """A consumer acks every other message. Each range was compared with those before it, and its
    entry looked for: 60 ms and more."""

    async def main() -> None:
        store = open_store(SimulatedDisk(), LIMITS)
        queue = store.open_queue(QUEUE)
        for first in range(0, 20_000, BATCH):
            op = Publish(first, Block.of([b"%d" % at for at in range(first, first + BATCH)]))
            queue.append(queue.state.last_number + 1, op, ops.encode(op))
        consumers = Subscriptions(queue)
        consumers.open(1, ConsumerTerms(20_000, 0))
        consumers.deliver(
            next(iter(consumers)), queue.read(0, 19_999, bytes_max=1 << 30, messages_max=20_000)
        )
        ranges = [(at, at) for at in range(1, 20_000, 2)]
        bytes_before = consumers.unacknowledged_bytes
        took = MachineSpeed().cpu_s(lambda: consumers.settle(1, ranges))
        assert took < 0.05
        acked_bytes = sum(len(b"%d" % at) for at, _ in ranges)
        assert consumers.unacknowledged_bytes == bytes_before - acked_bytes
        with pytest.raises(NotOutstandingError):
            consumers.settle(1, [(2, 4)])
        with pytest.raises(NotOutstandingError):
            consumers.settle(1, [(2, 2), (0, 0), (2, 2)])

    run(main())


@pytest.mark.slow
def test_a_state_leaves_the_bodies_alone_that_it_does_not_concern() -> None:
    """A journal of one message in each record. Each was taken out and put in again: 83 ms."""

    async def main() -> None:
        store = open_store(SimulatedDisk(), LIMITS)
        queue = store.open_queue(QUEUE)
        for at in range(30_000):
            op = Publish(at, Block.of([b"%d" % at]))
            queue.append(at + 1, op, ops.encode(op))
        state = queue.state.copy()
        state.apply(30_001, Remove(((0, 99), (20_000, 20_000))))
        took = MachineSpeed().cpu_s(lambda: queue.install(state, keep_below=29_990))
        assert took < 0.03
        assert [*queue.missing] == [(29_990, 29_999)]
        assert len(queue.bodies.index) == 29_990 - 101
        queue.check()

    run(main())


@pytest.mark.slow
def test_a_state_of_many_ranges_takes_the_place_of_as_many() -> None:
    """A replica comes back with its own bodies. It took 2 s, and 14 s for twice as many."""

    async def main() -> None:
        store = open_store(SimulatedDisk(), LIMITS)
        queue = with_holes(store)
        state = queue.state.copy()
        acked = RangeSet((at, at) for at in range(0, 2 * RANGES, 1000))
        state.live.subtract(acked)
        bytes_before = queue.live_bytes
        took = MachineSpeed().cpu_s(lambda: queue.install(state, keep_below=2 * RANGES - 10))
        assert took < 0.3
        assert queue.missing.ranges() == [(at, at) for at in range(2 * RANGES - 10, 2 * RANGES, 2)]
        gone = sum(len(b"%d" % at) for at, _ in [*acked, *queue.missing])
        assert queue.live_bytes == bytes_before - gone
        queue.check()
        store.close()

    run(main())


@pytest.mark.slow
def test_a_queue_of_many_ranges_is_opened() -> None:
    """It took 2.7 s, and 13 s for twice as many."""

    async def main() -> None:
        disk = SimulatedDisk()
        store = open_store(disk, LIMITS)
        with_holes(store)
        store.close()
        store = open_store(disk, LIMITS)
        # A node does it in a thread; but that has the interpreter's lock as well.
        assert MachineSpeed().cpu_s(lambda: store.open_queue(QUEUE)) < 1
        queue = store.open_queue(QUEUE)
        assert not queue.missing
        assert queue.state.live.range_count == RANGES
        queue.check()
        store.close()

    run(main())
