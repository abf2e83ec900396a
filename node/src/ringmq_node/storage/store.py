"""The store of one node: one data directory, its queues, and the group commit.

A sync round takes what all dirty queues have gathered, writes and syncs their journals in
threads (one small write on a fast disk in place: see `pace`), and reports on the event
loop what has become durable. While it is on its way the next one gathers; it begins as
soon as this one is done. Nothing waits on a timer: on an idle node an append is durable
after one sync, on a busy one many share it.

Sealed journals are emptied into segments by one more thread, a bounded piece at a time,
each piece planned on the loop when the one before is done, so that what is acked
meanwhile isn't written.

A write or sync that fails closes the store for writes, at once and for good: after a
failed fsync nobody knows what is on the disk, and trying again would say "durable" of
what isn't. `on_failed` is called once, `append` and `sync` raise, reads go on.

Thread rule: all but `_commit` and `_flush`, which touch only what they are given, is
called on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic

from ringmq_node.storage import directory as folders
from ringmq_node.storage.disk import Disk, FileDisk
from ringmq_node.storage.errors import (
    StoreClosedError,
    StoreError,
    StoreFailedError,
    failure_of,
)
from ringmq_node.storage.journal import write_pieces
from ringmq_node.storage.limits import Counters, StoreLimits, StoreStatistics
from ringmq_node.storage.pace import Pace
from ringmq_node.storage.queue_store import CommitJob, FlushJob, QueueStore
from ringmq_node.storage.recovery import recover
from ringmq_node.storage.segments import Placed, write_items
from ringmq_node.storage.threads import Task, Worker

logger = logging.getLogger(__name__)

Round = list[tuple[Task[None], list[CommitJob]]]


def _nobody(queue: QueueStore) -> None:
    """Until the node sets `on_durable`."""


def _log_failure(error: StoreError) -> None:
    logger.error("%s", error)


class Store:
    """Made by `Store.open`. One per node."""

    def __init__(
        self, directory: Path, disk: Disk, limits: StoreLimits, owned: tuple[FileDisk, int] | None
    ) -> None:
        self.directory = directory
        self.disk = disk
        self.limits = limits
        self.counters = Counters()
        # Called on the loop after each round, for each queue of which more is durable.
        self.on_durable: Callable[[QueueStore], None] = _nobody
        # Called on the loop, once.
        self.on_failed: Callable[[StoreError], None] = _log_failure
        self.failure: StoreFailedError | None = None
        self._owned = owned
        self._folders, self.corruptions = folders.find_queues(disk, directory)
        self._queues: dict[str, QueueStore] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._workers: list[Worker] = []
        self._flusher: Worker | None = None
        # Dicts, not sets: what is done first doesn't depend on addresses.
        self._dirty: dict[QueueStore, None] = {}
        self._round: Round = []
        self._round_left = 0
        self._round_scheduled = False
        self._pace = Pace(limits.sync_in_place_bytes_max)
        self._rounds_begun = 0
        self._round_began = 0.0
        self._rounds_done = 0
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._flushable: dict[QueueStore, None] = {}
        self._flushing: tuple[Task[list[Placed]], FlushJob] | None = None
        self._gone = 0
        self._closed = False

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        cluster_id: str,
        node: str,
        disk: Disk | None = None,
        limits: StoreLimits | None = None,
    ) -> Store:
        """Opens a data directory, or makes it.

        Raises `DirectoryInUseError`, `ForeignDirectoryError`, `UnsupportedFormatError`,
        `CorruptError` if what says whose it is can't be read, and `OSError`.
        """
        limits = limits or StoreLimits()
        if disk is not None:
            folders.claim(disk, directory, cluster_id, node)
            return cls(directory, disk, limits, None)
        lock = folders.lock_directory(directory)
        files = FileDisk()
        try:
            folders.claim(files, directory, cluster_id, node)
            return cls(directory, files, limits, (files, lock))
        except BaseException:
            files.close()
            os.close(lock)
            raise

    # -- queues

    def queue_names(self) -> list[str]:
        """All queues that are in the directory, opened or not."""
        return sorted(self._folders)

    def open_queue(self, queue: str) -> QueueStore:
        """The queue, new or as it was; the same object if it is open already.

        Reads the queue's files, and syncs a few times: blocks for about a millisecond
        for a new queue, for as long as reading takes for an old one. Raises `StoreFailedError`,
        `UnsupportedFormatError`, or `ValueError` for a name that isn't legal.
        """
        opened = self._queues.get(queue)
        if opened is not None:
            return opened
        folders.folder_name(queue)
        self.check_writable()
        try:
            folder = self._folders.get(queue)
            if folder is None:
                folder = folders.create_folder(self.disk, self.directory, queue)
            opened = QueueStore(queue, folder, self, recover(self.disk, folder))
            job = opened.take()
            write_pieces(self.disk, folder, job.pieces)
            opened.committed(job)
        except OSError as error:
            failure = self._fail(error)
            raise failure from error
        self._folders[queue] = folder
        self._queues[queue] = opened
        if opened.sealed_count or opened.segment_count:
            self.mark_flushable(opened)
        for report in opened.corruptions:
            logger.error("queue %r: %s", queue, report)
        return opened

    def delete_queue(self, queue: str) -> None:
        """Removes a queue and all its messages; when this returns it doesn't come back.

        Raises `KeyError` for a queue that isn't there, and `StoreFailedError`.

        Blocks for a sync, and for what is being written to the queue just now.
        """
        self.check_writable()
        folder = self._folders[queue]
        opened = self._queues.pop(queue, None)
        if opened is not None:
            self._dirty.pop(opened, None)
            self._flushable.pop(opened, None)
            self._wait_for(opened)
            opened.delete()
        del self._folders[queue]
        self._gone += 1
        gone = folder.with_name(f"{folder.name}.{self._gone}{folders.GONE_SUFFIX}")
        try:
            self.disk.rename(folder, gone)
            self.disk.sync(gone.parent)
        except OSError as error:
            raise self._fail(error) from error
        self._remove_later(gone)

    # -- the group commit

    async def run(self) -> None:
        """Commits and flushes until `close`, or until cancelled. A failure doesn't end it."""
        assert self._loop is None, "the store is running already"
        if self._closed:
            return
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        try:
            self._schedule_round()
            self._begin_flush()
            await self._stopped
        finally:
            self._loop = self._stopped = None

    async def sync(self) -> None:
        """Waits until all that has been appended so far is durable. Wants `run` to run.

        Raises `StoreFailedError` if it can't become so.
        """
        self.check_writable()
        if not self._dirty and not self._round:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((self._rounds_begun + bool(self._dirty), waiter))
        await waiter

    def close(self) -> None:
        """Makes everything durable and closes the files. Blocks; may be called twice.

        `on_durable` is not called any more: `sync` first, if someone wants to be told.
        After a failure it only closes the files.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._drain()
        finally:
            for worker in self._workers:
                worker.close()
            if self._flusher is not None:
                self._flusher.close()
            if self.failure is None:
                self.failure = StoreClosedError("the store was closed")
            self._release_waiters()
            if self._stopped is not None and not self._stopped.done():
                self._stopped.set_result(None)
            if self._owned is not None:
                files, lock = self._owned
                self._owned = None
                files.close()
                os.close(lock)

    def statistics(self) -> StoreStatistics:
        counters = self.counters
        queues = self._queues.values()
        return StoreStatistics(
            queues_now=len(self._folders),
            cache_bytes_now=counters.cache_bytes,
            rounds=counters.rounds,
            files_synced=counters.files_synced,
            journal_bytes_written=counters.journal_bytes,
            journals_sealed=counters.sealed,
            journals_sealed_now=sum(queue.sealed_count for queue in queues),
            segments_now=sum(queue.segment_count for queue in queues),
            segment_bytes_written=counters.segment_bytes,
            segments_deleted=counters.segments_deleted,
            blocks_read=counters.blocks_read,
            failed_now=self.failure is not None and not isinstance(self.failure, StoreClosedError),
        )

    # -- what the queues ask for (`queue_store.Host`)

    def check_writable(self) -> None:
        if self.failure is not None:
            raise self.failure

    def mark_dirty(self, queue: QueueStore) -> None:
        self._dirty[queue] = None
        if not self._round_scheduled and not self._round:
            self._schedule_round()

    def mark_flushable(self, queue: QueueStore) -> None:
        if queue.queue in self._queues:
            self._flushable[queue] = None
            if self._flushing is None and self._loop is not None:
                self._loop.call_soon(self._begin_flush)

    # -- rounds

    def _schedule_round(self) -> None:
        # At the end of this turn of the loop: all that it appends shares the round.
        if self._loop is not None and self._dirty:
            self._round_scheduled = True
            self._loop.call_soon(self._begin_round)

    def _begin_round(self) -> None:
        self._round_scheduled = False
        if self._round or not self._dirty or self.failure is not None or self._loop is None:
            return
        jobs = [queue.take() for queue in self._dirty]
        self._dirty.clear()
        self._rounds_begun += 1
        self._round_began = monotonic()
        size = sum(len(part) for piece in jobs[0].pieces for part in piece.buffers)
        if self._pace.may_block(size, len(jobs)):
            self._sync_in_place(jobs)
            return
        count = min(len(jobs), self.limits.sync_threads)
        while len(self._workers) < count:
            self._workers.append(Worker(f"ringmq-sync-{len(self._workers)}"))
        self._round_left = count
        self._round = [
            (Task(partial(_commit, self.disk, jobs[index::count])), jobs[index::count])
            for index in range(count)
        ]
        for worker, (task, _) in zip(self._workers, self._round, strict=False):
            worker.submit(task, self._loop, partial(self._part_done, self._rounds_begun))

    def _sync_in_place(self, jobs: list[CommitJob]) -> None:
        """A round without threads: `pace` says when that is right."""
        error: Exception | None = None
        try:
            _commit(self.disk, jobs)
        except Exception as caught:
            error = caught
        self._round_ended(jobs, error)

    def _part_done(self, number: int) -> None:
        if number != self._rounds_begun or not self._round:
            return
        self._round_left -= 1
        if self._round_left == 0:
            self._finish_round()

    def _finish_round(self) -> None:
        """All threads are done with the round."""
        parts, self._round = self._round, []
        error = next((task.error for task, _ in parts if task.error is not None), None)
        self._round_ended([job for _, jobs in parts for job in jobs], error)

    def _round_ended(self, jobs: list[CommitJob], error: Exception | None) -> None:
        if error is not None:
            self._fail(error)
            return
        self._rounds_done += 1
        self.counters.rounds += 1
        self._pace.took(monotonic() - self._round_began)
        risen = [
            job.queue
            for job in jobs
            if job.queue.queue in self._queues and job.queue.committed(job)
        ]
        # The next one is on its way before the news of this one spreads.
        self._begin_round()
        self._release_waiters()
        if self._loop is not None:
            for queue in risen:
                self._loop.call_soon(self._report_durable, queue)

    def _report_durable(self, queue: QueueStore) -> None:
        self.on_durable(queue)

    def _release_waiters(self) -> None:
        waiting: list[tuple[int, asyncio.Future[None]]] = []
        for number, waiter in self._waiters:
            if waiter.done():
                continue
            if number <= self._rounds_done:
                waiter.set_result(None)
            elif self.failure is not None:
                waiter.set_exception(self.failure)
            else:
                waiting.append((number, waiter))
        self._waiters = waiting

    # -- flushing

    def _begin_flush(self) -> None:
        if self._flushing is not None or self.failure is not None or self._loop is None:
            return
        while self._flushable:
            queue = next(iter(self._flushable))
            del self._flushable[queue]
            job = queue.plan_flush()
            if job is None:
                continue
            # Behind the others, for its next piece.
            self._flushable[queue] = None
            task = Task(partial(_flush, self.disk, job))
            self._flushing = (task, job)
            self._flush_worker().submit(task, self._loop, partial(self._flush_done, task))
            return

    def _flush_done(self, task: Task[list[Placed]]) -> None:
        if self._flushing is None or self._flushing[0] is not task:
            return
        self._finish_flush()
        self._begin_flush()

    def _remove_later(self, folder: Path) -> None:
        """Large files take a while to remove. What a crash leaves is removed at the next start."""
        if self._loop is None:
            folders.remove_folder(self.disk, folder)
            return
        task = Task(partial(folders.remove_folder, self.disk, folder))
        self._flush_worker().submit(task, self._loop, partial(self._removed, task))

    def _removed(self, task: Task[None]) -> None:
        if task.error is not None:
            self._fail(task.error)

    def _flush_worker(self) -> Worker:
        if self._flusher is None:
            self._flusher = Worker("ringmq-flush")
        return self._flusher

    def _finish_flush(self) -> None:
        assert self._flushing is not None
        (task, job), self._flushing = self._flushing, None
        if task.error is not None:
            self._fail(task.error)
        elif job.queue.queue in self._queues:
            job.queue.flushed(job, task.result())

    # -- the end

    def _fail(self, error: Exception) -> StoreFailedError:
        """Closes the store for writes. Returns the failure that is raised from now on."""
        if self.failure is None:
            self.failure = failure_of(error)
            self._release_waiters()
            self.on_failed(self.failure)
        return self.failure

    def _wait_for(self, queue: QueueStore) -> None:
        """Blocks until no thread works on this queue."""
        for task, jobs in self._round:
            if any(job.queue is queue for job in jobs):
                task.wait()
        if self._flushing is not None and self._flushing[1].queue is queue:
            self._flushing[0].wait()

    def _drain(self) -> None:
        """Waits for the threads, then commits the rest in this one."""
        for task, _ in self._round:
            task.wait()
        if self._round:
            loop, self._loop = self._loop, None
            self._finish_round()
            self._loop = loop
        if self._flushing is not None:
            self._flushing[0].wait()
            self._finish_flush()
        if self.failure is not None:
            return
        try:
            for queue in [*self._dirty]:
                self._commit_now(queue)
            self._dirty.clear()
            self._rounds_done = self._rounds_begun + 1
            for queue in self._queues.values():
                queue.end()
                self._commit_now(queue)
        except OSError as error:
            raise self._fail(error) from error

    def _commit_now(self, queue: QueueStore) -> None:
        job = queue.take()
        write_pieces(self.disk, queue.directory, job.pieces)
        queue.committed(job)


def _commit(disk: Disk, jobs: list[CommitJob]) -> None:
    """Runs in a sync thread."""
    for job in jobs:
        write_pieces(disk, job.queue.directory, job.pieces)


def _flush(disk: Disk, job: FlushJob) -> list[Placed]:
    """Runs in the flush thread."""
    placed = write_items(disk, job.items)
    for file in job.removals:
        disk.remove(file.path)
    if job.removals:
        disk.sync(job.queue.directory)
    return placed
