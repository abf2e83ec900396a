"""Single records of a queue or a file, as `ringmq store inspect` shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from node.tests.storage.offline.directory import (
    LARGE,
    PERSISTENT,
    SMALL,
    flip,
    headers,
    queue_file,
)

from ringmq_node.storage.offline import (
    DataDirectory,
    open_offline,
)
from ringmq_node.storage.offline.inspection import (
    NothingToInspectError,
    inspect_file,
    inspect_queue,
)


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
