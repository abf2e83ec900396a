"""The faults of a data directory, in words that name the place."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from ringmq_node.storage.errors import CorruptionReport

# Faults kept of one file, and of all files; more are only counted.
FAULTS_PER_FILE_MAX = 20
FAULTS_MAX = 10_000
NOTES_MAX = 1_000
# Places remembered, so that each is counted once. Of more places one may be counted twice.
_PLACES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Fault:
    """`length` bytes at `offset` of `file` (below the data directory) are not as they should be.

    Both are 0 where no bytes can be named. `first` and `last` are the positions of `queue` that
    are hit; `name` is the queue's name for people.
    """

    file: str
    offset: int
    length: int
    what: str
    queue: str | None = None
    first: int | None = None
    last: int | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class TornTail:
    """The end of `file` from `offset` on: a crash cut it short before any confirm relied on it."""

    file: str
    offset: int
    length: int


@dataclass(slots=True)
class Findings:
    """Gathered while a directory is read; bounded, however much is wrong."""

    root: Path
    faults: list[Fault] = field(default_factory=list)
    faults_total: int = 0
    torn: list[TornTail] = field(default_factory=list)
    torn_bytes: int = 0
    # Files and folders that mean nothing to a node.
    notes: list[str] = field(default_factory=list)
    notes_total: int = 0
    # The names of queues for people, by their names in the store.
    labels: dict[str, str] = field(default_factory=dict)
    # Faults by file, and the places that have been counted.
    _counts: dict[str, int] = field(default_factory=dict)
    _places: set[tuple[str, int]] = field(default_factory=set)

    def add(
        self,
        path: Path,
        offset: int,
        length: int,
        what: str,
        *,
        queue: str | None = None,
        positions: tuple[int, int] | None = None,
    ) -> None:
        """Adds a fault. The same bytes are told again only for the positions that they hit."""
        file = relative(self.root, path)
        if positions is None and length and (file, offset) in self._places:
            return
        if length and len(self._places) < _PLACES_MAX:
            self._places.add((file, offset))
        self.faults_total += 1
        count = self._counts.get(file, 0) + 1
        self._counts[file] = count
        if count > FAULTS_PER_FILE_MAX or len(self.faults) >= FAULTS_MAX:
            return
        first, last = positions or (None, None)
        label = self.labels.get(queue) if queue is not None else None
        self.faults.append(Fault(file, offset, length, what, queue, first, last, label))

    def report(self, report: CorruptionReport, queue: str | None = None) -> None:
        self.add(Path(report.file), report.offset, report.length, report.what, queue=queue)

    def tear(self, path: Path, offset: int, length: int) -> None:
        self.torn_bytes += length
        if len(self.torn) < FAULTS_MAX:
            self.torn.append(TornTail(relative(self.root, path), offset, length))

    def note(self, path: Path, what: str) -> None:
        self.notes_total += 1
        if len(self.notes) < NOTES_MAX:
            self.notes.append(f"{relative(self.root, path)}: {what}")


def relative(root: Path, path: Path) -> str:
    """A path below `root`, in characters that any terminal and any JSON reader can take."""
    below = path.relative_to(root) if path.is_relative_to(root) else path
    return plain(os.fsencode(below).decode("utf-8", "backslashreplace"))


def plain(text: str) -> str:
    """`text` with control characters escaped: anybody may have made the names in a directory, and
    an escape sequence printed from one would reach the operator's terminal."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
