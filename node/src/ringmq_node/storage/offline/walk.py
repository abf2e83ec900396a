"""A file of records, from one to the next, whatever is in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.format import tables
from ringmq_node.storage.format.formats import Format
from ringmq_node.storage.format.record_file import SPARSE_BYTES, WINDOW_BYTES, RecordFile
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    RECORD_HEADER_BYTES,
    Header,
    RecordKind,
    owner_of,
)

# Records that are longer are passed over, not read through.
_DENSE_BYTES_MAX = 32 << 10


class Step(NamedTuple):
    """A record, or with `what` bytes that are none: what is wrong with them.

    `header` is there if that is valid.
    """

    offset: int
    end: int
    header: Header | None
    what: str


def open_records(disk: Disk, path: Path, format: Format, size: int, *, owned: bool) -> RecordFile:
    """`owned`: of a queue, which the file's header names. Raises `UnsupportedFormatError`."""

    def read(offset: int, length: int) -> bytes:
        return disk.read(path, offset, length)

    return RecordFile(str(path), format, size, read, owner_of(path.parent) if owned else 0)


def steps(file: RecordFile, *, payloads: bool) -> Iterator[Step]:
    """All of a file, in order, in one pass. With `payloads`, their checksums are looked at too."""
    offset = FILE_HEADER.size
    ahead = WINDOW_BYTES
    while file.marker and offset < file.size:
        header, what = file.header_at(offset, ahead)
        if header is not None and header.kind == RecordKind.HOLE:
            # Its payload was never written, and may go beyond the end.
            yield Step(offset, header.end, header, "")
            offset = header.end
            continue
        if header is not None and payloads and not what:
            what = file.payload_fault(header)
        end = file.end_of(header, offset)
        yield Step(offset, end, header, what)
        dense = payloads or header is None or header.length <= _DENSE_BYTES_MAX
        ahead = WINDOW_BYTES if dense else SPARSE_BYTES
        offset = end


def block_body(
    file: RecordFile, header: Header, first: int = 0, generation: int = 0
) -> tables.BodyRange:
    """The messages, from position `first` on, of a record whose payload is a block.

    Reads the tables only. Raises `ValueError`.
    """
    begin = header.offset + RECORD_HEADER_BYTES
    at = file.window.place(begin, min(header.length, 16), SPARSE_BYTES)
    size = tables.tables_bytes(file.window.data, at)
    if size > header.length:
        raise ValueError(f"block of {header.length} bytes ends within its tables")
    at = file.window.place(begin, size, SPARSE_BYTES)
    return tables.embedded(header, file.window.data, at, header.length, first, generation)


@dataclass(slots=True)
class Holes:
    """Bytes that are no valid record, until it is known which of them were durable once."""

    # No record behind here says that the file was durable beyond it.
    proven: int = 0
    found: list[Step] = field(default_factory=list)

    def split(self) -> tuple[list[Step], int | None]:
        """What is corrupt, and where the torn tail begins (None: nowhere). See `records`."""
        corrupt: list[Step] = []
        for step in self.found:
            if step.offset >= self.proven:
                return corrupt, step.offset
            corrupt.append(step)
        return corrupt, None
