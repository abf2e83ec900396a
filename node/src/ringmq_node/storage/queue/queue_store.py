"""The durable side of one queue, as its replica sees it.

Everything is called on the event loop's thread and returns at once. An appended op is framed into
buffers (`log`); the store's next round writes and syncs these, and `durable_number` then says how
far that has come. `bodies` knows where each body is and which of them are in memory, `pager` and
`read_ahead` change that, and `flush` carries bodies from journals into segments. This module tells
each of them what happens, in an order that a power cut at any moment can't hurt.

A transient queue waits for nothing: its `durable_number` is that of its last op, its journal isn't
written, all its messages count as transient, and nobody syncs what it pages out.

The replica's part of the contract: ops are appended in order, by one master's numbering, and a
replica that has to give up its own tail calls `install`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ringmq_base.ranges import Range, RangeSet, numbers_in
from ringmq_node.model.info import QueueStorage
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove, Requeue
from ringmq_node.queue.run import Run
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage.disk.data_directory import NewFolder
from ringmq_node.storage.errors import CorruptionReport, StoreClosedError, StoreFailedError
from ringmq_node.storage.format import checkpoint
from ringmq_node.storage.format.checkpoint import Checkpoint, Cut
from ringmq_node.storage.format.packing import PackedParts
from ringmq_node.storage.format.queue_folder import SEGMENT_POSITIONS
from ringmq_node.storage.limits import Written
from ringmq_node.storage.queue.bodies import Bodies
from ringmq_node.storage.queue.changes import BodyChanges, computed_in_pieces
from ringmq_node.storage.queue.entries import IndexEntry, QueueFile
from ringmq_node.storage.queue.flush import Flusher, FlushJob
from ringmq_node.storage.queue.host import QueueHost
from ringmq_node.storage.queue.job import Job
from ringmq_node.storage.queue.log import QueueLog
from ringmq_node.storage.queue.pager import Pager
from ringmq_node.storage.queue.read_ahead import ReadAhead
from ringmq_node.storage.queue.reading import read_runs
from ringmq_node.storage.queue.recovery import Recovered
from ringmq_node.storage.queue.statistics import collect

# With fewer entries in memory a flush for memory's sake is not worth its syncs.
_FOLDABLE_MIN = 4096


class QueueStore:
    """Made by `Store.open_queue`."""

    def __init__(
        self,
        queue: str,
        directory: Path,
        host: QueueHost[QueueStore],
        found: Recovered,
        *,
        durable: bool = True,
        unmade: NewFolder | None = None,
    ) -> None:
        """`unmade`: the queue has no folder yet; the first round that it takes part in makes it."""
        self.queue = queue
        # False for a transient queue: nothing of it is left after a restart.
        self.durable = durable
        self.directory = directory
        self.state: ReplicatedState = found.state
        # Ops up to here are synced.
        self.durable_number = found.state.last_number
        # Ops were lost on disk and the state is a guess; until the next `install`.
        self.damaged = found.damaged
        self.torn_bytes = found.torn_bytes
        # This replica may lack confirmed messages; see `Store.mark_whole`.
        self.partial = False
        # Called on the loop when somebody has found bodies of live messages damaged. They are
        # `missing` from then on. The reader who has found them is still in the middle of its work.
        self.on_lost: Callable[[], None] = lambda: None
        self.bodies = Bodies(
            host, found, gate=self._gate, on_emptied=self._emptied, on_lost=self._lost
        )
        self.pager = Pager(host, self.bodies)
        self.ahead = ReadAhead(host, self.bodies)
        self.written = Written()
        self._host = host
        self.closed = False
        self.unmade = unmade
        # Shares of what this queue has gathered (see `gathering`), closed and durable. The ops
        # appended up to now are durable when `_commits` has reached `_gate()`.
        self._takes = self._commits = 0
        self.flusher = Flusher(
            directory,
            host,
            self.bodies,
            self.pager,
            found.sealed,
            self._gate,
            self.written,
            durable=durable,
        )
        self._fills = self._fills_durable = 0
        self._installs = 0
        # A queue that a start has found gets another journal, on disk with the first append.
        current = [] if found.current is None else [found.current.file]
        start = self._checkpoint(found.next_generation, current, found.cuts)
        self.bodies.cuts = start.cuts
        self.log = QueueLog(directory, host, self.written, start, found.current, durable=durable)

    # -- what the ring asks for

    @property
    def missing(self) -> RangeSet:
        """Live positions whose bodies this replica doesn't have."""
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
        self.log.append_epoch(self.state.last_number + 1, epoch)
        self._appended()

    def append(self, number: int, op: Op, payload: bytes) -> list[Range]:
        """Applies and logs the next op, whose encoded form `payload` is.

        Returns the positions that have ceased to be live.
        """
        self._check_writable()
        state, bodies = self.state, self.bodies
        # Before the state changes: a delta is unfolded by the positions that are live now.
        if isinstance(op, Remove):
            bodies.before_removal(op.ranges)
        elif isinstance(op, Publish) and bodies.index.deltas:
            bodies.before_adding(op.first_position, op.last_position)
        gone = state.apply(number, op)
        if isinstance(op, Publish):
            bodies.next_position = state.next_position
            self.pager.published(op.block.count)
            self._add(self.log.append_publish(number, state.epoch, op, payload))
        else:
            self.log.append_op(number, state.epoch, payload)
            if isinstance(op, Remove):
                self.log.removed(len(op.ranges))
                self.pager.acknowledged(numbers_in(gone))
                bodies.forget(gone)
            elif isinstance(op, Requeue) and op.ranges:
                self.pager.requeued()
                self.ahead.requeued(op.ranges[0][0])
        self._appended(len(payload))
        self._seal_if_full()
        return gone

    def fetch(self, first: int, last: int, *, bytes_max: int, messages_max: int) -> list[Run]:
        """`read` for a consumer: the messages that come next are read ahead."""
        runs = self._read(first, last, bytes_max, messages_max, keep=True)
        if runs:
            self.pager.delivered(sum(run.block.count for run in runs))
            self.ahead.fetched(runs[-1].last_position + 1)
        return runs

    def read(self, first: int, last: int, *, bytes_max: int, messages_max: int) -> list[Run]:
        """Live messages of `first..last`, in order; at least one if there is any.

        Ends before `bytes_max` of bodies or `messages_max` would be exceeded; with half of
        `bytes_max` it may end where a block ends. Passes over missing messages. Raises
        `CorruptError` if a body can't be read back: its positions are missing from then on.
        """
        return self._read(first, last, bytes_max, messages_max, keep=False)

    def _read(
        self, first: int, last: int, bytes_max: int, messages_max: int, *, keep: bool
    ) -> list[Run]:
        return read_runs(self.bodies, self.state, first, last, bytes_max, messages_max, keep=keep)

    def bytes_in(self, first: int, last: int) -> int:
        """Body bytes of the live messages of `first..last` that are not missing."""
        return self.bodies.bytes_in(first, last)

    # -- catching up

    async def changes_to(self, state: ReplicatedState, *, keep_below: int) -> BodyChanges:
        """What `install` will change, computed in pieces of work. Raises `ReadError`."""
        make = partial(BodyChanges, self.bodies, state, keep_below, durable=self.durable)
        try:
            with self.flusher.held():
                return await computed_in_pieces(make)
        finally:
            self._host.mark_flushable(self)

    def install(
        self,
        state: ReplicatedState,
        *,
        keep_below: int,
        packed: PackedParts | None = None,
        changes: BodyChanges | None = None,
    ) -> bool:
        """Puts the ring's agreed `state` in the place of this replica's own.

        Bodies for positions below `keep_below` that are live in `state` stay; all others are
        dropped, and the live positions without a body are `missing`. After a power cut the queue
        has the old state or the new one. `state` belongs to the store from now on; a long one was
        `packed` before, and its `changes` were computed. Returns False, having changed nothing, if
        it has that very state already.
        """
        self._check_writable()
        if state.is_same(self.state) and keep_below >= state.next_position and not self.damaged:
            # Nothing has happened to most queues while their node was away. Another journal for
            # each of ten thousand would be 50 000 files to sync, for nothing.
            return False
        # With the old state: it says which gathered publishes have died.
        self._elide()
        if changes is None or not changes.are_current(state, keep_below):
            changes = BodyChanges(self.bodies, state, keep_below, durable=self.durable)
            changes.compute()
        generation = self.log.file.number + 1
        self.state = state
        self.damaged = False
        self.durable_number = 0
        self._installs += 1
        cuts = checkpoint.add_cut(self.bodies.cuts, Cut(generation, keep_below))
        start = self._checkpoint(generation, self.log.files(), cuts)
        start = replace(start, packed=packed or start.packed)
        # Before the bodies change: files that the new state leaves empty get a gate, and may be
        # deleted only when this journal, which begins with the state, is durable.
        self.log.rotate(start)
        self.ahead.forget()
        self.pager.forget()
        changes.apply()
        self.bodies.cuts = start.cuts
        self._appended()
        return True

    def fill(self, first_position: int, block: Block, transient: bool) -> None:
        """Gives bodies for missing positions. Positions that aren't missing are passed over."""
        self._check_writable()
        last_position = first_position + block.count - 1
        # A message that the ring takes for persistent counts as safe on this replica's disk, so
        # its body is written, whatever the replica that has sent it believes.
        transient = transient and self.state.transient.contains_all(first_position, last_position)
        for first, last in self.missing.intersection(first_position, last_position):
            start = first - first_position
            part = block.slice(start, start + last - first + 1)
            self.bodies.before_adding(first, last)
            follows = self.state.last_number
            self._add(self.log.append_fill(follows, first, part, transient=transient))
            self.missing.remove(first, last)
            self._fills += 1
            self._appended(part.size_bytes)
        self._seal_if_full()

    async def wait_room(self) -> None:
        """Waits for what isn't durable yet if that is many bytes. A replica that fetches much more
        than it appends calls this in between. Raises `StoreFailedError`."""
        await self._host.wait_room()

    # -- what the store's rounds ask for

    def take(self) -> CommitJob:
        """Everything that has gathered since the last time, but for bodies removed meanwhile."""
        # Before the releases are taken: an elided body is released here, not by the round as well.
        self._elide()
        self._takes += 1
        pieces, entries = self.log.take()
        return Job(
            queue=self,
            pieces=pieces,
            entries=entries,
            releases=self.bodies.releases.take(),
            last_number=self.state.last_number,
            fills=self._fills,
            installs=self._installs,
            # Dropped with all that has gathered, so it comes first.
            new_bytes=self.log.new_bytes,
            size_bytes=self.log.drop_gathered(),
            unmade=self.unmade,
            needs=self.log.take_needs(),
        )

    def committed(self, job: CommitJob) -> bool:
        """`job` is on disk. Returns whether that made an op or a fill durable."""
        self.unmade = None
        for sealed in self.log.committed(job.pieces):
            self.flusher.sealed(sealed)
            self._host.mark_flushable(self)
        self.pager.durable(job.entries)
        # The removes of these bodies are in the job's pieces, or in a round before.
        self.bodies.releases.release(job.releases)
        self._commits += job.shares
        if self.flusher.waits_for_a_round:
            self._host.mark_flushable(self)
        before = (self.durable_number, self._fills_durable)
        self._fills_durable = job.fills
        # The number of a job from before an install is of the state that was given up.
        if job.installs == self._installs:
            self.durable_number = job.last_number
        return before != (self.durable_number, self._fills_durable)

    # -- what the store's flush asks for

    def plan_flush(self) -> FlushJob | None:
        """The next bounded step of emptying sealed journals, or None if there is nothing to do.

        It has to be done, and `flushed` called, before the next one is planned.
        """
        job = self.flusher.plan(self._commits)
        if self.flusher.waits_for_a_round and self.log.has_pending:
            # Nothing else may be appended to this queue for a long time, and no round would begin.
            self._host.mark_dirty(self)
        return job

    def flushed(self, job: FlushJob) -> None:
        """`job` has been done."""
        self.flusher.flushed(job)

    @property
    def flushable(self) -> bool:
        """Whether there is something on disk to be moved or deleted."""
        return bool(self.flusher.sealed_count or self.flusher.waits_for_a_round)

    @property
    def sealed_count(self) -> int:
        return self.flusher.sealed_count

    # -- memory

    def seal_if_large(self) -> None:
        """The queue is idle: begins another journal if this one is large, so that it is flushed.
        The state at its beginning doesn't count: the next journal begins with it as well."""
        if self.log.logged_bytes >= self._host.limits.idle_journal_bytes_min:
            self.seal()

    def seal_for_memory(self) -> None:
        """Memory is short, and entries without a record in a segment can't be folded: has the flush
        give them one, if they are many."""
        if len(self.bodies.index) < _FOLDABLE_MIN:
            return
        if not self.durable:
            if self.pager.awaiting_segment:
                self._host.mark_flushable(self)
        elif self.log.entries >= SEGMENT_POSITIONS:
            self.seal()

    # -- what the scrub asks for

    def on_disk(self) -> list[QueueFile]:
        """Journals and segments; the last one is the current journal."""
        return [*self.flusher.files(), *self.log.files()]

    def seal(self) -> None:
        """Begins another journal, with the state as it is."""
        assert not self.closed, "its folder may be that of the next queue of this name"
        self._rotate()

    # -- the end

    def end(self) -> bool:
        """Logs that all before was synced, so that damage to it is never taken for a torn tail.
        Returns whether there was anything to log."""
        if not self.log.entries or not self.durable:
            return False
        state = self.state
        self.log.append_end(state.last_number, state.epoch, state.next_position)
        return True

    def close(self) -> None:
        """The queue is being deleted or given up: it takes nothing more."""
        self.closed = True

    def delete(self) -> list[IndexEntry]:
        """The queue is deleted: leaves no cycle (`resources.garbage`). See `Bodies.clear`."""
        self.flusher.forget()
        entries = self.bodies.clear()
        self.pager.clear()
        self.bodies.end()
        self.flusher.end()
        self.on_lost = lambda: None
        return entries

    def check(self) -> None:
        """Asserts the invariants of the state and of the bodies."""
        self.state.check()
        self.bodies.check()

    def statistics(self) -> QueueStorage:
        """The numbers of this queue. Looks at every entry of the index that is in memory."""
        return collect(self.bodies, self.pager, self.written)

    # -- inside

    def _check_writable(self) -> None:
        self._host.check_writable()
        if self.closed:
            raise StoreClosedError(f"queue {self.queue!r} was deleted or given up: no more writes")

    def _add(self, entries: list[IndexEntry]) -> None:
        for entry in entries:
            self.bodies.add(entry)
            self.pager.added(entry)

    def _appended(self, size_bytes: int = 0) -> None:
        """There is something for the next round; of a transient queue, only to be reported."""
        if self.durable:
            self.log.gathered(size_bytes)
        else:
            self.durable_number, self._fills_durable = self.state.last_number, self._fills
        self._host.mark_dirty(self)

    def _checkpoint(
        self, generation: int, journals: list[QueueFile], cuts: tuple[Cut, ...]
    ) -> Checkpoint:
        """The state as it is, to begin the journal `generation`. `journals` come before it, beside
        the sealed ones."""
        cuts = self.flusher.cuts_needed(generation, journals, cuts)
        return Checkpoint(generation, self.state, cuts, self.damaged)

    def _emptied(self, file: QueueFile) -> None:
        """An entry has left `file`."""
        if self.flusher.emptied(file):
            self._host.mark_flushable(self)

    def _lost(self, entry: IndexEntry | None) -> None:
        """Bodies are missing from now on: those of `entry`, or some of a folded segment."""
        if entry is not None and entry.location is None and entry.file is self.log.file:
            # The damaged record holds the op as well. After a restart the state would not be
            # known, so the next journal, which begins with the state, has to come at once.
            with suppress(StoreFailedError):
                self._check_writable()
                self.seal()
        self.on_lost()

    def _elide(self) -> None:
        """The piece of the journal that has gathered is complete: publishes that have died in it
        are written without their bodies."""
        places = self.log.elide(self.state.live)
        if places:
            self.bodies.releases.release_elided(places)

    def _seal_if_full(self) -> None:
        if self.log.is_full:
            self._rotate()

    def _rotate(self) -> None:
        """The next journal begins with the state as it is now."""
        if not self.durable:
            # No journal is written. A flush gives the entries that were paged out their segments.
            self.log.begin_count()
            self._host.mark_flushable(self)
            return
        self._elide()
        start = self._checkpoint(self.log.file.number + 1, self.log.files(), self.bodies.cuts)
        self.bodies.cuts = start.cuts
        self.log.rotate(start)
        # The op before may be in a share that is closed, and no other one may come for long.
        self._host.mark_dirty(self)

    def _gate(self) -> int:
        """The number of this queue's share that makes durable all that has happened so far."""
        return self._takes + self.log.has_pending


CommitJob: TypeAlias = Job[QueueStore]
