"""Files that can't be read just now, or one sector of which can't: what goes on all the same."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from node.tests.storage.queue.test_damage_in_use import ShortOfHandles, append, publish
from node.tests.storage.simulated_disk import SimulatedDisk
from node.tests.storage.workload import QUEUE, bodies, open_store, run_store
from waiting import until

from ringmq_node.queue.ops import Remove
from ringmq_node.storage import (
    QueueStore,
    Store,
    StoreFailedError,
    StoreLimits,
    background,
    opening,
)
from ringmq_node.storage.errors import ReadError
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


# A body that was flushed has left memory, and the flush of a journal has several pieces.
SMALL = StoreLimits(
    queue_memory_bytes_max=0, journal_entries_max=50, flush_piece_bytes_max=4_000, embed_below=9_000
)


class OneSector(ShortOfHandles):
    """While `is_short`, reads fail of the place with `lost` in it, in whatever file."""

    lost = b""

    def read(self, path: Path, offset: int, size: int) -> bytes:
        data = SimulatedDisk.read(self, path, offset, size)
        if self.is_short and self.lost in data and str(path).endswith(self.of_files):
            self.reads_failed += 1
            raise OSError(self.error, os.strerror(self.error))
        return data


@pytest.mark.logs(r"\d+\.jif: can't be read")
@ERRORS
@pytest.mark.parametrize("ends", ["read again", "acknowledged"])
def test_a_journal_that_a_flush_can_not_read_is_left_for_later(error: int, ends: str) -> None:
    """All of it but that record is flushed, and so are the journals behind it."""
    disk = OneSector()
    store = open_store(disk, SMALL)
    queue = store.open_queue(QUEUE)

    def time_passes() -> None:
        for _ in range(background.UNREAD_TICKS):
            store._background.tick()

    def journals() -> int:
        return sum(path.suffix == ".jif" for path in disk.files())

    expected = {at: b"<%03d>" % at * 100 for at in range(160)}

    async def work() -> None:
        disk.of_files, disk.error, disk.lost, disk.is_short = ".jif", error, b"<020>", True
        for at in range(160):
            publish(queue, [expected[at]])
            await store.sync()
        await until(lambda: queue.sealed_count == 1)
        assert disk.reads_failed
        assert store.counters.sealed_bytes == 0, "no round waits for it"
        await until(lambda: journals() == 2)
        # A start finds a journal between which and the next one others are gone.
        again = open_store(disk.copy(), SMALL).open_queue(QUEUE)
        assert not again.damaged
        assert not again.corruptions
        assert bodies(again, bytes_max=1 << 20) == expected
        failed = disk.reads_failed
        for _ in range(100):
            await asyncio.sleep(0)
        assert disk.reads_failed == failed, "not before its time"
        time_passes()
        await until(lambda: disk.reads_failed > failed)
        await until(lambda: not store._background.is_flushing)
        queue.check()
        if ends == "acknowledged":
            append(queue, Remove(((20, 20),)))
            await store.sync()
            del expected[20]
        else:
            disk.is_short = False
            time_passes()
        await until(lambda: not queue.flushable)
        await until(lambda: journals() == 1)
        assert store.counters.sealed_bytes == 0
        queue.check()
        assert bodies(queue, bytes_max=1 << 20) == expected
        assert not queue.missing
        assert store.failure is None

    run_store(store, work)
    assert bodies(open_store(disk, SMALL).open_queue(QUEUE), bytes_max=1 << 20) == expected


@ERRORS
@pytest.mark.parametrize("aside", [True, False], ids=["in a thread", "on the loop"])
def test_a_queue_that_can_not_be_read_at_a_start_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, error: int, aside: bool
) -> None:
    """The other queues are opened. Nothing is collected, and the next try finds all of it."""
    monkeypatch.setattr(opening, "ASIDE_BYTES_MIN", 1 if aside else 1 << 40)
    limits = StoreLimits(embed_below=0, journal_entries_max=40)
    disk = ShortOfHandles()
    store = open_store(disk, limits)
    expected = {at: b"<%03d>" % at * 100 for at in range(100)}

    async def fill() -> None:
        for name in ("bad", "good"):
            queue = store.open_queue(name)
            for body in expected.values():
                publish(queue, [body])
                await store.sync()
            await until(lambda queue=queue: not queue.flushable)

    run_store(store, fill)
    again = open_store(disk, limits)

    async def look() -> None:
        # Read last, when the references of the segment were found.
        disk.of_files, disk.error, disk.is_short = "0.idx", error, True
        with pytest.raises(ReadError, match=r"0\.idx: can't be read"):
            again.open_queue("bad", found=await again.recover("bad"))
        disk.of_files = "journal.jif"
        with pytest.raises(ReadError, match=r"journal\.jif: can't be read"):
            again.open_queue("bad", found=await again.recover("bad"))
        disk.is_short = False
        assert again.failure is None
        good = again.open_queue("good", found=await again.recover("good"))
        assert bodies(good) == expected
        bad = again.open_queue("bad", found=await again.recover("bad"))
        assert bodies(bad) == expected
        bad.check()
        append(bad, Remove(((0, 99),)))
        await again.sync()
        assert again.statistics().messages.records_now == 100

    run_store(again, look)


@pytest.mark.logs("store closed for writes")
@ERRORS
def test_a_cut_that_can_not_be_written_at_a_start_fails_the_store(error: int) -> None:
    """Recovery writes a segment anew without its torn tail. A write is no read."""
    disk = SimulatedDisk()
    store = open_store(disk, SMALL)

    async def fill() -> None:
        queue = store.open_queue(QUEUE)
        for at in range(60):
            publish(queue, [b"<%03d>" % at * 100])
            await store.sync()
        await until(lambda: not queue.flushable)

    run_store(store, fill)
    (segment,) = (path for path in disk.files() if path.suffix == ".idx")
    disk.write(segment, len(disk.content(segment)), [b"torn"], sync=True)
    again = open_store(disk, SMALL)
    disk.failure, disk.writes_left = error, 0
    with pytest.raises(StoreFailedError):
        again.open_queue(QUEUE)
    assert again.failure is not None
    again.close()


@ERRORS
def test_an_ack_that_can_not_read_its_segment_changes_nothing(error: int) -> None:
    """The op is neither applied nor logged, so it may come again."""
    disk = ShortOfHandles()
    store = open_store(disk, FOLDED)
    queue = store.open_queue(QUEUE)

    async def work() -> None:
        await fill_folded(store, queue)
        position = SEGMENT_POSITIONS + 5
        op = Remove(((position, position),))
        number, live = queue.state.last_number, len(queue.state.live)
        disk.of_files, disk.error, disk.is_short = "1.idx", error, True
        with pytest.raises(ReadError, match=r"1\.idx: can't be read"):
            append(queue, op)
        assert (queue.state.last_number, len(queue.state.live)) == (number, live)
        assert not queue.missing
        queue.check()
        assert store.failure is None
        disk.is_short = False
        append(queue, op)
        await store.sync()
        assert len(queue.state.live) == live - 1
        queue.check()

    run_store(store, work)


@pytest.mark.logs(r"queue.name: can't be read")
@pytest.mark.logs("the queue's name is lost")
def test_a_name_in_a_bad_sector_is_written_anew() -> None:
    """A start goes on without it: the folder's own name leads to the queue."""
    disk = ShortOfHandles()
    disk.of_files, disk.error = "queue.name", errno.EIO
    store = open_store(disk)

    async def fill() -> None:
        publish(store.open_queue(QUEUE), [b"x"])
        publish(store.open_queue("other"), [b"y"])
        await store.sync()

    run_store(store, fill)
    disk.is_short = True
    again = open_store(disk)
    assert again.queue_names() == []
    assert bodies(again.open_queue(QUEUE)) == {0: b"x"}
    assert bodies(again.open_queue("other")) == {0: b"y"}
    again.close()
    disk.is_short = False
    assert sorted(open_store(disk).queue_names()) == sorted([QUEUE, "other"])


def test_a_name_that_can_not_be_read_for_want_of_descriptors_keeps_a_store_closed() -> None:
    disk = ShortOfHandles()
    disk.of_files = "queue.name"
    store = open_store(disk)

    async def fill() -> None:
        publish(store.open_queue(QUEUE), [b"x"])
        await store.sync()

    run_store(store, fill)
    disk.is_short = True
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        open_store(disk)
    disk.is_short = False
    assert open_store(disk).queue_names() == [QUEUE]
