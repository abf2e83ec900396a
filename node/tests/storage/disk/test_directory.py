"""A start finds every queue of its data directory, whatever else happens in there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
from node.tests.storage.queue.test_queue_store import publish
from node.tests.storage.workload import QUEUE, bodies

from ringmq_node.storage import FileDisk, Store
from ringmq_node.storage.disk.data_directory import NAME_NAME, PARTIAL_NAME
from ringmq_node.storage.offline import DataDirectory, open_offline, verify

Appears = Callable[[Path], None]


def real_store(directory: Path) -> Store:
    return Store.open(directory, cluster_id="c", node="n1")


def filled(directory: Path) -> Path:
    """Has a queue with a message; returns its folder."""
    store = real_store(directory)
    queue = store.open_queue(QUEUE)
    publish(queue, [b"confirmed"])
    store.close()
    return queue.directory


def found(directory: Path) -> dict[int, bytes]:
    """What a start finds of the queue."""
    store = real_store(directory)
    try:
        assert store.queue_names() == [QUEUE]
        return bodies(store.open_queue(QUEUE))
    finally:
        store.close()


class Entries(list[os.DirEntry[str]]):
    """As `os.scandir` has them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """There is nothing to close."""


@pytest.fixture
def passing_by(monkeypatch: pytest.MonkeyPatch) -> Appears:
    """Makes a file that is gone when its name has been read, and not yet its size."""
    passing: list[Path] = []
    real = os.scandir

    def scandir(path: Path) -> Entries:
        with real(path) as entries:
            names = Entries(entries)
        for file in [file for file in passing if file.parent == Path(path)]:
            file.unlink()
            passing.remove(file)
        return names

    def make(file: Path) -> None:
        file.write_bytes(b"x")
        passing.append(file)

    monkeypatch.setattr(os, "scandir", scandir)
    return make


def test_a_listing_lacks_only_the_name_that_is_gone(passing_by: Appears, tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"12345")
    passing_by(tmp_path / "passing")
    assert FileDisk().list(tmp_path) == {"kept": 5}


def test_a_queue_outlives_a_file_that_goes_while_its_folder_is_listed(
    passing_by: Appears, tmp_path: Path
) -> None:
    """A copying tool's, for example. The start had removed all of the queue's files."""
    folder = filled(tmp_path)
    passing_by(folder / ".journal.jif.copying")
    assert found(tmp_path) == {0: b"confirmed"}


def test_a_queue_outlives_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    (folder / "link").symlink_to(tmp_path / "nowhere")
    assert found(tmp_path) == {0: b"confirmed"}


def test_files_on_another_disk_are_as_long_there_as_they_are(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    journal = next(folder.glob("*.jif"))
    journal.rename(tmp_path / "elsewhere")
    journal.symlink_to(tmp_path / "elsewhere")
    assert found(tmp_path) == {0: b"confirmed"}


def test_a_start_fails_while_the_disk_with_a_queue_is_not_mounted(tmp_path: Path) -> None:
    """Else the queue is taken for a half-made one, and the link to it goes."""
    folder = filled(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    elsewhere.rename(tmp_path / "unmounted")
    with pytest.raises(FileNotFoundError, match=folder.name):
        real_store(tmp_path)
    (tmp_path / "unmounted").rename(elsewhere)
    assert found(tmp_path) == {0: b"confirmed"}


def test_a_folder_is_not_taken_for_empty_because_its_listing_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = filled(tmp_path)
    real = FileDisk.list
    monkeypatch.setattr(
        FileDisk, "list", lambda disk, path: {} if path == folder else real(disk, path)
    )
    with pytest.raises(OSError, match="not empty"):
        real_store(tmp_path)
    monkeypatch.undo()
    assert found(tmp_path) == {0: b"confirmed"}


@pytest.mark.logs("the queue's name is lost")
def test_who_looks_at_a_directory_is_told_which_folders_a_start_removes(tmp_path: Path) -> None:
    filled(tmp_path)
    half_made, partial = (tmp_path / "queues" / (digit * 32) for digit in "01")
    for folder in (half_made, partial):
        folder.mkdir()
        (folder / NAME_NAME).write_bytes(b"?")
    (partial / PARTIAL_NAME).write_bytes(b"?")
    with open_offline(tmp_path) as disk:
        seen = verify(DataDirectory(tmp_path, disk))
    assert [Path(fault.file).parent.name for fault in seen.faults] == [partial.name]
    real_store(tmp_path).close()
    assert not half_made.exists()
    assert partial.exists()


def test_an_empty_folder_of_a_queue_that_was_never_made_goes(tmp_path: Path) -> None:
    folder = filled(tmp_path)
    (folder.parent / ("0" * 32)).mkdir()
    assert found(tmp_path) == {0: b"confirmed"}
    assert [*folder.parent.iterdir()] == [folder]
