"""The formats of a data directory's files: the magic that each begins with, and its version.

Each format has a version of its own, so that a change to one of them leaves the files of all the
others readable. A file of an unknown version is refused as a whole: this code can't tell which of
its bytes still mean what they did, and would take a newer file for a damaged one.

What lies inside a file and has no magic (a checkpoint, a table of references) changes with the
version of that file. Blocks of messages have their own version, as they also travel on the wire:
see `ringmq_node.queue.block`.

A new version: raise the number here, write the new bytes, keep reading the old ones for as long
as `docs/formats.md` promises, and give the test beside this module a file of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ringmq_node.storage.errors import UnsupportedFormatError


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of file. `name` is for people."""

    name: str
    magic: bytes
    version: int

    def check_version(self, file: str | Path, found: int) -> None:
        """Raises `UnsupportedFormatError` unless `found`, from the header of `file`, is known."""
        if found != self.version:
            raise UnsupportedFormatError(self.name, str(file), found, self.version)


JOURNAL: Final = Format("journal", b"RINGMQ-J", 4)
SEGMENT: Final = Format("segment", b"RINGMQ-S", 1)
MESSAGE_FILE: Final = Format("message store file", b"RINGMQ-B", 1)
RELOCATION_MAP: Final = Format("relocation map", b"RINGMQ-R", 1)
STORE_META: Final = Format("store.meta", b"RINGMQ-M", 1)
QUEUE_NAME: Final = Format("queue.name", b"RINGMQ-N", 1)
STORE_LIFE: Final = Format("store.life", b"RINGMQ-I", 1)
QUEUE_LABEL: Final = Format("queue.label", b"RINGMQ-L", 1)
QUEUE_PARTIAL: Final = Format("queue.partial", b"RINGMQ-P", 1)
QUEUE_LEFTOVER: Final = Format("queue.leftover", b"RINGMQ-O", 1)
SET_ASIDE: Final = Format("set-aside file", b"RINGMQ-A", 1)
COMMIT_LOG: Final = Format("commit log", b"RINGMQ-C", 2)

FORMATS: Final = (
    JOURNAL,
    SEGMENT,
    MESSAGE_FILE,
    RELOCATION_MAP,
    STORE_META,
    STORE_LIFE,
    QUEUE_NAME,
    QUEUE_LABEL,
    QUEUE_PARTIAL,
    QUEUE_LEFTOVER,
    SET_ASIDE,
    COMMIT_LOG,
)
