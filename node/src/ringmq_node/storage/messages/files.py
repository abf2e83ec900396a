"""What is kept in memory of each file of a message store. Loop's thread, but for look-ups."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

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
class DataFile:
    """`N.rdq`: records are there themselves."""

    number: int
    # 0 until the file's header has been read.
    marker: int = 0
    # Where the next record will begin, and which it will be.
    end: int = 0
    records: int = 0
    # On disk (of a persistent store: durable) up to here.
    written: int = 0
    # Payloads within `end` that were never written, and take no room.
    hole_bytes: int = 0
    # Nothing will be appended.
    sealed: bool = True
    # A header in it is damaged, so nobody can say which record is which: not compacted.
    damaged: bool = False
    counts: Counts = field(default_factory=Counts)
    live_records: int = 0
    live_bytes: int = 0
    # The files whose maps lead here. Has some only if compaction wrote this file, and then
    # nobody else refers to it: who put a message keeps the location that `put` gave.
    sources: dict[int, None] | None = None

    @property
    def disk_bytes(self) -> int:
        return self.end - self.hole_bytes

    @property
    def is_settled(self) -> bool:
        """Nothing is written to it, or will be."""
        return self.sealed and self.written == self.end

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
        assert 0 <= self.written <= self.end, self.number


@dataclass(slots=True, eq=False)
class MovedFile:
    """`N.map`: what was in `N.rdq` and is still referred to is elsewhere.

    References are counted here, by row of the table. A row that has any holds one reference
    to the record at its new place.
    """

    number: int
    table: Table
    counts: Counts = field(default_factory=Counts)
    # Rows that have references.
    live: int = 0
    # References to what the table doesn't know: not moved, because nothing was said to refer
    # to it. Only a caller that breaks the contract of `MessageStore` makes these.
    unknown: dict[int, int] = field(default_factory=dict)

    @property
    def is_sparse(self) -> bool:
        """More than half of the table is of no more use."""
        return 2 * self.live < len(self.table)

    def pack(self) -> None:
        """Forgets the rows without references. What is on the disk stays as it is."""
        rows = [row for row, count in enumerate(self.counts.snapshot()) if count]
        # Whoever looks something up has the old table or the new one.
        self.table = self.table.select(rows)
        self.counts = self.counts.select(rows)

    def check(self) -> None:
        assert self.live == self.counts.nonzero(), self.number
