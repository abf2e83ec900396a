"""Reading a file of records: which of its bytes a reader believes.

Two things can be wrong with bytes at offset `o` that are no valid record, and they are told apart
by `synced`, which each record header carries:

* A valid header after `o` has `synced > o`. Then these bytes were durable once: this is
  **corruption**. It is reported, and reading goes on behind it.
* No header has. Then nobody was ever told that these bytes are durable: this is a **torn tail**.
  The log ends at `o`. Valid records behind `o` are no part of the log either, because a power cut
  may keep a later write and lose an earlier one.

So damage within the last sync round looks like a torn tail, and no reader can do better. A clean
stop ends the journal with an `end` record, whose `synced` proves all that is before it.

(A journal has one more rule: an elided publish counts only if the log reaches the end of its
round. See `journal_records`.)

Reading takes time linear in the file's size and memory for one window or one record. The marker
is searched for at C speed, and no payload is looked at before its header's checksum holds. A
record that was visited is part of the log, whatever comes behind it. Only at the first bad bytes
are the headers of all the rest looked at, to tell the two cases apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from isal.isal_zlib import crc32

from ringmq_node.storage.errors import CorruptionReport
from ringmq_node.storage.format.formats import Format
from ringmq_node.storage.format.records import (
    FILE_HEADER,
    NO_HEADER,
    RECORD_HEADER_BYTES,
    RECORD_PREFIX,
    Header,
    RecordKind,
    parse_header,
    wrong_checksum,
)

# Bytes per read where records are small, and where only headers and tables are wanted.
WINDOW_BYTES: Final = 1 << 20
SPARSE_BYTES: Final = 4 << 10
# Payloads that are longer are passed over by another read: it costs less than reading through.
DENSE_BYTES_MAX: Final = 32 << 10
# The tables of any block are shorter, and so is any op that isn't a publish.
HEAD_BYTES_MAX: Final = 17 << 20

# Kinds whose payload may be a block. Of a long one only the tables are looked at.
_HEADED: Final = frozenset((RecordKind.OP, RecordKind.FILL, RecordKind.ENTRY, RecordKind.MESSAGE))

T = TypeVar("T")


class FileWindow:
    """A piece of a file in memory, which moves forwards. `data` was read at `start`."""

    __slots__ = ("_read", "data", "size", "start")

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self.size = size
        self.start = 0
        self.data = b""

    def place(self, offset: int, size: int, ahead: int = WINDOW_BYTES) -> int:
        """The index in `data` of the file's byte `offset`, with `size` bytes from there on.

        There are fewer only at the end of the file. A read takes at least `ahead` bytes.
        """
        at = offset - self.start
        if at < 0 or at + size > len(self.data):
            wanted = min(max(size, ahead), self.size - offset)
            self.data = self._read(offset, wanted) if wanted > 0 else b""
            self.start = offset
            return 0
        return at


@dataclass(slots=True)
class Scan(Generic[T]):
    """The outcome of reading a file. `records` holds what `visit` has kept, in order."""

    marker: int
    # The number in the file's header, or None where the header is damaged.
    number: int | None
    records: list[tuple[Header, T]]
    corruptions: list[CorruptionReport]
    # Where the valid part ends, and how many bytes lie behind it.
    end: int
    torn_bytes: int
    # Whether something was lost that isn't the torn tail.
    damaged: bool = False


class RecordFile:
    """A file of records that is being read.

    `marker` is 0 if the file can't be read at all, for the reason `unreadable`; `number` is None
    if the file's header is damaged. Without `owner` the file of any queue is read. Raises
    `UnsupportedFormatError` for another version of the format.
    """

    def __init__(
        self,
        name: str,
        format: Format,
        size: int,
        read: Callable[[int, int], bytes],
        owner: int = 0,
    ) -> None:
        self.name = name
        self.size = size
        self.window = FileWindow(read, size)
        self.corruptions: list[CorruptionReport] = []
        self.number: int | None = None
        self.unreadable = "no readable record"
        self.marker = self._read_file_header(format, owner)

    def scan(self, visit: Callable[[Header, bytes], T | None]) -> Scan[T]:
        """Reads and checks all records, in order. `visit` returns what to keep of one, if anything.

        Of a payload with a block, `visit` gets at most `HEAD_BYTES_MAX` bytes, which include the
        block's tables. It may raise `ValueError` for a payload that makes no sense; the record
        then counts as damaged. It must have changed nothing by then.
        """
        offset = min(FILE_HEADER.size, self.size)
        result: Scan[T] = Scan(self.marker, self.number, [], self.corruptions, offset, 0)
        proven: int | None = None
        while self.marker and offset < self.size:
            header, payload, fault = self._read_record(offset)
            if header is not None and not fault:
                try:
                    kept = visit(header, payload)
                except ValueError as error:
                    fault = str(error)
                else:
                    if kept is not None:
                        result.records.append((header, kept))
                    offset = result.end = header.end
                    continue
            # Once for the file: headers before the first bad bytes can prove nothing about these.
            if proven is None:
                proven = self._proven_behind(offset)
            if offset >= proven:
                break
            after = self.end_of(header, offset)
            self.corruptions.append(CorruptionReport(self.name, offset, after - offset, fault))
            offset = after
            result.end = max(result.end, offset)
        result.torn_bytes = self.size - result.end
        result.damaged = bool(self.corruptions)
        return result

    def header_at(self, offset: int, ahead: int = WINDOW_BYTES) -> tuple[Header | None, str]:
        """The header at `offset`, and its fault, or ""."""
        window = self.window
        at = window.place(offset, RECORD_HEADER_BYTES, ahead)
        header = parse_header(self.marker, offset, window.data, at)
        if header is None:
            return None, NO_HEADER
        if header.end > self.size:
            return header, "record goes beyond the end of the file"
        return header, ""

    def end_of(self, header: Header | None, offset: int) -> int:
        """The offset at which reading goes on behind bad bytes at `offset`."""
        if header is not None and header.end <= self.size:
            return header.end
        return self.find_header(offset + 1)

    def find_header(self, offset: int) -> int:
        """The offset of the next valid header at or after `offset`; the file's size if none."""
        window = self.window
        needle = self.marker.to_bytes(4, "little")
        while offset + RECORD_HEADER_BYTES <= self.size:
            at = window.place(offset, min(2 * RECORD_HEADER_BYTES, self.size - offset))
            data, start = window.data, window.start
            if len(data) - at < RECORD_HEADER_BYTES:
                break
            while (at := data.find(needle, at)) >= 0 and at + RECORD_HEADER_BYTES <= len(data):
                if parse_header(self.marker, start + at, data, at) is not None:
                    return start + at
                at += 1
            # A header may lie across the end of the window.
            offset = start + len(data) - RECORD_HEADER_BYTES + 1
        return self.size

    def payload_fault(self, header: Header) -> str:
        """Reads a whole payload, in pieces; returns its fault, or ""."""
        crc = 0
        offset = header.offset + RECORD_HEADER_BYTES
        while offset < header.end:
            size = min(header.end - offset, WINDOW_BYTES)
            at = self.window.place(offset, size)
            piece = memoryview(self.window.data)[at : at + size]
            if not piece:
                break
            crc = crc32(piece, crc)
            offset += len(piece)
        return wrong_checksum(header, crc) if crc != header.payload_crc else ""

    def payload(self, header: Header, size: int) -> bytes:
        """The first `size` bytes of a payload, or all if it is shorter."""
        size = min(size, header.length)
        at = self.window.place(header.offset + RECORD_HEADER_BYTES, size)
        return self.window.data[at : at + size]

    def _read_record(self, offset: int) -> tuple[Header | None, bytes, str]:
        header, fault = self.header_at(offset)
        if header is None or fault:
            return header, b"", fault
        if header.kind == RecordKind.HOLE:
            return header, b"", ""
        if header.length > HEAD_BYTES_MAX:
            fault = self.payload_fault(header)
            size = HEAD_BYTES_MAX if header.kind in _HEADED else header.length
            return header, b"" if fault else self.payload(header, size), fault
        at = self.window.place(offset, RECORD_HEADER_BYTES + header.length)
        payload = self.window.data[at + RECORD_HEADER_BYTES : at + header.end - offset]
        crc = crc32(payload)
        return header, payload, "" if crc == header.payload_crc else wrong_checksum(header, crc)

    def _proven_behind(self, offset: int) -> int:
        """The offset up to which the headers from `offset` on say that the file was durable."""
        proven = 0
        while offset < self.size:
            header, _ = self.header_at(offset, SPARSE_BYTES)
            if header is not None:
                proven = max(proven, header.synced)
            offset = self.end_of(header, offset)
        return proven

    def _read_file_header(self, format: Format, owner: int) -> int:
        """The file's marker, or 0 if there is none to be found."""
        window = self.window
        at = window.place(0, min(self.size, FILE_HEADER.size))
        if len(window.data) - at >= FILE_HEADER.size:
            found, version, _, marker, number, crc, owned = FILE_HEADER.unpack_from(window.data, at)
            # The owner begins the checksum and is not covered by it. So a damaged owner field is
            # made good by the owner that the caller expects.
            seeds = {crc32(window.data[at : at + 24], seed): seed for seed in (owned, owner)}
            if crc in seeds:
                if found != format.magic or (owner and seeds[crc] not in (0, owner)):
                    self.unreadable = "a file of another kind, or of another queue"
                    return 0
                format.check_version(self.name, version)
                self.number = number
                return int(marker)
        return self._marker_of_first_record(owner)

    def _marker_of_first_record(self, owner: int) -> int:
        """The marker that the first record has, for a file whose own header is damaged; or 0.

        Every record carries the marker. If the first record is valid with it, only the header was
        hit. No record says whose the file is, so the owner has to be readable for this.
        """
        window = self.window
        at = window.place(0, min(self.size, FILE_HEADER.size + RECORD_HEADER_BYTES))
        head = window.data[at : at + FILE_HEADER.size + RECORD_HEADER_BYTES]
        if len(head) < FILE_HEADER.size + RECORD_HEADER_BYTES:
            return 0
        owned = FILE_HEADER.unpack_from(head)[6]
        marker = RECORD_PREFIX.unpack_from(head, FILE_HEADER.size)[0]
        first = parse_header(marker, FILE_HEADER.size, head, FILE_HEADER.size)
        if not marker or first is None or owner not in (0, owned):
            return 0
        fault = "file header is damaged"
        self.corruptions.append(CorruptionReport(self.name, 0, FILE_HEADER.size, fault))
        return int(marker)
