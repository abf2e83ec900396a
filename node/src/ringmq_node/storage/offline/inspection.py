"""What `ringmq store inspect` shows: a directory's files, a queue, or one file; bounded.

All is read, so that counts are of all; of records and ranges only the first `limit` are kept.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.storage.errors import StoreError
from ringmq_node.storage.offline.bodies import References
from ringmq_node.storage.offline.contents import DataDirectory, QueueFolder, UnreadableQueueError
from ringmq_node.storage.offline.listing import (
    BODIES,
    JOURNAL,
    SEGMENT,
    FileListing,
    FileSummary,
    Lives,
    Record,
    kind_of,
    list_files,
    order_of,
)


class NothingToInspectError(StoreError):
    """There is no such queue or file here, or the file has no records."""


@dataclass(frozen=True, slots=True)
class FileName:
    """`owner`: of which queue, or message store."""

    file: str
    kind: str
    owner: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FilesInspection:
    directory: str
    files_total: int
    files: list[FileName]


@dataclass(frozen=True, slots=True)
class Ranges:
    """`messages` and `total` are of all; `ranges` may be cut short."""

    messages: int
    total: int
    ranges: list[Range]


@dataclass(frozen=True, slots=True)
class QueueInspection:
    """A queue as a start of the node would find it, and its files. Generation and positions of
    a cut: bodies logged before the first count only below the second."""

    queue: str | None
    name: str | None
    folder: str
    last_op: int
    next_position: int
    epochs: list[tuple[int, int, int]]
    live: Ranges
    redelivered: Ranges
    missing: Ranges
    transient_dropped: int
    producers: int
    cuts: list[tuple[int, int]]
    damaged: bool
    torn_bytes: int
    files: list[FileSummary]
    records_total: int
    records: list[Record]


@dataclass(frozen=True, slots=True)
class FileInspection:
    """References are those of all queues but the unreadable ones."""

    queues_unreadable: int
    summary: FileSummary
    records_total: int
    records: list[Record]


def inspect_files(directory: DataDirectory, limit: int) -> FilesInspection:
    """Reads names and sizes. Raises `OSError`."""
    files: list[FileName] = []
    total = 0
    for found in list_files(directory):
        total += 1
        if total <= limit:
            files.append(FileName(*found))
    return FilesInspection(str(directory.root), total, files)


def inspect_queue(directory: DataDirectory, name: str, limit: int) -> QueueInspection:
    """By its name, its id, or its folder's name. Raises `StoreError`, `OSError`."""
    queue = _find(directory, name)
    found = directory.recover(queue, lambda location: None)
    transient = directory.transient_of(found)
    # What recovery would set aside or cut off is shown too.
    directory.disk.forget(queue.path)
    shown = _Shown(limit)
    for path in sorted(queue.sizes, key=order_of):
        kind = kind_of(directory, queue.path / path)
        if kind in (JOURNAL, SEGMENT):
            size = queue.sizes[path]
            shown.add(FileListing(directory, queue.path / path, size, kind, lives=Lives(found)))
    state = found.state
    return QueueInspection(
        queue=queue.name,
        name=queue.label,
        folder=queue.path.name,
        last_op=state.last_number,
        next_position=state.next_position,
        epochs=[(start.epoch, start.first_number, start.first_position) for start in state.epochs],
        live=_ranges(state.live, limit),
        redelivered=_ranges(state.redelivered, limit),
        missing=_ranges(found.missing, limit),
        transient_dropped=transient,
        producers=len(state.producers),
        cuts=[(cut.generation, cut.keep_below) for cut in found.cuts],
        damaged=found.damaged,
        torn_bytes=found.torn_bytes,
        files=shown.files,
        records_total=shown.total,
        records=shown.records,
    )


def _find(directory: DataDirectory, name: str) -> QueueFolder:
    named = [each for each in directory.queues if name in (each.name, each.path.name)]
    # One that was deleted and declared again while the node was away is there twice.
    named = named or [each for each in directory.queues if each.label == name]
    if not named:
        raise NothingToInspectError(f"there is no queue {name!r} in {directory.root}")
    if len(named) > 1:
        ids = ", ".join(each.name or each.path.name for each in named)
        raise NothingToInspectError(f"several queues are called {name!r}: say which of {ids}")
    return named[0]


def inspect_file(directory: DataDirectory, path: Path, limit: int) -> FileInspection:
    """By its path, from the directory or from where the process is.

    Raises `StoreError`, `OSError`.
    """
    path = _locate(directory, path)
    kind = kind_of(directory, path)
    if kind is None:
        raise NothingToInspectError(f"{path} is not a file of records")
    lives: Lives | None = None
    references: References | None = None
    if kind in (JOURNAL, SEGMENT):
        lives = _lives(directory, path.parent)
    elif kind == BODIES and path.parent == directory.persistent:
        references = references_of(directory)
    shown = _Shown(limit)
    size = path.stat().st_size
    shown.add(FileListing(directory, path, size, kind, lives=lives, references=references))
    unreadable = references.unreadable_queues if references is not None else 0
    return FileInspection(unreadable, shown.files[0], shown.total, shown.records)


def references_of(directory: DataDirectory) -> References:
    """What all queues that can be read refer to. Raises `StoreError`, `OSError`."""
    references = References(directory.disk, directory.persistent)
    for queue in directory.queues:
        _recover(directory, queue, references)
    return references


def _recover(directory: DataDirectory, queue: QueueFolder, references: References) -> None:
    try:
        directory.recover(queue, references.refer)
    except UnreadableQueueError:
        # What it refers to isn't known; `stats` and `verify` say why.
        references.unreadable_queues += 1
    directory.disk.forget(queue.path)


def _lives(directory: DataDirectory, folder: Path) -> Lives | None:
    """None where the queue can't be read: what lives isn't known, and the file is shown."""
    queue = next((each for each in directory.queues if each.path == folder), None)
    if queue is None:
        return None
    try:
        return Lives(directory.recover(queue, lambda location: None))
    except UnreadableQueueError:
        return None
    finally:
        directory.disk.forget(folder)


def _locate(directory: DataDirectory, path: Path) -> Path:
    """Below the directory, as it is named there. Raises `NothingToInspectError`."""
    root = Path(os.path.realpath(directory.root))
    for candidate in (directory.root / path, path):
        if candidate.is_file():
            real = Path(os.path.realpath(candidate.parent)) / candidate.name
            if real.is_relative_to(root):
                return directory.root / real.relative_to(root)
    raise NothingToInspectError(f"there is no file {path} in {directory.root}")


def _ranges(ranges: RangeSet, limit: int) -> Ranges:
    return Ranges(len(ranges), ranges.range_count, [*islice(ranges, limit)])


class _Shown:
    """The first records of some files, and the counts of all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.total = 0
        self.files: list[FileSummary] = []
        self.records: list[Record] = []

    def add(self, listing: FileListing) -> None:
        for record in listing.records():
            self.total += 1
            if len(self.records) < self._limit:
                self.records.append(record)
        self.files.append(listing.summary)
