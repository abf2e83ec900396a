"""What to delete and to move next: the loop's side of compaction.

Decides from numbers (see `policy`), hands out one step at a time (see `compaction`), and takes
over what the step has done. Nothing here waits for the disk.
"""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass, field
from pathlib import Path

from ringmq_node.storage.format.records import FILE_HEADER, new_marker
from ringmq_node.storage.limits import StoreLimits
from ringmq_node.storage.messages.catalogue import Catalogue
from ringmq_node.storage.messages.compaction import (
    CompactionJob,
    CopyJob,
    Moves,
    Place,
    PublishJob,
    Rebuilt,
    RemoveJob,
)
from ringmq_node.storage.messages.files import SUFFIX, DataFile, MovedFile, data_name, map_name
from ringmq_node.storage.messages.policy import FileNumbers, choose

# Names removed in one step.
REMOVALS_MAX = 32


@dataclass(slots=True, eq=False)
class _Compaction:
    """One that is under way."""

    # Still to be copied; the first is being copied.
    victims: list[DataFile]
    source: Place
    target: Place
    moves: Moves
    # All victims, those that have been copied as well.
    busy: frozenset[int]
    copied: list[Moves] = field(default_factory=list)
    # By ordinal in the target.
    lengths: array[int] = field(default_factory=lambda: array("I"))


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
        self.started = False
        # Files are looked at again when so much more has become garbage: looking at them
        # takes time for each, so it is done once for a part of them.
        self._look = False
        self._look_bytes = 0
        self._job: CompactionJob | None = None
        self._compaction: _Compaction | None = None
        self._copy_at = 0.0
        # Files whose records have been moved, still to be removed.
        self._moved_away: dict[int, None] = {}
        # When `plan` has something to do that the rate limit keeps it from; else None.
        self.next_plan_at: float | None = None
        self.moved_bytes = 0
        self.files_deleted = 0
        self.compactions = 0

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
        """No thread has a table of this store now: no step is under way."""
        while self._catalogue.sparse:
            number, _ = self._catalogue.sparse.popitem()
            file = self._catalogue.files.get(number)
            if isinstance(file, MovedFile) and file.live and file.is_sparse:
                file.pack()
                return

    # -- removal

    def _plan_removal(self) -> RemoveJob | None:
        catalogue = self._catalogue
        names: list[str] = []
        for number in [*self._moved_away]:
            if number < catalogue.highest_durable and len(names) < REMOVALS_MAX:
                del self._moved_away[number]
                names.append(data_name(number))
        for number in [*catalogue.idle]:
            if len(names) >= REMOVALS_MAX:
                break
            names += self._remove_if_idle(number)
        if not names:
            return None
        return RemoveJob(self._directory, self._persistent, names=names)

    def _remove_if_idle(self, number: int) -> list[str]:
        """Forgets a file if it is of no more use; the names that are to be removed."""
        catalogue = self._catalogue
        file = catalogue.files.get(number)
        if isinstance(file, DataFile):
            if file.live_records:
                del catalogue.idle[number]
                return []
            if not file.is_settled or self._is_busy(number):
                return []
            # What is lost may have left an empty file, or a damaged map.
            names = [data_name(number)] if file.end else [data_name(number), map_name(number)]
        elif file is not None:
            if file.live or file.unknown:
                del catalogue.idle[number]
                return []
            names = [map_name(number)]
        else:
            del catalogue.idle[number]
            return []
        if number >= catalogue.highest_durable or number in self._moved_away:
            return []
        with self._lock:
            del catalogue.files[number]
        del catalogue.idle[number]
        return names

    # -- compaction

    @property
    def is_compacting(self) -> bool:
        return self._compaction is not None

    def _is_busy(self, number: int) -> bool:
        return self._compaction is not None and number in self._compaction.busy

    def _plan_compaction(self, now: float) -> CompactionJob | None:
        if self._compaction is None:
            self._compaction = self._choose()
        compaction = self._compaction
        if compaction is None:
            return None
        if not compaction.victims:
            return self._plan_publish(compaction)
        if now < self._copy_at:
            self.next_plan_at = self._copy_at
            return None
        victim = compaction.victims[0]
        return CopyJob(
            self._directory,
            self._persistent,
            source=compaction.source,
            target=compaction.target,
            live=victim.counts.snapshot(),
            bytes_max=self._limits.compaction_piece_bytes_max,
            planned_at=now,
        )

    def _choose(self) -> _Compaction | None:
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
            if file.end and file.is_settled and not file.damaged
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
        target = Place(catalogue.new_number(), new_marker(), 0, 0)
        first = victims[0]
        return _Compaction(
            victims, _start_of(first), target, Moves(first.number), frozenset(numbers)
        )

    def _copied(self, job: CopyJob) -> None:
        compaction = self._compaction
        assert compaction is not None
        victim = compaction.victims[0]
        compaction.moves.extend(job.moves)
        compaction.lengths += job.moves.lengths
        self.moved_bytes += job.bytes_copied
        self._copy_at = job.planned_at + job.bytes_copied / self._limits.compaction_bytes_per_s_max
        if not job.ended:
            return
        if job.stuck:
            victim.damaged = True
        else:
            compaction.copied.append(compaction.moves)
        del compaction.victims[0]
        if compaction.victims:
            compaction.source = _start_of(compaction.victims[0])
            compaction.moves = Moves(compaction.victims[0].number)

    def _plan_publish(self, compaction: _Compaction) -> PublishJob:
        files = self._catalogue.files
        direct: list[Moves] = []
        indirect: list[Moves] = []
        sources: dict[int, None] = {}
        for moves in compaction.copied:
            victim = files[moves.number]
            assert isinstance(victim, DataFile)
            if victim.sources is None:
                direct.append(moves)
            else:
                indirect.append(moves)
                sources |= victim.sources
        maps = [file for file in map(files.get, sources) if isinstance(file, MovedFile)]
        return PublishJob(
            self._directory,
            self._persistent,
            target=compaction.target.number,
            target_written=compaction.target.offset > 0,
            direct=direct,
            indirect=indirect,
            tables=[(file.number, file.table) for file in maps],
        )

    def _published(self, job: PublishJob) -> None:
        """From here on everything is looked up at its new place."""
        compaction = self._compaction
        assert compaction is not None
        self._compaction = None
        catalogue = self._catalogue
        target = compaction.target
        new = DataFile(target.number, target.marker, target.offset, written=target.offset)
        new.sources = {}
        with self._lock:
            if target.offset:
                catalogue.files[target.number] = new
                catalogue.highest_durable = max(catalogue.highest_durable, target.number)
            for rebuilt in job.rebuilt:
                self._take_over(rebuilt, new, compaction.lengths)
            for moves in job.indirect:
                del catalogue.files[moves.number]
        for moves in (*job.direct, *job.indirect):
            self._moved_away[moves.number] = None
        if target.offset:
            catalogue.note_idle(target.number)
        self.compactions += 1
        self._look = True

    def _take_over(self, rebuilt: Rebuilt, new: DataFile, lengths: array[int]) -> None:
        """Puts the new table in place, with the counts as they are now."""
        catalogue = self._catalogue
        table = rebuilt.table
        old = catalogue.files[rebuilt.number]
        counts = old.counts.select(rebuilt.kept)
        moved = MovedFile(rebuilt.number, table, counts, counts.nonzero())
        live = old.live_records if isinstance(old, DataFile) else old.live
        assert moved.live == live, f"a reference to a record of file {old.number} is lost"
        if isinstance(old, MovedFile):
            moved.unknown = old.unknown
        catalogue.files[rebuilt.number] = moved
        for row, (count, file) in enumerate(zip(counts.snapshot(), table.files, strict=True)):
            if count and file == new.number:
                length = lengths[table.new_ordinals[row]]
                catalogue.refer(rebuilt.number, table, row, length)
        catalogue.note_idle(rebuilt.number)


def _start_of(file: DataFile) -> Place:
    return Place(file.number, file.marker, FILE_HEADER.size, 0)
