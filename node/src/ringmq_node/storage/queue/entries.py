"""What the index of a queue is made of: files, entries and deltas.

An `IndexEntry` stands for consecutive positions whose bodies are in one block. A `Delta` stands
for all entries of one segment, none of which is in memory.
"""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

from ringmq_base.ranges import RangeSet
from ringmq_node.queue.block import Block, between
from ringmq_node.storage.format.queue_folder import SEGMENT_POSITIONS
from ringmq_node.storage.format.references import RecordLocation

# Memory of a block beside its bytes: its offsets, as Python objects.
_BLOCK_BYTES = 300
_OFFSET_BYTES = 40
# Memory of an entry without its block and sizes, and of its place in the index.
ENTRY_BYTES = 400


@dataclass(slots=True, eq=False)
class QueueFile:
    """A journal or a segment. `number` is its generation or the number of the segment."""

    path: Path
    number: int
    marker: int
    # The end of the bytes that are written, or that a thread was given to write.
    end: int
    # The file is known to be durable up to this offset.
    synced: int
    # Of the bytes up to there, so many at the end are in the commit log only (see `lagging`).
    unwritten: int = 0
    # The end of the bytes that this start has found. What they refer to in the transient store is
    # gone, as that is emptied at each start.
    found: int = 0
    # How many keep the file: living entries whose record is in it, its delta, and one more while
    # it is `damaged` or its references are still to be read. At 0 the file may be deleted.
    holders: int = 0
    # A record in it was found damaged: the file is kept until the next start, and not folded.
    damaged: bool = False
    # The oldest generation of a journal of which a body is in it.
    oldest_generation: int = 0
    # Held while a journal is renamed and while it is read. A reader that opened the path between
    # the two renames of a sealing would get the next journal under this one's name.
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True, eq=False)
class IndexEntry:
    """Positions `first..last`; `first` is message number `start` of the block.

    Which of them are live is not its business (the queue's state says so), only how many. At zero
    the entry is dead.
    """

    first: int
    last: int
    start: int
    live: int
    # Kept as such, as is all of a queue that isn't durable.
    transient: bool
    generation: int
    # The index record: its file, where it begins, and its length with the header. Without a file
    # there is no record: the message is in memory only, or in the transient store.
    file: QueueFile | None
    offset: int
    length: int
    # Of all the bodies of `first..last`, dead ones too.
    body_bytes: int
    block: Block | None
    # Of each body from `first` on, while the block isn't in memory. None: all are of one size.
    sizes: array[int] | None = None
    durable: bool = False
    # The block's place in the message store; None if it is in the index record.
    location: RecordLocation | None = None

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    @property
    def memory_bytes(self) -> int:
        """About the memory that the entry takes without its block."""
        return ENTRY_BYTES + (4 * len(self.sizes) if self.sizes is not None else 0)

    def bytes_of(self, first: int, last: int) -> int:
        """Bytes of the bodies of `first..last`, which must be within this entry."""
        if first == self.first and last == self.last:
            return self.body_bytes
        low, high = first - self.first, last - self.first + 1
        if self.block is not None:
            return self.block.body_bytes(low + self.start, high + self.start)
        if self.sizes is None:
            return self.body_bytes // self.count * (high - low)
        return sum(self.sizes[low:high])

    def living(self, live: RangeSet) -> tuple[int, int]:
        """How many of its positions are `live`, and the bytes of their bodies.

        At the same price for one position as `bytes_of`, and at some 60 ns for each range.
        """
        firsts, lasts = live.bounds(self.first, self.last)
        if not firsts:
            return 0, 0
        count = sum(lasts) - sum(firsts) + len(firsts)
        if count == self.count:
            return count, self.body_bytes
        if self.block is not None:
            return count, self.block.bytes_between(firsts, lasts, self.start - self.first)
        if self.sizes is None:
            return count, self.body_bytes // self.count * count
        return count, between([*accumulate(self.sizes, initial=0)], firsts, lasts, -self.first)

    def part(self, first: int, last: int, live: int) -> IndexEntry:
        """An entry for a part of these positions, of which `live` are live. It has no block."""
        low, high = first - self.first, last - self.first + 1
        sizes = self._sizes()
        return replace(
            self,
            first=first,
            last=last,
            start=low + self.start,
            live=live,
            body_bytes=self.bytes_of(first, last),
            block=None,
            sizes=None if sizes is None else alike(sizes[low:high]),
        )

    def trim(self, last: int) -> None:
        """Shortens the entry to end at `last`. Only of an entry that is in no index."""
        assert self.first <= last <= self.last
        self.body_bytes = self.bytes_of(self.first, last)
        if self.sizes is not None:
            self.sizes = self.sizes[: last - self.first + 1]
        self.last = last

    def sizes_of(self, first: int, last: int) -> array[int]:
        """The sizes of the bodies of `first..last`, which must be within this entry."""
        low, high = first - self.first, last - self.first + 1
        if self.block is not None:
            return self.block.body_sizes()[low + self.start : high + self.start]
        if self.sizes is None:
            return array("I", [self.body_bytes // self.count]) * (high - low)
        return self.sizes[low:high]

    def _sizes(self) -> array[int] | None:
        return self.sizes if self.block is None else alike(self.sizes_of(self.first, self.last))

    def drop_block(self) -> None:
        """Lets go of the block, which is on disk. An entry of an index: `RunIndex.detach`."""
        assert self.durable
        self.sizes = self._sizes()
        self.block = None


def alike(sizes: array[int]) -> array[int] | None:
    """None for sizes that are all the same, else `sizes`: so an entry keeps them."""
    return None if sizes.count(sizes[0]) == len(sizes) else sizes


@dataclass(frozen=True, slots=True, eq=False)
class LoggedJournal:
    """A journal and the entries that were logged in it, dead ones too.

    An entry refers to its file. In the file itself the list would be a cycle of ten thousand
    objects for each sealed journal, and what was frozen (`resources.garbage`) stays in a cycle.
    """

    file: QueueFile
    entries: list[IndexEntry]


@dataclass(slots=True, eq=False)
class Delta:
    """A segment of which no entry is in memory, only these counts. See `RunIndex.fold`."""

    segment: QueueFile
    # Live messages whose bodies are in the segment, and the bytes of these.
    live: int
    live_bytes: int
    # Whether any of its bodies are in the message store.
    stored: bool

    @property
    def first(self) -> int:
        """The segment's first position, live or not."""
        return self.segment.number * SEGMENT_POSITIONS

    @property
    def last(self) -> int:
        return self.first + SEGMENT_POSITIONS - 1


def memory_bytes(block: Block) -> int:
    """About the memory that `block` takes."""
    return _BLOCK_BYTES + block.kept_bytes + _OFFSET_BYTES * block.count
