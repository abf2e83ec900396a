"""A disk whose failed reads are told from failed writes.

A write or a sync that fails closes the store. A read that fails gives nothing up: the bytes may be
whole, and only what they belong to can't be served just now. Whoever reads and writes in one go,
as recovery does, can't tell the two by an `OSError`. A directory that was closed meanwhile is no
failed read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import DirectoryClosedError, ReadError


class ReadErrorDisk:
    """A `Disk`, but that `read` and `list` raise `ReadError`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def read(self, path: Path, offset: int, size: int) -> bytes:
        try:
            return self._disk.read(path, offset, size)
        except DirectoryClosedError:
            raise
        except OSError as error:
            raise ReadError.of(path, error) from error

    def list(self, path: Path) -> dict[str, int]:
        try:
            return self._disk.list(path)
        except DirectoryClosedError:
            raise
        except OSError as error:
            raise ReadError.of(path, error) from error

    # -- as they are

    def write(
        self, path: Path, offset: int, buffers: Sequence[bytes | memoryview], *, sync: bool = False
    ) -> None:
        self._disk.write(path, offset, buffers, sync=sync)

    def sync(self, path: Path) -> None:
        self._disk.sync(path)

    def sync_all(self, directory: Path) -> None:
        self._disk.sync_all(directory)

    def rename(self, old: Path, new: Path) -> None:
        self._disk.rename(old, new)

    def remove(self, path: Path) -> None:
        self._disk.remove(path)
