"""One queue of a data directory, as a start of the node would find it.

The engine's own recovery reads it, over a disk that only remembers changes (`disk`). So this and a
start can't differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ringmq_base.ranges import RangeSet
from ringmq_node.queue.ops import Outline, Remove
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import StoreError
from ringmq_node.storage.format import journal_records
from ringmq_node.storage.format.formats import JOURNAL
from ringmq_node.storage.format.records import Header, RecordKind
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.offline.walk import open_records
from ringmq_node.storage.queue.entries import IndexEntry
from ringmq_node.storage.queue.loading import load_segment
from ringmq_node.storage.queue.recovery import Recovered, recover


class UnreadableQueueError(StoreError):
    """A queue's files can't be made sense of, or not be read; the text says which and why."""


@dataclass(frozen=True, slots=True)
class QueueFolder:
    """`name`, by which the store knows the queue, is None where it is lost; `label`, its name for
    people, where there is none. `sizes` are those of its regular files."""

    path: Path
    name: str | None
    label: str | None
    sizes: dict[str, int]

    @property
    def title(self) -> str:
        """The best name that there is for people."""
        return self.label or self.name or self.path.name


def recover_queue(
    disk: Disk,
    queue: QueueFolder,
    refer: Callable[[RecordLocation], None] = lambda location: None,
) -> Recovered:
    """The queue that a start of the node would make of these files; `refer` as in `recover`.

    Names in its folder are as recovery leaves them until `ReadOnlyDisk.forget`. Raises
    `UnreadableQueueError`; `PermissionError` and `FileNotFoundError` as they are.
    """
    try:
        return recover(disk, queue.path, refer)
    except (PermissionError, FileNotFoundError):
        raise
    except Exception as error:
        # Checksums keep accidents out. But somebody can make a directory, checksums and all, that
        # recovery stumbles over, and the report on all other queues has to come all the same.
        text = str(error) or type(error).__name__
        raise UnreadableQueueError(f"queue can't be recovered: {text}") from error


def live_entries(disk: Disk, found: Recovered) -> Iterator[IndexEntry]:
    """All living entries of a queue, one segment in memory at a time. In no special order."""
    yield from found.index
    for delta in found.index.deltas.values():
        entries, _ = load_segment(disk, delta.segment, found.state.live, found.missing, found.cuts)
        yield from entries


def transient_dropped(disk: Disk, found: Recovered) -> int:
    """The number of live transient messages, all of which recovery has dropped.

    By the newest journal alone: 0 if that is unreadable.
    """
    newest = found.current or (found.sealed[-1] if found.sealed else None)
    if newest is None:
        return 0
    journal = newest.file
    transient = RangeSet()
    loaded = False

    def visit(header: Header, payload: bytes) -> None:
        nonlocal loaded
        if header.kind == RecordKind.CHECKPOINT:
            # The second copy says the same.
            if not loaded:
                loaded = True
                state = journal_records.decode_checkpoint(header, payload).state
                transient.update(state.transient)
            return
        op = journal_records.decode(header, payload, journal.number).op
        if isinstance(op, Outline) and op.transient:
            transient.add(op.first_position, op.last_position)
        elif isinstance(op, Remove):
            transient.subtract(op.ranges)

    open_records(disk, journal.path, JOURNAL, journal.end, owned=True).scan(visit)
    return len(transient)
