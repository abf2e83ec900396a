"""Reading while compaction moves the records and changes the tables."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from node.tests.storage.messages.checked_store import SIZE, CheckedStore
from node.tests.storage.messages.verbs import (
    block_of,
    collect,
    open_store,
    put_all,
)
from node.tests.storage.simulated_disk import SimulatedDisk

from ringmq_node.storage.disk.disk import FileDisk
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.limits import StoreLimits
from ringmq_node.storage.messages import MessageStore


def test_sparse_maps_give_their_memory_back(stored: CheckedStore) -> None:
    stored = CheckedStore(SimulatedDisk(), 200, StoreLimits(store_file_bytes_max=40_000))
    stored.keep(*range(0, 200, 4))
    collect(stored.store, stored.disk)
    before = stored.store.statistics().memory_bytes_now
    stored.keep(*range(0, 200, 20))
    collect(stored.store, stored.disk)
    assert stored.store.statistics().memory_bytes_now < before
    stored.check()
    stored.restart()


class DiskThatIsLate(SimulatedDisk):
    """Lets something happen between a look-up and the opening of the file."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[Callable[[], None]] = []

    def read(self, path: Path, offset: int, size: int) -> bytes:
        if self.before:
            happens, *rest = self.before
            # What happens reads as well, and is on time.
            self.before = []
            happens()
            self.before = rest
        return super().read(path, offset, size)


def test_a_reader_that_comes_too_late_looks_again(stored: CheckedStore) -> None:
    """Twice: the file is gone when it is opened, and so is the one that it was moved to."""
    disk = DiskThatIsLate()
    stored = CheckedStore(disk, 25)
    stored.restart()
    stored.keep(0, 5, 10, 15, 20)

    def move() -> None:
        collect(stored.store, disk)

    def move_again() -> None:
        for number in (0, 10, 15, 20):
            stored.release(number)
        collect(stored.store, disk)

    disk.before = [move, move_again]
    location = stored.live[5]
    assert stored.store.read(location).data == block_of(5, SIZE).data
    assert not disk.before
    assert stored.store.statistics().compactions >= 2


@pytest.mark.parametrize("reads", [200, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_readers_are_never_misled_by_moves_underneath(tmp_path: Path, reads: int) -> None:
    """Two threads read all the time while everything is moved, again and again."""
    files = FileDisk()
    limits = StoreLimits(
        store_file_bytes_max=16 << 10, compaction_piece_bytes_max=4096, store_cache_bytes_max=0
    )
    directory = tmp_path / "messages" / "persistent"
    store = MessageStoreUnderReaders(files, open_store(files, limits, directory=directory))
    try:
        store.run(random.Random(reads), reads)
    finally:
        files.close()
    assert store.store.statistics().compactions > 5


class MessageStoreUnderReaders:
    def __init__(self, disk: FileDisk, store: MessageStore) -> None:
        self.disk = disk
        self.store = store
        # Never released, so that they are always to be read.
        self.kept: dict[int, RecordLocation] = {}
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self.reads = 0

    def run(self, rng: random.Random, reads: int) -> None:
        readers = [threading.Thread(target=self.read, args=(seed,)) for seed in range(2)]
        self.store.start_collecting()
        self.churn(0, rng)
        for reader in readers:
            reader.start()
        try:
            rounds = 1
            while (rounds < 8 or self.reads < reads) and not self.errors and rounds < 500:
                self.churn(rounds, rng)
                rounds += 1
        finally:
            self.stop.set()
            for reader in readers:
                reader.join(30)
        assert not self.errors, self.errors
        assert self.reads >= reads

    def churn(self, turn: int, rng: random.Random) -> None:
        numbers = range(turn * 100, turn * 100 + 100)
        places = put_all(self.store, self.disk, [block_of(n, SIZE) for n in numbers])
        for number, place in zip(numbers, places, strict=True):
            if rng.random() < 0.05 and len(self.kept) < 60:
                self.kept[number] = place
            else:
                self.store.release(place)
        collect(self.store, self.disk)

    def read(self, seed: int) -> None:
        rng = random.Random(seed)
        try:
            while not self.stop.is_set():
                number, place = rng.choice([*self.kept.items()])
                assert self.store.read(place).data == block_of(number, SIZE).data
                self.reads += 1
        except BaseException as error:
            self.errors.append(error)
