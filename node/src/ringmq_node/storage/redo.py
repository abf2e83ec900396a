"""What a start does with the commit logs: each byte goes into its journal, then the logs go.

A power cut may have taken any write of a journal since the log was begun; the log has them all.
After a crash without a power cut the journals are whole, and are written once more.

A piece names its journal by folder, generation and marker. If there is no such file, it was flushed
and removed, or its queue was deleted: then nobody needs the piece. To apply a log twice, or one
whose journals were all synced, changes nothing, because a journal only grows.

**Damage.** If a record of a log can't be read though it was durable once, nobody knows which
queues have lost ops by it. So every replica of the node is marked as partial, and catches up. The
end of a log looks torn if it is damaged. But the other log is begun only behind a full one, when
all of that is durable: so its first record proves the one before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from ringmq_node.storage.commit_log import LOG_NAMES
from ringmq_node.storage.disk import data_directory as folders
from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.errors import CorruptionReport
from ringmq_node.storage.format import redo_records
from ringmq_node.storage.format.formats import COMMIT_LOG, JOURNAL
from ringmq_node.storage.format.queue_folder import CURRENT_JOURNAL, sealed_name
from ringmq_node.storage.format.record_file import RecordFile
from ringmq_node.storage.format.records import FILE_HEADER, Header, RecordKind, owner_of
from ringmq_node.storage.format.redo_records import Journal

logger = logging.getLogger(__name__)

# The file, the offset, and the bytes.
Write = Callable[[Path, int, bytes], None]

_DAMAGE = "the commit log is damaged: ops may be lost"


def redo(disk: Disk, directory: Path) -> list[CorruptionReport]:
    """Applies the commit logs of a data directory, durably, and removes them.

    Returns what is damaged in them. Raises `OSError`, `UnsupportedFormatError`.
    """
    names = disk.list(directory)
    found = [name for name in LOG_NAMES if name in names]
    if not found:
        return []
    reports = apply_logs(disk, directory, lambda path, at, data: disk.write(path, at, [data]))
    for report in reports:
        logger.error("%s", report)
    if reports:
        _mark_partial(disk, directory / folders.QUEUES_NAME)
    disk.sync_all(directory)
    for name in found:
        disk.remove(directory / name)
    disk.sync(directory)
    return reports


def apply_logs(disk: Disk, directory: Path, write: Write) -> list[CorruptionReport]:
    """Has `write` put the bytes of the commit logs into their journals, which are looked for on
    `disk`. Returns what is damaged. Raises `OSError`, `UnsupportedFormatError`."""
    names = disk.list(directory)
    journals = _Journals(disk, directory / folders.QUEUES_NAME, write)
    applied = [
        _apply(disk, directory / name, names[name], journals) for name in LOG_NAMES if name in names
    ]
    reports = [report for each in applied for report in each.reports]
    # Those whose numbers can be read, the older one first.
    numbered = sorted((each for each in applied if each.first), key=lambda each: each.first)
    for older, younger in pairwise(numbered):
        if older.last != younger.first - 1 and not older.reports:
            reason = f"ends with record {older.last}, and the other log begins with {younger.first}"
            reports.append(CorruptionReport(older.name, older.end, older.torn_bytes, reason))
    return reports


@dataclass(frozen=True, slots=True)
class _Applied:
    """One log. `first` and `last` are numbers of records; `first` is 0 where it isn't known."""

    name: str
    reports: list[CorruptionReport]
    first: int = 0
    last: int = 0
    # Where its records end, and the bytes behind that.
    end: int = 0
    torn_bytes: int = 0


def _apply(disk: Disk, path: Path, size: int, journals: _Journals) -> _Applied:
    # Also if the disk has failed in the midst of writing `SETTLED_HEAD`: the journals were synced
    # before, and a log that is taken for damaged makes every replica of the node partial.
    if not any(disk.read(path, 0, FILE_HEADER.size)):
        return _Applied(str(path), [])
    file = RecordFile(str(path), COMMIT_LOG, size, partial(disk.read, path))
    if not file.marker:
        return _Applied(str(path), [CorruptionReport(str(path), 0, size, file.unreadable)])

    known: dict[int, Journal] = {}

    def visit(header: Header, payload: bytes) -> int:
        if header.kind != RecordKind.REDO:
            raise ValueError(f"a record of kind {header.kind} in a commit log")
        named, pieces = redo_records.decode(payload, known)
        known.update(named)
        for piece in pieces:
            journals.write(*piece)
        return header.number

    scan = file.scan(visit)
    # Without a record it is one that was just begun, and its first write is torn.
    last = scan.records[-1][1] if scan.records else (scan.number or 1) - 1
    return _Applied(str(path), scan.corruptions, scan.number or 0, last, scan.end, scan.torn_bytes)


class _Journals:
    """Finds the journals of pieces. Each is looked for once."""

    def __init__(self, disk: Disk, queues: Path, write: Write) -> None:
        self._disk = disk
        self._write = write
        self._queues = queues
        self._paths: dict[Journal, Path | None] = {}

    def write(self, journal: Journal, offset: int, data: bytes) -> None:
        if journal not in self._paths:
            self._paths[journal] = self._find(journal)
        path = self._paths[journal]
        if path is not None:
            self._write(path, offset, data)

    def _find(self, journal: Journal) -> Path | None:
        folder = self._queues / journal.folder
        sizes = self._disk.list(folder)
        for name in (sealed_name(journal.generation), CURRENT_JOURNAL):
            if name not in sizes:
                continue
            path = folder / name
            read = partial(self._disk.read, path)
            file = RecordFile(str(path), JOURNAL, sizes[name], read, owner_of(folder))
            # A damaged file header has no number; the marker is then that of the first record.
            if file.marker == journal.marker and file.number in (journal.generation, None):
                return path
        return None


def _mark_partial(disk: Disk, queues: Path) -> None:
    for name in sorted(disk.list(queues)):
        if not name.endswith(folders.VOID_SUFFIXES):
            folders.mark_partial(disk, queues / name, _DAMAGE)
