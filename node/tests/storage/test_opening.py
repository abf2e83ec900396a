"""A queue that is read in a thread comes out as one that is read on the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loops import run
from node.tests.storage.queue.test_queue_store import append, publish
from node.tests.storage.simulated_disk import SimulatedDisk
from node.tests.storage.workload import QUEUE, bodies, open_store, run_store

from ringmq_node.queue.ops import Remove
from ringmq_node.storage import (
    DirectoryInUseError,
    Disk,
    Store,
    StoreClosedError,
    StoreLimits,
    opening,
)
from ringmq_node.storage.disk import threads
from ringmq_node.storage.queue import recovery
from ringmq_node.storage.queue.recovery import Recovered

LIMITS = StoreLimits(embed_below=50)


def filled() -> SimulatedDisk:
    """Small bodies in the journal, large ones in the message store."""
    disk = SimulatedDisk()
    store = open_store(disk, LIMITS)

    async def work() -> None:
        queue = store.open_queue(QUEUE)
        for number in range(200):
            publish(queue, [b"%d" % number * (1 if number % 2 else 100)])
        append(queue, Remove(((10, 20),)))
        await store.sync()

    run_store(store, work)
    return disk


def test_a_large_journal_is_read_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "ASIDE_BYTES_MIN", 100)
    threads: list[int] = []
    real = recovery.recover

    def recover(*arguments: object) -> object:
        threads.append(threading.get_ident())
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(opening, "recover", recover)
    disk = filled()
    plain = open_store(disk.copy(), LIMITS)
    expected = plain.open_queue(QUEUE)

    store = open_store(disk, LIMITS)

    async def work() -> None:
        found = await store.recover(QUEUE)
        assert found is not None
        queue = store.open_queue(QUEUE, found=found)
        assert threads
        assert threads[0] != threading.get_ident()
        queue.check()
        assert queue.state == expected.state
        assert bodies(queue) == bodies(expected)
        assert store.statistics().messages == plain.statistics().messages
        assert await store.recover(QUEUE) is None, "it is open"
        # The references were counted: a body goes when its message does, and not before.
        append(queue, Remove(((0, 150),)))
        await store.sync()
        await asyncio.sleep(0)
        assert bodies(queue) == {at: body for at, body in bodies(expected).items() if at > 150}

    run_store(store, work)
    plain.close()


class Reading:
    """A recovery in a thread, which goes on until it is told to end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(opening, "ASIDE_BYTES_MIN", 0)
        monkeypatch.setattr(opening, "recover", self._recover)
        self._real = recovery.recover
        self.begun = threading.Event()
        self.end = threading.Event()
        # How many are at work, and at most.
        self.now = self.most = 0
        # It makes calls of the disk meanwhile.
        self.looks = False

    def _recover(self, disk: Disk, folder: Path, *arguments: Any) -> Recovered:
        self.now += 1
        self.most = max(self.most, self.now)
        self.begun.set()
        try:
            while self.looks:
                disk.list(folder)
            assert self.end.wait(30)
            return self._real(disk, folder, *arguments)
        finally:
            self.now -= 1


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    made = Reading(monkeypatch)
    yield made
    made.end.set()


async def give_up_reading(store: Store, reading: Reading) -> None:
    """A thread reads the queue, and nobody wants it any more."""
    recovering = asyncio.create_task(store.recover(QUEUE))
    assert await asyncio.to_thread(reading.begun.wait, 10)
    recovering.cancel()
    await asyncio.gather(recovering, return_exceptions=True)


def real_store(directory: Path) -> Store:
    return Store.open(directory, cluster_id="c", node="n1", limits=LIMITS)


def real_directory(directory: Path) -> None:
    """Has the queue."""
    store = real_store(directory)
    publish(store.open_queue(QUEUE), [b"x"])
    store.close()


@pytest.mark.logs("a thread may still write to .*, which stays locked: look at the disk")
def test_a_directory_stays_locked_while_a_queue_is_read_in_a_thread(
    reading: Reading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread would cut a torn tail in the files of the next life."""
    monkeypatch.setattr(threads, "WAIT_S_MAX", 0.1)
    real_directory(tmp_path)

    async def main() -> None:
        store = real_store(tmp_path)
        await give_up_reading(store, reading)
        store.close()
        with pytest.raises(DirectoryInUseError):
            real_store(tmp_path)
        assert store.holds_directory

    run(main())


def test_a_queue_is_read_no_further_once_its_store_is_closed(
    reading: Reading, tmp_path: Path
) -> None:
    """It may be a large one, and `close` waits for the thread."""
    reading.looks = True
    real_directory(tmp_path)

    async def main() -> None:
        store = real_store(tmp_path)
        await give_up_reading(store, reading)
        store.close()
        assert reading.now == 0
        assert not store.holds_directory
        with pytest.raises(StoreClosedError):
            await store.recover(QUEUE)

    run(main())


def test_a_queue_is_read_again_when_the_thread_that_nobody_waits_for_is_done(
    reading: Reading,
) -> None:
    """Two would cut the same torn tail."""
    store = open_store(filled(), LIMITS)

    async def work() -> None:
        await give_up_reading(store, reading)
        reading.begun.clear()
        again = asyncio.create_task(store.recover(QUEUE))
        assert not await asyncio.to_thread(reading.begun.wait, 0.1)
        reading.end.set()
        assert await again is not None
        assert reading.most == 1

    run_store(store, work)


def test_little_is_read_on_the_loop() -> None:
    store = open_store(filled(), LIMITS)

    async def work() -> None:
        assert await store.recover(QUEUE) is None
        assert await store.recover("unknown") is None

    run_store(store, work)
