"""The message stores' files, and what the queues' locations lead to in them.

`References` counts as a node does: by record, so that a body that several queues share is one.
It takes a byte for each record. `BodyFiles` knows of each record where it is and how many
messages it has, for a bounded number of records at a time; what was let go is read again, by
headers and tables.

A location is never believed: not counted, and not looked for, before it is known to lie
within a file that is there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.format.formats import MESSAGE_FILE
from ringmq_node.storage.format.record_file import RecordFile
from ringmq_node.storage.format.records import FILE_HEADER, RECORD_HEADER_BYTES, Header, RecordKind
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.messages.catalogue import Catalogue
from ringmq_node.storage.messages.files import DataFile, MovedFile, data_name, map_name
from ringmq_node.storage.messages.relocation import LOST
from ringmq_node.storage.offline.faults import Findings
from ringmq_node.storage.offline.walk import Holes, Step, block_body, open_records, steps

# About 48 MB of columns.
RECORDS_KEPT_MAX = 4_000_000


@dataclass(frozen=True, slots=True)
class Lost:
    """A location that leads nowhere. `path` is the file where the record should have been."""

    path: Path
    offset: int
    length: int
    what: str


class References:
    """The persistent message store, and who refers to what in it."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        """Reads names, sizes and maps. Raises `OSError`, `UnsupportedFormatError`."""
        self.directory = directory
        self.catalogue = Catalogue()
        self.catalogue.load(disk, directory)
        # References that lead nowhere.
        self.lost = 0
        # Queues whose references are not known.
        self.unreadable_queues = 0

    def refer(self, location: RecordLocation) -> None:
        if isinstance(self.find(location), Lost):
            self.lost += 1
        else:
            self.catalogue.add(location)

    def count(self, location: RecordLocation) -> int:
        """How many references there are to a record, by the place where it is now."""
        file = self.catalogue.files.get(location.file)
        return file.counts.get(location.ordinal) if isinstance(file, DataFile) else 0

    def size_of(self, number: int) -> int:
        """In bytes, of a data file; 0 if it is not there."""
        file = self.catalogue.files.get(number)
        return file.end if isinstance(file, DataFile) else 0

    def find(self, location: RecordLocation) -> RecordLocation | Lost:
        """Where the record is now, through the maps."""
        file = self.catalogue.files.get(location.file)
        path = self.directory / data_name(location.file)
        place = location
        if isinstance(file, MovedFile):
            row = file.table.find(location.ordinal)
            path = self.directory / map_name(location.file)
            if row < 0:
                return Lost(path, 0, 0, f"the map does not have record {location.ordinal}")
            number = file.table.files[row]
            if number == LOST:
                what = f"record {location.ordinal} was damaged when it was to be moved"
                return Lost(path, 0, 0, what)
            place = RecordLocation(
                number, file.table.new_ordinals[row], file.table.offsets[row], location.length
            )
            file = self.catalogue.files.get(number)
            path = self.directory / data_name(number)
        if not isinstance(file, DataFile) or file.end == 0:
            return Lost(path, place.offset, place.length, "the file is not there, or is empty")
        if place.offset + place.length > file.end:
            return Lost(path, place.offset, place.length, "beyond the end of the file")
        first = FILE_HEADER.size + RECORD_HEADER_BYTES * place.ordinal
        if place.length < RECORD_HEADER_BYTES or place.offset < first:
            what = f"there can't be a record {place.ordinal} of {place.length} bytes here"
            return Lost(path, place.offset, place.length, what)
        return place


@dataclass(slots=True)
class BodyFile:
    """The records of one file, in order."""

    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("I"))
    # Messages; 0 of what can't be read, and of a hole.
    counts: array[int] = field(default_factory=lambda: array("I"))
    # Below it the index of a record is its ordinal: no header before it is damaged.
    ordered: int | None = None
    holes: int = 0
    torn_bytes: int = 0

    def fault_of(self, place: RecordLocation, messages: int) -> str:
        """What is wrong with a record of which `messages` are referred to; empty if nothing."""
        index = bisect_left(self.offsets, place.offset)
        if index == len(self.offsets) or self.offsets[index] != place.offset:
            return "no valid record"
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
        """`sealed`: files that compaction has written, and that a map proves to be durable."""
        self._disk = disk
        self._directory = directory
        self._findings = findings
        self._sealed = sealed
        self._kept: OrderedDict[int, BodyFile] = OrderedDict()
        self._kept_records = 0
        # Offsets of bodies that `check` has found damaged.
        self._bad: dict[int, array[int]] = {}

    def check(self, number: int, size: int) -> BodyFile:
        """Reads all of a file, and reports what is wrong with it. Raises `OSError`."""
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
        while self._kept_records > RECORDS_KEPT_MAX and len(self._kept) > 1:
            self._kept_records -= len(self._kept.popitem(last=False)[1].offsets)
        return file

    def _read(self, number: int, size: int, *, whole: bool) -> BodyFile:
        path = self._directory / data_name(number)
        records = open_records(self._disk, path, MESSAGE_FILE, size, owned=False)
        file = BodyFile()
        findings = self._findings
        if not records.marker or records.number not in (None, number):
            what = records.unreadable if not records.marker else f"this is file {records.number}"
            if whole and size > FILE_HEADER.size:
                findings.add(path, 0, size, what)
            return file
        bad = self._bad.get(number, array("Q"))
        holes = Holes(size if number in self._sealed else 0)
        for offset, end, header, what in steps(records, payloads=whole):
            count = 0
            if header is not None:
                holes.proven = max(holes.proven, header.synced)
            if header is None or (what and header.end > size):
                file.ordered = len(file.offsets) if file.ordered is None else file.ordered
                holes.found.append(Step(offset, end, header, what))
                continue
            if header.kind == RecordKind.HOLE:
                file.holes += 1
            elif not what:
                count, what = _messages(records, header)
            if what and whole:
                bad.append(offset)
                holes.found.append(Step(offset, end, header, what))
            elif not whole and _has(bad, offset):
                count = 0
            file.offsets.append(offset)
            file.lengths.append(header.length)
            file.counts.append(count)
        if whole:
            self._report(path, size, records, holes, file)
            if bad:
                self._bad[number] = bad
        return file

    def _report(
        self, path: Path, size: int, records: RecordFile, holes: Holes, file: BodyFile
    ) -> None:
        for report in records.corruptions:
            self._findings.report(report)
        corrupt, torn = holes.split()
        for step in corrupt:
            self._findings.add(path, step.offset, step.end - step.offset, step.what)
        if torn is not None:
            file.torn_bytes = size - torn
            self._findings.tear(path, torn, file.torn_bytes)


def _messages(records: RecordFile, header: Header) -> tuple[int, str]:
    """How many messages a record has, and what is wrong with it."""
    if header.kind != RecordKind.MESSAGE:
        return 0, f"record of kind {header.kind} in a message store"
    try:
        return block_body(records, header).last + 1, ""
    except ValueError as error:
        return 0, str(error)


def _has(sorted_numbers: array[int], number: int) -> bool:
    index = bisect_left(sorted_numbers, number)
    return index < len(sorted_numbers) and sorted_numbers[index] == number
