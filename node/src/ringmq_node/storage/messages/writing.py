"""Records on their way to the disk: the job of `MessageStore.take`, and its thread's part."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ringmq_node.queue.block import Block
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.format.formats import MESSAGE_FILE
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    RECORD_HEADER_BYTES,
    RecordKind,
    file_header,
    record_header,
)
from ringmq_node.storage.messages.data_file import hole_header, split_id
from ringmq_node.storage.messages.files import DataFile, data_name


@dataclass(slots=True, eq=False)
class PendingRecord:
    """One record on its way to the disk."""

    file: DataFile
    ordinal: int
    offset: int
    length: int
    message_id: bytes
    # None: released before a job took it, so it becomes a hole. Not changed once a job has it: a
    # thread may be writing it.
    block: Block | None


@dataclass(slots=True, eq=False)
class MessagesPiece:
    """Consecutive records of one file, from `offset` to `end`."""

    file: DataFile
    offset: int
    # The file was known to be durable up to here when this was taken.
    synced: int
    records: list[PendingRecord] = field(default_factory=list)

    @property
    def begins_file(self) -> bool:
        return self.offset == FILE_HEADER.size

    @property
    def end(self) -> int:
        last = self.records[-1]
        return last.offset + last.length


@dataclass(slots=True, eq=False)
class MessagesJob:
    directory: Path
    persistent: bool
    # From 0, in the order in which jobs are taken, written and committed.
    number: int
    # The first of this store: its directory may be new, and has to be synced into its parents.
    first: bool
    pieces: list[MessagesPiece] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """Bytes that are written, without the headers of holes."""
        return sum(
            record.length
            for piece in self.pieces
            for record in piece.records
            if record.block is not None
        )


def write(disk: Disk, job: MessagesJob) -> None:
    """Writes a job, durably if the store is. Runs in a thread; raises `OSError`."""
    for piece in job.pieces:
        path = job.directory / data_name(piece.file.number)
        stretches = _frame(piece)
        at_once = job.persistent and len(stretches) == 1
        for offset, buffers in stretches:
            disk.write(path, offset, buffers, sync=at_once)
        if job.persistent and not at_once:
            disk.sync(path)
    # A power cut takes a file whose name is not durable, however well its bytes were synced.
    if job.persistent and any(piece.begins_file for piece in job.pieces):
        disk.sync(job.directory)
        if job.first:
            disk.sync(job.directory.parent)
            disk.sync(job.directory.parent.parent)


def _frame(piece: MessagesPiece) -> list[tuple[int, list[bytes | memoryview]]]:
    """Offsets, and the bytes to be written there. Behind the header of a hole is a gap."""
    marker = piece.file.marker
    buffers: list[bytes | memoryview] = []
    stretches = [(piece.offset, buffers)]
    if piece.begins_file:
        buffers.append(file_header(MESSAGE_FILE, marker, piece.file.number))
        stretches = [(0, buffers)]
    for record in piece.records:
        block = record.block
        if block is not None:
            number, epoch = split_id(record.message_id)
            header = record_header(
                marker,
                record.offset,
                RecordKind.MESSAGE,
                block.view,
                number=number,
                epoch=epoch,
                synced=piece.synced,
            )
            buffers += (header, block.view)
            continue
        size = record.length - RECORD_HEADER_BYTES
        buffers.append(hole_header(marker, record.offset, size, record.message_id, piece.synced))
        buffers = []
        stretches.append((record.offset + record.length, buffers))
    return [stretch for stretch in stretches if stretch[1]]
