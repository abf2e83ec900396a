"""How much waits for journals behind the commit log, and who writes it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from node.tests.storage.simulated_disk import SimulatedDisk
from node.tests.storage.test_lagging import LATE, NAMES, journals, publish, rounds
from node.tests.storage.workload import ROOT, open_store, run_store
from waiting import until

from ringmq_node.storage import store as store_module
from ringmq_node.storage.commit_log import LOG_NAMES
from ringmq_node.storage.disk.sync_duration import SyncDuration


@pytest.fixture(autouse=True)
def no_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "TICK_S", 3600.0)


def test_small_messages_do_not_wait_for_2_mib() -> None:
    """20 000 of them became durable in one turn of the loop. Where they leave memory, that is 3 us
    each."""
    disk = SimulatedDisk()
    store = open_store(disk, replace(LATE, write_behind_entries_max=5 * len(NAMES)))

    async def work() -> None:
        await rounds(store, range(1))
        begun = len(disk.log)
        await rounds(store, range(1, 7))
        assert journals(disk, begun) == []
        # Six rounds wait, and one is too many.
        await rounds(store, range(7, 8))
        assert len(journals(disk, begun)) == len(NAMES)
        await rounds(store, range(8, 11))
        # Those that a journal gets directly don't count any more.
        for name in NAMES[1:]:
            publish(store.open_queue(name), b"alone")
            await store.sync()
        begun = len(disk.log)
        await rounds(store, range(11, 15))
        assert journals(disk, begun) == []

    run_store(store, work)


def test_few_journals_wait() -> None:
    """A round that has written 2000 of them took 30 ms of processor time, and its own queues waited
    for that."""
    disk = SimulatedDisk()
    store = open_store(disk, replace(LATE, round_queues_max=7))
    names = [f"queue {number}" for number in range(12)]

    async def pair(at: int) -> None:
        for name in names[at : at + 2]:
            publish(store.open_queue(name), b"body")
        await store.sync()

    async def work() -> None:
        for at in range(0, 12, 2):
            await pair(at)
        begun = len(disk.log)
        for at in (0, 2, 4, 2, 0, 6):
            await pair(at)
        assert journals(disk, begun) == []
        # Eight wait, and one is too many.
        await pair(8)
        assert len(journals(disk, begun)) == 8

    run_store(store, work)


@pytest.mark.parametrize(("size_bytes", "by"), [(20, "MainThread"), (2_000, "ringmq-sync-0")])
def test_the_loop_writes_no_more_of_what_a_journal_lacks_than_of_a_round(
    size_bytes: int, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 MiB may wait for one journal. The round that writes it directly was done on the loop's own
    thread, if it was small itself."""
    quick(monkeypatch)
    disk = NotingDisk()
    store = open_store(disk, LATE)

    async def work() -> None:
        await rounds(store, range(1))
        for _ in range(20):
            for name in NAMES:
                publish(store.open_queue(name), bytes(size_bytes))
            await store.sync()
        disk.threads.clear()
        publish(store.open_queue("one"), b"alone")
        await store.sync()
        # What it lacks, and what is new.
        assert disk.threads == [by] * 2

    run_store(store, work)


class NotingDisk(SimulatedDisk):
    """Notes which thread has written to a journal."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def write(
        self, path: Path, offset: int, buffers: Sequence[bytes | memoryview], *, sync: bool = False
    ) -> None:
        if path.suffix == ".jif":
            self.threads.append(threading.current_thread().name)
        super().write(path, offset, buffers, sync=sync)


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is: the disk is quick enough for the loop's own thread."""
    monkeypatch.setattr(SyncDuration, "took", lambda self, seconds: None)


def test_the_loop_writes_nothing_that_several_journals_lack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick(monkeypatch)
    disk = NotingDisk()
    store = open_store(disk, replace(LATE, write_behind_bytes_max=500))

    async def work() -> None:
        await rounds(store, range(1))
        disk.threads.clear()
        await rounds(store, range(1, 9))
        assert len(disk.threads) >= len(NAMES)
        assert {*disk.threads} == {"ringmq-sync-1"}

    run_store(store, work)


def test_a_round_that_writes_what_others_have_left_says_nothing_of_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its duration the store decides whether the loop may do a small round itself."""
    told: list[float] = []
    monkeypatch.setattr(SyncDuration, "took", lambda self, seconds: told.append(seconds))
    store = open_store(SimulatedDisk(), replace(LATE, write_behind_bytes_max=0))

    async def work() -> None:
        await rounds(store, range(6))
        # The first round makes the journals, and the second leaves something for the third.
        assert len(told) == 2

    run_store(store, work)


def test_journals_get_what_they_lack_without_a_sync() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, LATE)

    async def work() -> None:
        await rounds(store, range(3))
        begun = len(disk.log)
        store._commit.tick()
        await until(lambda: len(journals(disk, begun)) == len(NAMES))
        await rounds(store, range(3, 5))
        synced = {call.path for call in disk.log[begun:] if call.name.startswith("sync")}
        assert synced == {ROOT / LOG_NAMES[0]}

    run_store(store, work)


def test_a_tick_is_for_what_waits_then() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, LATE)

    async def work() -> None:
        await rounds(store, range(3))
        begun = len(disk.log)
        store._commit.tick()
        await until(lambda: len(journals(disk, begun)) == len(NAMES))
        for numbers in (range(3, 6), range(6, 9)):
            begun = len(disk.log)
            await rounds(store, numbers)
            assert journals(disk, begun) == []
            # Then one at which nothing waits.
            for name in NAMES:
                publish(store.open_queue(name), b"alone")
                await store.sync()
            store._commit.tick()

    run_store(store, work)


def test_bytes_that_a_journal_gets_directly_wait_no_more() -> None:
    disk = SimulatedDisk()
    # A round has some 350.
    store = open_store(disk, replace(LATE, write_behind_bytes_max=1_000))

    async def work() -> None:
        await rounds(store, range(3))
        for name in NAMES[1:]:
            publish(store.open_queue(name), b"alone")
            await store.sync()
        begun = len(disk.log)
        await rounds(store, range(3, 6))
        assert journals(disk, begun) == []

    run_store(store, work)
