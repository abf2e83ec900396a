"""The registry's interface: a linearizable map with revisions, watches and leases.

Everything that a cluster has to agree on lives here (nodes, rings, queues), and no message ever
does. The calls are few, so that two engines which have little in common can both keep the
promise: SQLite in WAL mode for a cluster of processes on one machine, etcd v3 for a cluster of
machines.

Guarantees of every engine, shown for both of them by `gm/tests/registry`:

* Linearizable. A `get`, `read` or `list` that starts after a `commit` has returned sees it.
* One clock. Every successful commit has a revision above all before it; a key's
  `revision` is that of the commit that last wrote it. Two keys with the same
  revision were written by the same commit.
* `commit` is all or nothing, and takes effect only if every guard holds. A commit that changes
  nothing (no operations, or deletes of absent keys) returns the present revision and makes no new
  one.
* A commit whose answer was lost raises `CommitUnknownError`: it may or may not
  have taken effect. The caller reads, and decides anew. It is never retried here.
* A watch shows each key's newest value sooner or later. It may leave out values
  that were overwritten meanwhile (etcd compacts), never the last one, and for
  one key never goes back. After a reconnect it begins with the present state.
* A session's keys disappear when it is closed, or has not been able to renew for
  `ttl_s` (which an engine may round up: etcd has whole seconds, at least two). A
  leased `Put` of a session which is gone is refused by the registry itself,
  even if its holder still believes in it. The holder is told no later than the others:
  `Session.lost` is set before the keys can be seen gone.

Keys are text with `/` between parts, not empty; values are bytes. Sizes are
bounded by `KEY_BYTES_MAX` and `VALUE_BYTES_MAX`, a commit by `OPERATIONS_MAX`
(guards and operations, each) and `COMMIT_BYTES_MAX`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

KEY_BYTES_MAX = 1024
VALUE_BYTES_MAX = 1024 * 1024
# Etcd's own limit on the operations of one transaction.
OPERATIONS_MAX = 128
# All keys and values of one commit together. Etcd refuses requests over 1.5 MiB; the difference
# is for its framing and for a prefix of each key.
COMMIT_BYTES_MAX = 1280 * 1024


class RegistryError(Exception):
    """The root of all errors of a registry."""


class RegistryUnavailableError(RegistryError):
    """The registry does not answer. Nothing was changed; try again later."""


class RegistryWentBackError(RegistryUnavailableError):
    """The registry has shown an older state than before: it was put back to a backup. This process
    takes nothing of it any more, as if it were away."""


class CommitUnknownError(RegistryError):
    """A commit was sent and its answer lost: read before doing anything else."""


class SessionLostError(RegistryError):
    """The session has run out or was closed: its keys are gone."""


class LimitError(RegistryError, ValueError):
    """A call that no engine can carry out: over a limit, or one key written twice by
    one commit, or a leased `Put` without a session. A bug of the caller."""


class AddressError(RegistryError, ValueError):
    """The URL is not that of a registry, or something else is stored there."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key and its value at some moment. `revision` is that of its last write."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Guard:
    """Holds if `key` was last written at `revision`; 0 means it does not exist."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """Writes `value`; with `leased`, the key lives no longer than the session given to `commit`."""

    key: str
    value: bytes
    leased: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Removes `key`, if it is there."""

    key: str


Operation = Put | Delete


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All entries below a prefix, in order of their keys, as of one revision."""

    entries: tuple[KeyValue, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Changed:
    """A key has been written."""

    entry: KeyValue


@dataclass(frozen=True, slots=True)
class Removed:
    """A key has been deleted, by a commit or with its session."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Reset:
    """The whole state anew: at the start of a watch, and after a gap in it."""

    snapshot: Snapshot


Change = Changed | Removed | Reset


class Session(Protocol):
    """A lease that its holder keeps alive in the background."""

    @property
    def lost(self) -> bool:
        """Whether it can no longer be relied on. Never becomes false again."""
        ...

    async def wait_lost(self) -> None:
        """Returns when `lost` has become true."""
        ...

    async def close(self) -> None:
        """Ends it now; its keys are gone when this returns."""
        ...


class Registry(Protocol):
    """One open connection to a registry. Every call has a deadline of its own inside
    and raises `RegistryUnavailableError` past it."""

    async def get(self, key: str) -> KeyValue | None:
        """The entry, or None if there is none."""
        ...

    async def read(self, keys: Sequence[str]) -> Snapshot:
        """Those of these entries that exist, as of one revision; at most `OPERATIONS_MAX` keys."""
        ...

    async def list(self, prefix: str) -> Snapshot:
        """Every entry whose key begins with `prefix`."""
        ...

    async def commit(
        self,
        guards: Sequence[Guard],
        operations: Sequence[Operation],
        *,
        session: Session | None = None,
    ) -> int | None:
        """Carries out `operations` if all `guards` hold.

        Returns the revision, or None if a guard did not hold (nothing changed).
        Raises `SessionLostError`, with nothing changed, if `session` is lost.
        """
        ...

    def watch(self, prefix: str) -> AsyncIterator[Sequence[Change]]:
        """The state below `prefix` as a `Reset`, then its changes in order, in batches.

        Goes on for as long as it is iterated over: lost connections are repaired
        with back-off, and a new `Reset` follows. Ends when the registry is closed.
        """
        ...

    async def session(self, ttl_s: float) -> Session:
        """Opens a session; the engine renews it about every third of `ttl_s`."""
        ...

    async def close(self) -> None:
        """Closes the connection. Its watches end; its sessions are `lost` at once, and
        their keys disappear when they run out."""
        ...
