"""The work that threads do for a store beside the group commit.

One thread empties sealed journals into segments, a bounded piece at a time. Each piece is planned
on the loop when the one before is done, so that messages acknowledged meanwhile aren't written. A
second thread compacts the message stores, at a limited rate. A third reads blocks that will be
fetched soon, and a fourth removes the folders of deleted queues.

Thread rule: threads touch only the job that they are given. Everything else is called on the event
loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Protocol

from ringmq_node.storage import messages
from ringmq_node.storage.disk import data_directory as folders
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.disk.threads import Task, Worker
from ringmq_node.storage.errors import StoreFailedError
from ringmq_node.storage.lost import look_for_lost
from ringmq_node.storage.messages import CompactionJob, MessageStore
from ringmq_node.storage.queue.condemned import Condemned
from ringmq_node.storage.queue.entries import IndexEntry
from ringmq_node.storage.queue.flush import FlushJob, flush
from ringmq_node.storage.queue.parts import SharedParts
from ringmq_node.storage.queue.queue_store import QueueStore
from ringmq_node.storage.queue.read_ahead import AheadJob, ReadAhead, read_ahead

logger = logging.getLogger(__name__)

# Looks after which journals that could not be read are flushed again. A bad sector may take the
# disk seconds each time, and a lack of file descriptors is over by then.
UNREAD_TICKS = 60
# Entries of a deleted queue whose memory is freed in one step of a thread.
FORGOTTEN_AT_ONCE = 1000


class BackgroundHost(SharedParts, Protocol):
    """The store, as its background work sees it."""

    failure: StoreFailedError | None

    def fail(self, error: Exception) -> StoreFailedError:
        """A write or a sync has failed. Returns the failure that the store raises from now on."""

    def has(self, queue: QueueStore) -> bool:
        """Whether the queue is open, and not deleted."""

    def queues(self) -> Sequence[QueueStore]:
        """The queues that are open."""

    def threads_done(self) -> None:
        """Threads have finished work on queues. Called before the outcome is reported."""

    def flush_stepped(self) -> None:
        """A step of the flush has ended. If there is a next one, it has begun."""


class Background:
    """Of one store. On the event loop's thread."""

    def __init__(self, host: BackgroundHost, disk: Disk, stores: Sequence[MessageStore]) -> None:
        self._host = host
        self._disk = disk
        self._stores = stores
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers: dict[str, Worker] = {}
        self._flushable: dict[QueueStore, None] = {}
        # Queues of which journals could not be read, and the looks until they are tried again.
        self._again: dict[QueueStore, int] = {}
        self._flushing: tuple[Task, QueueStore, FlushJob] | None = None
        self._readable: dict[ReadAhead, None] = {}
        self._reading: tuple[Task, AheadJob] | None = None
        self._compacting: tuple[Task, MessageStore, CompactionJob] | None = None
        self._timer: asyncio.TimerHandle | None = None
        # Whether the compaction that is under way has met damage.
        self._met_damage = False
        # The search for the messages whose bodies are lost by such damage.
        self._looking: Iterator[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._begin_flush()
        self._begin_compaction()

    def stop(self) -> None:
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _runs(self) -> bool:
        return self._loop is not None and self._host.failure is None

    def _submit(self, name: str, task: Task, done: partial[None]) -> None:
        assert self._loop is not None
        if name not in self._workers:
            self._workers[name] = Worker(f"ringmq-{name}")
        self._workers[name].submit(task, self._loop, done)

    # -- flushing

    def mark_flushable(self, queue: QueueStore) -> None:
        self._flushable[queue] = None
        if self._flushing is None and self._loop is not None:
            self._loop.call_soon(self._begin_flush)

    @property
    def is_flushing(self) -> bool:
        """Whether a step of the flush is in a thread."""
        return self._flushing is not None

    def _begin_flush(self) -> None:
        while self._flushable and self._flushing is None and self._runs:
            queue = next(iter(self._flushable))
            del self._flushable[queue]
            job = queue.plan_flush() if self._host.has(queue) else None
            if job is None:
                continue
            # Its next piece comes after one piece of each other queue.
            self._flushable[queue] = None
            task = Task(partial(flush, self._disk, job, queue.directory))
            self._flushing = (task, queue, job)
            self._submit("flush", task, partial(self._flush_done, task))

    def _flush_done(self, task: Task) -> None:
        if self._flushing is None or self._flushing[0] is not task:
            return
        self._host.threads_done()
        self._finish_flush()
        self._begin_flush()
        self._host.flush_stepped()
        # The flush may have released the last references to a file of the message store.
        self._begin_compaction()

    def _finish_flush(self) -> None:
        assert self._flushing is not None
        (task, queue, job), self._flushing = self._flushing, None
        if task.error is not None:
            self._host.fail(task.error)
        elif self._host.has(queue):
            queue.flushed(job)
            if queue.flusher.has_left:
                self._again.setdefault(queue, UNREAD_TICKS)
        elif job.condemned is not None:
            # The queue was deleted meanwhile, but the message store still counts its references.
            queue.bodies.give_back(job.condemned, job.given_back)

    def tick(self) -> None:
        """One look at what waits for its time."""
        for queue in [*self._again]:
            self._again[queue] -= 1
            if self._again[queue] > 0:
                continue
            del self._again[queue]
            if queue.flusher.has_left:
                queue.flusher.flush_again()
                self.mark_flushable(queue)
        self.look_for_garbage()

    # -- reading ahead

    def mark_reading(self, ahead: ReadAhead) -> None:
        self._readable[ahead] = None
        if self._reading is None and self._loop is not None:
            self._loop.call_soon(self._begin_reading)

    def _begin_reading(self) -> None:
        while self._readable and self._reading is None and self._runs:
            ahead = next(iter(self._readable))
            del self._readable[ahead]
            job = ahead.plan()
            if job is None:
                continue
            task = Task(partial(read_ahead, self._host, job))
            self._reading = (task, job)
            self._submit("read", task, partial(self._read_done, task))

    def _read_done(self, task: Task) -> None:
        if self._reading is None or self._reading[0] is not task:
            return
        self._host.threads_done()
        (_, job), self._reading = self._reading, None
        if task.error is None:
            job.ahead.done(job)
        else:
            # The blocks are read again when they are wanted, and whoever wants them gets the error.
            job.ahead.failed(job)
        self._begin_reading()

    # -- compaction

    def _begin_compaction(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._compacting is not None or not self._runs:
            return
        now = monotonic()
        for store in self._stores:
            job = store.plan(now)
            if job is not None:
                task = Task(partial(messages.compact, self._disk, job))
                self._compacting = (task, store, job)
                self._submit("compact", task, partial(self._compaction_done, task))
                return
        assert self._loop is not None
        times = [store.next_plan_at for store in self._stores if store.next_plan_at is not None]
        if times:
            delay = max(0.0, min(times) - now)
            self._timer = self._loop.call_later(delay, self._begin_compaction)

    def look_for_garbage(self) -> None:
        """Begins a compaction, if references have gone that make one worth its work."""
        if self._compacting is None and self._timer is None:
            self._begin_compaction()

    def _compaction_done(self, task: Task) -> None:
        if self._compacting is None or self._compacting[0] is not task:
            return
        self._finish_compaction()
        self._begin_compaction()

    def _finish_compaction(self) -> None:
        assert self._compacting is not None
        (task, store, job), self._compacting = self._compacting, None
        if task.error is not None:
            self._host.fail(task.error)
        else:
            store.done(job)
            if job.unread:
                logger.error("compaction: %s: not tried again before the next start", job.unread)
            for report in job.corruptions:
                logger.error("compaction: %s", report)
            self._met_damage |= bool(job.corruptions)
            if self._met_damage and not store.is_compacting:
                self._met_damage = False
                self._looking = look_for_lost(self._host)
                self._look_on(self._looking)

    def _look_on(self, looking: Iterator[None]) -> None:
        """One step of the search in each turn of the loop."""
        if self._loop is None or looking is not self._looking:
            return
        if next(looking, self) is self:
            self._looking = None
        else:
            self._loop.call_soon(self._look_on, looking)

    # -- deleted queues

    def remove_folder(
        self, folder: Path, condemned: Sequence[Condemned], forgotten: list[IndexEntry]
    ) -> None:
        """Removes the folder of a deleted queue, in a thread while the loop runs: large files take
        long, and so does freeing the memory of very many entries. The next start removes a folder
        that a crash has left."""
        removal = _Removal(self._disk, folder, condemned, forgotten)
        if self._loop is None:
            removal.run()
            self._give_back(removal.entries)
            return
        task = Task(removal.run)
        # In a thread of its own: rounds may wait for a flush, so none may wait for a large folder.
        self._submit("remove", task, partial(self._removed, task, removal))

    def _removed(self, task: Task, removal: _Removal) -> None:
        if task.error is not None:
            self._host.fail(task.error)
        self._give_back(removal.entries)
        self.look_for_garbage()

    def _give_back(self, entries: list[IndexEntry]) -> None:
        for entry in entries:
            if entry.location is not None:
                self._host.messages(transient=entry.transient).release(entry.location)

    # -- the end

    def forget(self, queue: QueueStore) -> None:
        """A queue is being deleted: nothing more is begun on it."""
        self._flushable.pop(queue, None)
        self._again.pop(queue, None)
        self._readable.pop(queue.ahead, None)

    def tasks_of(self, queue: QueueStore) -> list[Task]:
        """The tasks of threads that work in the queue's folder, as far as they aren't done."""
        tasks: list[Task] = []
        if self._flushing is not None and self._flushing[1] is queue:
            tasks.append(self._flushing[0])
        if self._reading is not None and self._reading[1].ahead is queue.ahead:
            tasks.append(self._reading[0])
        return [task for task in tasks if not task.is_done]

    def drain(self) -> None:
        """Waits for the threads, and takes over their outcome."""
        self.stop()
        if self._flushing is not None:
            self._flushing[0].wait()
            self._host.threads_done()
            self._finish_flush()
        if self._compacting is not None:
            self._compacting[0].wait()
            self._finish_compaction()
        if self._reading is not None:
            self._reading[0].wait()
            self._host.threads_done()
            self._reading = None

    def close(self, *, until: float) -> bool:
        """Waits `until` then. Returns whether all threads have ended."""
        ended = [worker.close(until=until) for worker in self._workers.values()]
        return all(ended)


class _Removal:
    """Removes a folder, after reading the references in its dead segments."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        condemned: Sequence[Condemned],
        forgotten: list[IndexEntry],
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._condemned = condemned
        self._forgotten = forgotten
        self.entries: list[IndexEntry] = []

    def run(self) -> None:
        # The loop has its turns in between.
        while self._forgotten:
            del self._forgotten[-FORGOTTEN_AT_ONCE:]
        for dead in self._condemned:
            dead.segment.path = self._folder / dead.segment.path.name
            # Else its bodies stay in the message store until the next start counts anew.
            with suppress(OSError):
                self.entries += dead.read(self._disk)
        folders.remove_folder(self._disk, self._folder)
