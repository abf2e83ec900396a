"""The files of a message store, as a node keeps them in memory. Loop's thread, but for look-ups.

A number stands for one file for ever. This is how it moves from state to state:

    state      class      on the disk                goes on to
    ---------  ---------  -------------------------  --------------------------------------------
    growing    DataFile   nothing yet, or `N.rdq`    sealed, when the next record doesn't fit
    sealed     DataFile   `N.rdq`, without the       settled, when the last job of it is
                          records still in a job     committed
    settled    DataFile   `N.rdq`, whole             victim, when `policy` chooses it;
                                                     forgotten, when nothing refers to it
    victim     DataFile   `N.rdq`, whole             moved, if `put` wrote it, and forgotten, if
                                                     compaction did, once its maps are durable;
                                                     stuck, if a header in it is damaged or
                                                     a read of it failed
    stuck      DataFile   `N.rdq`, damaged or not    forgotten, when nothing refers to it
    moved      MovedFile  `N.map`, beside `N.rdq`    forgotten, when nothing refers to it
                          until that is removed
    lost       LostFile   nothing that can be read   forgotten, when nothing refers to it

A start finds files settled, moved or lost. A file that compaction writes begins as settled, with
its publication. A forgotten file is in no table any more, and its names are removed. The states of
a `DataFile` are data (`NEXT_STATES`), the others are its class.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ringmq_node.storage.messages.counts import Counts
from ringmq_node.storage.messages.relocation import LOST, Table

SUFFIX = ".rdq"
MAP_SUFFIX = ".map"
NEW_SUFFIX = ".new"
_NAME = re.compile(r"(\d{1,10})(\.rdq|\.map)")


def data_name(number: int) -> str:
    return f"{number}{SUFFIX}"


def map_name(number: int) -> str:
    return f"{number}{MAP_SUFFIX}"


def parse_name(name: str) -> tuple[int, str] | None:
    """Number and suffix of a file of a store; None for any other name."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), match[2]) if match and int(match[1]) < LOST else None


@dataclass(slots=True, eq=False)
class CountedFile:
    """A file whose references are counted by the ordinal of the record."""

    number: int
    counts: Counts = field(default_factory=Counts)
    live_records: int = 0
    live_bytes: int = 0

    def add(self, ordinal: int, length: int) -> int:
        count = self.counts.add(ordinal)
        if count == 1:
            self.live_records += 1
            self.live_bytes += length
        return count

    def drop(self, ordinal: int, length: int) -> int:
        count = self.counts.drop(ordinal)
        if count == 0:
            self.live_records -= 1
            self.live_bytes -= length
        return count

    def check(self) -> None:
        assert self.live_records == self.counts.nonzero(), self.number
        assert self.live_bytes >= 0, self.number
        assert self.live_records > 0 or self.live_bytes == 0, self.number


@dataclass(slots=True, eq=False)
class LostFile(CountedFile):
    """References lead here, and there is no `N.rdq` with anything in it, and no readable `N.map`.

    The references are counted as everywhere, so that the number stays taken while there are any.
    Reading a record of the file raises `CorruptError`.
    """


class FileState(Enum):
    GROWING = "growing"
    SEALED = "sealed"
    SETTLED = "settled"
    VICTIM = "victim"
    STUCK = "stuck"


# All changes that are allowed while a file is a `DataFile`.
NEXT_STATES: Final[dict[FileState, tuple[FileState, ...]]] = {
    FileState.GROWING: (FileState.SEALED,),
    FileState.SEALED: (FileState.SETTLED,),
    FileState.SETTLED: (FileState.VICTIM,),
    FileState.VICTIM: (FileState.STUCK,),
    # Compaction can't tell the ordinals of the records behind a damaged header: never again in this
    # life. A sector that can't be read stays so, as a rule, and each try may take seconds.
    FileState.STUCK: (),
}


@dataclass(slots=True, eq=False)
class DataFile(CountedFile):
    """`N.rdq`, which has the records themselves."""

    # 0 until the file's header has been read.
    marker: int = 0
    # The offset and the ordinal of the next record.
    end: int = 0
    records: int = 0
    # The file is on the disk up to here, and durable in a persistent store.
    written: int = 0
    # Payloads of holes below `end`. They were never written, and take no room on the disk.
    hole_bytes: int = 0
    state: FileState = FileState.SETTLED
    # The numbers of the files whose maps lead here. None: `put` wrote the file, and the locations
    # that it gave lead here. A set: compaction wrote the file, and only maps lead here, for a
    # caller keeps the location that `put` gave.
    sources: dict[int, None] | None = None

    @property
    def disk_bytes(self) -> int:
        return self.end - self.hole_bytes

    def become(self, state: FileState) -> None:
        assert state in NEXT_STATES[self.state], f"file {self.number}: {self.state} to {state}"
        self.state = state

    def check(self) -> None:
        CountedFile.check(self)
        assert 0 <= self.written <= self.end, self.number
        is_whole = self.state not in (FileState.GROWING, FileState.SEALED)
        assert not is_whole or self.written == self.end, self.number


@dataclass(slots=True, eq=False)
class MovedFile:
    """`N.map`, which says where the records of `N.rdq` that were live have been moved.

    References are counted here, by row of the table. All references to a row together hold one
    reference to the record at its new place.
    """

    number: int
    table: Table
    counts: Counts = field(default_factory=Counts)
    # Rows that have references.
    live: int = 0
    # References to records that are not in the table: when their file was compacted, nothing
    # referred to them. Only a caller that breaks the contract of `MessageStore` makes these.
    unknown: dict[int, int] = field(default_factory=dict)

    @property
    def is_sparse(self) -> bool:
        """More than half of the rows have no references any more."""
        return 2 * self.live < len(self.table)

    def pack(self) -> None:
        """Drops the rows without references from memory. The file on the disk stays as it is."""
        rows = [row for row, count in enumerate(self.counts.snapshot()) if count]
        # A look-up in another thread has taken either the old table or the new one: each is right.
        self.table = self.table.select(rows)
        self.counts = self.counts.select(rows)

    def check(self) -> None:
        assert self.live == self.counts.nonzero(), self.number


StoreFile = DataFile | MovedFile | LostFile
