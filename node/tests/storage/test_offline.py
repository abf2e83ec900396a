"""A data directory read offline: what is in it, and each kind of damage told from a crash."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import zlib
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest
from node.tests.storage.queue.test_damage import readable
from node.tests.storage.queue.test_queue_store import append
from node.tests.storage.workload import run_store

from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Publish, Remove
from ringmq_node.storage import DirectoryInUseError, Store, StoreLimits
from ringmq_node.storage.disk.data_directory import folder_name
from ringmq_node.storage.format import references
from ringmq_node.storage.format.formats import FORMATS, JOURNAL, MESSAGE_FILE
from ringmq_node.storage.format.record_file import RecordFile
from ringmq_node.storage.format.records import (
    RECORD_HEADER_BYTES,
    Header,
    RecordKind,
    owner_of,
    record_header,
)
from ringmq_node.storage.format.references import RecordLocation, Reference
from ringmq_node.storage.offline import (
    DataDirectory,
    Fault,
    NotADataDirectoryError,
    Verification,
    open_offline,
    verify,
)
from ringmq_node.storage.offline.faults import FAULTS_PER_FILE_MAX, Findings
from ringmq_node.storage.offline.inspection import (
    NothingToInspectError,
    inspect_file,
    inspect_queue,
)
from ringmq_node.storage.offline.statistics import DirectoryStatistics, collect

LIMITS = StoreLimits(
    journal_entries_max=400,
    flush_piece_bytes_max=8_000,
    embed_below=500,
    store_block_bytes_max=4_000,
    store_file_bytes_max=20_000,
    compaction_bytes_per_s_max=1 << 30,
    sync_threads=2,
)
SMALL, LARGE, COPY = "small", "large", "copy"
PERSISTENT = Path("messages/persistent")
SUFFIXES = {".jif", ".idx", ".rdq", ".map"}


def bodies(count: int, size: int, seed: int = 1) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(size) for _ in range(count)]


def make(root: Path) -> tuple[Path, Path]:
    """Two directories with all there can be in one: as a clean stop, and a kill, leave it.

    `small` has 900 of 1000 embedded messages, most of them in a segment. `large` and `copy` have
    the same 150 of 600 messages in the message store, where compaction has been; `large` had 3
    transient ones too.
    """
    killed = root.with_name("killed")
    store = Store.open(root, cluster_id="c", node="n1", limits=LIMITS)
    small, large, copy = (store.open_queue(name) for name in (SMALL, LARGE, COPY))

    async def work() -> None:
        for at in range(0, 1000, 50):
            append(small, Publish(at, Block.of(bodies(50, 20, at)), False, b"p", at))
            await store.sync()
        append(small, Remove(((100, 149), (300, 349))))
        for at in range(0, 600, 4):
            block = Block.of(bodies(4, 900, at))
            for queue in (large, copy):
                append(queue, Publish(at, block, message_id=bytes(12) + at.to_bytes(4)))
            await store.sync()
        gone = [range(first, first + 12) for first in range(4, 600, 16)]
        for queue in (large, copy):
            append(queue, Remove(tuple((each[0], min(each[-1], 599)) for each in gone)))
        await store.sync()
        await until(lambda: is_compacted(store))
        append(large, Publish(600, Block.of(bodies(3, 900)), True))
        for queue in (small, large, copy):
            queue.begin_epoch(1)
            append(queue, Remove(()))
        await store.sync()
        await until(lambda: store.statistics().journals_sealed_now == 0)
        await until(lambda: has_copied(store, killed))

    run_store(store, work)
    return root, killed


def is_compacted(store: Store) -> bool:
    """Less than half is garbage, so there is no more to do; a last step may be under way."""
    now = store.statistics().messages
    return now.maps_now > 0 and 2 * now.garbage_bytes_now < now.file_bytes_now


def has_copied(store: Store, target: Path) -> bool:
    """Copies the directory as it is at one moment: compaction goes on in a thread meanwhile."""
    before = names_and_times(store.directory)
    now = store.statistics().messages
    if len(os.listdir(store.directory / PERSISTENT)) != now.maps_now + now.files_now:
        # In the middle of a step.
        return False
    shutil.rmtree(target, ignore_errors=True)
    try:
        shutil.copytree(store.directory, target)
    except shutil.Error:
        return False
    return names_and_times(store.directory) == before


def names_and_times(root: Path) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    for folder, _, files in os.walk(root):
        for name in files:
            try:
                status = os.stat(os.path.join(folder, name))
            except FileNotFoundError:
                continue
            found.append((name, status.st_size, status.st_mtime_ns))
    return sorted(found)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 threads do it
            await asyncio.sleep(0.001)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make(tmp_path_factory.mktemp("made") / "data")


@pytest.fixture
def root(made: tuple[Path, Path], tmp_path: Path) -> Path:
    """What a clean stop leaves, to be damaged."""
    return Path(shutil.copytree(made[0], tmp_path / "data"))


@pytest.fixture
def killed(made: tuple[Path, Path], tmp_path: Path) -> Path:
    """What a killed process leaves, to be damaged."""
    return Path(shutil.copytree(made[1], tmp_path / "data"))


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    """Everything that anyone could have written: names, modes, times, contents."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_mtime_ns, content)
    return found


def check(root: Path) -> Verification:
    """`verify`; nothing is written by it."""
    before = tree(root)
    with open_offline(root) as disk:
        found = verify(DataDirectory(root, disk))
    assert tree(root) == before
    assert found.sound == (found.faults_total == 0)
    return found


def statistics(root: Path) -> DirectoryStatistics:
    before = tree(root)
    with open_offline(root) as disk:
        found = collect(DataDirectory(root, disk))
    assert tree(root) == before
    return found


def headers(path: Path) -> list[Header]:
    data = path.read_bytes()
    format = next(one for one in FORMATS if one.magic == data[:8])
    owner = 0 if format is MESSAGE_FILE else owner_of(path.parent)
    file = RecordFile(str(path), format, len(data), lambda at, n: data[at : at + n], owner)
    return [header for header, _ in file.scan(lambda header, _: header).records]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def queue_file(root: Path, queue: str, name: str) -> Path:
    return root / "queues" / folder_name(queue) / name


def write_version(path: Path, version: int) -> None:
    """Into the header of a queue's file, with the checksum that goes with it."""
    data = bytearray(path.read_bytes())
    data[8:10] = version.to_bytes(2, "little")
    data[24:28] = zlib.crc32(data[:24], owner_of(path.parent)).to_bytes(4, "little")
    path.write_bytes(data)


def below(root: Path, path: Path) -> str:
    return str(path.relative_to(root))


def faults_in(found: Verification, root: Path, path: Path) -> list[Fault]:
    return [fault for fault in found.faults if fault.file == below(root, path)]


# -- sound


@pytest.mark.parametrize("which", ["root", "killed"])
def test_a_directory_that_nothing_happened_to_is_sound(
    which: str, request: pytest.FixtureRequest
) -> None:
    root: Path = request.getfixturevalue(which)
    found = check(root)
    assert found.sound
    assert (found.cluster, found.node) == ("c", "n1")
    assert (found.queues, found.messages, found.messages_transient) == (3, 900 + 2 * 152, 3)
    assert found.messages_unreadable == 0
    assert (found.torn_bytes, found.torn, found.notes) == (0, [], [])
    # All of it was read.
    assert found.bytes_read >= sum(path.stat().st_size for path in root.rglob("*.*"))


def test_a_new_directory_is_sound(tmp_path: Path) -> None:
    Store.open(tmp_path, cluster_id="c", node="n1").close()
    found = check(tmp_path)
    assert found.sound
    assert found.queues == 0


def test_statistics_say_what_was_done(root: Path) -> None:
    found = statistics(root)
    by_name = {queue.queue: queue for queue in found.queues}
    small, large, copy = (by_name[name] for name in (SMALL, LARGE, COPY))
    assert (small.messages, small.bytes, small.ranges) == (900, 900 * 20, 3)
    assert (small.messages_embedded, small.messages_stored, small.segments) == (900, 0, 1)
    assert (small.producers, small.last_op, small.epoch) == (1, 22, 1)
    for queue in (large, copy):
        assert (queue.messages, queue.messages_stored) == (152, 152)
        assert queue.bytes == queue.bytes_stored == 152 * 900
        assert not queue.damaged
        assert (queue.torn_bytes, queue.corruptions, queue.error) == (0, 0, None)
    assert (large.transient_dropped, copy.transient_dropped) == (3, 0)
    persistent, transient = found.stores
    # Both queues refer to each record.
    assert persistent.records == 38
    assert persistent.maps > 0
    assert persistent.references_lost == 0
    bodies_size = sum(path.stat().st_size for path in (root / PERSISTENT).glob("*.rdq"))
    assert persistent.file_bytes == bodies_size == persistent.live_bytes + persistent.garbage_bytes
    # A record, its header, the header and table of sizes of its block.
    assert persistent.live_bytes == 38 * (RECORD_HEADER_BYTES + 8 + 4 * 4 + 4 * 900)
    assert persistent.garbage_fraction < 0.5
    assert transient.live_bytes == 0
    assert found.totals.messages == 900 + 2 * 152
    assert found.totals.garbage_bytes == persistent.garbage_bytes + transient.garbage_bytes


# -- a crash


def test_a_torn_tail_is_told_and_is_sound(killed: Path) -> None:
    journal = queue_file(killed, SMALL, "journal.jif")
    last = headers(journal)[-1]
    os.truncate(journal, last.end - 5)
    found = check(killed)
    assert found.sound
    torn = last.end - 5 - last.offset
    assert found.torn_bytes == torn
    assert [(each.file, each.offset, each.length) for each in found.torn] == [
        (below(killed, journal), last.offset, torn)
    ]


def test_a_torn_tail_of_a_store_file_is_sound_while_nobody_refers_to_it(killed: Path) -> None:
    # The last one that messages were put into; of what compaction wrote all is durable.
    newest = killed / PERSISTENT / "30.rdq"
    size = newest.stat().st_size
    with newest.open("ab") as file:
        file.write(b"\x55" * 100)
    found = check(killed)
    assert found.sound
    assert [(each.file, each.offset, each.length) for each in found.torn] == [
        (below(killed, newest), size, 100)
    ]


def test_leftovers_and_foreign_files_are_noted_and_sound(root: Path) -> None:
    for path in (
        root / "README",
        root / "lost+found" / "x",
        root / "queues" / "notes.txt",
        root / "queues" / f"{folder_name('gone')}.1.gone" / "journal.jif",
        queue_file(root, SMALL, "journal.jif.new"),
        queue_file(root, SMALL, "17.jif.swp"),
        root / PERSISTENT / "99.map.new",
        root / PERSISTENT / "x.rdq",
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"whatever")
    (root / "queues" / folder_name("half made")).mkdir()
    (root / os.fsdecode(b"\xff\x1b[31m")).touch()
    found = check(root)
    assert found.sound
    assert found.notes_total == len(found.notes) == 10
    assert all(note.isprintable() for note in found.notes)


# -- damage


def test_a_flipped_bit_in_a_body_in_a_journal(killed: Path) -> None:
    """Of an op whose body counts: another one behind it says that it was durable."""
    journal = queue_file(killed, SMALL, "journal.jif")
    hit = [header for header in headers(journal) if header.length > 500][-2]
    flip(journal, hit.end - 3)
    found = check(killed)
    fault = faults_in(found, killed, journal)[0]
    assert (fault.offset, fault.length) == (hit.offset, hit.end - hit.offset)
    assert "checksum" in fault.what
    assert fault.queue == SMALL
    # What was in it lives, by what is behind it.
    assert found.messages == 900 + 2 * 152
    assert found.messages_unreadable == 50
    (bare,) = (fault for fault in found.faults if fault.first is not None)
    assert (bare.first, bare.last, bare.queue) == (900, 949, SMALL)


@pytest.mark.parametrize("place", ["header", "table", "body"])
def test_a_flipped_bit_in_a_segment(root: Path, place: str) -> None:
    """Recovery passes over bodies; this doesn't."""
    segment = queue_file(root, SMALL, "0.idx")
    hit = headers(segment)[1]
    at = {"header": 20, "table": RECORD_HEADER_BYTES + 9, "body": hit.end - hit.offset - 1}[place]
    flip(segment, hit.offset + at)
    found = check(root)
    fault, *_ = faults_in(found, root, segment)
    assert (fault.offset, fault.length) == (hit.offset, hit.end - hit.offset)
    assert found.messages_unreadable == 100
    whose = [each for each in found.faults if each.first is not None]
    assert [(each.queue, each.first, each.last) for each in whose] == [(SMALL, 350, 449)]


@pytest.mark.parametrize("queue", [LARGE, COPY])
def test_a_flipped_bit_in_a_table_of_references(root: Path, queue: str) -> None:
    segment = queue_file(root, queue, "0.idx")
    (record,) = headers(segment)
    flip(segment, record.offset + RECORD_HEADER_BYTES + 30)
    found = check(root)
    assert not found.sound
    assert faults_in(found, root, segment)
    assert found.messages_unreadable == 104


@pytest.mark.parametrize("place", ["header", "body"])
def test_a_flipped_bit_in_a_record_of_the_message_store(root: Path, place: str) -> None:
    """Both queues that share it are told, with the positions that are hit."""
    path = root / PERSISTENT / "1.rdq"
    hit = headers(path)[0]
    flip(path, hit.offset + (12 if place == "header" else 2_000))
    found = check(root)
    assert found.messages_unreadable == 8
    told = faults_in(found, root, path)
    assert {(each.offset, each.length) for each in told} == {(hit.offset, hit.end - hit.offset)}
    whose = [(each.queue, each.first, each.last) for each in told if each.queue is not None]
    assert sorted(whose) == [(COPY, 0, 3), (LARGE, 0, 3)]


def test_damage_to_garbage_is_damage_and_no_message_is_lost(root: Path) -> None:
    path = root / PERSISTENT / "1.rdq"
    hit = headers(path)[1]
    flip(path, hit.offset + 2_000)
    found = check(root)
    assert not found.sound
    assert found.messages_unreadable == 0
    assert [(each.offset, each.queue) for each in found.faults] == [(hit.offset, None)]


def test_a_store_file_that_is_missing(root: Path) -> None:
    path = root / PERSISTENT / "1.rdq"
    path.unlink()
    found = check(root)
    assert found.messages_unreadable == 2 * 2 * 4
    told = faults_in(found, root, path)
    assert {each.what for each in told} == {"the file is not there, or is empty"}
    assert {each.queue for each in told} == {LARGE, COPY}


def test_a_store_file_that_was_cut_short(root: Path) -> None:
    path = root / PERSISTENT / "1.rdq"
    last = headers(path)[-1]
    os.truncate(path, last.end - 1)
    found = check(root)
    assert found.messages_unreadable == 8
    assert {each.offset for each in faults_in(found, root, path)} == {last.offset}


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_a_map_that_is_lost(root: Path, harm: str) -> None:
    path = next(iter(sorted((root / PERSISTENT).glob("*.map"))))
    if harm == "gone":
        path.unlink()
    else:
        flip(path, path.stat().st_size - 1)
    found = check(root)
    assert found.messages_unreadable == 8
    assert path.stem in {Path(each.file).stem for each in found.faults}


def test_a_record_in_the_place_of_another(root: Path) -> None:
    """Whole, with a good checksum, in a store file of the same size: but not the same file."""
    one, other = root / PERSISTENT / "1.rdq", root / PERSISTENT / "30.rdq"
    shutil.copyfile(other, one)
    found = check(root)
    assert faults_in(found, root, one)[0].what == "this is file 30"
    assert found.messages_unreadable == 2 * 2 * 4


def test_a_file_of_another_queue(root: Path) -> None:
    path = queue_file(root, SMALL, "0.idx")
    shutil.copyfile(queue_file(root, COPY, "0.idx"), path)
    found = check(root)
    assert faults_in(found, root, path)[0].what == "a file of another kind, or of another queue"
    assert found.messages_unreadable == 800


@pytest.mark.parametrize("name", ["journal.jif", "0.idx", "queue.name"])
def test_a_queue_file_that_is_gone(root: Path, name: str) -> None:
    queue_file(root, SMALL, name).unlink()
    found = check(root)
    assert not found.sound
    with_text = " ".join(fault.what for fault in found.faults)
    assert {"journal.jif": "ops were lost", "0.idx": "no body", "queue.name": "name is lost"}[
        name
    ] in with_text


def test_a_folder_under_a_wrong_name(root: Path) -> None:
    folder = queue_file(root, SMALL, "queue.name").parent
    shutil.copytree(folder, folder.with_name("0" * 32))
    found = check(root)
    assert not found.sound
    assert any("the folder of this queue is" in fault.what for fault in found.faults)


def test_no_number_of_faults_is_too_many(tmp_path: Path) -> None:
    """They are counted, and the first of each file are kept."""
    findings = Findings(tmp_path)
    for offset in range(50):
        findings.add(tmp_path / "1.idx", offset, 1, "damaged")
        findings.add(tmp_path / "1.idx", offset, 1, "the same place again")
    assert findings.faults_total == 50
    assert [fault.offset for fault in findings.faults] == [*range(FAULTS_PER_FILE_MAX)]


# -- what may lie in wait


def test_no_kind_of_file_hangs_it(root: Path) -> None:
    """Pipes, devices, links to nowhere, and directories in the place of files."""
    os.mkfifo(root / PERSISTENT / "70.rdq")
    (root / PERSISTENT / "71.map").mkdir()
    os.mkfifo(queue_file(root, SMALL, "5.idx"))
    queue_file(root, COPY, "6.idx").symlink_to("/dev/zero")
    queue_file(root, COPY, "7.idx").symlink_to("7.idx")
    (root / "queues" / "loop").symlink_to(root)
    os.mkfifo(root / "pipe")
    with open_offline(root) as disk:
        found = verify(DataDirectory(root, disk))
    assert {Path(fault.file).name for fault in found.faults} >= {
        "70.rdq", "71.map", "5.idx", "6.idx", "7.idx"
    }  # fmt: skip
    assert found.messages_unreadable == 0
    assert any(note.startswith("pipe:") for note in found.notes)


def test_numbers_that_would_take_all_memory_are_not_believed(root: Path) -> None:
    """References with good checksums, to records that can't be: no table is made for them."""
    table = array("I", [4])
    locations = [
        # The most that recovery lets through: as many records as there is room for before it.
        RecordLocation(1, 90_000_000, 0xFFFF_FF00, 3668),
        RecordLocation(1, 0, 0xFFFF_FF00, 3668),
        RecordLocation(0xFFFF_FFFE, 90_000_000, 0xFFFF_FF00, 45),
        RecordLocation(1, 4, 14704, 0xFFFF_FFFF),
    ]
    payload = references.encode([Reference(place, 0, table) for place in locations])
    journal = queue_file(root, SMALL, "journal.jif")
    data = journal.read_bytes()
    file = RecordFile(str(journal), JOURNAL, len(data), lambda at, n: data[at : at + n], 0)
    end = headers(journal)[-1]
    header = record_header(
        file.marker, end.end, RecordKind.STORED_FILL, payload, number=0, epoch=end.number
    )
    journal.write_bytes(data + header + payload)
    queue_file(root, SMALL, "0.idx").unlink()
    found = check(root)
    assert found.messages_unreadable == 800
    assert statistics(root).stores[0].references_lost == len(locations)


def test_a_queue_that_another_version_wrote_is_a_fault(root: Path) -> None:
    write_version(queue_file(root, SMALL, "journal.jif"), 7)
    found = check(root)
    (fault,) = found.faults
    assert "has version 7" in fault.what
    assert fault.queue == SMALL
    unreadable = {each.queue: each.error for each in statistics(root).queues}
    assert "has version 7" in str(unreadable[SMALL])
    assert unreadable[LARGE] is None


# -- who else is there


def test_a_directory_that_is_in_use_is_refused(tmp_path: Path) -> None:
    store = Store.open(tmp_path, cluster_id="c", node="n1")
    with pytest.raises(DirectoryInUseError, match=f"in use by process {os.getpid()}: stop"):
        check(tmp_path)
    store.close()
    with open_offline(tmp_path), open_offline(tmp_path), pytest.raises(DirectoryInUseError):
        Store.open(tmp_path, cluster_id="c", node="n1")
    Store.open(tmp_path, cluster_id="c", node="n1").close()


def test_a_copy_without_a_lock_file_is_read(root: Path) -> None:
    (root / "store.lock").unlink()
    assert check(root).sound


def test_what_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.lock").touch()
    with pytest.raises(NotADataDirectoryError, match=r"has no store\.meta"):
        check(tmp_path)


# -- single records


def test_a_queue_is_shown_record_by_record(root: Path) -> None:
    with open_offline(root) as disk:
        found = inspect_queue(DataDirectory(root, disk), SMALL, 1000)
    assert found.live.messages == 900
    assert found.live.ranges == [(0, 99), (150, 299), (350, 999)]
    assert [each.kind for each in found.files] == ["journal", "segment"]
    assert [each.messages_live for each in found.files] == [100, 800]
    assert [each.messages for each in found.files] == [100, 900]
    kinds = [record.kind for record in found.records]
    assert kinds == [*["checkpoint"] * 2, *["op"] * 3, "epoch", "op", "end", *["entry"] * 4]
    assert len(found.records) == found.records_total
    entry = found.records[-4]
    assert (entry.number, entry.messages, entry.messages_live) == (0, 350, 250)
    assert (entry.details["first"], entry.details["last"]) == (0, 349)
    for record, header in zip(
        found.records[8:], headers(queue_file(root, SMALL, "0.idx")), strict=True
    ):
        assert (record.offset, record.length) == (header.offset, header.end - header.offset)


def test_references_are_shown_from_both_sides(root: Path) -> None:
    with open_offline(root) as disk:
        directory = DataDirectory(root, disk)
        queue = inspect_queue(directory, LARGE, 1000)
        stored = inspect_file(directory, PERSISTENT / "1.rdq", 1000)
        moved = inspect_file(directory, next((root / PERSISTENT).glob("*.map")), 1000)
    entry = queue.records[-1]
    locations = entry.details["locations"]
    assert isinstance(locations, list)
    place = {"file": 1, "ordinal": 1, "offset": 3700, "length": 3668}
    assert locations[1] == {**place, "start": 0, "messages": 4}
    assert entry.details["locations_total"] == 101
    counts = [record.details["references"] for record in stored.records]
    assert counts == [2, 0, 0, 0, 2]
    assert stored.records[1].details["message_id"] == (bytes(12) + (4).to_bytes(4)).hex()
    assert (stored.summary.messages, stored.summary.messages_live) == (20, 8)
    assert [record.kind for record in moved.records] == ["moved"]


def test_damage_is_shown_in_its_place(root: Path) -> None:
    segment = queue_file(root, SMALL, "0.idx")
    second = headers(segment)[1]
    flip(segment, second.end - 1)
    with open_offline(root) as disk:
        found = inspect_file(DataDirectory(root, disk), segment, 3)
    assert [record.kind for record in found.records] == ["entry", "damage", "entry"]
    assert (found.records[1].offset, found.records_total) == (second.offset, 4)
    assert "checksum" in str(found.records[1].fault)
    assert found.summary.faults == 1


@pytest.mark.parametrize("path", ["store.meta", "none.idx", "../killed/store.meta", "/dev/zero"])
def test_a_file_without_records_is_refused(root: Path, path: str) -> None:
    with open_offline(root) as disk, pytest.raises(NothingToInspectError):
        inspect_file(DataDirectory(root, disk), Path(path), 10)


# -- at random


def damage(rng: random.Random, path: Path) -> None:
    """As a disk, or a hand, damages a file: a bit, the end, a piece out, in, or zeroed."""
    data = bytearray(path.read_bytes())
    at, size = rng.randrange(len(data)), rng.randrange(1, 300)
    kind = rng.randrange(5)
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        del data[at : at + size]
    elif kind == 3:
        data[at:at] = rng.randbytes(size)
    else:
        data[at : at + size] = bytes(len(data[at : at + size]))
    path.write_bytes(data)


def read_all(root: Path) -> tuple[int, int, bool]:
    """How many messages a node finds, how many it can't read, and whether it reports anything."""
    store = Store.open(root, cluster_id="c", node="n1", limits=LIMITS)
    messages = missing = 0
    bad = bool(store.corruptions)
    for name in store.queue_names():
        queue = store.open_queue(name)
        readable(queue)
        messages += len(queue.state.live)
        missing += len(queue.missing)
        bad |= queue.damaged or bool(queue.corruptions)
    store.close()
    return messages, missing, bad or missing > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(15))
def test_a_node_finds_what_was_foretold(made: tuple[Path, Path], tmp_path: Path, seed: int) -> None:
    """Whatever is damaged: as many messages, as many unreadable, and no trouble unannounced."""
    rng = random.Random(seed)
    root = Path(shutil.copytree(made[seed % 2], tmp_path / "data"))
    files = [path for path in sorted(root.rglob("*.*")) if path.suffix in SUFFIXES]
    for path in rng.sample(files, rng.choice([1, 1, 3])):
        damage(rng, path)
    found = check(root)
    assert statistics(root).totals.messages == found.messages
    messages, missing, bad = read_all(root)
    assert (found.messages, found.messages_unreadable) == (messages, missing)
    assert not (bad and found.sound)


NUMBERS = (0, 1, 255, 1 << 20, (1 << 31) - 1, (1 << 32) - 1, (1 << 62) - 1, 1 << 63, (1 << 64) - 1)


def forge(rng: random.Random, path: Path) -> None:
    """Says in one record, with all checksums right, what no node would say."""
    data = path.read_bytes()
    marker = int.from_bytes(data[12:16], "little")
    its_headers = headers(path)
    chosen = rng.choice(its_headers)
    forged = data[: its_headers[0].offset]
    for header in its_headers:
        payload = bytearray(data[header.offset + RECORD_HEADER_BYTES : header.end])
        fields = {"number": header.number, "epoch": header.epoch, "synced": header.synced}
        kind = header.kind
        if header is chosen:
            choice = rng.randrange(4)
            if choice == 0:
                fields[rng.choice([*fields])] = rng.choice(NUMBERS)
            elif choice == 1:
                kind = rng.choice([*RecordKind])
            elif len(payload) >= 8:
                width = rng.choice([4, 8])
                at = rng.randrange(min(len(payload), 200) // width) * width
                number = rng.choice(NUMBERS) & ((1 << 8 * width) - 1)
                payload[at : at + width] = number.to_bytes(width, "little")
        body = bytes(payload)
        forged += record_header(marker, len(forged), kind, body, **fields) + body
    path.write_bytes(forged)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_nothing_forged_stops_it(made: tuple[Path, Path], tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    root = Path(shutil.copytree(made[seed % 2], tmp_path / "data"))
    suffix = (".jif", ".idx", ".rdq")[seed % 3]
    path = rng.choice([path for path in sorted(root.rglob("*.*")) if path.suffix == suffix])
    forge(rng, path)
    found = check(root)
    assert statistics(root).totals.messages == found.messages
    with open_offline(root) as disk:
        directory = DataDirectory(root, disk)
        inspect_file(directory, path, 100)
        for queue in directory.queues:
            inspect_queue(directory, queue.path.name, 100)
