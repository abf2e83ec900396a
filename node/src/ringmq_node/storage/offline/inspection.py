"""The answers of `ringmq store inspect`: the files of a directory, a queue, or one file; bounded.

Everything is read, so that counts are complete. Of records and ranges the first `limit` are kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.storage.errors import StoreError
from ringmq_node.storage.offline.contents import DataDirectory
from ringmq_node.storage.offline.faults import plain, relative
from ringmq_node.storage.offline.file_kinds import (
    BODIES,
    JOURNAL,
    SEGMENT,
    kind_by_name,
    kind_of,
    order_of,
)
from ringmq_node.storage.offline.listing import FileListing
from ringmq_node.storage.offline.queues import (
    QueueFolder,
    UnreadableQueueError,
    recover_queue,
    transient_dropped,
)
from ringmq_node.storage.offline.shown import FileSummary, LiveMessages, ShownRecord
from ringmq_node.storage.offline.store_references import StoreReferences


class NothingToInspectError(StoreError):
    """There is no such queue or file here, or the file has no records."""


@dataclass(frozen=True, slots=True)
class FileName:
    """`owner`: the queue or the message store that the file is of."""

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
    """A queue as a start of the node would find it, and its files. `cuts` are pairs: bodies logged
    before the generation count only below the position."""

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
    records: list[ShownRecord]


@dataclass(frozen=True, slots=True)
class FileInspection:
    """References are counted of all queues but the unreadable ones."""

    queues_unreadable: int
    summary: FileSummary
    records_total: int
    records: list[ShownRecord]


def inspect_files(directory: DataDirectory, limit: int) -> FilesInspection:
    """Reads names and sizes. Raises `OSError`."""
    files: list[FileName] = []
    total = 0
    for file in _files(directory):
        total += 1
        if total <= limit:
            files.append(file)
    return FilesInspection(str(directory.root), total, files)


def _files(directory: DataDirectory) -> Iterator[FileName]:
    root = directory.root
    for queue in directory.queues:
        for name in sorted(queue.sizes, key=order_of):
            kind = kind_by_name(name)
            if kind is not None:
                path = relative(root, queue.path / name)
                yield FileName(path, kind, plain(queue.title), queue.sizes[name])
    for store in (directory.persistent, directory.transient):
        sizes = directory.store_files(store)
        for name in sorted(sizes, key=order_of):
            kind = kind_by_name(name)
            assert kind is not None, name
            yield FileName(relative(root, store / name), kind, store.name, sizes[name])


def inspect_queue(directory: DataDirectory, name: str, limit: int) -> QueueInspection:
    """By its name, its id, or its folder's name. Raises `StoreError`, `OSError`."""
    queue = _find(directory, name)
    found = recover_queue(directory.disk, queue)
    transient = transient_dropped(directory.disk, found)
    # So that files that recovery would set aside, and tails that it would cut off, are shown too.
    directory.disk.forget(queue.path)
    shown = _Shown(limit)
    for path in sorted(queue.sizes, key=order_of):
        kind = kind_of(directory.disk, queue.path / path)
        if kind in (JOURNAL, SEGMENT):
            size = queue.sizes[path]
            live = LiveMessages(found)
            shown.add(FileListing(directory, queue.path / path, size, kind, live=live))
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
    # A queue that was deleted and declared again while the node was away is there twice.
    named = named or [each for each in directory.queues if each.label == name]
    if not named:
        raise NothingToInspectError(
            f"there is no queue {name!r} in {directory.root}: without a queue or a file, inspect "
            "lists the files of all queues"
        )
    if len(named) > 1:
        ids = ", ".join(each.name or each.path.name for each in named)
        raise NothingToInspectError(f"several queues are called {name!r}: say which of {ids}")
    return named[0]


def inspect_file(directory: DataDirectory, path: Path, limit: int) -> FileInspection:
    """By its path, below the data directory or from the current one.

    Raises `StoreError`, `OSError`.
    """
    path = _locate(directory, path)
    kind = kind_of(directory.disk, path)
    if kind is None:
        raise NothingToInspectError(
            f"{path} is not a file of records: it should be a .jif, .idx, .rdq, .map or .log"
        )
    live: LiveMessages | None = None
    references: StoreReferences | None = None
    if kind in (JOURNAL, SEGMENT):
        live = _live_messages(directory, path.parent)
    elif kind == BODIES and path.parent == directory.persistent:
        references = references_of(directory)
    shown = _Shown(limit)
    size = path.stat().st_size
    shown.add(FileListing(directory, path, size, kind, live=live, references=references))
    unreadable = references.unreadable_queues if references is not None else 0
    return FileInspection(unreadable, shown.files[0], shown.total, shown.records)


def references_of(directory: DataDirectory) -> StoreReferences:
    """The references of all queues that can be read. Raises `StoreError`, `OSError`."""
    references = StoreReferences(directory.disk, directory.persistent)
    for queue in directory.queues:
        _recover(directory, queue, references)
    return references


def _recover(directory: DataDirectory, queue: QueueFolder, references: StoreReferences) -> None:
    try:
        recover_queue(directory.disk, queue, references.refer)
    except UnreadableQueueError:
        # The reason is shown by `stats` and `verify`.
        references.unreadable_queues += 1
    directory.disk.forget(queue.path)


def _live_messages(directory: DataDirectory, folder: Path) -> LiveMessages | None:
    """None where the queue can't be read: its file is shown all the same."""
    queue = next((each for each in directory.queues if each.path == folder), None)
    if queue is None:
        return None
    try:
        return LiveMessages(recover_queue(directory.disk, queue))
    except UnreadableQueueError:
        return None
    finally:
        directory.disk.forget(folder)


def _locate(directory: DataDirectory, path: Path) -> Path:
    """The file's path below the directory, without links. Raises `NothingToInspectError`."""
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
        self.records: list[ShownRecord] = []

    def add(self, listing: FileListing) -> None:
        for record in listing.records():
            self.total += 1
            if len(self.records) < self._limit:
                self.records.append(record)
        self.files.append(listing.summary)
