"""The choices of compaction, its moves, and the files that it removes."""

from __future__ import annotations

from node.tests.storage.messages.checked_store import SIZE, CheckedStore
from node.tests.storage.messages.verbs import (
    block_of,
    collect,
    commit,
    names,
    open_store,
    put_all,
    step,
)
from node.tests.storage.simulated_disk import SimulatedDisk

from ringmq_node.storage.limits import StoreLimits
from ringmq_node.storage.messages import compact
from ringmq_node.storage.messages.steps import CopyJob, PublishJob


def test_live_records_of_files_anywhere_go_into_one_new_file(stored: CheckedStore) -> None:
    stored.keep(0, 9, 10, 11, 8, 21, 24)
    collect(stored.store, stored.disk)
    # File 3 (records 8 to 11) is full, so it stays; of 1 and 6 one record each has moved.
    assert names(stored.disk) == ["1.map", "3.rdq", "6.map", "7.rdq", "8.rdq"]
    stored.check()
    statistics = stored.store.statistics()
    assert statistics.compactions == 1
    assert statistics.maps_now == 2
    stored.restart()


def test_moved_records_are_released_by_their_old_location(stored: CheckedStore) -> None:
    stored.keep(0, 5, 10, 15, 20)
    collect(stored.store, stored.disk)
    assert names(stored.disk)[0] == "1.map"
    stored.store.share(stored.live[5])
    stored.store.release(stored.live[5])
    stored.check()
    stored.keep(5)
    collect(stored.store, stored.disk)
    # The other records of the file that 5 was moved to are garbage: 5 has moved once more.
    assert names(stored.disk) == ["10.rdq", "2.map", "7.rdq"]
    stored.check()
    stored.keep()
    collect(stored.store, stored.disk)
    assert names(stored.disk) == ["10.rdq", "7.rdq"], "the newest stays, and the one written to"
    stored.put(30)
    assert stored.live[30].file == 7
    stored.restart()
    stored.put(31)
    assert stored.live[31].file == 11
    collect(stored.store, stored.disk)
    assert names(stored.disk) == ["11.rdq", "7.rdq"]
    stored.check()


def test_moved_records_are_moved_again_and_maps_lead_there_at_once(stored: CheckedStore) -> None:
    stored.keep(0, 5, 10, 15)
    collect(stored.store, stored.disk)
    assert "8.rdq" in names(stored.disk)
    stored.keep(10)
    for number in range(30, 42):
        stored.put(number)
    stored.keep(10, 30, 36, 41)
    collect(stored.store, stored.disk)
    assert "8.rdq" not in names(stored.disk)
    assert "8.map" not in names(stored.disk), "no location names a file that compaction wrote"
    assert "3.map" in names(stored.disk)
    stored.check()
    stored.restart()
    collect(stored.store, stored.disk)
    stored.check()


def test_record_released_while_it_is_copied_is_garbage_at_its_new_place(
    stored: CheckedStore,
) -> None:
    stored.keep(0, 1, 4, 8, 12, 16)
    stored.steps_until(CopyJob)
    stored.release(0)
    job = stored.store.plan(1e9) or stored.store.plan(stored.store.next_plan_at or 0)
    assert isinstance(job, CopyJob)
    stored.release(4)
    compact(stored.disk, job)
    stored.store.done(job)
    stored.check()
    stored.release(12)
    stored.steps_until(PublishJob)
    stored.check()
    stored.restart()


def test_all_released_while_a_compaction_is_under_way(stored: CheckedStore) -> None:
    stored.keep(0, 4, 8, 12)
    stored.steps_until(CopyJob)
    stored.steps_until(CopyJob)
    stored.keep()
    collect(stored.store, stored.disk)
    stored.check()
    assert all(name.endswith(".rdq") for name in names(stored.disk))


def test_released_while_the_maps_are_written(stored: CheckedStore) -> None:
    stored.keep(0, 4, 8, 12)
    for _ in range(100):
        job = stored.store.plan(1e9) or stored.store.plan(stored.store.next_plan_at or 0)
        assert job is not None
        compact(stored.disk, job)
        if isinstance(job, PublishJob):
            stored.release(4)
        stored.store.done(job)
        stored.check()
        if isinstance(job, PublishJob):
            break
    collect(stored.store, stored.disk)
    stored.check()
    stored.restart()


def test_one_nearly_empty_file_does_not_wait_for_others_to_become_garbage(
    stored: CheckedStore,
) -> None:
    for number in (0, 1, 2):
        stored.release(number)
    collect(stored.store, stored.disk)
    assert names(stored.disk)[0] == "1.map"
    stored.check()


def test_half_full_files_among_full_ones_are_left_alone(stored: CheckedStore) -> None:
    for number in (0, 1, 4, 5):
        stored.release(number)
    assert collect(stored.store, stored.disk) == 0


def test_copying_keeps_to_its_rate_and_its_pieces(stored: CheckedStore) -> None:
    stored.limits = StoreLimits(
        store_file_bytes_max=4096, compaction_piece_bytes_max=500, compaction_bytes_per_s_max=100
    )
    stored.restart()
    stored.keep(0, 1, 4, 5, 8, 9)
    now = 50.0
    waits = 0
    for _ in range(40):
        job = stored.store.plan(now)
        if job is None:
            if stored.store.next_plan_at is None:
                break
            assert stored.store.plan(stored.store.next_plan_at - 0.01) is None
            now = stored.store.next_plan_at
            waits += 1
            continue
        assert stored.store.plan(now) is None, "one at a time"
        compact(stored.disk, job)
        stored.store.done(job)
        if isinstance(job, CopyJob):
            assert job.bytes_copied <= 500 + SIZE
    assert waits >= 3
    assert now - 50.0 >= (stored.store.statistics().moved_bytes - 2000) / 100
    stored.check()


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
    stored = CheckedStore(disk, 100)
    for number in range(0, 100, 2):
        del stored.live[number]
    stored.restart()
    collect(stored.store, stored.disk)
    stored.check()
    assert stored.store.statistics().records_now == 50
    stored.live.clear()
    stored.restart()
    collect(stored.store, stored.disk)
    assert stored.store.statistics().records_now == 0
    assert len(names(disk)) == 1
    stored.put(1)
    stored.check()
