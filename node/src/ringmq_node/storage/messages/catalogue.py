"""All files of one message store, and what is referred to in them.

Changed on the loop's thread only. `find` may be called from any thread; the lock of the
store keeps it from seeing a compaction half taken over.
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
    DataFile,
    MovedFile,
    data_name,
    map_name,
    parse_name,
)
from ringmq_node.storage.messages.relocation import LOST

# What a file that is made before all queues are known is ahead of the last one: 64 GiB of
# lost files of 16 MiB. The numbers last for a million starts.
NUMBERS_SKIPPED = 4096


class Catalogue:
    """What there is by number. A number that is not in it stands for a lost file."""

    def __init__(self) -> None:
        self.files: dict[int, DataFile | MovedFile] = {}
        self.next_number = 1
        # Of the files that are durable. It is not removed: at a restart it says which
        # numbers have been used.
        self.highest_durable = 0
        # Files of which nothing is referred to, as far as anybody has noticed.
        self.idle: dict[int, None] = {}
        # Maps of which many rows are of no more use.
        self.sparse: dict[int, None] = {}
        # Whether `idle` and `sparse` have all that belongs there.
        self.complete = False
        # Queues that nobody has opened yet may refer to files that are lost.
        self.expects_more = False
        # What has become garbage: a hint for when to look for what is worth compacting.
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
                self.files[number] = DataFile(number, end=size, written=size)
            elif data_name(number) in names:
                # Both: the data file is whole, and counts.
                disk.remove(directory / name)
            else:
                maps.append(number)
        for number in maps:
            self._load_map(disk, directory / map_name(number), number, names[map_name(number)])
        self.next_number = max(self.next_number, self.highest_durable + 1)
        if names:
            # A process that was killed may have renamed without syncing.
            disk.sync(directory)

    def _load_map(self, disk: Disk, path: Path, number: int, size: int) -> None:
        try:
            table = relocation.decode(str(path), number, disk.read(path, 0, size))
        except relocation.MapError as error:
            self.corruptions.append(CorruptionReport(str(path), 0, size, str(error)))
            # Without anything in it, as a file that is lost.
            self.files[number] = DataFile(number)
            return
        self.files[number] = MovedFile(number, table, Counts())
        leads_to = max((file for file in table.files if file != LOST), default=0)
        self.next_number = max(self.next_number, leads_to + 1)

    def note_all(self) -> None:
        """Looks at every file for what nobody has referred to."""
        self.complete = True
        for number, file in self.files.items():
            self.note_idle(number)
            if isinstance(file, MovedFile) and file.is_sparse:
                self.sparse[number] = None

    # -- counting

    def new_number(self) -> int:
        if self.expects_more and not self.complete:
            self.expects_more = False
            self.next_number += NUMBERS_SKIPPED
        number = self.next_number
        self.next_number += 1
        assert number < LOST
        return number

    def note_used(self, number: int) -> None:
        """Somebody refers to that file, which may be lost: no other one gets its number."""
        self.next_number = max(self.next_number, number + 1)

    def add(self, location: RecordLocation) -> int:
        """One reference more; returns how many there are."""
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
        """The reference that a row of a map holds to the record at its new place."""
        number = table.files[row]
        if number == LOST:
            return
        target = self.files.get(number)
        if target is None:
            target = self._lost_file(number)
        if isinstance(target, DataFile):
            if target.sources is None:
                target.sources = {}
            target.sources[source] = None
            target.add(table.new_ordinals[row], length)

    def drop(self, location: RecordLocation) -> int:
        """One reference less; returns how many are left."""
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
                if isinstance(target, DataFile):
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

    def _lost_file(self, number: int) -> DataFile:
        """For references to a file that isn't there: they are counted, reading them fails."""
        file = self.files[number] = DataFile(number)
        self.note_used(number)
        return file

    def _released(self, file: DataFile, length: int) -> None:
        self.released_bytes += length
        if file.live_records == 0:
            self.idle[file.number] = None

    def note_idle(self, number: int) -> None:
        file = self.files[number]
        if isinstance(file, DataFile):
            if file.live_records == 0:
                self.idle[number] = None
        elif not file.live and not file.unknown:
            self.idle[number] = None

    # -- looking up

    def find(self, location: RecordLocation) -> tuple[DataFile, int] | None:
        """Where the record is: the file, and the offset in it; None if it is lost."""
        file = self.files.get(location.file)
        if isinstance(file, MovedFile):
            # Once: another thread may put a packed one in its place meanwhile.
            table = file.table
            row = table.find(location.ordinal)
            if row < 0:
                return None
            target = self.files.get(table.files[row])
            return (target, table.offsets[row]) if isinstance(target, DataFile) else None
        return None if file is None else (file, location.offset)

    def data_files(self) -> Iterator[DataFile]:
        return (file for file in self.files.values() if isinstance(file, DataFile))

    def moved_files(self) -> Iterator[MovedFile]:
        return (file for file in self.files.values() if isinstance(file, MovedFile))

    def check(self) -> None:
        inward: dict[int, int] = {}
        for moved in self.moved_files():
            moved.check()
            for row in range(len(moved.table)):
                number = moved.table.files[row]
                if moved.counts.get(row) and number != LOST:
                    inward[number] = inward.get(number, 0) + 1
                    target = self.files[number]
                    assert isinstance(target, DataFile), (moved.number, number)
                    assert target.counts.get(moved.table.new_ordinals[row]) == 1, number
        for file in self.data_files():
            file.check()
            assert file.sources is None or inward.get(file.number, 0) == file.live_records
            if file.live_records == 0 and self.complete:
                assert file.number in self.idle or not file.is_settled or file.end == 0
        assert all(number < self.next_number for number in self.files)
