"""Reading the entries of one segment that is in use: to unfold a delta, or to give back its
references.

Only reads, and touches nothing but its arguments, so it may run in a thread.
"""

from __future__ import annotations

from functools import partial

from ringmq_base.ranges import RangeSet
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import CorruptionReport
from ringmq_node.storage.format.checkpoint import Cut
from ringmq_node.storage.format.segment_scan import scan_segment
from ringmq_node.storage.queue.choice import choose, entries_of, lasting
from ringmq_node.storage.queue.entries import IndexEntry, QueueFile


def load_segment(
    disk: Disk,
    file: QueueFile,
    live: RangeSet,
    missing: RangeSet,
    cuts: tuple[Cut, ...],
    *,
    end: int | None = None,
) -> tuple[list[IndexEntry], list[CorruptionReport]]:
    """The entries of a segment for its positions that are `live` and not `missing`.

    They are in order and don't overlap; recovery would choose the same. A live position for which
    the segment has nothing is in no entry, and the caller has to look for it. With `end`, only the
    bytes before that offset are read. Raises `OSError`.
    """
    size = file.end if end is None else end
    # This process wrote those bytes, or its start found them whole. So all that was synced is
    # proven, and a body that is damaged since is found when it is read.
    found = scan_segment(
        file.path,
        file.number,
        size,
        partial(disk.read, file.path),
        proven=min(size, file.synced),
    )
    if not found.marker:
        report = CorruptionReport(str(file.path), 0, file.end, found.unreadable)
        return [], [report]
    choices = choose(lasting(found.bodies, file.found), live, missing, RangeSet(), cuts)
    return entries_of(choices, file), found.corruptions
