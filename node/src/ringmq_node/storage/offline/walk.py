"""A file of records, read from one record to the next, with any damage in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.format.formats import Format
from ringmq_node.storage.format.record_file import (
    DENSE_BYTES_MAX,
    SPARSE_BYTES,
    WINDOW_BYTES,
    RecordFile,
)
from ringmq_node.storage.format.records import FILE_HEADER, Header, RecordKind, owner_of


class Stretch(NamedTuple):
    """One record; or bytes that are no valid record, and then `what` names the fault.

    `header` is there also if only the payload is damaged.
    """

    offset: int
    end: int
    header: Header | None
    what: str


def open_records(disk: Disk, path: Path, format: Format, size: int, *, owned: bool) -> RecordFile:
    """`owned`: a queue's file, whose header names the queue. Raises `UnsupportedFormatError`."""
    owner = owner_of(path.parent) if owned else 0
    return RecordFile(str(path), format, size, partial(disk.read, path), owner)


def stretches(file: RecordFile, *, payloads: bool) -> Iterator[Stretch]:
    """All of a file, in order, in one pass. With `payloads` their checksums are checked, too."""
    offset = FILE_HEADER.size
    ahead = WINDOW_BYTES
    while file.marker and offset < file.size:
        header, what = file.header_at(offset, ahead)
        if header is not None and header.kind == RecordKind.HOLE:
            # Its payload was never written, and may go beyond the end.
            yield Stretch(offset, header.end, header, "")
            offset = header.end
            continue
        if header is not None and payloads and not what:
            what = file.payload_fault(header)
        end = file.end_of(header, offset)
        yield Stretch(offset, end, header, what)
        dense = payloads or header is None or header.length <= DENSE_BYTES_MAX
        ahead = WINDOW_BYTES if dense else SPARSE_BYTES
        offset = end


@dataclass(slots=True)
class InvalidBytes:
    """Bytes that are no valid record, until it is known which of them were durable once."""

    # The file was durable up to here: a record says so, or a map that leads to it.
    proven: int = 0
    found: list[Stretch] = field(default_factory=list)

    def split(self) -> tuple[list[Stretch], int | None]:
        """The corrupt ones, and the offset of the torn tail (None: there is none). See `records`.

        All from the first unproven byte on is torn: a power cut may keep a later write and lose
        an earlier one.
        """
        corrupt: list[Stretch] = []
        for stretch in self.found:
            if stretch.offset >= self.proven:
                return corrupt, stretch.offset
            corrupt.append(stretch)
        return corrupt, None
