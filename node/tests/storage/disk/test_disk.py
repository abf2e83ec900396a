"""The real disk keeps the promises that the engine relies on."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringmq_node.storage.disk import disk as disk_module
from ringmq_node.storage.disk.disk import FileDisk


@pytest.fixture
def disk() -> Iterator[FileDisk]:
    made = FileDisk()
    yield made
    made.close()


def test_all_that_was_written_is_synced_in_one_call(disk: FileDisk, tmp_path: Path) -> None:
    disk.write(tmp_path / "folder" / "file", 0, [b"x"])
    before = open_files()
    disk.sync_all(tmp_path)
    disk.sync_all(tmp_path / "folder")
    assert open_files() == before
    with pytest.raises(FileNotFoundError):
        disk.sync_all(tmp_path / "nothing")


def test_file_system_that_fails_to_sync_is_an_error() -> None:
    with pytest.raises(OSError, match="syncfs") as caught:
        disk_module._sync_file_system(-1)
    assert caught.value.errno == errno.EBADF


def test_system_without_syncfs_syncs_everything(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    monkeypatch.setattr(os, "sync", lambda: called.append("sync"))
    disk.sync_all(tmp_path)
    assert called == ["sync"]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("count", [1, 3, disk_module.IOV_MAX, disk_module.IOV_MAX * 2 + 7])
def test_buffers_are_written_one_after_another(
    disk: FileDisk, tmp_path: Path, count: int, sync: bool
) -> None:
    buffers = [b"%d;" % i for i in range(count)]
    path = tmp_path / "new" / "folder" / "file"
    disk.write(path, 0, [b"head"])
    disk.write(path, 4, buffers, sync=sync)
    whole = b"head" + b"".join(buffers)
    assert path.read_bytes() == whole
    assert disk.read(path, 0, 1 << 20) == whole
    assert disk.read(path, 4, 2) == b"0;"
    assert disk.read(path, len(whole), 5) == b""


@pytest.mark.parametrize("taken", [1, 3, 7])
def test_short_writes_are_gone_on_with(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    real = os.pwrite

    def short(fd: int, buffers: list[bytes | memoryview], offset: int, flags: int = 0) -> int:
        return real(fd, b"".join(buffers)[:taken], offset)

    monkeypatch.setattr(os, "pwritev", short)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:taken], at))
    for sync in (True, False):
        path = tmp_path / f"file-{sync}"
        disk.write(path, 0, [b"abcd", b"efgh", b"ij"], sync=sync)
        assert path.read_bytes() == b"abcdefghij"


def test_only_so_many_files_stay_open(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_module, "HANDLES_MAX", 4)
    before = open_files()
    for i in range(20):
        disk.write(tmp_path / str(i), 0, [b"%d" % i])
    assert open_files() <= before + 4
    assert all(disk.read(tmp_path / str(i), 0, 9) == b"%d" % i for i in range(20))
    disk.close()
    assert open_files() == before


def test_renamed_file_is_found_under_its_new_name_only(disk: FileDisk, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    disk.write(old, 0, [b"first"])
    disk.write(new, 0, [b"replaced"])
    disk.rename(old, new)
    assert disk.read(new, 0, 10) == b"first"
    with pytest.raises(FileNotFoundError):
        disk.read(old, 0, 10)
    disk.write(old, 0, [b"second"])
    assert disk.read(new, 0, 10) == b"first"
    assert disk.list(tmp_path) == {"old": 6, "new": 5}


def test_files_in_a_renamed_folder_are_found_there(disk: FileDisk, tmp_path: Path) -> None:
    disk.write(tmp_path / "a" / "file", 0, [b"x"])
    disk.rename(tmp_path / "a", tmp_path / "b")
    disk.write(tmp_path / "a" / "file", 0, [b"other"])
    assert disk.read(tmp_path / "b" / "file", 0, 9) == b"x"


def test_removing_what_is_not_there_is_no_error(disk: FileDisk, tmp_path: Path) -> None:
    disk.remove(tmp_path / "nothing")
    assert disk.list(tmp_path / "nothing") == {}
    disk.write(tmp_path / "folder" / "file", 0, [b"x"])
    disk.remove(tmp_path / "folder" / "file")
    disk.remove(tmp_path / "folder")
    assert disk.list(tmp_path) == {}


def test_file_in_use_by_a_thread_is_not_closed_under_it(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    disk.write(path, 0, [b"x"])
    inside, go_on = threading.Event(), threading.Event()
    real = os.fdatasync

    def slow(descriptor: int) -> None:
        inside.set()
        assert go_on.wait(10)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow)
    errors: list[BaseException] = []

    def sync() -> None:
        try:
            disk.sync(path)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=sync)
    thread.start()
    assert inside.wait(10)
    disk.remove(path)
    go_on.set()
    thread.join(10)
    assert errors == []


@pytest.mark.parametrize("end", [FileDisk.refuse, FileDisk.close])
def test_a_disk_that_was_closed_does_nothing_more(
    disk: FileDisk, tmp_path: Path, end: Callable[[FileDisk], None]
) -> None:
    """A thread of a life that is over must not touch the files of the next one."""
    path = tmp_path / "file"
    disk.write(path, 0, [b"next life's"])
    end(disk)
    calls: list[Callable[[], object]] = [
        lambda: disk.write(path, 0, [b"x"]),
        lambda: disk.write(tmp_path / "new", 0, [b"x"], sync=True),
        lambda: disk.sync(path),
        lambda: disk.sync(tmp_path),
        lambda: disk.sync_all(tmp_path),
        lambda: disk.read(path, 0, 1),
        lambda: disk.rename(path, tmp_path / "new"),
        lambda: disk.remove(path),
        lambda: disk.list(tmp_path),
    ]
    for call in calls:
        with pytest.raises(OSError, match="was closed"):
            call()
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"file": b"next life's"}


def test_a_file_that_is_read_as_it_is_removed_keeps_no_room(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    disk.write(path, 0, [b"removed"])
    before = open_files()
    real = os.unlink

    def unlink(removed: Path) -> None:
        # A thread that reads, just then.
        assert disk.read(path, 0, 10) == b"removed"
        real(removed)

    monkeypatch.setattr(os, "unlink", unlink)
    disk.remove(path)
    monkeypatch.undo()
    assert open_files() == before - 1
    with pytest.raises(FileNotFoundError):
        disk.read(path, 0, 10)
    disk.write(path, 0, [b"next"])
    assert path.read_bytes() == b"next"


def test_rename_that_hangs_holds_up_no_other_file(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the event loop, which reads, waits as well, and can't say that the disk hangs."""
    disk.write(tmp_path / "old", 0, [b"old"])
    disk.write(tmp_path / "other", 0, [b"other"])
    hanging, go = threading.Event(), threading.Event()
    rename = os.rename

    def slow(old: Path, new: Path) -> None:
        hanging.set()
        assert go.wait(10)
        rename(old, new)

    monkeypatch.setattr(os, "rename", slow)
    renaming = threading.Thread(target=disk.rename, args=(tmp_path / "old", tmp_path / "new"))
    renaming.start()
    assert hanging.wait(10)
    found: list[bytes] = []
    reading = threading.Thread(target=lambda: found.append(disk.read(tmp_path / "other", 0, 9)))
    reading.start()
    reading.join(5)
    came_back = not reading.is_alive()
    go.set()
    renaming.join()
    reading.join()
    assert came_back
    assert found == [b"other"]
    assert disk.read(tmp_path / "new", 0, 9) == b"old"
    with pytest.raises(FileNotFoundError):
        disk.read(tmp_path / "old", 0, 9)
