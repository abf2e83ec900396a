"""Compaction of damaged files, and the files that a compaction cut short has left."""

from __future__ import annotations

import pytest
from node.tests.storage.messages.checked_store import SIZE, CheckedStore
from node.tests.storage.messages.verbs import (
    DIRECTORY,
    block_of,
    collect,
    names,
    open_store,
)

from ringmq_node.storage.errors import CorruptError
from ringmq_node.storage.messages.steps import PublishJob


def test_damaged_payload_is_reported_and_lost_and_the_rest_moves(stored: CheckedStore) -> None:
    bad = stored.live[5]
    stored.keep(0, 5, 7, 10)
    stored.disk.content(DIRECTORY / f"{bad.file}.rdq")[bad.offset + 60] ^= 4
    collect(stored.store, stored.disk)
    assert "2.rdq" not in names(stored.disk)
    (report,) = stored.store.corruptions
    assert (report.offset, report.length) == (bad.offset, bad.length)
    assert report.file.endswith("2.rdq")
    del stored.live[5]
    stored.store.share(bad)
    stored.store.release(bad)
    with pytest.raises(CorruptError, match="lost"):
        stored.store.read(bad)
    again = open_store(stored.disk)
    for location in (bad, *stored.live.values()):
        again.share(location)
    again.start_collecting()
    with pytest.raises(CorruptError, match="lost"):
        again.read(bad)
    for number, location in stored.live.items():
        assert again.read(location).data == block_of(number, SIZE).data
    again.release(bad)
    collect(again, stored.disk)


def test_after_a_damaged_header_the_file_is_left_alone(stored: CheckedStore) -> None:
    bad = stored.live[5]
    stored.keep(0, 4, 6, 10)
    stored.disk.content(DIRECTORY / f"{bad.file}.rdq")[bad.offset + 9] ^= 4
    collect(stored.store, stored.disk)
    assert "2.rdq" in names(stored.disk)
    assert "1.rdq" not in names(stored.disk)
    assert len(stored.store.corruptions) == 1
    stored.check()
    collect(stored.store, stored.disk)
    assert len(stored.store.corruptions) == 1, "it is not tried again"
    stored.keep(0, 10)
    collect(stored.store, stored.disk)
    assert "2.rdq" not in names(stored.disk)
    stored.restart()


def test_damaged_header_behind_all_that_lives_does_not_matter(stored: CheckedStore) -> None:
    bad = stored.live[7]
    stored.keep(0, 4, 10)
    stored.disk.content(DIRECTORY / f"{bad.file}.rdq")[bad.offset + 9] ^= 4
    collect(stored.store, stored.disk)
    assert "2.rdq" not in names(stored.disk)
    assert not stored.store.corruptions
    stored.check()


@pytest.mark.parametrize("at", [0, 13, 20, 28, 40], ids=lambda at: f"byte {at}")
def test_damaged_map_is_reported_and_its_records_can_not_be_read(
    stored: CheckedStore, at: int
) -> None:
    stored.keep(0, 1, 4, 8)
    collect(stored.store, stored.disk)
    stored.disk.content(DIRECTORY / "1.map")[at] ^= 1
    store = open_store(stored.disk)
    (report,) = store.corruptions
    assert report.file.endswith("1.map")
    for location in stored.live.values():
        store.share(location)
    store.start_collecting()
    for number, location in stored.live.items():
        if location.file == 1:
            with pytest.raises(CorruptError):
                store.read(location)
        else:
            assert store.read(location).data == block_of(number, SIZE).data
    for number in (0, 1):
        store.release(stored.live.pop(number))
    collect(store, stored.disk)
    assert "1.map" not in names(stored.disk)


def test_data_file_counts_if_there_is_a_map_beside_it(stored: CheckedStore) -> None:
    stored.keep(0, 4, 8)
    stored.steps_until(PublishJob)
    assert {"1.rdq", "1.map"} <= {*names(stored.disk)}
    target = max(int(name[:-4]) for name in names(stored.disk))
    stored.disk.remove(DIRECTORY / f"{target}.rdq")
    stored.restart()
    assert "1.map" not in names(stored.disk)


def test_a_file_half_made_is_removed_at_the_start(stored: CheckedStore) -> None:
    stored.disk.write(DIRECTORY / "1.map.new", 0, [b"RINGMQ-R"])
    stored.disk.write(DIRECTORY / "notes.txt", 0, [b"not ours"])
    stored.restart()
    assert "1.map.new" not in names(stored.disk)
    assert "notes.txt" in names(stored.disk)
