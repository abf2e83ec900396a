"""Files that were cut, torn or changed: recovery always ends, and never makes a message up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from expected_logs import DAMAGE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node.tests.storage.queue.test_queue_store import publish
from node.tests.storage.simulated_disk import SimulatedDisk
from node.tests.storage.workload import (
    LIMITS,
    QUEUE,
    Picture,
    Workload,
    bodies,
    open_store,
    run_store,
)

from ringmq_base.ranges import RangeSet
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Publish, Remove
from ringmq_node.storage import CorruptError, QueueStore, Store, StoreLimits
from ringmq_node.storage.format.formats import JOURNAL, SEGMENT
from ringmq_node.storage.format.record_file import RecordFile
from ringmq_node.storage.format.records import FILE_HEADER, RECORD_HEADER_BYTES, Header, RecordKind

pytestmark = pytest.mark.may_log(DAMAGE)


def readable(queue: QueueStore) -> dict[int, bytes]:
    """All that can be read. A damaged body is found by reading it, and is missing then."""
    while True:
        missing = len(queue.missing)
        try:
            return bodies(queue)
        except CorruptError:
            assert len(queue.missing) > missing


class Aftermath:
    """A queue's files after a workload with flushes and deleted segments, and its messages."""

    def __init__(self, *, seed: int, steps: int, clean: bool) -> None:
        disk = SimulatedDisk()
        store = open_store(disk)
        self.load = Workload(store.open_queue(QUEUE), random.Random(seed))
        self.crashed = disk

        async def flushed() -> None:
            # However slow the flush is, the segments must be the same in each run.
            while store.statistics().journals_sealed_now:  # noqa: ASYNC110 threads do it
                await asyncio.sleep(0.001)

        async def work() -> None:
            for step in range(steps):
                self.load.random_op()
                if step % 3 == 0:
                    await store.sync()
                    await flushed()
            # The journal that is left has ops of several rounds.
            for size in (3, 1, 5):
                self.load.publish(size)
                await store.sync()
            self.load.remove((0, self.load.queue.state.live.first))
            await store.sync()
            # All ops that aren't in a checkpoint are in one journal.
            await flushed()
            if not clean:
                self.crashed = disk.copy()

        run_store(store, work)
        self.disk = disk if clean else self.crashed
        statistics = store.statistics()
        assert statistics.segments_deleted > 0
        assert statistics.segments_now > 0
        self.files = [path for path in self.disk.files() if path.suffix in (".jif", ".idx")]
        self.last = self.load.pictures[-1]

    def headers(self, path: Path) -> list[Header]:
        content = bytes(self.disk.content(path))
        format = JOURNAL if path.suffix == ".jif" else SEGMENT
        file = RecordFile(str(path), format, len(content), lambda at, n: content[at : at + n])
        found = file.scan(lambda header, _: header)
        assert not found.corruptions
        assert not found.torn_bytes
        return [header for header, _ in found.records]

    def recover(self, disk: SimulatedDisk) -> QueueStore:
        """Opens the damaged queue, and checks the invariants that hold after any damage."""
        queue = open_store(disk).open_queue(QUEUE)
        queue.check()
        found = readable(queue)
        for position, body in found.items():
            assert body == self.load.bodies[0, position], position
        expected = queue.state.live.copy()
        expected.subtract(queue.missing)
        assert len(found) == len(expected)
        if not queue.damaged:
            # Some moment of the past, whole but for missing positions.
            found_picture = Picture.of(queue.state, queue.missing, 0)
            assert any(found_picture.agrees_with(picture) for picture in self.load.pictures)
        return queue


@cache
def aftermath(*, clean: bool) -> Aftermath:
    return Aftermath(seed=1, steps=120, clean=clean)


def cuts(made: Aftermath, path: Path) -> Iterator[int]:
    """Every record's boundary, and places in between."""
    yield from (0, 1, FILE_HEADER.size - 1)
    for header in made.headers(path):
        yield header.offset
        yield header.offset + 1
        yield header.offset + RECORD_HEADER_BYTES
        yield (header.offset + header.end) // 2
        yield header.end - 1


def test_undamaged_files_come_back_whole() -> None:
    for clean in (True, False):
        made = aftermath(clean=clean)
        queue = made.recover(made.disk.copy())
        assert Picture.of(queue.state, queue.missing, 0) == made.last
        assert (queue.corruptions, queue.torn_bytes, len(queue.missing)) == ([], 0, 0)


@pytest.mark.parametrize("tail", [b"", bytes(100), b"\xff" * 100], ids=["cut", "zeros", "ones"])
def test_journal_torn_anywhere_keeps_all_ops_before(tail: bytes) -> None:
    made = aftermath(clean=False)
    path = next(path for path in made.files if path.name == "journal.jif")
    headers = made.headers(path)
    assert len(headers) > 5
    for size in cuts(made, path):
        disk = made.disk.copy()
        content = disk.content(path)
        whole = bytes(content)
        content[size:] = tail
        length = len(content)
        # Not by `size`: the bytes that are cut off may equal those in their place.
        kept = [header for header in headers if content[: header.end] == whole[: header.end]]
        queue = made.recover(disk)
        if any(header.kind == RecordKind.CHECKPOINT for header in kept):
            assert queue.state.last_number == kept[-1].number, size
            assert not queue.damaged
            assert not queue.corruptions
            assert queue.torn_bytes == length - kept[-1].end
        else:
            # It was whole once, so this is no torn tail.
            assert queue.damaged
            assert queue.corruptions


@pytest.mark.slow
@pytest.mark.compute
@pytest.mark.parametrize("tail", [b"", bytes(100)], ids=["cut", "zeros"])
def test_segment_torn_anywhere_is_missed_where_it_was_live(tail: bytes) -> None:
    made = aftermath(clean=False)
    for path in made.files:
        if path.suffix != ".idx":
            continue
        headers = made.headers(path)
        for size in cuts(made, path):
            disk = made.disk.copy()
            disk.content(path)[size:] = tail
            queue = made.recover(disk)
            assert Picture.of(queue.state, queue.missing, 0).agrees_with(made.last)
            if all(header.end <= size for header in headers):
                assert not queue.missing


def test_removed_files_are_missed_where_they_were_live() -> None:
    made = aftermath(clean=True)
    for path in made.files:
        disk = made.disk.copy()
        disk.remove(path)
        queue = made.recover(disk)
        if path.suffix == ".idx":
            assert Picture.of(queue.state, queue.missing, 0).agrees_with(made.last)
        else:
            assert queue.damaged


def flip(made: Aftermath, path: Path, at: int) -> QueueStore:
    disk = made.disk.copy()
    disk.content(path)[at] ^= 0x40
    return made.recover(disk)


def places(header: Header) -> list[int]:
    """In each field of a record's header, and in its payload."""
    fields = [0, 4, 8, 12, 16, 17, 20, 28, 36]
    inside = [RECORD_HEADER_BYTES, RECORD_HEADER_BYTES + header.length - 1]
    return [header.offset + at for at in (*fields, *(inside if header.length else []))]


@pytest.mark.slow
@pytest.mark.compute
def test_flipped_bit_after_a_clean_stop_is_reported_and_costs_one_record() -> None:
    made = aftermath(clean=True)
    for path in made.files:
        headers = made.headers(path)
        for header in headers:
            for at in places(header):
                queue = flip(made, path, at)
                story = f"{path.name}, record {header}, byte {at}"
                if header is headers[-1]:
                    # The end record of the journal, or the last sync of a segment.
                    assert Picture.of(queue.state, queue.missing, 0).agrees_with(made.last), story
                    continue
                if path.suffix == ".jif":
                    assert queue.corruptions or queue.torn_bytes, story
                    assert queue.damaged == (header.kind == RecordKind.OP), story
                # No live message is forgotten. (One may come back: its remove was hit.)
                live = queue.state.live
                assert all(live.contains_all(*pair) for pair in made.last.live), story


def test_flipped_bit_in_the_file_header_loses_nothing() -> None:
    made = aftermath(clean=True)
    for path in made.files:
        for at in range(24):
            queue = flip(made, path, at)
            assert len(queue.corruptions) == 1
            assert "file header" in str(queue.corruptions[0])
            assert Picture.of(queue.state, queue.missing, 0) == made.last


def test_damaged_body_in_a_segment_is_found_when_it_is_read() -> None:
    """A start doesn't read it; the others of the segment are not hurt."""
    made = aftermath(clean=True)
    live = RangeSet(made.last.live)
    for path in made.files:
        headers = made.headers(path) if path.suffix == ".idx" else []
        header = next((header for header in headers if header.number in live), None)
        if header is not None:
            break
    assert header is not None
    disk = made.disk.copy()
    disk.content(path)[header.end - 1] ^= 1
    queue = open_store(disk).open_queue(QUEUE)
    assert not queue.corruptions
    assert not queue.missing
    with pytest.raises(CorruptError) as caught:
        bodies(queue)
    assert (caught.value.report.file, caught.value.report.offset) == (str(path), header.offset)
    assert queue.missing
    for position, body in readable(queue).items():
        assert body == made.load.bodies[0, position]
    queue.check()


def test_one_of_two_checkpoints_is_enough() -> None:
    made = aftermath(clean=True)
    path = next(path for path in made.files if path.name == "journal.jif")
    first, second = made.headers(path)[:2]
    for header in (first, second):
        queue = flip(made, path, header.offset + RECORD_HEADER_BYTES)
        assert len(queue.corruptions) == 1
        assert str(path) in str(queue.corruptions[0])
        assert queue.corruptions[0].offset == header.offset
        assert Picture.of(queue.state, queue.missing, 0) == made.last


def test_record_inside_a_body_is_no_record() -> None:
    """A journal published as a message is not read as one, also when its own record is hit."""
    disk = SimulatedDisk()
    store = open_store(disk, StoreLimits())
    queue = store.open_queue(QUEUE)
    path = queue.directory / "journal.jif"

    async def work() -> None:
        publish(queue, [b"first"])
        await store.sync()
        publish(queue, [bytes(disk.content(path))])
        await store.sync()
        publish(queue, [b"last"])
        await store.sync()

    run_store(store, work)
    content = disk.content(path)
    # The second message's record: its header's checksum.
    at = content.index(b"RINGMQ-J", 8)
    record = content.rindex(content[12:16], 0, at)
    content[record + 4] ^= 1
    queue = open_store(disk, StoreLimits()).open_queue(QUEUE)
    assert [(report.offset, report.what) for report in queue.corruptions] == [
        (record, "no valid record header")
    ]
    assert queue.damaged
    assert [*queue.missing] == [(1, 1)]
    assert bodies(queue) == {0: b"first", 2: b"last"}


def test_damage_is_remembered_over_the_next_restart() -> None:
    made = aftermath(clean=True)
    path = next(path for path in made.files if path.name == "journal.jif")
    op = next(header for header in made.headers(path) if header.kind == RecordKind.OP)
    disk = made.disk.copy()
    disk.content(path)[op.offset + RECORD_HEADER_BYTES] ^= 1
    first = made.recover(disk)
    assert first.damaged
    assert first.missing or first.damaged
    again = made.recover(disk)
    assert again.damaged
    assert again.state.digest() == first.state.digest()
    assert again.missing == first.missing


@st.composite
def damages(draw: st.DrawFn) -> list[tuple[int, str, float, int, int]]:
    """A few of: file, kind of damage, its place as a fraction of the file, length, value."""
    one = st.tuples(
        st.integers(0, 10),
        st.sampled_from(["set", "zeros", "cut", "insert", "delete", "repeat", "swap"]),
        st.floats(0, 1),
        st.integers(1, 3000),
        st.integers(0, 255),
    )
    return draw(st.lists(one, min_size=1, max_size=4))


def damage(made: Aftermath, disk: SimulatedDisk, what: tuple[int, str, float, int, int]) -> None:
    file, kind, fraction, length, value = what
    content = disk.content(made.files[file % len(made.files)])
    at = int(fraction * len(content))
    piece = bytes(content[at : at + length])
    match kind:
        case "set":
            content[at : at + 1] = bytes([value])
        case "zeros":
            content[at : at + length] = bytes(len(piece))
        case "cut":
            del content[at:]
        case "insert":
            content[at:at] = bytes([value]) * length
        case "delete":
            del content[at : at + length]
        case "repeat":
            content[at:at] = piece
        case "swap":
            other = disk.content(made.files[(file + 1) % len(made.files)])
            content[at : at + length] = other[at : at + length]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(damages(), st.booleans())
@pytest.mark.slow
def test_any_damage_ends_in_a_queue_that_makes_nothing_up(
    what: list[tuple[int, str, float, int, int]], clean: bool
) -> None:
    made = aftermath(clean=clean)
    disk = made.disk.copy()
    for one in what:
        damage(made, disk, one)
    first = made.recover(disk)
    again = made.recover(disk)
    assert again.state.digest() == first.state.digest()
    assert again.missing == first.missing
    assert again.damaged == first.damaged


def publish_once(store: Store, name: str, body: bytes) -> None:
    queue = store.open_queue(name)
    op = Publish(queue.state.next_position, Block.of([body]), False)
    queue.append(queue.state.last_number + 1, op, ops.encode(op))


@pytest.mark.parametrize("opened", [("c",), ("c", "b")], ids=["one", "both"])
def test_number_of_a_lost_file_is_not_given_to_another(opened: tuple[str, ...]) -> None:
    """1. The only file of the message store is lost. 2. A queue that is open stores a body of the
    same size. 3. Another one still refers to the lost file, at the same place."""
    limits = replace(LIMITS, embed_below=0)
    disk = SimulatedDisk()
    store = open_store(disk, limits)
    publish_once(store, "b", b"b" * 500)
    store.open_queue("c")
    store.close()
    [lost] = [path for path in disk.files() if path.suffix == ".rdq"]
    disk.remove(lost)
    for _ in range(2):
        store = open_store(disk, limits)
        for name in opened:
            store.open_queue(name)
        publish_once(store, "c", b"x" * 500)
        store.close()
    store = open_store(disk, limits)
    found = {name: readable(store.open_queue(name)) for name in ("b", "c")}
    assert found == {"b": {}, "c": {0: b"x" * 500, 1: b"x" * 500}}


def test_what_a_torn_round_has_void_stays_so_through_journals_of_one_round() -> None:
    """1. A round with an elided publish is torn at its end: all of it is void, also a publish that
    is whole. 2. After the next start two journals are begun in one round. 3. The store stops before
    the one of the torn round is deleted."""
    disk = SimulatedDisk()
    store = open_store(disk)
    queue = store.open_queue("a")

    async def work() -> None:
        publish_once(store, "a", b"kept")
        await store.sync()
        publish_once(store, "a", b"gone")
        removed = Remove(((1, 1),))
        queue.append(queue.state.last_number + 1, removed, ops.encode(removed))
        for body in (b"void", b"tail"):
            publish_once(store, "a", body)

    run_store(store, work)
    assert store.statistics().messages_elided == 1
    journal = next(path for path in disk.files() if path.name == "journal.jif")
    data = disk.content(journal)
    assert b"void" in data
    del data[data.rindex(b"tail") + 2 :]
    store = open_store(disk, replace(LIMITS, journal_bytes_max=1_000))
    queue = store.open_queue("a")
    assert readable(queue) == {0: b"kept"}
    for _ in range(30):
        publish_once(store, "a", b"anew" * 50)
    store.close()
    queue = open_store(disk).open_queue("a")
    expected = {0: b"kept"} | dict.fromkeys(range(1, 31), b"anew" * 50)
    assert readable(queue) == expected
