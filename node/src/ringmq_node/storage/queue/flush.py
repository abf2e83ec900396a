"""Emptying the sealed journals of one queue into its segments, and deleting files.

A bounded piece is planned on the event loop, written by a thread, and noted on the loop
again. What is acked meanwhile isn't written.

Invariant: a file is deleted only when nothing living is in it, and what made it so is
durable: else a power cut takes back the remove, and the body is gone. That is what the
*gates* say: how many rounds the queue has to have been part of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ringmq_base.ranges import RangeSet
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.format.queue_folder import JOURNAL_SUFFIX, SEGMENT_POSITIONS, segment_name
from ringmq_node.storage.format.records import new_marker
from ringmq_node.storage.limits import Counters, StoreLimits
from ringmq_node.storage.queue.bodies import Bodies
from ringmq_node.storage.queue.condemned import Condemned
from ringmq_node.storage.queue.entries import IndexEntry, QueueFile, alike, live_count
from ringmq_node.storage.queue.segments import FlushItem, Placed, parts_of, write_items

if TYPE_CHECKING:
    from ringmq_node.storage.queue.queue_store import QueueStore

# Bodies in one step of a flush: what is planned for them on the loop takes about a millisecond.
_ITEMS_MAX = 200


@dataclass(slots=True, eq=False)
class FlushJob:
    """Bodies to copy into segments, then files to remove."""

    queue: QueueStore
    items: list[FlushItem] = field(default_factory=list)
    removals: list[QueueFile] = field(default_factory=list)
    # A segment to read the references of.
    condemned: Condemned | None = None
    # The answers.
    placed: list[Placed] = field(default_factory=list)
    given_back: list[IndexEntry] = field(default_factory=list)


def flush(disk: Disk, job: FlushJob, directory: Path) -> None:
    """Does `job`. Runs in the flush thread; raises `OSError`."""
    durable = job.queue.durable
    job.placed = write_items(disk, job.items, sync=durable)
    if job.condemned is not None:
        # What can't be read now stays referred to until the next start.
        with suppress(OSError):
            job.given_back = job.condemned.read(disk)
    for file in job.removals:
        disk.remove(file.path)
    if job.removals and durable:
        disk.sync(directory)


class Flusher:
    """Of one queue. On the event loop's thread."""

    def __init__(
        self,
        directory: Path,
        limits: StoreLimits,
        counters: Counters,
        bodies: Bodies,
        sealed: Iterable[QueueFile],
        gate: Callable[[], int],
    ) -> None:
        """`gate()`: the round that has to be over for what has happened so far to be durable."""
        self._directory = directory
        self._limits = limits
        self._counters = counters
        self._bodies = bodies
        self._gate = gate
        # Journals on their way into segments, oldest first; how far the first one is.
        self._sealed: deque[QueueFile] = deque(sealed)
        self._cursor = 0
        self._sealed_bytes = 0
        self._count_sealed(sum(file.end for file in self._sealed))
        # Files that are being removed.
        self._leaving: list[QueueFile] = []
        # Journals of which all that lives is elsewhere, with their gates; the gates of segments
        # in which nothing lives.
        self._spent: deque[tuple[int, QueueFile]] = deque()
        self._emptied = {n: 0 for n, file in bodies.segments.items() if not file.holders}

    @property
    def sealed_count(self) -> int:
        return len(self._sealed) + len(self._spent)

    @property
    def waits_for_a_round(self) -> bool:
        """Whether there are files to be deleted once more is durable."""
        return bool(self._emptied or self._bodies.condemned or self._spent)

    def files(self) -> Iterable[QueueFile]:
        """All but the current journal and those that are being sealed."""
        spent = (file for _, file in self._spent)
        return [*spent, *self._sealed, *self._bodies.segments.values(), *self._leaving]

    def sealed(self, file: QueueFile) -> None:
        """One more journal to empty."""
        self._sealed.append(file)
        self._count_sealed(file.end)

    def forget(self) -> None:
        """The queue is deleted, and its files with it."""
        self._count_sealed(-self._sealed_bytes)

    def _count_sealed(self, size: int) -> None:
        self._sealed_bytes += size
        self._counters.sealed_bytes += size

    def emptied(self, file: QueueFile) -> bool:
        """An entry has left `file`. Returns whether that makes it a segment to be deleted."""
        if file.holders or self._bodies.segments.get(file.number) is not file:
            return False
        self._emptied[file.number] = self._gate()
        return True

    def plan(self, queue: QueueStore, commits: int) -> FlushJob | None:
        """The next bounded step, or None if there is nothing to do.

        It has to be done, and `flushed` called, before the next one is planned. `commits`:
        rounds that are over.
        """
        job = FlushJob(queue)
        budget = self._limits.flush_piece_bytes_max
        while self._sealed:
            file = self._sealed[0]
            while self._cursor < len(file.entries) and budget > 0 and len(job.items) < _ITEMS_MAX:
                entry = file.entries[self._cursor]
                self._cursor += 1
                if entry.live and entry.file is file:
                    budget -= entry.length if entry.location is None else 0
                    self._plan_entry(entry, job)
            if job.items:
                break
            assert file.holders == 0, (file.path, file.holders)
            self._sealed.popleft()
            self._cursor = 0
            self._spent.append((self._gate(), file))
            # Not first when it is deleted: that needs a round, and rounds wait while there is
            # too much. So they come in between, one for each journal that is done with.
            self._count_sealed(-file.end)
        while self._spent and self._spent[0][0] <= commits:
            job.removals.append(self._spent.popleft()[1])
        paged = self._bodies.pager.paged
        while paged and len(job.items) < _ITEMS_MAX:
            entry = paged.popleft()
            if entry.live and entry.file is None:
                self._plan_entry(entry, job)
        if self._bodies.condemned and self._bodies.condemned[0].gate <= commits:
            job.condemned = self._bodies.condemned.popleft()
        self._plan_removals(job, commits)
        self._leaving = job.removals
        return job if job.items or job.removals or job.condemned else None

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
        """Adds the segments that nobody wants any more, not even after a power cut."""
        segments = self._bodies.segments
        wanted = {item.segment.number for item in job.items}
        for number, gate in [*self._emptied.items()]:
            if segments[number].holders or number in wanted:
                del self._emptied[number]
            elif commits >= gate:
                del self._emptied[number]
                job.removals.append(segments.pop(number))

    # -- what was done

    def flushed(self, job: FlushJob) -> None:
        """`job` is done: what it was about is where `job.placed` says."""
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
            item = places[0].item
            # Trimmed since, or in several pieces.
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
            if not item.segment.holders:
                self._emptied[item.segment.number] = self._gate()
        counters = self._counters
        records = {(place.item.segment, place.offset): place.length for place in job.placed}
        counters.segment_bytes += sum(records.values())
        job.queue.written.segment_bytes += sum(records.values())
        counters.segments_deleted += sum(
            file.path.suffix != JOURNAL_SUFFIX for file in self._leaving
        )
        self._leaving = []
        self._bodies.pager.fold()

    def _relocate_span(self, span: list[Placed]) -> None:
        """Whole entries one after another, which are one record now, become one entry."""
        first, last = span[0], span[-1]
        entries = [place.item.entry for place in span]
        cached = all(entry.block is not None for entry in entries)
        self._bodies.replace(
            entries, [self._entry(first, first.item.first, last.item.last, cached=cached)]
        )

    def _relocate(self, entry: IndexEntry, places: list[Placed]) -> None:
        """The living parts of an entry are in segments now, as entries of their own."""
        cached = entry.block is not None
        parts: list[IndexEntry] = []
        # Segments are not written in the order of positions.
        for place in sorted(places, key=lambda place: place.item.first):
            first, last = place.item.first, min(place.item.last, entry.last)
            if first <= last and live_count(self._bodies.live, first, last):
                parts.append(self._entry(place, first, last, cached=cached))
        if sum(part.live for part in parts) < entry.live:
            # Positions that were dead when the pieces were cut, and that an installed state
            # has brought back.
            revived = RangeSet(self._bodies.live.intersection(entry.first, entry.last))
            revived.subtract((part.first, part.last) for part in parts)
            self._bodies.give_up(entry, revived.ranges())
        self._bodies.replace([entry], parts)

    def _entry(self, place: Placed, first: int, last: int, *, cached: bool) -> IndexEntry:
        """`first..last`, whose first is that of `place`, as an entry of their own."""
        old, count = place.item.entry, last - first + 1
        # In the message store the block is the one that it was.
        block = place.block if place.block is not None else old.block
        if place.block is not None:
            sizes = place.block.body_sizes()[place.start : place.start + count]
        else:
            sizes = old.sizes_of(first, last)
        return IndexEntry(
            first=first,
            last=last,
            start=place.start,
            live=live_count(self._bodies.live, first, last),
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
    """Whether two items are in the same record, one right behind the other."""
    return (
        place.block is not None
        and place.block is before.block
        and place.item.first == before.item.last + 1
    )
