"""Reading blocks: the bodies of index entries, from their records or from the message store.

Runs on the event loop for a block that is wanted now, and in threads for the flush and the
read-ahead. A damaged block is a `CorruptError` with file and offset. A file that can't be read
just now, because the process has too many open for example, is a `ReadError`: the block may be
whole, and nobody gives it up for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import CorruptError, CorruptionReport, ReadError
from ringmq_node.storage.format.records import RECORD_HEADER_BYTES, RecordKind, parse_record
from ringmq_node.storage.messages import MessageStore
from ringmq_node.storage.queue.entries import IndexEntry


class MessagesOf(Protocol):
    def __call__(self, *, transient: bool) -> MessageStore:
        """The message store of transient or persistent messages."""


def read_block(disk: Disk, entry: IndexEntry, messages: MessagesOf) -> Block:
    """The block of an entry, from its record or the message store. Raises `CorruptError`,
    `ReadError`."""
    if entry.location is not None:
        block = messages(transient=entry.transient).read(entry.location)
        stop = entry.start + entry.count
        if stop > block.count:
            what = f"refers to messages {entry.start} to {stop - 1} of a block of {block.count}"
            raise _corrupt(entry, what)
        return block
    return read_record(disk, entry)


def read_blocks(
    disk: Disk, entries: Sequence[IndexEntry], messages: MessagesOf
) -> list[Block | CorruptionReport | None]:
    """The blocks of all `entries`, in order; a report for a damaged one, None for one that can't
    be read just now.

    Records that follow one another in their file are read with one call of the disk.
    """
    found: list[Block | CorruptionReport | None] = []
    index = 0
    while index < len(entries):
        stop = index + 1
        while stop < len(entries) and _follows(entries[stop - 1], entries[stop]):
            stop += 1
        found += _read_run(disk, entries[index:stop], messages)
        index = stop
    return found


def _follows(before: IndexEntry, entry: IndexEntry) -> bool:
    """Whether an entry's record is the same as that of the entry before, or right behind it."""
    return (
        entry.file is before.file
        and entry.location is None
        and before.location is None
        and entry.offset in (before.offset, before.offset + before.length)
    )


def _read_run(
    disk: Disk, entries: Sequence[IndexEntry], messages: MessagesOf
) -> list[Block | CorruptionReport | None]:
    """The blocks of entries whose records follow one another; or of a single entry."""
    found: list[Block | CorruptionReport | None] = []
    data = b""
    start = entries[0].offset
    if len(entries) > 1 and entries[0].file is not None:
        file = entries[0].file
        try:
            with file.lock:
                data = disk.read(file.path, start, entries[-1].offset + entries[-1].length - start)
        except OSError:
            # Each record is tried by itself below, and only some of them may fail.
            data = b""
    # Several entries may be parts of one record: its block is parsed once.
    parsed: tuple[int, Block] | None = None
    for entry in entries:
        if parsed is not None and parsed[0] == entry.offset:
            found.append(parsed[1])
            continue
        at = entry.offset - start
        try:
            if at + entry.length <= len(data):
                block = _parse_record(entry, data[at : at + entry.length])
            else:
                block = read_block(disk, entry, messages)
        except CorruptError as error:
            found.append(error.report)
            continue
        except ReadError:
            found.append(None)
            continue
        parsed = None if entry.location is not None else (entry.offset, block)
        found.append(block)
    return found


def read_record(disk: Disk, entry: IndexEntry) -> Block:
    """The block in the record of an entry. Raises `CorruptError`, `ReadError`."""
    file = entry.file
    assert file is not None
    try:
        with file.lock:
            data = disk.read(file.path, entry.offset, entry.length)
    except FileNotFoundError as error:
        raise _corrupt(entry, "file is not there") from error
    except OSError as error:
        raise ReadError.of(file.path, error) from error
    return _parse_record(entry, data)


def _parse_record(entry: IndexEntry, data: bytes) -> Block:
    assert entry.file is not None
    header, what = parse_record(entry.file.marker, entry.offset, data)
    if header is None or what:
        raise _corrupt(entry, what)
    try:
        block = _block_in(header.kind, data)
    except ValueError as error:
        raise _corrupt(entry, str(error)) from error
    if block is None:
        raise _corrupt(entry, "record has no bodies")
    if block.count < entry.start + entry.count:
        raise _corrupt(entry, f"record has {block.count} bodies")
    return block


def _block_in(kind: int, data: bytes) -> Block | None:
    """The block of a record, if it has one. Raises `ValueError`."""
    if kind == RecordKind.OP:
        return ops.block_in(data, RECORD_HEADER_BYTES)
    if kind in (RecordKind.FILL, RecordKind.ENTRY):
        return Block(data, RECORD_HEADER_BYTES)
    return None


def _corrupt(entry: IndexEntry, what: str) -> CorruptError:
    assert entry.file is not None
    return CorruptError(CorruptionReport(str(entry.file.path), entry.offset, entry.length, what))
