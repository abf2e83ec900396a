"""The data files of a message store, read offline: sound, torn and damaged, byte by byte."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import pytest
from node.tests.storage.messages.verbs import (
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
from ringmq_node.storage.format.records import FILE_HEADER, RECORD_HEADER_BYTES
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.messages import relocation
from ringmq_node.storage.offline.body_files import BodyFile, BodyFiles
from ringmq_node.storage.offline.faults import Fault, Findings

NAME = "1.rdq"
PATH = DIRECTORY / NAME


@dataclass(frozen=True)
class Checked:
    file: BodyFile
    faults: list[Fault]

    @property
    def messages(self) -> int:
        return sum(self.file.counts)

    @property
    def readable(self) -> int:
        """Records whose messages can be read."""
        return sum(count > 0 for count in self.file.counts)


def check(data: bytes, *, sealed: bool = False) -> Checked:
    """`sealed`: a map leads to the file, so that it was durable to the end."""
    disk = SimulatedDisk()
    disk.write(PATH, 0, [data])
    findings = Findings(DIRECTORY)
    files = BodyFiles(disk, DIRECTORY, findings, {1} if sealed else set())
    return Checked(files.check(1, len(data)), findings.faults)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def places(disk: SimulatedDisk) -> list[RecordLocation]:
    """Two rounds of two records each in the first file."""
    store = open_store(disk)
    places = put_all(store, disk, [block_of(1), block_of(2)])
    return places + put_all(store, disk, [block_of(3), block_of(4)])


def test_records_and_holes_have_their_offsets_and_counts(disk: SimulatedDisk) -> None:
    store = open_store(disk)
    first, _ = store.put(Block.of([b"a", b"b", b"c"]), bytes(range(16)))
    hole, _ = store.put(block_of(1))
    last, _ = store.put(block_of(2))
    store.release(hole)
    commit(store, disk)
    found = check(bytes(disk.content(PATH)))
    assert [*found.file.offsets] == [first.offset, hole.offset, last.offset]
    lengths = [place.length - RECORD_HEADER_BYTES for place in (first, hole, last)]
    assert [*found.file.lengths] == lengths
    assert [*found.file.counts] == [3, 0, 1]
    assert (found.file.holes, found.faults) == (1, [])


def test_a_hole_may_go_beyond_the_end_of_the_file(disk: SimulatedDisk) -> None:
    store = open_store(disk)
    store.put(block_of(1))
    hole, _ = store.put(block_of(2))
    store.release(hole)
    commit(store, disk)
    data = bytes(disk.content(PATH))
    assert len(data) == hole.offset + RECORD_HEADER_BYTES
    found = check(data)
    assert (found.readable, found.file.holes, found.file.torn_bytes) == (1, 1, 0)
    assert not found.faults


def test_a_file_cut_off_anywhere_in_its_last_round_has_a_torn_tail(
    disk: SimulatedDisk, places: list[RecordLocation]
) -> None:
    data = bytes(disk.content(PATH))
    for end in range(places[2].offset, len(data)):
        found = check(data[:end])
        assert not found.faults, end
        whole = sum(place.offset + place.length <= end for place in places)
        assert found.readable == whole
        last = places[whole - 1]
        assert found.file.torn_bytes == end - last.offset - last.length


@pytest.mark.parametrize("at", range(0, 256, 5))
def test_damage_below_a_synced_offset_is_corruption(
    disk: SimulatedDisk, places: list[RecordLocation], at: int
) -> None:
    data = disk.content(PATH)
    data[places[1].offset + at] ^= 0x10
    found = check(bytes(data))
    (fault,) = found.faults
    assert (fault.offset, fault.length) == (places[1].offset, places[1].length)
    assert (found.readable, found.file.torn_bytes) == (3, 0)
    # Behind a damaged header the ordinals are not known.
    assert found.file.ordered == (1 if at < RECORD_HEADER_BYTES else None)


def test_a_map_proves_the_file_that_it_leads_to(disk: SimulatedDisk) -> None:
    store = open_store(disk)
    store.start_collecting()
    places = put_all(store, disk, [block_of(n, 900) for n in range(13)])
    for n in (1, 2, 3, 5, 6, 7, 9, 10, 11):
        store.release(places[n])
    collect(store, disk)
    target = max(name for name in names(disk) if name.endswith(".rdq"))
    for number in (1, 2, 3):
        name = f"{number}.map"
        table = relocation.decode(name, number, bytes(disk.content(DIRECTORY / name)))
        assert {f"{file}.rdq" for file in table.files} == {target}
    path = DIRECTORY / target
    damaged = bytearray(disk.content(path))
    damaged[FILE_HEADER.size + places[0].length + 3] ^= 1
    disk.remove(path)
    disk.write(path, 0, [bytes(damaged)])
    for sealed, offsets in ((False, []), (True, [FILE_HEADER.size + places[0].length])):
        findings = Findings(DIRECTORY)
        number = int(path.stem)
        files = BodyFiles(disk, DIRECTORY, findings, {number} if sealed else set())
        files.check(number, len(damaged))
        # By itself the file can't tell this damage from a torn tail.
        assert [fault.offset for fault in findings.faults] == offsets


def test_a_damaged_file_header_costs_no_record(
    disk: SimulatedDisk, places: list[RecordLocation]
) -> None:
    data = bytes(disk.content(PATH))
    found = check(bytes(32) + data[32:])
    assert found.readable == 4
    assert [(fault.offset, fault.length) for fault in found.faults] == [(0, 32)]


def test_a_file_of_zeros_is_a_fault_and_an_empty_one_is_not(
    disk: SimulatedDisk, places: list[RecordLocation]
) -> None:
    size = len(disk.content(PATH))
    zeros = check(bytes(size))
    assert [(fault.offset, fault.length) for fault in zeros.faults] == [(0, size)]
    assert not check(b"").faults


def test_another_version_is_refused(disk: SimulatedDisk, places: list[RecordLocation]) -> None:
    data = disk.content(PATH)
    data[8] = 9
    data[24:28] = zlib.crc32(bytes(data[:24])).to_bytes(4, "little")
    with pytest.raises(UnsupportedFormatError, match="version 9"):
        check(bytes(data))


def test_a_data_file_inside_a_message_is_no_record(
    disk: SimulatedDisk, places: list[RecordLocation]
) -> None:
    data = bytes(disk.content(PATH))
    second = SimulatedDisk()
    put_all(open_store(second), second, [Block.of([data]), block_of(2)])
    copied = second.content(PATH)
    assert check(bytes(copied)).readable == 2
    copied[FILE_HEADER.size + 9] ^= 1
    assert check(bytes(copied)).readable == 1
