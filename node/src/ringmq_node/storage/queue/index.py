"""Where the bodies of a queue are: in memory, in a journal, in a segment.

An `IndexEntry` stands for consecutive positions whose bodies are in one block. It is
found by bisection over the first positions. Which of its positions are live is
not its business (`ReplicatedState.live` says so), only how many: at zero the entry is
dead, its block is let go, and it is left in place until half of all are dead, so
that taking one out is O(log n) and not O(n).

A `Delta` stands for all living entries of one segment, which are not in memory: they are
read again (`unfold`) from the headers of its file when something touches them.

Invariant (`check`): entries are in order and don't overlap, and none is in the segment of a
delta; `live` is the number of live positions; each file's `holders` is the number of
living entries in it, a delta being one; what is counted of memory is what is there.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue.block import Block
from ringmq_node.storage.format.references import RecordLocation

SEGMENT_POSITIONS = 16_384
# What a block takes in memory beside its bytes: its offsets, as Python objects.
_BLOCK_BYTES = 300
_OFFSET_BYTES = 40
# What an entry takes without its block and sizes, and its place in the index.
_ENTRY_BYTES = 400
_COMPACT_ABOVE = 64


@dataclass(slots=True, eq=False)
class QueueFile:
    """A journal or a segment. `number` is its generation, or its place in the queue."""

    path: Path
    number: int
    marker: int
    # What is written, or given to a thread to write, ends here.
    end: int
    # Known to be durable up to here.
    synced: int
    # What this start has found ends here: it refers to nothing in the transient store.
    found: int = 0
    # Living entries whose record is here.
    holders: int = 0
    # Something in it is damaged: it is kept until the next start, and not folded.
    damaged: bool = False
    # The oldest journal generation of any body in it.
    oldest_generation: int = 0
    # Entries that were logged here, dead ones too. Only of journals.
    entries: list[IndexEntry] = field(default_factory=list)
    # Held while a journal is renamed, and while it is read.
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True, eq=False)
class IndexEntry:
    """Positions `first..last`; `first` is message number `start` of the block."""

    first: int
    last: int
    start: int
    live: int
    transient: bool
    generation: int
    # The index record: which file it is in (None: in none, the message is only in memory or
    # in the transient store), where it begins, how long it is with its header.
    file: QueueFile | None
    offset: int
    length: int
    # Bytes of all the bodies of `first..last`, dead ones too.
    body_bytes: int
    block: Block | None
    # Sizes of the bodies from `first` on, while the block isn't in memory. None: all alike.
    sizes: array[int] | None = None
    durable: bool = False
    # Where the block is in the message store; None if it is in the index record.
    location: RecordLocation | None = None

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    @property
    def memory_bytes(self) -> int:
        """About what this takes in memory without its block."""
        return _ENTRY_BYTES + (4 * len(self.sizes) if self.sizes is not None else 0)

    def bytes_of(self, first: int, last: int) -> int:
        """Bytes of the bodies of `first..last`, which are all in this entry."""
        if first == self.first and last == self.last:
            return self.body_bytes
        low, high = first - self.first, last - self.first + 1
        if self.block is not None:
            return self.block.body_bytes(low + self.start, high + self.start)
        if self.sizes is None:
            return self.body_bytes // self.count * (high - low)
        return sum(self.sizes[low:high])

    def part(self, first: int, last: int, live: int) -> IndexEntry:
        """An entry for a part of this one's positions, of which `live` are live. Not cached."""
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
        """From here on the entry ends at `last`. Only of one that is in no index."""
        assert self.first <= last <= self.last
        self.body_bytes = self.bytes_of(self.first, last)
        if self.sizes is not None:
            self.sizes = self.sizes[: last - self.first + 1]
        self.last = last

    def sizes_of(self, first: int, last: int) -> array[int]:
        """The sizes of the bodies of `first..last`, which are all in this entry."""
        low, high = first - self.first, last - self.first + 1
        if self.block is not None:
            return self.block.body_sizes()[low + self.start : high + self.start]
        if self.sizes is None:
            return array("I", [self.body_bytes // self.count]) * (high - low)
        return self.sizes[low:high]

    def _sizes(self) -> array[int] | None:
        return self.sizes if self.block is None else alike(self.sizes_of(self.first, self.last))

    def drop_block(self) -> None:
        """Lets the block go, which is on disk. Of an entry that is in an index: `detach`."""
        assert self.durable
        self.sizes = self._sizes()
        self.block = None


def alike(sizes: array[int]) -> array[int] | None:
    """What an entry keeps of the sizes of its bodies: nothing, if they are all the same."""
    return None if sizes.count(sizes[0]) == len(sizes) else sizes


@dataclass(slots=True, eq=False)
class Delta:
    """A segment of which only this is in memory."""

    segment: QueueFile
    # Live messages whose bodies are in it, and the bytes of these.
    live: int
    live_bytes: int
    # Whether any of its bodies are in the message store.
    stored: bool

    @property
    def first(self) -> int:
        """Where the segment's positions begin, live or not."""
        return self.segment.number * SEGMENT_POSITIONS

    @property
    def last(self) -> int:
        return self.first + SEGMENT_POSITIONS - 1


def memory_bytes(block: Block) -> int:
    """About what `block` takes in memory."""
    return _BLOCK_BYTES + len(block.data) + _OFFSET_BYTES * block.count


def live_count(live: RangeSet, first: int, last: int) -> int:
    return sum(b - a + 1 for a, b in live.intersection(first, last))


class RunIndex:
    """The entries of one queue by position, and its deltas by segment."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._entries: list[IndexEntry] = []
        self._head = 0
        self._dead = 0
        self.deltas: dict[int, Delta] = {}
        # Live messages of all entries, and of those with their block in memory.
        self.messages = 0
        self.messages_in_memory = 0
        # What entries, blocks and deltas take, about.
        self.memory_bytes = 0

    def __iter__(self) -> Iterator[IndexEntry]:
        """The living entries, in order."""
        return (entry for entry in self._entries[self._head :] if entry.live)

    def __len__(self) -> int:
        """How many entries are in memory, not counting those that are dead."""
        return len(self._entries) - self._dead

    def add(self, entry: IndexEntry) -> None:
        """Takes in a living entry, whose positions nothing living covers."""
        assert entry.live > 0
        self._count(entry, 1)
        if not self._firsts or entry.first > self._firsts[-1]:
            self._firsts.append(entry.first)
            self._entries.append(entry)
            return
        place = bisect_right(self._firsts, entry.first)
        self._firsts.insert(place, entry.first)
        self._entries.insert(place, entry)
        if place <= self._head:
            # The place is before living entries, or the dead one in it would have covered it.
            self._head = min(self._head, place)

    def overlapping(self, first: int, last: int) -> Iterator[IndexEntry]:
        """Living entries with a position in `first..last`, in order. Don't add meanwhile."""
        entries = self._entries
        index = max(self._head, bisect_right(self._firsts, first) - 1)
        # A dead entry can't hide a living one: positions that were removed don't come back.
        while index < len(entries) and entries[index].first <= last:
            entry = entries[index]
            if entry.live and entry.last >= first:
                yield entry
            index += 1

    def before(self, position: int) -> Iterator[IndexEntry]:
        """Living entries that begin before `position`, the last one first."""
        index = bisect_left(self._firsts, position) - 1
        while index >= self._head:
            entry = self._entries[index]
            if entry.live:
                yield entry
            index -= 1

    def remove(self, gone: list[Range]) -> tuple[int, list[IndexEntry]]:
        """Counts down for positions that were live until now, and in no delta.

        Returns the bytes of their bodies, and the entries that died of it, without their blocks.
        """
        freed = 0
        died: list[IndexEntry] = []
        for first, last in gone:
            for entry in self.overlapping(first, last):
                low, high = max(first, entry.first), min(last, entry.last)
                freed += entry.bytes_of(low, high)
                count = high - low + 1
                entry.live -= count
                self.messages -= count
                if entry.block is not None:
                    self.messages_in_memory -= count
                assert entry.live >= 0
                if not entry.live:
                    died.append(entry)
        for entry in died:
            self._bury(entry)
        self._compact()
        return freed, died

    def discard(self, entry: IndexEntry) -> None:
        """Takes a living entry out at once, so that others can cover its positions."""
        place = self._place(entry)
        del self._firsts[place], self._entries[place]
        self._count(entry, -1)
        entry.live = 0

    def replace(self, entries: list[IndexEntry], parts: list[IndexEntry]) -> None:
        """Puts `parts`, which cover all their living positions, in the place of `entries`.

        These are living, in order, and nothing living is between them.
        """
        low, high = self._place(entries[0]), self._place(entries[-1]) + 1
        self._dead -= high - low - len(entries)
        self._firsts[low:high] = [part.first for part in parts]
        self._entries[low:high] = parts
        for part in parts:
            self._count(part, 1)
        for entry in entries:
            self._count(entry, -1)
            entry.live = 0

    def attach(self, entry: IndexEntry, block: Block) -> None:
        """A living entry has its block in memory from now on."""
        assert entry.block is None
        entry.block = block
        self.messages_in_memory += entry.live
        self.memory_bytes += memory_bytes(block)

    def detach(self, entry: IndexEntry) -> None:
        """A living entry lets go of its block, which is on disk."""
        self._count(entry, -1)
        entry.drop_block()
        self._count(entry, 1)

    def fold(self, segment: QueueFile, live: RangeSet) -> Delta:
        """Puts a delta in the place of all entries of a segment, which are all in its file."""
        first = segment.number * SEGMENT_POSITIONS
        last = first + SEGMENT_POSITIONS - 1
        low, high = bisect_left(self._firsts, first), bisect_right(self._firsts, last)
        folded = [entry for entry in self._entries[low:high] if entry.live]
        assert folded
        assert segment.number not in self.deltas
        delta = Delta(segment, 0, 0, any(entry.location is not None for entry in folded))
        for entry in folded:
            assert entry.file is segment
            assert entry.block is None
            delta.live += entry.live
            delta.live_bytes += sum(
                entry.bytes_of(*part) for part in live.intersection(entry.first, entry.last)
            )
            self._count(entry, -1)
            # For whoever still knows it: it is in no index.
            entry.live = 0
        self._dead -= high - low - len(folded)
        del self._firsts[low:high], self._entries[low:high]
        self._head = min(self._head, low)
        self._compact()
        self.put(delta)
        return delta

    def put(self, delta: Delta) -> None:
        """Takes in a delta, whose segment has no entry here."""
        delta.segment.holders += 1
        self.memory_bytes += _ENTRY_BYTES
        self.deltas[delta.segment.number] = delta

    def unfold(self, delta: Delta, entries: list[IndexEntry]) -> None:
        """Puts the living entries of its segment (none, if it is dead) in the place of a delta."""
        del self.deltas[delta.segment.number]
        delta.segment.holders -= 1
        self.memory_bytes -= _ENTRY_BYTES
        for entry in entries:
            self.add(entry)

    def folded(self, first: int, last: int) -> list[Delta]:
        """Deltas of segments that have positions in `first..last`, in order."""
        if not self.deltas:
            return []
        low, high = first // SEGMENT_POSITIONS, last // SEGMENT_POSITIONS
        if high - low < len(self.deltas):
            numbers = [number for number in range(low, high + 1) if number in self.deltas]
        else:
            numbers = sorted(number for number in self.deltas if low <= number <= high)
        return [self.deltas[number] for number in numbers]

    def _place(self, entry: IndexEntry) -> int:
        assert entry.live
        place = bisect_left(self._firsts, entry.first)
        while self._entries[place] is not entry:
            place += 1
        return place

    def clear(self) -> list[IndexEntry]:
        """Takes all entries out; returns the living ones, as they were, in order."""
        assert not self.deltas
        entries = [*self]
        for entry in entries:
            self._count(entry, -1)
        self._firsts, self._entries, self._head, self._dead = [], [], 0, 0
        return entries

    def _bury(self, entry: IndexEntry) -> None:
        self._count(entry, -1)
        entry.block = None
        self._dead += 1

    def _count(self, entry: IndexEntry, sign: int) -> None:
        if entry.file is not None:
            entry.file.holders += sign
        self.messages += sign * entry.live
        self.memory_bytes += sign * entry.memory_bytes
        if entry.block is not None:
            self.messages_in_memory += sign * entry.live
            self.memory_bytes += sign * memory_bytes(entry.block)

    def _compact(self) -> None:
        entries = self._entries
        while self._head < len(entries) and not entries[self._head].live:
            self._head += 1
        if self._dead > _COMPACT_ABOVE and 2 * self._dead > len(entries):
            self._entries = [entry for entry in entries[self._head :] if entry.live]
            self._firsts = [entry.first for entry in self._entries]
            self._head = self._dead = 0

    def check(self, live: RangeSet, missing: RangeSet) -> None:
        """Asserts the invariants at the top."""
        assert self._firsts == [entry.first for entry in self._entries]
        assert self._firsts == sorted(self._firsts)
        assert self._dead == sum(1 for entry in self._entries if not entry.live)
        assert all(not entry.live for entry in self._entries[: self._head])
        holders: dict[int, int] = {}
        before = -1
        covered = 0
        for entry in self:
            assert before < entry.first <= entry.last
            before = entry.last
            assert entry.live == live_count(live, entry.first, entry.last)
            assert not missing.intersection(entry.first, entry.last)
            assert not self.folded(entry.first, entry.last)
            covered += entry.live
            if entry.file is not None:
                holders[id(entry.file)] = holders.get(id(entry.file), 0) + 1
                assert entry.file.holders >= holders[id(entry.file)]
        for number, delta in self.deltas.items():
            assert number == delta.segment.number
            assert delta.segment.holders == 1
            first, last = delta.first, delta.last
            assert delta.live == live_count(live, first, last) - live_count(missing, first, last)
            assert delta.live > 0
            covered += delta.live
        assert covered + len(missing) == len(live)
        self._check_counts()

    def _check_counts(self) -> None:
        entries = [*self]
        cached = [entry for entry in entries if entry.block is not None]
        assert self.messages == sum(entry.live for entry in entries)
        assert self.messages_in_memory == sum(entry.live for entry in cached)
        memory = sum(entry.memory_bytes for entry in entries) + _ENTRY_BYTES * len(self.deltas)
        assert self.memory_bytes == memory + sum(
            memory_bytes(entry.block) for entry in cached if entry.block is not None
        )
