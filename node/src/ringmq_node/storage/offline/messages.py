"""The live messages of a queue in a data directory, and what is wrong with its files.

A queue is read as a start of the node would find it, with the bodies of one record in memory at a
time. Whatever the bytes are, reading ends with findings and never with an exception.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ringmq_base.ranges import Range
from ringmq_node.queue.block import Block
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage.disk.data_directory import PARTIAL_NAME
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import CorruptError, ReadError
from ringmq_node.storage.format.queue_folder import SEGMENT_POSITIONS
from ringmq_node.storage.messages.cache import BlockCache
from ringmq_node.storage.messages.lookup import RecordReader
from ringmq_node.storage.messages.unwritten import UnwrittenBlocks
from ringmq_node.storage.offline.contents import DataDirectory
from ringmq_node.storage.offline.faults import plain, relative
from ringmq_node.storage.offline.queues import QueueFolder, UnreadableQueueError, recover_queue
from ringmq_node.storage.offline.store_references import LostBody, StoreReferences
from ringmq_node.storage.queue.blocks import read_record
from ringmq_node.storage.queue.entries import IndexEntry, QueueFile
from ringmq_node.storage.queue.loading import load_segment
from ringmq_node.storage.queue.recovery import Recovered

# Of record blocks that several entries refer to.
_CACHE_BYTES = 16 << 20


class Status(Enum):
    """What was found at a place."""

    OK = "ok"
    # Live, and its body can't be read.
    DAMAGED = "damaged"
    # Live, and no body is there.
    MISSING = "missing"
    # Bytes that were durable once and are no record.
    CORRUPT = "corrupt"
    # The end of a file, cut short by a crash before any confirm relied on it.
    TORN = "torn"
    # Nothing can be said of the queue, or of the directory.
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class StorePiece:
    """Live messages at consecutive positions, `block` has just these; or a finding, without one.

    `file` and `offset` say where, as far as it is known; `what` is the finding in words.
    """

    status: Status
    first: int | None
    last: int | None
    file: str
    offset: int
    block: Block | None = None
    redelivered: tuple[Range, ...] = ()
    what: str = ""


@dataclass(frozen=True, slots=True)
class FoundQueue:
    """A queue of the directory, before its messages are read."""

    folder: QueueFolder
    recovered: Recovered
    is_partial: bool

    @property
    def state(self) -> ReplicatedState:
        return self.recovered.state


class OfflineMessages:
    """The messages of a directory. Made inside `open_offline`."""

    def __init__(self, directory: DataDirectory) -> None:
        """Raises `OSError`, `StoreError`."""
        self._directory = directory
        self._disk = directory.disk
        self._references = StoreReferences(directory.disk, directory.persistent)
        self._reader = RecordReader(
            directory.persistent,
            directory.disk,
            self._references.catalogue,
            UnwrittenBlocks(),
            BlockCache(_CACHE_BYTES),
            threading.Lock(),
        )

    def find(self, folder: QueueFolder) -> FoundQueue:
        """Raises `UnreadableQueueError`, `OSError`."""
        found = recover_queue(self._disk, folder)
        return FoundQueue(folder, found, PARTIAL_NAME in folder.sizes)

    def release(self, folder: QueueFolder) -> None:
        self._disk.forget(folder.path)

    def pieces(self, queue: FoundQueue, wanted: Callable[[int], bool]) -> Iterator[StorePiece]:
        """All live messages of the segments that are `wanted`, by their number, in order."""
        live = queue.state.live
        for entry in self._entries(queue, wanted):
            parts = [
                part
                for low, high in _in_segments(entry.first, entry.last, wanted)
                for part in live.intersection(low, high)
            ]
            if parts:
                yield from self._read(queue, entry, parts)
        path = relative(self._directory.root, queue.folder.path)
        for first, last in queue.recovered.missing.ranges():
            for low, high in _in_segments(first, last, wanted):
                yield StorePiece(Status.MISSING, low, high, path, 0, what="no body is there")

    def findings(self, queue: FoundQueue) -> Iterator[StorePiece]:
        """Damage in the queue's files, and where a crash has cut them short."""
        for report in queue.recovered.corruptions:
            yield StorePiece(
                Status.CORRUPT,
                None,
                None,
                relative(self._directory.root, Path(report.file)),
                report.offset,
                what=plain(report.what),
            )
        for file in queue.recovered.files():
            size = queue.folder.sizes.get(file.path.name, 0)
            if size > file.end:
                path = relative(self._directory.root, file.path)
                what = f"{size - file.end} bytes that a crash cut short"
                yield StorePiece(Status.TORN, None, None, path, file.end, what=what)

    # -- entries and their bodies

    def _entries(self, queue: FoundQueue, wanted: Callable[[int], bool]) -> Iterator[IndexEntry]:
        """By position; one segment in memory at a time."""
        found = queue.recovered
        parts: list[tuple[int, IndexEntry | QueueFile]] = [
            (entry.first, entry)
            for entry in found.index
            if any(True for _ in _in_segments(entry.first, entry.last, wanted))
        ]
        parts += [
            (delta.first, delta.segment)
            for number, delta in found.index.deltas.items()
            if wanted(number)
        ]
        for _, part in sorted(parts, key=lambda each: each[0]):
            if isinstance(part, IndexEntry):
                yield part
            else:
                state = found.state
                yield from load_segment(self._disk, part, state.live, found.missing, found.cuts)[0]

    def _read(
        self, queue: FoundQueue, entry: IndexEntry, parts: list[Range]
    ) -> Iterator[StorePiece]:
        file, offset, what = self._place(entry)
        block: Block | None = None
        if not what:
            try:
                block = self._block(self._disk, entry)
            except (CorruptError, ReadError) as error:
                what = plain(str(error))
        for first, last in parts:
            if block is None:
                yield StorePiece(Status.DAMAGED, first, last, file, offset, what=what)
                continue
            start = first - entry.first + entry.start
            part = block.slice(start, start + last - first + 1)
            redelivered = tuple(queue.state.redelivered.intersection(first, last))
            yield StorePiece(Status.OK, first, last, file, offset, part, redelivered)

    def _block(self, disk: Disk, entry: IndexEntry) -> Block:
        if entry.location is None:
            return read_record(disk, entry)
        block = self._reader.read(entry.location)
        if block.count < entry.start + entry.count:
            raise ReadError(f"a block of {block.count} messages lacks those of {entry.first}")
        return block

    def _place(self, entry: IndexEntry) -> tuple[str, int, str]:
        """The file and offset of an entry's bodies now; and why they can't be read, if so."""
        root = self._directory.root
        assert entry.file is not None
        if entry.location is None:
            return relative(root, entry.file.path), entry.offset, ""
        place = self._references.find(entry.location)
        if isinstance(place, LostBody):
            return relative(root, place.path), place.offset, plain(place.what)
        path = self._references.directory / f"{place.file}.rdq"
        return relative(root, path), place.offset, ""


def read_queue(
    messages: OfflineMessages,
    folder: QueueFolder,
    wanted: Callable[[int], bool],
    *,
    with_findings: bool,
) -> Iterator[tuple[FoundQueue | None, StorePiece]]:
    """All pieces of one queue, and its findings; a queue that can't be read is one finding."""
    found: FoundQueue | None = None
    try:
        found = messages.find(folder)
        if with_findings:
            for finding in messages.findings(found):
                yield found, finding
        for piece in messages.pieces(found, wanted):
            yield found, piece
    except (UnreadableQueueError, OSError, ArithmeticError, LookupError, ValueError) as error:
        # Somebody can make files that a reader stumbles over: the other queues have to come.
        what = plain(str(error) or type(error).__name__)
        yield found, StorePiece(Status.UNREADABLE, None, None, folder.path.name, 0, what=what)
    finally:
        messages.release(folder)


def _in_segments(first: int, last: int, wanted: Callable[[int], bool]) -> Iterator[Range]:
    """The parts of `first..last` that are in segments that are wanted."""
    for number in range(first // SEGMENT_POSITIONS, last // SEGMENT_POSITIONS + 1):
        if wanted(number):
            begin = number * SEGMENT_POSITIONS
            yield max(first, begin), min(last, begin + SEGMENT_POSITIONS - 1)
