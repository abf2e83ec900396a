"""One connection to a registry file: opened when it is first used, and again after a fault.

The file that was opened first is the registry. If its path leads to another file or to none,
every call fails: SQLite itself would go on with a deleted file, and two nodes would each have a
registry of their own.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random

from ringmq_gm.registry.base import (
    AddressError,
    CommitUnknownError,
    RegistryError,
    RegistryUnavailableError,
)
from ringmq_gm.registry.sessions import clock
from ringmq_gm.registry.sqlite.history import FileHistory, present
from ringmq_gm.registry.sqlite.schema import prepare, transaction

T = TypeVar("T")

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


@dataclass(slots=True)
class FileIdentity:
    """Which registry this is, once it is known. All connections to it share this."""

    path: Path
    # None until a connection has read it from the file.
    identity: str | None = None
    history: FileHistory = field(init=False)

    def __post_init__(self) -> None:
        self.history = FileHistory(f"registry {self.path}")


@dataclass(slots=True)
class Gate:
    """Either lets a commit through, or lets its caller give up: the first of the two decides.

    Without it a caller could report "nothing was changed" while a thread that was held up makes
    the commit after all.
    """

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _passed: bool = False
    _shut: bool = False

    def enter(self) -> None:
        """The commit is about to be made; raises `RegistryUnavailableError` if it is too late."""
        with self._lock:
            if self._shut:
                raise RegistryUnavailableError("the commit was given up before it was made")
            self._passed = True

    def shut(self) -> bool:
        """Whether the commit has not been made, and never will be."""
        with self._lock:
            self._shut = True
            return not self._passed


class FileConnection:
    """For one thread at a time. Each call blocks until `deadline` (`clock()`) at most, as far as
    the file system answers."""

    def __init__(self, identity: FileIdentity) -> None:
        self._identity = identity
        self._connection: sqlite3.Connection | None = None
        # The device and inode of the file that is open.
        self._file = (0, 0)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # After a fault there may be nothing left to close in an orderly way.
            with suppress(sqlite3.Error):
                connection.close()

    def read(self, job: Callable[[sqlite3.Connection], T], deadline: float) -> T:
        """Runs a job of one statement, whatever history the file has."""
        return self._run(lambda: job(self._opened()), deadline)

    def read_snapshot(self, job: Callable[[sqlite3.Connection], T], deadline: float) -> T:
        """Runs a job of several statements, which all see the same state. Raises
        `RegistryWentBackError` if the file was put back to a copy."""

        def attempt() -> T:
            expected = self._identity.history.newest()
            connection = self._opened()
            with transaction(connection, "BEGIN"):
                self._identity.history.check(connection, expected)
                result = job(connection)
                connection.execute("COMMIT")
            return result

        return self._run(attempt, deadline)

    def write(self, job: Callable[[sqlite3.Connection], T], gate: Gate, deadline: float) -> T:
        """Runs a job that writes, and commits it. Raises `CommitUnknownError` from within the
        commit, `RegistryUnavailableError` before it."""

        def attempt() -> T:
            history = self._identity.history
            expected = history.newest()
            connection = self._opened()
            with transaction(connection, "BEGIN IMMEDIATE"):
                # Once more: waiting for the lock may have taken long.
                self._check_file()
                history.check(connection, expected)
                result = job(connection)
                written = present(connection)
                gate.enter()
                try:
                    connection.execute("COMMIT")
                except sqlite3.Error as error:
                    raise self._failed_commit(error) from error
            history.note(written)
            return result

        return self._run(attempt, deadline)

    def _run(self, attempt: Callable[[], T], deadline: float) -> T:
        """Tries until no other process has locked the file, or the deadline is over."""

        def stop(_: RetryCallState) -> bool:
            return clock() >= deadline

        try:
            try:
                return attempt()
            except sqlite3.OperationalError as error:
                if not _is_busy(error):
                    raise
            # Only now, because it costs more than a look at the file does.
            retrying = Retrying(
                retry=retry_if_exception(_is_busy),
                # A commit takes about a millisecond.
                wait=wait_random(0.0002, 0.002),
                stop=stop,
                reraise=True,
            )
            return retrying(attempt)
        except sqlite3.Error as error:
            if not _is_busy(error):
                self.close()
            raise self._unavailable(error) from error
        except (RegistryUnavailableError, AddressError):
            # The file has moved, or isn't ours: begin anew the next time.
            self.close()
            raise

    def _failed_commit(self, error: sqlite3.Error) -> RegistryError:
        """The error for a failed `COMMIT`. The connection can't be trusted any more."""
        self.close()
        if _code(error) == sqlite3.SQLITE_FULL:
            # The log's last frame, which makes the commit, wasn't written whole.
            return self._unavailable(error)
        # The frames may be in the log, but not on disk; the next to recover it decides.
        return CommitUnknownError(f"registry {self._identity.path}: commit: {error}")

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._open()
        self._check_file()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        # A registry is made only if none was ever seen here. One that has vanished is not made
        # anew: the other processes may still have the old one.
        mode = "rw" if self._identity.identity else "rwc"
        connection = sqlite3.connect(
            f"file:{quote(str(self._identity.path))}?mode={mode}",
            uri=True,
            isolation_level=None,
            timeout=0,
            check_same_thread=False,
        )
        try:
            self._prepare(connection)
            (identity,) = connection.execute("SELECT identity FROM meta").fetchone()
            self._identity.identity = self._identity.identity or identity
            if identity != self._identity.identity:
                raise RegistryUnavailableError(
                    f"registry {self._identity.path}: another file has taken its place"
                    f" (identity {identity}, expected {self._identity.identity})"
                )
            self._file = _file_number(self._identity.path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        try:
            prepare(connection, self._identity.path)
        except AddressError as error:
            if self._identity.identity is None:
                raise
            # The URL was right once: it is the registry that isn't there, and may be put back.
            raise RegistryUnavailableError(str(error)) from error

    def _check_file(self) -> None:
        """SQLite would go on with a deleted file, and this process would be alone with it."""
        if _file_number(self._identity.path) != self._file:
            raise RegistryUnavailableError(
                f"registry {self._identity.path}: the file was moved or deleted"
            )

    def _unavailable(self, error: sqlite3.Error) -> RegistryError:
        if _code(error) == sqlite3.SQLITE_NOTADB and self._identity.identity is None:
            return AddressError(f"registry {self._identity.path}: {error}")
        return RegistryUnavailableError(f"registry {self._identity.path}: {error}")


def _file_number(path: Path) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise RegistryUnavailableError(f"registry {path}: {error.strerror}") from error
    return status.st_dev, status.st_ino


def _code(error: BaseException) -> int:
    """The primary part of SQLite's error code."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, sqlite3.Error) and _code(error) in _BUSY
