"""Damage and forgeries at random: foretold as a node finds it, and never the end of the reader."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from expected_logs import DAMAGE
from node.tests.storage.offline.directory import (
    LIMITS,
    SUFFIXES,
    check,
    headers,
    statistics,
)
from node.tests.storage.queue.test_damage import readable

from ringmq_node.storage import Store
from ringmq_node.storage.format.records import RECORD_HEADER_BYTES, RecordKind, record_header
from ringmq_node.storage.offline import (
    DataDirectory,
    open_offline,
)
from ringmq_node.storage.offline.inspection import (
    inspect_file,
    inspect_queue,
)


def damage(rng: random.Random, path: Path) -> None:
    """A bit flips, the end is cut off, or a piece is cut out, put in or zeroed."""
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
    """The messages that a node finds, those that it can't read, and whether it reports anything."""
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
@pytest.mark.compute
@pytest.mark.parametrize("seed", range(15))
@pytest.mark.may_log(DAMAGE)
def test_a_node_finds_what_was_foretold(made: tuple[Path, Path], tmp_path: Path, seed: int) -> None:
    """As many messages, as many unreadable, and a node reports nothing that `verify` didn't."""
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
    """Rewrites one record with a value that no node writes, and all checksums right."""
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
@pytest.mark.compute
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
