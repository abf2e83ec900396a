"""The registry in a SQLite file: everything that blocks. `sqlite.py` runs it in threads.

Layout (application id "RMQR", user version 1):

    meta     one row: the registry's identity, the present revision, and `compacted`,
             the newest revision whose changes have been forgotten
    entries  what there is: key (UTF-8), value, revision, lease or NULL
    changes  which keys were written or deleted at which revision, the last
             `revisions_kept` of them; what became of a key is read from `entries`
    leases   until when (`clock()`, in seconds since boot) each session is good

Invariants:

* One writer at a time (`BEGIN IMMEDIATE`), which first ends the leases that have
  run out: no guard ever holds because of a key that should be gone.
* The revision grows by one for each commit that changes something, and by one for
  the leases that it ended on the way. `changes` has a row for each key it touched.
* `COMMIT` returns after the write-ahead log is on disk (`synchronous=FULL`).
* A lease that says it is good for longer than its ttl is from before a reboot
  (the clock began anew), so its holder is no more.
* The file that was opened first is the registry. If its path leads to another file
  or to none, every call fails: going on would make two registries of one.

The file has to be on a local file system, as SQLite's shared memory and locks
want it; all processes that use it run on one machine. A process that is stopped
within its commit (a millisecond) holds the write lock until it goes on or dies:
the others read on meanwhile, and their commits are refused.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random

from ringmq_gm.registry.base import (
    AddressError,
    Change,
    Changed,
    CommitUnknownError,
    Guard,
    KeyValue,
    Operation,
    Put,
    RegistryError,
    RegistryUnavailableError,
    Removed,
    Reset,
    SessionLostError,
    Snapshot,
)
from ringmq_gm.registry.limits import prefix_end
from ringmq_gm.registry.sessions import clock

T = TypeVar("T")

APPLICATION_ID = 0x524D5152
USER_VERSION = 1
REVISIONS_KEPT = 4096

SCHEMA = f"""
CREATE TABLE meta (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    identity TEXT NOT NULL,
    revision INTEGER NOT NULL,
    compacted INTEGER NOT NULL);
CREATE TABLE entries (
    key BLOB NOT NULL PRIMARY KEY,
    value BLOB NOT NULL,
    revision INTEGER NOT NULL,
    lease INTEGER);
CREATE INDEX entries_by_lease ON entries (lease) WHERE lease IS NOT NULL;
CREATE TABLE changes (
    revision INTEGER NOT NULL,
    key BLOB NOT NULL,
    PRIMARY KEY (revision, key)) WITHOUT ROWID;
CREATE TABLE leases (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    ttl_s REAL NOT NULL,
    expires REAL NOT NULL);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {USER_VERSION};
"""

# What a lease's `expires` may be ahead of the clock, over its ttl, before it counts as
# one from before a reboot.
SLACK_S = 1.0
EXPIRED = f"(expires <= :now OR expires > :now + ttl_s + {SLACK_S})"

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


@dataclass(slots=True)
class FileIdentity:
    """Which registry this is, once it is known: shared by the connections to it."""

    path: Path
    identity: str = ""


@dataclass(slots=True)
class Gate:
    """Lets a commit through, or its caller give up: one of them, whoever comes first."""

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


class RegistryFile:
    """One connection, opened when it is first used and again after a fault.

    For one thread at a time. Each call blocks until `deadline` (`clock()`) at most, as
    far as the file system answers. Raises `RegistryUnavailableError`, and `CommitUnknownError`
    from within a commit.
    """

    def __init__(self, place: FileIdentity, *, revisions_kept: int = REVISIONS_KEPT) -> None:
        self._place = place
        self._revisions_kept = revisions_kept
        self._connection: sqlite3.Connection | None = None
        self._file = (0, 0)
        # The newest `PRAGMA data_version`, and the next expiry as of then.
        self._looked: tuple[int, float] | None = None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._looked = None
        if connection is not None:
            # After a fault there may be nothing left to close in an orderly way.
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    # Reading

    def get(self, key: bytes, *, deadline: float) -> KeyValue | None:
        def job(connection: sqlite3.Connection) -> KeyValue | None:
            row = connection.execute(
                "SELECT key, value, revision FROM entries WHERE key = ?", (key,)
            ).fetchone()
            return None if row is None else _entry(row)

        return self._run(lambda: job(self._opened()), deadline)

    def list(self, prefix: bytes, *, deadline: float) -> Snapshot:
        return self._run(lambda: self._in_snapshot(lambda c: _list(c, prefix)), deadline)

    def changes(
        self, prefix: bytes, seen: int | None, *, deadline: float
    ) -> tuple[Sequence[Change], int]:
        """What has changed below `prefix` since revision `seen`, and the present revision.

        A `Reset` if `seen` is None or its successors have been forgotten.
        """

        def job(connection: sqlite3.Connection) -> tuple[Sequence[Change], int]:
            revision, compacted = connection.execute(
                "SELECT revision, compacted FROM meta"
            ).fetchone()
            if seen is None or seen < compacted:
                return (Reset(_list(connection, prefix)),), revision
            return (_changes(connection, prefix, seen) if seen != revision else ()), revision

        return self._run(lambda: self._in_snapshot(job), deadline)

    def look(self, *, deadline: float) -> tuple[int, float]:
        """A number that changes with the file, and when (`clock()`) the next lease runs out.

        Cheap if nothing has changed since the last time: it reads shared memory.
        """

        def job(connection: sqlite3.Connection) -> tuple[int, float]:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            if self._looked is None or self._looked[0] != version:
                (expiry,) = connection.execute(
                    f"SELECT MIN(CASE WHEN {EXPIRED} THEN 0 ELSE expires END) FROM leases",
                    {"now": clock()},
                ).fetchone()
                self._looked = (version, float("inf") if expiry is None else expiry)
            return self._looked

        return self._run(lambda: job(self._opened()), deadline)

    # Writing

    def commit(
        self,
        guards: Sequence[Guard],
        operations: Sequence[Operation],
        lease: int | None,
        *,
        gate: Gate,
        deadline: float,
    ) -> int | None:
        def job(connection: sqlite3.Connection) -> int | None:
            revision = self._sweep(connection)
            for guard in guards:
                row = connection.execute(
                    "SELECT revision FROM entries WHERE key = ?", (guard.key.encode(),)
                ).fetchone()
                if (0 if row is None else row[0]) != guard.revision:
                    return None
            if lease is not None and not _lease_exists(connection, lease):
                raise SessionLostError("the session has run out; nothing was written")
            touched = _write(connection, operations, lease, revision + 1)
            return self._advance(connection, revision, touched)

        return self._write(job, gate, deadline)

    def sweep(self, *, gate: Gate, deadline: float) -> None:
        """Ends the leases that have run out, with their keys."""
        self._write(self._sweep, gate, deadline)

    def grant(self, ttl_s: float, *, gate: Gate, deadline: float) -> tuple[int, float]:
        """A new lease: its number, and until when it is good."""
        expires = clock() + ttl_s

        def job(connection: sqlite3.Connection) -> int:
            cursor = connection.execute(
                "INSERT INTO leases (ttl_s, expires) VALUES (?, ?)", (ttl_s, expires)
            )
            assert cursor.lastrowid is not None
            return cursor.lastrowid

        return self._write(job, gate, deadline), expires

    def renew(self, lease: int, ttl_s: float, *, gate: Gate, deadline: float) -> float | None:
        """Until when it is good now; None if it is gone."""
        expires = clock() + ttl_s

        def job(connection: sqlite3.Connection) -> float | None:
            cursor = connection.execute(
                f"UPDATE leases SET expires = :expires WHERE id = :id AND NOT {EXPIRED}",
                {"expires": expires, "id": lease, "now": clock()},
            )
            return expires if cursor.rowcount else None

        return self._write(job, gate, deadline)

    def revoke(self, lease: int, *, gate: Gate, deadline: float) -> None:
        """Ends the lease and its keys; nothing if it is gone."""

        def job(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE leases SET expires = 0 WHERE id = ?", (lease,))
            self._sweep(connection)

        self._write(job, gate, deadline)

    def _sweep(self, connection: sqlite3.Connection) -> int:
        """Ends the leases that have run out; returns the revision after it."""
        (revision,) = connection.execute("SELECT revision FROM meta").fetchone()
        expired = connection.execute(
            f"DELETE FROM leases WHERE {EXPIRED} RETURNING id", {"now": clock()}
        ).fetchall()
        touched = [
            key
            for lease in expired
            for (key,) in connection.execute(
                "DELETE FROM entries WHERE lease = ? RETURNING key", lease
            ).fetchall()
        ]
        return self._advance(connection, revision, touched)

    def _advance(
        self, connection: sqlite3.Connection, revision: int, touched: Sequence[bytes]
    ) -> int:
        """Makes a revision of the keys that were touched, if there are any."""
        if not touched:
            return revision
        revision += 1
        connection.executemany(
            "INSERT INTO changes (revision, key) VALUES (?, ?)",
            [(revision, key) for key in touched],
        )
        connection.execute(
            "UPDATE meta SET revision = ?, compacted = MAX(compacted, ?)",
            (revision, revision - self._revisions_kept),
        )
        connection.execute("DELETE FROM changes WHERE revision <= (SELECT compacted FROM meta)")
        return revision

    # Connection and faults

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

    def _in_snapshot(self, job: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._opened()
        with _transaction(connection, "BEGIN"):
            result = job(connection)
            connection.execute("COMMIT")
        return result

    def _write(self, job: Callable[[sqlite3.Connection], T], gate: Gate, deadline: float) -> T:
        def attempt() -> T:
            connection = self._opened()
            with _transaction(connection, "BEGIN IMMEDIATE"):
                # Once more: waiting for the lock may have taken long.
                self._check_place()
                result = job(connection)
                gate.enter()
                try:
                    connection.execute("COMMIT")
                except sqlite3.Error as error:
                    raise self._failed_commit(error) from error
            return result

        return self._run(attempt, deadline)

    def _failed_commit(self, error: sqlite3.Error) -> RegistryError:
        """What a failed `COMMIT` means. The connection can't be trusted any more."""
        self.close()
        if _code(error) == sqlite3.SQLITE_FULL:
            # The log's last frame, which makes the commit, wasn't written whole.
            return self._unavailable(error)
        # The frames may be in the log, but not on disk; the next to recover it decides.
        return CommitUnknownError(f"registry {self._place.path}: commit: {error}")

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._open()
        self._check_place()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        # Only a registry that was never seen is made; one that vanished stays away.
        mode = "rw" if self._place.identity else "rwc"
        connection = sqlite3.connect(
            f"file:{quote(str(self._place.path))}?mode={mode}",
            uri=True,
            isolation_level=None,
            timeout=0,
            check_same_thread=False,
        )
        try:
            _prepare(connection, self._place.path)
            (identity,) = connection.execute("SELECT identity FROM meta").fetchone()
            self._place.identity = self._place.identity or identity
            if identity != self._place.identity:
                raise RegistryUnavailableError(
                    f"registry {self._place.path}: another one has taken its place"
                    f" (identity {identity}, expected {self._place.identity})"
                )
            self._file = _file_number(self._place.path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_place(self) -> None:
        """SQLite would go on with a file that was deleted, and so alone."""
        if _file_number(self._place.path) != self._file:
            raise RegistryUnavailableError(
                f"registry {self._place.path}: the file was moved or deleted"
            )

    def _unavailable(self, error: sqlite3.Error) -> RegistryError:
        if _code(error) == sqlite3.SQLITE_NOTADB:
            return AddressError(f"registry {self._place.path}: {error}")
        return RegistryUnavailableError(f"registry {self._place.path}: {error}")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Sets the connection up, and makes the tables if the file is new."""
    # In one transaction: another process may be making the tables just now.
    with _transaction(connection, "BEGIN"):
        ready = _is_registry(connection, path)
        connection.execute("COMMIT")
    if not ready:
        connection.execute("PRAGMA journal_mode = WAL")
        with _transaction(connection, "BEGIN IMMEDIATE"):
            # Another process may have been first.
            if not _is_registry(connection, path):
                for statement in SCHEMA.split(";"):
                    connection.execute(statement)
                connection.execute("INSERT INTO meta VALUES (1, ?, 0, 0)", (secrets.token_hex(16),))
            connection.execute("COMMIT")
        # The file's name in its folder is part of what has to last.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    connection.execute("PRAGMA synchronous = FULL")


def _is_registry(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the tables are there; raises `AddressError` if other ones are."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if (application, version) == (APPLICATION_ID, USER_VERSION):
        return True
    (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    if tables or application or version:
        raise AddressError(
            f"{path} is no registry of version {USER_VERSION}: it has application id"
            f" {application:#x}, version {version}, {tables} tables"
        )
    return False


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    """Ends what is left of the transaction when the block fails before its `COMMIT`."""
    connection.execute(begin)
    try:
        yield
    except BaseException:
        # SQLite has rolled back by itself after some errors, and is closed after others.
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _list(connection: sqlite3.Connection, prefix: bytes) -> Snapshot:
    (revision,) = connection.execute("SELECT revision FROM meta").fetchone()
    rows = connection.execute(
        "SELECT key, value, revision FROM entries WHERE key >= ? AND key < ? ORDER BY key",
        (prefix, prefix_end(prefix)),
    )
    return Snapshot(tuple(map(_entry, rows)), revision)


def _changes(connection: sqlite3.Connection, prefix: bytes, seen: int) -> Sequence[Change]:
    """The newest state of each key that was touched after `seen`, oldest change first."""
    rows = connection.execute(
        "SELECT c.key, e.value, MAX(c.revision) AS newest, e.key IS NULL"
        " FROM changes c LEFT JOIN entries e ON e.key = c.key"
        " WHERE c.revision > ? AND c.key >= ? AND c.key < ? GROUP BY c.key ORDER BY newest, c.key",
        (seen, prefix, prefix_end(prefix)),
    )
    return [
        Removed(key.decode(), revision)
        if gone
        else Changed(KeyValue(key.decode(), value, revision))
        for key, value, revision, gone in rows
    ]


def _write(
    connection: sqlite3.Connection,
    operations: Sequence[Operation],
    lease: int | None,
    revision: int,
) -> list[bytes]:
    """Carries the operations out; returns the keys that they touched."""
    touched = []
    for operation in operations:
        key = operation.key.encode()
        if isinstance(operation, Put):
            connection.execute(
                "INSERT INTO entries VALUES (?1, ?2, ?3, ?4) ON CONFLICT (key)"
                " DO UPDATE SET value = ?2, revision = ?3, lease = ?4",
                (key, operation.value, revision, lease if operation.leased else None),
            )
            touched.append(key)
        elif connection.execute("DELETE FROM entries WHERE key = ?", (key,)).rowcount:
            touched.append(key)
    return touched


def _lease_exists(connection: sqlite3.Connection, lease: int) -> bool:
    return connection.execute("SELECT 1 FROM leases WHERE id = ?", (lease,)).fetchone() is not None


def _entry(row: tuple[bytes, bytes, int]) -> KeyValue:
    key, value, revision = row
    return KeyValue(key.decode(), value, revision)


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
