"""Which failures of a store may pass, and when a node looks whether one has."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from ringmq_node.shortage import PAUSE_S_MAX, PAUSE_S_MIN, Pauses, drop_cached, missing
from ringmq_node.storage.errors import (
    DiskHangsError,
    ReadError,
    StoreError,
    failure_of,
    is_shortage,
)


def caused(error: StoreError, cause: Exception) -> StoreError:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("failure", "passes"),
    [
        (failure_of(OSError(errno.ENOSPC, "full")), True),
        (failure_of(OSError(errno.EDQUOT, "quota")), True),
        (failure_of(OSError(errno.EMFILE, "files")), True),
        (failure_of(OSError(errno.ENFILE, "files")), True),
        (caused(ReadError("a file"), OSError(errno.EMFILE, "files")), True),
        (failure_of(OSError(errno.EIO, "the disk")), False),
        (caused(ReadError("a file"), OSError(errno.EIO, "the disk")), False),
        (DiskHangsError("a write"), False),
    ],
    ids=str,
)
def test_what_may_come_back(failure: StoreError, passes: bool) -> None:
    assert is_shortage(failure) is passes


def test_pauses_double_while_one_life_after_another_fails() -> None:
    pauses = Pauses()
    assert [pauses.after(1.0) for _ in range(9)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert pauses.after(11 * PAUSE_S_MAX) == PAUSE_S_MIN


def test_a_process_without_descriptors_lacks_them(tmp_path: Path) -> None:
    assert missing(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 10, hard))
    try:
        assert "Too many open files" in missing(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) == used


def test_files_are_as_they_were_after_the_kernel_has_dropped_them(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"x" * 10_000)
    drop_cached(tmp_path)
    assert (tmp_path / "folder" / "file").read_bytes() == b"x" * 10_000
