"""The index of one queue: its entries by position, and its deltas by segment.

An entry is found by bisection over the first positions. One that dies lets go of its block and
stays in the lists until half of all are dead, so that a death costs O(log n) and not O(n).

A segment is *folded* when a delta takes the place of its entries, and *unfolded* when the entries
are read again from its file, because somebody touches a position in it.

Invariants (`check`):
* entries are in order and don't overlap, and none is in the segment of a delta;
* an entry's `live` is the number of live positions in it;
* a file's `holders` counts the living entries in it, a delta being one;
* `memory_bytes` is the sum over the entries, blocks and deltas that are there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue.block import Block
from ringmq_node.storage.format.queue_folder import SEGMENT_POSITIONS
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.queue.entries import (
    ENTRY_BYTES,
    Delta,
    IndexEntry,
    QueueFile,
    memory_bytes,
)

_COMPACT_ABOVE = 64


@dataclass(slots=True)
class Settlement:
    """What the index will be once some of its entries are dead and others have fewer live messages:
    its lists, what its sums gain, and how many entries each file loses.

    It is made entry by entry, with the blocks, counts and places that the entries have then. It
    holds as long as `RunIndex.recounts` is the same.
    """

    recounts: int
    firsts: list[int] = field(default_factory=list)
    entries: list[IndexEntry] = field(default_factory=list)
    died: list[IndexEntry] = field(default_factory=list)
    # Of those that die: their blocks, and the ones that have a place in the message store.
    blocks: list[Block] = field(default_factory=list)
    stored: list[IndexEntry] = field(default_factory=list)
    # Those that live on, and how many of their messages do.
    counts: list[tuple[IndexEntry, int]] = field(default_factory=list)
    messages: int = 0
    messages_in_memory: int = 0
    memory_bytes: int = 0
    # A dict: their order is repeatable.
    left: dict[QueueFile, int] = field(default_factory=dict)

    def keep(self, entry: IndexEntry) -> None:
        """The entry stays in the index."""
        self.firsts.append(entry.first)
        self.entries.append(entry)

    def change(self, entry: IndexEntry, live: int) -> None:
        """The entry has so many live messages then."""
        change = live - entry.live
        self.messages += change
        if entry.block is not None:
            self.messages_in_memory += change
        if live:
            self.keep(entry)
            self.counts.append((entry, live))
            return
        self.died.append(entry)
        self.memory_bytes -= entry.memory_bytes
        if entry.block is not None:
            self.blocks.append(entry.block)
            self.memory_bytes -= memory_bytes(entry.block)
        if entry.location is not None:
            self.stored.append(entry)
        if entry.file is not None:
            self.left[entry.file] = self.left.get(entry.file, 0) + 1


class RunIndex:
    """The entries of one queue by position, and its deltas by segment."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._entries: list[IndexEntry] = []
        self._head = 0
        self._dead = 0
        self.deltas: dict[int, Delta] = {}
        # Live messages of all entries, and of the entries with their block in memory.
        self.messages = 0
        self.messages_in_memory = 0
        # Of entries, blocks and deltas; an estimate.
        self.memory_bytes = 0
        # Goes up whenever an entry comes or goes, its block does, or it gets a place in a message
        # store: whenever a `Settlement` that was made before doesn't hold any more.
        self.recounts = 0

    def __iter__(self) -> Iterator[IndexEntry]:
        """The living entries, in order."""
        return (entry for entry in self._entries[self._head :] if entry.live)

    def __len__(self) -> int:
        """How many living entries are in memory."""
        return len(self._entries) - self._dead

    def add(self, entry: IndexEntry) -> None:
        """Takes in a living entry. No living entry covers its positions."""
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
            # All entries before `_head` are dead. This one lives, so the head moves back to it.
            self._head = min(self._head, place)

    def overlapping(self, first: int, last: int) -> Iterator[IndexEntry]:
        """Living entries with a position in `first..last`, in order. Don't add meanwhile."""
        entries = self._entries
        index = max(self._head, bisect_right(self._firsts, first) - 1)
        # One step back from the bisection is enough, though the entry there may be dead: dead
        # entries overlap no living one, as removed positions don't come back.
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
        """Counts down for positions that were live until now and are in no delta.

        Returns the bytes of their bodies, and the entries that have died. These have lost their
        blocks.
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
        """Takes a living entry out at once, so that other entries can cover its positions."""
        place = self._place(entry)
        del self._firsts[place], self._entries[place]
        self._count(entry, -1)
        entry.live = 0

    def replace(self, entries: list[IndexEntry], parts: list[IndexEntry]) -> None:
        """Puts `parts` in the place of `entries`.

        `entries` are living and in order, with no living entry in between, and `parts` cover all
        their live positions.
        """
        low, high = self._place(entries[0]), self._place(entries[-1]) + 1
        self._dead -= high - low - len(entries)
        self._firsts[low:high] = [part.first for part in parts]
        self._entries[low:high] = parts
        for part in parts:
            self._count(part, 1)
        # A job in a thread may still have the old entries: this tells it that they are gone.
        for entry in entries:
            self._count(entry, -1)
            entry.live = 0

    def attach(self, entry: IndexEntry, block: Block) -> None:
        """Gives a living entry its block."""
        assert entry.block is None
        self.recounts += 1
        entry.block = block
        self.messages_in_memory += entry.live
        self.memory_bytes += memory_bytes(block)

    def locate(self, entry: IndexEntry, location: RecordLocation) -> None:
        """Gives a living entry a place in a message store."""
        assert entry.location is None
        self.recounts += 1
        entry.location = location

    def detach(self, entry: IndexEntry) -> None:
        """Takes the block, which is on disk, from a living entry."""
        # Out and in again: sizes take the place of the block, which changes all the sums.
        self._count(entry, -1)
        entry.drop_block()
        self._count(entry, 1)

    def fold(self, segment: QueueFile, live: RangeSet) -> Delta:
        """Puts a delta in the place of all entries of a segment. All of them are in its file."""
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
            delta.live_bytes += entry.living(live)[1]
            self._count(entry, -1)
            # A job in a thread may still refer to the entry: this tells it that the entry is dead.
            entry.live = 0
        self._dead -= high - low - len(folded)
        del self._firsts[low:high], self._entries[low:high]
        self._head = min(self._head, low)
        self._compact()
        self.put(delta)
        return delta

    def put(self, delta: Delta) -> None:
        """Takes in a delta. Its segment has no entry in the index."""
        delta.segment.holders += 1
        self.memory_bytes += ENTRY_BYTES
        self.deltas[delta.segment.number] = delta

    def unfold(self, delta: Delta, entries: list[IndexEntry]) -> None:
        """Puts the living entries of its segment in the place of a delta; none if it is dead."""
        del self.deltas[delta.segment.number]
        delta.segment.holders -= 1
        self.memory_bytes -= ENTRY_BYTES
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

    def clear(self) -> list[IndexEntry]:
        """Takes all entries out; returns the living ones in order, unchanged."""
        assert not self.deltas
        entries = [entry for entry in self._entries[self._head :] if entry.live]
        for entry in entries:
            if entry.file is not None:
                entry.file.holders -= 1
        # Not counted down entry by entry: of 200 000 that took a tenth of a second.
        self.messages = self.messages_in_memory = self.memory_bytes = 0
        self._firsts, self._entries, self._head, self._dead = [], [], 0, 0
        self.recounts += 1
        return entries

    def trim(self, entry: IndexEntry, last: int) -> None:
        """Shortens a living entry to end at `last`; its live messages are all before that."""
        self._count(entry, -1)
        entry.trim(last)
        self._count(entry, 1)

    def settle(self, settlement: Settlement) -> None:
        """Takes over the lists, counts and sums. What has died has no block any more."""
        assert settlement.recounts == self.recounts
        self._firsts, self._entries = settlement.firsts, settlement.entries
        self._head = self._dead = 0
        self.messages += settlement.messages
        self.messages_in_memory += settlement.messages_in_memory
        self.memory_bytes += settlement.memory_bytes
        for file, count in settlement.left.items():
            file.holders -= count
        for entry in settlement.died:
            entry.live = 0
            entry.block = None
        for entry, live in settlement.counts:
            entry.live = live
        self.recounts += 1

    def _sweep(self) -> None:
        """Drops all dead entries."""
        self._entries = [entry for entry in self._entries if entry.live]
        self._firsts = [entry.first for entry in self._entries]
        self._head = self._dead = 0

    def _place(self, entry: IndexEntry) -> int:
        assert entry.live
        place = bisect_left(self._firsts, entry.first)
        while self._entries[place] is not entry:
            place += 1
        return place

    def _bury(self, entry: IndexEntry) -> None:
        self._count(entry, -1)
        entry.block = None
        self._dead += 1

    def _count(self, entry: IndexEntry, sign: int) -> None:
        self.recounts += 1
        if entry.file is not None:
            entry.file.holders += sign
        live, size = sign * entry.live, entry.memory_bytes
        self.messages += live
        if entry.block is not None:
            self.messages_in_memory += live
            size += memory_bytes(entry.block)
        self.memory_bytes += sign * size

    def _compact(self) -> None:
        """Drops dead entries: at the head by moving it, else once half of all are dead.

        Taking each one out of the lists as it dies would cost O(n) each time.
        """
        entries = self._entries
        while self._head < len(entries) and not entries[self._head].live:
            self._head += 1
        if self._dead > _COMPACT_ABOVE and 2 * self._dead > len(entries):
            self._sweep()

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
            assert entry.live == live.count_in(entry.first, entry.last)
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
            assert delta.live == live.count_in(first, last) - missing.count_in(first, last)
            assert delta.live > 0
            covered += delta.live
        assert covered + len(missing) == len(live)
        self._check_counts()

    def _check_counts(self) -> None:
        entries = [*self]
        cached = [entry for entry in entries if entry.block is not None]
        assert self.messages == sum(entry.live for entry in entries)
        assert self.messages_in_memory == sum(entry.live for entry in cached)
        memory = sum(entry.memory_bytes for entry in entries) + ENTRY_BYTES * len(self.deltas)
        assert self.memory_bytes == memory + sum(
            memory_bytes(entry.block) for entry in cached if entry.block is not None
        )
