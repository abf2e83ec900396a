"""Recovery of bodies in the message store: references, and entries that hold them."""

from __future__ import annotations

from array import array
from typing import cast

import pytest
from expected_logs import DAMAGE
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
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Outline
from ringmq_node.storage import CorruptError
from ringmq_node.storage.format import references
from ringmq_node.storage.format.queue_folder import SEGMENT_POSITIONS
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    FLAG_TRANSIENT,
    RECORD_HEADER_BYTES,
    RecordKind,
)
from ringmq_node.storage.format.references import RecordLocation, Reference
from ringmq_node.storage.messages import MessageStore
from ringmq_node.storage.queue.blocks import MessagesOf, read_block
from ringmq_node.storage.queue.loading import load_segment
from ringmq_node.storage.queue.recovery import recover

pytestmark = pytest.mark.may_log(DAMAGE)


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
    assert found.current is not None
    assert by_place[5].file is found.current.file
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
