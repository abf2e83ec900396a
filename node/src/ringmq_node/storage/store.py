"""The store of one node: one data directory, its queues, and its message stores.

Here the parts are put together. Appended ops become durable by the group commit (`rounds`). Other
work of threads (flushing, compaction, reading ahead) is in `background`, and `memory` keeps the
queues within their budget.

A write or sync that fails closes the store for writes, at once and for good. After a failed fsync
nobody knows which bytes are on the disk, and a second try would report bytes as durable that
aren't. `on_failed` is called, `append` and `sync` raise, reads go on. The same happens if a call of
the disk doesn't come back (`disk.watch`), as whoever waits for it would wait for ever.

Thread rule: everything is called on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ringmq_node.storage.background import Background
from ringmq_node.storage.commit_log import CommitLog
from ringmq_node.storage.crew import Crew
from ringmq_node.storage.deletion import Deletions
from ringmq_node.storage.disk import data_directory as folders
from ringmq_node.storage.disk.disk import Disk, FileDisk
from ringmq_node.storage.disk.reads import ReadErrorDisk
from ringmq_node.storage.disk.threads import Errands
from ringmq_node.storage.disk.watch import WatchedDisk
from ringmq_node.storage.errors import (
    DiskHangsError,
    StoreClosedError,
    StoreError,
    StoreFailedError,
    failure_of,
)
from ringmq_node.storage.idle import IdleQueues
from ringmq_node.storage.limits import Counters, StoreLimits
from ringmq_node.storage.memory import QueueMemory
from ringmq_node.storage.messages import MessageStore
from ringmq_node.storage.opening import AsideReader, folder_of, mark_partial, mark_unopened
from ringmq_node.storage.partial import PartialMarks
from ringmq_node.storage.queue.pager import Pager
from ringmq_node.storage.queue.queue_store import CommitJob, QueueStore
from ringmq_node.storage.queue.read_ahead import ReadAhead
from ringmq_node.storage.queue.recovery import Recovered, recover
from ringmq_node.storage.redo import redo
from ringmq_node.storage.reports import DurableReports
from ringmq_node.storage.rounds import GroupCommit
from ringmq_node.storage.statistics import StoreStatistics, collect

logger = logging.getLogger(__name__)

# How often idle queues, the memory budget and the disk's calls are looked at.
TICK_S = 1.0
# Damage that is logged of a queue at a start. A lost file is one report for each of its records.
REPORTS_LOGGED_MAX = 20


def _ignore(_: object) -> None:
    """`on_durable` and `on_crowded`, until the node sets them."""


class Store:
    """Made by `Store.open`. One per node."""

    def __init__(
        self, directory: Path, disk: Disk, limits: StoreLimits, owned: tuple[FileDisk, int] | None
    ) -> None:
        self.directory = directory
        self.watched = WatchedDisk(disk)
        self.disk: Disk = self.watched
        disk = self.disk
        self.limits = limits
        self.counters = Counters()
        # Called on the loop after each round, for each queue with ops or fills that it has made
        # durable; for a transient queue soon after each append.
        self.on_durable: Callable[[QueueStore], None] = _ignore
        # Called on the loop, once; and once more if the disk is found to hang after that.
        self.on_failed: Callable[[StoreError], None] = lambda error: logger.error("%s", error)
        # Called on the loop when unsynced bytes cross `unsynced_bytes_max`, in either direction.
        # Whatever it stops for that time must not be needed for a round to end.
        self.on_crowded: Callable[[bool], None] = _ignore
        self.failure: StoreFailedError | None = None
        # Whatever the failure was: a thread may still be in a call of the disk.
        self._hangs = False
        self._owned = owned
        self._folders, self.corruptions = folders.find_queues(disk, directory)
        self._queues: dict[str, QueueStore] = {}
        # Folders of queues that are neither opened nor deleted yet. Until all are, nobody knows
        # which bodies in the message store are referred to, so none is collected.
        # If a queue of the right name is opened, it gets the folder whose queue's name is lost.
        nameless = {Path(report.file).parent.name for report in self.corruptions}
        self._unopened = {folder.name for folder in self._folders.values()} | nameless
        for report in self.corruptions:
            logger.error("%s", report)
        self._folder_of = partial(folder_of, disk, directory, nameless)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Future[None] | None = None
        root = directory / folders.MESSAGES_NAME
        kinds = (("persistent", True), ("transient", False))
        stores = [MessageStore(root / name, disk, limits, persistent=kind) for name, kind in kinds]
        self._persistent, self._transient = stores
        if self._unopened:
            self._persistent.expect_references()
        self._transient.start_collecting()
        self.errands = Errands()  # Of coroutines, in threads; `close` waits for them.
        self._reads = ReadErrorDisk(disk)
        self._aside = AsideReader(self._reads, self._persistent, self.errands)
        log = CommitLog(disk, directory, limits, self.fail)
        self._commit = GroupCommit(self, disk, limits, stores, log)
        self._background = Background(self, disk, stores)
        self._marks = PartialMarks(disk, fail=self.fail, done=self.threads_done)
        self._crew = Crew(self._commit, self._background, self._marks, self.errands)
        self._deletions = Deletions(disk, self._crew.tasks_of, self._background.remove_folder)
        self._memory = QueueMemory(self)
        self._idle = IdleQueues(ticks_max=limits.idle_ticks_max)
        # Of durable queues in a round that has ended, and of transient ones with an append.
        self._reports = DurableReports(self._report)
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
        `CorruptError` if `store.meta`, which names the owner, is damaged, and `OSError`.
        """
        limits = limits or StoreLimits()
        if disk is not None:
            folders.claim(disk, directory, cluster_id, node)
            redo(disk, directory)
            return cls(directory, disk, limits, None)
        lock = folders.lock_directory(directory)
        files = FileDisk()
        try:
            folders.claim(files, directory, cluster_id, node)
            redo(files, directory)
            return cls(directory, files, limits, (files, lock))
        except BaseException:
            files.close()
            os.close(lock)
            raise

    # -- queues

    def queue_names(self) -> list[str]:
        """All queues of the directory, opened or not."""
        return sorted(self._folders)

    def knows(self, queue: str) -> bool:
        return queue in self._folders

    async def recover(self, queue: str) -> Recovered | None:
        """What `open_queue` then takes at once: a queue that isn't open, read in a thread. None if
        there is little to read. Raises as `open_queue` does."""
        with self._failing():
            return await self._aside.recover(queue, self._folders, opened=self._queues)

    def open_queue(
        self,
        queue: str,
        *,
        durable: bool = True,
        label: str = "",
        partial: bool = False,
        found: Recovered | None = None,
    ) -> QueueStore:
        """The queue, new or recovered; the same object if it is open already.

        Blocks: an old queue is read, unless `recover` has `found` it. A new one has nothing on disk
        before the round of its first op. One that isn't `durable` is always new. `label` is the
        name that people use. `partial`: the replica may lack confirmed messages; the disk remembers
        that until `mark_whole`, from the next `sync_marks` on. Raises `StoreFailedError`,
        `UnsupportedFormatError`, `ReadError`, or `ValueError` for a name that isn't legal.
        """
        opened = self._queues.get(queue)
        if opened is not None:
            return opened
        folders.folder_name(queue)
        self.check_writable()
        if not durable and queue in self._folders:
            self.delete_queue(queue)
        with self._failing():
            # A deleted queue of this name may still have its folder, until its threads are done.
            self._deletions.wait(queue)
            known = self._folders.get(queue)
            folder, unmade = self._folder_of(known, queue, label, durable=durable)
            if partial and durable:
                mark_partial(self.disk, folder, unmade)
            is_new = unmade is not None and not partial  # There is no folder to look at.
            is_partial = durable and not is_new and folders.is_partial(self._reads, folder)
            if found is None:
                messages = self._persistent
                found = recover(self._reads, folder, messages.share, messages.lost, is_new=is_new)
            opened = QueueStore(queue, folder, self, found, durable=durable, unmade=unmade)
            opened.partial = is_partial
        self._folders[queue] = folder
        self._queues[queue] = opened
        self._memory.opened(opened)
        self._unopened.discard(folder.name)
        self._collect_if_known()
        if opened.flushable:
            self.mark_flushable(opened)
        for report in opened.corruptions[:REPORTS_LOGGED_MAX]:
            logger.error("queue %r: %s", queue, report)
        return opened

    def mark_whole(self, queue: QueueStore) -> None:
        """This replica has caught up, or was in its ring from the start: it lacks no confirmed op.

        Raises `StoreFailedError`.
        """
        if queue.partial:
            self.check_writable()
            with self._failing():
                self._marks.mark_whole(queue)

    async def sync_marks(self) -> None:
        """Returns when the disk remembers which of the queues opened so far are partial, and that
        all those are that nobody has opened. One sync, in a thread. Raises `StoreFailedError`."""
        self.check_writable()
        with self._failing():
            mark_unopened(self.disk, self.directory, self._unopened)
            await self.errands.run("sync", self.disk.sync_all, self.directory)

    def abandon(self, queue: QueueStore) -> None:
        """Does nothing more for a queue that has failed. Its files stay, for the next start."""
        if self._queues.get(queue.queue) is queue:
            del self._queues[queue.queue]
            self._deletions.give_up(queue)
            self._commit.end(queue)
            self._forget(queue)

    def _forget(self, queue: QueueStore) -> None:
        for part in (self._crew, self._idle, self._memory):
            part.forget(queue)

    def delete_queue(self, queue: str) -> None:
        """Removes a queue and all its messages. Blocks for a sync.

        As a rule the queue is gone for good when this returns. If a thread is working on its files
        just now, they are removed when that thread is done, and until then a power cut brings the
        queue back. Raises `KeyError` for an unknown queue, and `StoreFailedError`.
        """
        self.check_writable()
        folder = self._folders.pop(queue)
        self._unopened.discard(folder.name)
        opened = self._queues.pop(queue, None)
        with self._failing():
            if opened is None:
                self._deletions.delete_unopened(queue, folder)
            else:
                self._forget(opened)
                self._deletions.delete(opened, folder)
        self._collect_if_known()

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
        timer = self._loop.call_later(TICK_S, self._tick)
        try:
            self._memory.start(self._loop)
            self._crew.start(self._loop)
            self._reports.start(self._loop)
            await self._stopped
        finally:
            timer.cancel()
            self._loop = self._stopped = None
            self._memory.stop()
            self._crew.stop()
            self._reports.stop()

    async def sync(self) -> None:
        """Waits until everything appended so far is durable. Needs `run` to be running.

        Raises `StoreFailedError` if the store fails before that.
        """
        self.check_writable()
        await self._commit.sync()

    def close(self) -> None:
        """Makes everything durable, removes transient queues and closes the files. Blocks; may be
        called twice.

        `on_durable` is not called any more: call `sync` first if somebody waits for it. After a
        failure, `close` only closes the files. While a thread hasn't ended, it leaves them open:
        it may still write, so the directory stays locked until the process ends.
        """
        if self._closed:
            return
        self._closed = True
        self._reports.clear()
        files, lock = self._owned or (None, -1)
        try:
            if not self._hangs:
                self._drain()
        except DiskHangsError as error:
            self.fail(error)
        finally:
            if self.failure is None:
                self.failure = StoreClosedError("the store was closed")
            if not self._crew.close(files, hangs=self._hangs):
                text = f"a thread may still write to {self.directory}, which stays locked"
                self.fail(DiskHangsError(f"{text}: look at the disk, then start the node again"))
            if self._stopped is not None and not self._stopped.done():
                self._stopped.set_result(None)
            if files is not None and not self._hangs:
                self._owned = None
                files.close()
                # Last: from here on another process, or this one, may open the directory.
                os.close(lock)

    @property
    def holds_directory(self) -> bool:
        """Whether its own directory is locked; after `close` only if a thread may still write."""
        return self._owned is not None

    def _drain(self) -> None:
        """Waits for the threads, then commits the rest in this one."""
        loop, self._loop = self._loop, None
        self._memory.stop()
        try:
            self._crew.drain(self._queues.values())
            if self.failure is None:
                for queue in (each for each in self._queues.values() if not each.durable):
                    folders.remove_folder(self.disk, queue.directory)
        except OSError as error:
            raise self.fail(error) from error
        finally:
            self._loop = loop
            if loop is not None:
                self._memory.start(loop)

    def statistics(self) -> StoreStatistics:
        failed = self.failure is not None and not isinstance(self.failure, StoreClosedError)
        return collect(
            self.counters,
            self._queues.values(),
            queues_now=len(self._folders),
            failed_now=failed,
            messages=self._persistent.statistics(),
            messages_transient=self._transient.statistics(),
        )

    # -- memory

    def ram_durations(self, now: float) -> list[float]:
        """See `QueueMemory.durations`. `now` of any clock that doesn't go back."""
        return self._memory.durations(now)

    def set_duration(self, duration_s: float) -> None:
        """For how many seconds each queue may hold messages in memory."""
        self._memory.set_duration(duration_s, self._queues.values())

    def _tick(self) -> None:
        """Looks for a hanging disk, has idle queues flushed, and memory above the budget freed."""
        if self._loop is None or self._hangs:
            return
        late = self.watched.look(TICK_S, self.limits.disk_timeout_s)
        if late is not None:
            text = f"store closed for writes: {late}: look at the disk, then start the node again"
            self.fail(DiskHangsError(text))
        self._loop.call_later(TICK_S, self._tick)
        if self.failure is not None:
            return
        self._idle.tick()
        self._commit.tick()
        self._memory.keep_budget(self._queues.values())
        self._background.tick()

    # -- for the queues (`QueueHost`)

    def messages(self, *, transient: bool) -> MessageStore:
        return self._transient if transient else self._persistent

    def check_writable(self) -> None:
        if self.failure is not None:
            raise self.failure

    def mark_dirty(self, queue: QueueStore) -> None:
        if not queue.durable:
            self._reports.add(queue)
            return
        self._idle.appended(queue)
        self._commit.mark_dirty(queue)

    def mark_flushable(self, queue: QueueStore) -> None:
        if self.has(queue):
            self._background.mark_flushable(queue)

    async def wait_room(self) -> None:
        # For what is unsynced now, not until there is room: ops of the ring may fill all of it
        # again and again, and the caller would never get its turn.
        if self._commit.waits_above(self.limits.unsynced_bytes_max // 2):
            await self._commit.sync()

    def mark_paging(self, pager: Pager) -> None:
        self._memory.mark_paging(pager)
        self._commit.mark_stores()

    def mark_reading(self, ahead: ReadAhead) -> None:
        self._background.mark_reading(ahead)

    def mark_moving(self, pager: Pager) -> None:
        self._memory.mark_moving(pager)

    def mark_reducing(self, pager: Pager) -> None:
        self._memory.mark_reducing(pager)

    # -- for the work of threads (`CommitHost`, `BackgroundHost`)

    def queues(self) -> list[QueueStore]:
        return [*self._queues.values()]

    def has(self, queue: QueueStore) -> bool:
        return self._queues.get(queue.queue) is queue

    def round_ended(self, jobs: list[CommitJob]) -> None:
        self.counters.rounds += 1
        for job in jobs:
            if job.queue in self._deletions.given_up:
                continue
            if not self.has(job.queue):
                # Deleted meanwhile. The deletion has released what the queue still referred to,
                # not the bodies that it had given to this round to release.
                job.queue.bodies.releases.release(job.releases)
            elif job.queue.committed(job) and self._loop is not None:
                self._reports.add(job.queue)
        self._memory.round_ended()

    def _report(self, queue: QueueStore) -> None:
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
        over = self.counters.sealed_bytes > self.limits.sealed_bytes_max
        return over and self._background.is_flushing

    def flush_stepped(self) -> None:
        self._commit.resume()

    def crowded(self, on: bool) -> None:
        self.on_crowded(on)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """An error of the disk in here fails the store."""
        try:
            yield
        except OSError as error:
            raise self.fail(error) from error

    def fail(self, error: Exception) -> StoreFailedError:
        """Closes the store for writes. Returns the failure that is raised from now on.

        The first one, unless the disk hangs as well: whoever makes room for a full disk then must
        not begin another life in this process.
        """
        hangs = isinstance(error, DiskHangsError)
        # Before anybody hears of it: nothing may be appended by those who are told.
        if self.failure is None or (hangs and not self._hangs):
            self._hangs = hangs
            self.failure = failure_of(error)
            self._commit.release_waiters()
            self.on_failed(self.failure)
        return self.failure
