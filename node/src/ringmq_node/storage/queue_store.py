"""The durable side of one queue: its state, its journal, its bodies.

Everything is called on the event loop's thread and returns at once: what is appended is
framed into buffers, and written and synced by the store's next round. `durable_number`
then says how far that has come. Reads come from memory, or, for what is no longer
kept there, from the file.

Invariants (`check`):
* each live position has its body in the index, or is in `missing`, never both;
* `live_bytes` is the size of all bodies in the index that are live;
* what isn't durable is in memory;
* a file is deleted only when nothing living is in it, and what made it so is durable: else a
  power cut takes back the remove, and the body is gone.

The node's contract: ops are appended in order, by one master's numbering; `install`
is what a replica does that has to give up its own tail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ringmq.ranges import Range, RangeSet
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove
from ringmq_node.queue.state import QueueState
from ringmq_node.storage import checkpoint
from ringmq_node.storage.checkpoint import Checkpoint, Cut
from ringmq_node.storage.disk import Disk
from ringmq_node.storage.errors import CorruptError, CorruptionReport, StoreClosedError
from ringmq_node.storage.index import (
    SEGMENT_POSITIONS,
    DataFile,
    Entry,
    live_count,
    memory_bytes,
)
from ringmq_node.storage.journal import JournalWriter, Piece
from ringmq_node.storage.limits import Counters, StoreLimits
from ringmq_node.storage.records import (
    END_PAYLOAD,
    FLAG_TRANSIENT,
    RECORD_HEADER_BYTES,
    Kind,
    new_marker,
)
from ringmq_node.storage.recovery import Recovered
from ringmq_node.storage.segments import (
    FlushItem,
    Placed,
    parts_of,
    read_block,
    segment_name,
)

# Bodies in one step of a flush: what is planned for them on the loop takes about a millisecond.
_ITEMS_MAX = 200
# Dead entries that a journal's list may have beside as many as it has living ones.
_DEAD_MAX = 1000


class Host(Protocol):
    """What a queue wants of the store that it is in."""

    disk: Disk
    limits: StoreLimits
    counters: Counters

    def check_writable(self) -> None:
        """Raises `StoreFailedError` if nothing can be written any more."""

    def mark_dirty(self, queue: QueueStore) -> None:
        """The queue has something for the next round."""

    def mark_flushable(self, queue: QueueStore) -> None:
        """The queue has a sealed journal to flush, or a segment to delete."""


@dataclass(frozen=True, slots=True)
class Run:
    """Live messages at consecutive positions, alike in all but their bodies."""

    first_position: int
    block: Block
    transient: bool
    redelivered: bool

    @property
    def last_position(self) -> int:
        return self.first_position + self.block.count - 1


@dataclass(slots=True, eq=False)
class CommitJob:
    """One queue's part of a sync round."""

    queue: QueueStore
    pieces: list[Piece]
    entries: list[Entry]
    last_number: int
    fills: int
    installs: int


@dataclass(slots=True, eq=False)
class FlushJob:
    """Bodies to copy into segments, then files to remove."""

    queue: QueueStore
    items: list[FlushItem] = field(default_factory=list)
    removals: list[DataFile] = field(default_factory=list)


class QueueStore:
    """Made by `Store.open_queue`."""

    def __init__(self, queue: str, directory: Path, host: Host, found: Recovered) -> None:
        self.queue = queue
        self.directory = directory
        self.state: QueueState = found.state
        self.missing: RangeSet = found.missing
        # Ops up to here are synced.
        self.durable_number = found.state.last_number
        # Body bytes of all live messages that are not missing.
        self.live_bytes = found.body_bytes
        # Ops were lost on disk and the state is a guess; until the next `install`.
        self.damaged = found.damaged
        self.corruptions: list[CorruptionReport] = found.corruptions
        self.torn_bytes = found.torn_bytes
        self._host = host
        self._deleted = False
        self._index = found.index
        self._segments = found.segments
        self._cuts = found.cuts
        # Journals on their way into segments, oldest first; how far the first one is.
        self._sealed: deque[DataFile] = deque(found.sealed)
        self._cursor = 0
        # Journals before that, whose successor is not durable yet; files that are being removed.
        self._sealing: list[DataFile] = []
        self._leaving: list[DataFile] = []
        # Rounds that this queue took part in, begun and done. What is appended now is
        # durable when `_commits` has reached `_gate()`.
        self._takes = self._commits = 0
        # The gate of the first sealed journal, once all that lives in it is elsewhere; the
        # gates of segments in which nothing lives.
        self._spent: int | None = None
        self._emptied = {n: 0 for n, file in self._segments.items() if not file.references}
        self._unsynced: list[Entry] = []
        self._recent: Entry | None = None
        self._fills = self._fills_durable = 0
        self._installs = 0
        self._journal = JournalWriter(
            directory, self._checkpoint(found.next_generation, found.current), found.current
        )

    # -- what the ring asks for

    @property
    def incomplete(self) -> bool:
        """Whether bodies are missing or ops were lost: not fit to be master."""
        return bool(self.missing) or self.damaged

    @property
    def fills_durable(self) -> bool:
        """Whether all that was given to `fill` so far is synced."""
        return self._fills == self._fills_durable

    def begin_epoch(self, epoch: int) -> None:
        """The ops from here on are of `epoch`."""
        self._check_writable()
        self.state.begin_epoch(epoch)
        self._journal.append(
            Kind.EPOCH, b"", flags=0, number=self.state.last_number + 1, epoch=epoch
        )
        self._host.mark_dirty(self)

    def append(self, number: int, op: Op, payload: bytes) -> list[Range]:
        """Applies and logs the next op, whose encoded form `payload` is.

        Returns the positions that have ceased to be live.
        """
        self._check_writable()
        state = self.state
        gone = state.apply(number, op)
        journal = self._journal
        transient = isinstance(op, Publish) and op.transient
        flags = FLAG_TRANSIENT if transient else 0
        offset = journal.append(Kind.OP, payload, flags=flags, number=number, epoch=state.epoch)
        if isinstance(op, Publish):
            length = RECORD_HEADER_BYTES + len(payload)
            self._log_body(op.first_position, op.block, transient, offset, length)
        elif isinstance(op, Remove):
            journal.entries += len(op.ranges)
            self._forget(gone)
        self._host.mark_dirty(self)
        self._seal_if_full()
        return gone

    def read(self, first: int, last: int, *, bytes_max: int, messages_max: int) -> list[Run]:
        """Live messages of `first..last`, in order; at least one if there is any.

        Ends before `bytes_max` of bodies or `messages_max` would be exceeded. Passes over
        what is missing. Raises `CorruptError` if a body can't be read back: its positions
        are missing from then on.
        """
        runs: list[Run] = []
        if first > last:
            return runs
        for entry, low, high, redelivered in self._live_parts(first, last):
            if runs and entry.bytes_of(low, low) > bytes_max:
                break
            block = entry.block or self._load(entry)
            start = low - entry.first + entry.start
            stop = min(start + high - low + 1, start + messages_max, block.fit(start, bytes_max))
            part = block.slice(start, stop)
            runs.append(Run(low, part, entry.transient, redelivered))
            bytes_max -= part.body_bytes()
            messages_max -= part.count
            if low + part.count <= high or messages_max <= 0:
                break
        return runs

    def bytes_in(self, first: int, last: int) -> int:
        """Body bytes of the live messages of `first..last` that are not missing."""
        if first > last:
            return 0
        return sum(
            entry.bytes_of(low, high)
            for entry in self._index.overlapping(first, last)
            for low, high in self.state.live.intersection(
                max(first, entry.first), min(last, entry.last)
            )
        )

    # -- catching up

    def install(self, state: QueueState, *, keep_below: int) -> None:
        """Puts the ring's agreed `state` in the place of this replica's own.

        Bodies that are here stay for positions below `keep_below` that are live in
        `state`; all others are dropped. What is live and not here is `missing`. After a
        power cut it is the old state or the new one. `state` belongs to the store from now on.
        """
        self._check_writable()
        generation = self._journal.file.number + 1
        self.state = state
        self.damaged = False
        self.durable_number = 0
        self._installs += 1
        self._cuts = checkpoint.add_cut(self._cuts, Cut(generation, keep_below))
        self.missing = state.live.copy()
        self.live_bytes = 0
        for entry in self._index.clear():
            live = 0
            if entry.first < keep_below:
                entry.trim(min(entry.last, keep_below - 1))
                live = live_count(state.live, entry.first, entry.last)
            entry.live = live
            if not live:
                self._let_go(entry)
                continue
            self._index.add(entry)
            for low, high in state.live.intersection(entry.first, entry.last):
                self.missing.remove(low, high)
                self.live_bytes += entry.bytes_of(low, high)
        self._rotate()
        self._host.mark_dirty(self)

    def fill(self, first_position: int, block: Block, transient: bool) -> None:
        """Bodies for missing positions. Parts that aren't missing are passed over."""
        self._check_writable()
        last_position = first_position + block.count - 1
        for first, last in self.missing.intersection(first_position, last_position):
            start = first - first_position
            part = block.slice(start, start + last - first + 1)
            offset = self._journal.append(
                Kind.FILL,
                part.data,
                flags=FLAG_TRANSIENT if transient else 0,
                number=first,
                epoch=self.state.last_number,
            )
            self.missing.remove(first, last)
            length = RECORD_HEADER_BYTES + len(part.data)
            self._log_body(first, part, transient, offset, length)
            self._fills += 1
            self._host.mark_dirty(self)
        self._seal_if_full()

    # -- what the store's rounds ask for

    def take(self) -> CommitJob:
        """All that has gathered since the last time."""
        entries, self._unsynced = self._unsynced, []
        self._takes += 1
        return CommitJob(
            queue=self,
            pieces=self._journal.take(),
            entries=entries,
            last_number=self.state.last_number,
            fills=self._fills,
            installs=self._installs,
        )

    def committed(self, job: CommitJob) -> bool:
        """`job` is on disk. Returns whether that made an op or a fill durable."""
        counters = self._host.counters
        for piece in job.pieces:
            piece.file.synced = piece.end
            counters.journal_bytes += piece.end - piece.offset
            counters.files_synced += 1
            if piece.seals is not None:
                self._sealed.append(piece.seals)
                self._sealing = [file for file in self._sealing if file is not piece.seals]
                counters.sealed += 1
                self._host.mark_flushable(self)
        for entry in job.entries:
            entry.durable = True
            if entry.block is not None and entry.live and self._over():
                counters.cache_bytes -= entry.drop_block()
        self._commits += 1
        if self._emptied or self._spent is not None:
            self._host.mark_flushable(self)
        before = (self.durable_number, self._fills_durable)
        self._fills_durable = job.fills
        if job.installs == self._installs:
            self.durable_number = job.last_number
        return before != (self.durable_number, self._fills_durable)

    def plan_flush(self) -> FlushJob | None:
        """The next bounded step of emptying sealed journals, or None if there is nothing to do.

        It has to be done, and `flushed` called, before the next one is planned.
        """
        job = FlushJob(self)
        budget = self._host.limits.flush_piece_bytes_max
        while self._sealed:
            file = self._sealed[0]
            while self._cursor < len(file.entries) and budget > 0 and len(job.items) < _ITEMS_MAX:
                entry = file.entries[self._cursor]
                self._cursor += 1
                if entry.live and entry.file is file:
                    budget -= entry.length
                    self._plan_entry(entry, job)
            if job.items:
                break
            assert file.references == 0, (file.path, file.references)
            if self._spent is None:
                self._spent = self._gate()
            if self._commits < self._spent:
                break
            job.removals.append(file)
            self._sealed.popleft()
            self._cursor = 0
            self._spent = None
        self._plan_removals(job)
        self._leaving = job.removals
        return job if job.items or job.removals else None

    def flushed(self, job: FlushJob, placed: list[Placed]) -> None:
        """`job` is done: its bodies are where `placed` says."""
        by_entry: dict[Entry, list[Placed]] = {}
        for place in placed:
            by_entry.setdefault(place.item.entry, []).append(place)
        for entry, places in by_entry.items():
            if not entry.live:
                continue
            bad = next((place.corruption for place in places if place.corruption), None)
            if bad is not None:
                self._lose(entry, bad)
            else:
                self._relocate(entry, places)
        for item in job.items:
            if not item.segment.references:
                self._emptied[item.segment.number] = self._gate()
        counters = self._host.counters
        counters.segment_bytes += sum(place.length for place in placed)
        counters.segments_deleted += sum(file.path.suffix == ".idx" for file in self._leaving)
        self._leaving = []

    def end(self) -> None:
        """Logs that all before was synced, so that damage to it is never taken for a torn tail."""
        if self._journal.entries:
            state = self.state
            payload = END_PAYLOAD.pack(state.next_position)
            self._journal.append(
                Kind.END, payload, flags=0, number=state.last_number, epoch=state.epoch
            )

    def delete(self) -> None:
        """The queue is deleted: gives back its memory, and takes nothing more."""
        self._deleted = True
        for entry in self._index.clear():
            if entry.block is not None:
                self._host.counters.cache_bytes -= memory_bytes(entry.block)

    @property
    def sealed_count(self) -> int:
        return len(self._sealed)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    def check(self) -> None:
        """Asserts the invariants at the top."""
        self.state.check()
        self.missing.check()
        self._index.check(self.state.live, self.missing)
        if self.state.next_position:
            assert self.live_bytes == self.bytes_in(0, self.state.next_position)
        assert all(entry.durable or entry.block is not None for entry in self._index)

    # -- inside

    def _check_writable(self) -> None:
        self._host.check_writable()
        if self._deleted:
            raise StoreClosedError(f"queue {self.queue!r} was deleted")

    def _checkpoint(self, generation: int, current: DataFile | None) -> Checkpoint:
        """The state as it is, for the journal `generation`, which comes after `current`."""
        # A cut says nothing once no file has bodies from before it, nor can come back with them.
        files = [*self._sealed, *self._sealing, *self._segments.values(), *self._leaving]
        if current is not None:
            files.append(current)
        oldest = min((file.oldest_generation for file in files), default=generation)
        self._cuts = tuple(cut for cut in self._cuts if cut.generation > oldest)
        return Checkpoint(generation, self.state, self._cuts, self.damaged)

    def _log_body(
        self, first: int, block: Block, transient: bool, offset: int, length: int
    ) -> None:
        file = self._journal.file
        entry = Entry(
            first=first,
            last=first + block.count - 1,
            start=0,
            live=block.count,
            transient=transient,
            generation=file.number,
            file=file,
            offset=offset,
            length=length,
            body_bytes=block.body_bytes(),
            block=block,
        )
        self._index.add(entry)
        if len(file.entries) > 2 * file.references + _DEAD_MAX:
            # Else a queue that is consumed at once would hold a journal's worth of dead entries.
            file.entries = [old for old in file.entries if old.live]
        file.entries.append(entry)
        self._unsynced.append(entry)
        self._journal.entries += block.count
        self.live_bytes += entry.body_bytes
        self._host.counters.cache_bytes += memory_bytes(block)

    def _forget(self, gone: list[Range]) -> None:
        if self.missing:
            self.missing.subtract(gone)
        freed, died = self._index.remove(gone)
        self.live_bytes -= freed
        for entry in died:
            self._let_go(entry)

    def _let_go(self, entry: Entry) -> None:
        """An entry has died: frees its memory, and its segment if that was the last."""
        if entry.block is not None:
            self._host.counters.cache_bytes -= memory_bytes(entry.block)
            entry.block = None
        file = entry.file
        if file is not None and not file.references and self._segments.get(file.number) is file:
            self._emptied[file.number] = self._gate()
            self._host.mark_flushable(self)

    def _seal_if_full(self) -> None:
        limits = self._host.limits
        journal = self._journal
        if (
            journal.entries > limits.journal_entries_max
            or journal.size_bytes > limits.journal_bytes_max
        ):
            self._rotate()

    def _rotate(self) -> None:
        """The next journal begins with the state as it is now."""
        current = self._journal.file
        start = self._checkpoint(current.number + 1, current)
        self._sealing.append(self._journal.rotate(start))

    def _live_parts(self, first: int, last: int) -> Iterator[tuple[Entry, int, int, bool]]:
        """Live positions of `first..last`, cut where entry or `redelivered` changes."""
        live, redelivered = self.state.live, self.state.redelivered
        for entry in self._index.overlapping(first, last):
            for low, high in live.intersection(max(first, entry.first), min(last, entry.last)):
                for a, b in redelivered.intersection(low, high):
                    if low < a:
                        yield entry, low, a - 1, False
                    yield entry, a, b, True
                    low = b + 1
                if low <= high:
                    yield entry, low, high, False

    def _over(self) -> bool:
        return self._host.counters.cache_bytes > self._host.limits.cache_bytes_max

    def _load(self, entry: Entry) -> Block:
        """Reads a block back, and keeps it while there is room, or until the next one."""
        try:
            block = read_block(self._host.disk, entry)
        except CorruptError as error:
            self._lose(entry, error.report)
            raise
        counters = self._host.counters
        counters.blocks_read += 1
        entry.block = block
        counters.cache_bytes += memory_bytes(block)
        recent = self._recent
        if recent is not None and recent.block is not None and recent is not entry and self._over():
            counters.cache_bytes -= recent.drop_block()
        self._recent = entry
        return block

    def _lose(self, entry: Entry, report: CorruptionReport) -> None:
        """The bodies of an entry can't be read: they are missing now."""
        self.corruptions.append(report)
        for low, high in self.state.live.intersection(entry.first, entry.last):
            self.live_bytes -= entry.bytes_of(low, high)
            self.missing.add(low, high)
        self._index.discard(entry)
        self._let_go(entry)

    def _gate(self) -> int:
        return self._takes + self._journal.has_pending

    def _plan_removals(self, job: FlushJob) -> None:
        """Adds the segments that nobody wants any more, not even after a power cut."""
        wanted = {item.segment.number for item in job.items}
        for number, gate in [*self._emptied.items()]:
            if self._segments[number].references or number in wanted:
                del self._emptied[number]
            elif self._commits >= gate:
                del self._emptied[number]
                job.removals.append(self._segments.pop(number))

    def _plan_entry(self, entry: Entry, job: FlushJob) -> None:
        for first, last in parts_of(entry, self.state.live):
            number = first // SEGMENT_POSITIONS
            segment = self._segments.get(number)
            if segment is None:
                path = self.directory / segment_name(number)
                segment = DataFile(path, number, new_marker(), end=0, synced=0)
                segment.oldest_generation = entry.generation
                self._segments[number] = segment
            segment.oldest_generation = min(segment.oldest_generation, entry.generation)
            job.items.append(FlushItem(entry, first, last, segment, entry.block))

    def _relocate(self, entry: Entry, places: list[Placed]) -> None:
        """The living parts of an entry are in segments now, as blocks of their own."""
        counters = self._host.counters
        cached = entry.block is not None
        if entry.block is not None:
            counters.cache_bytes -= memory_bytes(entry.block)
            entry.block = None
        new: list[Entry] = []
        for place in places:
            first, last = place.item.first, min(place.item.last, entry.last)
            live = live_count(self.state.live, first, last) if first <= last else 0
            if not live:
                continue
            assert place.block is not None
            block = place.block
            part = Entry(
                first=first,
                last=last,
                start=0,
                live=live,
                transient=entry.transient,
                generation=entry.generation,
                file=place.item.segment,
                offset=place.offset,
                length=place.length,
                body_bytes=block.body_bytes(0, last - first + 1),
                block=block if cached else None,
                sizes=None if cached or block.count == 1 else block.body_sizes(),
                durable=True,
            )
            counters.cache_bytes += memory_bytes(block) if cached else 0
            new.append(part)
        self._index.replace(entry, new)
