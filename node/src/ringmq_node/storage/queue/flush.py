"""Emptying the sealed journals of one queue into its segments, and deleting files.

A bounded piece is planned on the event loop, written by a thread, and noted on the loop again.
Messages that are acknowledged before their piece is planned are not written.

Invariant: a file is deleted only when no living entry is in it, and the remove that made it so is
durable. Otherwise a power cut takes back the remove, and the body is gone. *Gates* keep this: a
gate is the number of shares of the queue (see `gathering`) that have to be durable.

A body that can't be read just now is left where it is, and its journal with it, until `flush_again`
or until its messages have died. The rest of that journal, and those behind it, are flushed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ringmq_base.ranges import RangeSet
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.format.checkpoint import Cut
from ringmq_node.storage.format.queue_folder import JOURNAL_SUFFIX, SEGMENT_POSITIONS, segment_name
from ringmq_node.storage.format.records import new_marker
from ringmq_node.storage.limits import Written
from ringmq_node.storage.queue.bodies import Bodies
from ringmq_node.storage.queue.condemned import Condemned
from ringmq_node.storage.queue.entries import IndexEntry, LoggedJournal, QueueFile, alike
from ringmq_node.storage.queue.pager import Pager
from ringmq_node.storage.queue.parts import SharedParts
from ringmq_node.storage.queue.segments import FlushItem, Placed, parts_of, write_items

logger = logging.getLogger(__name__)

# Entries in one piece: planning them takes about a millisecond of the event loop.
_ITEMS_MAX = 200


@dataclass(slots=True, eq=False)
class FlushJob:
    """Bodies to copy into segments, then files to remove."""

    # Whether to sync: nobody needs a transient queue's files after a crash.
    durable: bool
    items: list[FlushItem] = field(default_factory=list)
    removals: list[QueueFile] = field(default_factory=list)
    # A dead segment whose references are to be read.
    condemned: Condemned | None = None
    # The answers.
    placed: list[Placed] = field(default_factory=list)
    given_back: list[IndexEntry] = field(default_factory=list)


def flush(disk: Disk, job: FlushJob, directory: Path) -> None:
    """Does `job`. Runs in the flush thread; raises `OSError`."""
    job.placed = write_items(disk, job.items, sync=job.durable)
    if job.condemned is not None:
        # If the segment can't be read, its bodies stay in the message store until the next start
        # counts the references anew.
        with suppress(OSError):
            job.given_back = job.condemned.read(disk)
    for file in job.removals:
        disk.remove(file.path)
    if job.removals and job.durable:
        disk.sync(directory)


class Flusher:
    """Of one queue. On the event loop's thread."""

    def __init__(
        self,
        directory: Path,
        shared: SharedParts,
        bodies: Bodies,
        pager: Pager,
        sealed: Iterable[LoggedJournal],
        gate: Callable[[], int],
        written: Written,
        *,
        durable: bool,
    ) -> None:
        """`gate()` returns the number of the share that makes all that has happened so far
        durable. `sealed` are the journals that a start has found."""
        self._directory = directory
        self._limits = shared.limits
        self._counters = shared.counters
        self._bodies = bodies
        self._pager = pager
        self._gate = gate
        self._durable = durable
        self._written = written
        # Journals to empty, oldest first, and the index of the next entry of the first one. They
        # are few, and an empty deque has 760 bytes, in each of ten thousand queues.
        self._sealed: list[LoggedJournal] = [*sealed]
        self._cursor = 0
        self._sealed_bytes = 0
        self._count_sealed(sum(each.file.end for each in self._sealed))
        # Of the first of them, the entries that could not be read; and journals of which only such
        # entries are left.
        self._unread: list[IndexEntry] = []
        self._left: dict[QueueFile, LoggedJournal] = {}
        # Journals of which it was told that they can't be read.
        self._told: dict[QueueFile, None] = {}
        # Files that a thread is removing.
        self._leaving: list[QueueFile] = []
        # How many ask that no step is planned.
        self._holds = 0
        # Journals whose living entries are all in segments, with their gates; and the gates of
        # segments without a living entry.
        self._spent: list[tuple[int, QueueFile]] = []
        self._emptied = {n: 0 for n, file in bodies.segments.items() if not file.holders}

    @property
    def sealed_count(self) -> int:
        return len(self._sealed) + len(self._left) + len(self._spent)

    @property
    def waits_for_a_round(self) -> bool:
        """Whether there are files to delete that wait for a round to end."""
        return bool(self._emptied or self._bodies.condemned or self._spent)

    def files(self) -> Iterable[QueueFile]:
        """All files but the current journal and those that are being sealed."""
        spent = (file for _, file in self._spent)
        sealed = (each.file for each in (*self._left.values(), *self._sealed))
        return [*spent, *sealed, *self._bodies.segments.values(), *self._leaving]

    def cuts_needed(
        self, generation: int, journals: Iterable[QueueFile], cuts: Iterable[Cut]
    ) -> tuple[Cut, ...]:
        """Those of `cuts` that the journal `generation` has to name. `journals` come before it,
        beside the sealed ones."""
        # A cut concerns bodies logged before its generation. Without a file that has such bodies,
        # or that a power cut could bring back with them, it can be dropped.
        files = [*journals, *self.files()]
        oldest = min((file.oldest_generation for file in files), default=generation)
        return tuple(cut for cut in cuts if cut.generation > oldest)

    def sealed(self, journal: LoggedJournal) -> None:
        """One more journal to empty."""
        self._sealed.append(journal)
        self._count_sealed(journal.file.end)

    def forget(self) -> None:
        """The queue is deleted, and its files with it, or given up."""
        self._count_sealed(-self._sealed_bytes)

    def end(self) -> None:
        """The queue is gone: nothing is planned any more."""
        self._gate = lambda: 0

    @property
    def has_left(self) -> bool:
        """Whether there are journals, or entries, that could not be read."""
        return bool(self._left or self._unread)

    def flush_again(self) -> None:
        """What could not be read is tried again."""
        left, self._left = self._left, {}
        for journal in left.values():
            self.sealed(journal)

    @contextmanager
    def held(self) -> Iterator[None]:
        """No step is planned meanwhile. One that was planned before may still end."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1

    def _count_sealed(self, size: int) -> None:
        self._sealed_bytes += size
        self._counters.sealed_bytes += size

    def emptied(self, file: QueueFile) -> bool:
        """An entry has left `file`. Returns whether that makes it a segment to be deleted."""
        if not file.holders and self._left.pop(file, None) is not None:
            self._spent.append((self._gate(), file))
            return True
        if file.holders or self._bodies.segments.get(file.number) is not file:
            return False
        self._emptied[file.number] = self._gate()
        return True

    def plan(self, commits: int) -> FlushJob | None:
        """The next bounded step, or None if there is nothing to do. `commits` shares are durable.

        The step has to be done, and `flushed` called, before the next one is planned.
        """
        if self._holds:
            return None
        job = FlushJob(self._durable)
        budget = self._limits.flush_piece_bytes_max
        while self._sealed:
            file, entries = self._sealed[0].file, self._sealed[0].entries
            while self._cursor < len(entries) and budget > 0 and len(job.items) < _ITEMS_MAX:
                entry = entries[self._cursor]
                self._cursor += 1
                if entry.live and entry.file is file:
                    budget -= entry.length if entry.location is None else 0
                    self._plan_entry(entry, job)
            if job.items:
                break
            self._end_journal(file)
        while self._spent and self._spent[0][0] <= commits:
            job.removals.append(self._spent.pop(0)[1])
        paged_out = self._pager.awaiting_segment
        while paged_out and len(job.items) < _ITEMS_MAX:
            entry = paged_out.popleft()
            if entry.live and entry.file is None:
                self._plan_entry(entry, job)
        if self._bodies.condemned and self._bodies.condemned[0].gate <= commits:
            job.condemned = self._bodies.condemned.pop(0)
        self._plan_removals(job, commits)
        self._leaving = job.removals
        return job if job.items or job.removals or job.condemned else None

    def _end_journal(self, file: QueueFile) -> None:
        """All entries of the first sealed journal, which is `file`, were looked at."""
        unread = [entry for entry in self._unread if entry.live and entry.file is file]
        # Every other living entry has its record in a segment by now, or the file would go with it.
        assert file.holders == len(unread), (file.path, file.holders)
        self._sealed.pop(0)
        self._cursor = 0
        self._unread = []
        if unread:
            self._left[file] = LoggedJournal(file, unread)
        else:
            # Messages that have died meanwhile were not copied. Until their removes are durable,
            # this journal alone has their bodies, and a power cut may bring the messages back.
            self._spent.append((self._gate(), file))
        # From here on, not when it is deleted: rounds wait while there are too many bytes in
        # sealed journals, and deleting this one waits for a round.
        self._count_sealed(-file.end)

    def _plan_entry(self, entry: IndexEntry, job: FlushJob) -> None:
        segments = self._bodies.segments
        for first, last in parts_of(entry, self._bodies.live):
            number = first // SEGMENT_POSITIONS
            segment = segments.get(number)
            if segment is None:
                path = self._directory / segment_name(number)
                segment = QueueFile(path, number, new_marker(), end=0, synced=0)
                segment.oldest_generation = entry.generation
                segments[number] = segment
            segment.oldest_generation = min(segment.oldest_generation, entry.generation)
            sizes = entry.sizes_of(first, last) if entry.location is not None else None
            job.items.append(
                FlushItem(entry, first, last, segment, entry.block, entry.location, sizes)
            )

    def _plan_removals(self, job: FlushJob, commits: int) -> None:
        """Adds the segments without a living entry, unless a power cut could bring one back."""
        segments = self._bodies.segments
        # A segment may have become empty and be written to again, by this very job.
        wanted = {item.segment.number for item in job.items}
        for number, gate in [*self._emptied.items()]:
            if segments[number].holders or number in wanted:
                del self._emptied[number]
            elif commits >= gate:
                del self._emptied[number]
                job.removals.append(segments.pop(number))

    # -- what was done

    def flushed(self, job: FlushJob) -> None:
        """`job` is done: gives the entries that it has copied their new places."""
        by_entry: dict[IndexEntry, list[Placed]] = {}
        for place in job.placed:
            by_entry.setdefault(place.item.entry, []).append(place)
        span: list[Placed] = []
        for entry, places in by_entry.items():
            if not entry.live:
                continue
            bad = next((place.corruption for place in places if place.corruption), None)
            if bad is not None:
                self._bodies.lose(entry, bad)
                continue
            unread = next((place.unread for place in places if place.unread), "")
            if unread:
                self._leave(entry, unread)
                continue
            item = places[0].item
            # Not if the entry was trimmed meanwhile, or is cut into several pieces.
            whole = len(places) == 1 and (item.first, item.last) == (entry.first, entry.last)
            if not whole:
                self._relocate(entry, places)
                continue
            if span and not _joins(span[-1], places[0]):
                self._relocate_span(span)
                span = []
            span.append(places[0])
        if span:
            self._relocate_span(span)
        if job.condemned is not None:
            self._bodies.give_back(job.condemned, job.given_back)
        for item in job.items:
            # All messages of the piece have died while the thread was writing.
            if not item.segment.holders:
                self._emptied[item.segment.number] = self._gate()
        counters = self._counters
        records = {(place.item.segment, place.offset): place.length for place in job.placed}
        counters.segment_bytes += sum(records.values())
        self._written.segment_bytes += sum(records.values())
        counters.segments_deleted += sum(
            file.path.suffix != JOURNAL_SUFFIX for file in self._leaving
        )
        self._leaving = []
        self._pager.fold()

    def _leave(self, entry: IndexEntry, why: str) -> None:
        """The bodies of an entry can't be read just now, and may be whole."""
        assert entry.file is not None
        self._unread.append(entry)
        if entry.file not in self._told:
            self._told[entry.file] = None
            logger.error("%s: it stays, and is tried again later", why)

    def _relocate_span(self, span: list[Placed]) -> None:
        """Whole entries that follow one another, and are in one record now, become one entry."""
        first, last = span[0], span[-1]
        entries = [place.item.entry for place in span]
        cached = all(entry.block is not None for entry in entries)
        whole = self._entry(first, first.item.first, last.item.last, cached=cached)
        self._replace(entries, [whole])

    def _relocate(self, entry: IndexEntry, places: list[Placed]) -> None:
        """The living parts of an entry, which are in segments now, become entries of their own."""
        cached = entry.block is not None
        parts: list[IndexEntry] = []
        # In the order of positions: the thread writes one segment after the other.
        for place in sorted(places, key=lambda place: place.item.first):
            first, last = place.item.first, min(place.item.last, entry.last)
            if first <= last and self._bodies.live.count_in(first, last):
                parts.append(self._entry(place, first, last, cached=cached))
        if sum(part.live for part in parts) < entry.live:
            # An installed state has brought back positions that were dead when the pieces were cut.
            # Their bodies were not copied, and the journal that has them is about to go.
            revived = RangeSet(self._bodies.live.intersection(entry.first, entry.last))
            revived.subtract((part.first, part.last) for part in parts)
            self._bodies.give_up(entry, revived.ranges())
        self._replace([entry], parts)

    def _replace(self, entries: list[IndexEntry], parts: list[IndexEntry]) -> None:
        self._bodies.replace(entries, parts)
        self._pager.replaced(parts)

    def _entry(self, place: Placed, first: int, last: int, *, cached: bool) -> IndexEntry:
        """An entry for `first..last`, whose record is at `place`."""
        old, count = place.item.entry, last - first + 1
        # A block in the message store stays as it was; only the reference was written.
        block = place.block if place.block is not None else old.block
        if place.block is not None:
            sizes = place.block.body_sizes()[place.start : place.start + count]
        else:
            sizes = old.sizes_of(first, last)
        return IndexEntry(
            first=first,
            last=last,
            start=place.start,
            live=self._bodies.live.count_in(first, last),
            transient=old.transient,
            generation=old.generation,
            file=place.item.segment,
            offset=place.offset,
            length=place.length,
            body_bytes=sum(sizes),
            block=block if cached else None,
            sizes=None if cached else alike(sizes),
            durable=True,
            location=old.location,
        )


def _joins(before: Placed, place: Placed) -> bool:
    """Whether an item is in the same record as the one before, right behind it."""
    return (
        place.block is not None
        and place.block is before.block
        and place.item.first == before.item.last + 1
    )
