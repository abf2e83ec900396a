"""Files that can't be read just now, or one sector of which can't: what goes on all the same."""

from __future__ import annotations

import errno

import pytest
from node.tests.storage.queue.test_damage_in_use import ShortOfHandles, append, publish
from node.tests.storage.workload import QUEUE, bodies, open_store, run_store
from waiting import until

from ringmq_node.queue.ops import Remove
from ringmq_node.storage import QueueStore, Store, StoreLimits
from ringmq_node.storage.format.queue_folder import SEGMENT_POSITIONS

ERRORS = pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO], ids=["EMFILE", "EIO"])

# All bodies in the message store, and few of the segments unfolded.
FOLDED = StoreLimits(
    embed_below=0, queue_memory_bytes_max=0, store_cache_bytes_max=0, journal_entries_max=5_000
)


async def fill_folded(store: Store, queue: QueueStore) -> None:
    """Five segments, of which the second and the third are deltas."""
    for number in range(5 * SEGMENT_POSITIONS // 1024):
        publish(queue, [b"%06d" % number] * 1024)
        await store.sync()
    await until(lambda: not queue.flushable)
    queue.pager.fold()
    await until(lambda: {1, 2} <= queue.bodies.index.deltas.keys())


@ERRORS
@pytest.mark.parametrize("runs", [True, False], ids=["in a thread", "on the loop"])
def test_a_deleted_queue_whose_dead_segment_can_not_be_read_fails_nothing(
    error: int, runs: bool
) -> None:
    """Its references stay counted until the next start, and its folder goes."""
    disk = ShortOfHandles()
    store = open_store(disk, FOLDED)
    queue = store.open_queue(QUEUE)
    store.open_queue("other")

    async def work() -> None:
        await fill_folded(store, queue)
        disk.of_files, disk.error, disk.is_short = ".idx", error, True
        if not runs:
            store._background._loop = None
        store.delete_queue(QUEUE)
        await until(lambda: not any(str(path).endswith(".idx") for path in disk.files()))
        assert disk.reads_failed
        assert store.failure is None
        publish(store.open_queue("other"), [b"x"])
        await store.sync()

    run_store(store, work)


@pytest.mark.logs("compaction: .*1.rdq: can't be read")
@ERRORS
def test_a_file_that_compaction_can_not_read_is_left_as_it_is(error: int) -> None:
    """For this life. The other files are compacted, and its records are read where they are."""
    disk = ShortOfHandles()
    limits = StoreLimits(
        embed_below=0,
        queue_memory_bytes_max=0,
        store_cache_bytes_max=0,
        store_file_bytes_max=100_000,
        compaction_piece_bytes_max=20_000,
    )
    store = open_store(disk, limits)
    queue = store.open_queue(QUEUE)

    async def work() -> None:
        for number in range(100):
            publish(queue, [bytes([number]) * 8000])
        await store.sync()
        disk.of_files, disk.error, disk.is_short = "/1.rdq", error, True
        # All but a few of each file.
        append(queue, Remove(tuple((at, at + 8) for at in range(0, 100, 10))))
        await store.sync()
        store._background.look_for_garbage()
        await until(lambda: store.statistics().messages.compactions > 0)
        found = store.statistics().messages
        assert found.files_stuck_now == 1
        failed = disk.reads_failed
        store._background.look_for_garbage()
        assert not store._persistent.is_compacting
        assert disk.reads_failed == failed
        assert store.failure is None
        disk.is_short = False
        assert bodies(queue, bytes_max=1 << 20) == {
            at: bytes([at]) * 8000 for at in range(9, 100, 10)
        }
        append(queue, Remove(((0, 99),)))
        await store.sync()
        store._background.look_for_garbage()
        await until(lambda: not any(str(path).endswith("/1.rdq") for path in disk.files()))

    run_store(store, work)
