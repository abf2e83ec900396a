"""Directories that are sound: as a stop, a kill or a crash left them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from node.tests.storage.offline.directory import (
    COPY,
    LARGE,
    PERSISTENT,
    SMALL,
    below,
    check,
    headers,
    queue_file,
    statistics,
)

from ringmq_node.storage import Store
from ringmq_node.storage.commit_log import LOG_NAMES
from ringmq_node.storage.disk.data_directory import folder_name
from ringmq_node.storage.format.records import RECORD_HEADER_BYTES


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


def test_statistics_count_every_message_and_byte(root: Path) -> None:
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


def test_a_torn_tail_is_told_and_is_sound(killed: Path) -> None:
    journal = queue_file(killed, SMALL, "journal.jif")
    last = headers(journal)[-1]
    os.truncate(journal, last.end - 5)
    # It has the bytes that are torn here: see the next test.
    (killed / LOG_NAMES[0]).unlink()
    found = check(killed)
    assert found.sound
    torn = last.end - 5 - last.offset
    assert found.torn_bytes == torn
    assert [(each.file, each.offset, each.length) for each in found.torn] == [
        (below(killed, journal), last.offset, torn)
    ]


def test_bytes_that_only_the_commit_log_has_are_read_from_it(killed: Path) -> None:
    """As the next start does, and in memory only."""
    before = check(killed)
    journal = queue_file(killed, SMALL, "journal.jif")
    last = headers(journal)[-1]
    os.truncate(journal, last.end - 5)
    found = check(killed)
    assert found.sound
    assert (found.messages, found.torn_bytes) == (before.messages, 0)
    assert [note.split(":")[0] for note in found.notes] == [LOG_NAMES[0]]
    assert journal.stat().st_size == last.end - 5


def test_a_torn_tail_of_a_store_file_is_sound_while_nobody_refers_to_it(killed: Path) -> None:
    # The last file that `put` wrote. Maps prove the files of compaction to be durable to the end.
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
