"""Put, share, release, read, write: one message store without compaction."""

from __future__ import annotations

from pathlib import Path

import pytest
from node.tests.storage.messages.verbs import (
    DIRECTORY,
    SMALL,
    block_of,
    collect,
    commit,
    names,
    open_store,
    put_all,
)
from node.tests.storage.simulated_disk import SimulatedDisk

from ringmq_node.queue.block import Block
from ringmq_node.storage.disk.disk import FileDisk
from ringmq_node.storage.errors import CorruptError
from ringmq_node.storage.format.records import FILE_HEADER, RECORD_HEADER_BYTES
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.limits import StoreLimits
from ringmq_node.storage.messages import MessageStore, write

CACHED = StoreLimits(store_file_bytes_max=4096, store_cache_bytes_max=1 << 20, recent_ids_max=8)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def reopened(disk: SimulatedDisk, live: list[RecordLocation]) -> MessageStore:
    store = open_store(disk)
    for location in live:
        store.share(location)
    store.start_collecting()
    store.check()
    return store


def test_a_block_is_read_as_it_was_put_before_and_after_it_is_written(disk: SimulatedDisk) -> None:
    store = open_store(disk)
    location, kept = store.put(block_of(1))
    assert store.read(location) is kept
    assert not store.is_durable(location)
    job = store.take()
    assert job is not None
    assert store.read(location) is kept
    write(disk, job)
    store.committed(job)
    assert store.is_durable(location)
    assert store.read(location).data == kept.data
    assert store.take() is None
    store.check()


def test_locations_are_places_in_the_file(disk: SimulatedDisk) -> None:
    store = open_store(disk)
    first, second = put_all(store, disk, [block_of(1, 100), block_of(2, 50)])
    assert first == RecordLocation(1, 0, FILE_HEADER.size, RECORD_HEADER_BYTES + 112)
    assert second == RecordLocation(1, 1, first.offset + first.length, RECORD_HEADER_BYTES + 62)
    assert names(disk) == ["1.rdq"]
    assert disk.list(DIRECTORY)["1.rdq"] == second.offset + second.length


def test_fan_out_stores_one_copy(disk: SimulatedDisk) -> None:
    store = open_store(disk)
    message_id = bytes(range(16))
    one, first = store.put(Block.of([b"x" * 500]), message_id)
    two, second = store.put(Block.of([b"x" * 500]), message_id)
    assert one == two
    assert first is second
    commit(store, disk)
    assert disk.list(DIRECTORY)["1.rdq"] == one.offset + one.length
    store.release(one)
    assert store.read(one).data == first.data
    store.release(one)
    assert store.statistics().records_now == 0
    assert store.statistics().records_shared == 1


def test_fan_out_finds_a_record_that_is_on_the_disk_already(disk: SimulatedDisk) -> None:
    store = open_store(disk, CACHED)
    one, kept = store.put(block_of(1), bytes(16))
    commit(store, disk)
    two, again = store.put(block_of(1), bytes(16))
    assert (two, again) == (one, kept)
    assert store.take() is None


def test_an_id_of_a_released_record_or_of_another_body_is_not_shared(disk: SimulatedDisk) -> None:
    store = open_store(disk)
    one, _ = store.put(block_of(1), bytes(16))
    other, kept = store.put(block_of(2), bytes(16))
    assert other != one
    assert kept.data == block_of(2).data
    store.release(other)
    third, _ = store.put(block_of(2), bytes(16))
    assert third not in (one, other)
    assert store.read(one).data == block_of(1).data
    store.check()


def test_ids_are_forgotten_in_the_order_of_their_use(disk: SimulatedDisk) -> None:
    store = open_store(disk)
    old, _ = store.put(block_of(0), b"first one's id..")
    for number in range(1, 1 + SMALL.recent_ids_max):
        store.put(block_of(number), number.to_bytes(16, "big"))
    again, _ = store.put(block_of(0), b"first one's id..")
    assert again != old


def test_references_are_counted_beyond_a_byte(disk: SimulatedDisk) -> None:
    store = open_store(disk)
    (location,) = put_all(store, disk, [block_of(1)])
    for _ in range(600):
        store.share(location)
        store.check()
    for _ in range(600):
        store.release(location)
        store.check()
    assert store.statistics().records_now == 1
    store.release(location)
    assert store.statistics().records_now == 0
    with pytest.raises(AssertionError, match="nothing refers to it"):
        store.release(location)


def test_released_before_it_is_taken_never_reaches_the_disk(disk: SimulatedDisk) -> None:
    store = open_store(disk)
    places = [store.put(block_of(number, 1000))[0] for number in range(3)]
    store.release(places[1])
    commit(store, disk)
    written = sum(len(call.data) for call in disk.log if call.name == "write")
    assert written == FILE_HEADER.size + 3 * RECORD_HEADER_BYTES + 2 * len(block_of(0, 1000).data)
    assert store.read(places[0]).data == block_of(0, 1000).data
    assert store.read(places[2]).data == block_of(2, 1000).data
    assert block_of(1, 1000).bodies()[0] not in bytes(disk.content(DIRECTORY / "1.rdq"))
    assert store.statistics().holes == 1
    assert store.statistics().garbage_bytes_now == FILE_HEADER.size + RECORD_HEADER_BYTES


def test_hole_at_the_end_of_a_file_and_at_the_end_of_a_round(disk: SimulatedDisk) -> None:
    store = open_store(disk)
    places = [store.put(block_of(number))[0] for number in range(2)]
    store.release(places[1])
    commit(store, disk)
    (after,) = put_all(store, disk, [block_of(2)])
    store = reopened(disk, [places[0], after])
    assert store.read(after).data == block_of(2).data
    with pytest.raises(CorruptError, match="released before it was written"):
        store.read(places[1])


def test_files_roll_and_a_large_record_has_one_of_its_own(disk: SimulatedDisk) -> None:
    store = open_store(disk)
    places = put_all(store, disk, [block_of(number, 1500) for number in range(5)])
    places += put_all(store, disk, [block_of(5, 9000), block_of(6, 100)])
    assert [place.file for place in places] == [1, 1, 2, 2, 3, 4, 5]
    assert all(store.read(place).bodies()[0][0] == n for n, place in enumerate(places))
    sizes = disk.list(DIRECTORY)
    assert max(size for name, size in sizes.items() if name != "4.rdq") <= 4096


def test_a_new_start_never_appends_to_an_old_file(disk: SimulatedDisk) -> None:
    (old,) = put_all(open_store(disk), disk, [block_of(1)])
    store = reopened(disk, [old])
    assert names(disk) == ["1.rdq"]
    (new,) = put_all(store, disk, [block_of(2)])
    assert new.file == 2
    assert store.read(old).data == block_of(1).data
    assert store.is_durable(old)


def test_files_with_nothing_live_are_deleted_but_not_the_newest(disk: SimulatedDisk) -> None:
    store = open_store(disk)
    places = put_all(store, disk, [block_of(number, 1500) for number in range(6)])
    store.start_collecting()
    for place in places:
        store.release(place)
    collect(store, disk)
    assert names(disk) == ["3.rdq"]
    store = reopened(disk, [])
    collect(store, disk)
    assert names(disk) == ["3.rdq"], "else its number would be used again"
    put_all(store, disk, [block_of(7)])
    collect(store, disk)
    assert names(disk) == ["4.rdq"]


def test_nothing_is_deleted_before_everything_was_shared(disk: SimulatedDisk) -> None:
    places = put_all(open_store(disk), disk, [block_of(n, 1500) for n in range(6)])
    store = open_store(disk)
    assert store.plan(0.0) is None
    store.share(places[0])
    assert collect(store, disk) == 0
    store.start_collecting()
    collect(store, disk)
    assert names(disk) == ["1.rdq", "3.rdq"]


def test_transient_store_is_empty_after_a_start_and_syncs_nothing(disk: SimulatedDisk) -> None:
    store = open_store(disk, persistent=False)
    (place,) = put_all(store, disk, [block_of(1)])
    assert store.is_durable(place)
    assert store.read(place).data == block_of(1).data
    assert not [call for call in disk.log if call.name == "sync"]
    open_store(disk, persistent=False)
    assert names(disk) == []


def test_blocks_read_again_come_from_memory(disk: SimulatedDisk) -> None:
    places = put_all(open_store(disk), disk, [block_of(n) for n in range(3)])
    store = open_store(disk, CACHED)
    for place in places:
        store.share(place)
    for _ in range(2):
        assert [store.read(p).data for p in places] == [block_of(n).data for n in range(3)]
    statistics = store.statistics()
    assert (statistics.cache_hits, statistics.cache_misses) == (3, 3)
    assert statistics.cache_bytes_now == sum(len(block_of(n).data) for n in range(3))
    assert statistics.memory_bytes_now > statistics.cache_bytes_now
    for place in places:
        store.release(place)
    assert store.statistics().cache_bytes_now == 0


def test_references_to_a_lost_file_are_counted_and_reading_fails(disk: SimulatedDisk) -> None:
    store = open_store(disk)
    lost = RecordLocation(7, 3, 1000, 300)
    store.share(lost)
    with pytest.raises(CorruptError, match="not there"):
        store.read(lost)
    assert not store.is_durable(lost)
    store.start_collecting()
    (new,) = put_all(store, disk, [block_of(1)])
    assert new.file == 8
    store.release(lost)
    collect(store, disk)
    assert store.read(new).data == block_of(1).data


@pytest.mark.parametrize("at", [2, RECORD_HEADER_BYTES + 30], ids=["header", "payload"])
def test_damaged_record_is_told_from_the_good_ones(disk: SimulatedDisk, at: int) -> None:
    places = put_all(open_store(disk), disk, [block_of(n) for n in range(3)])
    disk.content(DIRECTORY / "1.rdq")[places[1].offset + at] ^= 1
    store = reopened(disk, places)
    with pytest.raises(CorruptError) as caught:
        store.read(places[1])
    report = caught.value.report
    assert (report.offset, report.length) == (places[1].offset, places[1].length)
    assert store.read(places[2]).data == block_of(2).data


def test_damaged_file_header_costs_nothing(disk: SimulatedDisk) -> None:
    places = put_all(open_store(disk), disk, [block_of(n) for n in range(3)])
    disk.content(DIRECTORY / "1.rdq")[:32] = bytes(32)
    store = reopened(disk, places)
    assert [store.read(p).data for p in places] == [block_of(n).data for n in range(3)]


def test_wrong_location_is_not_taken_for_another_record(disk: SimulatedDisk) -> None:
    places = put_all(open_store(disk), disk, [block_of(n) for n in range(3)])
    store = reopened(disk, places)
    first = places[0]
    for wrong in (
        RecordLocation(1, 0, first.offset + 1, first.length),
        RecordLocation(1, 0, first.offset, first.length - 1),
        RecordLocation(1, 0, first.offset, first.length + 1),
        RecordLocation(1, 0, 1 << 20, first.length),
    ):
        with pytest.raises(CorruptError):
            store.read(wrong)


def test_several_rounds_may_be_on_their_way(disk: SimulatedDisk) -> None:
    store = open_store(disk)
    jobs = []
    places = []
    for number in range(3):
        places.append(store.put(block_of(number))[0])
        job = store.take()
        assert job is not None
        jobs.append(job)
    store.release(places[1])
    for job in jobs:
        write(disk, job)
        store.committed(job)
        store.check()
    assert store.read(places[2]).data == block_of(2).data
    assert store.statistics().holes == 0


def test_real_files(tmp_path: Path) -> None:
    files = FileDisk()
    try:
        directory = tmp_path / "messages" / "persistent"
        store = open_store(files, directory=directory)
        places = [store.put(block_of(n, 1000))[0] for n in range(10)]
        store.release(places[3])
        commit(store, files)
        store = open_store(files, directory=directory)
        for n, place in enumerate(places):
            if n != 3:
                store.share(place)
                assert store.read(place).data == block_of(n, 1000).data
        store.start_collecting()
        collect(store, files)
    finally:
        files.close()
