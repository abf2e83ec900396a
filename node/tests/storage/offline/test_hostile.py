"""Files that were made to hang the reader, or to take all its memory."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

from node.tests.storage.offline.directory import (
    COPY,
    LARGE,
    PERSISTENT,
    SMALL,
    check,
    headers,
    queue_file,
    statistics,
    write_version,
)

from ringmq_node.storage.format import references
from ringmq_node.storage.format.formats import JOURNAL
from ringmq_node.storage.format.record_file import RecordFile
from ringmq_node.storage.format.records import RecordKind, record_header
from ringmq_node.storage.format.references import RecordLocation, Reference
from ringmq_node.storage.offline import (
    DataDirectory,
    open_offline,
    verify,
)


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
        # The largest ordinal that recovery lets through: headers alone would fill the file.
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
