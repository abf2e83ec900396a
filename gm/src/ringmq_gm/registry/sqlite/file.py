"""The registry in a SQLite file: every call that blocks. `registry.py` runs them in threads.

Invariants (`schema` has the tables):

* One writer at a time (`BEGIN IMMEDIATE`), which first ends the leases that have run out: no
  guard ever holds because of a key that should be gone.
* The revision grows by one for each commit that changes something, and by one for the leases
  that it ended on the way. `changes` has a row for each key that was touched.
* `COMMIT` returns after the write-ahead log is on disk (`synchronous=FULL`).
* A lease that says it is good for longer than its ttl is from before a reboot (the clock began
  anew), so its holder is no more.

The file has to be on a local file system, as SQLite's shared memory and locks demand; all
processes that use it run on one machine. A process that is stopped within its commit (a
millisecond) holds the write lock until it goes on or dies: the others read on meanwhile, and
their commits are refused.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Sequence

from ringmq_gm.registry.base import (
    Change,
    Changed,
    Guard,
    KeyValue,
    Operation,
    Put,
    Removed,
    Reset,
    SessionLostError,
    Snapshot,
)
from ringmq_gm.registry.limits import key_text, prefix_end
from ringmq_gm.registry.sessions import clock
from ringmq_gm.registry.sqlite.connection import FileConnection, FileIdentity, Gate

REVISIONS_KEPT = 4096

# A lease may be good for its ttl and this much more; if for longer, it is from before a reboot.
SLACK_S = 1.0
EXPIRED = f"(expires <= :now OR expires > :now + ttl_s + {SLACK_S})"


class RegistryFile:
    """The calls of one thread. Each blocks until `deadline` (`clock()`) at most, and raises
    `RegistryUnavailableError`, or `CommitUnknownError` from within a commit."""

    def __init__(self, identity: FileIdentity, *, revisions_kept: int = REVISIONS_KEPT) -> None:
        self._connection = FileConnection(identity)
        self._revisions_kept = revisions_kept
        # The last look: by which connection, its `PRAGMA data_version`, the next expiry as of
        # then. The version is only comparable within one connection.
        self._looked: tuple[sqlite3.Connection, int, float] | None = None

    def close(self) -> None:
        self._connection.close()

    # --- reading ---

    def get(self, key: bytes, *, deadline: float) -> KeyValue | None:
        def job(connection: sqlite3.Connection) -> KeyValue | None:
            row = connection.execute(
                "SELECT key, value, revision FROM entries WHERE key = ?", (key,)
            ).fetchone()
            return None if row is None else _entries([row])[0]

        return self._connection.read_snapshot(job, deadline)

    def read(self, keys: Sequence[bytes], *, deadline: float) -> Snapshot:
        return self._connection.read_snapshot(lambda c: _read(c, keys), deadline)

    def list(self, prefix: bytes, *, deadline: float) -> Snapshot:
        return self._connection.read_snapshot(lambda c: _list(c, prefix), deadline)

    def changes(
        self, prefix: bytes, seen: int | None, *, deadline: float
    ) -> tuple[Sequence[Change], int]:
        """The changes below `prefix` since revision `seen`, and the present revision.

        A `Reset` if `seen` is None or its successors have been forgotten.
        """

        def job(connection: sqlite3.Connection) -> tuple[Sequence[Change], int]:
            revision, compacted = connection.execute(
                "SELECT revision, compacted FROM meta"
            ).fetchone()
            if seen is None or seen < compacted:
                return (Reset(_list(connection, prefix)),), revision
            return (_changes(connection, prefix, seen) if seen != revision else ()), revision

        return self._connection.read_snapshot(job, deadline)

    def look(self, *, deadline: float) -> tuple[int, float]:
        """A number that changes with the file, and when (`clock()`) the next lease runs out.

        Cheap if nothing has changed since the last time: it reads shared memory.
        """

        def job(connection: sqlite3.Connection) -> tuple[int, float]:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            looked = self._looked
            if looked is None or looked[0] is not connection or looked[1] != version:
                (expiry,) = connection.execute(
                    f"SELECT MIN(CASE WHEN {EXPIRED} THEN 0 ELSE expires END) FROM leases",
                    {"now": clock()},
                ).fetchone()
                looked = (connection, version, float("inf") if expiry is None else expiry)
                self._looked = looked
            return looked[1], looked[2]

        return self._connection.read(job, deadline)

    # --- writing ---

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
            # Before the guards: none may hold because of a key whose lease has run out.
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

        return self._connection.write(job, gate, deadline)

    def sweep(self, *, gate: Gate, deadline: float) -> None:
        """Ends the leases that have run out, with their keys."""
        self._connection.write(self._sweep, gate, deadline)

    def grant(self, ttl_s: float, *, gate: Gate, deadline: float) -> tuple[int, float]:
        """A new lease: its number, and until when it is good."""
        # From before the write: the session must end no later than the lease in the file.
        expires = clock() + ttl_s

        def job(connection: sqlite3.Connection) -> int:
            cursor = connection.execute(
                "INSERT INTO leases (ttl_s, expires) VALUES (?, ?)", (ttl_s, expires)
            )
            assert cursor.lastrowid is not None
            return cursor.lastrowid

        return self._connection.write(job, gate, deadline), expires

    def renew(self, lease: int, ttl_s: float, *, gate: Gate, deadline: float) -> float | None:
        """Until when the lease is good now; None if it is gone."""
        expires = clock() + ttl_s

        def job(connection: sqlite3.Connection) -> float | None:
            cursor = connection.execute(
                f"UPDATE leases SET expires = :expires WHERE id = :id AND NOT {EXPIRED}",
                {"expires": expires, "id": lease, "now": clock()},
            )
            return expires if cursor.rowcount else None

        return self._connection.write(job, gate, deadline)

    def revoke(self, lease: int, *, gate: Gate, deadline: float) -> None:
        """Ends the lease and its keys. No error if it is gone already."""

        def job(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE leases SET expires = 0 WHERE id = ?", (lease,))
            self._sweep(connection)

        self._connection.write(job, gate, deadline)

    def _sweep(self, connection: sqlite3.Connection) -> int:
        """Ends the leases that have run out; returns the revision after that."""
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
        mark = secrets.randbits(63)
        connection.executemany(
            "INSERT INTO changes (revision, key, mark) VALUES (?, ?, ?)",
            [(revision, key, mark) for key in touched],
        )
        connection.execute(
            "UPDATE meta SET revision = ?, compacted = MAX(compacted, ?)",
            (revision, revision - self._revisions_kept),
        )
        connection.execute("DELETE FROM changes WHERE revision <= (SELECT compacted FROM meta)")
        return revision


def _read(connection: sqlite3.Connection, keys: Sequence[bytes]) -> Snapshot:
    (revision,) = connection.execute("SELECT revision FROM meta").fetchone()
    places = ",".join("?" * len(keys))
    rows = connection.execute(
        f"SELECT key, value, revision FROM entries WHERE key IN ({places}) ORDER BY key", keys
    )
    return Snapshot(_entries(rows), revision)


def _list(connection: sqlite3.Connection, prefix: bytes) -> Snapshot:
    (revision,) = connection.execute("SELECT revision FROM meta").fetchone()
    rows = connection.execute(
        "SELECT key, value, revision FROM entries WHERE key >= ? AND key < ? ORDER BY key",
        (prefix, prefix_end(prefix)),
    )
    return Snapshot(_entries(rows), revision)


def _changes(connection: sqlite3.Connection, prefix: bytes, seen: int) -> Sequence[Change]:
    """The newest state of each key that was touched after `seen`, oldest change first."""
    rows = connection.execute(
        "SELECT c.key, e.value, MAX(c.revision) AS newest, e.key IS NULL"
        " FROM changes c LEFT JOIN entries e ON e.key = c.key"
        " WHERE c.revision > ? AND c.key >= ? AND c.key < ? GROUP BY c.key ORDER BY newest, c.key",
        (seen, prefix, prefix_end(prefix)),
    )
    return [
        Removed(text, revision) if gone else Changed(KeyValue(text, value, revision))
        for key, value, revision, gone in rows
        if (text := key_text(key)) is not None
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


def _entries(rows: Iterable[tuple[bytes, bytes, int]]) -> tuple[KeyValue, ...]:
    return tuple(
        KeyValue(text, value, revision)
        for key, value, revision in rows
        if (text := key_text(key)) is not None
    )
