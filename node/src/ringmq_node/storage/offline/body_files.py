"""The data files of a message store, read and checked: the records that each has, and the damage.

For each record its offset, its length and its number of messages are kept, of a bounded number of
records at a time. A file that was let go is read again when it is needed, by headers and tables.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.format import tables
from ringmq_node.storage.format.formats import MESSAGE_FILE
from ringmq_node.storage.format.record_file import RecordFile
from ringmq_node.storage.format.records import FILE_HEADER, RECORD_HEADER_BYTES, Header, RecordKind
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.messages.files import data_name
from ringmq_node.storage.offline.faults import Findings
from ringmq_node.storage.offline.walk import InvalidBytes, Stretch, open_records, stretches

# About 48 MB of columns.
RECORDS_KEPT_MAX = 4_000_000


@dataclass(slots=True)
class BodyFile:
    """The records of one file, in order."""

    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("I"))
    # Messages; 0 of a record that can't be read, and of a hole.
    counts: array[int] = field(default_factory=lambda: array("I"))
    # Below this index a record's index is its ordinal: the first damaged header comes behind. None:
    # no header is damaged.
    ordered: int | None = None
    holes: int = 0
    torn_bytes: int = 0

    def fault_of(self, place: RecordLocation, messages: int) -> str:
        """The fault of a record of which the first `messages` are wanted; empty if it is sound."""
        index = bisect_left(self.offsets, place.offset)
        if index == len(self.offsets) or self.offsets[index] != place.offset:
            return "no valid record begins here"
        if self.counts[index] == 0:
            return "record is a hole, or its body is damaged"
        if self.lengths[index] != place.length - RECORD_HEADER_BYTES:
            return (
                f"record of {self.lengths[index] + RECORD_HEADER_BYTES} bytes, not {place.length}"
            )
        if self.counts[index] < messages:
            return f"record of {self.counts[index]} messages, {messages} are expected"
        if index != place.ordinal and (self.ordered is None or index < self.ordered):
            return f"is record {index} of the file, not {place.ordinal}"
        return ""


class BodyFiles:
    """The data files of one message store, by number."""

    def __init__(self, disk: Disk, directory: Path, findings: Findings, sealed: set[int]) -> None:
        """`sealed`: files to which maps lead. Compaction has synced each before its maps."""
        self._disk = disk
        self._directory = directory
        self._findings = findings
        self._sealed = sealed
        self._kept: OrderedDict[int, BodyFile] = OrderedDict()
        self._kept_records = 0
        # Offsets of bodies that `check` has found damaged.
        self._bad: dict[int, array[int]] = {}

    def check(self, number: int, size: int) -> BodyFile:
        """Reads all of a file, and reports the damage in it. Raises `OSError`."""
        return self._keep(number, self._read(number, size, whole=True))

    def get(self, number: int, size: int) -> BodyFile:
        """A file that was checked. Raises `OSError`."""
        file = self._kept.get(number)
        if file is None:
            return self._keep(number, self._read(number, size, whole=False))
        self._kept.move_to_end(number)
        return file

    def _keep(self, number: int, file: BodyFile) -> BodyFile:
        self._kept[number] = file
        self._kept_records += len(file.offsets)
        # One file may have more records than that by itself: it is kept all the same.
        while self._kept_records > RECORDS_KEPT_MAX and len(self._kept) > 1:
            self._kept_records -= len(self._kept.popitem(last=False)[1].offsets)
        return file

    def _read(self, number: int, size: int, *, whole: bool) -> BodyFile:
        path = self._directory / data_name(number)
        records = open_records(self._disk, path, MESSAGE_FILE, size, owned=False)
        file = BodyFile()
        findings = self._findings
        if not records.marker or records.number not in (None, number):
            what = records.unreadable
            if records.marker:
                # Copied or renamed: its records are valid, and those of other locations.
                what = f"this is store file {records.number}, expected {number}"
            if whole and size > FILE_HEADER.size:
                findings.add(path, 0, size, what)
            return file
        # Payloads are looked at in the first reading only. The second one knows the bad ones.
        bad = self._bad.get(number, array("Q"))
        invalid = InvalidBytes(size if number in self._sealed else 0)
        for offset, end, header, what in stretches(records, payloads=whole):
            count = 0
            if header is not None:
                invalid.proven = max(invalid.proven, header.synced)
            if header is None or (what and header.end > size):
                file.ordered = len(file.offsets) if file.ordered is None else file.ordered
                invalid.found.append(Stretch(offset, end, header, what))
                continue
            if header.kind == RecordKind.HOLE:
                file.holes += 1
            elif not what:
                count, what = _messages(records, header)
            if what and whole:
                bad.append(offset)
                invalid.found.append(Stretch(offset, end, header, what))
            elif not whole and _has(bad, offset):
                count = 0
            file.offsets.append(offset)
            file.lengths.append(header.length)
            file.counts.append(count)
        if whole:
            self._report(path, size, records, invalid, file)
            if bad:
                self._bad[number] = bad
        return file

    def _report(
        self, path: Path, size: int, records: RecordFile, invalid: InvalidBytes, file: BodyFile
    ) -> None:
        for report in records.corruptions:
            self._findings.report(report)
        corrupt, torn = invalid.split()
        for bad in corrupt:
            self._findings.add(path, bad.offset, bad.end - bad.offset, bad.what)
        if torn is not None:
            file.torn_bytes = size - torn
            self._findings.tear(path, torn, file.torn_bytes)


def _messages(records: RecordFile, header: Header) -> tuple[int, str]:
    """The number of messages of a record, and its fault (empty if it is sound)."""
    if header.kind != RecordKind.MESSAGE:
        return 0, f"record of kind {header.kind} in a message store"
    try:
        return tables.read_embedded(records, header).last + 1, ""
    except ValueError as error:
        return 0, str(error)


def _has(sorted_numbers: array[int], number: int) -> bool:
    index = bisect_left(sorted_numbers, number)
    return index < len(sorted_numbers) and sorted_numbers[index] == number
