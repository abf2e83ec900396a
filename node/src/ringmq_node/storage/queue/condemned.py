"""Segments that died as deltas, and still hold references to the message store.

A delta knows how many messages live in its segment, not which records of the message store they
refer to. When all of them die at once, the segment's headers are read, by the thread of the flush,
for the references to give back; only then may the file go.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringmq_base.ranges import RangeSet
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.format.checkpoint import Cut
from ringmq_node.storage.queue.entries import IndexEntry, QueueFile
from ringmq_node.storage.queue.loading import load_segment


@dataclass(slots=True, eq=False)
class Condemned:
    """One such segment, as it was when it died."""

    segment: QueueFile
    # The positions that were live in it.
    positions: RangeSet
    cuts: tuple[Cut, ...]
    # The share that makes the death durable. Before it a power cut brings the messages back.
    gate: int
    # Bytes behind this offset belong to other messages, which may be at the same positions.
    end: int

    def read(self, disk: Disk) -> list[IndexEntry]:
        """The entries that held references. Records that can't be read stay referred to until the
        next start counts anew. Raises `OSError`."""
        found, _ = load_segment(
            disk, self.segment, self.positions, RangeSet(), self.cuts, end=self.end
        )
        return found
