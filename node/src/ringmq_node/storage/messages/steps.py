"""The steps of a compaction, as jobs that the loop hands to a thread. See `compaction`.

The loop sets the fields of a job, the thread sets its results. While a thread has a job, the loop
touches neither the job nor the cursors in it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ringmq_node.storage.errors import CorruptionReport
from ringmq_node.storage.messages.relocation import Table


def column() -> array[int]:
    """An empty column of 4-byte numbers."""
    return array("I")


@dataclass(slots=True, eq=False)
class Cursor:
    """The next record to be read from a victim, or to be written to the target."""

    number: int
    # Of the file. 0: not read yet.
    marker: int
    offset: int
    ordinal: int


@dataclass(slots=True, eq=False)
class Moves:
    """The records of one victim that have been copied, in their order."""

    number: int
    ordinals: array[int] = field(default_factory=column)
    new_ordinals: array[int] = field(default_factory=column)
    offsets: array[int] = field(default_factory=column)
    lengths: array[int] = field(default_factory=column)
    # Ordinals of live records that are damaged, and were not copied.
    lost: list[int] = field(default_factory=list)

    def extend(self, more: Moves) -> None:
        assert more.number == self.number
        self.ordinals += more.ordinals
        self.new_ordinals += more.new_ordinals
        self.offsets += more.offsets
        self.lengths += more.lengths
        self.lost += more.lost


@dataclass(slots=True, eq=False)
class Rebuilt:
    """A new table for file `number`; `kept` are the rows of the old table that are in it.

    A victim had no table: there `kept` are the ordinals.
    """

    number: int
    table: Table
    kept: Sequence[int]


@dataclass(slots=True, eq=False)
class CompactionJob:
    """One step: a `RemoveJob`, a `CopyJob` or a `PublishJob`."""

    directory: Path
    persistent: bool
    # Result: the damage that the step has met.
    corruptions: list[CorruptionReport] = field(default_factory=list, kw_only=True)
    # Result: the file that couldn't be read, and why; empty as a rule. No damage is known in it.
    unread: str = field(default="", kw_only=True)


@dataclass(slots=True, eq=False)
class RemoveJob(CompactionJob):
    """Removes these names."""

    names: list[str]


@dataclass(slots=True, eq=False)
class CopyJob(CompactionJob):
    """Copies live records of a victim, from its cursor on, to the target. Moves both cursors."""

    victim: Cursor
    target: Cursor
    # A byte for each ordinal of the victim; not 0 if the record is live.
    live: bytes
    bytes_max: int
    # When the loop planned the step, for the rate limit.
    planned_at: float
    # Results.
    moves: Moves = field(init=False)
    bytes_copied: int = 0
    # No live record of the victim is left to copy.
    ended: bool = False
    # A header is damaged, and there are live records behind it, or the file can't be read just now:
    # the victim has to stay.
    stuck: bool = False

    def __post_init__(self) -> None:
        self.moves = Moves(self.victim.number)


@dataclass(slots=True, eq=False)
class PublishJob(CompactionJob):
    """Makes the target durable, then the maps that lead to it."""

    target: int
    # False if no record was left to copy: then there is no such file.
    target_written: bool
    # Of victims that `put` wrote: each gets a map.
    direct: list[Moves]
    # Of victims that compaction wrote: `tables` lead into them, each with its file's number.
    indirect: list[Moves]
    tables: list[tuple[int, Table]]
    # Result.
    rebuilt: list[Rebuilt] = field(default_factory=list)
