"""A disk that doesn't answer, and one that is too slow for the appends."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from loops import run
from node.tests.storage.queue.test_queue_store import publish
from node.tests.storage.simulated_disk import SimulatedDisk
from node.tests.storage.workload import LIMITS, QUEUE, bodies, open_store
from waiting import leeway

from ringmq_base.ranges import Range
from ringmq_node.queue.block import Block
from ringmq_node.replica.fetching import ask
from ringmq_node.storage import (
    DirectoryInUseError,
    DiskFullError,
    FileDisk,
    QueueStore,
    Store,
    StoreError,
    StoreFailedError,
    StoreLimits,
)
from ringmq_node.storage import store as store_module
from ringmq_node.storage.disk import threads
from ringmq_node.storage.disk.watch import WatchedDisk
from ringmq_node.storage.errors import DiskHangsError

# Nothing is written in place: on the loop's thread a call can't be seen.
IN_THREADS = replace(LIMITS, sync_in_place_bytes_max=0, disk_timeout_s=0.1)
# Bytes that may wait for their round.
ROOM_BYTES = 20_000
SMALL_ROOM = replace(IN_THREADS, unsynced_bytes_max=ROOM_BYTES, embed_below=1 << 20)


class Gate(SimulatedDisk):
    """Its writes of some files wait while it is shut."""

    def __init__(self, suffix: str) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        # Somebody waits.
        self.reached = threading.Event()
        self._suffix = suffix

    def write(
        self, path: Path, offset: int, buffers: Sequence[bytes | memoryview], *, sync: bool = False
    ) -> None:
        if self._suffix in path.name and not self.open.is_set():
            self.reached.set()
            self.open.wait()
        super().write(path, offset, buffers, sync=sync)


@pytest.fixture(params=[".jif", ".rdq", ".idx"], ids=["round", "bodies", "flush"])
def gate(request: pytest.FixtureRequest) -> Iterator[Gate]:
    disk = Gate(request.param)
    yield disk
    disk.open.set()


@pytest.fixture
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "TICK_S", 0.02)


class FullAndHanging(FileDisk):
    """A real disk: its writes of segments wait while it is shut, and journals find no room while
    it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()
        self.is_full = False

    def write(
        self, path: Path, offset: int, buffers: Sequence[bytes | memoryview], *, sync: bool = False
    ) -> None:
        if path.suffix == ".idx" and not self.open.is_set():
            self.reached.set()
            self.open.wait()
        if path.suffix == ".jif" and self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        super().write(path, offset, buffers, sync=sync)


@pytest.fixture
def real_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[FullAndHanging]:
    """The disk of the first store that `opened` opens."""
    disk = FullAndHanging()
    disks: Iterator[FileDisk] = iter([disk])
    monkeypatch.setattr(store_module, "FileDisk", lambda: next(disks, None) or FileDisk())
    yield disk
    disk.open.set()


def opened(directory: Path, limits: StoreLimits) -> Store:
    return Store.open(directory, cluster_id="c", node="n1", limits=limits)


async def started(store: Store) -> asyncio.Task[None]:
    running = asyncio.create_task(store.run())
    await asyncio.sleep(0)
    return running


def test_a_disk_that_hangs_fails_the_store_and_does_not_keep_it_from_closing(
    gate: Gate, quick_ticks: None
) -> None:
    failed = asyncio.Event()

    async def main() -> None:
        store = open_store(gate, replace(IN_THREADS, journal_entries_max=5, embed_below=100))
        store.on_failed = lambda _: failed.set()
        queue = store.open_queue(QUEUE)
        running = await started(store)
        gate.open.clear()
        publish(queue, [b"x"] * 10)
        publish(queue, [bytes(200)])
        began = time.monotonic()
        async with asyncio.timeout(30):
            await failed.wait()
            assert time.monotonic() - began >= IN_THREADS.disk_timeout_s / 2
            assert "has not come back for 0.1 s" in str(store.failure)
            assert store.statistics().failed_now
            with pytest.raises(StoreFailedError):
                publish(queue, [b"y"])
            with pytest.raises(StoreFailedError):
                await store.sync()
            began = time.monotonic()
            store.close()
            assert time.monotonic() - began < leeway(1.0)
            await running
        # The call comes back after all, and nobody minds.
        gate.open.set()
        await asyncio.sleep(0.05)

    run(main())


async def fail_full_while_a_flush_hangs(store: Store, disk: FullAndHanging) -> None:
    """Its flush waits for the disk, and then a round finds no room."""
    queue = store.open_queue(QUEUE)
    disk.open.clear()
    publish(queue, [b"x"] * 10)
    await store.sync()
    publish(queue, [b"y"] * 10)
    await store.sync()
    assert await asyncio.to_thread(disk.reached.wait, 10)
    disk.is_full = True
    publish(queue, [b"z"])
    with pytest.raises(DiskFullError):
        await store.sync()


FULL_LIMITS = replace(IN_THREADS, journal_entries_max=5)


def test_a_directory_stays_locked_if_a_thread_hangs_after_the_store_has_failed(
    real_disk: FullAndHanging, tmp_path: Path, quick_ticks: None
) -> None:
    """The same process may not open it again: the thread's write would land in the new life."""

    async def main() -> None:
        store = opened(tmp_path, FULL_LIMITS)
        failures: asyncio.Queue[StoreError] = asyncio.Queue()
        store.on_failed = failures.put_nowait
        running = await started(store)
        await fail_full_while_a_flush_hangs(store, real_disk)
        assert isinstance(await failures.get(), DiskFullError)
        async with asyncio.timeout(30):
            # Whoever asks is told what to do now: room alone doesn't help any more.
            hang = await failures.get()
            assert isinstance(hang, DiskHangsError)
        assert store.failure is hang
        assert "look at the disk, then start the node again" in str(hang)
        began = time.monotonic()
        store.close()
        assert time.monotonic() - began < leeway(1.0)
        await running
        with pytest.raises(DirectoryInUseError):
            opened(tmp_path, FULL_LIMITS)
        assert store.holds_directory

    run(main())


def test_a_directory_stays_locked_if_close_finds_that_a_thread_hangs(
    real_disk: FullAndHanging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So soon after the failure that nobody had noticed it."""
    monkeypatch.setattr(threads, "WAIT_S_MAX", 0.1)

    async def main() -> None:
        store = opened(tmp_path, replace(FULL_LIMITS, disk_timeout_s=60.0))
        failures: list[StoreError] = []
        store.on_failed = failures.append
        running = await started(store)
        await fail_full_while_a_flush_hangs(store, real_disk)
        store.close()
        await running
        with pytest.raises(DirectoryInUseError):
            opened(tmp_path, FULL_LIMITS)
        assert store.holds_directory
        assert [type(failure) for failure in failures] == [DiskFullError, DiskHangsError]

    run(main())


def test_a_directory_is_free_again_once_a_full_disk_has_let_all_threads_go(
    real_disk: FullAndHanging, tmp_path: Path
) -> None:
    async def main() -> None:
        store = opened(tmp_path, replace(FULL_LIMITS, disk_timeout_s=60.0))
        store.on_failed = lambda _: None
        running = await started(store)
        await fail_full_while_a_flush_hangs(store, real_disk)
        real_disk.open.set()
        store.close()
        await running
        assert not store.holds_directory

    run(main())
    opened(tmp_path, FULL_LIMITS).close()


def test_a_slow_disk_and_a_process_that_was_stopped_are_not_a_disk_that_hangs() -> None:
    gate = Gate(".jif")
    disk = WatchedDisk(gate)
    gate.open.clear()
    thread = threading.Thread(target=disk.write, args=(Path("/q/1.jif"), 0, [b"x"]), daemon=True)
    thread.start()
    try:
        assert gate.reached.wait(10)
        # However long ago it began: in a second the process has looked once.
        assert disk.look(1.0, 1.0) is None
        late = disk.look(1.0, 1.0)
        assert late == "a write of /q/1.jif has not come back for 1 s"
    finally:
        gate.open.set()
        thread.join(10)
    assert disk.look(60.0, 1.0) is None


def test_what_waits_for_a_slow_disk_is_said_to_be_too_much_until_it_is_durable() -> None:
    gate = Gate(".jif")

    async def main() -> None:
        store = open_store(gate, SMALL_ROOM)
        told: list[bool] = []
        calm = asyncio.Event()

        def crowded(on: bool) -> None:
            told.append(on)
            if not on:
                calm.set()

        store.on_crowded = crowded
        queue = store.open_queue(QUEUE)
        # Nothing is under way that could end it.
        publish(queue, [bytes(2 * ROOM_BYTES)])
        assert told == []
        running = await started(store)
        try:
            await store.sync()
            assert told == [True, False]
            told.clear()
            gate.open.clear()
            publish(queue, [bytes(ROOM_BYTES // 2)])
            assert await asyncio.to_thread(gate.reached.wait, 10)
            publish(queue, [bytes(ROOM_BYTES // 4)])
            assert told == []
            publish(queue, [bytes(ROOM_BYTES // 2)])
            assert told == [True]
            publish(queue, [bytes(ROOM_BYTES)])
            assert told == [True]
            waiting = asyncio.create_task(queue.wait_room())
            await asyncio.sleep(0.01)
            assert not waiting.done()
            gate.open.set()
            async with asyncio.timeout(30):
                await calm.wait()
                await waiting
                await store.sync()
            assert queue.durable_number == queue.state.last_number
            assert told[-1] is False
            # Deleted, it has nothing more to wait for, and nothing stays held.
            publish(queue, [bytes(2 * ROOM_BYTES)])
            store.delete_queue(QUEUE)
            publish(store.open_queue("other"), [b"x"])
            await store.sync()
            assert told[-1] is False
        finally:
            gate.open.set()
            store.close()
            await running

    run(main())


def test_bodies_are_fetched_no_faster_than_the_disk_takes_them() -> None:
    gate = Gate(".jif")
    given = 0

    async def fetch(ranges: Sequence[Range]) -> AsyncIterator[tuple[int, Block, bool]]:
        nonlocal given
        for first, last in ranges:
            for position in range(first, last + 1):
                given += 1
                yield position, Block.of([bytes(1000)]), False

    async def main() -> None:
        store = open_store(gate, SMALL_ROOM)
        source = store.open_queue("source")
        publish(source, [b"m"] * 100)
        queue: QueueStore = store.open_queue(QUEUE)
        running = await started(store)
        try:
            queue.install(source.state.copy(), keep_below=0)
            await store.sync()
            gate.open.clear()
            fetching = asyncio.create_task(ask(queue, fetch, is_cancelled=lambda: False))
            assert await asyncio.to_thread(gate.reached.wait, 10)
            await asyncio.sleep(0.02)
            assert 1000 * given <= ROOM_BYTES
            gate.open.set()
            async with asyncio.timeout(30):
                await fetching
            assert not queue.missing
        finally:
            gate.open.set()
            store.close()
            await running

    run(main())


@pytest.mark.parametrize(
    ("suffix", "embed_below"), [(".jif", 1 << 20), (".rdq", 0), (".idx", 1 << 20)]
)
def test_a_queue_that_a_thread_writes_to_is_deleted_without_waiting_for_it(
    suffix: str, embed_below: int
) -> None:
    gate = Gate(suffix)

    async def main() -> None:
        limits = replace(SMALL_ROOM, embed_below=embed_below, journal_entries_max=5)
        store = open_store(gate, limits)
        queue, other = store.open_queue(QUEUE), store.open_queue("other")
        folder = queue.directory
        running = await started(store)
        try:
            await store.sync()
            gate.open.clear()
            publish(queue, [bytes(1000)] * 10)
            assert await asyncio.to_thread(gate.reached.wait, 10)
            began = time.monotonic()
            store.delete_queue(QUEUE)
            assert time.monotonic() - began < leeway(1.0)
            assert store.queue_names() == ["other"]
            with pytest.raises(StoreFailedError):
                publish(queue, [b"z"])
            publish(other, [b"kept"])
            gate.open.set()
            async with asyncio.timeout(30):
                await store.sync()
                while gate.list(folder):  # noqa: ASYNC110  # it is removed by a thread
                    await asyncio.sleep(0.001)
            # Nothing has made it again.
            assert store.failure is None
            assert folder.name not in gate.list(folder.parent)
            assert store.open_queue(QUEUE).state.next_position == 0
            await store.sync()
        finally:
            gate.open.set()
            store.close()
            await running
        again = open_store(gate.copy(), limits)
        # The new queue of this name has nothing on the disk yet.
        assert again.queue_names() == ["other"]
        assert bodies(again.open_queue("other")) == {0: b"kept"}
        assert bodies(again.open_queue(QUEUE)) == {}
        again.close()

    run(main())
