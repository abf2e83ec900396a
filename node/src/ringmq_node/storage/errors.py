"""The errors of the storage engine. The caller can do something else about each.

    StoreError
    ├── DirectoryInUseError      another process has it open: stop that, or use another directory
    ├── ForeignDirectoryError    it belongs to another cluster or node: look at the configuration
    ├── UnsupportedFormatError   written by another version of RingMQ: use that version
    ├── CorruptError             bytes on the disk are damaged: fetch them from the ring
    ├── ReadError                a file can't be read now, and may be whole: repair, start again
    └── StoreFailedError         closed for writes, for good: repair the disk, start the node again
        ├── DiskFullError        the same, because there is no room: make some, start again
        └── StoreClosedError     `close` was called

A torn tail (the last write, cut short by a crash) is no error: nobody was told that it is durable.
It is cut off, and counted in `QueueStore.torn_bytes`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


class StoreError(Exception):
    """The root of all errors of a store."""


class DirectoryInUseError(StoreError):
    """Another process has this data directory open."""


class ForeignDirectoryError(StoreError):
    """This data directory was made by another cluster or another node."""


class UnsupportedFormatError(StoreError):
    """A file has a version of its format that this code doesn't know."""

    def __init__(self, format_name: str, file: str, found: int, supported: int) -> None:
        super().__init__(
            f"{file}: format {format_name!r} has version {found}, this RingMQ supports version "
            f"{supported}: open the directory with the RingMQ that wrote it"
        )
        self.format_name = format_name
        self.file = file
        self.found = found
        self.supported = supported


class CorruptError(StoreError):
    """Bytes that were durable are damaged. `report` has the file and the offset."""

    def __init__(self, report: CorruptionReport) -> None:
        super().__init__(str(report))
        self.report = report


class ReadError(StoreError):
    """A file could not be read just now. It may be whole, so nothing in it is given up."""

    @classmethod
    def of(cls, path: Path, error: OSError) -> ReadError:
        """To be raised from `error`, which `is_of_one_queue` looks at."""
        return cls(f"{path}: can't be read: {error}")


class DirectoryClosedError(OSError):
    """The data directory was closed under a call of its disk. No file is to blame."""


class StoreFailedError(StoreError):
    """A write or a sync failed. The store takes no more writes, and reads go on."""


class DiskFullError(StoreFailedError):
    """The disk had no room for a write. Nothing that was reported durable is lost."""


class DiskHangsError(StoreFailedError):
    """The disk hasn't answered for too long. The threads that wait for it may do so for ever."""


class StoreClosedError(StoreFailedError):
    """The store was closed."""


@dataclass(frozen=True, slots=True)
class CorruptionReport:
    """`length` bytes at `offset` of `file` were durable once, and are damaged now."""

    file: str
    offset: int
    length: int
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.length} bytes at {self.offset}: {self.what}"


# No room on the device, over the quota, over the process's file size limit.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def failure_of(error: Exception) -> StoreFailedError:
    """The failure to close the store with, after a write or a sync has raised `error`."""
    if isinstance(error, StoreFailedError):
        return error
    failed = _failure_of(error)
    # `shortage` asks for it.
    failed.__cause__ = error
    return failed


def _failure_of(error: Exception) -> StoreFailedError:
    text = f"store closed for writes: {error}"
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return DiskFullError(f"{text}: make room on the disk")
    return StoreFailedError(f"{text}: repair the disk, then start the node again")


# What a store may lack for a while: room, file descriptors, memory.
_SHORT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, *_NO_ROOM}


def is_shortage(failure: StoreError) -> bool:
    """Whether the store failed for want of something that may come back.

    A failed fsync for another reason, or a disk that hangs, isn't: the disk itself is in doubt, and
    somebody has to look at it.
    """
    return any(
        isinstance(error, DiskFullError) or (isinstance(error, OSError) and error.errno in _SHORT)
        for error in _with_causes(failure)
    )


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


def is_of_one_queue(error: StoreError) -> bool:
    """Whether it says that a file of one queue can't be read, so that the others may go on.

    For want of descriptors no file can be read, and a new life of the node comes by itself
    (`shortage`). A quarantine would wait for somebody who starts the node again. A directory that
    was closed under its reader says nothing of the queue.
    """
    if not isinstance(error, ReadError) or is_shortage(error):
        return False
    return not any(isinstance(cause, DirectoryClosedError) for cause in _with_causes(error))
