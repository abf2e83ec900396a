"""What compaction chooses, moves, removes, and leaves alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from node.tests.storage.messages.bench import (
    DIRECTORY,
    SMALL,
    block_of,
    collect,
    commit,
    names,
    open_store,
    put_all,
    step,
)
from node.tests.storage.simulated_disk import SimulatedDisk

from ringmq_node.storage.disk.disk import FileDisk
from ringmq_node.storage.errors import CorruptError
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.limits import StoreLimits
from ringmq_node.storage.messages import MessageStore, compact
from ringmq_node.storage.messages.steps import CopyJob, PublishJob

SIZE = 800


class Bench:
    """A store, and what is expected to be in it."""

    def __init__(self, disk: SimulatedDisk, count: int, limits: StoreLimits = SMALL) -> None:
        self.disk = disk
        self.limits = limits
        self.store = open_store(disk, limits)
        self.store.start_collecting()
        places = put_all(self.store, disk, [block_of(n, SIZE) for n in range(count)])
        self.live = dict(enumerate(places))

    def keep(self, *numbers: int) -> None:
        for number in [*self.live]:
            if number not in numbers:
                self.release(number)

    def release(self, number: int) -> None:
        self.store.release(self.live.pop(number))

    def put(self, number: int) -> None:
        (self.live[number],) = put_all(self.store, self.disk, [block_of(number, SIZE)])

    def restart(self) -> None:
        self.store = open_store(self.disk, self.limits)
        for location in self.live.values():
            self.store.share(location)
        self.store.start_collecting()
        self.check()

    def check(self) -> None:
        self.store.check()
        for number, location in self.live.items():
            assert self.store.read(location).data == block_of(number, SIZE).data, number
        assert self.store.statistics().records_now == len(self.live)

    def steps_until(self, kind: type, most: int = 100) -> None:
        """Runs steps until one of this kind is done."""
        for _ in range(most):
            if isinstance(step(self.store, self.disk), kind):
                return
        raise AssertionError(f"no {kind.__name__} came")


@pytest.fixture
def bench() -> Bench:
    """Six files of four records each, and a seventh that is written to."""
    return Bench(SimulatedDisk(), 25)


def test_live_records_of_files_anywhere_go_into_one_new_file(bench: Bench) -> None:
    bench.keep(0, 9, 10, 11, 8, 21, 24)
    collect(bench.store, bench.disk)
    # File 3 (records 8 to 11) is full, so it stays; of 1 and 6 one record each has moved.
    assert names(bench.disk) == ["1.map", "3.rdq", "6.map", "7.rdq", "8.rdq"]
    bench.check()
    statistics = bench.store.statistics()
    assert statistics.compactions == 1
    assert statistics.maps_now == 2
    bench.restart()


def test_moved_records_are_released_by_their_old_location(bench: Bench) -> None:
    bench.keep(0, 5, 10, 15, 20)
    collect(bench.store, bench.disk)
    assert names(bench.disk)[0] == "1.map"
    bench.store.share(bench.live[5])
    bench.store.release(bench.live[5])
    bench.check()
    bench.keep(5)
    collect(bench.store, bench.disk)
    # What was with 5 at its new place is garbage, so 5 has moved once more.
    assert names(bench.disk) == ["10.rdq", "2.map", "7.rdq"]
    bench.check()
    bench.keep()
    collect(bench.store, bench.disk)
    assert names(bench.disk) == ["10.rdq", "7.rdq"], "the newest stays, and the one written to"
    bench.put(30)
    assert bench.live[30].file == 7
    bench.restart()
    bench.put(31)
    assert bench.live[31].file == 11
    collect(bench.store, bench.disk)
    assert names(bench.disk) == ["11.rdq", "7.rdq"]
    bench.check()


def test_what_was_moved_is_moved_again_and_maps_lead_there_at_once(bench: Bench) -> None:
    bench.keep(0, 5, 10, 15)
    collect(bench.store, bench.disk)
    assert "8.rdq" in names(bench.disk)
    bench.keep(10)
    for number in range(30, 42):
        bench.put(number)
    bench.keep(10, 30, 36, 41)
    collect(bench.store, bench.disk)
    assert "8.rdq" not in names(bench.disk)
    assert "8.map" not in names(bench.disk), "no location names a file that compaction wrote"
    assert "3.map" in names(bench.disk)
    bench.check()
    bench.restart()
    collect(bench.store, bench.disk)
    bench.check()


def test_record_released_while_it_is_copied_is_garbage_at_its_new_place(bench: Bench) -> None:
    bench.keep(0, 1, 4, 8, 12, 16)
    bench.steps_until(CopyJob)
    bench.release(0)
    job = bench.store.plan(1e9) or bench.store.plan(bench.store.next_plan_at or 0)
    assert isinstance(job, CopyJob)
    bench.release(4)
    compact(bench.disk, job)
    bench.store.done(job)
    bench.check()
    bench.release(12)
    bench.steps_until(PublishJob)
    bench.check()
    bench.restart()


def test_all_released_while_a_compaction_is_under_way(bench: Bench) -> None:
    bench.keep(0, 4, 8, 12)
    bench.steps_until(CopyJob)
    bench.steps_until(CopyJob)
    bench.keep()
    collect(bench.store, bench.disk)
    bench.check()
    assert all(name.endswith(".rdq") for name in names(bench.disk))


def test_released_while_the_maps_are_written(bench: Bench) -> None:
    bench.keep(0, 4, 8, 12)
    for _ in range(100):
        job = bench.store.plan(1e9) or bench.store.plan(bench.store.next_plan_at or 0)
        assert job is not None
        compact(bench.disk, job)
        if isinstance(job, PublishJob):
            bench.release(4)
        bench.store.done(job)
        bench.check()
        if isinstance(job, PublishJob):
            break
    collect(bench.store, bench.disk)
    bench.check()
    bench.restart()


def test_one_nearly_empty_file_does_not_wait_for_others_to_become_garbage(bench: Bench) -> None:
    for number in (0, 1, 2):
        bench.release(number)
    collect(bench.store, bench.disk)
    assert names(bench.disk)[0] == "1.map"
    bench.check()


def test_half_full_files_among_full_ones_are_left_alone(bench: Bench) -> None:
    for number in (0, 1, 4, 5):
        bench.release(number)
    assert collect(bench.store, bench.disk) == 0


def test_copying_keeps_to_its_rate_and_its_pieces(bench: Bench) -> None:
    bench.limits = StoreLimits(
        store_file_bytes_max=4096, compaction_piece_bytes_max=500, compaction_bytes_per_s_max=100
    )
    bench.restart()
    bench.keep(0, 1, 4, 5, 8, 9)
    now = 50.0
    waits = 0
    for _ in range(40):
        job = bench.store.plan(now)
        if job is None:
            if bench.store.next_plan_at is None:
                break
            assert bench.store.plan(bench.store.next_plan_at - 0.01) is None
            now = bench.store.next_plan_at
            waits += 1
            continue
        assert bench.store.plan(now) is None, "one at a time"
        compact(bench.disk, job)
        bench.store.done(job)
        if isinstance(job, CopyJob):
            assert job.bytes_copied <= 500 + SIZE
    assert waits >= 3
    assert now - 50.0 >= (bench.store.statistics().moved_bytes - 2000) / 100
    bench.check()


def test_damaged_payload_is_reported_and_lost_and_the_rest_moves(bench: Bench) -> None:
    bad = bench.live[5]
    bench.keep(0, 5, 7, 10)
    bench.disk.content(DIRECTORY / f"{bad.file}.rdq")[bad.offset + 60] ^= 4
    collect(bench.store, bench.disk)
    assert "2.rdq" not in names(bench.disk)
    (report,) = bench.store.corruptions
    assert (report.offset, report.length) == (bad.offset, bad.length)
    assert report.file.endswith("2.rdq")
    del bench.live[5]
    bench.store.share(bad)
    bench.store.release(bad)
    with pytest.raises(CorruptError, match="lost"):
        bench.store.read(bad)
    again = open_store(bench.disk)
    for location in (bad, *bench.live.values()):
        again.share(location)
    again.start_collecting()
    with pytest.raises(CorruptError, match="lost"):
        again.read(bad)
    for number, location in bench.live.items():
        assert again.read(location).data == block_of(number, SIZE).data
    again.release(bad)
    collect(again, bench.disk)


def test_after_a_damaged_header_the_file_is_left_alone(bench: Bench) -> None:
    bad = bench.live[5]
    bench.keep(0, 4, 6, 10)
    bench.disk.content(DIRECTORY / f"{bad.file}.rdq")[bad.offset + 9] ^= 4
    collect(bench.store, bench.disk)
    assert "2.rdq" in names(bench.disk)
    assert "1.rdq" not in names(bench.disk)
    assert len(bench.store.corruptions) == 1
    bench.check()
    collect(bench.store, bench.disk)
    assert len(bench.store.corruptions) == 1, "it is not tried again"
    bench.keep(0, 10)
    collect(bench.store, bench.disk)
    assert "2.rdq" not in names(bench.disk)
    bench.restart()


def test_damaged_header_behind_all_that_lives_does_not_matter(bench: Bench) -> None:
    bad = bench.live[7]
    bench.keep(0, 4, 10)
    bench.disk.content(DIRECTORY / f"{bad.file}.rdq")[bad.offset + 9] ^= 4
    collect(bench.store, bench.disk)
    assert "2.rdq" not in names(bench.disk)
    assert not bench.store.corruptions
    bench.check()


@pytest.mark.parametrize("at", [0, 13, 20, 28, 40], ids=lambda at: f"byte {at}")
def test_damaged_map_is_reported_and_what_it_led_to_can_not_be_read(bench: Bench, at: int) -> None:
    bench.keep(0, 1, 4, 8)
    collect(bench.store, bench.disk)
    bench.disk.content(DIRECTORY / "1.map")[at] ^= 1
    store = open_store(bench.disk)
    (report,) = store.corruptions
    assert report.file.endswith("1.map")
    for location in bench.live.values():
        store.share(location)
    store.start_collecting()
    for number, location in bench.live.items():
        if location.file == 1:
            with pytest.raises(CorruptError):
                store.read(location)
        else:
            assert store.read(location).data == block_of(number, SIZE).data
    for number in (0, 1):
        store.release(bench.live.pop(number))
    collect(store, bench.disk)
    assert "1.map" not in names(bench.disk)


def test_data_file_counts_if_there_is_a_map_beside_it(bench: Bench) -> None:
    bench.keep(0, 4, 8)
    bench.steps_until(PublishJob)
    assert {"1.rdq", "1.map"} <= {*names(bench.disk)}
    target = max(int(name[:-4]) for name in names(bench.disk))
    bench.disk.remove(DIRECTORY / f"{target}.rdq")
    bench.restart()
    assert "1.map" not in names(bench.disk)


def test_a_file_half_made_is_removed_at_the_start(bench: Bench) -> None:
    bench.disk.write(DIRECTORY / "1.map.new", 0, [b"RINGMQ-R"])
    bench.disk.write(DIRECTORY / "notes.txt", 0, [b"not ours"])
    bench.restart()
    assert "1.map.new" not in names(bench.disk)
    assert "notes.txt" in names(bench.disk)


def test_transient_store_compacts_without_maps_and_syncs() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, persistent=False)
    store.start_collecting()
    places = put_all(store, disk, [block_of(n, SIZE) for n in range(25)])
    live = {n: place for n, place in enumerate(places) if n % 4 == 0}
    for n, place in enumerate(places):
        if n not in live:
            store.release(place)
    collect(store, disk)
    assert store.statistics().compactions > 0
    assert not [call for call in disk.log if call.name == "sync"]
    assert all(name.endswith(".rdq") for name in names(disk))
    for n, place in live.items():
        assert store.read(place).data == block_of(n, SIZE).data


def test_sparse_maps_give_their_memory_back(bench: Bench) -> None:
    bench = Bench(SimulatedDisk(), 200, StoreLimits(store_file_bytes_max=40_000))
    bench.keep(*range(0, 200, 4))
    collect(bench.store, bench.disk)
    before = bench.store.statistics().memory_bytes_now
    bench.keep(*range(0, 200, 20))
    collect(bench.store, bench.disk)
    assert bench.store.statistics().memory_bytes_now < before
    bench.check()
    bench.restart()


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


def test_a_reader_that_comes_too_late_looks_again(bench: Bench) -> None:
    """Twice: the file is gone when it is opened, and so is the one that it was moved to."""
    disk = DiskThatIsLate()
    bench = Bench(disk, 25)
    bench.restart()
    bench.keep(0, 5, 10, 15, 20)

    def move() -> None:
        collect(bench.store, disk)

    def move_again() -> None:
        for number in (0, 10, 15, 20):
            bench.release(number)
        collect(bench.store, disk)

    disk.before = [move, move_again]
    location = bench.live[5]
    assert bench.store.read(location).data == block_of(5, SIZE).data
    assert not disk.before
    assert bench.store.statistics().compactions >= 2


@pytest.mark.parametrize("reads", [200, pytest.param(5000, marks=pytest.mark.slow)])
def test_readers_are_never_misled_by_what_moves_underneath(tmp_path: Path, reads: int) -> None:
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


def test_every_third_is_removed_from_the_young_end_three_times() -> None:
    """RabbitMQ's case: 8 KiB messages over many files, reads all along, empty in the end."""
    disk = SimulatedDisk()
    limits = StoreLimits(store_file_bytes_max=64 << 10, store_cache_bytes_max=64 << 10)
    store = open_store(disk, limits)
    store.start_collecting()
    count = 140
    live = dict(enumerate(put_all(store, disk, [block_of(n, 8192) for n in range(count)])))
    assert store.statistics().files_now >= 20
    for start in (2, 1, 0):
        for n in range(count - 3 + start, -1, -3):
            if n in live:
                store.release(live.pop(n))
            if n % 10 == 0:
                commit(store, disk)
                step(store, disk)
                for number, location in [*live.items()][::7]:
                    assert store.read(location).data == block_of(number, 8192).data
        collect(store, disk)
    for n in [*live]:
        store.release(live.pop(n))
    collect(store, disk)
    statistics = store.statistics()
    assert statistics.records_now == statistics.live_bytes_now == 0
    assert statistics.files_now <= 2, "the newest, and the one written to"
    assert [name for name in names(disk) if name.endswith(".map")] == []


def test_restart_with_every_other_kept_keeps_these() -> None:
    disk = SimulatedDisk()
    bench = Bench(disk, 100)
    for number in range(0, 100, 2):
        del bench.live[number]
    bench.restart()
    collect(bench.store, bench.disk)
    bench.check()
    assert bench.store.statistics().records_now == 50
    bench.live.clear()
    bench.restart()
    collect(bench.store, bench.disk)
    assert bench.store.statistics().records_now == 0
    assert len(names(disk)) == 1
    bench.put(1)
    bench.check()
