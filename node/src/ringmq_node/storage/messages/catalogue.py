"""All files of one message store by number, and the references to their records.

Changed on the loop's thread only. `find` may be called from any thread, under the lock of the
store: without it `find` could see a compaction of which one map is taken over and the next isn't.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import CorruptionReport
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.messages import relocation
from ringmq_node.storage.messages.counts import Counts
from ringmq_node.storage.messages.files import (
    NEW_SUFFIX,
    SUFFIX,
    CountedFile,
    DataFile,
    FileState,
    LostFile,
    MovedFile,
    StoreFile,
    data_name,
    map_name,
    parse_name,
)
from ringmq_node.storage.messages.relocation import LOST

# Numbers left free before the first new file, while queues that are not opened yet may refer to
# lost files: room for 64 GiB of lost files of 16 MiB. The numbers last for a million starts.
NUMBERS_SKIPPED = 4096
_UNFINISHED = (FileState.GROWING, FileState.SEALED)


class Catalogue:
    """The files by number. A number that is referred to and isn't there becomes a `LostFile`."""

    def __init__(self) -> None:
        self.files: dict[int, StoreFile] = {}
        self.next_number = 1
        # The highest number of a file that is durable. Its name is kept, so that a restart knows
        # which numbers have been used.
        self.highest_durable = 0
        # Files without references, as far as anybody has noticed.
        self.idle: dict[int, None] = {}
        # Maps of which more than half of the rows are of no more use.
        self.sparse: dict[int, None] = {}
        # Whether `idle` and `sparse` have all that belongs there.
        self.complete = False
        # Queues that are not opened yet may refer to files that are lost.
        self.expects_more = False
        # Bytes that became garbage since files were last looked at for compaction: a hint.
        self.released_bytes = 0
        self.corruptions: list[CorruptionReport] = []

    # -- at the start

    def load(self, disk: Disk, directory: Path) -> None:
        """Takes stock of a directory. Raises `OSError`, `UnsupportedFormatError`."""
        names = disk.list(directory)
        maps: list[int] = []
        for name, size in sorted(names.items()):
            if name.endswith(NEW_SUFFIX):
                disk.remove(directory / name)
                continue
            parsed = parse_name(name)
            if parsed is None:
                continue
            number, suffix = parsed
            self.highest_durable = max(self.highest_durable, number)
            if suffix == SUFFIX:
                data = DataFile(number, end=size, written=size)
                self.files[number] = data if size else LostFile(number)
            elif data_name(number) in names:
                # A compaction was cut off between its publication and the removal of this victim.
                # The victim is whole, whatever became of the rest, so it counts and not the map.
                disk.remove(directory / name)
            else:
                maps.append(number)
        for number in maps:
            self._load_map(disk, directory / map_name(number), number, names[map_name(number)])
        self.next_number = max(self.next_number, self.highest_durable + 1)
        if names:
            # A process that was killed may have renamed a map and not synced the directory. By the
            # new map this process removes files that only the old one led to. If the power cut
            # then brought the old map back, its records would be gone.
            disk.sync(directory)

    def _load_map(self, disk: Disk, path: Path, number: int, size: int) -> None:
        try:
            table = relocation.decode(str(path), number, disk.read(path, 0, size))
        except relocation.MapError as error:
            self.corruptions.append(CorruptionReport(str(path), 0, size, str(error)))
            self.files[number] = LostFile(number)
            return
        self.files[number] = MovedFile(number, table, Counts())
        leads_to = max((file for file in table.files if file != LOST), default=0)
        self.next_number = max(self.next_number, leads_to + 1)

    def note_all(self) -> None:
        """Looks at every file once for those without references, and for sparse maps."""
        self.complete = True
        for number, file in self.files.items():
            self.note_idle(number)
            if isinstance(file, MovedFile) and file.is_sparse:
                self.sparse[number] = None

    # -- numbers

    def new_number(self) -> int:
        if self.expects_more and not self.complete:
            # A queue that is opened later may refer to files above all that are there, which were
            # lost. A new file with the number of one of them would be taken for it.
            self.expects_more = False
            self.next_number += NUMBERS_SKIPPED
        number = self.next_number
        self.next_number += 1
        assert number < LOST
        return number

    def note_used(self, number: int) -> None:
        """A location names that file, which may be lost: no other file gets its number."""
        self.next_number = max(self.next_number, number + 1)

    # -- counting

    def add(self, location: RecordLocation) -> int:
        """Adds a reference; returns how many there are."""
        file = self.files.get(location.file)
        if isinstance(file, MovedFile):
            return self._add_moved(file, location)
        if file is None:
            file = self._lost_file(location.file)
        return file.add(location.ordinal, location.length)

    def _add_moved(self, file: MovedFile, location: RecordLocation) -> int:
        row = file.table.find(location.ordinal)
        if row < 0:
            count = file.unknown.get(location.ordinal, 0) + 1
            file.unknown[location.ordinal] = count
            return count
        count = file.counts.add(row)
        if count == 1:
            file.live += 1
            self.refer(file.number, file.table, row, location.length)
        return count

    def refer(self, source: int, table: relocation.Table, row: int, length: int) -> None:
        """Adds the reference that a row of a map holds to the record at its new place."""
        number = table.files[row]
        if number == LOST:
            return
        target = self.files.get(number)
        if target is None:
            target = self._lost_file(number)
        if isinstance(target, CountedFile):
            if isinstance(target, DataFile):
                if target.sources is None:
                    target.sources = {}
                target.sources[source] = None
            target.add(table.new_ordinals[row], length)

    def drop(self, location: RecordLocation) -> int:
        """Takes a reference away; returns how many are left."""
        file = self.files.get(location.file)
        assert file is not None, f"{location} is released, and nothing refers to it"
        if isinstance(file, MovedFile):
            return self._drop_moved(file, location)
        left = file.drop(location.ordinal, location.length)
        if left == 0:
            self._released(file, location.length)
        return left

    def _drop_moved(self, file: MovedFile, location: RecordLocation) -> int:
        row = file.table.find(location.ordinal)
        if row < 0:
            left = file.unknown.pop(location.ordinal, 0) - 1
            assert left >= 0, f"{location} is released, and nothing refers to it"
            if left:
                file.unknown[location.ordinal] = left
        else:
            left = file.counts.drop(row)
            if left == 0:
                file.live -= 1
                if file.is_sparse:
                    self.sparse[file.number] = None
                target = self.files.get(file.table.files[row])
                if isinstance(target, CountedFile):
                    target.drop(file.table.new_ordinals[row], location.length)
                    self._released(target, location.length)
        if left == 0:
            self.note_idle(file.number)
        return left

    def count(self, location: RecordLocation) -> int:
        file = self.files.get(location.file)
        if isinstance(file, MovedFile):
            row = file.table.find(location.ordinal)
            return file.unknown.get(location.ordinal, 0) if row < 0 else file.counts.get(row)
        return 0 if file is None else file.counts.get(location.ordinal)

    def _lost_file(self, number: int) -> LostFile:
        file = self.files[number] = LostFile(number)
        self.note_used(number)
        return file

    def _released(self, file: CountedFile, length: int) -> None:
        self.released_bytes += length
        if file.live_records == 0:
            self.idle[file.number] = None

    def note_idle(self, number: int) -> None:
        file = self.files[number]
        if isinstance(file, CountedFile):
            if file.live_records == 0:
                self.idle[number] = None
        elif not file.live and not file.unknown:
            self.idle[number] = None

    # -- looking up

    def find(self, location: RecordLocation) -> tuple[DataFile | LostFile, int] | None:
        """The file that has the record now, and its offset there; None if the record is lost."""
        file = self.files.get(location.file)
        if isinstance(file, MovedFile):
            # Taken once: `pack` on the loop's thread may replace it between two uses here.
            table = file.table
            row = table.find(location.ordinal)
            if row < 0:
                return None
            target = self.files.get(table.files[row])
            if target is None or isinstance(target, MovedFile):
                return None
            return target, table.offsets[row]
        return None if file is None else (file, location.offset)

    def data_files(self) -> Iterator[DataFile]:
        return (file for file in self.files.values() if isinstance(file, DataFile))

    def moved_files(self) -> Iterator[MovedFile]:
        return (file for file in self.files.values() if isinstance(file, MovedFile))

    def check(self) -> None:
        """Asserts the invariants, which hold between any two calls."""
        inward: dict[int, int] = {}
        for moved in self.moved_files():
            moved.check()
            for row in range(len(moved.table)):
                number = moved.table.files[row]
                if moved.counts.get(row) and number != LOST:
                    inward[number] = inward.get(number, 0) + 1
                    target = self.files[number]
                    assert isinstance(target, CountedFile), (moved.number, number)
                    assert target.counts.get(moved.table.new_ordinals[row]) == 1, number
        for file in self.files.values():
            if isinstance(file, CountedFile):
                file.check()
        for data in self.data_files():
            assert data.sources is None or inward.get(data.number, 0) == data.live_records
            if data.live_records == 0 and self.complete:
                assert data.number in self.idle or data.state in _UNFINISHED
        assert all(number < self.next_number for number in self.files)
