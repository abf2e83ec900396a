"""The group commit: one sync round at a time for the whole node.

A round takes everything that dirty queues have gathered, writes and syncs it in threads (one small
write on a fast disk in place: see `disk.sync_duration`), and reports on the event loop which ops
have become durable. The records of several queues go through the node's commit log, with one sync
(see `commit_log`), and into their journals with a later round (see `lagging`); else each journal is
written and synced by itself. Meanwhile the next round gathers; it
begins as soon as this one is done. Nothing waits on a timer: on an idle node an append is durable
after one sync, on a busy node many appends share one.

**Bodies before records.** The message stores are written and synced first, so that no journal
record on the disk ever refers to a body that isn't there.

**Many queues, many bytes.** A round has a bound of both, and the rest is in those after it (see
`gathering`). Ten thousand queues in one would hold the loop for a second, and wake ten thousand
waiters in one turn of it. 64 MiB of one queue would hold up all others.

**Waiting for the flush.** If journals are sealed faster than they are flushed, rounds wait: appends
are confirmed later, and the publishers who wait for that append less. Can the two wait for each
other? A round waits only for a step of the flush that is in a thread, and such a step waits for
nothing. Where the flush itself needs a round (for its gates), no step is under way, so the round
begins. And while no round ends, the flush gets nothing new, so its steps come to an end.

**Crowding.** Ops that gather while rounds are slow are in memory. Nothing here refuses them, as
the ring has them already. Instead `CommitHost.crowded` is told when they cross their limit, in
either direction, and keeps more from coming. It is told so only while a round is on its way or
waits for the flush: only then is an end sure to come.

Thread rule: `_write_messages`, `_write_journals`, `commit_log.write` and `lagging.write` run in
threads and touch only their arguments. No two of a round write to one file.
Everything else is called on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from types import MappingProxyType
from typing import NamedTuple, Protocol

from ringmq_node.storage import commit_log, lagging, messages
from ringmq_node.storage.commit_log import CommitLog, LogJob
from ringmq_node.storage.disk.data_directory import make_folders
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.disk.sync_duration import SyncDuration
from ringmq_node.storage.disk.threads import Task, Worker
from ringmq_node.storage.errors import StoreFailedError
from ringmq_node.storage.gathering import Gathering
from ringmq_node.storage.lagging import Lag, LaggingJournals
from ringmq_node.storage.limits import Counters, StoreLimits
from ringmq_node.storage.messages import MessagesJob, MessageStore
from ringmq_node.storage.queue.journal import write_pieces
from ringmq_node.storage.queue.queue_store import CommitJob, QueueStore

# A round of more queues isn't done on the loop's thread.
IN_PLACE_QUEUES_MAX = 32


class CommitHost(Protocol):
    """The store, as its group commit sees it."""

    failure: StoreFailedError | None
    counters: Counters

    @property
    def is_behind(self) -> bool:
        """Whether rounds wait for a step of the flush. The host calls `resume` at its end."""

    def fail(self, error: Exception) -> StoreFailedError:
        """A write or a sync has failed. Returns the failure that the store raises from now on."""

    def round_ended(self, jobs: list[CommitJob]) -> None:
        """Everything in `jobs` is durable."""

    def threads_done(self) -> None:
        """Threads have finished work on queues. Called before the outcome is reported."""

    def crowded(self, on: bool) -> None:
        """Unsynced bytes have crossed their limit, upwards if `on`."""


@dataclass(slots=True)
class Round:
    """A round that is on its way."""

    number: int
    began: float
    stored: list[tuple[MessageStore, MessagesJob]]
    jobs: list[CommitJob]
    # Once it is planned: what goes through the commit log, of which jobs, and the other jobs.
    log: LogJob | None = None
    logged: list[CommitJob] = field(default_factory=list)
    direct: list[CommitJob] | None = None
    # What journals lack, which this round writes beside all else; and of those that it writes
    # directly, what they lack, by the job that writes it first.
    lags: list[Lag] = field(default_factory=list)
    lags_of: dict[CommitJob, Lag] = field(default_factory=dict)
    # The task that writes the message stores; then the tasks that write the journals.
    first: Task | None = None
    parts: list[Task] = field(default_factory=list)
    parts_left: int = 0

    @property
    def syncs(self) -> int:
        """The files that are synced for it, without those of the message stores."""
        direct = self.jobs if self.direct is None else self.direct
        return (self.log is not None) + sum(len(job.pieces) for job in direct)

    def wait(self) -> None:
        """Blocks until the threads have done all that they were given."""
        for task in ([self.first] if self.first else []) + self.parts:
            task.wait()

    def writes(self, queue: QueueStore) -> bool:
        """Whether it writes the queue's journal."""
        lags = any(lag.queue is queue for lag in self.lags)
        return lags or any(job.queue is queue for job in self.jobs)

    @property
    def error(self) -> Exception | None:
        tasks = [*([self.first] if self.first else []), *self.parts]
        return next((task.error for task in tasks if task.error is not None), None)


class _Waiter(NamedTuple):
    """A caller of `sync`: what it waits for, and the first round that may be the last of it."""

    mark: int
    number: int
    done: asyncio.Future[None]


class GroupCommit:
    """Of one store."""

    def __init__(
        self,
        host: CommitHost,
        disk: Disk,
        limits: StoreLimits,
        stores: Sequence[MessageStore],
        log: CommitLog,
    ) -> None:
        """Records of queues refer to the first of `stores`."""
        self._host = host
        self._disk = disk
        self._limits = limits
        self._stores, self._records = stores, stores[0]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers: list[Worker] = []
        self._gathering = Gathering(limits, host.counters)
        self._stores_dirty = False
        self._round: Round | None = None
        self._scheduled = False
        self._is_crowded = False
        self._sync_duration = SyncDuration(limits.sync_in_place_bytes_max)
        self._log = log
        self._lagging = LaggingJournals(limits)
        self._begun = self._done = 0
        self._waiters: list[_Waiter] = []

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._log.start(loop)
        self._schedule()

    def stop(self) -> None:
        self._loop = None
        self._log.stop()

    def mark_dirty(self, queue: QueueStore) -> None:
        """The queue has something for the next round."""
        self._gathering.add(queue)
        if not self._scheduled and self._round is None:
            self._schedule()
        # Once for each op: mostly there is nothing to look at.
        if self._is_crowded or self._host.counters.unsynced_bytes > self._limits.unsynced_bytes_max:
            self._look()

    def mark_stores(self) -> None:
        """A message store may have something for the next round."""
        self._stores_dirty = True
        if not self._scheduled and self._round is None:
            self._schedule()

    def tick(self) -> None:
        """Has journals that lag written, with the next round or with one that does nothing else."""
        self._lagging.tick()
        if not self._scheduled and self._round is None:
            self._schedule()

    def resume(self) -> None:
        """A step of the flush has ended: a round that has waited for it may begin."""
        if not self._scheduled and self._round is None:
            self._schedule()
        self._look()

    def waits_above(self, size_bytes: int) -> bool:
        """Whether more than `size_bytes` are unsynced, and a round is on its way or will begin."""
        if self._host.counters.unsynced_bytes <= size_bytes:
            return False
        return self._scheduled or self._round is not None or self._host.is_behind

    def _look(self) -> None:
        crowded = self.waits_above(self._limits.unsynced_bytes_max)
        if crowded != self._is_crowded:
            self._is_crowded = crowded
            self._host.crowded(crowded)

    async def sync(self) -> None:
        """Waits until everything appended so far is durable. Raises `StoreFailedError`."""
        if not (self._gathering or self._stores_dirty or self._round is not None):
            return
        number = self._begun + self._stores_dirty
        waiter = _Waiter(self._gathering.mark(), number, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        await waiter.done

    def forget(self, queue: QueueStore) -> None:
        """A queue is being deleted: nothing more of it is given to threads."""
        self._gathering.forget(queue)
        self._lagging.take_of(queue)
        current = self._round
        if current is not None and not current.parts:
            for job in current.jobs:
                if job.queue is queue:
                    # The folder is about to be renamed. A write by the old path would make it
                    # again, and the next start would find the deleted queue.
                    job.pieces.clear()
                    job.unmade = None
        self.release_waiters()

    def end(self, queue: QueueStore) -> None:
        """The queue was given up: what is durable of it is written into its journal, which the next
        start reads. The round on its way, if any, has none of these bytes."""
        queue.close()
        if self._host.failure is None:
            try:
                lagging.write(self._disk, self._lagging.take_of(queue))
            except OSError as error:
                self._host.fail(error)

    def tasks_of(self, queue: QueueStore) -> list[Task]:
        """The tasks of threads that write the queue's journal, as far as they aren't done."""
        current = self._round
        if current is None or not current.writes(queue):
            return []
        tasks = [*([current.first] if current.first else []), *current.parts]
        return [task for task in tasks if not task.is_done]

    def drain(self, queues: Iterable[QueueStore]) -> None:
        """Waits for the threads, commits the rest in this one, and ends the journals of `queues`.
        Raises `OSError`."""
        self._loop = None
        current, self._round = self._round, None
        if current is not None:
            current.wait()
            self._host.threads_done()
            error = current.error
            # Its bodies are written and its journals not begun: the loop would have done that next.
            if error is None and not current.parts:
                try:
                    lagging.write(self._disk, self._lagging.take_all())
                    _write_journals(self._disk, current.jobs)
                except OSError as caught:
                    error = caught
            self._ended(current, error)
        if self._host.failure is not None:
            return
        lagging.write(self._disk, self._lagging.take_all())
        self._commit_here(self._gathering.take_all())
        self._gathering.ended()
        self._done = self._begun + 1
        self._commit_here([queue.take() for queue in queues if queue.end()])
        self._log.drain()

    def _commit_here(self, jobs: list[CommitJob]) -> None:
        """A whole round in this thread. Raises `OSError`."""
        stored = self._take_stored(None)
        _write_messages(self._disk, [job for _, job in stored])
        _write_journals(self._disk, jobs)
        for store, job in stored:
            store.committed(job)
        for commit in jobs:
            commit.queue.committed(commit)

    def close(self, *, until: float) -> bool:
        """Waits `until` then. Returns whether all threads have ended."""
        ended = [worker.close(until=until) for worker in self._workers]
        self.release_waiters()
        return self._log.close(until=until) and all(ended)

    # -- one round

    def _schedule(self) -> None:
        # At the end of this turn of the loop: all its appends share the round.
        if self._loop is not None and self._is_due:
            self._scheduled = True
            self._loop.call_soon(self._begin)

    @property
    def _is_due(self) -> bool:
        """Whether there is anything for a round."""
        return bool(self._gathering) or self._stores_dirty or self._lagging.is_late

    def _take_stored(self, bytes_max: int | None) -> list[tuple[MessageStore, MessagesJob]]:
        taken = [(store, store.take(bytes_max)) for store in self._stores]
        self._stores_dirty = any(store.has_pending for store in self._stores)
        return [(store, job) for store, job in taken if job is not None]

    def _begin(self) -> None:
        self._scheduled = False
        self._begin_round()
        self._look()

    def _begin_round(self) -> None:
        if self._round is not None or self._host.failure is not None or self._loop is None:
            return
        if not self._is_due or self._host.is_behind:
            return
        # Queues first: taking a queue elides publishes, and bodies that it takes back from a
        # message store by that are then not written.
        bytes_max = self._limits.round_bytes_max
        jobs = self._gathering.take(self._records.reach(bytes_max))
        stored = self._take_stored(bytes_max)
        self._begun += 1
        current = Round(self._begun, monotonic(), stored, jobs)
        self._host.counters.under_way_bytes = sum(job.size_bytes for job in jobs)
        # Bodies for the message store would need two syncs, one after the other.
        if not stored and len(jobs) <= IN_PLACE_QUEUES_MAX:
            size = self._plan(current)
            if not current.lags and self._sync_duration.may_block(size, current.syncs):
                self._in_place(current)
                return
        self._round = current
        if stored:
            current.first = Task(partial(_write_messages, self._disk, [job for _, job in stored]))
            self._worker(0).submit(
                current.first, self._loop, partial(self._bodies_written, current)
            )
        else:
            self._write_journals(current)

    def _plan(self, current: Round) -> int:
        """Splits the round between the commit log and the direct way, and says what it writes of
        journals that lag. Returns its bytes, without those that it writes beside all else."""
        logged: list[CommitJob] = []
        direct: list[CommitJob] = []
        size = log_size = 0
        for job in current.jobs:
            pieces = job.pieces
            job_size = sum([piece.size_bytes for piece in pieces])
            size += job_size
            # A journal that is there, and goes on.
            if len(pieces) == 1 and pieces[0].offset and job.unmade is None and job_size:
                logged.append(job)
                log_size += job_size
            else:
                direct.append(job)
        current.log = self._log.plan([job.pieces[0] for job in logged], log_size)
        current.direct = current.jobs if current.log is None else direct
        if current.log is not None:
            current.logged = logged
        # Before a journal is written directly it gets what it lacks.
        current.lags_of = self._lagging.take_before(current.direct)
        if self._log.needs_journals or self._lagging.is_due:
            current.lags = self._lagging.take_all()
        return size + sum([lag.size_bytes for lag in current.lags_of.values()])

    def _in_place(self, current: Round) -> None:
        """A round on the event loop's own thread."""
        error: Exception | None = None
        try:
            for work in self._works(current):
                work()
        except Exception as caught:
            error = caught
        self._ended(current, error)

    def _bodies_written(self, current: Round) -> None:
        # A disk that hangs may give the thread back only after the store has stopped. The round
        # then waits for `drain`, which writes its journals, or for nobody if the store has failed.
        if self._round is not current or self._loop is None:
            return
        if current.jobs and current.error is None:
            self._write_journals(current)
        else:
            self._finish(current)

    def _write_journals(self, current: Round) -> None:
        assert self._loop is not None
        if current.direct is None:
            self._plan(current)
        current.parts = [Task(work) for work in self._works(current)]
        current.parts_left = len(current.parts)
        for index, task in enumerate(current.parts):
            self._worker(index).submit(task, self._loop, partial(self._part_done, current))

    def _works(self, current: Round) -> list[Callable[[], None]]:
        """The work of a planned round, for one thread each."""
        assert current.direct is not None
        works: list[Callable[[], None]] = []
        if current.log is not None:
            works.append(partial(commit_log.write, self._disk, current.log))
        if current.lags:
            works.append(partial(lagging.write, self._disk, current.lags))
        direct, lags_of = current.direct, current.lags_of
        count = min(len(direct), self._limits.sync_threads)
        return works + [
            partial(_write_journals, self._disk, direct[index::count], lags_of)
            for index in range(count)
        ]

    def _part_done(self, current: Round) -> None:
        if self._round is not current:
            return
        current.parts_left -= 1
        if current.parts_left == 0:
            self._finish(current)

    def _finish(self, current: Round) -> None:
        self._round = None
        self._host.threads_done()
        error = current.error
        # A task has its round, by what follows it: no cycle, which would keep deleted queues.
        current.first = None
        current.parts.clear()
        self._ended(current, error)

    def _ended(self, current: Round, error: Exception | None) -> None:
        self._host.counters.under_way_bytes = 0
        if error is not None:
            # Nothing of this round is reported, and no other one begins. After a failed fsync the
            # kernel may drop the dirty pages, so that a second fsync succeeds without them.
            self._host.fail(error)
            return
        self._done += 1
        self._gathering.ended()
        if not current.lags:
            self._sync_duration.took(monotonic() - current.began)
        self._host.counters.files_synced += current.syncs
        if current.log is not None:
            self._log.written(current.log)
            self._host.counters.commit_log_bytes += current.log.end - current.log.offset
        for store, stored in current.stored:
            self._host.counters.message_store_bytes += stored.size_bytes
            store.committed(stored)
        lagging.written(current.lags_of.values())
        lagging.written(current.lags)
        for job in current.logged:
            if not job.queue.closed:
                self._lagging.add(job.queue, job.pieces[0], job.entries)
            job.entries = []
        self._host.round_ended(current.jobs)
        # The next round is on its way before the callers of `sync` hear of this one.
        self._begin()
        self.release_waiters()

    def _worker(self, index: int) -> Worker:
        while len(self._workers) <= index:
            self._workers.append(Worker(f"ringmq-sync-{len(self._workers)}"))
        return self._workers[index]

    def release_waiters(self) -> None:
        """Wakes the callers of `sync` whose round is done, and all of them after a failure."""
        waiting: list[_Waiter] = []
        for waiter in self._waiters:
            if waiter.done.done():
                continue
            if waiter.number <= self._done and self._gathering.is_durable(waiter.mark):
                waiter.done.set_result(None)
            elif self._host.failure is not None:
                waiter.done.set_exception(self._host.failure)
            else:
                waiting.append(waiter)
        self._waiters = waiting


def _write_messages(disk: Disk, jobs: list[MessagesJob]) -> None:
    """Runs in a sync thread."""
    for job in jobs:
        messages.write(disk, job)


def _write_journals(
    disk: Disk, jobs: list[CommitJob], lags_of: Mapping[CommitJob, Lag] = MappingProxyType({})
) -> None:
    """Runs in a sync thread."""
    # A queue gets its folder with its first op, and not when it is declared: a node that is told of
    # ten thousand queues would have to sync fifty thousand files for nothing.
    make_folders(disk, [job.unmade for job in jobs if job.unmade is not None])
    for job in jobs:
        lag = lags_of.get(job)
        if lag is not None:
            lagging.write(disk, [lag])
        write_pieces(disk, job.queue.directory, job.pieces)
