"""Deleting and compacting, planned: the loop's side. Nothing here waits for the disk.

`plan` hands out one step at a time, for a thread (see `steps`), and `done` takes over its result.
Removals go first: they cost nothing and give space back. Then the compaction under way goes on,
or a new one begins, if `policy` finds one that is worth its cost.
"""

from __future__ import annotations

import threading
from pathlib import Path

from ringmq_node.storage.format.records import new_marker
from ringmq_node.storage.limits import StoreLimits
from ringmq_node.storage.messages.catalogue import Catalogue
from ringmq_node.storage.messages.files import SUFFIX, DataFile, FileState, MovedFile
from ringmq_node.storage.messages.moving import Compaction
from ringmq_node.storage.messages.policy import FileNumbers, choose
from ringmq_node.storage.messages.removal import Removal
from ringmq_node.storage.messages.steps import (
    CompactionJob,
    CopyJob,
    Cursor,
    PublishJob,
    RemoveJob,
)


class Collector:
    """Deletes and compacts, once it has been started."""

    def __init__(
        self,
        directory: Path,
        limits: StoreLimits,
        catalogue: Catalogue,
        lock: threading.Lock,
        *,
        persistent: bool,
    ) -> None:
        self._directory = directory
        self._limits = limits
        self._catalogue = catalogue
        self._lock = lock
        self._persistent = persistent
        self._removal = Removal(catalogue, lock)
        self.started = False
        # Whether to look through all files for a compaction. That takes time for each file, so it
        # is done again only when `_look_bytes` more have become garbage: a part of all bytes.
        self._look = False
        self._look_bytes = 0
        self._job: CompactionJob | None = None
        self._compaction: Compaction | None = None
        # The rate limit lets the next piece be copied from then on.
        self._copy_at = 0.0
        # When to `plan` again, if only the rate limit made the last one return None.
        self.next_plan_at: float | None = None
        self.moved_bytes = 0
        self.files_deleted = 0
        self.compactions = 0

    @property
    def is_compacting(self) -> bool:
        return self._compaction is not None

    def start(self) -> None:
        if self.started:
            return
        self.started = self._look = True
        self._catalogue.note_all()

    def plan(self, now: float) -> CompactionJob | None:
        if not self.started or self._job is not None:
            return None
        self.next_plan_at = None
        self._pack_a_map()
        self._job = self._plan_removal() or self._plan_compaction(now)
        return self._job

    def done(self, job: CompactionJob) -> None:
        assert job is self._job, "a step is done that is not under way"
        self._job = None
        self._catalogue.corruptions += job.corruptions
        match job:
            case RemoveJob():
                self.files_deleted += sum(name.endswith(SUFFIX) for name in job.names)
            case CopyJob():
                self._copied(job)
            case PublishJob():
                self._published(job)

    def _pack_a_map(self) -> None:
        """Safe here: no step is under way, so no thread is working with the rows of a table."""
        while self._catalogue.sparse:
            number, _ = self._catalogue.sparse.popitem()
            file = self._catalogue.files.get(number)
            if isinstance(file, MovedFile) and file.live and file.is_sparse:
                file.pack()
                return

    def _plan_removal(self) -> RemoveJob | None:
        names = self._removal.plan()
        return RemoveJob(self._directory, self._persistent, names=names) if names else None

    def _plan_compaction(self, now: float) -> CompactionJob | None:
        if self._compaction is None:
            self._compaction = self._choose()
        compaction = self._compaction
        if compaction is None:
            return None
        if compaction.is_copied:
            return compaction.publish_job(
                self._catalogue, self._directory, persistent=self._persistent
            )
        if now < self._copy_at:
            self.next_plan_at = self._copy_at
            return None
        return compaction.copy_job(
            self._directory,
            persistent=self._persistent,
            bytes_max=self._limits.compaction_piece_bytes_max,
            now=now,
        )

    def _choose(self) -> Compaction | None:
        catalogue, limits = self._catalogue, self._limits
        if catalogue.released_bytes >= self._look_bytes:
            self._look = True
        if not self._look:
            return None
        self._look = False
        catalogue.released_bytes = 0
        files = [
            FileNumbers(file.number, file.disk_bytes, file.live_bytes)
            for file in catalogue.data_files()
            if file.state is FileState.SETTLED
        ]
        total = sum(file.disk_bytes for file in files)
        self._look_bytes = max(limits.store_file_bytes_max // 16, total // 64)
        numbers = choose(
            files,
            file_bytes_max=limits.store_file_bytes_max,
            garbage_fraction=limits.store_garbage_fraction,
            files_min=limits.store_files_min,
        )
        victims = [file for file in map(catalogue.files.get, numbers) if isinstance(file, DataFile)]
        if not victims:
            return None
        return Compaction(victims, Cursor(catalogue.new_number(), new_marker(), 0, 0))

    def _copied(self, job: CopyJob) -> None:
        assert self._compaction is not None
        self._compaction.copied(job)
        self.moved_bytes += job.bytes_copied
        # Counted from the plan, not from now: the time that the copying took is part of the pause.
        self._copy_at = job.planned_at + job.bytes_copied / self._limits.compaction_bytes_per_s_max

    def _published(self, job: PublishJob) -> None:
        compaction = self._compaction
        assert compaction is not None
        self._compaction = None
        for number in compaction.take_over(job, self._catalogue, self._lock):
            self._removal.add_moved_away(number)
        self.compactions += 1
        # The victims are gone, and the target is one file more: other files may be worth it now.
        self._look = True
