"""Damage, and files that can't be read, found while a queue is in use."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from expected_logs import DAMAGE
from node.tests.storage.simulated_disk import SimulatedDisk
from node.tests.storage.workload import QUEUE, ROOT, bodies, open_store, run_store
from waiting import until

from ringmq_base.ranges import RangeSet
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove, Requeue
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage import CorruptError, QueueStore, StoreLimits
from ringmq_node.storage.disk.data_directory import NAME_NAME
from ringmq_node.storage.errors import ReadError
from ringmq_node.storage.queue.flush import flush

pytestmark = pytest.mark.may_log(DAMAGE)

STORED = StoreLimits(queue_memory_bytes_max=0, embed_below=0)
EMBEDDED = StoreLimits(queue_memory_bytes_max=0)


def append(queue: QueueStore, op: Op) -> None:
    queue.append(queue.state.last_number + 1, op, ops.encode(op))


def publish(queue: QueueStore, messages: Sequence[bytes]) -> None:
    append(queue, Publish(queue.state.next_position, Block.of(messages)))


class ShortOfHandles(SimulatedDisk):
    """Reads fail while `is_short`, though the bytes on the disk are whole."""

    is_short = False
    # Of files whose paths end in this; and how.
    of_files = ""
    error = errno.EMFILE
    reads_failed = 0

    def read(self, path: Path, offset: int, size: int) -> bytes:
        if self.is_short and str(path).endswith(self.of_files):
            self.reads_failed += 1
            raise OSError(self.error, os.strerror(self.error))
        return super().read(path, offset, size)


@pytest.mark.parametrize("limits", [STORED, EMBEDDED], ids=["stored", "embedded"])
def test_a_read_that_fails_gives_nothing_up(limits: StoreLimits) -> None:
    disk = ShortOfHandles()
    store = open_store(disk, limits)
    queue = store.open_queue(QUEUE)

    async def work() -> None:
        publish(queue, [b"a" * 100, b"b" * 100])
        await store.sync()
        # The blocks that were written last may still be at hand.
        again = open_store(disk, limits)
        found = again.open_queue(QUEUE)
        disk.is_short = True
        with pytest.raises(ReadError, match="Too many open files"):
            found.read(0, 1, bytes_max=1000, messages_max=2)
        disk.is_short = False
        assert not found.missing
        assert bodies(found) == {0: b"a" * 100, 1: b"b" * 100}

    run_store(store, work)


def test_a_state_installed_during_a_flush_brings_back_what_was_not_flushed() -> None:
    """The piece that is being written was cut when some of its positions were dead."""
    store = open_store(SimulatedDisk(), StoreLimits(journal_entries_max=3))
    queue = store.open_queue(QUEUE)

    async def work() -> None:
        publish(queue, [bytes([at]) for at in range(10)])
        append(queue, Remove(((2, 9),)))
        store._background.stop()
        await store.sync()
        job = queue.plan_flush()
        assert job is not None
        assert [(item.first, item.last) for item in job.items] == [(0, 1)]
        state = ReplicatedState(last_number=9, next_position=10, live=RangeSet([(0, 9)]))
        queue.install(state, keep_below=10)
        flush(store.disk, job, queue.directory)
        queue.flushed(job)
        queue.check()
        assert list(queue.missing) == [(2, 9)]
        assert bodies(queue) == {0: b"\0", 1: b"\1"}

    run_store(store, work)


def test_a_queue_whose_name_is_lost_keeps_its_large_bodies() -> None:
    disk = SimulatedDisk()
    limits = StoreLimits(embed_below=0, store_file_bytes_max=500)
    store = open_store(disk, limits)
    queue = store.open_queue(QUEUE)
    expected = {at: bytes([at]) * 300 for at in range(8)}

    async def fill() -> None:
        for body in expected.values():
            publish(queue, [body])
            await store.sync()

    run_store(store, fill)
    name = queue.directory / NAME_NAME
    disk.write(name, 10, [b"xxxx"], sync=True)
    again = open_store(disk, limits)
    assert [report.file for report in again.corruptions] == [str(name)]
    files = disk.list(ROOT / "messages" / "persistent")

    async def look() -> None:
        await again.sync()
        assert disk.list(ROOT / "messages" / "persistent") == files
        assert bodies(again.open_queue(QUEUE)) == expected

    run_store(again, look)
    assert open_store(disk, limits).queue_names() == [QUEUE]


def test_a_state_of_many_ranges_does_not_make_a_journal_for_each_op() -> None:
    store = open_store(SimulatedDisk(), StoreLimits(journal_bytes_max=20_000))
    queue = store.open_queue(QUEUE)

    async def work() -> None:
        publish(queue, [b"x"] * 4000)
        append(queue, Requeue(tuple((at, at) for at in range(0, 4000, 2))))
        await store.sync()
        before = store.statistics().journals_sealed
        for _ in range(100):
            publish(queue, [b"y"])
            await store.sync()
        assert store.statistics().journals_sealed <= before + 2

    run_store(store, work)


def test_a_damaged_body_stays_on_the_disk() -> None:
    """For a later look at it; its position is missing."""
    disk = SimulatedDisk()
    limits = StoreLimits(embed_below=0, queue_memory_bytes_max=0, store_file_bytes_max=100)
    store = open_store(disk, limits)
    queue = store.open_queue(QUEUE)

    async def fill() -> None:
        for body in (b"a" * 300, b"b" * 300, b"c" * 300):
            publish(queue, [body])
            await store.sync()

    run_store(store, fill)
    folder = ROOT / "messages" / "persistent"
    damaged = folder / min(disk.list(folder), key=lambda name: int(name.partition(".")[0]))
    disk.write(damaged, 200, [b"????"], sync=True)
    again = open_store(disk, limits)

    async def look() -> None:
        found = again.open_queue(QUEUE)
        with pytest.raises(CorruptError):
            found.fetch(0, 0, bytes_max=1000, messages_max=1)
        assert list(found.missing) == [(0, 0)]
        append(found, Remove(((1, 1),)))
        await again.sync()
        found.check()

    run_store(again, look)
    assert damaged.name in disk.list(folder)


@pytest.mark.parametrize("folded", [False, True])
def test_bodies_that_compaction_finds_damaged_are_missing(folded: bool) -> None:
    """Before anybody asks for them, so that they can be fetched from another replica."""
    disk = SimulatedDisk()
    limits = StoreLimits(
        embed_below=0,
        queue_memory_bytes_max=0,
        store_cache_bytes_max=0,
        store_file_bytes_max=100_000,
        journal_entries_max=5_000,
    )
    store = open_store(disk, limits)
    queue = store.open_queue(QUEUE)
    lost: list[None] = []
    # More than a queue may have unfolded, or fewer.
    batches = 250 if folded else 60
    queue.on_lost = lambda: lost.append(None)

    async def work() -> None:
        # One record of the message store each; four of five will be garbage.
        for batch in range(batches):
            publish(queue, [b"<%06d>" % (batch * 1000 + at) for at in range(1000)])
            await store.sync()
        await until(lambda: not queue.flushable)
        folder = ROOT / "messages" / "persistent"
        spoilt = [
            (folder / name, at)
            for name, size in disk.list(folder).items()
            for at in [disk.read(folder / name, 0, size).find(b"<040500>")]
            if at >= 0
        ]
        assert len(spoilt) == 1
        disk.write(spoilt[0][0], spoilt[0][1], [b"?"], sync=True)
        append(queue, Remove(tuple((at, at + 3999) for at in range(1000, batches * 1000, 5000))))
        await store.sync()
        queue.pager.fold()
        assert bool(queue.bodies.index.deltas) is folded
        store._background.look_for_garbage()
        await until(lambda: bool(lost))
        assert list(queue.missing) == [(40_000, 40_999)]
        queue.check()
        assert len(bodies(queue)) == batches * 200 - 1000

    run_store(store, work)


def test_damage_in_the_current_journal_leaves_the_state_whole() -> None:
    """The op is in the record with its bodies; a restart finds the state in the next journal."""
    disk = SimulatedDisk()
    store = open_store(disk, EMBEDDED)
    queue = store.open_queue(QUEUE)

    async def work() -> None:
        for body in (b"a" * 100, b"b" * 100, b"c" * 100):
            publish(queue, [body])
            await store.sync()
        path = queue.directory / "journal.jif"
        at = disk.read(path, 0, disk.list(queue.directory)[path.name]).find(b"b" * 100)
        disk.write(path, at, [b"?"], sync=True)
        with pytest.raises(CorruptError):
            queue.read(0, 2, bytes_max=1000, messages_max=3)
        queue.check()

    run_store(store, work)
    again = open_store(disk, EMBEDDED)
    found = again.open_queue(QUEUE)
    assert not found.damaged
    assert list(found.missing) == [(1, 1)]

    async def fill() -> None:
        found.fill(1, Block.of([b"b" * 100]), transient=False)
        await again.sync()
        assert bodies(found) == {0: b"a" * 100, 1: b"b" * 100, 2: b"c" * 100}

    run_store(again, fill)
    assert not open_store(disk, EMBEDDED).open_queue(QUEUE).missing
