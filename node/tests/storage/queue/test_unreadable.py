"""Files that can't be read just now, or one sector of which can't: what goes on all the same."""

from __future__ import annotations

import errno

import pytest
from node.tests.storage.queue.test_damage_in_use import ShortOfHandles, publish
from node.tests.storage.workload import QUEUE, open_store, run_store
from waiting import until

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
