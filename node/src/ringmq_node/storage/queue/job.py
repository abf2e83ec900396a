"""What a sync round writes of one queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from ringmq_node.storage.disk.data_directory import NewFolder
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.queue.entries import IndexEntry
from ringmq_node.storage.queue.journal import Piece

Q = TypeVar("Q")


@dataclass(slots=True, eq=False)
class Job(Generic[Q]):
    """One queue's part of a sync round, or a share that waits for one."""

    queue: Q
    pieces: list[Piece]
    # Entries whose records are in `pieces`, and will be in the journal when the round ends.
    entries: list[IndexEntry]
    # Bodies in the message store that nobody refers to once this is durable.
    releases: list[RecordLocation]
    # The queue as it is when the job is taken: its last op, and how many fills and installs it has
    # had.
    last_number: int
    fills: int
    installs: int
    # Appended since the share before. Fewer are written if publishes among them were elided.
    size_bytes: int
    # Of these, without bodies that the message store had before (see `QueueLog.new_bytes`).
    new_bytes: int
    # Set if the queue has no folder yet, which is made before.
    unmade: NewFolder | None
    # The last record of the message store that `pieces` refer to (see `QueueLog.needs`).
    needs: int
    # How many shares of the queue these are (see `gathering`).
    shares: int = 1
