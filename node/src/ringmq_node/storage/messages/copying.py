"""A piece of a victim, copied to the target: the thread's part of a `CopyJob`. See `compaction`."""

from __future__ import annotations

from functools import partial

from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import CorruptionReport, ReadError, UnsupportedFormatError
from ringmq_node.storage.format.formats import MESSAGE_FILE
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    RECORD_HEADER_BYTES,
    Header,
    RecordKind,
    file_header,
    parse_record,
    record_header,
)
from ringmq_node.storage.messages.data_file import (
    GrowingWindow,
    marker_of_record,
    parse_file_header,
    read_record_header,
)
from ringmq_node.storage.messages.files import data_name
from ringmq_node.storage.messages.steps import CopyJob

# Records looked at in one piece, live or not.
_RECORDS_MAX = 16_384


class Copier:
    """One `CopyJob` being done."""

    def __init__(self, disk: Disk, job: CopyJob) -> None:
        self._disk = disk
        self._job = job
        self._path = job.directory / data_name(job.victim.number)
        self._window = GrowingWindow(partial(disk.read, self._path))
        self._buffers: list[bytes | memoryview] = []

    def run(self) -> None:
        job = self._job
        target = job.target
        start = target.offset
        if start == 0:
            self._buffers.append(file_header(MESSAGE_FILE, target.marker, target.number))
            target.offset = FILE_HEADER.size
        try:
            self._copy()
        except OSError as error:
            # It only reads. The file may be whole: its records stay where they are, and readers
            # try anew each time. What was copied before this is written, as it has places by now.
            job.unread = str(ReadError.of(self._path, error))
            job.stuck = job.ended = True
        if target.offset > max(start, FILE_HEADER.size):
            self._disk.write(job.directory / data_name(target.number), start, self._buffers)
        else:
            target.offset = start

    def _copy(self) -> None:
        job, victim = self._job, self._job.victim
        # Records behind the last live one are not looked at: damage to them is no reason to keep
        # the file.
        live_end = len(job.live.rstrip(b"\0"))
        if not victim.marker:
            self._find_marker()
        for _ in range(_RECORDS_MAX):
            if victim.ordinal >= live_end:
                job.ended = True
                return
            if job.bytes_copied >= job.bytes_max:
                return
            header = read_record_header(self._window, victim.marker, victim.offset)
            if header is None:
                # The next valid header might be that of any later ordinal. A live record that is
                # moved under a wrong ordinal would be read as another message.
                what = f"no valid record {victim.ordinal}, so the file can't be compacted"
                self._report(victim.offset, RECORD_HEADER_BYTES, what)
                job.stuck = job.ended = True
                return
            if job.live[victim.ordinal]:
                self._copy_record(header)
            victim.offset = header.end
            victim.ordinal += 1

    def _copy_record(self, header: Header) -> None:
        job, victim, target = self._job, self._job.victim, self._job.target
        length = RECORD_HEADER_BYTES + header.length
        what = "was released before it was written"
        payload = memoryview(b"")
        if header.kind == RecordKind.MESSAGE:
            data = self._window.get(header.offset, length)
            _, what = parse_record(victim.marker, header.offset, data)
            payload = memoryview(data)[RECORD_HEADER_BYTES:]
        if what:
            self._report(header.offset, length, what)
            job.moves.lost.append(victim.ordinal)
            return
        # `synced` stays 0: the target is synced once, in the `PublishJob`, and its maps prove it.
        framed = record_header(
            target.marker,
            target.offset,
            RecordKind.MESSAGE,
            payload,
            number=header.number,
            epoch=header.epoch,
        )
        self._buffers += (framed, payload)
        job.moves.ordinals.append(victim.ordinal)
        job.moves.new_ordinals.append(target.ordinal)
        job.moves.offsets.append(target.offset)
        job.moves.lengths.append(length)
        job.bytes_copied += length
        target.offset += length
        target.ordinal += 1

    def _find_marker(self) -> None:
        """Leaves the marker 0 where no record of the file may be believed: the job gets stuck."""
        victim = self._job.victim
        try:
            header = parse_file_header(str(self._path), self._window.get(0, FILE_HEADER.size))
        except UnsupportedFormatError as error:
            self._report(0, FILE_HEADER.size, str(error))
            return
        if header is not None and header.number != victim.number:
            what = f"this is store file {header.number}, expected {victim.number}"
            self._report(0, FILE_HEADER.size, what)
            return
        if header is not None:
            victim.marker = header.marker
            return
        self._report(0, FILE_HEADER.size, "file header is damaged")
        victim.marker = marker_of_record(self._window.get(victim.offset, RECORD_HEADER_BYTES))

    def _report(self, offset: int, length: int, what: str) -> None:
        self._job.corruptions.append(CorruptionReport(str(self._path), offset, length, what))
