"""Where the next record goes, and the records that wait for the next job. Loop's thread only."""

from __future__ import annotations

import threading
from pathlib import Path

from ringmq_node.queue.block import Block
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    PAYLOAD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    new_marker,
)
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.messages.catalogue import Catalogue
from ringmq_node.storage.messages.files import DataFile, FileState
from ringmq_node.storage.messages.unwritten import (
    ALL_RECORDS,
    UnwrittenBlocks,
    record_key,
)
from ringmq_node.storage.messages.writing import MessagesJob, MessagesPiece, PendingRecord


class Appender:
    """Appends to the newest data file, and begins the next one when a record doesn't fit."""

    def __init__(self, catalogue: Catalogue, lock: threading.Lock, file_bytes_max: int) -> None:
        # Offsets have 4 bytes.
        assert file_bytes_max <= PAYLOAD_BYTES_MAX
        self._catalogue = catalogue
        self._lock = lock
        self._file_bytes_max = file_bytes_max
        self._file: DataFile | None = None
        # By `record_key`, in the order of the files.
        self._pending: dict[int, PendingRecord] = {}
        # What these will write.
        self.pending_bytes = 0
        self._jobs_taken = 0
        self._jobs_committed = 0
        self.holes = 0

    def append(self, block: Block, message_id: bytes) -> RecordLocation:
        """Gives a record its place, and one reference."""
        length = RECORD_HEADER_BYTES + block.size_bytes
        assert length <= PAYLOAD_BYTES_MAX, f"a block of {block.size_bytes} bytes"
        file = self._file_for(length)
        location = RecordLocation(file.number, file.records, file.end, length)
        self._pending[record_key(file.number, location.ordinal)] = PendingRecord(
            file, location.ordinal, location.offset, length, message_id, block
        )
        self.pending_bytes += length
        file.records += 1
        file.end += length
        file.add(location.ordinal, length)
        return location

    def make_hole(self, key: int) -> None:
        """A record without references is not written, if no job has taken it yet.

        Its header still is: the ordinals of the records behind it count it.
        """
        pending = self._pending.get(key)
        if pending is not None and pending.block is not None:
            pending.block = None
            self.pending_bytes -= pending.length - RECORD_HEADER_BYTES
            pending.file.hole_bytes += pending.length - RECORD_HEADER_BYTES
            self.holes += 1

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def reach(self, bytes_max: int) -> int:
        """The key of the last record that `take` with this limit takes; `ALL_RECORDS` if it takes
        all. Records that become holes before that only make room for more."""
        if self.pending_bytes <= bytes_max:
            return ALL_RECORDS
        return self._first(bytes_max)[-1]

    def _first(self, bytes_max: int) -> list[int]:
        """The oldest pending records that have at most so many bytes; one at least."""
        keys: list[int] = []
        size_bytes = 0
        for key, record in self._pending.items():
            size_bytes += _written_bytes(record)
            if keys and size_bytes > bytes_max:
                break
            keys.append(key)
        return keys

    def take(
        self, directory: Path, *, persistent: bool, bytes_max: int | None
    ) -> MessagesJob | None:
        """The records since the last job, the oldest first, of at most so many bytes but one at
        least; None if there are none."""
        if not self._pending:
            return None
        job = MessagesJob(directory, persistent, self._jobs_taken, first=self._jobs_taken == 0)
        self._jobs_taken += 1
        if bytes_max is None or self.pending_bytes <= bytes_max:
            records, self._pending = [*self._pending.values()], {}
        else:
            records = [self._pending.pop(key) for key in self._first(bytes_max)]
        for record in records:
            self.pending_bytes -= _written_bytes(record)
            if not job.pieces or job.pieces[-1].file is not record.file:
                job.pieces.append(MessagesPiece(record.file, record.offset, record.file.written))
            job.pieces[-1].records.append(record)
        return job

    def committed(self, job: MessagesJob) -> None:
        # `written` says that a file is durable up to there. An older job that is not written yet
        # would make that false.
        assert job.number == self._jobs_committed, "jobs are committed out of order"
        self._jobs_committed += 1
        for piece in job.pieces:
            file = piece.file
            file.written = piece.end
            self._catalogue.highest_durable = max(self._catalogue.highest_durable, file.number)
            if file.state is FileState.SEALED:
                self._note_garbage(file)

    def _file_for(self, length: int) -> DataFile:
        file = self._file
        if file is not None and file.end + length > self._file_bytes_max:
            file.become(FileState.SEALED)
            self._note_garbage(file)
            file = None
        if file is None:
            # Never a file that was there at the start: a crash may have torn its end, and records
            # behind a torn one don't count.
            number = self._catalogue.new_number()
            file = DataFile(
                number, marker=new_marker(), end=FILE_HEADER.size, state=FileState.GROWING
            )
            with self._lock:
                self._catalogue.files[number] = file
            self._file = file
        return file

    def _note_garbage(self, file: DataFile) -> None:
        """Of a sealed file. When it is settled, it may be compacted or removed."""
        if file.written == file.end:
            file.become(FileState.SETTLED)
        self._catalogue.note_idle(file.number)
        self._catalogue.released_bytes += file.disk_bytes - file.live_bytes

    def check(self, unwritten: UnwrittenBlocks) -> None:
        for key, record in self._pending.items():
            count = record.file.counts.get(record.ordinal)
            assert (count > 0) == (record.block is not None) == (key in unwritten), key
        assert self.pending_bytes == sum(map(_written_bytes, self._pending.values()))


def _written_bytes(record: PendingRecord) -> int:
    """Of a hole only the header is written."""
    return RECORD_HEADER_BYTES if record.block is None else record.length
