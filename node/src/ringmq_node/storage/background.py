"""What threads do for a store beside the group commit.

Sealed journals are emptied into segments by one thread, a bounded piece at a time, each
piece planned on the loop when the one before is done, so that what is acked meanwhile
isn't written. Another compacts the message stores, at a limited rate. A third reads what
will be fetched soon.

Thread rule: threads touch only the job that they are given.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
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
from ringmq_node.storage.queue import bodies as bodies_module
from ringmq_node.storage.queue.bodies import Bodies
from ringmq_node.storage.queue.condemned import Condemned
from ringmq_node.storage.queue.entries import IndexEntry
from ringmq_node.storage.queue.flush import FlushJob, flush
from ringmq_node.storage.queue.queue_store import QueueStore
from ringmq_node.storage.queue.read_ahead import AheadJob, read_ahead

logger = logging.getLogger(__name__)


class Host(bodies_module.Host, Protocol):
    """Who is told."""

    failure: StoreFailedError | None

    def fail(self, error: Exception) -> StoreFailedError:
        """A write or a sync has failed."""

    def has(self, queue: QueueStore) -> bool:
        """Whether the queue is still there."""

    def queues(self) -> Sequence[QueueStore]:
        """Those that are open."""

    def threads_done(self) -> None:
        """Threads have ended work on queues, of which nothing has been told yet."""

    def flush_stepped(self) -> None:
        """A step of the flush has ended, and the next one, if there is any, has begun."""


class Background:
    """Of one store. On the event loop's thread."""

    def __init__(self, host: Host, disk: Disk, stores: Sequence[MessageStore]) -> None:
        self._host = host
        self._disk = disk
        self._stores = stores
        self._loop: asyncio.AbstractEventLoop | None = None
        self._workers: dict[str, Worker] = {}
        self._flushable: dict[QueueStore, None] = {}
        self._flushing: tuple[Task, FlushJob] | None = None
        self._readable: dict[Bodies, None] = {}
        self._reading: tuple[Task, AheadJob] | None = None
        self._compacting: tuple[Task, MessageStore, CompactionJob] | None = None
        self._timer: asyncio.TimerHandle | None = None
        # The compaction that is under way has met damage.
        self._met_damage = False
        # Looking for the bodies that are lost by it.
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
        """Whether a step of it is in a thread."""
        return self._flushing is not None

    def _begin_flush(self) -> None:
        while self._flushable and self._flushing is None and self._runs:
            queue = next(iter(self._flushable))
            del self._flushable[queue]
            job = queue.plan_flush() if self._host.has(queue) else None
            if job is None:
                continue
            # Behind the others, for its next piece.
            self._flushable[queue] = None
            task = Task(partial(flush, self._disk, job, queue.directory))
            self._flushing = (task, job)
            self._submit("flush", task, partial(self._flush_done, task))

    def _flush_done(self, task: Task) -> None:
        if self._flushing is None or self._flushing[0] is not task:
            return
        self._host.threads_done()
        self._finish_flush()
        self._begin_flush()
        self._host.flush_stepped()
        # What it has emptied may be worth it now.
        self._begin_compaction()

    def _finish_flush(self) -> None:
        assert self._flushing is not None
        (task, job), self._flushing = self._flushing, None
        if task.error is not None:
            self._host.fail(task.error)
        elif self._host.has(job.queue):
            job.queue.flushed(job)
        elif job.condemned is not None:
            job.queue.bodies.give_back(job.condemned, job.given_back)

    # -- reading ahead

    def mark_reading(self, bodies: Bodies) -> None:
        self._readable[bodies] = None
        if self._reading is None and self._loop is not None:
            self._loop.call_soon(self._begin_reading)

    def _begin_reading(self) -> None:
        while self._readable and self._reading is None and self._runs:
            bodies = next(iter(self._readable))
            del self._readable[bodies]
            job = bodies.ahead.plan()
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
            job.bodies.ahead.done(job)
        else:
            # What couldn't be read ahead is read when it is wanted, and says then what is wrong.
            job.bodies.ahead.failed(job)
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
        """References have gone since the last look."""
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
            for report in job.corruptions:
                logger.error("compaction: %s", report)
            self._met_damage |= bool(job.corruptions)
            if self._met_damage and not store.is_compacting:
                self._met_damage = False
                self._looking = look_for_lost(self._host)
                self._look_on(self._looking)

    def _look_on(self, looking: Iterator[None]) -> None:
        """One step in each turn of the loop."""
        if self._loop is None or looking is not self._looking:
            return
        if next(looking, self) is self:
            self._looking = None
        else:
            self._loop.call_soon(self._look_on, looking)

    # -- deleted queues

    def remove_folder(self, folder: Path, condemned: Sequence[Condemned]) -> None:
        """Large files take a while to remove. What a crash leaves is removed at the next start."""
        removal = _Removal(self._disk, folder, condemned)
        if self._loop is None:
            removal.run()
            self._give_back(removal.entries)
            return
        task = Task(removal.run)
        # Not in the thread of the flushes: a large folder takes long, and these must go on.
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
        self._readable.pop(queue.bodies, None)

    def tasks_of(self, queue: QueueStore) -> list[Task]:
        """What threads do in the queue's folder just now."""
        tasks: list[Task] = []
        if self._flushing is not None and self._flushing[1].queue is queue:
            tasks.append(self._flushing[0])
        if self._reading is not None and self._reading[1].bodies is queue.bodies:
            tasks.append(self._reading[0])
        return [task for task in tasks if not task.is_done]

    def drain(self) -> None:
        """Waits for the threads, and notes what they did."""
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

    def close(self, *, wait: bool = True) -> None:
        for worker in self._workers.values():
            worker.close(wait=wait)


class _Removal:
    """Removes a folder, after reading the references that are in it."""

    def __init__(self, disk: Disk, folder: Path, condemned: Sequence[Condemned]) -> None:
        self._disk = disk
        self._folder = folder
        self._condemned = condemned
        self.entries: list[IndexEntry] = []

    def run(self) -> None:
        for dead in self._condemned:
            dead.segment.path = self._folder / dead.segment.path.name
            self.entries += dead.read(self._disk)
        folders.remove_folder(self._disk, self._folder)
