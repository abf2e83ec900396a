"""A disk that is only read. It remembers recovery's changes, and does none of them.

Recovery renames files that it can't read, removes files that are half made, and replaces a
segment with a torn tail by its own beginning. All three are changes of names here: a name
stands for the first bytes of some real file, or for nothing. They take no memory for contents.
A start also puts bytes of the commit logs into journals. Those that a power cut took are kept here
as patches, `PATCH_BYTES_MAX` of them at most.

No directory can hang the reader, however it was made: only regular files are opened, never with
a write flag, and no more than `READ_BYTES_MAX` is read at a time. One thread.
"""

from __future__ import annotations

import errno
import os
import stat
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ringmq_node.storage.disk.data_directory import LOCK_NAME, take_lock

HANDLES_MAX = 32
# No record that the engine reads whole is larger, except one that was forged to take all memory.
READ_BYTES_MAX = 1 << 30
PATCH_BYTES_MAX = 256 << 20

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(slots=True)
class Names:
    """The contents of a directory: sizes of the regular files, directories, and anything else."""

    files: dict[str, int] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


class Patches:
    """Bytes that a file lacks.

    A killed node leaves up to 20 000 records to the next start, nearly all of them one behind the
    other. So they are kept as few runs, in order, which neither touch nor overlap.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._runs: list[bytearray] = []

    @property
    def end(self) -> int:
        """The offset behind the last of them."""
        return self._starts[-1] + len(self._runs[-1])

    def add(self, offset: int, data: bytes) -> None:
        """Later ones count where they overlap."""
        end = offset + len(data)
        # The runs that touch these bytes, or overlap them.
        low = bisect_right(self._starts, offset) - 1
        if low < 0 or self._starts[low] + len(self._runs[low]) < offset:
            low += 1
        high = bisect_right(self._starts, end)
        if low < high and self._starts[low] <= offset:
            start, run = self._starts[low], self._runs[low]
            run[offset - start : end - start] = data
        else:
            start, run = offset, bytearray(data)
        if low < high:
            # Of the last one something may be behind these bytes.
            run += self._runs[high - 1][start + len(run) - self._starts[high - 1] :]
        self._starts[low:high], self._runs[low:high] = [start], [run]

    def over(self, found: bytes, offset: int, size: int) -> bytes:
        """`found`, which was read at `offset` where `size` bytes were wanted, with these."""
        # A start would leave zeros between the end of the file and bytes that it puts behind that.
        whole = bytearray(found.ljust(min(size, self.end - offset), b"\0"))
        at = max(0, bisect_right(self._starts, offset) - 1)
        while at < len(self._starts) and self._starts[at] < offset + size:
            start, run = self._starts[at], self._runs[at]
            first, last = max(start, offset), min(start + len(run), offset + size)
            if first < last:
                whole[first - offset : last - offset] = run[first - start : last - start]
            at += 1
        return bytes(whole)


class ReadOnlyDisk:
    """A `Disk`. Raises `OSError` when it refuses a call, too."""

    def __init__(self) -> None:
        # Names that recovery has changed, and the first bytes of a real file, or nothing, for each.
        self._aliases: dict[Path, tuple[Path, int] | None] = {}
        # Of real files: bytes that they lack.
        self._patches: dict[Path, Patches] = {}
        self.patched_bytes = 0
        self._handles: OrderedDict[Path, int] = OrderedDict()
        self.bytes_read = 0

    # -- reading

    def read(self, path: Path, offset: int, size: int) -> bytes:
        alias = self._aliases.get(path, (path, -1))
        if alias is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        real, end = alias
        if end >= 0:
            size = min(size, end - offset)
        if size > READ_BYTES_MAX:
            raise OSError(errno.EFBIG, f"{size} bytes are too many to be read at a time", str(path))
        descriptor = self._open(real)
        asked, wanted = offset, size
        pieces: list[bytes] = []
        while size > 0 and (data := os.pread(descriptor, size, offset)):
            pieces.append(data)
            size -= len(data)
            offset += len(data)
            self.bytes_read += len(data)
        found = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        patches = self._patches.get(real)
        return found if patches is None else patches.over(found, asked, wanted)

    def list(self, path: Path) -> dict[str, int]:
        return self.names(path).files

    def names(self, path: Path) -> Names:
        """The contents of a directory; empty if there is no such directory."""
        found = Names()
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    _sort_in(entry, found)
        except (FileNotFoundError, NotADirectoryError):
            return found
        for file, patches in self._patches.items():
            if file.parent == path and file.name in found.files:
                found.files[file.name] = max(found.files[file.name], patches.end)
        for alias, source in self._aliases.items():
            if alias.parent == path:
                found.files.pop(alias.name, None)
                if source is not None:
                    found.files[alias.name] = source[1]
        return found

    def patch(self, path: Path, offset: int, data: bytes) -> None:
        """A start would write these bytes here. Raises `OSError` if they are too many."""
        if self.read(path, offset, len(data)) == data:
            return
        self.patched_bytes += len(data)
        if self.patched_bytes > PATCH_BYTES_MAX:
            raise OSError(errno.EFBIG, "a commit log has too many bytes for this file", str(path))
        self._patches.setdefault(path, Patches()).add(offset, data)

    def _open(self, path: Path) -> int:
        descriptor = self._handles.get(path)
        if descriptor is not None:
            self._handles.move_to_end(path)
            return descriptor
        descriptor = os.open(path, _FLAGS)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        self._handles[path] = descriptor
        if len(self._handles) > HANDLES_MAX:
            os.close(self._handles.popitem(last=False)[1])
        return descriptor

    def close(self) -> None:
        while self._handles:
            os.close(self._handles.popitem()[1])

    # -- changes, only remembered

    def write(
        self, path: Path, offset: int, buffers: Sequence[bytes | memoryview], *, sync: bool = False
    ) -> None:
        """Remembers a copy of a file's beginning: recovery writes nothing else.

        The file is the one of this name without the last suffix. Raises `OSError` if the bytes
        aren't in it at the same offset.
        """
        source = path.with_suffix("")
        for data in buffers:
            if self.read(source, offset, len(data)) != data:
                raise OSError(errno.EROFS, "nothing is written here", str(path))
            offset += len(data)
        self._aliases[path] = (self._real(source), offset)

    def rename(self, old: Path, new: Path) -> None:
        alias = self._aliases.get(old)
        if alias is None:
            alias = (old, os.stat(old).st_size)
        self._aliases[new] = alias
        self._aliases[old] = None

    def remove(self, path: Path) -> None:
        self._aliases[path] = None

    def sync(self, path: Path) -> None:
        """Nothing was written."""

    def sync_all(self, directory: Path) -> None:
        """Nothing was written."""

    def forget(self, folder: Path) -> None:
        """Drops the changes to names in `folder`: they are as on the disk again."""
        for path in [path for path in self._aliases if path.parent == folder]:
            del self._aliases[path]

    def _real(self, path: Path) -> Path:
        alias = self._aliases.get(path)
        return path if alias is None else alias[0]


def _sort_in(entry: os.DirEntry[str], found: Names) -> None:
    try:
        status = entry.stat()
    except OSError:
        # A link to nowhere, or to itself.
        found.others.append(entry.name)
        return
    if stat.S_ISREG(status.st_mode):
        found.files[entry.name] = status.st_size
    elif stat.S_ISDIR(status.st_mode):
        found.folders.append(entry.name)
    else:
        found.others.append(entry.name)


@contextmanager
def open_offline(directory: Path) -> Iterator[ReadOnlyDisk]:
    """A disk to read `directory` with, for as long as no node can open that.

    Holds the lock of the directory, shared, so several readers may go on at a time. A directory
    without a lock file is a copy, and is read as it is. Raises `DirectoryInUseError`, `OSError`.
    """
    lock = _lock(directory)
    disk = ReadOnlyDisk()
    try:
        yield disk
    finally:
        disk.close()
        if lock is not None:
            os.close(lock)


def _lock(directory: Path) -> int | None:
    try:
        descriptor = os.open(directory / LOCK_NAME, _FLAGS)
    except FileNotFoundError:
        return None
    take_lock(descriptor, directory, "stop that node, or look at a copy", shared=True)
    return descriptor
