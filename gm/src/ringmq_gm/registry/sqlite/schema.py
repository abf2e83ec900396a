"""The tables of a registry file (application id "RMQR", user version 2), and their making.

meta     one row: the registry's identity, the present revision, and `compacted`, the newest
         revision whose changes have been forgotten
entries  the present state: key (UTF-8), value, revision, lease or NULL
changes  which keys were written or deleted at which revision, the last `revisions_kept` of
         them; the new value of a key is read from `entries`. `mark` is a random number of the
         revision, which tells it from the same one of another history
leases   until when (`clock()`, in seconds since boot) each session is good
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ringmq_gm.registry.base import AddressError

APPLICATION_ID = 0x524D5152
USER_VERSION = 2
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
    mark INTEGER NOT NULL,
    PRIMARY KEY (revision, key)) WITHOUT ROWID;
CREATE TABLE leases (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    ttl_s REAL NOT NULL,
    expires REAL NOT NULL);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {USER_VERSION};
"""


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Sets the connection up, and makes the tables if the file is new."""
    # In one transaction: another process may be making the tables at this moment.
    with transaction(connection, "BEGIN"):
        ready = _is_registry(connection, path)
        connection.execute("COMMIT")
    if not ready:
        connection.execute("PRAGMA journal_mode = WAL")
        with transaction(connection, "BEGIN IMMEDIATE"):
            # Another process may have been first.
            if not _is_registry(connection, path):
                for statement in SCHEMA.split(";"):
                    connection.execute(statement)
                connection.execute("INSERT INTO meta VALUES (1, ?, 0, 0)", (secrets.token_hex(16),))
            connection.execute("COMMIT")
        # Without this a power cut may lose the file's name, and the whole registry with it.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    connection.execute("PRAGMA synchronous = FULL")


def _is_registry(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the tables are there. Raises `AddressError` if the file holds other tables."""
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


@contextmanager
def transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    """A transaction that the block commits itself. If the block fails before its `COMMIT`, the
    transaction is rolled back."""
    connection.execute(begin)
    try:
        yield
    except BaseException:
        # SQLite has rolled back by itself after some errors, and is closed after others.
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
