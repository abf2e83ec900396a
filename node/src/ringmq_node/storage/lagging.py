"""Journals that lag behind the commit log: their newest bytes are synced there, and only there.

A round of several queues is durable once the log has it. To write its bytes into the journals too
takes a system call for each queue, of a kilobyte or so, and after each call the thread waits for
the interpreter's lock. So they wait here, in memory. A later round writes those of many rounds with
one call for each journal, and without a sync.

Invariants:

* **The bytes that wait are the end of their journal**, without a gap: they begin where the file
  ends. What is written to a lagging journal directly comes behind them, in the same thread.
* **The commit log that is in use has all of them.** Before the other log takes its turn they are
  written, as the first log is about to be synced into the journals and forgotten.
* **Nobody reads them from the journal.** An entry whose record waits here isn't `durable` in the
  sense of the index: its block stays in memory (see `pager`). A start, and an offline tool, apply
  the log first.

Only on the event loop's thread, but for `write`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.limits import StoreLimits
from ringmq_node.storage.queue.entries import IndexEntry, QueueFile
from ringmq_node.storage.queue.journal import Piece
from ringmq_node.storage.queue.queue_store import CommitJob, QueueStore


@dataclass(slots=True, eq=False)
class Lag:
    """What one journal lacks, and the entries whose records are in it."""

    queue: QueueStore
    file: QueueFile
    offset: int
    buffers: list[bytes]
    entries: list[IndexEntry]
    size_bytes: int


class LaggingJournals:
    """Of one store."""

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        # In the order in which they began to lag: no order may depend on addresses.
        self._lags: dict[QueueFile, Lag] = {}
        self._size_bytes = self._entries = 0
        self._is_ticked = False

    @property
    def is_late(self) -> bool:
        """Whether bytes wait that a round should write, though it may have nothing else to do."""
        return self._is_ticked and bool(self._lags)

    @property
    def is_due(self) -> bool:
        """Whether the next round should write what all journals lack."""
        limits = self._limits
        if self._size_bytes > limits.write_behind_bytes_max:
            return True
        # All entries become durable in one turn of the loop. Each journal is a call of the disk,
        # and the round's own queues wait for it.
        is_long = self._entries > limits.write_behind_entries_max
        return is_long or len(self._lags) > limits.round_queues_max or self.is_late

    def tick(self) -> None:
        """What waits has waited for long enough."""
        self._is_ticked = bool(self._lags)

    def add(self, queue: QueueStore, piece: Piece, entries: list[IndexEntry]) -> None:
        """The commit log has `piece` from now on. The caller gives up its buffers and `entries`."""
        file = piece.file
        size_bytes = piece.size_bytes
        self._entries += len(entries)
        lag = self._lags.get(file)
        if lag is None:
            self._lags[file] = Lag(queue, file, piece.offset, piece.buffers, entries, size_bytes)
        else:
            assert piece.offset == lag.offset + lag.size_bytes, (file.path, piece.offset)
            lag.buffers += piece.buffers
            lag.entries += entries
            lag.size_bytes += size_bytes
        file.unwritten += size_bytes
        self._size_bytes += size_bytes

    def take_before(self, jobs: Iterable[CommitJob]) -> dict[CommitJob, Lag]:
        """What the journals of `jobs` lack. The caller writes it before it writes the jobs."""
        lags: dict[CommitJob, Lag] = {}
        if self._lags:
            for job in jobs:
                # Other pieces begin a journal. If the first one does, nothing precedes it here.
                lag = self._take(job.pieces[0].file) if job.pieces else None
                if lag is not None:
                    lags[job] = lag
        return lags

    def take_of(self, queue: QueueStore) -> list[Lag]:
        """What the queue's journal lacks. The caller writes it, or the queue is deleted: then a
        write would make its folder again."""
        return [lag for file in queue.on_disk() if (lag := self._take(file)) is not None]

    def take_all(self) -> list[Lag]:
        """What all journals lack. The caller writes it."""
        lags, self._lags = [*self._lags.values()], {}
        self._size_bytes = self._entries = 0
        self._is_ticked = False
        return lags

    def _take(self, file: QueueFile) -> Lag | None:
        lag = self._lags.pop(file, None)
        if lag is not None:
            self._size_bytes -= lag.size_bytes
            self._entries -= len(lag.entries)
        return lag


def write(disk: Disk, lags: Iterable[Lag]) -> None:
    """Writes them into their journals, without a sync. In a thread, or on the loop when the store
    ends. Raises `OSError`."""
    for lag in lags:
        disk.write(lag.file.path, lag.offset, lag.buffers)


def written(lags: Iterable[Lag]) -> None:
    """The journals have these bytes from now on."""
    for lag in lags:
        lag.file.unwritten -= lag.size_bytes
        lag.queue.pager.durable(lag.entries)
