"""A data directory with everything that a node can write; the verbs that damage it and read it."""

from __future__ import annotations

import os
import random
import shutil
import zlib
from pathlib import Path

from node.tests.storage.queue.test_queue_store import append
from node.tests.storage.workload import run_store
from waiting import until

from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Publish, Remove
from ringmq_node.storage import Store, StoreLimits
from ringmq_node.storage.disk.data_directory import folder_name
from ringmq_node.storage.format.formats import FORMATS, MESSAGE_FILE
from ringmq_node.storage.format.record_file import RecordFile
from ringmq_node.storage.format.records import Header, owner_of
from ringmq_node.storage.offline import (
    DataDirectory,
    Fault,
    Verification,
    open_offline,
    verify,
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
    """Two directories with everything in them: as a clean stop, and as a kill, leaves it.

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
        await until(lambda: not any(each.on_disk()[-1].unwritten for each in (small, large, copy)))
        await until(lambda: has_copied(store, killed))

    run_store(store, work)
    return root, killed


def is_compacted(store: Store) -> bool:
    """Less than half is garbage, so `policy` chooses no more; a last step may be under way."""
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


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    """Names, times and contents: any write to the directory would change one of them."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_mtime_ns, content)
    return found


def check(root: Path) -> Verification:
    """`verify`, which must not write."""
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
