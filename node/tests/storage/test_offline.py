"""A data directory read offline: what is in it, and each kind of damage told from a crash."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from node.tests.storage.test_queue_store import append
from node.tests.storage.workload import run_store

from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Publish, Remove
from ringmq_node.storage import Store, StoreLimits
from ringmq_node.storage.directory import folder_name
from ringmq_node.storage.offline import (
    DataDirectory,
    Fault,
    Verification,
    open_offline,
    verify,
)
from ringmq_node.storage.offline.statistics import DirectoryStatistics, collect
from ringmq_node.storage.records import (
    BODIES_MAGIC,
    RECORD_HEADER_BYTES,
    Header,
    RecordFile,
    owner_of,
)

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
        shutil.copytree(root, killed)

    run_store(store, work)
    return root, killed


def is_compacted(store: Store) -> bool:
    """There is no more to do, and what there was is done."""
    now = store.statistics().messages
    names = os.listdir(store.directory / PERSISTENT)
    return (
        now.maps_now > 0
        and 2 * now.garbage_bytes_now < now.file_bytes_now
        and len(names) == now.maps_now + now.files_now
    )


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
    magic = data[:8]
    owner = 0 if magic == BODIES_MAGIC else owner_of(path.parent)
    file = RecordFile(str(path), magic, len(data), lambda at, n: data[at : at + n], owner)
    return [header for header, _ in file.scan(lambda header, _: header).records]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def queue_file(root: Path, queue: str, name: str) -> Path:
    return root / "queues" / folder_name(queue) / name


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
    newest = max((killed / PERSISTENT).glob("*.rdq"), key=lambda path: int(path.stem))
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
    blocks = [header for header in headers(journal) if header.length > 500]
    hit = blocks[-1]
    flip(journal, hit.end - 3)
    found = check(killed)
    fault = faults_in(found, killed, journal)[0]
    assert (fault.offset, fault.length) == (hit.offset, hit.end - hit.offset)
    assert "checksum" in fault.what
    assert fault.queue == SMALL
