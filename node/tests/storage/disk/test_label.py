"""The queue's name for people, beside the id by which the store knows it: never trusted."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from node.tests.storage.queue.test_queue_store import publish
from node.tests.storage.simulated_disk import SimulatedDisk
from node.tests.storage.workload import run_store

from ringmq_node.storage import Store
from ringmq_node.storage.disk.data_directory import LABEL_NAME, NAME_NAME, folder_name, keep_label
from ringmq_node.storage.offline import DataDirectory, Verification, open_offline, verify
from ringmq_node.storage.offline.inspection import NothingToInspectError, inspect_queue
from ringmq_node.storage.offline.statistics import collect


def write(root: Path, *queues: tuple[str, str]) -> None:
    """Opens a store with these ids and labels, as a node does."""

    store = Store.open(root, cluster_id="c", node="n1")

    async def work() -> None:
        for queue, label in queues:
            opened = store.open_queue(queue, label=label)
            if not opened.state.last_number:
                # The folder is made with the first op.
                publish(opened, [b"x"])

    run_store(store, work)


def verified(root: Path) -> Verification:
    with open_offline(root) as disk:
        return verify(DataDirectory(root, disk))


def found(root: Path, name: str) -> tuple[str | None, str | None]:
    with open_offline(root) as disk:
        shown = inspect_queue(DataDirectory(root, disk), name, 10)
    return shown.queue, shown.name


def test_a_queue_is_found_by_its_name_its_id_and_its_folder(tmp_path: Path) -> None:
    write(tmp_path, ("id1", "orders"), ("id2", "orders\x1b"), ("id3", ""), ("orders2", "id1"))
    for name in ("orders", "id1", folder_name("id1")):
        assert found(tmp_path, name) == ("id1", "orders")
    assert found(tmp_path, "id3") == ("id3", None)
    with open_offline(tmp_path) as disk:
        statistics = collect(DataDirectory(tmp_path, disk))
    names = {each.queue: each.name for each in statistics.queues}
    assert names == {"id1": "orders", "id2": "orders\x1b", "id3": None, "orders2": "id1"}
    result = verified(tmp_path)
    assert (result.sound, result.notes_total) == (True, 0)
    write(tmp_path, ("id4", "orders"))
    with pytest.raises(NothingToInspectError, match=r"several queues .* say which of id"):
        found(tmp_path, "orders")


def test_a_damaged_label_is_no_fault_and_is_written_anew(tmp_path: Path) -> None:
    write(tmp_path, ("id1", "orders"))
    path = tmp_path / "queues" / folder_name("id1") / LABEL_NAME
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[:8] + b"\xff" + whole[9:], whole + b"more than it was"):
        path.write_bytes(damaged)
        result = verified(tmp_path)
        assert (result.sound, result.notes_total) == (True, 1)
        assert found(tmp_path, "id1") == ("id1", None)
        write(tmp_path, ("id1", "orders"))
        assert path.read_bytes() == whole
    # Of a folder that has nothing else, nothing is left.
    for file in path.parent.iterdir():
        if file.name != LABEL_NAME:
            file.unlink()
    write(tmp_path)
    assert not path.parent.exists()


def test_faults_have_the_name(tmp_path: Path) -> None:
    write(tmp_path, ("id1", "orders"))
    folder = tmp_path / "queues" / folder_name("id1")
    (folder / "journal.jif").write_bytes(b"no journal")
    assert {(each.queue, each.name) for each in verified(tmp_path).faults if each.queue} == {
        ("id1", "orders")
    }
    (folder / NAME_NAME).write_bytes(b"no name")
    with open_offline(tmp_path) as disk:
        (queue,) = DataDirectory(tmp_path, disk).queues
    assert (queue.name, queue.label) == (None, "orders")


def test_a_label_that_cannot_be_written_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedDisk()
    folder = Path("/q")
    disk.write(folder / NAME_NAME, 0, [b"name"])
    disk.writes_left = 0
    with caplog.at_level(logging.WARNING):
        keep_label(disk, folder, "orders")
    assert "'orders' is not kept" in caplog.text
    disk.writes_left = None
    keep_label(disk, folder, "orders")
    before = len(disk.log)
    keep_label(disk, folder, "orders")
    assert len(disk.log) == before
