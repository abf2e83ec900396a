"""A read that fails is told from a write that fails, and from a directory that was closed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringmq_node.storage.disk.disk import FileDisk
from ringmq_node.storage.disk.reads import ReadErrorDisk
from ringmq_node.storage.errors import ReadError, is_of_one_queue


def test_what_is_missing_is_a_read_that_failed(tmp_path: Path) -> None:
    files = FileDisk()
    with pytest.raises(ReadError) as caught:
        ReadErrorDisk(files).read(tmp_path / "nothing", 0, 1)
    assert is_of_one_queue(caught.value)
    files.close()


def test_a_directory_that_was_closed_is_no_fault_of_a_file(tmp_path: Path) -> None:
    """A queue that a stop leaves half read isn't quarantined."""
    files = FileDisk()
    files.write(tmp_path / "file", 0, [b"x"])
    files.close()
    with pytest.raises(OSError, match="was closed") as caught:
        ReadErrorDisk(files).read(tmp_path / "file", 0, 1)
    with pytest.raises(OSError, match="was closed"):
        ReadErrorDisk(files).list(tmp_path)
    # As those say it that read through a disk which tells nothing apart.
    told = ReadError("file: can't be read")
    told.__cause__ = caught.value
    assert not is_of_one_queue(told)
