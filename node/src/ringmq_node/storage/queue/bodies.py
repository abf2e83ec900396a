"""Where the bodies of one queue's live messages are, and which of them are in memory.

Keeps the index, reads blocks and unfolds deltas, and holds the references to the message
stores. What is let go of and folded is the business of `pager`, what is read before it is
wanted that of `read_ahead`.

A body that is needed and not in memory is read at once, on the event loop: one block, or the
headers of one segment. Reading ahead, in a thread, makes that rare.

Invariants (`check`):
* each live position has its body in the index, or is in `missing`, never both;
* `live_bytes` is the size of all bodies in the index that are live;
* what can't be read from disk is in memory;
* each living entry with a location holds one reference to it, a delta one for each such entry.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Protocol

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue.block import Block
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import CorruptError, CorruptionReport, ReadError
from ringmq_node.storage.format.checkpoint import Cut
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.limits import Counters, StoreLimits
from ringmq_node.storage.messages import MessageStore
from ringmq_node.storage.queue import paging
from ringmq_node.storage.queue.condemned import Condemned
from ringmq_node.storage.queue.entries import Delta, IndexEntry, QueueFile
from ringmq_node.storage.queue.index import RunIndex
from ringmq_node.storage.queue.loading import load_segment
from ringmq_node.storage.queue.pager import Pager
from ringmq_node.storage.queue.read_ahead import ReadAhead
from ringmq_node.storage.queue.recovery import Recovered
from ringmq_node.storage.queue.segments import read_block

logger = logging.getLogger(__name__)


class Host(Protocol):
    """What the bodies of a queue want of the store that they are in."""

    disk: Disk
    limits: StoreLimits
    counters: Counters

    def messages(self, *, transient: bool) -> MessageStore:
        """The message store for such messages."""

    def mark_paging(self, bodies: Bodies) -> None:
        """Something was put into a message store that no journal says anything of."""

    def mark_reading(self, bodies: Bodies) -> None:
        """There is something to be read ahead."""

    def mark_reducing(self, bodies: Bodies) -> None:
        """`reduce_some` is to be called, when others have had their turn."""


class Bodies:
    """Of one queue. All on the event loop's thread."""

    def __init__(
        self,
        host: Host,
        found: Recovered,
        *,
        gate: Callable[[], int],
        on_emptied: Callable[[QueueFile], None],
        on_lost: Callable[[IndexEntry | None], None],
    ) -> None:
        """`gate()`: the round that has to be over for what has happened so far to be durable.
        `on_emptied(file)`: an entry has left that file. `on_lost(entry)`: more is
        missing, and what of: nothing for a segment whose headers are damaged."""
        self.live: RangeSet = found.state.live
        self.missing: RangeSet = found.missing
        # Body bytes of all live messages that are not missing.
        self.live_bytes = found.body_bytes
        self.index: RunIndex = found.index
        self.segments: dict[int, QueueFile] = found.segments
        self.cuts: tuple[Cut, ...] = found.cuts
        self.corruptions: list[CorruptionReport] = found.corruptions
        self.next_position = found.state.next_position
        self.condemned: deque[Condemned] = deque()
        self._releasing: list[RecordLocation] = []
        # Since the queue was opened; of bodies only, without properties and tables.
        self.blocks_read = 0
        self.body_bytes_read = 0
        self.segments_loaded = 0
        # Of transient messages, given to the transient message store.
        self.body_bytes_paged = 0
        self._host = host
        self._gate = gate
        self._on_emptied = on_emptied
        self._on_lost = on_lost
        self._recent: IndexEntry | None = None
        self._recent_block: Block | None = None
        self.pager = Pager(host, self)
        self.ahead = ReadAhead(host, self)
        self._accounted = 0
        self.account()

    @property
    def head(self) -> int:
        """The position that is fetched next."""
        first = self.live.first if self.live else self.next_position
        return first if self.ahead.next is None else max(self.ahead.next, first)

    # -- what comes and goes

    def add(self, entry: IndexEntry) -> None:
        """A living entry of a new message, with its block."""
        self.index.add(entry)
        self.live_bytes += entry.body_bytes
        self.account()
        if entry.transient and self.pager.wants_less:
            # No round will make it durable, as it does others.
            self.pager.let_go(entry)

    def before_removal(self, ranges: tuple[Range, ...]) -> None:
        """These positions will cease to be live: what is folded of them has to be known."""
        if not self.index.deltas or not ranges:
            return
        going = RangeSet(ranges)
        for delta in self.index.folded(going.first, going.last):
            rest = RangeSet(self.live.intersection(delta.first, delta.last))
            # A delta that dies of it as a whole stays folded; so does one that it leaves alone.
            if rest.subtract(going.intersection(delta.first, delta.last)) and rest:
                self.unfold(delta)

    def before_adding(self, first: int, last: int) -> None:
        """Entries will be added there: of the segment that is begun, or of what is missing."""
        for delta in self.index.folded(first, last):
            self.unfold(delta)

    def forget(self, gone: list[Range]) -> None:
        """These positions were live until now."""
        self.pager.rates.acknowledged(sum(last - first + 1 for first, last in gone))
        if self.index.deltas and gone:
            # One delta may die of several ranges.
            positions = RangeSet(gone)
            for delta in self.index.folded(positions.first, positions.last):
                if positions.intersection(delta.first, delta.last):
                    self._condemn(delta, positions)
        if self.missing:
            self.missing.subtract(gone)
        freed, died = self.index.remove(gone)
        self.live_bytes -= freed
        for entry in died:
            self._release(entry)
        self.account()

    def _covers(self, delta: Delta, first: int, last: int) -> bool:
        """Whether all that is live in a delta is in `first..last`."""
        before = delta.first < first and self.live.intersection(delta.first, first - 1)
        behind = delta.last > last and self.live.intersection(last + 1, delta.last)
        return not before and not behind

    def _condemn(self, delta: Delta, positions: RangeSet) -> None:
        """All of a delta has died."""
        self.live_bytes -= delta.live_bytes
        self.index.unfold(delta, [])
        if delta.stored:
            delta.segment.holders += 1
            inside = RangeSet(positions.intersection(delta.first, delta.last))
            # What was lost has given its reference back.
            inside.subtract(self.missing.intersection(delta.first, delta.last))
            segment = delta.segment
            self.condemned.append(Condemned(segment, inside, self.cuts, self._gate(), segment.end))
        self._on_emptied(delta.segment)

    def give_back(self, condemned: Condemned, entries: list[IndexEntry]) -> None:
        """The references of a dead segment have been read."""
        condemned.segment.holders -= 1
        for entry in entries:
            if entry.location is not None:
                self._host.messages(transient=entry.transient).release(entry.location)
        self._on_emptied(condemned.segment)

    def _release(self, entry: IndexEntry) -> None:
        """An entry has died."""
        place = entry.location
        if place is not None and entry.transient:
            # Not written yet, it never will be.
            self._host.messages(transient=True).release(place)
        elif place is not None:
            # Not before it is durable that the message is gone: it may come back, and
            # would find its body deleted.
            self._releasing.append(place)
        self._left(entry)

    def _left(self, entry: IndexEntry) -> None:
        """An entry is in the index no more."""
        if entry is self._recent:
            self._recent = self._recent_block = None
        if entry.file is not None:
            self._on_emptied(entry.file)

    def take_releases(self) -> list[RecordLocation]:
        """Persistent bodies that may be released when what was appended so far is durable."""
        taken, self._releasing = self._releasing, []
        return taken

    def released(self, places: list[RecordLocation]) -> None:
        """What made these superfluous is durable."""
        store = self._host.messages(transient=False)
        for place in places:
            store.release(place)

    def release_elided(self, places: list[RecordLocation]) -> None:
        """No record that is on the disk, or will be, refers to these persistent bodies."""
        at_once = Counter(places)
        later: list[RecordLocation] = []
        for place in self._releasing:
            if at_once[place] > 0:
                at_once[place] -= 1
            else:
                later.append(place)
        self._releasing = later
        self.released(places)

    def replace(self, entries: list[IndexEntry], parts: list[IndexEntry]) -> None:
        """The index records of `entries`, which follow one another, are those of `parts` now.

        Those in the message store come one by one, so that the parts have the same location.
        """
        for part in parts[1:]:
            if part.location is not None:
                self._host.messages(transient=part.transient).share(part.location)
        self.index.replace(entries, parts)
        for entry in entries:
            entry.block = None
            self._left(entry)
        self.pager.replaced(parts)
        self.account()

    def clear(self) -> None:
        """The queue is deleted: gives back its memory and references."""
        for delta in [*self.index.deltas.values()]:
            inside = RangeSet(self.live.intersection(delta.first, delta.last))
            self._condemn(delta, inside)
        for entry in self.index.clear():
            # A thread may still be reading it.
            entry.live = 0
            if entry.location is not None:
                self._host.messages(transient=entry.transient).release(entry.location)
        self.released(self.take_releases())
        self.pager.clear()
        self.account()

    # -- another state in the place of this one

    def install(self, state: ReplicatedState, keep_below: int, transient: RangeSet) -> None:
        """Keeps the bodies below `keep_below` that are live in `state`; the rest is missing.

        Of `transient` positions also those that are on no disk.
        """
        live = state.live
        for delta in [*self.index.deltas.values()]:
            part = (delta.first, delta.last)
            same = live.intersection(*part) == self.live.intersection(*part)
            if not same or delta.last >= keep_below or self.missing.intersection(*part):
                self.unfold(delta)
        self.live = live
        self.next_position = state.next_position
        self.ahead.forget()
        self.pager.forget()
        self.missing = live.copy()
        deltas = [*self.index.deltas.values()]
        for delta in deltas:
            self.index.unfold(delta, [])
        self.live_bytes = 0
        for entry in self.index.clear():
            self._reinstall(entry, keep_below, transient)
        for delta in deltas:
            self.index.put(delta)
            self.live_bytes += delta.live_bytes
            self.missing.remove(delta.first, delta.last)
        self.account()

    def _reinstall(self, entry: IndexEntry, keep_below: int, transient: RangeSet) -> None:
        parts: list[Range] = []
        if entry.first < keep_below:
            entry.trim(min(entry.last, keep_below - 1))
            parts = self.live.intersection(entry.first, entry.last)
        if entry.transient and not all(transient.contains_all(*part) for part in parts):
            # Of what the ring takes for persistent a body in memory only is no body.
            parts = []
        entry.live = sum(last - first + 1 for first, last in parts)
        if not parts:
            entry.block = None
            self._release(entry)
            return
        self.index.add(entry)
        for low, high in parts:
            self.missing.remove(low, high)
            self.live_bytes += entry.bytes_of(low, high)

    # -- reading

    def parts(self, first: int, last: int) -> Iterator[tuple[IndexEntry, int, int]]:
        """Live positions of `first..last` that are not missing, with their entries, in order.

        Unfolds what it comes to.
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
            first = max(first, deltas[0].first)
            self.unfold(deltas[0])

    def bytes_in(self, first: int, last: int) -> int:
        """Body bytes of the live messages of `first..last` that are not missing."""
        if first > last:
            return 0
        total = 0
        for delta in self.index.folded(first, last):
            if self._covers(delta, first, last):
                total += delta.live_bytes
            else:
                self.unfold(delta)
        for entry in self.index.overlapping(first, last):
            low, high = max(first, entry.first), min(last, entry.last)
            if low == entry.first and high == entry.last and entry.live == entry.count:
                total += entry.body_bytes
            else:
                total += sum(entry.bytes_of(a, b) for a, b in self.live.intersection(low, high))
        return total

    def block_of(self, entry: IndexEntry, *, keep: bool) -> Block:
        """The block of an entry, from memory or disk. `keep`: it is wanted again soon.

        Raises `CorruptError`; the positions are missing from then on.
        """
        if entry.block is not None:
            return entry.block
        if entry is self._recent and self._recent_block is not None:
            return self._recent_block
        try:
            block = read_block(self._host.disk, entry, self._host.messages)
        except CorruptError as error:
            self.lose(entry, error.report)
            raise
        self.count_read(block)
        if keep and not self.is_over:
            self.index.attach(entry, block)
            self.account()
        else:
            self._recent, self._recent_block = entry, block
        return block

    def fetched(self, next_position: int, count: int) -> None:
        """A consumer was given `count` messages before `next_position`."""
        self.pager.rates.delivered(count)
        self.ahead.fetched(next_position)

    def requeued(self, first: int) -> None:
        """Messages from `first` on may be fetched again."""
        self.pager.requeued()
        self.ahead.requeued(first)

    def has_at_hand(self, entry: IndexEntry) -> bool:
        """Whether the block of an entry was read last."""
        return entry is self._recent

    def count_read(self, block: Block) -> None:
        """A block has been read from disk."""
        self._host.counters.blocks_read += 1
        self.blocks_read += 1
        self.body_bytes_read += block.body_bytes()

    def lose(self, entry: IndexEntry, report: CorruptionReport) -> None:
        """The bodies of an entry are damaged: they are missing now.

        What is there of them stays, for whoever wants to look: the record in the message
        store is referred to until the next start, and so is a segment.
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
        """These live positions of an entry have no body here any more."""
        for low, high in parts:
            self.live_bytes -= entry.bytes_of(low, high)
            self.missing.add(low, high)
        if parts:
            self._on_lost(entry)

    def _report(self, report: CorruptionReport) -> None:
        logger.error("%s", report)
        self.corruptions.append(report)

    def forget_recent(self) -> None:
        """Lets go of the block that was read last and is kept beside the budget."""
        self._recent = self._recent_block = None

    # -- folding

    def unfold(self, delta: Delta) -> None:
        """Reads the entries of a delta. What can't be read is missing from then on."""
        try:
            found, reports = load_segment(
                self._host.disk, delta.segment, self.live, self.missing, self.cuts
            )
        except OSError as error:
            raise ReadError(f"{delta.segment.path}: can't be read: {error}") from error
        self.unfold_with(delta, found, reports)

    def unfold_with(
        self, delta: Delta, found: list[IndexEntry], reports: list[CorruptionReport]
    ) -> None:
        self.segments_loaded += 1
        for report in reports:
            self._report(report)
        entries: list[IndexEntry] = []
        lost = RangeSet(self.live.intersection(delta.first, delta.last))
        lost.subtract(self.missing.intersection(delta.first, delta.last))
        size = 0
        for entry in found:
            parts = self.live.intersection(entry.first, entry.last)
            entry.live = sum(b - a + 1 for a, b in parts)
            lost.subtract(parts)
            size += sum(entry.bytes_of(a, b) for a, b in parts)
            if entry.live:
                entries.append(entry)
        self.index.unfold(delta, entries)
        self.missing.update(lost)
        self.live_bytes += size - delta.live_bytes
        if not entries:
            self._on_emptied(delta.segment)
        self.account()
        if lost:
            self._on_lost(None)

    @property
    def is_over(self) -> bool:
        """Whether the node holds more in memory than it should."""
        return self._host.counters.queue_memory_bytes > self._host.limits.queue_memory_bytes_max

    def account(self) -> None:
        """Tells the node what is in memory now."""
        now = self.index.memory_bytes
        self._host.counters.queue_memory_bytes += now - self._accounted
        self._accounted = now

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
        assert self._accounted == self.index.memory_bytes
