"""Data files and maps of a message store, looked at from outside: while no node has them open.

For `ringmq store inspect` and `verify`. `records_of` goes through one `N.rdq` record by
record in one window of memory. What is no valid record is told as it is in all files
of records: **corruption** if these bytes are known to have been durable, else a **torn tail**,
which a crash leaves and which nobody was told of. Known to be durable is

* what a later record of the file says was synced when it was written,
* what a map leads to (`proven`): compaction syncs its file before it writes the map.

A hole is sound whatever its payload is, and though it may go beyond the file's end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ringmq_node.queue.block import Block, BlockError
from ringmq_node.storage.errors import CorruptionReport
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    RECORD_HEADER_BYTES,
    Header,
    RecordKind,
    parse_payload,
)
from ringmq_node.storage.messages import relocation
from ringmq_node.storage.messages.data_file import (
    GrowingWindow,
    Read,
    join_id,
    marker_of_record,
    parse_file_header,
    read_record_header,
)
from ringmq_node.storage.messages.relocation import LOST, Table

_SEARCH_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One record or hole of a data file, or bytes that are neither."""

    # None behind bytes that are no record: nobody knows how many records they were.
    ordinal: int | None
    offset: int
    # With the header. Of bytes that are no record: up to the next one, or the file's end.
    length: int
    # None: no valid header.
    kind: RecordKind | None
    message_id: bytes
    # In the block; 0 if it can't be read.
    messages: int
    # The file was known to be durable up to here.
    synced: int
    # What is wrong; empty if nothing.
    fault: str

    @property
    def valid(self) -> bool:
        return not self.fault


def records_of(name: str, size: int, read: Read) -> Iterator[StoredRecord]:
    """All that is in a data file, in order, with every checksum looked at.

    `read(offset, size)` gives bytes of it. Raises `UnsupportedFormatError`, and what `read` does.
    """
    window = GrowingWindow(read)
    marker, fault = _marker_of(name, window)
    if fault:
        yield StoredRecord(None, 0, min(size, FILE_HEADER.size), None, b"", 0, 0, fault)
    offset = FILE_HEADER.size
    ordinal: int | None = 0
    while offset < size:
        header = read_record_header(window, marker, offset) if marker else None
        if header is None:
            end = _next_record(window, marker, offset + 1, size)
            what = "no valid record header"
            yield StoredRecord(None, offset, end - offset, None, b"", 0, 0, what)
            ordinal = None
            offset = end
            continue
        yield _examined(window, marker, header, ordinal)
        ordinal = None if ordinal is None else ordinal + 1
        offset = header.end


@dataclass(slots=True)
class DataFileReport:
    """What there is in one data file."""

    name: str
    size_bytes: int
    records: int = 0
    messages: int = 0
    holes: int = 0
    # Of records and of holes, with their headers; holes take room on the disk for that only.
    record_bytes: int = 0
    hole_bytes: int = 0
    # What a crash has left behind the last record.
    torn_bytes: int = 0
    corruptions: list[CorruptionReport] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.corruptions

    @property
    def first_bad(self) -> CorruptionReport | None:
        return self.corruptions[0] if self.corruptions else None


def verify_file(name: str, size: int, read: Read, *, proven: int = 0) -> DataFileReport:
    """Reads all of a data file. `proven`: it is known to have been durable up to there.

    Raises `UnsupportedFormatError`, and what `read` does.
    """
    report = DataFileReport(name, size)
    # With what had been counted before each.
    bad: list[tuple[StoredRecord, DataFileReport]] = []
    for record in records_of(name, size, read):
        proven = max(proven, record.synced)
        if record.fault:
            bad.append((record, replace(report)))
        elif record.kind == RecordKind.HOLE:
            report.holes += 1
            report.hole_bytes += record.length
        else:
            report.records += 1
            report.messages += record.messages
            report.record_bytes += record.length
    corruptions: list[CorruptionReport] = []
    for record, before in bad:
        # A file's header is written with its first record, so it was there if that is.
        if record.offset >= proven and (record.offset or not (report.records or report.holes)):
            # Valid records behind a torn one don't count either.
            report = before
            report.torn_bytes = size - record.offset
            break
        corruptions.append(CorruptionReport(name, record.offset, record.length, record.fault))
    report.corruptions = corruptions
    return report


@dataclass(frozen=True, slots=True)
class MapReport:
    """What there is in one map."""

    name: str
    number: int
    entries: int
    # Records that were damaged when they were to be moved.
    lost: int
    # By number of the file that it leads to: up to where that file was durable.
    proven: dict[int, int]
    # The map can't be read: nothing that it led to can.
    corruption: CorruptionReport | None = None

    @property
    def sound(self) -> bool:
        return self.corruption is None


def verify_map(name: str, number: int, data: bytes) -> MapReport:
    """Looks at a whole map, `number` being the one in its name. Raises `UnsupportedFormatError`."""
    try:
        table = relocation.decode(name, number, data)
    except relocation.MapError as error:
        report = CorruptionReport(name, 0, len(data), str(error))
        return MapReport(name, number, 0, 0, {}, report)
    return MapReport(name, number, len(table), list(table.files).count(LOST), _proven_by(table))


def _proven_by(table: Table) -> dict[int, int]:
    proven: dict[int, int] = {}
    for file, offset in zip(table.files, table.offsets, strict=True):
        if file != LOST:
            proven[file] = max(proven.get(file, 0), offset + RECORD_HEADER_BYTES)
    return proven


def _marker_of(name: str, window: GrowingWindow) -> tuple[int, str]:
    """The marker, and what is wrong with the file's header."""
    header = parse_file_header(name, window.get(0, FILE_HEADER.size))
    if header is not None:
        return header.marker, ""
    # Each record has it too. If the first one is valid with it, only the header is damaged.
    marker = marker_of_record(window.get(FILE_HEADER.size, RECORD_HEADER_BYTES))
    if marker and read_record_header(window, marker, FILE_HEADER.size) is not None:
        return marker, "file header is damaged"
    return 0, "file header is damaged, and no record says what it was"


def _examined(
    window: GrowingWindow, marker: int, header: Header, ordinal: int | None
) -> StoredRecord:
    length = RECORD_HEADER_BYTES + header.length
    message_id = join_id(header)
    kind = RecordKind(header.kind)
    messages = 0
    fault = ""
    if kind == RecordKind.MESSAGE:
        _, payload, fault = parse_payload(marker, header.offset, window.get(header.offset, length))
        if not fault:
            try:
                messages = Block(payload).count
            except BlockError as error:
                fault = str(error)
    return StoredRecord(
        ordinal, header.offset, length, kind, message_id, messages, header.synced, fault
    )


def _next_record(window: GrowingWindow, marker: int, offset: int, size: int) -> int:
    """Where the next valid header is, at `offset` or after; the file's size if nowhere."""
    needle = marker.to_bytes(4, "little")
    while marker and offset + RECORD_HEADER_BYTES <= size:
        piece = window.get(offset, min(_SEARCH_BYTES, size - offset))
        at = piece.find(needle)
        while at >= 0:
            if read_record_header(window, marker, offset + at) is not None:
                return offset + at
            at = piece.find(needle, at + 1)
        # A header's marker may lie across the end of the piece.
        offset += max(len(piece) - len(needle) + 1, 1)
    return size
