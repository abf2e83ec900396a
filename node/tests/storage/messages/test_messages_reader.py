"""What an operator is told of data files and maps, sound and damaged."""

from __future__ import annotations

import zlib
from array import array
from functools import partial

import pytest
from node.tests.storage.messages.bench import (
    DIRECTORY,
    block_of,
    collect,
    commit,
    names,
    open_store,
    put_all,
)
from node.tests.storage.simulated_disk import SimulatedDisk

from ringmq_node.queue.block import Block
from ringmq_node.storage.errors import UnsupportedFormatError
from ringmq_node.storage.format.records import FILE_HEADER, RECORD_HEADER_BYTES, RecordKind
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.messages import relocation
from ringmq_node.storage.messages.reader import (
    DataFileReport,
    StoredRecord,
    records_of,
    verify_file,
    verify_map,
)

NAME = "1.rdq"
PATH = DIRECTORY / NAME


def verified(data: bytes, proven: int = 0) -> DataFileReport:
    return verify_file(NAME, len(data), partial(_piece, data), proven=proven)


def listed(data: bytes) -> list[StoredRecord]:
    return [*records_of(NAME, len(data), partial(_piece, data))]


def _piece(data: bytes, offset: int, size: int) -> bytes:
    return data[offset : offset + size]


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def places(disk: SimulatedDisk) -> list[RecordLocation]:
    """Two rounds of two records each in the first file."""
    store = open_store(disk)
    places = put_all(store, disk, [block_of(1), block_of(2)])
    return places + put_all(store, disk, [block_of(3), block_of(4)])


def test_records_are_listed_with_their_ids_and_counts(disk: SimulatedDisk) -> None:
    store = open_store(disk)
    message_id = bytes(range(16))
    first, _ = store.put(Block.of([b"a", b"b", b"c"]), message_id)
    hole, _ = store.put(block_of(1))
    last, _ = store.put(block_of(2))
    store.release(hole)
    commit(store, disk)
    one, two, three = listed(bytes(disk.content(PATH)))
    assert (one.ordinal, one.offset, one.length) == (0, first.offset, first.length)
    assert (one.kind, one.message_id, one.messages) == (RecordKind.MESSAGE, message_id, 3)
    assert (two.ordinal, two.kind, two.length) == (1, RecordKind.HOLE, hole.length)
    assert (three.ordinal, three.offset) == (2, last.offset)
    assert all(record.valid for record in (one, two, three))
    report = verified(bytes(disk.content(PATH)))
    assert (report.records, report.holes, report.messages) == (2, 1, 4)
    assert report.sound
    assert report.record_bytes + report.hole_bytes + FILE_HEADER.size == report.size_bytes


def test_a_hole_may_go_beyond_the_end_of_the_file(disk: SimulatedDisk) -> None:
    store = open_store(disk)
    store.put(block_of(1))
    hole, _ = store.put(block_of(2))
    store.release(hole)
    commit(store, disk)
    data = bytes(disk.content(PATH))
    assert len(data) == hole.offset + RECORD_HEADER_BYTES
    report = verified(data)
    assert (report.records, report.holes, report.torn_bytes, report.sound) == (1, 1, 0, True)


def test_every_torn_tail_is_one(disk: SimulatedDisk, places: list[RecordLocation]) -> None:
    data = bytes(disk.content(PATH))
    for end in range(places[2].offset, len(data)):
        report = verified(data[:end])
        assert report.sound, end
        whole = sum(place.offset + place.length <= end for place in places)
        assert report.records == whole
        last = places[whole - 1]
        assert report.torn_bytes == end - last.offset - last.length


@pytest.mark.parametrize("at", range(0, 256, 5))
def test_damage_in_what_was_synced_is_corruption(
    disk: SimulatedDisk, places: list[RecordLocation], at: int
) -> None:
    data = disk.content(PATH)
    data[places[1].offset + at] ^= 0x10
    report = verified(bytes(data))
    assert not report.sound
    assert report.first_bad is not None
    assert (report.first_bad.offset, report.first_bad.length) == (
        places[1].offset,
        places[1].length,
    )
    assert (report.records, report.torn_bytes) == (3, 0)
    behind = listed(bytes(data))[-1]
    assert behind.ordinal == (None if at < RECORD_HEADER_BYTES else 3)


def test_a_map_proves_what_it_leads_to(disk: SimulatedDisk) -> None:
    store = open_store(disk)
    store.start_collecting()
    places = put_all(store, disk, [block_of(n, 900) for n in range(13)])
    for n in (1, 2, 3, 5, 6, 7, 9, 10, 11):
        store.release(places[n])
    collect(store, disk)
    target = max(name for name in names(disk) if name.endswith(".rdq"))
    data = disk.content(DIRECTORY / target)
    assert verified(bytes(data)).records == 3
    proven = 0
    for number in (1, 2, 3):
        name = f"{number}.map"
        moved = verify_map(name, number, bytes(disk.content(DIRECTORY / name)))
        assert (moved.sound, moved.entries, moved.lost) == (True, 1, 0)
        (leads_to,) = moved.proven
        assert f"{leads_to}.rdq" == target
        proven = max(proven, moved.proven[leads_to])
    data[FILE_HEADER.size + places[0].length + 3] ^= 1
    assert verified(bytes(data)).sound, "by itself it can't be told from a torn tail"
    report = verified(bytes(data), proven)
    assert [bad.offset for bad in report.corruptions] == [FILE_HEADER.size + places[0].length]


def test_damaged_maps_are_told(disk: SimulatedDisk) -> None:
    table = relocation.Table(*(array("I", [1, 2, 3]) for _ in range(4)))
    data = relocation.encode(7, table)
    assert verify_map("7.map", 7, data).sound
    assert not verify_map("8.map", 8, data).sound
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        assert not verify_map("7.map", 7, bytes(damaged)).sound, at
        assert not verify_map("7.map", 7, data[:at]).sound, at


def test_damaged_file_headers_are_told(disk: SimulatedDisk, places: list[RecordLocation]) -> None:
    data = bytes(disk.content(PATH))
    report = verified(bytes(32) + data[32:])
    assert report.records == 4
    assert [(bad.offset, bad.length) for bad in report.corruptions] == [(0, 32)]
    nothing = verified(bytes(len(data)))
    assert (nothing.records, nothing.torn_bytes) == (0, len(data))
    assert not verified(bytes(len(data)), proven=100).sound
    assert verified(b"").sound


def test_another_version_is_refused(disk: SimulatedDisk, places: list[RecordLocation]) -> None:
    data = disk.content(PATH)
    data[8] = 9
    data[24:28] = zlib.crc32(bytes(data[:24])).to_bytes(4, "little")
    with pytest.raises(UnsupportedFormatError, match="version 9"):
        verified(bytes(data))


def test_a_data_file_inside_a_message_is_no_record(
    disk: SimulatedDisk, places: list[RecordLocation]
) -> None:
    data = bytes(disk.content(PATH))
    second = SimulatedDisk()
    put_all(open_store(second), second, [Block.of([data]), block_of(2)])
    copied = second.content(PATH)
    assert verified(bytes(copied)).records == 2
    copied[FILE_HEADER.size + 9] ^= 1
    assert len(listed(bytes(copied))) == 2
