"""Where the bodies of one queue's live messages are, and which of them are in memory.

Keeps the index, reads blocks, unfolds deltas, and holds the queue's references to the message
stores. The queue's `Pager` decides which blocks leave memory, its `ReadAhead` which come back.

A body that is wanted and not in memory is read at once, on the event loop: one block, or the
headers of one segment. Reading ahead, in a thread, makes that rare.

Invariants (`check`):
* each live position has its body in the index, or is in `missing`, never both;
* `live_bytes` is the size of all live bodies in the index;
* a block that can't be read from disk is in memory;
* each living entry with a location holds one reference to it, a delta one for each such entry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue.block import Block
from ringmq_node.storage.errors import CorruptError, CorruptionReport, ReadError
from ringmq_node.storage.format.checkpoint import Cut
from ringmq_node.storage.queue import paging
from ringmq_node.storage.queue.blocks import read_block
from ringmq_node.storage.queue.condemned import Condemned
from ringmq_node.storage.queue.entries import Delta, IndexEntry, QueueFile
from ringmq_node.storage.queue.index import RunIndex, Settlement
from ringmq_node.storage.queue.loading import load_segment
from ringmq_node.storage.queue.parts import SharedParts
from ringmq_node.storage.queue.recovery import Recovered
from ringmq_node.storage.queue.releases import Releases

logger = logging.getLogger(__name__)


class Bodies:
    """Of one queue. Everything is called on the event loop's thread."""

    def __init__(
        self,
        shared: SharedParts,
        found: Recovered,
        *,
        gate: Callable[[], int],
        on_emptied: Callable[[QueueFile], None],
        on_lost: Callable[[IndexEntry | None], None],
    ) -> None:
        """Takes over what recovery has found.

        `gate()` returns the number of the share that makes all that has happened so far
        durable. `on_emptied(file)` is called when an entry has left that file, and
        `on_lost(entry)` when live bodies turn out to be lost: those of `entry`, or, with None,
        those of a segment whose headers are damaged.
        """
        self.live: RangeSet = found.state.live
        self.missing: RangeSet = found.missing
        # Of all live messages that are not missing.
        self.live_bytes = found.body_bytes
        self.index: RunIndex = found.index
        self.segments: dict[int, QueueFile] = found.segments
        self.cuts: tuple[Cut, ...] = found.cuts
        self.corruptions: list[CorruptionReport] = found.corruptions
        self.next_position = found.state.next_position
        self.condemned: list[Condemned] = []
        self.releases = Releases(shared)
        # Read back from disk since the queue was opened. Bytes of bodies, without properties.
        self.blocks_read = 0
        self.body_bytes_read = 0
        self.segments_loaded = 0
        # The position behind the last one that a consumer was given; 0 if none was.
        self.next_fetch = 0
        self._shared = shared
        self._gate = gate
        self._on_emptied = on_emptied
        self._on_lost = on_lost
        # The block that was read last, kept beside the memory budget: a consumer with a small
        # prefetch takes several times from one block.
        self._recent: tuple[IndexEntry, Block] | None = None
        # The entry whose bytes were counted last. An ack may name thousands of ranges of one entry,
        # and to find it for each took most of the time, 60 ms for 10 000.
        self._counted: IndexEntry | None = None
        self._accounted = 0
        self._is_given_up = False
        self.account()

    @property
    def head(self) -> int:
        """The position that is fetched next."""
        return max(self.next_fetch, self.live.first if self.live else self.next_position)

    # -- what comes and goes

    def add(self, entry: IndexEntry) -> None:
        """Takes in a living entry of new messages, with its block."""
        self.index.add(entry)
        self.live_bytes += entry.body_bytes
        self.account()

    def before_removal(self, ranges: tuple[Range, ...]) -> None:
        """`ranges` are about to die: unfolds the deltas of which only a part dies."""
        if not self.index.deltas or not ranges:
            return
        # Before the op is applied: an entry counts its live positions when it is unfolded, and
        # `forget` then counts the dead ones down. Afterwards they would be subtracted twice.
        going = RangeSet(ranges)
        for delta in self.index.folded(going.first, going.last):
            rest = RangeSet(self.live.intersection(delta.first, delta.last))
            # Stays folded: a delta that dies as a whole, or that loses no live position.
            if rest.subtract(going.intersection(delta.first, delta.last)) and rest:
                self.unfold(delta)

    def before_adding(self, first: int, last: int) -> None:
        """Unfolds deltas in whose segments entries are about to be added: the segment that the
        queue is filling, or one with missing positions."""
        for delta in self.index.folded(first, last):
            self.unfold(delta)

    def forget(self, gone: list[Range]) -> None:
        """The positions of `gone` were live until now."""
        if self.index.deltas and gone:
            # As one set: a delta may die of several ranges together.
            positions = RangeSet(gone)
            for delta in self.index.folded(positions.first, positions.last):
                if positions.intersection(delta.first, delta.last):
                    self._condemn(delta, positions)
        # After the deltas: `_condemn` asks which of their bodies were lost.
        if self.missing:
            self.missing.subtract(gone)
        freed, died = self.index.remove(gone)
        self.live_bytes -= freed
        for entry in died:
            self.has_died(entry)
        self.account()

    def _covers(self, delta: Delta, first: int, last: int) -> bool:
        """Whether `first..last` has all live positions of a delta."""
        before = delta.first < first and self.live.intersection(delta.first, first - 1)
        behind = delta.last > last and self.live.intersection(last + 1, delta.last)
        return not before and not behind

    def _condemn(self, delta: Delta, positions: RangeSet) -> None:
        """All messages of a delta have died. `positions` are all that have died just now."""
        self.live_bytes -= delta.live_bytes
        self.index.unfold(delta, [])
        if delta.stored:
            # The segment has to stay until its references are read, though nothing in it lives.
            delta.segment.holders += 1
            inside = RangeSet(positions.intersection(delta.first, delta.last))
            # Entries whose bodies were lost have given their references back before.
            inside.subtract(self.missing.intersection(delta.first, delta.last))
            segment = delta.segment
            self.condemned.append(Condemned(segment, inside, self.cuts, self._gate(), segment.end))
        self._on_emptied(delta.segment)

    def give_back(self, condemned: Condemned, entries: list[IndexEntry]) -> None:
        """Releases the references that were read from a condemned segment."""
        condemned.segment.holders -= 1
        for entry in entries:
            if entry.location is not None:
                self._shared.messages(transient=entry.transient).release(entry.location)
        self._on_emptied(condemned.segment)

    def has_died(self, entry: IndexEntry) -> None:
        """An entry has died: its place in the message store is given back, in good time."""
        self._give_up_place(entry)
        self._left(entry)

    def _give_up_place(self, entry: IndexEntry) -> None:
        place = entry.location
        if place is not None and entry.transient:
            # At once: the next start empties the transient store anyway. And if the block is not
            # written yet, it never will be.
            self._shared.messages(transient=True).release(place)
        elif place is not None:
            self.releases.wait(place)

    def settle(self, settlement: Settlement) -> None:
        """Many entries have died at once: a hundred thousand, it may be. The caller lets go of
        their blocks, bit by bit."""
        self.index.settle(settlement)
        self._recent = None
        for entry in settlement.stored:
            self._give_up_place(entry)
        for file in settlement.left:
            self._on_emptied(file)

    def _left(self, entry: IndexEntry) -> None:
        """An entry has left the index."""
        if self._recent is not None and self._recent[0] is entry:
            self._recent = None
        if entry.file is not None:
            self._on_emptied(entry.file)

    def replace(self, entries: list[IndexEntry], parts: list[IndexEntry]) -> None:
        """The bodies of `entries`, which follow one another, have new index records: `parts`.

        An entry in the message store is replaced alone. Its parts all have its location, and each
        holds a reference of its own.
        """
        for part in parts[1:]:
            if part.location is not None:
                self._shared.messages(transient=part.transient).share(part.location)
        self.index.replace(entries, parts)
        for entry in entries:
            entry.block = None
            self._left(entry)
        self.account()

    def clear(self) -> list[IndexEntry]:
        """Gives back the references of a deleted queue; returns what takes its memory. To free
        200 000 entries at once takes 50 ms: the caller lets go of them bit by bit."""
        for delta in [*self.index.deltas.values()]:
            self._condemn(delta, self.live.part(delta.first, delta.last))
        entries = self.index.clear()
        for entry in entries:
            # A job of the reading thread may still have the entry: this tells it to drop it.
            entry.live = 0
            if entry.location is not None:
                self._shared.messages(transient=entry.transient).release(entry.location)
        self.releases.release(self.releases.take())
        self.account()
        return entries

    def end(self) -> None:
        """The queue is gone: tells nobody any more."""
        self._gate = lambda: 0
        self._on_emptied = lambda file: None
        self._on_lost = lambda entry: None

    # -- reading

    def parts(self, first: int, last: int) -> Iterator[tuple[IndexEntry, int, int]]:
        """The live positions of `first..last` that are not missing: an entry and a range of
        positions in it at a time, in order.

        Unfolds the deltas that it comes to.
        """
        while first <= last:
            deltas = self.index.folded(first, last) if self.index.deltas else []
            stop = min(last, deltas[0].first - 1) if deltas else last
            if first <= stop:
                for entry in self.index.overlapping(first, stop):
                    low, high = max(first, entry.first), min(stop, entry.last)
                    for a, b in self.live.intersection(low, high):
                        yield entry, a, b
            if not deltas:
                return
            # Only here, when no iterator over the index is open: unfolding adds entries to it.
            first = max(first, deltas[0].first)
            self.unfold(deltas[0])

    def bytes_in(self, first: int, last: int) -> int:
        """Body bytes of the live messages of `first..last` that are not missing."""
        if first > last:
            return 0
        counted = self._counted
        if (
            counted is not None
            and counted.live
            and counted.first <= first
            and last <= counted.last
            and self.live.contains_all(first, last)
        ):
            return counted.bytes_of(first, last)
        if self.live and first <= self.live.first and last >= self.live.last:
            # A new master asks for all of its queue, which may be tens of thousands of ranges.
            return self.live_bytes
        total = 0
        for delta in self.index.folded(first, last):
            if self._covers(delta, first, last):
                total += delta.live_bytes
            else:
                self.unfold(delta)
        for entry in self.index.overlapping(first, last):
            self._counted = entry
            low, high = max(first, entry.first), min(last, entry.last)
            if low == entry.first and high == entry.last:
                total += entry.living(self.live)[1]
            else:
                total += sum(entry.bytes_of(a, b) for a, b in self.live.intersection(low, high))
        return total

    def block_of(self, entry: IndexEntry, *, keep: bool) -> Block:
        """The block of an entry, from memory or disk. `keep` it if it will soon be wanted again.

        Raises `CorruptError` if it is damaged; its positions are missing from then on.
        """
        if entry.block is not None:
            return entry.block
        if self._recent is not None and self._recent[0] is entry:
            return self._recent[1]
        try:
            block = read_block(self._shared.disk, entry, self._shared.messages)
        except CorruptError as error:
            self.lose(entry, error.report)
            raise
        self.count_read(block)
        if keep and not self.is_over:
            self.index.attach(entry, block)
            self.account()
        else:
            self._recent = entry, block
        return block

    def has_at_hand(self, entry: IndexEntry) -> bool:
        """Whether the block of an entry is the one that was read last."""
        return self._recent is not None and self._recent[0] is entry

    def count_read(self, block: Block) -> None:
        """Counts a block that was read from disk."""
        self._shared.counters.blocks_read += 1
        self.blocks_read += 1
        self.body_bytes_read += block.body_bytes()

    def lose(self, entry: IndexEntry, report: CorruptionReport) -> None:
        """The bodies of an entry are damaged: their live positions are missing from now on.

        The damaged bytes stay on the disk for a later look at them. So the segment keeps a holder,
        and the record in the message store keeps its reference, until the next start.
        """
        self._report(report)
        self.give_up(entry, self.live.intersection(entry.first, entry.last))
        self.index.discard(entry)
        entry.block = None
        file = entry.file
        if file is not None and not file.damaged and self.segments.get(file.number) is file:
            file.damaged = True
            file.holders += 1
        self._left(entry)
        self.account()

    def give_up(self, entry: IndexEntry, parts: list[Range]) -> None:
        """The live positions `parts` of an entry have no body here any more."""
        for low, high in parts:
            self.live_bytes -= entry.bytes_of(low, high)
            self.missing.add(low, high)
        if parts:
            self._on_lost(entry)

    def _report(self, report: CorruptionReport) -> None:
        logger.error("%s", report)
        self.corruptions.append(report)

    def forget_recent(self) -> None:
        """Lets go of the block that was read last."""
        self._recent = None

    # -- folding

    def unfold(self, delta: Delta) -> None:
        """Reads the entries of a delta. Positions whose records are damaged are missing from then
        on. Raises `ReadError` if the file can't be read just now: the delta stays."""
        try:
            found, reports = load_segment(
                self._shared.disk, delta.segment, self.live, self.missing, self.cuts
            )
        except OSError as error:
            raise ReadError.of(delta.segment.path, error) from error
        self.unfold_with(delta, found, reports)

    def unfold_with(
        self, delta: Delta, found: list[IndexEntry], reports: list[CorruptionReport]
    ) -> None:
        """Puts the entries `found` in the place of a delta, as far as they are still live."""
        self.segments_loaded += 1
        for report in reports:
            self._report(report)
        entries: list[IndexEntry] = []
        size = 0
        for entry in found:
            # Counted anew: messages may have died since a thread has read these entries.
            entry.live, live_bytes = entry.living(self.live)
            size += live_bytes
            if entry.live:
                entries.append(entry)
        alive = self.live.part(delta.first, delta.last)
        lost = alive.without((entry.first, entry.last) for entry in entries)
        lost.subtract(self.missing.intersection(delta.first, delta.last))
        self.index.unfold(delta, entries)
        # Live positions that no entry has: the headers of their records are damaged.
        self.missing.update(lost)
        self.live_bytes += size - delta.live_bytes
        if not entries:
            self._on_emptied(delta.segment)
        self.account()
        # Last, with all counts in order: the callback may begin another journal.
        if lost:
            self._on_lost(None)

    @property
    def is_over(self) -> bool:
        """Whether the queues of the node together hold more in memory than they may."""
        return self._shared.counters.queue_memory_bytes > self._shared.limits.queue_memory_bytes_max

    def account(self) -> None:
        """Adds the change of this queue's memory to the node's sum."""
        if self._is_given_up:
            return
        now = self.index.memory_bytes
        self._shared.counters.queue_memory_bytes += now - self._accounted
        self._accounted = now

    def give_up_share(self) -> None:
        """The queue has failed: takes its memory out of the node's sum, for good. Whatever is wrong
        with the index may be so with its sums as well, so only the number is looked at."""
        self._shared.counters.queue_memory_bytes -= self._accounted
        self._accounted = 0
        self._is_given_up = True

    def check(self) -> None:
        """Asserts the invariants at the top."""
        self.missing.check()
        self.index.check(self.live, self.missing)
        total = sum(delta.live_bytes for delta in self.index.deltas.values())
        for entry in self.index:
            total += sum(
                entry.bytes_of(a, b) for a, b in self.live.intersection(entry.first, entry.last)
            )
            assert entry.durable or entry.block is not None
        assert self.live_bytes == total, (self.live_bytes, total)
        chain = paging.chain(self.index, self.index.deltas.values(), self.head)
        paging.check(chain)
        assert self._accounted == (0 if self._is_given_up else self.index.memory_bytes)
