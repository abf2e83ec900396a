"""Damage that a start finds in a queue's files: reported, put aside, never believed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from expected_logs import DAMAGE
from node.tests.storage.queue import fuzz_recovery
from node.tests.storage.queue.hand_made import (
    HERE,
    Journal,
    Segment,
    check,
    deltas,
    entries,
    folder,
    recovered,
    stored_at,
    unfolded,
)

from ringmq_base.ranges import RangeSet
from ringmq_node.queue.block import Block
from ringmq_node.storage.format.queue_folder import SEGMENT_POSITIONS
from ringmq_node.storage.format.record_file import HEAD_BYTES_MAX
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    RECORD_HEADER_BYTES,
    RecordKind,
    owner_of,
)
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.queue.entries import QueueFile
from ringmq_node.storage.queue.loading import load_segment
from ringmq_node.storage.queue.recovery import recover

pytestmark = pytest.mark.may_log(DAMAGE)


def test_damage_to_a_folded_segment_is_reported_when_it_is_unfolded() -> None:
    segment = Segment()
    a = segment.entry(0, b"a")
    b = segment.entry(1, b"b")
    c = segment.entry(2, b"c")
    disk = folder({"0.idx": segment, "journal.jif": Journal(live=[(0, 2)])})
    found = recovered(disk)
    content = disk.content(HERE / "0.idx")
    content[b + 20] ^= 1
    loaded, reports = load_segment(disk, found.segments[0], found.state.live, RangeSet(), ())
    assert [entry.offset for entry in loaded] == [a, c]
    assert [(report.offset, report.length) for report in reports] == [(b, c - b)]
    content[:40] = bytes(40)
    loaded, reports = load_segment(disk, found.segments[0], found.state.live, RangeSet(), ())
    assert loaded == []
    assert [report.offset for report in reports] == [0]


def test_record_above_any_window_is_checked_in_pieces() -> None:
    body = bytes(HEAD_BYTES_MAX + 1)
    journal = Journal()
    journal.publish(0, body, b"small")
    journal.publish(2, b"next")
    found = recovered(folder({"journal.jif": journal}))
    assert entries(found) == [(0, 1), (2, 2)]
    assert found.body_bytes == len(body) + 9
    journal.data[len(body) // 2] ^= 1
    assert recovered(folder({"journal.jif": journal})).torn_bytes


@pytest.mark.parametrize("gap", [1, 43, 44, (1 << 20) - 44, 1 << 20, 3 << 20])
def test_next_record_behind_damage_is_found_wherever_it_is(gap: int) -> None:
    segment = Segment()
    segment.entry(0, b"a")
    bad = len(segment.data)
    # Markers, but no headers.
    segment.data += (segment.marker.to_bytes(4, "little") + bytes(57)) * (gap // 61)
    segment.data += bytes(gap % 61)
    segment.entry(1, b"b")
    found = recovered(folder({"0.idx": segment, "journal.jif": Journal(live=[(0, 1)])}))
    assert deltas(found) == {0: (2, 2, False)}
    assert [(report.offset, report.length) for report in found.corruptions] == [(bad, gap)]


# -- bodies that were fetched again


def test_body_that_was_fetched_again_counts_and_not_the_damaged_one() -> None:
    """A start doesn't see that a body is damaged. That it was missing once shows it."""
    segment = Segment()
    old = segment.entry(0, b"a", b"damaged", b"c", generation=2)
    segment.data[old + RECORD_HEADER_BYTES + 24] ^= 1
    journal = Journal(live=[(0, 2), (20_000, 20_000)])
    for first in (1, 20_000):
        data = Block.of([b"fetched"]).data
        journal.add(RecordKind.FILL, data, number=first, epoch=journal.number)
    found = recovered(folder({"0.idx": segment, "journal.jif": journal}))
    assert [(entry.first, entry.last, entry.offset == old) for entry in found.index] == [
        (0, 0, True),
        (1, 1, False),
        (2, 2, True),
        (20_000, 20_000, False),
    ]
    # When its journal has been flushed, it is the later one in the segment.
    new = segment.entry(1, b"fetched", generation=5)
    disk = folder({"0.idx": segment, "journal.jif": Journal(6, live=[(0, 2)])})
    found = recovered(disk)
    assert [(first, last, at) for first, last, _, at in unfolded(disk, found)] == [
        (0, 0, old),
        (1, 1, new),
        (2, 2, old),
    ]


# -- tables


def set_u32(at: int, value: int) -> Callable[[Segment, int], None]:
    def change(segment: Segment, offset: int) -> None:
        place = offset + RECORD_HEADER_BYTES + at
        segment.data[place : place + 4] = value.to_bytes(4, "little")

    return change


TABLES = {
    "magic": set_u32(0, 0x12345678),
    "properties kind": set_u32(0, 0x09014252),
    "no messages": set_u32(4, 0),
    "more messages": set_u32(4, 3),
    "a million messages": set_u32(4, 1 << 20),
    "all messages": set_u32(4, 0xFFFF_FFFF),
    "a longer body": set_u32(8, 7),
    "an endless body": set_u32(12, 0xFFFF_FFFF),
}


@pytest.mark.parametrize("change", TABLES.values(), ids=TABLES)
def test_table_that_does_not_add_up_is_damage(change: Callable[[Segment, int], None]) -> None:
    segment = Segment()
    segment.entry(0, b"a")
    bad = segment.entry(1, b"bb", b"cc")
    segment.entry(3, b"d")
    change(segment, bad)
    found = recovered(folder({"0.idx": segment, "journal.jif": Journal(live=[(0, 3)])}))
    assert [report.offset for report in found.corruptions] == [bad]
    assert [*found.missing] == [(1, 2)]


def test_table_of_references_is_always_checked_whole() -> None:
    segment = Segment()
    bad = segment.stored(0, stored_at(7, 2))
    segment.stored(2, stored_at(8, 2))
    # The ordinal: nothing that the table itself would show.
    segment.data[bad + RECORD_HEADER_BYTES + 8] ^= 1
    referred: list[RecordLocation] = []
    disk = folder({"0.idx": segment, "journal.jif": Journal(live=[(0, 3)])})
    found = recover(disk, HERE, referred.append)
    check(found)
    assert [place.ordinal for place in referred] == [8]
    assert [report.offset for report in found.corruptions] == [bad]
    assert [*found.missing] == [(0, 1)]


def test_positions_of_another_segment_are_damage() -> None:
    segment = Segment(1)
    good = SEGMENT_POSITIONS
    for first in (0, good - 1, 2 * good - 1, 1 << 63):
        segment.entry(first, b"a", b"b")
    segment.entry(good, b"c")
    found = recovered(folder({"1.idx": segment, "journal.jif": Journal(live=[(0, good)])}))
    assert len(found.corruptions) == 4
    assert deltas(found) == {1: (1, 1, False)}
    assert [*found.missing] == [(0, good - 1)]


# -- files that don't belong there


def test_file_of_another_queue_is_set_aside() -> None:
    other = owner_of(HERE.with_name("another"))
    for damage in (None, 16):
        segment, journal = Segment(owner=other), Journal(live=[(0, 0)], owner=other)
        segment.entry(0, b"theirs")
        for file in (segment, journal):
            if damage is not None:
                file.data[damage] ^= 1
        disk = folder({"0.idx": segment, "journal.jif": journal})
        found = recovered(disk)
        assert found.damaged
        assert len(found.corruptions) == 2
        assert not found.state.live
        assert sorted(disk.list(HERE)) == ["0.idx.bad", "1.jif.bad"]


def test_file_under_another_name_is_set_aside() -> None:
    segment = Segment(0)
    segment.entry(0, b"a")
    journal = Journal(5, live=[(0, 1)])
    sealed = Journal(3)
    disk = folder({"1.idx": segment, "4.jif": sealed, "journal.jif": journal})
    found = recovered(disk)
    assert [report.what for report in found.corruptions] == [
        "this is journal 3",
        "this is segment 0",
    ]
    # The newest journal is there, with all of the state.
    assert not found.damaged
    assert [*found.missing] == [(0, 1)]


def test_names_that_nobody_gives_are_left_alone() -> None:
    names = ["00.idx", "-1.idx", "\u0663.idx", "01.jif", "9" * 20 + ".jif", "x.jif", "1.jif.bad.x"]
    disk = folder({"journal.jif": Journal(live=[(0, 0)]), **dict.fromkeys(names, b"?")})
    found = recovered(disk)
    assert not found.corruptions
    assert {*names} < {*disk.list(HERE)}


def test_segment_of_which_nothing_can_be_read_is_set_aside() -> None:
    segment = Segment()
    segment.entry(0, b"a")
    for damage in (FILE_HEADER.size + 5, FILE_HEADER.size + 25):
        data = bytearray(segment.data)
        data[damage] ^= 1
        disk = folder({"0.idx": bytes(data), "journal.jif": Journal(live=[(0, 0)])})
        found = recovered(disk)
        assert found.segments == {}
        assert [*found.missing] == [(0, 0)]
        assert found.corruptions
        assert not found.damaged


# -- again and again


def test_unreadable_journal_keeps_the_queue_damaged_until_a_later_one_is_there() -> None:
    sealed = Journal(5, live=[(0, 0)])
    sealed.publish(1, b"b")
    disk = folder({"5.jif": sealed, "journal.jif": b"not a journal, and never was one"})
    first = recovered(disk)
    for _ in range(2):
        again = recovered(disk)
        assert again.damaged
        assert again.corruptions
        assert again.next_generation == first.next_generation == 7
        assert again.state.digest() == first.state.digest()
    later = Journal(7, live=[(0, 1)])
    disk.write(HERE / "journal.jif", 0, [bytes(later.data)])
    after = recovered(disk)
    assert not after.damaged
    assert not after.corruptions
    assert after.next_generation == 8


def test_lost_journal_of_a_queue_without_another_is_not_forgotten() -> None:
    """Else the second start would have found a new queue, empty and sound."""
    segment = Segment()
    segment.entry(0, b"a")
    for name in ("journal.jif", "7.idx"):
        disk = folder({"0.idx": segment, name: bytes(500)})
        for _ in range(3):
            assert recovered(disk).damaged
        disk = folder({name: bytes(500)})
        for _ in range(3):
            assert recovered(disk).damaged


def test_current_journal_older_than_a_sealed_one_is_not_believed() -> None:
    sealed = Journal(6, live=[(0, 3)])
    disk = folder({"6.jif": sealed, "journal.jif": Journal(2, live=[(0, 9)])})
    for _ in range(2):
        found = recovered(disk)
        assert found.damaged
        assert [*found.state.live] == [(0, 3)]
        assert found.current is None


# -- any damage


@pytest.mark.parametrize("seed", range(2))
def test_fuzzer_finds_nothing_in_a_few_cases(seed: int) -> None:
    rng = random.Random(seed)
    directories = fuzz_recovery.write_directories(seed, steps=80)
    for _ in range(25):
        fuzz_recovery.run_case(rng.choice(directories), rng.getrandbits(32))


def test_data_file_of_a_segment_says_where_it_ends() -> None:
    segment = Segment()
    segment.entry(0, b"a", generation=3)
    segment.entry(1, b"b", generation=2)
    found = recovered(folder({"0.idx": segment, "journal.jif": Journal(live=[(0, 1)])}))
    file = found.segments[0]
    assert isinstance(file, QueueFile)
    assert (file.end, file.synced, file.oldest_generation) == (len(segment.data),) * 2 + (2,)
