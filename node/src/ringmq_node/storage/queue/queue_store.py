"""The durable side of one queue: its state, its journal, its bodies.

Everything is called on the event loop's thread and returns at once: what is appended is
framed into buffers, and written and synced by the store's next round. `durable_number`
then says how far that has come. Where the bodies are, and which of them are in memory, is
the business of `bodies`; how they get from journals into segments that of `flush`.

A transient queue waits for nothing: its `durable_number` is that of its last op, its journal
isn't written, all its messages are transient, and nobody syncs what it pages out.

The node's contract: ops are appended in order, by one master's numbering; `install`
is what a replica does that has to give up its own tail.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove, Requeue
from ringmq_node.queue.run import Run
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage.errors import CorruptionReport, StoreClosedError, StoreFailedError
from ringmq_node.storage.format import checkpoint, references
from ringmq_node.storage.format.checkpoint import Checkpoint, Cut
from ringmq_node.storage.format.queue_folder import SEGMENT_POSITIONS
from ringmq_node.storage.format.records import (
    END_PAYLOAD,
    FLAG_TRANSIENT,
    RECORD_HEADER_BYTES,
    RecordKind,
)
from ringmq_node.storage.format.references import RecordLocation, Reference
from ringmq_node.storage.limits import Written
from ringmq_node.storage.queue import bodies, paging
from ringmq_node.storage.queue.bodies import Bodies
from ringmq_node.storage.queue.elision import Elision, Gathered
from ringmq_node.storage.queue.entries import IndexEntry, QueueFile, live_count
from ringmq_node.storage.queue.flush import Flusher, FlushJob
from ringmq_node.storage.queue.journal import JournalWriter, Piece
from ringmq_node.storage.queue.recovery import Recovered

# Dead entries that a journal's list may have beside as many as it has living ones.
_DEAD_MAX = 1000
# Below as many entries in memory a flush for memory's sake is not worth its syncs.
_FOLDABLE_MIN = 4096
_COUNT = struct.Struct("<I")


class Host(bodies.Host, Protocol):
    """What a queue wants of the store that it is in."""

    def check_writable(self) -> None:
        """Raises `StoreFailedError` if nothing can be written any more."""

    def mark_dirty(self, queue: QueueStore) -> None:
        """The queue has something for the next round."""

    def mark_flushable(self, queue: QueueStore) -> None:
        """The queue has a sealed journal to flush, or a segment to delete."""

    async def wait_room(self) -> None:
        """Waits for a round if much isn't durable."""


@dataclass(slots=True, eq=False)
class CommitJob:
    """One queue's part of a sync round."""

    queue: QueueStore
    pieces: list[Piece]
    entries: list[IndexEntry]
    # Bodies in the message store that nobody wants once this is durable.
    releases: list[RecordLocation]
    last_number: int
    fills: int
    installs: int


@dataclass(frozen=True, slots=True)
class _Kinds:
    """A record whose bodies are in it, in the message store, or nowhere on disk."""

    embedded: RecordKind
    stored: RecordKind
    hollow: RecordKind


_OP = _Kinds(RecordKind.OP, RecordKind.STORED_OP, RecordKind.HOLLOW_OP)
_FILL = _Kinds(RecordKind.FILL, RecordKind.STORED_FILL, RecordKind.HOLLOW_FILL)


def _nobody() -> None:
    """Until the replica sets `on_lost`."""


class QueueStore:
    """Made by `Store.open_queue`."""

    def __init__(
        self, queue: str, directory: Path, host: Host, found: Recovered, *, durable: bool = True
    ) -> None:
        self.queue = queue
        # False: nothing of it is there after a restart.
        self.durable = durable
        self.directory = directory
        self.state: ReplicatedState = found.state
        # Ops up to here are synced.
        self.durable_number = found.state.last_number
        # Ops were lost on disk and the state is a guess; until the next `install`.
        self.damaged = found.damaged
        self.torn_bytes = found.torn_bytes
        # Called on the loop when bodies of live messages are found damaged, by whoever reads:
        # from then on they are `missing`. The one that reads isn't done yet.
        self.on_lost: Callable[[], None] = _nobody
        self.bodies = Bodies(
            host,
            found,
            gate=self._gate,
            on_emptied=self._emptied,
            on_lost=self._lost,
        )
        self.written = Written()
        self._host = host
        self._deleted = False
        # Rounds that this queue took part in, begun and done. What is appended now is
        # durable when `_commits` has reached `_gate()`.
        self._takes = self._commits = 0
        self._flusher = Flusher(
            directory, host.limits, host.counters, self.bodies, found.sealed, self._gate
        )
        # Journals whose successor is not durable yet, the one that was there before among them.
        self._sealing: list[QueueFile] = [] if found.current is None else [found.current]
        self._unsynced: list[IndexEntry] = []
        self._elision = Elision()
        self._fills = self._fills_durable = 0
        self._installs = 0
        # A queue that was there before gets a journal of its own when something is appended.
        start = self._checkpoint(found.next_generation, found.current, found.cuts)
        self.bodies.cuts = start.cuts
        self._journal = JournalWriter(directory, start, found.current, written=durable)

    # -- what the ring asks for

    @property
    def missing(self) -> RangeSet:
        """Live positions whose bodies are not here."""
        return self.bodies.missing

    @property
    def live_bytes(self) -> int:
        """Body bytes of all live messages that are not missing."""
        return self.bodies.live_bytes

    @property
    def corruptions(self) -> list[CorruptionReport]:
        return self.bodies.corruptions

    @property
    def fills_durable(self) -> bool:
        """Whether all that was given to `fill` so far is synced."""
        return self._fills == self._fills_durable

    def begin_epoch(self, epoch: int) -> None:
        """The ops from here on are of `epoch`."""
        self._check_writable()
        self.state.begin_epoch(epoch)
        self._journal.append(
            RecordKind.EPOCH, b"", flags=0, number=self.state.last_number + 1, epoch=epoch
        )
        self._appended()

    def append(self, number: int, op: Op, payload: bytes) -> list[Range]:
        """Applies and logs the next op, whose encoded form `payload` is.

        Returns the positions that have ceased to be live.
        """
        self._check_writable()
        state = self.state
        if isinstance(op, Remove):
            self.bodies.before_removal(op.ranges)
        elif isinstance(op, Publish):
            self.bodies.before_adding(op.first_position, op.last_position)
        gone = state.apply(number, op)
        if isinstance(op, Publish):
            self.bodies.next_position = state.next_position
            self.bodies.pager.rates.published(op.block.count)
            self._log(_OP, op.first_position, op.block, payload, op, transient=op.transient)
        else:
            self._journal.append(RecordKind.OP, payload, flags=0, number=number, epoch=state.epoch)
            if isinstance(op, Remove):
                self._journal.entries += len(op.ranges)
                self.bodies.forget(gone)
                self._elision.removed()
            elif isinstance(op, Requeue) and op.ranges:
                self.bodies.requeued(op.ranges[0][0])
        self._appended(len(payload))
        self._seal_if_full()
        return gone

    def fetch(self, first: int, last: int, *, bytes_max: int, messages_max: int) -> list[Run]:
        """`read` for a consumer: what comes next is read ahead."""
        runs = self._read(first, last, bytes_max, messages_max, keep=True)
        if runs:
            self.bodies.fetched(runs[-1].last_position + 1, sum(run.block.count for run in runs))
        return runs

    def read(self, first: int, last: int, *, bytes_max: int, messages_max: int) -> list[Run]:
        """Live messages of `first..last`, in order; at least one if there is any.

        Ends before `bytes_max` of bodies or `messages_max` would be exceeded; with half of
        `bytes_max` it may end where a block ends. Passes over what is missing. Raises
        `CorruptError` if a body can't be read back: its positions are missing from then on.
        """
        return self._read(first, last, bytes_max, messages_max, keep=False)

    def _read(
        self, first: int, last: int, bytes_max: int, messages_max: int, *, keep: bool
    ) -> list[Run]:
        runs: list[Run] = []
        enough = bytes_max // 2
        for entry, low, high, redelivered in self._live_parts(first, last):
            if runs and entry.bytes_of(low, low) > bytes_max:
                break
            if runs and bytes_max <= enough and entry.bytes_of(low, high) > bytes_max:
                # Cutting a block costs a copy of it: it comes whole the next time.
                break
            block = self.bodies.block_of(entry, keep=keep)
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
        return self.bodies.bytes_in(first, last)

    # -- catching up

    def install(self, state: ReplicatedState, *, keep_below: int) -> None:
        """Puts the ring's agreed `state` in the place of this replica's own.

        Bodies that are here stay for positions below `keep_below` that are live in
        `state`; all others are dropped. What is live and not here is `missing`. After a
        power cut it is the old state or the new one. `state` belongs to the store from now on.
        """
        self._check_writable()
        self._elide()
        generation = self._journal.file.number + 1
        self.state = state
        self.damaged = False
        self.durable_number = 0
        self._installs += 1
        cuts = checkpoint.add_cut(self.bodies.cuts, Cut(generation, keep_below))
        start = self._checkpoint(generation, self._journal.file, cuts)
        # First: what the new state empties waits for this to be durable before it is deleted.
        sealed = self._journal.rotate(start)
        if self.durable:
            self._sealing.append(sealed)
        self.bodies.install(state, keep_below, state.transient if self.durable else state.live)
        self.bodies.cuts = start.cuts
        self._appended()

    def fill(self, first_position: int, block: Block, transient: bool) -> None:
        """Bodies for missing positions. Parts that aren't missing are passed over."""
        self._check_writable()
        last_position = first_position + block.count - 1
        # Only what the ring takes for transient may be in memory only.
        transient = transient and self.state.transient.contains_all(first_position, last_position)
        for first, last in self.missing.intersection(first_position, last_position):
            start = first - first_position
            part = block.slice(start, start + last - first + 1)
            self.bodies.before_adding(first, last)
            self._log(_FILL, first, part, part.data, None, transient=transient)
            self.missing.remove(first, last)
            self._fills += 1
            self._appended(len(part.data))
        self._seal_if_full()

    async def wait_room(self) -> None:
        """Who fetches much more than it appends calls this in between: it waits for a round if
        much isn't durable yet. Raises `StoreFailedError`."""
        await self._host.wait_room()

    # -- what the store's rounds ask for

    def take(self) -> CommitJob:
        """All that has gathered since the last time, but for what was removed meanwhile."""
        self._elide()
        entries, self._unsynced = self._unsynced, []
        self._takes += 1
        return CommitJob(
            queue=self,
            pieces=self._journal.take(),
            entries=entries,
            releases=self.bodies.take_releases(),
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
            self.written.journal_bytes += piece.end - piece.offset
            counters.files_synced += 1
            if piece.seals is not None:
                self._flusher.sealed(piece.seals)
                self._sealing = [file for file in self._sealing if file is not piece.seals]
                counters.sealed += 1
                self._host.mark_flushable(self)
        self.bodies.pager.durable(job.entries)
        self.bodies.released(job.releases)
        self._commits += 1
        if self._flusher.waits_for_a_round:
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
        job = self._flusher.plan(self, self._commits)
        if self._flusher.waits_for_a_round and self._journal.has_pending:
            # Nothing else may be appended to this queue for a long time.
            self._host.mark_dirty(self)
        return job

    def flushed(self, job: FlushJob) -> None:
        """`job` has been done."""
        self._flusher.flushed(job)

    @property
    def flushable(self) -> bool:
        """Whether there is something on disk to be moved or deleted."""
        return bool(self._flusher.sealed_count or self._flusher.waits_for_a_round)

    # -- paging

    def set_lazy(self, lazy: bool) -> None:
        """Whether bodies are kept in memory only while they are being written or fetched.

        What is in memory is let go of in steps of about 10 ms, with others between them.
        """
        self.bodies.pager.lazy = lazy
        self.bodies.pager.reduce()

    def tick(self, now: float) -> float:
        """Takes stock; returns for how many seconds what is in memory lasts. `now` in seconds."""
        rates = self.bodies.pager.rates
        rates.update(now)
        return rates.duration_s(self.bodies.index.messages_in_memory)

    def set_duration(self, duration_s: float) -> None:
        """For how long messages in memory should last; infinite: there is room for all."""
        pager = self.bodies.pager
        pager.target = pager.rates.target(duration_s)
        if not math.isinf(pager.target) or pager.lazy:
            pager.reduce()

    def chain(self) -> paging.Chain:
        """How many messages are in which part of the queue."""
        index, head = self.bodies.index, self.bodies.head
        if not index.deltas and index.messages == index.messages_in_memory:
            # There may be very many entries, and it isn't needed to look at them.
            pending = live_count(self.state.live, 0, head - 1)
            pending -= live_count(self.missing, 0, head - 1)
            return paging.Chain(pending, index.messages - pending, 0, 0, 0, 0)
        return paging.chain(index, index.deltas.values(), head)

    def seal(self) -> None:
        """The queue is idle: begins another journal, so that a large one is flushed."""
        # Not counting the state that it begins with: the next one begins with it as well.
        logged = self._journal.size_bytes - self._journal.start_bytes
        if logged >= self._host.limits.idle_journal_bytes_min:
            self._rotate()
            self._host.mark_dirty(self)

    def seal_for_memory(self) -> None:
        """Memory is short, and what is in a journal only can't be folded: has it flushed."""
        index = self.bodies.index
        if not self.durable:
            # Nor what is in the transient store and in no segment.
            if self.bodies.pager.paged and len(index) >= _FOLDABLE_MIN:
                self._host.mark_flushable(self)
            return
        if self._journal.entries >= SEGMENT_POSITIONS and len(index) >= _FOLDABLE_MIN:
            self._rotate()
            self._host.mark_dirty(self)

    def end(self) -> bool:
        """Logs that all before was synced, so that damage to it is never taken for a torn tail.

        Returns whether there was anything to be said.
        """
        if not self._journal.entries or not self.durable:
            return False
        state = self.state
        payload = END_PAYLOAD.pack(state.next_position)
        self._journal.append(
            RecordKind.END, payload, flags=0, number=state.last_number, epoch=state.epoch
        )
        return True

    def close(self) -> None:
        """The queue is being deleted: it takes nothing more."""
        self._deleted = True

    def delete(self) -> None:
        """The queue is deleted: gives back its memory. No thread works on it."""
        self._flusher.forget()
        self.bodies.clear()

    @property
    def sealed_count(self) -> int:
        return self._flusher.sealed_count

    @property
    def segment_count(self) -> int:
        return len(self.bodies.segments)

    def check(self) -> None:
        """Asserts the invariants of the state and of the bodies."""
        self.state.check()
        self.bodies.check()

    # -- inside

    def _check_writable(self) -> None:
        self._host.check_writable()
        if self._deleted:
            raise StoreClosedError(f"queue {self.queue!r} was deleted")

    def _appended(self, size_bytes: int = 0) -> None:
        """There is something for the next round; of a transient queue, only to be told."""
        if self.durable:
            self._host.counters.gathered_bytes += size_bytes
        else:
            self.durable_number, self._fills_durable = self.state.last_number, self._fills
        self._host.mark_dirty(self)

    def _checkpoint(
        self, generation: int, current: QueueFile | None, cuts: tuple[Cut, ...]
    ) -> Checkpoint:
        """The state as it is, for the journal `generation`, which comes after `current`."""
        # A cut says nothing once no file has bodies from before it, nor can come back with them.
        files = [*self._sealing, *self._flusher.files()]
        if current is not None:
            files.append(current)
        oldest = min((file.oldest_generation for file in files), default=generation)
        cuts = tuple(cut for cut in cuts if cut.generation > oldest)
        return Checkpoint(generation, self.state, cuts, self.damaged)

    def _log(
        self,
        kinds: _Kinds,
        first: int,
        block: Block,
        payload: bytes,
        op: Publish | None,
        *,
        transient: bool,
    ) -> None:
        """Logs bodies; `payload` is what the record has if they are embedded in it."""
        limits = self._host.limits
        number = first if op is None else self.state.last_number
        epoch = self.state.last_number if op is None else self.state.epoch
        journal = self._journal
        journal.entries += block.count
        outline = b"" if op is None else ops.encode_outline(op)
        flags = 0
        transient = transient or not self.durable
        own_bytes = block.body_bytes()
        if transient:
            kind, flags = kinds.hollow, FLAG_TRANSIENT
            payload = outline or _COUNT.pack(block.count)
        elif len(block.data) < limits.embed_below * block.count:
            kind = kinds.embedded
        else:
            parts, own_bytes = self._store(block, b"" if op is None else op.message_id)
            table = [Reference(place, 0, part.body_sizes()) for place, part in parts]
            kind, payload = kinds.stored, outline + references.encode(table)
        offset = journal.append(kind, payload, flags=flags, number=number, epoch=epoch)
        if not transient:
            self.written.body_bytes += own_bytes
            if op is not None:
                last = first + block.count - 1
                self._elision.published(Gathered(offset, first, last, own_bytes, outline))
        length = RECORD_HEADER_BYTES + len(payload)
        if kind is not kinds.stored:
            self._add(first, block, offset, length, transient=transient)
            return
        for place, part in parts:
            self._add(first, part, offset, length, transient=False, location=place)
            first += part.count

    def _store(
        self, block: Block, message_id: bytes
    ) -> tuple[list[tuple[RecordLocation, Block]], int]:
        """Puts bodies into the message store, in pieces. Also: how many bytes it didn't have."""
        store = self._host.messages(transient=False)
        parts: list[tuple[RecordLocation, Block]] = []
        start = own_bytes = 0
        while start < block.count:
            stop = block.fit(start, self._host.limits.store_block_bytes_max)
            part_id = b""
            if message_id:
                number = int.from_bytes(message_id, "little") + start
                part_id = (number & ((1 << 128) - 1)).to_bytes(16, "little")
            part = block.slice(start, stop)
            place, kept = store.put(part, part_id)
            if kept is part:
                self.written.stored_bytes += len(part.data)
                own_bytes += part.body_bytes()
            parts.append((place, kept))
            start = stop
        return parts, own_bytes

    def _add(
        self,
        first: int,
        block: Block,
        offset: int,
        length: int,
        *,
        transient: bool,
        location: RecordLocation | None = None,
    ) -> None:
        """The entry of bodies whose record has just been logged."""
        file = self._journal.file
        entry = IndexEntry(
            first=first,
            last=first + block.count - 1,
            start=0,
            live=block.count,
            transient=transient,
            generation=file.number,
            file=None if transient else file,
            offset=offset,
            length=length,
            body_bytes=block.body_bytes(),
            block=block,
            location=location,
        )
        self.bodies.add(entry)
        if transient:
            return
        if len(file.entries) > 2 * file.holders + _DEAD_MAX:
            # Else a queue that is consumed at once would hold a journal's worth of dead entries.
            file.entries = [old for old in file.entries if old.live]
        file.entries.append(entry)
        self._unsynced.append(entry)

    def _emptied(self, file: QueueFile) -> None:
        """An entry has left `file`."""
        if self._flusher.emptied(file):
            self._host.mark_flushable(self)

    def _lost(self, entry: IndexEntry | None) -> None:
        """Bodies are missing from now on."""
        if entry is not None and entry.location is None and entry.file is self._journal.file:
            # The op is in that record, too: without it a restart would not know the state.
            # The next journal begins with it.
            with suppress(StoreFailedError):
                self._check_writable()
                self._rotate()
                self._host.mark_dirty(self)
        self.on_lost()

    def _elide(self) -> None:
        """The piece of the journal that has gathered is ended: what died in it isn't written."""
        dead = self._elision.take(self.state.live)
        if not dead:
            return
        file = self._journal.file
        outlines = {publish.offset: publish.outline for publish in dead}
        moved = self._journal.elide(outlines)
        places: list[RecordLocation] = []
        for entry in self._unsynced:
            if entry.file is not file:
                continue
            if entry.offset in outlines and entry.location is not None:
                places.append(entry.location)
            entry.offset = moved.get(entry.offset, entry.offset)
        self.bodies.release_elided(places)
        size = sum(publish.body_bytes for publish in dead)
        self.written.elided_bytes += size
        self._host.counters.elided_bytes += size
        self._host.counters.elided_messages += sum(one.last - one.first + 1 for one in dead)

    def _seal_if_full(self) -> None:
        limits = self._host.limits
        journal = self._journal
        if (
            journal.entries > limits.journal_entries_max
            # A state of many ranges makes a large beginning: not one journal for each op then.
            or journal.size_bytes > max(limits.journal_bytes_max, journal.start_bytes * 3 // 2)
        ):
            self._rotate()

    def _rotate(self) -> None:
        """The next journal begins with the state as it is now."""
        if not self.durable:
            # There is none. What has been paged out finds its place in segments.
            self._journal.entries = 0
            self._host.mark_flushable(self)
            return
        self._elide()
        current = self._journal.file
        start = self._checkpoint(current.number + 1, current, self.bodies.cuts)
        self.bodies.cuts = start.cuts
        self._sealing.append(self._journal.rotate(start))

    def _live_parts(self, first: int, last: int) -> Iterator[tuple[IndexEntry, int, int, bool]]:
        """Live positions of `first..last`, cut where entry or `redelivered` changes."""
        redelivered = self.state.redelivered
        for entry, low, high in self.bodies.parts(first, last):
            for a, b in redelivered.intersection(low, high):
                if low < a:
                    yield entry, low, a - 1, False
                yield entry, a, b, True
                low = b + 1
            if low <= high:
                yield entry, low, high, False

    def _gate(self) -> int:
        return self._takes + self._journal.has_pending
