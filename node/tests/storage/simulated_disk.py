"""A disk in memory that can lose its power.

It keeps as much as the `Disk` protocol demands, and no more. Of unsynced changes, a power cut may
lose all, keep all, or keep any part: single writes, single sectors of a write, single changes of a
directory. It records every call that changes something, so that the
power can be cut after each of them.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Literal

SECTOR_BYTES = 512

Kept = Literal["nothing", "everything", "anything"]


@dataclass
class File:
    data: bytearray = field(default_factory=bytearray)
    stable: bytes = b""
    pending: list[tuple[int, bytes]] = field(default_factory=list)


@dataclass
class Folder:
    names: dict[str, File | Folder] = field(default_factory=dict)
    stable: dict[str, File | Folder] = field(default_factory=dict)
    # Unsynced changes: old name or None, new name or None, and the file or folder.
    pending: list[tuple[str | None, str | None, File | Folder]] = field(default_factory=list)

    def change(self, old: str | None, new: str | None, what: File | Folder) -> None:
        _apply(self.names, old, new, what)
        self.pending.append((old, new, what))


def _apply(
    names: dict[str, File | Folder], old: str | None, new: str | None, what: File | Folder
) -> None:
    if old is not None and names.get(old) is what:
        del names[old]
    if new is not None:
        names[new] = what


@dataclass(frozen=True)
class Call:
    """One recorded change."""

    name: str
    path: Path
    offset: int = 0
    data: bytes = b""
    new: Path | None = None


class SimulatedDisk:
    """A `Disk`. Thread-safe, as the real one is."""

    def __init__(self) -> None:
        self.root = Folder()
        self.log: list[Call] = []
        # The number of writes that may still succeed, and the error that the one after them raises.
        self.writes_left: int | None = None
        self.syncs_left: int | None = None
        self.failure = errno.ENOSPC
        self._lock = threading.Lock()

    # -- Disk

    def write(
        self, path: Path, offset: int, buffers: Sequence[bytes | memoryview], *, sync: bool = False
    ) -> None:
        with self._lock:
            data = b"".join(buffers)
            if self.writes_left is not None:
                if self.writes_left == 0:
                    # A full disk takes as many bytes as it has room for.
                    self._change(Call("write", path, offset, data[: len(data) // 2]))
                    raise OSError(self.failure, "simulated", str(path))
                self.writes_left -= 1
            self._change(Call("write", path, offset, data))
            if sync:
                self._may_sync(path)
                self._change(Call("sync", path, offset, data))

    def sync(self, path: Path) -> None:
        with self._lock:
            self._sync(path)

    def _sync(self, path: Path) -> None:
        self._may_sync(path)
        if self._find(path) is None:
            # Not a change: nothing to be done again by a replay.
            raise FileNotFoundError(errno.ENOENT, "simulated", str(path))
        self._change(Call("sync", path))

    def _may_sync(self, path: Path) -> None:
        if self.syncs_left is not None:
            if self.syncs_left == 0:
                raise OSError(self.failure, "simulated", str(path))
            self.syncs_left -= 1

    def sync_all(self, directory: Path) -> None:
        with self._lock:
            if self.syncs_left is not None:
                if self.syncs_left == 0:
                    raise OSError(self.failure, "simulated", str(directory))
                self.syncs_left -= 1
            self._change(Call("sync_all", directory))

    def read(self, path: Path, offset: int, size: int) -> bytes:
        with self._lock:
            return bytes(self._file(path).data[offset : offset + size])

    def rename(self, old: Path, new: Path) -> None:
        with self._lock:
            self._change(Call("rename", old, new=new))

    def remove(self, path: Path) -> None:
        with self._lock:
            if self._find(path) is not None:
                self._change(Call("remove", path))

    def list(self, path: Path) -> dict[str, int]:
        with self._lock:
            folder = self._find(path)
            if not isinstance(folder, Folder):
                return {}
            return {
                name: len(what.data) if isinstance(what, File) else 0
                for name, what in folder.names.items()
            }

    # -- for the tests

    def do(self, call: Call) -> None:
        """Does a call that another disk has recorded."""
        self._change(call)

    def power_cut(self, kept: Kept, rng: random.Random) -> SimulatedDisk:
        """The disk after the power has come back."""
        after = SimulatedDisk()
        with self._lock:
            after.root = _survivor(self.root, kept, rng)
        return after

    def files(self) -> Iterator[Path]:
        """All files there are at this moment; the store's threads may go on changing them."""
        with self._lock:
            return iter([*_walk(self.root, Path("/"))])

    def sizes(self) -> dict[Path, int]:
        """The bytes of each file there is at this moment."""
        with self._lock:
            return {path: len(self._file(path).data) for path in _walk(self.root, Path("/"))}

    def content(self, path: Path) -> bytearray:
        """The bytes of a file, to be damaged in place."""
        return self._file(path).data

    def copy(self) -> SimulatedDisk:
        """A disk with the same files, all of them durable."""
        return self.power_cut("everything", random.Random(0))

    def identity(self) -> bytes:
        """Equal for disks with the same files. Two cuts often leave the same: then what comes of
        them need not be looked at twice."""
        digest = blake2b(digest_size=16)
        with self._lock:
            _add_to(digest, self.root)
        return digest.digest()

    # -- inside

    def _change(self, call: Call) -> None:
        self.log.append(call)
        match call.name:
            case "write":
                file = self._create(call.path)
                end = call.offset + len(call.data)
                if len(file.data) < end:
                    file.data.extend(bytes(end - len(file.data)))
                file.data[call.offset : end] = call.data
                file.pending.append((call.offset, call.data))
            case "sync" if call.data:
                # Of these bytes only.
                file = self._file(call.path)
                file.pending.remove((call.offset, call.data))
                file.stable = _with(file.stable, call.offset, call.data)
            case "sync":
                what = self._find(call.path)
                if isinstance(what, File):
                    what.stable = bytes(what.data)
                    what.pending.clear()
                else:
                    assert isinstance(what, Folder), call.path
                    what.stable = dict(what.names)
                    what.pending.clear()
            case "sync_all":
                parent = self._find(call.path.parent)
                what = self._find(call.path)
                if not isinstance(what, Folder) or not isinstance(parent, Folder):
                    raise FileNotFoundError(errno.ENOENT, "simulated", str(call.path))
                for folder in (parent, *_folders(what)):
                    _settle(folder)
            case "rename":
                assert call.new is not None
                assert call.new.parent == call.path.parent
                what = self._find(call.path)
                if what is None:
                    raise FileNotFoundError(errno.ENOENT, "simulated", str(call.path))
                self._folder(call.path.parent).change(call.path.name, call.new.name, what)
            case "remove":
                what = self._find(call.path)
                assert what is not None
                assert not isinstance(what, Folder) or not what.names, call.path
                self._folder(call.path.parent).change(call.path.name, None, what)

    def _find(self, path: Path) -> File | Folder | None:
        what: File | Folder | None = self.root
        for name in path.parts[1:]:
            if not isinstance(what, Folder):
                return None
            what = what.names.get(name)
        return what

    def _file(self, path: Path) -> File:
        file = self._find(path)
        if not isinstance(file, File):
            raise FileNotFoundError(errno.ENOENT, "simulated", str(path))
        return file

    def _folder(self, path: Path) -> Folder:
        if path == path.parent:
            return self.root
        parent = self._folder(path.parent)
        found = parent.names.get(path.name)
        if found is None:
            found = Folder()
            parent.change(None, path.name, found)
        assert isinstance(found, Folder)
        return found

    def _create(self, path: Path) -> File:
        folder = self._folder(path.parent)
        file = folder.names.get(path.name)
        if file is None:
            file = File()
            folder.change(None, path.name, file)
        assert isinstance(file, File)
        return file


def _folders(folder: Folder) -> Iterator[Folder]:
    yield folder
    for what in folder.names.values():
        if isinstance(what, Folder):
            yield from _folders(what)


def _settle(folder: Folder) -> None:
    """Makes a folder's entries durable, and the bytes of its files."""
    folder.stable = dict(folder.names)
    folder.pending.clear()
    for what in folder.names.values():
        if isinstance(what, File):
            what.stable = bytes(what.data)
            what.pending.clear()


def _survivor(folder: Folder, kept: Kept, rng: random.Random) -> Folder:
    names = dict(folder.stable)
    for change in folder.pending:
        if kept == "everything" or (kept == "anything" and rng.random() < 0.5):
            _apply(names, *change)
    after = Folder()
    for name, what in names.items():
        if isinstance(what, Folder):
            after.names[name] = _survivor(what, kept, rng)
        else:
            data = _surviving_bytes(what, kept, rng)
            after.names[name] = File(bytearray(data), data)
    after.stable = dict(after.names)
    return after


def _surviving_bytes(file: File, kept: Kept, rng: random.Random) -> bytes:
    data = bytearray(file.stable)
    for offset, written in file.pending:
        for start, part in _sectors(offset, written):
            if kept == "everything" or (kept == "anything" and rng.random() < 0.6):
                if len(data) < start:
                    data.extend(bytes(start - len(data)))
                data[start : start + len(part)] = part
    return bytes(data)


def _with(stable: bytes, offset: int, data: bytes) -> bytes:
    """`stable` after a write whose bytes are durable; those before it may not be."""
    return stable[:offset].ljust(offset, b"\0") + data + stable[offset + len(data) :]


def _sectors(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    start = 0
    while start < len(data):
        size = SECTOR_BYTES - (offset + start) % SECTOR_BYTES
        yield offset + start, data[start : start + size]
        start += size


def _add_to(digest: blake2b, folder: Folder) -> None:
    """Each name and content with its length before it, so that none runs into the next."""
    digest.update(b"%d " % len(folder.names))
    for name, what in sorted(folder.names.items()):
        digest.update(b"%d %s" % (len(name), name.encode()))
        if isinstance(what, Folder):
            _add_to(digest, what)
        else:
            digest.update(b"=%d " % len(what.data))
            digest.update(what.data)


def _walk(folder: Folder, path: Path) -> Iterator[Path]:
    for name, what in folder.names.items():
        if isinstance(what, Folder):
            yield from _walk(what, path / name)
        else:
            yield path / name
