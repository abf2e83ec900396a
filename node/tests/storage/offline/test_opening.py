"""Directories that may be opened offline, and those that are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from node.tests.storage.offline.directory import (
    check,
)

from ringmq_node.storage import DirectoryInUseError, Store
from ringmq_node.storage.offline import (
    NotADataDirectoryError,
    open_offline,
)


def test_a_directory_that_is_in_use_is_refused(tmp_path: Path) -> None:
    store = Store.open(tmp_path, cluster_id="c", node="n1")
    with pytest.raises(DirectoryInUseError, match=f"in use by process {os.getpid()}: stop"):
        check(tmp_path)
    store.close()
    with open_offline(tmp_path), open_offline(tmp_path), pytest.raises(DirectoryInUseError):
        Store.open(tmp_path, cluster_id="c", node="n1")
    Store.open(tmp_path, cluster_id="c", node="n1").close()


def test_a_copy_without_a_lock_file_is_read(root: Path) -> None:
    (root / "store.lock").unlink()
    assert check(root).sound


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store.lock").touch()
    with pytest.raises(NotADataDirectoryError, match=r"has no store\.meta"):
        check(tmp_path)
