"""Whether a registry file still has the history that this process has seen of it.

Each revision has a mark, drawn at random. The process keeps the newest revision that it has seen,
with its mark. A file that was put back to a copy has a lower revision, or that one with another
mark. It is looked at in each transaction: the file may have been exchanged before any of them.
"""

from __future__ import annotations

import sqlite3
import threading
from typing import NamedTuple

from ringmq_gm.registry.went_back import WentBack


class Seen(NamedTuple):
    revision: int
    mark: int


class FileHistory:
    """See the module. All threads of a process that use the file share this."""

    def __init__(self, name: str) -> None:
        self._newest = Seen(0, 0)
        self._went_back = WentBack(name)
        self._lock = threading.Lock()

    def newest(self) -> Seen:
        """What a transaction that begins after this call must find. Raises
        `RegistryWentBackError` if an earlier one has not found it."""
        self._went_back.check_usable()
        return self._newest

    def check(self, connection: sqlite3.Connection, expected: Seen) -> None:
        """Raises `RegistryWentBackError` if the file doesn't have `expected`."""
        found, compacted = _present(connection)
        # The marks of revisions that have been forgotten can't be told apart any more.
        is_known = compacted < expected.revision <= found.revision
        mark = _mark_at(connection, expected.revision) if is_known else expected.mark
        self.judge(found, expected, mark)

    def judge(self, found: Seen, expected: Seen, mark: int) -> None:
        """Takes the newest revision that was found, and the mark that `expected` has there. Pure
        but for the log. Raises `RegistryWentBackError` if that is another history.

        Another thread may have seen more in the meantime: a state from before that is no proof.
        """
        if found.revision < expected.revision:
            self._went_back.fail(f"from revision {expected.revision} to {found.revision}")
        if mark != expected.mark:
            self._went_back.fail(f"behind revision {expected.revision}")
        self.note(found)

    def note(self, seen: Seen) -> None:
        """A state that is certainly in the file."""
        with self._lock:
            self._newest = max(self._newest, seen)


def present(connection: sqlite3.Connection) -> Seen:
    """The newest revision in the file."""
    return _present(connection)[0]


def _present(connection: sqlite3.Connection) -> tuple[Seen, int]:
    revision, compacted = connection.execute("SELECT revision, compacted FROM meta").fetchone()
    return Seen(revision, _mark_at(connection, revision)), compacted


def _mark_at(connection: sqlite3.Connection, revision: int) -> int:
    """0 if the file has no such revision."""
    row = connection.execute(
        "SELECT mark FROM changes WHERE revision = ? LIMIT 1", (revision,)
    ).fetchone()
    return 0 if row is None else row[0]
