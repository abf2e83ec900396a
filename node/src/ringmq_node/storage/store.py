"""The store of one node: one data directory, its queues, and its message stores.

What is appended becomes durable by the group commit (`rounds`); what threads do beside it
(flushing, compaction, reading ahead) is in `background`. Here it is put together.

A write or sync that fails closes the store for writes, at once and for good: after a
failed fsync nobody knows what is on the disk, and trying again would say "durable" of
what isn't. `on_failed` is called once, `append` and `sync` raise, reads go on. So does a call
of the disk that doesn't come back (`watch`): whatever waits for it would wait for ever.

Thread rule: everything is called on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable
from pathlib import Path

from ringmq_node.storage.background import Background
from ringmq_node.storage.deletion import Deletions
from ringmq_node.storage.disk import data_directory as folders
from ringmq_node.storage.disk.disk import Disk, FileDisk
from ringmq_node.storage.disk.threads import Task
from ringmq_node.storage.disk.watch import WatchedDisk
from ringmq_node.storage.errors import (
    DiskHangsError,
    StoreClosedError,
    StoreError,
    StoreFailedError,
    failure_of,
)
from ringmq_node.storage.limits import Counters, StoreLimits
from ringmq_node.storage.messages import MessageStore
from ringmq_node.storage.queue.bodies import Bodies
from ringmq_node.storage.queue.queue_store import CommitJob, QueueStore
from ringmq_node.storage.queue.recovery import recover
from ringmq_node.storage.rounds import GroupCommit
from ringmq_node.storage.statistics import StoreStatistics

logger = logging.getLogger(__name__)

# How often queues are looked at that have nothing to do.
TICK_S = 1.0
# Of the damage that is found in a queue at a start. A file that is gone is one for each record.
REPORTS_LOGGED_MAX = 20


def _nobody(queue: QueueStore) -> None:
    """Until the node sets `on_durable`."""


def _stop_nobody(crowded: bool) -> None:
    """Until the node sets `on_crowded`."""


def _log_failure(error: StoreError) -> None:
    logger.error("%s", error)


class Store:
    """Made by `Store.open`. One per node."""

    def __init__(
        self, directory: Path, disk: Disk, limits: StoreLimits, owned: tuple[FileDisk, int] | None
    ) -> None:
        self.directory = directory
        self._watched = WatchedDisk(disk)
        self.disk: Disk = self._watched
        disk = self.disk
        self.limits = limits
        self.counters = Counters()
        # Called on the loop after each round, for each queue of which more is durable; for a
        # transient one soon after each append.
        self.on_durable: Callable[[QueueStore], None] = _nobody
        # Called on the loop, once.
        self.on_failed: Callable[[StoreError], None] = _log_failure
        # Called on the loop when what isn't durable comes to be above `unsynced_bytes_max`, and
        # when it isn't any more. What it stops for that long must not be what is waited for.
        self.on_crowded: Callable[[bool], None] = _stop_nobody
        self.failure: StoreFailedError | None = None
        self._owned = owned
        self._folders, self.corruptions = folders.find_queues(disk, directory)
        self._queues: dict[str, QueueStore] = {}
        # Until each of these has been opened or deleted, nobody knows what is garbage.
        self._unopened = {folder.name for folder in self._folders.values()}
        for report in self.corruptions:
            # A folder whose queue's name is lost; opened as what it was, it has it again.
            logger.error("%s", report)
            self._unopened.add(Path(report.file).parent.name)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Future[None] | None = None
        stores = [
            MessageStore(
                directory / folders.MESSAGES_NAME / name,
                disk,
                limits,
                persistent=persistent,
            )
            for name, persistent in (("persistent", True), ("transient", False))
        ]
        self._persistent, self._transient = stores
        if self._unopened:
            self._persistent.expect_references()
        self._transient.start_collecting()
        self._commit = GroupCommit(self, disk, limits, stores)
        self._background = Background(self, disk, stores)
        self._deletions = Deletions(disk, self._tasks_of, self._background.remove_folder)
        self._duration_s = math.inf
        self._paging: dict[Bodies, None] = {}
        # Queues that have more to let go of than fits one turn of the loop.
        self._reducing: dict[Bodies, None] = {}
        # Queues that something was appended to, and in which tick that was last.
        self._active: dict[QueueStore, int] = {}
        # Transient queues that have more than `on_durable` was told of.
        self._transient_appended: dict[QueueStore, None] = {}
        self._ticks = 0
        self._closed = False
        self._collect_if_known()

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

    def open_queue(self, queue: str, *, durable: bool = True, label: str = "") -> QueueStore:
        """The queue, new or as it was; the same object if it is open already.

        A new one is synced: blocks for about a millisecond. Of an old one the files' headers are
        read. One that isn't `durable` is always new and empty, whatever there was under its
        name, and nothing is synced. `label`: see `directory`. Raises `StoreFailedError`,
        `UnsupportedFormatError`, or `ValueError` for a name that isn't legal.
        """
        opened = self._queues.get(queue)
        if opened is not None:
            return opened
        folders.folder_name(queue)
        self.check_writable()
        if not durable and queue in self._folders:
            self.delete_queue(queue)
        try:
            self._deletions.wait(queue)
            folder = self._folders.get(queue)
            new = folder is None
            if folder is None:
                create = folders.create_folder if durable else folders.create_transient_folder
                folder = create(self.disk, self.directory, queue)
            found = recover(self.disk, folder, self._persistent.share, self._persistent.lost)
            opened = QueueStore(queue, folder, self, found, durable=durable)
            if new and durable:
                self._commit.commit_new(opened)
            folders.keep_label(self.disk, folder, label)
        except OSError as error:
            failure = self.fail(error)
            raise failure from error
        self._folders[queue] = folder
        self._queues[queue] = opened
        opened.set_duration(self._duration_s)
        self._unopened.discard(folder.name)
        self._collect_if_known()
        if opened.flushable:
            self.mark_flushable(opened)
        for report in opened.corruptions[:REPORTS_LOGGED_MAX]:
            logger.error("queue %r: %s", queue, report)
        return opened

    def delete_queue(self, queue: str) -> None:
        """Removes a queue and all its messages. Blocks for a sync.

        When this returns it doesn't come back; but if a thread is writing to it just now, it is
        only gone for those who ask, and removed when the thread has done: until then a power cut
        may bring it back. Raises `KeyError` for a queue that isn't there, and `StoreFailedError`.
        """
        self.check_writable()
        folder = self._folders.pop(queue)
        self._unopened.discard(folder.name)
        opened = self._queues.pop(queue, None)
        try:
            if opened is None:
                self._deletions.remove(folder, (), durable=True)
            else:
                self._commit.forget(opened)
                self._background.forget(opened)
                self._active.pop(opened, None)
                self._paging.pop(opened.bodies, None)
                self._reducing.pop(opened.bodies, None)
                self._deletions.delete(opened, folder)
        except OSError as error:
            raise self.fail(error) from error
        self._collect_if_known()

    def _tasks_of(self, queue: QueueStore) -> list[Task]:
        return [*self._commit.tasks_of(queue), *self._background.tasks_of(queue)]

    def _collect_if_known(self) -> None:
        if not self._unopened:
            self._persistent.start_collecting()

    # -- running

    async def run(self) -> None:
        """Commits and flushes until `close`, or until cancelled. A failure doesn't end it."""
        assert self._loop is None, "the store is running already"
        if self._closed:
            return
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        if self._transient_appended:
            self._loop.call_soon(self._report_transient)
        timer = self._loop.call_later(TICK_S, self._tick)
        try:
            self._commit.start(self._loop)
            self._background.start(self._loop)
            await self._stopped
        finally:
            timer.cancel()
            self._loop = self._stopped = None
            self._commit.stop()
            self._background.stop()

    async def sync(self) -> None:
        """Waits until all that has been appended so far is durable. Wants `run` to run.

        Raises `StoreFailedError` if it can't become so.
        """
        self.check_writable()
        await self._commit.sync()

    def close(self) -> None:
        """Makes everything durable and closes the files; transient queues are removed.
        Blocks; may be called twice.

        `on_durable` is not called any more: `sync` first, if someone wants to be told.
        After a failure it only closes the files. If the disk hangs, not even that: a thread has
        them, and may write yet; so the directory stays locked until the process has ended.
        """
        if self._closed:
            return
        self._closed = True
        self._transient_appended.clear()
        try:
            if not self._hangs:
                self._drain()
        except DiskHangsError as error:
            self.fail(error)
        finally:
            self._background.close(wait=not self._hangs)
            if self.failure is None:
                self.failure = StoreClosedError("the store was closed")
            self._commit.close(wait=not self._hangs)
            if self._stopped is not None and not self._stopped.done():
                self._stopped.set_result(None)
            if self._owned is not None and not self._hangs:
                files, lock = self._owned
                self._owned = None
                files.close()
                os.close(lock)

    @property
    def _hangs(self) -> bool:
        return isinstance(self.failure, DiskHangsError)

    def _drain(self) -> None:
        """Waits for the threads, then commits the rest in this one."""
        loop, self._loop = self._loop, None
        try:
            self._background.drain()
            self._commit.drain(self._queues.values())
            if self.failure is None:
                for queue in self._queues.values():
                    if not queue.durable:
                        folders.remove_folder(self.disk, queue.directory)
        except OSError as error:
            raise self.fail(error) from error
        finally:
            self._loop = loop

    def statistics(self) -> StoreStatistics:
        counters = self.counters
        queues = self._queues.values()
        return StoreStatistics(
            queues_now=len(self._folders),
            queue_memory_bytes_now=counters.queue_memory_bytes,
            rounds=counters.rounds,
            files_synced=counters.files_synced,
            journal_bytes_written=counters.journal_bytes,
            journals_sealed=counters.sealed,
            journals_sealed_now=sum(queue.sealed_count for queue in queues),
            sealed_bytes_now=counters.sealed_bytes,
            messages_elided=counters.elided_messages,
            body_bytes_elided=counters.elided_bytes,
            segments_now=sum(queue.segment_count for queue in queues),
            segment_bytes_written=counters.segment_bytes,
            segments_deleted=counters.segments_deleted,
            blocks_read=counters.blocks_read,
            failed_now=self.failure is not None and not isinstance(self.failure, StoreClosedError),
            messages=self._persistent.statistics(),
            messages_transient=self._transient.statistics(),
        )

    # -- memory

    def ram_durations(self, now: float) -> dict[str, float]:
        """For how many seconds the messages in memory of each queue last; infinite if idle.

        `now` in seconds, of any clock that doesn't go back.
        """
        return {name: queue.tick(now) for name, queue in self._queues.items()}

    def set_duration(self, duration_s: float) -> None:
        """For how many seconds each queue may have messages in memory."""
        self._duration_s = duration_s
        for queue in self._queues.values():
            queue.set_duration(duration_s)
            if not math.isinf(duration_s):
                queue.seal_for_memory()

    def _tick(self) -> None:
        """What has been idle for a while is put in order; memory above the budget is freed."""
        if self._loop is None or self.failure is not None:
            return
        late = self._watched.look(TICK_S, self.limits.disk_timeout_s)
        if late is not None:
            self.fail(DiskHangsError(f"store closed for writes: {late}"))
            return
        self._loop.call_later(TICK_S, self._tick)
        self._ticks += 1
        idle = [
            queue
            for queue, tick in self._active.items()
            if self._ticks - tick > self.limits.idle_ticks_max
        ]
        for queue in idle:
            del self._active[queue]
            queue.seal()
        over = self.counters.queue_memory_bytes > self.limits.queue_memory_bytes_max
        for queue in self._queues.values():
            if over:
                queue.seal_for_memory()
                queue.bodies.forget_recent()
            if over or queue.bodies.pager.wants_reducing:
                queue.bodies.pager.reduce()
        self._background.look_for_garbage()

    # -- what the queues ask for (`queue_store.Host`)

    def messages(self, *, transient: bool) -> MessageStore:
        """The message store for such messages."""
        return self._transient if transient else self._persistent

    def check_writable(self) -> None:
        if self.failure is not None:
            raise self.failure

    def mark_dirty(self, queue: QueueStore) -> None:
        if not queue.durable:
            # Once for all that is appended in this turn of the loop.
            if not self._transient_appended and self._loop is not None:
                self._loop.call_soon(self._report_transient)
            self._transient_appended[queue] = None
            return
        self._active[queue] = self._ticks
        self._commit.mark_dirty(queue)

    def mark_flushable(self, queue: QueueStore) -> None:
        if self.has(queue):
            self._background.mark_flushable(queue)

    async def wait_room(self) -> None:
        # Once, not until there is room: the ring may take all of that.
        if self._commit.waits_above(self.limits.unsynced_bytes_max // 2):
            await self._commit.sync()

    def mark_paging(self, bodies: Bodies) -> None:
        self._paging[bodies] = None
        self._commit.mark_stores()

    def mark_reading(self, bodies: Bodies) -> None:
        self._background.mark_reading(bodies)

    def mark_reducing(self, bodies: Bodies) -> None:
        if self._loop is None:
            # There are no others.
            while bodies.pager.reduce_some():
                pass
            return
        if not self._reducing:
            self._loop.call_soon(self._reduce)
        self._reducing[bodies] = None

    def _reduce(self) -> None:
        """One step of one queue in each turn of the loop."""
        if self._loop is None or self.failure is not None or not self._reducing:
            return
        bodies = next(iter(self._reducing))
        del self._reducing[bodies]
        if bodies.pager.reduce_some():
            self._reducing[bodies] = None
        if self._reducing:
            self._loop.call_soon(self._reduce)

    # -- what the threads report (`rounds.Host`, `background.Host`)

    def queues(self) -> list[QueueStore]:
        """Those that are open."""
        return [*self._queues.values()]

    def has(self, queue: QueueStore) -> bool:
        """Whether the queue is still there."""
        return self._queues.get(queue.queue) is queue

    def round_ended(self, jobs: list[CommitJob]) -> None:
        """All of `jobs` is durable."""
        self.counters.rounds += 1
        for job in jobs:
            if not self.has(job.queue):
                # Deleted meanwhile: nobody else will say that its bodies are not wanted.
                job.queue.bodies.released(job.releases)
            elif job.queue.committed(job) and self._loop is not None:
                self._loop.call_soon(self._report_durable, job.queue)
        if self._paging:
            paging, self._paging = self._paging, {}
            for bodies in paging:
                if bodies.pager.page_out_done():
                    self._paging[bodies] = None

    def _report_transient(self) -> None:
        queues, self._transient_appended = self._transient_appended, {}
        for queue in queues:
            if self.has(queue):
                self.on_durable(queue)

    def threads_done(self) -> None:
        if self.failure is not None:
            return
        try:
            self._deletions.remove_left()
        except OSError as error:
            self.fail(error)

    @property
    def is_behind(self) -> bool:
        """Whether rounds wait for a step of the flush that is under way."""
        over = self.counters.sealed_bytes > self.limits.sealed_bytes_max
        return over and self._background.is_flushing

    def flush_stepped(self) -> None:
        """A step of the flush has ended, and the next one, if there is any, has begun."""
        self._commit.resume()

    def crowded(self, on: bool) -> None:
        self.on_crowded(on)

    def _report_durable(self, queue: QueueStore) -> None:
        self.on_durable(queue)

    def fail(self, error: Exception) -> StoreFailedError:
        """Closes the store for writes. Returns the failure that is raised from now on."""
        if self.failure is None:
            self.failure = failure_of(error)
            self._commit.release_waiters()
            self.on_failed(self.failure)
        return self.failure
