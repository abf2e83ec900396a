"""What recovery makes of a queue's folder, file by file: the files are made by hand."""

from __future__ import annotations

import random
import tracemalloc
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest
from expected_logs import DAMAGE
from node.tests.storage.queue import fuzz_recovery
from node.tests.storage.simulated_disk import SimulatedDisk

from ringmq_base.ranges import RangeSet
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Outline, Publish, Remove, Requeue
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage import CorruptError
from ringmq_node.storage.format import checkpoint, references
from ringmq_node.storage.format.checkpoint import Checkpoint, Cut
from ringmq_node.storage.format.formats import JOURNAL, SEGMENT, Format
from ringmq_node.storage.format.queue_folder import SEGMENT_POSITIONS
from ringmq_node.storage.format.record_file import HEAD_BYTES_MAX
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    FLAG_TRANSIENT,
    RECORD_HEADER_BYTES,
    RecordKind,
    file_header,
    new_marker,
    owner_of,
    record_header,
)
from ringmq_node.storage.format.references import RecordLocation, Reference
from ringmq_node.storage.messages import MessageStore
from ringmq_node.storage.queue.blocks import MessagesOf, read_block
from ringmq_node.storage.queue.entries import IndexEntry, QueueFile
from ringmq_node.storage.queue.loading import load_segment
from ringmq_node.storage.queue.recovery import Recovered, recover

pytestmark = pytest.mark.may_log(DAMAGE)

HERE = Path("/data/queues/1c168adb00d208e42f93314529f1fa9c")


class FileOfRecords:
    """A journal or a segment, record by record."""

    def __init__(self, format: Format, number: int, owner: int = owner_of(HERE)) -> None:
        self.marker = new_marker()
        self.data = bytearray(file_header(format, self.marker, number, owner))
        # What the records from here on say is durable.
        self.synced = 0

    def add(
        self, kind: RecordKind, payload: bytes, *, number: int = 0, epoch: int = 0, flags: int = 0
    ) -> int:
        """Returns where the record begins."""
        offset = len(self.data)
        self.data += record_header(
            self.marker,
            offset,
            kind,
            payload,
            flags=flags,
            number=number,
            epoch=epoch,
            synced=self.synced,
        )
        self.data += payload
        return offset


class Segment(FileOfRecords):
    def __init__(self, number: int = 0, owner: int = owner_of(HERE)) -> None:
        super().__init__(SEGMENT, number, owner)

    def entry(self, first: int, *bodies: bytes, generation: int = 1, flags: int = 0) -> int:
        data = Block.of(bodies).data
        return self.add(RecordKind.ENTRY, data, number=first, epoch=generation, flags=flags)

    def stored(self, first: int, *places: Reference, generation: int = 1, flags: int = 0) -> int:
        table = references.encode(places)
        return self.add(RecordKind.STORED_ENTRY, table, number=first, epoch=generation, flags=flags)


class Journal(FileOfRecords):
    """Begins with the state that `live` says, at op 10, of which all is published."""

    def __init__(
        self,
        generation: int = 5,
        live: Sequence[tuple[int, int]] = (),
        *,
        next_position: int | None = None,
        transient: Sequence[tuple[int, int]] = (),
        cuts: tuple[Cut, ...] = (),
        owner: int = owner_of(HERE),
    ) -> None:
        super().__init__(JOURNAL, generation, owner)
        state = ReplicatedState(last_number=10, live=RangeSet(live), transient=RangeSet(transient))
        state.next_position = max((last + 1 for _, last in live), default=0)
        if next_position is not None:
            state.next_position = next_position
        self.start = checkpoint.encode(Checkpoint(generation, state, cuts))
        self.number = 10
        for _ in range(2):
            self.add(RecordKind.CHECKPOINT, self.start, number=self.number)

    def op(self, kind: RecordKind, payload: bytes, *, flags: int = 0) -> int:
        self.number += 1
        return self.add(kind, payload, number=self.number, flags=flags)

    def publish(self, first: int, *bodies: bytes, transient: bool = False) -> int:
        op = Publish(first, Block.of(bodies), transient)
        return self.op(RecordKind.OP, ops.encode(op), flags=FLAG_TRANSIENT if transient else 0)

    def remove(self, *ranges: tuple[int, int]) -> int:
        return self.op(RecordKind.OP, ops.encode(Remove(ranges)))


def folder(files: dict[str, FileOfRecords | bytes]) -> SimulatedDisk:
    disk = SimulatedDisk()
    for name, file in files.items():
        data = file if isinstance(file, bytes) else bytes(file.data)
        disk.write(HERE / name, 0, [data])
    disk.sync_all(HERE)
    disk.log.clear()
    return disk


def stored_at(ordinal: int, count: int, *, start: int = 0, size: int = 10) -> Reference:
    place = RecordLocation(file=3, ordinal=ordinal, offset=32 + 1000 * ordinal, length=1000)
    return Reference(place, start, array("I", range(size, size + count)))


def entries(found: Recovered) -> list[tuple[int, int]]:
    return [(entry.first, entry.last) for entry in found.index]


def deltas(found: Recovered) -> dict[int, tuple[int, int, bool]]:
    return {
        number: (delta.live, delta.live_bytes, delta.stored)
        for number, delta in found.index.deltas.items()
    }


def check(found: Recovered) -> None:
    found.state.check()
    found.index.check(found.state.live, found.missing)


def recovered(disk: SimulatedDisk) -> Recovered:
    found = recover(disk, HERE)
    check(found)
    return found


def unfolded(
    disk: SimulatedDisk, found: Recovered, number: int = 0
) -> list[tuple[int, int, int, int]]:
    """What a delta stands for: first, last, live, where the record is."""
    file = found.segments[number]
    loaded, reports = load_segment(disk, file, found.state.live, found.missing, found.cuts)
    assert reports == []
    delta = found.index.deltas[number]
    assert delta.live == sum(entry.live for entry in loaded)
    assert delta.live_bytes == sum(live_bytes(entry, found.state.live) for entry in loaded)
    found.index.unfold(delta, loaded)
    check(found)
    return [(entry.first, entry.last, entry.live, entry.offset) for entry in loaded]


def live_bytes(entry: IndexEntry, live: RangeSet) -> int:
    return sum(entry.bytes_of(*part) for part in live.intersection(entry.first, entry.last))


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


# -- bodies in the message store, and bodies that are nowhere


def test_each_living_entry_in_the_message_store_is_referred_to_once() -> None:
    """In a delta, in a segment that isn't one, and in a journal."""
    folded, mixed = Segment(0), Segment(1)
    here = SEGMENT_POSITIONS
    folded.stored(0, stored_at(0, 2), stored_at(1, 3, start=4))
    folded.stored(0, stored_at(2, 2))
    mixed.stored(here, stored_at(3, 1), stored_at(4, 1))
    journal = Journal(live=[(0, 0), (3, 4), (here, here)], next_position=here + 2)
    table = references.encode([stored_at(5, 2), stored_at(6, 1)])
    outline = ops.encode_outline(Outline(here + 2, 3, producer_id=b"p", first_sequence=7))
    journal.op(RecordKind.STORED_OP, outline + table)
    journal.remove((here + 4, here + 4))
    disk = folder({"0.idx": folded, "1.idx": mixed, "journal.jif": journal})
    referred: list[int] = []
    found = recover(disk, HERE, lambda place: referred.append(place.ordinal))
    check(found)
    assert sorted(referred) == [1, 2, 3, 5]
    assert deltas(found) == {0: (3, 10 + 11 + 12, True)}
    assert found.state.producers == {b"p": 9}
    by_place = {entry.location.ordinal: entry for entry in found.index if entry.location}
    assert sorted(by_place) == [3, 5]
    assert (by_place[5].first, by_place[5].last, by_place[5].body_bytes) == (here + 2, here + 3, 21)
    assert by_place[5].file is found.current
    unfolded(disk, found)
    assert [(entry.first, entry.last, entry.start) for entry in found.index][:2] == [
        (0, 0, 0),
        (3, 4, 5),
    ]


def test_fill_from_the_message_store_is_an_entry_for_each_reference() -> None:
    journal = Journal(live=[(0, 5)])
    table = references.encode([stored_at(0, 2, start=3), stored_at(1, 1)])
    journal.add(RecordKind.STORED_FILL, table, number=2, epoch=journal.number)
    found = recovered(folder({"journal.jif": journal}))
    assert entries(found) == [(2, 3), (4, 4)]
    assert [entry.start for entry in found.index] == [3, 0]
    assert [*found.missing] == [(0, 1), (5, 5)]


def test_reference_to_a_record_that_can_not_be_there_is_damage() -> None:
    """Found by the fuzzer, in forged records: counting up to it would take a gigabyte."""
    segment = Segment()
    sizes = array("I", [3])
    bad = [
        segment.stored(0, Reference(RecordLocation(1, 1 << 30, 5000, 100), 0, sizes)),
        segment.stored(
            1, Reference(RecordLocation(1, 1, 32 + RECORD_HEADER_BYTES - 1, 100), 0, sizes)
        ),
        segment.stored(2, Reference(RecordLocation(1, 0, 31, 100), 0, sizes)),
        segment.stored(3, Reference(RecordLocation(1, 0, 32, RECORD_HEADER_BYTES), 0, sizes)),
        segment.stored(4, Reference(RecordLocation(1, 0, 32, 100), 1 << 20, sizes)),
    ]
    segment.stored(5, Reference(RecordLocation(1, 1, 32 + RECORD_HEADER_BYTES, 100), 0, sizes))
    referred: list[int] = []
    disk = folder({"0.idx": segment, "journal.jif": Journal(live=[(0, 5)])})
    found = recover(disk, HERE, lambda place: referred.append(place.ordinal))
    check(found)
    assert referred == [1]
    assert [report.offset for report in found.corruptions] == bad


class Messages:
    """A message store with one block everywhere."""

    def __init__(self, block: Block) -> None:
        self.block = block

    def read(self, location: RecordLocation) -> Block:
        return self.block


def messages_of(block: Block) -> MessagesOf:
    return lambda *, transient: cast("MessageStore", Messages(block))


def test_reference_to_more_messages_than_the_block_has_is_damage() -> None:
    """Found by the fuzzer, in a record that was wrong and had the right checksums."""
    segment = Segment()
    segment.stored(0, stored_at(0, 2, start=1))
    disk = folder({"0.idx": segment, "journal.jif": Journal(live=[(0, 1)])})
    found = recovered(disk)
    [entry], _ = load_segment(disk, found.segments[0], found.state.live, RangeSet(), ())
    whole = Block.of([b"a", b"b", b"c"])
    assert read_block(disk, entry, messages_of(whole)) is whole
    with pytest.raises(CorruptError, match="refers to messages 1 to 2 of a block of 2") as caught:
        read_block(disk, entry, messages_of(whole.slice(0, 2)))
    assert caught.value.report.offset == FILE_HEADER.size


def test_transient_message_in_the_store_is_never_live_again() -> None:
    """Not even where the record was lost that says that it is transient."""
    segment = Segment()
    segment.stored(0, stored_at(0, 2), flags=FLAG_TRANSIENT)
    segment.stored(2, stored_at(1, 1))
    journal = Journal(live=[(0, 2)], transient=[(0, 0)])
    disk = folder({"0.idx": segment, "journal.jif": journal})
    referred: list[RecordLocation] = []
    found = recover(disk, HERE, referred.append)
    check(found)
    assert [place.ordinal for place in referred] == [1]
    assert [*found.state.live] == [(1, 2)]
    assert [*found.missing] == [(1, 1)]


def test_transient_message_of_before_is_not_in_an_unfolded_delta() -> None:
    """Found by the fuzzer: its position was given out again, and its record comes first."""
    segment = Segment()
    segment.entry(0, b"a")
    segment.stored(1, stored_at(7, 1), flags=FLAG_TRANSIENT)
    disk = folder({"0.idx": segment, "journal.jif": Journal(live=[(0, 0)])})
    found = recovered(disk)
    after = segment.entry(1, b"again", generation=found.next_generation)
    now = segment.stored(2, stored_at(0, 1), generation=6, flags=FLAG_TRANSIENT)
    disk.write(HERE / "0.idx", 0, [bytes(segment.data)])
    found.segments[0].end = found.segments[0].synced = len(segment.data)
    live = RangeSet([(0, 2)])
    loaded, _ = load_segment(disk, found.segments[0], live, RangeSet(), found.cuts)
    assert [entry.offset for entry in loaded] == [FILE_HEADER.size, after, now]


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


def test_publish_that_refers_to_more_or_less_than_it_says_is_damage() -> None:
    for count in (1, 3):
        journal = Journal()
        outline = ops.encode_outline(Outline(0, count))
        bad = journal.op(RecordKind.STORED_OP, outline + references.encode([stored_at(0, 2)]))
        journal.synced = len(journal.data)
        journal.publish(count, b"next")
        found = recovered(folder({"journal.jif": journal}))
        assert [report.offset for report in found.corruptions] == [bad]
        assert found.damaged


# -- headers, not bodies


def test_bodies_of_proven_records_are_not_read() -> None:
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

    disk.read = counted  # type: ignore[method-assign]
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


# -- the tail of a segment


def tail_with_damaged_body() -> tuple[Segment, int]:
    """The second record's body isn't what was written; nothing behind it says it was synced."""
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
    """Found by the fuzzer: only the tail had shown that what is before it was durable."""
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


# -- what was fetched again


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


# -- files that are not what they should be


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
