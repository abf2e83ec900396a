"""Torn tails of segments and journals: proofs that a record was durable, and the cut."""

from __future__ import annotations

import pytest
from expected_logs import DAMAGE
from node.tests.storage.queue.hand_made import (
    HERE,
    Journal,
    Segment,
    deltas,
    entries,
    folder,
    recovered,
    stored_at,
)

from ringmq_node.storage.format.checkpoint import Cut
from ringmq_node.storage.format.records import (
    FLAG_TRANSIENT,
    RECORD_HEADER_BYTES,
)

pytestmark = pytest.mark.may_log(DAMAGE)


# -- the tail of a segment


def tail_with_damaged_body() -> tuple[Segment, int]:
    """The second record's body is damaged, and no record behind it proves that it was durable."""
    segment = Segment()
    segment.entry(0, b"first", generation=4)
    segment.synced = len(segment.data)
    bad = segment.entry(1, b"second", generation=5)
    segment.entry(2, b"third", generation=5)
    segment.data[bad + RECORD_HEADER_BYTES + 13] ^= 1
    return segment, bad


def test_unproven_tail_of_a_segment_is_cut_off_and_the_journal_has_it() -> None:
    """The flush of journal 5 was cut short by a power cut."""
    segment, bad = tail_with_damaged_body()
    sealed = Journal(5, live=[(0, 0)])
    sealed.publish(1, b"second")
    sealed.publish(2, b"third")
    disk = folder({"0.idx": segment, "5.jif": sealed, "journal.jif": Journal(6, live=[(0, 2)])})
    found = recovered(disk)
    assert found.torn_bytes == len(segment.data) - bad
    assert found.segments[0].end == len(disk.content(HERE / "0.idx")) == bad
    assert not found.corruptions
    assert not found.missing
    assert [entry.file.path.name for entry in found.index if entry.file] == [
        "0.idx",
        "5.jif",
        "5.jif",
    ]
    again = recovered(disk)
    assert (again.torn_bytes, entries(again)) == (0, entries(found))


def test_tail_of_a_segment_is_proven_when_its_journal_is_gone() -> None:
    segment, _ = tail_with_damaged_body()
    disk = folder({"0.idx": segment, "journal.jif": Journal(6, live=[(0, 2)])})
    found = recovered(disk)
    assert not found.torn_bytes
    assert deltas(found) == {0: (3, 16, False)}
    assert found.segments[0].end == len(segment.data)


@pytest.mark.parametrize("stored", [True, False])
def test_transient_record_does_not_prove_what_is_before_it(stored: bool) -> None:
    """It comes into a segment whenever memory is short, long after its journal has gone."""
    segment, bad = tail_with_damaged_body()
    if stored:
        segment.stored(3, stored_at(0, 1), generation=2, flags=FLAG_TRANSIENT)
    else:
        segment.entry(3, b"transient", generation=2, flags=FLAG_TRANSIENT)
    sealed = Journal(5, live=[(0, 0)])
    sealed.publish(1, b"second")
    sealed.publish(2, b"third")
    journal = Journal(6, live=[(0, 3)], transient=[(3, 3)])
    found = recovered(folder({"0.idx": segment, "5.jif": sealed, "journal.jif": journal}))
    assert found.torn_bytes == len(segment.data) - bad
    assert not found.corruptions
    assert not found.missing
    assert [entry.file.path.name for entry in found.index if entry.file][1:] == ["5.jif"] * 2


def test_damage_before_a_torn_tail_is_no_tail_at_the_next_start() -> None:
    """Found by the fuzzer: only the tail had proven that the records before it were durable."""
    segment = Segment()
    segment.entry(0, b"first", generation=5)
    bad = segment.entry(1, b"second", generation=5)
    segment.entry(2, b"third", generation=5)
    segment.synced = len(segment.data)
    torn = segment.entry(3, b"fourth", generation=5)
    segment.entry(4, b"fifth", generation=5)
    for at in (bad, torn):
        segment.data[at + RECORD_HEADER_BYTES + 13] ^= 1
        segment.data[at + 4] ^= 1
    disk = folder({"0.idx": segment, "journal.jif": Journal(5, live=[(0, 4)])})
    first = recovered(disk)
    assert first.torn_bytes
    for _ in range(2):
        again = recovered(disk)
        assert not again.torn_bytes
        assert [report.offset for report in again.corruptions] == [bad]
        assert [*again.missing] == [*first.missing] == [(1, 1), (3, 4)]
        assert again.segments[0].end == first.segments[0].end == len(disk.content(HERE / "0.idx"))


def test_damaged_body_before_a_torn_tail_is_no_tail_at_the_next_start() -> None:
    """Found by the fuzzer: as above, but the damage is noticed only when the body is read."""
    segment = Segment()
    bad = segment.entry(0, b"first", generation=5)
    segment.entry(1, b"second", generation=5)
    segment.synced = len(segment.data)
    torn = segment.entry(2, b"third", generation=5)
    segment.data[bad + RECORD_HEADER_BYTES + 13] ^= 1
    segment.data[torn + 4] ^= 1
    segment.entry(3, b"fourth", generation=5)
    disk = folder({"0.idx": segment, "journal.jif": Journal(5, live=[(0, 3)])})
    first = recovered(disk)
    assert first.torn_bytes
    for _ in range(2):
        again = recovered(disk)
        assert not again.torn_bytes
        assert not again.corruptions
        assert [*again.missing] == [*first.missing] == [(2, 3)]
        assert again.segments[0].end == first.segments[0].end == len(disk.content(HERE / "0.idx"))


def test_tail_of_a_segment_that_is_no_record_is_cut_off() -> None:
    for tail in (b"x", bytes(100), b"\xff" * 5000):
        segment = Segment()
        segment.entry(0, b"first")
        size = len(segment.data)
        segment.data += tail
        disk = folder({"0.idx": segment, "journal.jif": Journal(live=[(0, 1)])})
        found = recovered(disk)
        assert (found.torn_bytes, len(disk.content(HERE / "0.idx"))) == (len(tail), size)
        assert [*found.missing] == [(1, 1)]


def test_torn_tails_are_the_same_at_every_start() -> None:
    sealed, journal = Journal(5), Journal(6, next_position=2)
    sealed.publish(0, b"a")
    sealed.publish(1, b"b")
    journal.publish(2, b"c")
    whole = len(journal.data)
    journal.publish(3, b"lost")
    journal.data[whole] ^= 1
    # Behind the tail, whole, and no part of the log.
    journal.publish(4, b"kept by chance")
    sealed.data += b"torn as well"
    disk = folder({"5.jif": sealed, "journal.jif": journal})
    first = recovered(disk)
    assert first.torn_bytes == len(journal.data) - whole + 12
    assert [*first.state.live] == [(2, 2)]
    for _ in range(2):
        again = recovered(disk)
        assert again.torn_bytes == first.torn_bytes
        assert again.cuts == first.cuts == (Cut(7, 3),)
        assert again.state.digest() == first.state.digest()
        assert entries(again) == entries(first)
    assert disk.log == []
