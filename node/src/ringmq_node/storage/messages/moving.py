"""One compaction under way: the loop's side of copying and publishing. See `compaction`.

It goes through its victims in the order of `policy`. While one is copied, `cursor` says how far;
when all are, `publish_job` and then `take_over` end it.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from pathlib import Path

from ringmq_node.storage.format.records import FILE_HEADER
from ringmq_node.storage.messages.catalogue import Catalogue
from ringmq_node.storage.messages.files import DataFile, FileState, MovedFile
from ringmq_node.storage.messages.steps import (
    CopyJob,
    Cursor,
    Moves,
    PublishJob,
    Rebuilt,
    column,
)


class Compaction:
    """Moves the live records of `victims`, at least one, to the file of the cursor `target`."""

    def __init__(self, victims: Sequence[DataFile], target: Cursor) -> None:
        for victim in victims:
            victim.become(FileState.VICTIM)
        self.target = target
        # Still to be copied; the first is being copied.
        self._victims = [*victims]
        self._cursor = _start_of(victims[0])
        self._moves = Moves(victims[0].number)
        self._copied: list[Moves] = []
        # Of the records in the target, by their ordinals there.
        self._lengths: array[int] = column()

    @property
    def is_copied(self) -> bool:
        return not self._victims

    # -- copying

    def copy_job(self, directory: Path, *, persistent: bool, bytes_max: int, now: float) -> CopyJob:
        return CopyJob(
            directory,
            persistent,
            victim=self._cursor,
            target=self.target,
            # Anew for each piece: records that were released meanwhile are not copied.
            live=self._victims[0].counts.snapshot(),
            bytes_max=bytes_max,
            planned_at=now,
        )

    def copied(self, job: CopyJob) -> None:
        """Takes the moves of a piece, and goes on to the next victim at the end of one."""
        victim = self._victims[0]
        self._moves.extend(job.moves)
        self._lengths += job.moves.lengths
        if not job.ended:
            return
        if job.stuck:
            # The records that were copied before that place are in the target without references:
            # garbage from the start.
            victim.become(FileState.STUCK)
        else:
            self._copied.append(self._moves)
        del self._victims[0]
        if self._victims:
            self._cursor = _start_of(self._victims[0])
            self._moves = Moves(self._victims[0].number)

    # -- publishing

    def publish_job(self, catalogue: Catalogue, directory: Path, *, persistent: bool) -> PublishJob:
        files = catalogue.files
        direct: list[Moves] = []
        indirect: list[Moves] = []
        sources: dict[int, None] = {}
        for moves in self._copied:
            victim = files[moves.number]
            assert isinstance(victim, DataFile)
            if victim.sources is None:
                direct.append(moves)
            else:
                indirect.append(moves)
                sources |= victim.sources
        # A source whose map has been forgotten since has no live record in the victim any more.
        maps = [file for file in map(files.get, sources) if isinstance(file, MovedFile)]
        return PublishJob(
            directory,
            persistent,
            target=self.target.number,
            target_written=self.target.offset > 0,
            direct=direct,
            indirect=indirect,
            tables=[(file.number, file.table) for file in maps],
        )

    def take_over(self, job: PublishJob, catalogue: Catalogue, lock: threading.Lock) -> list[int]:
        """Everything is looked up at its new place from here on.

        Returns the numbers of the victims that have been moved: their names may be removed now.
        """
        target = self.target
        end = target.offset
        new = DataFile(target.number, marker=target.marker, end=end, written=end, sources={})
        # All at once, under the lock: a look-up between two of these changes could find a victim
        # gone, and the map to it not changed yet.
        with lock:
            if end:
                catalogue.files[target.number] = new
                catalogue.highest_durable = max(catalogue.highest_durable, target.number)
            for rebuilt in job.rebuilt:
                self._put_in_place(rebuilt, new, catalogue)
            for moves in job.indirect:
                del catalogue.files[moves.number]
        if end:
            catalogue.note_idle(target.number)
        return [moves.number for moves in (*job.direct, *job.indirect)]

    def _put_in_place(self, rebuilt: Rebuilt, new: DataFile, catalogue: Catalogue) -> None:
        """Replaces a file by its new table, with the counts as they are now.

        Records have been released since they were copied. They have a row without references.
        """
        table = rebuilt.table
        old = catalogue.files[rebuilt.number]
        counts = old.counts.select(rebuilt.kept)
        moved = MovedFile(rebuilt.number, table, counts, counts.nonzero())
        live = old.live if isinstance(old, MovedFile) else old.live_records
        assert moved.live == live, f"a reference to a record of file {old.number} is lost"
        if isinstance(old, MovedFile):
            moved.unknown = old.unknown
        catalogue.files[rebuilt.number] = moved
        for row, (count, file) in enumerate(zip(counts.snapshot(), table.files, strict=True)):
            if count and file == new.number:
                length = self._lengths[table.new_ordinals[row]]
                catalogue.refer(rebuilt.number, table, row, length)
        catalogue.note_idle(rebuilt.number)


def _start_of(file: DataFile) -> Cursor:
    return Cursor(file.number, file.marker, FILE_HEADER.size, 0)
