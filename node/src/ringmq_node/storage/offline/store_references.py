"""The references of all queues to the records of the persistent message store.

They are counted as a node counts them, by record: a body that several queues share is one. That
takes a byte for each record.

A location is never believed. Before it is counted or looked for, it is known to lie within a file
that is there. Else one reference with a forged ordinal would make a table of gigabytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.format.records import FILE_HEADER, RECORD_HEADER_BYTES
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.messages.catalogue import Catalogue
from ringmq_node.storage.messages.files import DataFile, MovedFile, data_name, map_name
from ringmq_node.storage.messages.relocation import LOST


@dataclass(frozen=True, slots=True)
class LostBody:
    """A location that leads nowhere. `path` is the file where the record should have been."""

    path: Path
    offset: int
    length: int
    what: str


class StoreReferences:
    """The files of the persistent message store, and the references to their records."""

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
        if isinstance(self.find(location), LostBody):
            self.lost += 1
        else:
            self.catalogue.add(location)

    def count(self, location: RecordLocation) -> int:
        """The references to a record, by the place where it is now."""
        file = self.catalogue.files.get(location.file)
        return file.counts.get(location.ordinal) if isinstance(file, DataFile) else 0

    def size_of(self, number: int) -> int:
        """In bytes, of a data file; 0 if it is not there."""
        file = self.catalogue.files.get(number)
        return file.end if isinstance(file, DataFile) else 0

    def find(self, location: RecordLocation) -> RecordLocation | LostBody:
        """The place of a record now, through the maps."""
        file = self.catalogue.files.get(location.file)
        if isinstance(file, MovedFile):
            place = self._moved_to(file, location)
            return place if isinstance(place, LostBody) else self._checked(place)
        return self._checked(location)

    def _moved_to(self, file: MovedFile, location: RecordLocation) -> RecordLocation | LostBody:
        path = self.directory / map_name(location.file)
        row = file.table.find(location.ordinal)
        if row < 0:
            return LostBody(path, 0, 0, f"the map has no entry for record {location.ordinal}")
        number = file.table.files[row]
        if number == LOST:
            what = f"record {location.ordinal} was damaged when it was to be moved"
            return LostBody(path, 0, 0, what)
        return RecordLocation(
            number, file.table.new_ordinals[row], file.table.offsets[row], location.length
        )

    def _checked(self, place: RecordLocation) -> RecordLocation | LostBody:
        file = self.catalogue.files.get(place.file)
        path = self.directory / data_name(place.file)
        if not isinstance(file, DataFile):
            return LostBody(path, place.offset, place.length, "the file is not there, or is empty")
        if place.offset + place.length > file.end:
            what = f"record would end behind the end of the file, which has {file.end} bytes"
            return LostBody(path, place.offset, place.length, what)
        # Each record before it takes at least a header.
        first = FILE_HEADER.size + RECORD_HEADER_BYTES * place.ordinal
        if place.length < RECORD_HEADER_BYTES or place.offset < first:
            what = f"there can't be a record {place.ordinal} of {place.length} bytes here"
            return LostBody(path, place.offset, place.length, what)
        return place
