"""The disk, as seven calls, and the real one. Tests have one that can lose its power.

The engine relies on this, and a file system has to give it:

* After `sync(file)` all that was written to the file survives a power cut. Before it, any part of
  any write may survive or not.
* After `sync(directory)` so do the creations, renames and removals in it. Before it, each of them
  may have happened or not, but a rename never half.
* After `sync_all(directory)` so does everything that was done below it.
* After `write(..., sync=True)` the bytes of this write survive, and earlier ones need not.
* A call that raises `OSError` may have done any part of its work.

Calls come from several threads. No two at a time write to one file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ringmq_node.storage.errors import DirectoryClosedError

HANDLES_MAX = 512
IOV_MAX = 1024


class Disk(Protocol):
    """All the I/O of the engine. Raises `OSError`, and nothing else."""

    def write(
        self, path: Path, offset: int, buffers: Sequence[bytes | memoryview], *, sync: bool = False
    ) -> None:
        """Writes `buffers` one after another. Makes the file and its directory if missing."""

    def sync(self, path: Path) -> None:
        """Makes a file's data, or a directory's entries, durable."""

    def sync_all(self, directory: Path) -> None:
        """Makes everything below `directory` durable that was written so far, and itself too."""

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def rename(self, old: Path, new: Path) -> None:
        """Atomically puts the file or directory `old` in the place of `new`."""

    def remove(self, path: Path) -> None:
        """Removes a file or an empty directory. A path that doesn't exist is no error."""

    def list(self, path: Path) -> dict[str, int]:
        """The names in a directory, and the sizes in bytes; empty if there is no such directory."""


@dataclass(slots=True, eq=False)
class _Handle:
    descriptor: int
    users: int = 0
    # The file was removed, renamed over or evicted: the handle's last user closes it.
    retired: bool = False


class FileDisk:
    """A `Disk` of real files. Keeps up to `HANDLES_MAX` of them open.

    Once it is closed every call raises. Another life may have the directory by then, and a thread
    that is late must neither open its files nor rename anything in it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: OrderedDict[Path, _Handle] = OrderedDict()
        self._refuses = False

    def write(
        self, path: Path, offset: int, buffers: Sequence[bytes | memoryview], *, sync: bool = False
    ) -> None:
        handle = self._acquire(path, create=True)
        try:
            if len(buffers) <= IOV_MAX and sync:
                # One system call: after each one the thread waits for the interpreter's lock.
                size = sum(map(len, buffers))
                if os.pwritev(handle.descriptor, buffers, offset, os.RWF_DSYNC) == size:
                    return
            for index in range(0, len(buffers), IOV_MAX):
                offset = _write_all(handle.descriptor, offset, buffers[index : index + IOV_MAX])
            if sync:
                os.fdatasync(handle.descriptor)
        finally:
            self._release(handle)

    def sync(self, path: Path) -> None:
        self._check(path)
        if path.is_dir():
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            return
        handle = self._acquire(path, create=False)
        try:
            os.fdatasync(handle.descriptor)
        finally:
            self._release(handle)

    def sync_all(self, directory: Path) -> None:
        self._check(directory)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _sync_file_system(descriptor)
        finally:
            os.close(descriptor)

    def read(self, path: Path, offset: int, size: int) -> bytes:
        handle = self._acquire(path, create=False)
        try:
            data = os.pread(handle.descriptor, size, offset)
            if len(data) == size or not data:
                return data
            pieces = [data]
            missing = size - len(data)
            while missing and (
                data := os.pread(handle.descriptor, missing, offset + size - missing)
            ):
                pieces.append(data)
                missing -= len(data)
            return b"".join(pieces)
        finally:
            self._release(handle)

    def rename(self, old: Path, new: Path) -> None:
        self._check(old)
        # Not under the lock: if this call hangs, other threads must go on with other files. The
        # caller sees to it that nobody reads under either name meanwhile (`QueueFile.lock`).
        os.rename(old, new)
        with self._lock:
            self._retire(new)
            handle = self._handles.pop(old, None)
            if handle is not None:
                self._handles[new] = handle
            # A directory may have been renamed. Compared as text: asking `path.parents` of 512
            # handles takes 20 ms, with the lock held.
            below = f"{old}{os.sep}"
            inside = [path for path in self._handles if str(path).startswith(below)]
            for path in inside:
                self._retire(path)

    def remove(self, path: Path) -> None:
        self._check(path)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            os.rmdir(path)
        # Afterwards: a reader in between would open the file again, and keep its room on the disk.
        with self._lock:
            self._retire(path)

    def list(self, path: Path) -> dict[str, int]:
        self._check(path)
        try:
            entries = os.scandir(path)
        except FileNotFoundError:
            # A link whose disk isn't mounted is no directory that nobody has made yet.
            if os.path.islink(path):
                raise
            return {}
        sizes: dict[str, int] = {}
        with entries:
            for entry in entries:
                # Its name may have gone since it was read: whoever has put a file of his own here
                # takes it away again. The others must not seem to be gone with it.
                with suppress(FileNotFoundError):
                    sizes[entry.name] = _size_of(entry)
        return sizes

    def refuse(self) -> None:
        """Every later call raises. Those that are under way go on."""
        self._refuses = True

    def close(self) -> None:
        """Closes every file, and refuses later calls. Nothing is synced by this."""
        self.refuse()
        with self._lock:
            for path in [*self._handles]:
                self._retire(path)

    def _check(self, path: Path) -> None:
        if self._refuses:
            raise DirectoryClosedError(errno.EBADF, "the data directory was closed", str(path))

    def _acquire(self, path: Path, *, create: bool) -> _Handle:
        with self._lock:
            # With the lock: what is opened behind `close` would stay open.
            self._check(path)
            handle = self._handles.get(path)
            if handle is None:
                handle = _Handle(_open(path, create=create))
                self._handles[path] = handle
                if len(self._handles) > HANDLES_MAX:
                    self._retire(next(iter(self._handles)))
            else:
                self._handles.move_to_end(path)
            handle.users += 1
            return handle

    def _release(self, handle: _Handle) -> None:
        with self._lock:
            handle.users -= 1
            if handle.retired and handle.users == 0:
                os.close(handle.descriptor)

    def _retire(self, path: Path) -> None:
        handle = self._handles.pop(path, None)
        if handle is not None:
            handle.retired = True
            if handle.users == 0:
                os.close(handle.descriptor)


def _size_of(entry: os.DirEntry[str]) -> int:
    """Raises `FileNotFoundError` if the name has gone."""
    try:
        return entry.stat().st_size
    except FileNotFoundError:
        # Or it is a link that leads nowhere, which is a name all the same.
        return entry.stat(follow_symlinks=False).st_size


def _open(path: Path, *, create: bool) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    if not create:
        return os.open(path, flags)
    try:
        return os.open(path, flags | os.O_CREAT, 0o640)
    except FileNotFoundError:
        os.makedirs(path.parent, mode=0o750, exist_ok=True)
        return os.open(path, flags | os.O_CREAT, 0o640)


def _sync_file_system(descriptor: int) -> None:
    """syncfs(2), which Python has no name for. Unlike sync(2) it reports a failed write."""
    try:
        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except AttributeError:
        # Not Linux.
        os.sync()
        return
    if syncfs(descriptor) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"syncfs: {os.strerror(error)}")


def _write_all(descriptor: int, offset: int, buffers: Sequence[bytes | memoryview]) -> int:
    """Writes all of `buffers`, with more calls if the system stops short; returns the new end."""
    written = os.pwritev(descriptor, buffers, offset)
    size = sum(map(len, buffers))
    if written < size:
        rest = memoryview(b"".join(buffers))[written:]
        while rest:
            written = os.pwrite(descriptor, rest, offset + size - len(rest))
            rest = rest[written:]
    return offset + size
