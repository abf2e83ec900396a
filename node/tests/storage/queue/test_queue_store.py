"""`QueueStore` against a dict, over flushes, evictions, catch-ups and restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from expected_logs import DAMAGE
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from loops import new_loop
from node.tests.storage.simulated_disk import SimulatedDisk
from node.tests.storage.workload import QUEUE, bodies, open_store, run_store

from ringmq_base.ranges import RangeSet
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove, Requeue
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage import CorruptError, QueueStore, Store, StoreLimits

# So small that every few ops evict, seal and flush.
TINY = StoreLimits(
    queue_memory_bytes_max=3_000,
    journal_entries_max=60,
    journal_bytes_max=6_000,
    flush_piece_bytes_max=700,
    sync_threads=1,
)


def append(queue: QueueStore, op: Op) -> list[tuple[int, int]]:
    return queue.append(queue.state.last_number + 1, op, ops.encode(op))


def publish(queue: QueueStore, batch: Iterable[bytes], *, transient: bool = False) -> None:
    append(queue, Publish(queue.state.next_position, Block.of([*batch]), transient))


async def flushed(store: Store) -> None:
    """Waits until no sealed journal is left."""
    async with asyncio.timeout(20):
        await store.sync()
        while store.statistics().journals_sealed_now:  # noqa: ASYNC110 - a statistic has no event
            await asyncio.sleep(0)


@dataclass
class Message:
    body: bytes
    transient: bool = False
    redelivered: bool = False
    missing: bool = False


class QueueStoreMachine(RuleBasedStateMachine):
    """Positions jump by thousands, so that a few ops reach over several segments."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk()
        self.loop = new_loop()
        self.messages: dict[int, Message] = {}
        self.install_count = 0
        self.open()

    def open(self) -> None:
        self.store: Store = open_store(self.disk, TINY)
        self.queue = self.store.open_queue(QUEUE)
        self.running = self.loop.create_task(self.store.run())

    def teardown(self) -> None:
        self.queue.check()
        self.store.close()
        self.loop.run_until_complete(self.running)
        self.loop.close()

    @rule(count=st.integers(1, 30), size=st.integers(0, 60), transient=st.booleans())
    def publish(self, count: int, size: int, transient: bool) -> None:
        first = self.queue.state.next_position
        batch = {at: str(at).encode().ljust(size) for at in range(first, first + count)}
        publish(self.queue, batch.values(), transient=transient)
        self.messages |= {at: Message(body, transient) for at, body in batch.items()}

    @rule(count=st.integers(1, 6000))
    def publish_and_drop_many(self, count: int) -> None:
        first = self.queue.state.next_position
        publish(self.queue, [b""] * count)
        assert append(self.queue, Remove(((first, first + count - 1),)))

    @rule(data=st.data(), length=st.integers(1, 50), step=st.sampled_from([1, 1, 2]))
    def remove(self, data: st.DataObject, length: int, step: int) -> None:
        first = data.draw(st.sampled_from(sorted(self.messages) or [0]))
        wanted = range(first, first + length * step, step)
        gone = append(self.queue, Remove(tuple((at, at) for at in wanted)))
        positions = {at for low, high in gone for at in range(low, high + 1)}
        assert positions == self.messages.keys() & set(wanted)
        for at in positions:
            del self.messages[at]

    @rule(data=st.data(), length=st.integers(1, 50))
    def requeue(self, data: st.DataObject, length: int) -> None:
        first = data.draw(st.sampled_from(sorted(self.messages) or [0]))
        append(self.queue, Requeue(((first, first + length),)))
        for at in range(first, first + length + 1):
            if at in self.messages:
                self.messages[at].redelivered = True

    @rule()
    def begin_epoch(self) -> None:
        self.queue.begin_epoch(self.queue.state.epoch + 1)

    @rule(cut=st.integers(0, 40), count=st.integers(0, 40), is_prepared=st.booleans())
    def install(self, cut: int, count: int, is_prepared: bool) -> None:
        """Another replica's log parted from ours `cut` positions ago, and has `count` more."""
        self.install_count += 1
        old = self.queue.state
        keep_below = max(0, old.next_position - cut)
        self.messages = {at: m for at, m in self.messages.items() if at < keep_below}
        for at in range(keep_below, keep_below + count):
            body = f"{self.install_count}:{at}".encode()
            self.messages[at] = Message(body, redelivered=at % 3 == 0, missing=True)
        state = ReplicatedState(
            last_number=old.last_number + 3,
            next_position=keep_below + count,
            live=RangeSet((at, at) for at in self.messages),
            redelivered=RangeSet((at, at) for at, m in self.messages.items() if m.redelivered),
            transient=RangeSet((at, at) for at, m in self.messages.items() if m.transient),
        )
        changes = None
        if is_prepared:
            changes = self.loop.run_until_complete(
                self.queue.changes_to(state, keep_below=keep_below)
            )
        self.queue.install(state, keep_below=keep_below, changes=changes)
        assert not self.queue.damaged

    @precondition(lambda self: any(m.missing for m in self.messages.values()))
    @rule(data=st.data(), length=st.integers(1, 20))
    def fill(self, data: st.DataObject, length: int) -> None:
        lacking = sorted(at for at, m in self.messages.items() if m.missing)
        first = data.draw(st.sampled_from(lacking))
        last = first
        while last + 1 in self.messages and last + 1 < first + length:
            last += 1
        batch = [self.messages[at].body for at in range(first, last + 1)]
        self.queue.fill(first, Block.of(batch), False)
        for at in range(first, last + 1):
            self.messages[at].missing = False

    @rule()
    def sync(self) -> None:
        self.loop.run_until_complete(self.store.sync())
        assert self.queue.durable_number == self.queue.state.last_number
        assert self.queue.fills_durable

    @rule()
    def let_the_flush_go_on(self) -> None:
        """Until nothing is left to flush that waits for nothing else."""

        self.loop.run_until_complete(flushed(self.store))

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.loop.run_until_complete(self.store.sync())
        if clean:
            self.store.close()
        else:
            # The process is gone, and its threads with it: on a copy they can't write.
            self.disk = self.disk.copy()
            self.store.close()
        self.loop.run_until_complete(self.running)
        self.messages = {at: m for at, m in self.messages.items() if not m.transient}
        self.open()
        assert not self.queue.corruptions
        assert not self.queue.damaged

    @rule(data=st.data(), bytes_max=st.integers(0, 400), messages_max=st.integers(1, 30))
    def read(self, data: st.DataObject, bytes_max: int, messages_max: int) -> None:
        first = data.draw(st.sampled_from(sorted(self.messages) or [0]))
        last = first + data.draw(st.integers(0, 200))
        there = sorted(
            at for at, m in self.messages.items() if first <= at <= last and not m.missing
        )
        runs = self.queue.read(first, last, bytes_max=bytes_max, messages_max=messages_max)
        got = [at for run in runs for at in range(run.first_position, run.last_position + 1)]
        assert got == there[: len(got)]
        assert bool(got) == bool(there)
        assert len(got) <= messages_max
        size = sum(len(self.messages[at].body) for at in got)
        assert len(got) == 1 or size <= bytes_max
        if len(got) < min(len(there), messages_max) and got:
            # Or it ends with a block, if it has half of the bytes that were asked for.
            assert (
                size + len(self.messages[there[len(got)]].body) > bytes_max or 2 * size >= bytes_max
            )
        assert self.queue.bytes_in(first, last) == sum(len(self.messages[at].body) for at in there)

    @invariant()
    def same(self) -> None:
        self.queue.check()
        state = self.queue.state
        assert [at for a, b in state.live for at in range(a, b + 1)] == sorted(self.messages)
        there = {at: m for at, m in self.messages.items() if not m.missing}
        assert self.queue.live_bytes == sum(len(m.body) for m in there.values())
        assert len(self.queue.missing) == len(self.messages) - len(there)
        assert bodies(self.queue, bytes_max=200) == {at: m.body for at, m in there.items()}
        for run in self.queue.read(0, 1 << 60, bytes_max=1000, messages_max=100):
            message = self.messages[run.first_position]
            assert (run.transient, run.redelivered) == (message.transient, message.redelivered)


QueueStoreMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None
)
TestQueueStore = pytest.mark.slow(QueueStoreMachine.TestCase)


def test_memory_is_bounded_and_bodies_come_back_from_the_disk() -> None:
    store = open_store(SimulatedDisk(), TINY)
    queue = store.open_queue(QUEUE)
    batch = [bytes([i]) * 100 for i in range(10)]

    async def work() -> None:
        for _ in range(50):
            publish(queue, batch)
            await store.sync()
        # One entry takes about 400 bytes, and one segment's entries stay in memory.
        assert (
            store.statistics().queue_memory_bytes_now <= 50 * 500 + 3 * TINY.queue_memory_bytes_max
        )
        assert bodies(queue) == {at: batch[at % 10] for at in range(500)}
        assert store.statistics().blocks_read > 5
        assert (
            store.statistics().queue_memory_bytes_now <= 50 * 500 + 3 * TINY.queue_memory_bytes_max
        )
        append(queue, Remove(((0, 499),)))
        assert store.statistics().queue_memory_bytes_now == 0

    run_store(store, work)


def test_memory_of_what_was_consumed_is_given_back_before_the_journal_is_sealed() -> None:
    store = open_store(SimulatedDisk(), StoreLimits())
    queue = store.open_queue(QUEUE)

    async def work() -> None:
        for _ in range(3):
            for _ in range(3_000):
                first = queue.state.next_position
                publish(queue, [b"x"])
                append(queue, Remove(((first, first),)))
            await store.sync()

    run_store(store, work)
    assert store.statistics().journals_sealed == 0
    assert len(queue.log._logged) <= 65
    assert len(queue.bodies.index._entries) <= 100


def test_block_read_in_small_pieces_is_read_from_disk_once() -> None:
    store = open_store(SimulatedDisk(), StoreLimits(queue_memory_bytes_max=0))
    queue = store.open_queue(QUEUE)

    async def work() -> None:
        publish(queue, [b"x"] * 300)
        await store.sync()
        for at in range(300):
            assert queue.read(at, at, bytes_max=1, messages_max=1)

    run_store(store, work)
    assert store.statistics().blocks_read == 1


def test_message_removed_before_the_flush_never_reaches_a_segment() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, TINY)
    queue = store.open_queue(QUEUE)

    async def work() -> None:
        for _ in range(20):
            first = queue.state.next_position
            publish(queue, [b"gone"] * 20)
            append(queue, Remove(((first, first + 19),)))
            await store.sync()

    run_store(store, work)
    statistics = store.statistics()
    assert statistics.journals_sealed > 3
    assert statistics.segment_bytes_written == 0
    assert not any(call.path.suffix == ".idx" for call in disk.log)


@pytest.mark.logs(DAMAGE)
def test_body_damaged_on_disk_is_reported_once_and_missing_from_then_on() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, StoreLimits(queue_memory_bytes_max=0))
    queue = store.open_queue(QUEUE)

    async def work() -> None:
        publish(queue, [b"first"])
        publish(queue, [b"second"])
        await store.sync()
        content = disk.content(queue.directory / "journal.jif")
        content[content.index(b"first")] ^= 1
        with pytest.raises(CorruptError, match=r"journal\.jif.*checksum"):
            queue.read(0, 1, bytes_max=100, messages_max=100)
        assert [*queue.missing] == [(0, 0)]
        assert queue.missing
        assert bodies(queue) == {1: b"second"}
        # The ring has it still.
        queue.fill(0, Block.of([b"first"]), transient=False)
        assert bodies(queue) == {0: b"first", 1: b"second"}
        assert not queue.missing
        queue.check()

    run_store(store, work)


@pytest.mark.logs(DAMAGE)
def test_body_damaged_before_its_flush_is_missing_and_the_rest_is_flushed() -> None:
    disk = SimulatedDisk()
    limits = StoreLimits(queue_memory_bytes_max=0, journal_entries_max=3)
    store = open_store(disk, limits)
    queue = store.open_queue(QUEUE)

    async def work() -> None:
        publish(queue, [b"first"])
        publish(queue, [b"second"])
        await store.sync()
        content = disk.content(queue.directory / "journal.jif")
        content[content.index(b"first")] ^= 1
        publish(queue, [b"third"] * 3)
        await store.sync()
        await flushed(store)
        assert [*queue.missing] == [(0, 0)]
        assert len(queue.corruptions) == 1
        assert bodies(queue)[1] == b"second"
        queue.check()

    run_store(store, work)


def test_install_after_a_diverged_tail_does_not_bring_its_bodies_back() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, TINY)
    queue = store.open_queue(QUEUE)

    async def work() -> None:
        publish(queue, [b"kept"] * 3)
        publish(queue, [b"diverged"] * 70)
        await store.sync()
        state = ReplicatedState(last_number=9, next_position=5, live=RangeSet([(0, 4)]))
        queue.install(state, keep_below=3)
        assert queue.durable_number == 0
        await store.sync()
        assert queue.durable_number == 9

    run_store(store, work)
    store = open_store(disk, TINY)
    queue = store.open_queue(QUEUE)
    assert [*queue.missing] == [(3, 4)]
    assert bodies(queue) == {0: b"kept", 1: b"kept", 2: b"kept"}
    queue.fill(3, Block.of([b"new"] * 2), transient=False)
    store.close()
    queue = open_store(disk, TINY).open_queue(QUEUE)
    assert bodies(queue) == {0: b"kept", 1: b"kept", 2: b"kept", 3: b"new", 4: b"new"}
    assert not queue.missing
    assert not queue.damaged


def test_install_of_the_state_that_is_there_writes_nothing() -> None:
    """A node was away for a moment: of most of its thousands of queues it has everything."""
    disk = SimulatedDisk()
    store = open_store(disk)
    queue, unused = store.open_queue(QUEUE), store.open_queue("unused")

    async def written_by(target: QueueStore, state: ReplicatedState, keep_below: int) -> int:
        before = len(disk.log)
        target.install(state, keep_below=keep_below)
        await store.sync()
        return len(disk.log) - before

    async def work() -> None:
        for producer in (b"p", b"r"):
            block = Block.of([b"x"] * 3)
            append(queue, Publish(queue.state.next_position, block, False, producer, 1))
        append(queue, Remove(((1, 1),)))
        await store.sync()
        there = bodies(queue)
        assert await written_by(queue, queue.state.copy(), 6) == 0
        assert await written_by(unused, ReplicatedState(), 0) == 0
        assert bodies(queue) == there
        assert queue.durable_number == 3
        # The last publish was by another producer: another one is forgotten first.
        other = queue.state.copy()
        other.producers = dict(reversed(other.producers.items()))
        assert other == queue.state
        assert await written_by(queue, other, 6) > 0
        # Positions 5 and up are other messages there.
        assert await written_by(queue, queue.state.copy(), 5) > 0
        assert [*queue.missing] == [(5, 5)]

    run_store(store, work)


def test_body_is_not_released_before_its_removal_is_durable() -> None:
    """A power cut takes back a removal that wasn't synced: the body must be there then."""
    store = open_store(SimulatedDisk(), StoreLimits(embed_below=0))
    queue = store.open_queue(QUEUE)

    async def work() -> None:
        publish(queue, [b"x" * 100])
        await store.sync()
        append(queue, Remove(((0, 0),)))
        assert store.statistics().messages.records_now == 1
        await store.sync()
        assert store.statistics().messages.records_now == 0

    run_store(store, work)


@pytest.mark.slow
def test_index_of_single_messages_is_flushed_when_memory_is_short() -> None:
    """Messages in a journal can't be folded, and each takes an entry: so the journal is flushed."""
    store = open_store(SimulatedDisk(), StoreLimits(idle_journal_bytes_min=1 << 30))
    queue = store.open_queue(QUEUE)

    async def work() -> None:
        for _ in range(40_000):
            publish(queue, [b"x"])
        await store.sync()
        assert len(queue.bodies.index) == 40_000
        store.set_duration(0.0)
        while len(queue.bodies.index) > 4096:
            await store.sync()
            await asyncio.sleep(0.01)
        assert queue.pager.chain().delta >= 16_384

    run_store(store, work)
    queue.check()


def test_idle_journal_of_a_large_state_is_sealed_once() -> None:
    """Else an idle queue of many ranges wrote its state again and again."""
    store = open_store(SimulatedDisk(), StoreLimits(idle_journal_bytes_min=10_000))
    queue = store.open_queue(QUEUE)

    async def work() -> None:
        publish(queue, [b"x" * 10] * 2000)
        append(queue, Remove(tuple((at, at) for at in range(0, 2000, 2))))
        await store.sync()
        for _ in range(3):
            queue.seal_if_large()
            await store.sync()
        assert store.statistics().journals_sealed == 1

    run_store(store, work)
