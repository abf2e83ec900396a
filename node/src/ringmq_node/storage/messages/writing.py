"""What `MessageStore.take` hands to a thread, and what the thread does with it."""

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
from ringmq_node.storage.messages.files import DataFile, data_name
from ringmq_node.storage.messages.walk import hole_header, split_id


@dataclass(slots=True, eq=False)
class Put:
    """One record on its way to the disk."""

    file: DataFile
    ordinal: int
    offset: int
    length: int
    message_id: bytes
    # None: released before it was taken. Not changed after that.
    block: Block | None


@dataclass(slots=True, eq=False)
class MessagesPiece:
    """Consecutive records of one file, from `offset` to `end`."""

    file: DataFile
    offset: int
    # The file was known to be durable up to here when this was taken.
    synced: int
    puts: list[Put] = field(default_factory=list)

    @property
    def begins_file(self) -> bool:
        return self.offset == FILE_HEADER.size

    @property
    def end(self) -> int:
        last = self.puts[-1]
        return last.offset + last.length


@dataclass(slots=True, eq=False)
class MessagesJob:
    directory: Path
    persistent: bool
    # Jobs are committed in the order in which they were taken.
    number: int
    # The directory may be new.
    first: bool
    pieces: list[MessagesPiece] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """How much is written, but for what was released before."""
        return sum(
            put.length for piece in self.pieces for put in piece.puts if put.block is not None
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
    if job.persistent and any(piece.begins_file for piece in job.pieces):
        disk.sync(job.directory)
        if job.first:
            disk.sync(job.directory.parent)
            disk.sync(job.directory.parent.parent)


def _frame(piece: MessagesPiece) -> list[tuple[int, list[bytes]]]:
    """Where to write what. Behind the header of a hole there is a gap."""
    marker = piece.file.marker
    buffers: list[bytes] = []
    stretches = [(piece.offset, buffers)]
    if piece.begins_file:
        buffers.append(file_header(MESSAGE_FILE, marker, piece.file.number))
        stretches = [(0, buffers)]
    for put in piece.puts:
        block = put.block
        if block is not None:
            number, epoch = split_id(put.message_id)
            header = record_header(
                marker,
                put.offset,
                RecordKind.MESSAGE,
                block.data,
                number=number,
                epoch=epoch,
                synced=piece.synced,
            )
            buffers += (header, block.data)
            continue
        size = put.length - RECORD_HEADER_BYTES
        buffers.append(hole_header(marker, put.offset, size, put.message_id, piece.synced))
        buffers = []
        stretches.append((put.offset + put.length, buffers))
    return [stretch for stretch in stretches if stretch[1]]
