"""Messages and bytes: of each queue, of each message store, and all together.

Journals are read whole, for they hold the state; of segments headers and tables are read, of
message store files only names and sizes. The live records of the message store are those that
queues refer to.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringmq_node.storage.messages.files import MAP_SUFFIX
from ringmq_node.storage.offline.contents import PERSISTENT_NAME, TRANSIENT_NAME, DataDirectory
from ringmq_node.storage.offline.file_kinds import is_bodies, is_journal, is_segment
from ringmq_node.storage.offline.queues import (
    QueueFolder,
    UnreadableQueueError,
    live_entries,
    recover_queue,
    transient_dropped,
)
from ringmq_node.storage.offline.store_references import StoreReferences
from ringmq_node.storage.offline.verify import OnProgress
from ringmq_node.storage.queue.recovery import Recovered


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """A queue as a start of the node would find it. `embedded` messages are in the queue's files,
    `stored` ones in the message store. Bytes are of bodies, but for those of files. `queue` is the
    id, `name` the name for people."""

    queue: str | None
    name: str | None
    folder: str
    journals: int
    journal_bytes: int
    segments: int
    segment_bytes: int
    messages: int
    bytes: int
    messages_embedded: int
    bytes_embedded: int
    messages_stored: int
    bytes_stored: int
    messages_missing: int
    messages_redelivered: int
    transient_dropped: int
    ranges: int
    producers: int
    last_op: int
    epoch: int
    next_position: int
    torn_bytes: int
    corruptions: int
    damaged: bool
    # Why the queue can't be read; all else is 0 then.
    error: str | None = None


@dataclass(frozen=True, slots=True)
class MessageStoreFiles:
    """One message store. Nothing in the transient one lives: a start of the node empties it."""

    store: str
    files: int
    file_bytes: int
    maps: int
    map_bytes: int
    records: int
    live_bytes: int
    garbage_bytes: int
    garbage_fraction: float
    # References of queues that lead nowhere.
    references_lost: int


@dataclass(frozen=True, slots=True)
class Totals:
    queues: int
    messages: int
    bytes: int
    file_bytes: int
    garbage_bytes: int
    torn_bytes: int
    queues_damaged: int
    queues_unreadable: int


@dataclass(frozen=True, slots=True)
class DirectoryStatistics:
    directory: str
    cluster: str | None
    node: str | None
    queues: list[QueueStatistics]
    stores: list[MessageStoreFiles]
    totals: Totals


def collect(
    directory: DataDirectory, on_progress: OnProgress = lambda name: None
) -> DirectoryStatistics:
    """Calls `on_progress` for each queue. Raises `UnsupportedFormatError`, `OSError`."""
    references = StoreReferences(directory.disk, directory.persistent)
    queues: list[QueueStatistics] = []
    for queue in directory.queues:
        queues.append(_queue(directory, queue, references))
        directory.disk.forget(queue.path)
        on_progress(queue.title)
    stores = [_persistent(directory, references), _transient(directory)]
    totals = Totals(
        queues=len(queues),
        messages=sum(queue.messages for queue in queues),
        bytes=sum(queue.bytes for queue in queues),
        file_bytes=sum(queue.journal_bytes + queue.segment_bytes for queue in queues)
        + sum(store.file_bytes + store.map_bytes for store in stores),
        garbage_bytes=sum(store.garbage_bytes for store in stores),
        torn_bytes=sum(queue.torn_bytes for queue in queues),
        queues_damaged=sum(queue.damaged for queue in queues),
        queues_unreadable=sum(queue.error is not None for queue in queues),
    )
    return DirectoryStatistics(
        str(directory.root), directory.cluster, directory.node, queues, stores, totals
    )


@dataclass(slots=True)
class _Sum:
    messages: int = 0
    bytes: int = 0


def _queue(
    directory: DataDirectory, queue: QueueFolder, references: StoreReferences
) -> QueueStatistics:
    journals = [size for name, size in queue.sizes.items() if is_journal(name)]
    segments = [size for name, size in queue.sizes.items() if is_segment(name)]
    embedded, stored = _Sum(), _Sum()
    error: str | None = None
    found: Recovered | None = None
    transient = 0
    try:
        found = recover_queue(directory.disk, queue, references.refer)
        transient = transient_dropped(directory.disk, found)
        for entry in live_entries(directory.disk, found):
            part = embedded if entry.location is None else stored
            part.messages += entry.live
            part.bytes += sum(
                entry.bytes_of(first, last)
                for first, last in found.state.live.intersection(entry.first, entry.last)
            )
    except UnreadableQueueError as unreadable:
        error = str(unreadable)
    state = found.state if found is not None else None
    return QueueStatistics(
        queue=queue.name,
        name=queue.label,
        folder=queue.path.name,
        journals=len(journals),
        journal_bytes=sum(journals),
        segments=len(segments),
        segment_bytes=sum(segments),
        messages=len(state.live) if state else 0,
        bytes=embedded.bytes + stored.bytes,
        messages_embedded=embedded.messages,
        bytes_embedded=embedded.bytes,
        messages_stored=stored.messages,
        bytes_stored=stored.bytes,
        messages_missing=len(found.missing) if found else 0,
        messages_redelivered=len(state.redelivered) if state else 0,
        transient_dropped=transient,
        ranges=state.live.range_count if state else 0,
        producers=len(state.producers) if state else 0,
        last_op=state.last_number if state else 0,
        epoch=state.epoch if state else 0,
        next_position=state.next_position if state else 0,
        torn_bytes=found.torn_bytes if found else 0,
        corruptions=len(found.corruptions) if found else 0,
        damaged=found.damaged if found else False,
        error=error,
    )


def _persistent(directory: DataDirectory, references: StoreReferences) -> MessageStoreFiles:
    names = directory.store_files(directory.persistent)
    files = [*references.catalogue.data_files()]
    live = sum(file.live_bytes for file in files)
    size = sum(size for name, size in names.items() if is_bodies(name))
    return MessageStoreFiles(
        store=PERSISTENT_NAME,
        files=sum(map(is_bodies, names)),
        file_bytes=size,
        maps=sum(name.endswith(MAP_SUFFIX) for name in names),
        map_bytes=sum(size for name, size in names.items() if name.endswith(MAP_SUFFIX)),
        records=sum(file.live_records for file in files),
        live_bytes=live,
        garbage_bytes=max(0, size - live),
        garbage_fraction=_fraction(max(0, size - live), size),
        references_lost=references.lost,
    )


def _transient(directory: DataDirectory) -> MessageStoreFiles:
    names = directory.store_files(directory.transient)
    size = sum(names.values())
    return MessageStoreFiles(
        TRANSIENT_NAME, len(names), size, 0, 0, 0, 0, size, _fraction(size, size), 0
    )


def _fraction(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0
