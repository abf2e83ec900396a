"""The kinds of files with records in a data directory: their names, their formats, their order."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ringmq_node.storage.disk.disk import Disk
from ringmq_node.storage.format import formats
from ringmq_node.storage.format.queue_folder import CURRENT_JOURNAL, sealed_journals, segments
from ringmq_node.storage.messages.files import parse_name

# As `ringmq store inspect` prints them.
JOURNAL, SEGMENT, BODIES, MAP, COMMITS = "journal", "segment", "bodies", "map", "commits"
FORMATS: Final = {
    JOURNAL: formats.JOURNAL,
    SEGMENT: formats.SEGMENT,
    BODIES: formats.MESSAGE_FILE,
    MAP: formats.RELOCATION_MAP,
    COMMITS: formats.COMMIT_LOG,
}
_KINDS: Final = {format.magic: kind for kind, format in FORMATS.items()}
_SUFFIXES: Final = {".jif": JOURNAL, ".idx": SEGMENT, ".rdq": BODIES, ".map": MAP, ".log": COMMITS}


def is_journal(name: str) -> bool:
    return name == CURRENT_JOURNAL or any(not bad for _, bad in sealed_journals([name]))


def is_segment(name: str) -> bool:
    return bool(segments([name]))


def is_bodies(name: str) -> bool:
    return parse_name(name) is not None and name.endswith(".rdq")


def kind_by_name(name: str) -> str | None:
    """By the first suffix that says a kind: `5.jif.bad` is a journal. None: no file of records."""
    return next(map(_SUFFIXES.get, Path(name).suffixes), None)


def kind_of(disk: Disk, path: Path) -> str | None:
    """By the magic, or else by the name; None: no file of records. Raises `OSError`."""
    return _KINDS.get(disk.read(path, 0, 8)) or kind_by_name(path.name)


def order_of(name: str) -> tuple[str, int, str]:
    """A key to sort names by: journals by generation, the current one last; then segments."""
    stem, _, suffix = name.partition(".")
    number = int(stem) if stem.isascii() and stem.isdigit() and len(stem) < 20 else 1 << 62
    order = {"jif": "0", "idx": "1"}.get(suffix, suffix)
    return order, number, name
