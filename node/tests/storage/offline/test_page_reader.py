"""docs/formats.md is complete and exact: a reader written from it finds what a node finds."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path

import pytest
from expected_logs import DAMAGE
from node.tests.storage.offline import page_reader
from node.tests.storage.offline.directory import (
    COPY,
    LARGE,
    LIMITS,
    PERSISTENT,
    SMALL,
    SUFFIXES,
    bodies,
    flip,
    has_copied,
    headers,
    queue_file,
)
from node.tests.storage.offline.page_reader import (
    Queue,
    number,
    read_commit_log,
    read_directory,
    read_set_aside,
)
from node.tests.storage.queue.test_queue_store import append
from node.tests.storage.workload import run_store
from waiting import until

from ringmq_node.model.deaths import DeathReason
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Doom, Publish, Remove, Requeue
from ringmq_node.queue.run import Run
from ringmq_node.storage import QueueStore, Store
from ringmq_node.storage.disk.disk import FileDisk
from ringmq_node.storage.format.formats import FORMATS
from ringmq_node.storage.format.records import RecordKind
from ringmq_node.storage.format.set_aside import DIRECTORY, SetAsideInfo
from ringmq_node.storage.set_aside import SetAsideWriter


@pytest.fixture(params=["root", "killed"])
def directory(request: pytest.FixtureRequest) -> Path:
    return Path(request.getfixturevalue(request.param))


def bodies_of(queue: QueueStore) -> Iterator[tuple[int, bytes]]:
    """All messages that the node can read."""
    there = queue.state.live.copy()
    there.subtract(queue.missing)
    for first, last in there:
        for run in queue.read(first, last, bytes_max=1 << 30, messages_max=1 << 20):
            yield from enumerate(run.block.bodies(), run.first_position)


def assert_same(queue: QueueStore, read: Queue) -> None:
    """`read` is from before the node opened the queue, which drops transient messages."""
    state, mine = queue.state, read.state
    assert (mine.last_op, mine.next_position) == (state.last_number, state.next_position)
    starts = [(each.epoch, each.first_number, each.first_position) for each in state.epochs]
    assert mine.epochs == starts
    assert mine.producers == state.producers
    for positions, ranges in (
        (mine.live - mine.transient, state.live),
        (mine.redelivered - mine.transient, state.redelivered),
    ):
        assert positions == {at for first, last in ranges for at in range(first, last + 1)}
    assert read.missing == {at for first, last in queue.missing for at in range(first, last + 1)}
    if not read.missing:
        assert read.bodies == dict(bodies_of(queue))
    assert mine.damaged == queue.damaged
    doomed = state.doomed
    runs = [] if doomed is None else doomed.runs
    assert mine.letters == {
        run.first + i: (run.letter + i, run.reason.code) for run in runs for i in range(run.count)
    }
    assert mine.next_letter == (0 if doomed is None else doomed.next_letter)


def test_the_page_has_every_format_and_every_kind_of_record() -> None:
    page = (Path(__file__).parents[4] / "docs" / "formats.md").read_text()
    for format in FORMATS:
        magic = format.magic.decode()
        (row,) = (line for line in page.splitlines() if line.startswith(f"| [{format.name}]("))
        assert f"| `{magic}` | {format.version} |" in row
    for kind in RecordKind:
        assert f"| {kind.value} {kind.name.lower().replace('_', ' ')} |" in page, kind


def test_the_reader_uses_nothing_of_ringmq() -> None:
    tree = ast.parse(Path(page_reader.__file__).read_text())
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    modules += [
        a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names
    ]
    assert not [name for name in modules if name.startswith(("ringmq", "node"))]


def test_every_message_and_the_state_are_read_as_a_node_reads_them(directory: Path) -> None:
    read = read_directory(directory)
    assert (read.cluster, read.node) == ("c", "n1")
    assert sum(len(queue.bodies) for queue in read.queues.values()) == 900 + 2 * 152
    assert not any(queue.damage or queue.missing for queue in read.queues.values())
    # Compaction has been here: locations lead through maps.
    assert read.store.maps
    store = Store.open(directory, cluster_id="c", node="n1", limits=LIMITS)
    for name in (SMALL, LARGE, COPY):
        assert_same(store.open_queue(name), read.queues[name])
    store.close()


def test_a_torn_tail_ends_the_log(killed: Path) -> None:
    journal = queue_file(killed, SMALL, "journal.jif")
    last = headers(journal)[-1]
    os.truncate(journal, last.end - 5)
    # It has these bytes, and a start would put them back.
    (killed / "commit-0.log").unlink()
    read = read_directory(killed).queues[SMALL]
    assert read.torn_bytes == last.end - 5 - last.offset
    store = Store.open(killed, cluster_id="c", node="n1", limits=LIMITS)
    assert_same(store.open_queue(SMALL), read)
    store.close()


@pytest.mark.logs(DAMAGE)
def test_damage_is_passed_over_and_named(root: Path) -> None:
    segment = queue_file(root, SMALL, "0.idx")
    hit = headers(segment)[1]
    # In a header: a node that starts doesn't look at the block of a proven record.
    flip(segment, hit.offset + 20)
    read = read_directory(root).queues[SMALL]
    assert read.damage == [(segment, hit.offset, hit.end - hit.offset)]
    assert len(read.missing) == 100
    store = Store.open(root, cluster_id="c", node="n1", limits=LIMITS)
    assert_same(store.open_queue(SMALL), read)
    store.close()


def test_a_lost_record_of_the_message_store_is_missing(root: Path) -> None:
    (root / PERSISTENT / "1.rdq").unlink()
    read = read_directory(root)
    assert [len(read.queues[name].missing) for name in (SMALL, LARGE, COPY)] == [0, 8, 8]


def write_every_kind(root: Path, early: Path, late: Path) -> None:
    """A queue with every kind of record, copied to `early` and to `late` while it is in use.

    It publishes bodies of all sizes, with and without properties, transient ones, and some that
    are removed before their round. Then another state is installed, and bodies are filled in.
    """
    store = Store.open(root, cluster_id="c", node="n1", limits=LIMITS)
    queue, other = store.open_queue("q"), store.open_queue("other")

    async def work() -> None:
        queue.begin_epoch(3)
        for at in range(0, 60, 6):
            sizes = (40, 2_000)[at % 4 == 0]
            block = Block.of(bodies(6, sizes, at), [b"p" * (at + 1)] if at % 12 else [b"q"] * 6)
            message_id = at.to_bytes(16, "big")
            for each in (queue, other):
                append(each, Publish(at, block, False, b"producer", 1000 + at, message_id))
        append(queue, Requeue(((2, 7), (11, 11))))
        append(queue, Doom(DeathReason.MAXLEN, ((30, 33), (2, 5))))
        append(queue, Remove(((0, 3), (20, 25))))
        await store.sync()
        append(queue, Publish(60, Block.of(bodies(4, 30)), transient=True))
        append(queue, Publish(64, Block.of(bodies(2, 900)), False, b"elided"))
        append(queue, Publish(66, Block.of(bodies(2, 30, 2)), False, b"z"))
        append(queue, Remove(((64, 65),)))
        await store.sync()
        # Before the install seals this journal: a flush may delete it at once.
        await until(lambda: has_copied(store, early))
        # As a replica that gives up positions from 50 on, and takes over those of the ring.
        state = deepcopy(queue.state)
        state.live.remove(40, 49)
        state.transient.add(66, 67)
        queue.install(state, keep_below=50)
        queue.fill(50, Block.of(bodies(4, 35, 7)), transient=False)
        queue.fill(54, Block.of(bodies(4, 1_000, 8)), transient=False)
        queue.fill(66, Block.of(bodies(2, 35, 9)), transient=True)
        await store.sync()
        append(queue, Requeue(((0, 1 << 40),)))
        append(queue, Doom(DeathReason.REJECTED, ((31, 31),)))
        await store.sync()
        await until(lambda: has_copied(store, late))

    run_store(store, work)


def test_every_kind_of_record_is_read(made: tuple[Path, Path], tmp_path: Path) -> None:
    root, early, late = (tmp_path / name for name in ("data", "early", "late"))
    write_every_kind(root, early, late)
    read = read_directory(late).queues
    # Live by the installed state, and not filled in.
    assert read["q"].missing == {58, 59}
    assert len(read["q"].bodies) + 2 == len(read["q"].state.live - read["q"].state.transient)
    for directory in (early, late):
        read = read_directory(directory).queues
        store = Store.open(directory, cluster_id="c", node="n1", limits=LIMITS)
        for name in ("q", "other"):
            queue = store.open_queue(name)
            assert_same(queue, read[name])
            assert dict(bodies_of(queue)) == read[name].bodies
        store.close()
    kinds = {
        header.kind
        for directory in (early, late, root, *made)
        for path in directory.rglob("*.*")
        if path.suffix in SUFFIXES - {".map"}
        for header in headers(path)
    }
    # `read_set_aside` and `read_commit_log` have the others.
    assert kinds == {*RecordKind} - {RecordKind.SET_ASIDE, RecordKind.REDO}


def test_a_commit_log_is_read(made: tuple[Path, Path]) -> None:
    _, killed = made
    pieces = read_commit_log(killed / "commit-0.log")
    assert {folder for folder, *_ in pieces} <= {
        path.name for path in (killed / "queues").iterdir()
    }
    for folder, generation, marker, offset, data in pieces:
        journal = (killed / "queues" / folder / "journal.jif").read_bytes()
        assert (number(journal, 16, 8), number(journal, 12, 4)) == (generation, marker)
        assert journal[offset : offset + len(data)] == data


def test_a_set_aside_file_is_read(tmp_path: Path) -> None:
    info = SetAsideInfo("id", "orders", "a", 3, 40, 100, 200, 4, 3, 20, confirmed=True, at_s=7)
    disk = FileDisk()
    writer = SetAsideWriter(disk, tmp_path, info)
    writer.begin()
    writer.add([Run(100, Block.of([b"a", b"bc"], [b"p"]), False, True)])
    writer.add([Run(150, Block.of([b""]), True, False)])
    writer.finish(missing=2)
    disk.close()
    (path,) = (tmp_path / DIRECTORY).iterdir()
    read, bodies = read_set_aside(path)
    assert read == asdict(info)
    assert bodies == {100: b"a", 101: b"bc", 150: b""}
