"""Recovery chooses a body for each live position, and a state, from files made by hand."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

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
    unfolded,
)

from ringmq_base.ranges import RangeSet
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Barrier, Forget, Outline, Publish, Requeue
from ringmq_node.storage.format.checkpoint import Cut
from ringmq_node.storage.format.queue_folder import SEGMENT_POSITIONS
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    FLAG_TRANSIENT,
    RECORD_HEADER_BYTES,
    RecordKind,
)
from ringmq_node.storage.queue.loading import load_segment

pytestmark = pytest.mark.may_log(DAMAGE)


# -- deltas


def test_segment_is_a_delta_unless_a_journal_has_something_of_it() -> None:
    first, second = Segment(0), Segment(1)
    first.entry(0, b"a", b"bb")
    second.entry(SEGMENT_POSITIONS, b"ccc")
    next_position = SEGMENT_POSITIONS + 1
    journal = Journal(live=[(0, 1), (SEGMENT_POSITIONS, SEGMENT_POSITIONS)])
    disk = folder({"0.idx": first, "1.idx": second, "journal.jif": journal})
    found = recovered(disk)
    assert deltas(found) == {0: (2, 3, False), 1: (1, 3, False)}
    assert entries(found) == []
    assert found.body_bytes == 6

    journal.publish(next_position, b"dddd")
    found = recovered(folder({"0.idx": first, "1.idx": second, "journal.jif": journal}))
    assert deltas(found) == {0: (2, 3, False)}
    assert entries(found) == [(SEGMENT_POSITIONS, SEGMENT_POSITIONS), (next_position,) * 2]
    assert found.body_bytes == 10


def test_batch_across_a_boundary_leaves_neither_segment_a_delta() -> None:
    first, second = Segment(0), Segment(1)
    first.entry(5, b"a")
    second.entry(SEGMENT_POSITIONS + 7, b"b")
    last = SEGMENT_POSITIONS - 1
    journal = Journal(live=[(5, 5)], next_position=last)
    journal.publish(last, b"c", b"d")
    journal.publish(last + 2, b"", b"", b"", b"", b"", b"")
    journal.remove((last + 2, last + 7))
    journal.add(RecordKind.FILL, Block.of([b"e"]).data, number=last + 8, epoch=journal.number)
    disk = folder({"0.idx": first, "1.idx": second, "journal.jif": journal})
    found = recovered(disk)
    assert deltas(found) == {}
    assert entries(found) == [(5, 5), (last, last + 1)]


def test_segment_in_which_nothing_is_live_is_no_delta() -> None:
    segment = Segment()
    segment.entry(0, b"a")
    found = recovered(folder({"0.idx": segment, "journal.jif": Journal(next_position=1)}))
    assert deltas(found) == {}
    assert found.segments[0].holders == 0


def test_delta_unfolds_to_what_recovery_has_chosen() -> None:
    """Dead ones are carried along; of doubles the last counts; a cut makes the rest void."""
    segment = Segment()
    a = segment.entry(0, b"0", b"double", b"double", b"double")
    segment.entry(1, b"double", b"double")
    b = segment.entry(2, b"22", b"dead", b"4444", b"55555", generation=2)
    segment.entry(6, b"void", generation=1)
    c = segment.entry(6, b"666666", generation=4)
    journal = Journal(live=[(0, 0), (2, 2), (4, 6)], cuts=(Cut(2, 5), Cut(4, 6)))
    disk = folder({"0.idx": segment, "journal.jif": journal})
    found = recovered(disk)
    assert deltas(found) == {0: (5, 1 + 2 + 4 + 5 + 6, False)}
    assert unfolded(disk, found) == [(0, 0, 1, a), (2, 5, 3, b), (6, 6, 1, c)]


def test_missing_positions_are_in_no_entry_of_an_unfolded_delta() -> None:
    segment = Segment()
    segment.entry(0, *[b"%d" % at for at in range(10)])
    disk = folder({"0.idx": segment, "journal.jif": Journal(live=[(0, 9)])})
    found = recovered(disk)
    file = found.segments[0]
    loaded, reports = load_segment(disk, file, RangeSet([(1, 7)]), RangeSet([(3, 3), (6, 9)]), ())
    assert reports == []
    assert [(entry.first, entry.last, entry.live) for entry in loaded] == [(1, 2, 2), (4, 5, 2)]


def test_segment_that_grows_is_unfolded_up_to_where_it_is_written() -> None:
    segment = Segment()
    segment.entry(0, b"a")
    disk = folder({"0.idx": segment, "journal.jif": Journal(live=[(0, 1)])})
    found = recovered(disk)
    segment.entry(1, b"b")
    disk.write(HERE / "0.idx", 0, [bytes(segment.data)])
    assert unfolded(disk, found) == [(0, 0, 1, FILE_HEADER.size)]
    found.segments[0].end = len(segment.data)
    loaded, _ = load_segment(disk, found.segments[0], found.state.live, RangeSet(), ())
    assert [(entry.first, entry.last) for entry in loaded] == [(0, 0), (1, 1)]


def test_bodies_beyond_the_last_position_are_cut_off() -> None:
    """The journal was cut short where a record ends, so that nothing in it shows that."""
    segment, journal = Segment(), Journal(5, live=[(0, 0)])
    segment.entry(0, b"a", b"lost")
    found = recovered(folder({"0.idx": segment, "journal.jif": journal}))
    assert found.cuts == (Cut(6, 1),)
    later = Journal(6, live=[(0, 1)], cuts=found.cuts)
    again = segment.entry(1, b"again", generation=6)
    disk = folder({"0.idx": segment, "journal.jif": later})
    found = recovered(disk)
    assert unfolded(disk, found) == [(0, 0, 1, FILE_HEADER.size), (1, 1, 1, again)]


def test_hollow_publish_counts_and_is_dropped() -> None:
    journal = Journal(next_position=3)
    outline = Outline(3, 4, transient=True, producer_id=b"p", first_sequence=1)
    journal.op(RecordKind.HOLLOW_OP, ops.encode_outline(outline), flags=FLAG_TRANSIENT)
    journal.publish(7, b"kept")
    journal.add(RecordKind.HOLLOW_FILL, b"\4\0\0\0", number=3, epoch=journal.number)
    found = recovered(folder({"journal.jif": journal}))
    assert (found.state.last_number, found.state.next_position) == (12, 8)
    assert found.state.producers == {b"p": 4}
    assert [*found.state.live] == [(7, 7)]
    assert not found.missing
    assert not found.damaged


# -- headers, not bodies


def test_bodies_of_proven_records_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    segment = Segment()
    for at in range(0, 200, 10):
        segment.entry(at, *[bytes(10_000)] * 10)
    disk = folder({"0.idx": segment, "journal.jif": Journal(live=[(0, 199)])})
    read: list[int] = []
    real = disk.read

    def counted(path: Path, offset: int, size: int) -> bytes:
        data = real(path, offset, size)
        read.append(len(data))
        return data

    monkeypatch.setattr(disk, "read", counted)
    assert deltas(recovered(disk)) == {0: (200, 2_000_000, False)}
    # One window at the beginning, where nobody knows yet how long the records are.
    assert sum(read) < 1_250_000


def test_recovery_of_a_sound_queue_writes_and_syncs_nothing() -> None:
    segment = Segment()
    segment.entry(0, b"a")
    sealed, journal = Journal(4), Journal(5, live=[(0, 0)])
    disk = folder({"0.idx": segment, "4.jif": sealed, "journal.jif": journal})
    recovered(disk)
    assert disk.log == []


def test_journal_is_not_kept_in_memory() -> None:
    journal = Journal()
    for at in range(20):
        journal.publish(at, bytes(500_000))
    disk = folder({"journal.jif": journal})
    tracemalloc.start()
    try:
        found = recovered(disk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found.index) == 20
    assert peak < 4 << 20


def test_next_generation_is_above_that_of_any_body() -> None:
    """Else a cut of a later journal would not reach bodies from before it."""
    segment = Segment()
    segment.entry(0, b"a", generation=40)
    found = recovered(folder({"0.idx": segment}))
    assert found.damaged
    assert found.next_generation == 41


# -- without a checkpoint


def headless(journal: Journal) -> Journal:
    """Both its checkpoints are hit."""
    size = RECORD_HEADER_BYTES + len(journal.start)
    journal.synced = len(journal.data)
    journal.op(RecordKind.OP, ops.encode(Requeue(())))
    for at in range(2):
        journal.data[FILE_HEADER.size + at * size + RECORD_HEADER_BYTES] ^= 1
    return journal


def test_remove_of_what_was_not_published_yet_takes_nothing_away_later() -> None:
    """Found by the fuzzer: `redelivered` had a position that was not live."""
    journal = Journal()
    journal.remove((0, 50))
    journal.publish(0, b"a", b"b")
    journal.op(RecordKind.OP, ops.encode(Requeue(((0, 1),))))
    found = recovered(folder({"journal.jif": headless(journal)}))
    assert found.damaged
    assert [*found.state.live] == [*found.state.redelivered] == [(0, 1)]


def test_state_is_made_up_from_segments_and_journals() -> None:
    segment = Segment()
    segment.entry(0, b"a", b"b", b"c")
    segment.entry(3, b"transient", flags=FLAG_TRANSIENT)
    journal = Journal()
    journal.remove((1, 1))
    journal.publish(9, b"d")
    found = recovered(folder({"0.idx": segment, "journal.jif": headless(journal)}))
    assert found.damaged
    assert [*found.state.live] == [(0, 0), (2, 2), (9, 9)]
    assert found.state.next_position == 10


def test_ops_that_touch_no_message_are_recovered() -> None:
    journal = Journal()
    journal.op(RecordKind.OP, ops.encode(Publish(0, Block.of([b"a"]), producer_id=b"p")))
    journal.op(RecordKind.OP, ops.encode(Publish(1, Block.of([b"b"]), producer_id=b"q")))
    journal.op(RecordKind.OP, ops.encode(Barrier()))
    journal.op(RecordKind.OP, ops.encode(Forget((b"p", b"unknown"))))
    found = recovered(folder({"journal.jif": journal}))
    assert not found.damaged
    assert found.state.last_number == 14
    assert [*found.state.producers] == [b"q"]
    assert found.state.live == RangeSet([(0, 1)])
