"""The commit log of a node: the records of a round's queues, in one write and one sync.

A queue's journal is a file of its own, and a hundred quiet queues would be a hundred syncs a round.
So a round of several queues first writes their records into the commit log, all in one record of
it, and syncs that. A later round writes them into their journals too, without a sync (see
`lagging`). From then on the journals are as they would be: everybody reads them, nobody reads the
log.

    commit-0.log, commit-1.log    in the data directory, in turns

Invariants:

* **Each byte that was reported durable is synced in its journal or in a log.** A start applies the
  logs. One is used again only when all journals with bytes in it have them, and are synced.
* **A record of the log stays true for ever.** A journal only grows, and its marker is drawn at
  random. So the bytes belong to that place of that file, or the file is gone. A start may apply a
  log once more, or apply one that nobody needs any more (see `redo`).
* **A log names each journal once,** in the first record that has bytes of it, and calls it by a
  number from there on (see `format.redo_records`). A log that is used again begins anew with both.
* Whatever makes or renames a journal is written directly, and so are large rounds: there a second
  copy of the bytes costs more than the syncs.

A log that is full is left for the other one, and a thread syncs its journals meanwhile. If the
other one isn't free yet, rounds are written directly. Used a second time, a log has its blocks
already, which makes its syncs quicker by a third.

`CommitLog` runs on the event loop, `write` and `_settle` in threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.disk.threads import Task, Worker
from ringmq_node.storage.format.formats import COMMIT_LOG
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    RECORD_HEADER_BYTES,
    RecordKind,
    file_header,
    new_marker,
    record_header,
)
from ringmq_node.storage.format.redo_records import OFFSET_MAX, Journal, RedoRows
from ringmq_node.storage.limits import StoreLimits
from ringmq_node.storage.queue.entries import QueueFile
from ringmq_node.storage.queue.journal import Piece

LOG_NAMES = ("commit-0.log", "commit-1.log")
# Over the head of a log whose journals are all synced: a start then has nothing to apply.
SETTLED_HEAD = bytes(FILE_HEADER.size + RECORD_HEADER_BYTES)
# More journals than this are synced by one call for the whole file system.
_SYNCED_ONE_BY_ONE_MAX = 1000


@dataclass(slots=True)
class LogJob:
    """One record of the log, and the journals that get its bytes. `number` counts the log's."""

    path: Path
    marker: int
    number: int
    offset: int
    pieces: list[Piece]
    # What the log calls the journal of each piece.
    journals: list[int]
    # Those that get their numbers here.
    named: dict[QueueFile, int]
    # The log's directory, if the file is new in it.
    made_in: Path | None
    # Set by `write`: where the record ends.
    end: int = 0


@dataclass(slots=True)
class _LogFile:
    path: Path
    marker: int = 0
    # The end of the last record that is durable.
    end: int = 0
    exists: bool = False
    # Journals with bytes that are synced in this log only, and the number of each in the log.
    behind: dict[QueueFile, int] = field(default_factory=dict)


class CommitLog:
    """Of one store. `fail` is told of an error of the disk outside a round."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        limits: StoreLimits,
        fail: Callable[[Exception], object],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._limits = limits
        self._fail = fail
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker: Worker | None = None
        # The first is the one in use.
        self._files = [_LogFile(directory / name) for name in LOG_NAMES]
        # The other file's journals are being synced.
        self._settling: Task | None = None
        # A log that was left, and whose journals don't have all of its bytes before the round ends.
        self._full: _LogFile | None = None
        self._number = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def stop(self) -> None:
        self._loop = None

    @property
    def needs_journals(self) -> bool:
        """Whether the round that was planned last has to write all journals that lag: it takes the
        other log, and when it ends the journals of the first one are synced."""
        return self._full is not None

    def plan(self, pieces: list[Piece], size_bytes: int) -> LogJob | None:
        """A job that makes `pieces` durable; None if they have to be written directly.

        Every piece must continue a journal that is on the disk already.
        """
        limits = self._limits
        if len(pieces) < limits.commit_log_queues_min:
            return None
        if size_bytes > limits.commit_log_bytes_per_queue_max * len(pieces):
            return None
        if max([piece.file.end for piece in pieces]) > OFFSET_MAX:
            return None
        current = self._files[0]
        if current.end and current.end + size_bytes > limits.commit_log_bytes_max:
            if not self._turn():
                return None
            current = self._files[0]
        if not current.end:
            current.marker = new_marker()
        self._number += 1
        made_in = None if current.exists else self._directory
        named: dict[QueueFile, int] = {}
        journals: list[int] = []
        for piece in pieces:
            journal = current.behind.get(piece.file)
            if journal is None:
                journal = named.setdefault(piece.file, len(current.behind) + len(named))
            journals.append(journal)
        return LogJob(
            current.path,
            current.marker,
            self._number,
            current.end,
            pieces,
            journals,
            named,
            made_in,
        )

    def written(self, job: LogJob) -> None:
        """The job's round has ended well."""
        current = self._files[0]
        current.exists = True
        current.end = job.end
        current.behind |= job.named
        full, self._full = self._full, None
        if full is not None:
            self._settle(full)

    def drain(self) -> None:
        """Syncs all journals and removes the logs. Blocks; raises `OSError`."""
        self._loop = None
        if self._settling is not None:
            task, self._settling = self._settling, None
            task.wait()
            if task.error is not None:
                raise task.error
        if not any(file.exists for file in self._files):
            return
        for file in self._files:
            _sync_journals(self._disk, self._directory, [*file.behind])
        for file in self._files:
            self._disk.remove(file.path)
            file.exists = False
        self._disk.sync(self._directory)

    def close(self, *, until: float) -> bool:
        """Waits `until` then. Returns whether its thread has ended."""
        return self._worker is None or self._worker.close(until=until)

    def _turn(self) -> bool:
        """Takes the other log, if it is free."""
        if self._settling is not None or self._loop is None:
            return False
        full, free = self._files
        if free.behind:
            # The store was stopped as this one was left, and runs again. `drain` syncs them.
            return False
        self._files = [free, full]
        free.end = 0
        self._full = full
        return True

    def _settle(self, full: _LogFile) -> None:
        if self._loop is None:
            return  # `drain` syncs the journals of both logs.
        if self._worker is None:
            self._worker = Worker("ringmq-commit-log")
        journals, full.behind = [*full.behind], {}
        work = partial(_settle, self._disk, self._directory, full.path, journals)
        self._settling = task = Task(work)
        self._worker.submit(task, self._loop, partial(self._settled, task))

    def _settled(self, task: Task) -> None:
        if self._settling is not task:
            return
        self._settling = None
        if task.error is not None:
            self._fail(task.error)


def write(disk: Disk, job: LogJob) -> None:
    """Makes the job's pieces durable. In a thread, or on the loop for a small round. Raises
    `OSError`."""
    rows = RedoRows()
    for file, number in job.named.items():
        rows.name(number, Journal(file.path.parent.name, file.number, file.marker))
    for piece, number in zip(job.pieces, job.journals, strict=True):
        rows.add(number, piece.offset, piece.buffers)
    payload = rows.encode()
    buffers: list[bytes] = []
    offset = job.offset or FILE_HEADER.size
    if not job.offset:
        buffers.append(file_header(COMMIT_LOG, job.marker, job.number))
    buffers.append(
        record_header(
            job.marker,
            offset,
            RecordKind.REDO,
            payload,
            number=job.number,
            # All records before this one are durable: damage there is no torn tail.
            synced=job.offset,
        )
    )
    buffers.append(payload)
    disk.write(job.path, job.offset, buffers, sync=True)
    if job.made_in is not None:
        disk.sync(job.made_in)
    job.end = offset + RECORD_HEADER_BYTES + len(payload)


def _settle(disk: Disk, directory: Path, log: Path, journals: Sequence[QueueFile]) -> None:
    """Makes the journals durable, so that nobody needs the log. Runs in a thread."""
    _sync_journals(disk, directory, journals)
    # Synced before the log is used again: a power cut may keep any part of its new first record,
    # and those behind it would look like records that were durable once.
    disk.write(log, 0, [SETTLED_HEAD], sync=True)


def _sync_journals(disk: Disk, directory: Path, journals: Sequence[QueueFile]) -> None:
    if len(journals) > _SYNCED_ONE_BY_ONE_MAX:
        disk.sync_all(directory)
        return
    for file in journals:
        _sync_journal(disk, file)


def _sync_journal(disk: Disk, file: QueueFile) -> None:
    """Syncs a journal that another thread may be renaming (once: sealed) or removing."""
    synced: Path | None = None
    while synced != (path := _path_of(file)):
        # If the file is gone, it was flushed or its queue deleted: no byte of it is needed.
        with suppress(FileNotFoundError):
            disk.sync(path)
        synced = path


def _path_of(file: QueueFile) -> Path:
    # A thread that renames it holds the lock, and sets the path before another file has the name.
    with file.lock:
        return file.path
