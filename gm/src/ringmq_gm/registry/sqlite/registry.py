"""The embedded registry's asyncio side.

Reads and writes have a thread and a connection each, so that a get never waits behind a commit,
and a third thread looks for changes. Nothing here blocks the loop, and each call ends by its
deadline even if the file system doesn't answer.

Watches look at the file each `poll_interval_s` (SQLite has a counter in shared memory for that;
a look costs microseconds), and at once after a commit by any connection in the same process. The
same loop ends leases that have run out, whichever process they belong to.
"""

from __future__ import annotations

import asyncio
import random
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from ringmq_gm.registry.base import (
    Change,
    CommitUnknownError,
    Guard,
    KeyValue,
    LimitError,
    Operation,
    RegistryError,
    RegistryUnavailableError,
    Session,
    SessionLostError,
    Snapshot,
)
from ringmq_gm.registry.limits import check_commit, check_read, check_ttl, key_bytes, prefix_bytes
from ringmq_gm.registry.sessions import LeasedSession, clock
from ringmq_gm.registry.sqlite.connection import FileIdentity, Gate
from ringmq_gm.registry.sqlite.file import REVISIONS_KEPT, RegistryFile
from ringmq_gm.registry.sqlite.threads import FileThread, Looker

T = TypeVar("T")

DEADLINE_S = 2.0
# How late another process may see a change. It adds to each fail-over.
POLL_INTERVAL_S = 0.02
# The share of a deadline after which the thread gives up by itself: its reason is better.
_INNER_DEADLINE = 0.95


class SqliteRegistry:
    """`ringmq_gm.registry.base.Registry` on a local file. For one event loop."""

    def __init__(
        self,
        path: Path,
        *,
        deadline_s: float = DEADLINE_S,
        poll_interval_s: float = POLL_INTERVAL_S,
        revisions_kept: int = REVISIONS_KEPT,
    ) -> None:
        """Opens nothing yet. `revisions_kept` is how far a watch may fall behind before
        it begins anew with a `Reset`."""
        self.path = path
        self._deadline_s = deadline_s
        self._poll_interval_s = poll_interval_s
        identity = FileIdentity(path)
        self._reader = FileThread(RegistryFile(identity, revisions_kept=revisions_kept), "read")
        self._writer = FileThread(RegistryFile(identity, revisions_kept=revisions_kept), "write")
        self._sessions: weakref.WeakSet[LeasedSession] = weakref.WeakSet()
        self._poller: asyncio.Task[None] | None = None
        self._looker = Looker(RegistryFile(identity), deadline_s, poll_interval_s)
        self._seen = asyncio.Event()
        # Replaced by a new one each time it is set: each watch that waits is woken exactly once.
        self._changed = asyncio.Event()
        self._closed = False

    async def get(self, key: str) -> KeyValue | None:
        return await self._read(partial(self._reader.file.get, key_bytes(key)))

    async def read(self, keys: Sequence[str]) -> Snapshot:
        return await self._read(partial(self._reader.file.read, check_read(keys)))

    async def list(self, prefix: str) -> Snapshot:
        return await self._read(partial(self._reader.file.list, prefix_bytes(prefix)))

    async def commit(
        self,
        guards: Sequence[Guard],
        operations: Sequence[Operation],
        *,
        session: Session | None = None,
    ) -> int | None:
        check_commit(guards, operations, session)
        lease = None if session is None else self._lease_number(session)
        try:
            return await self._write(
                partial(self._writer.file.commit, tuple(guards), tuple(operations), lease)
            )
        except SessionLostError:
            assert isinstance(session, LeasedSession)
            session.renounce()
            raise

    async def watch(self, prefix: str) -> AsyncIterator[Sequence[Change]]:
        encoded = prefix_bytes(prefix)
        seen: int | None = None

        def forget(_: RetryCallState) -> None:
            nonlocal seen
            seen = None

        async def read() -> Sequence[Change]:
            nonlocal seen
            if self._closed:
                return ()
            changes, seen = await self._read(partial(self._reader.file.changes, encoded, seen))
            return changes

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(RegistryUnavailableError),
            wait=wait_random_exponential(multiplier=self._poll_interval_s, max=1.0),
            before_sleep=forget,
        )
        while not self._closed:
            changed = self._changed  # Before the read: a change during it isn't missed.
            changes: Sequence[Change] = await retrying(read)
            if changes:
                yield changes
            await changed.wait()

    async def session(self, ttl_s: float) -> Session:
        check_ttl(ttl_s)
        number, until = await self._write(partial(self._writer.file.grant, ttl_s))
        session = LeasedSession(_SqliteLease(self, number, ttl_s), ttl_s=ttl_s, until=until)
        self._sessions.add(session)
        return session

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        _OPEN.discard(self)
        self._notify()
        for session in list(self._sessions):
            await session.abandon()
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.wait({self._poller})
            await self._looker.close(self._deadline_s)
        for worker in (self._reader, self._writer):
            await worker.close(self._deadline_s)

    async def renew(self, lease: int, ttl_s: float) -> float | None:
        """For the session with this lease."""
        return await self._write(partial(self._writer.file.renew, lease, ttl_s))

    async def revoke(self, lease: int) -> None:
        """For the session with this lease."""
        await self._write(partial(self._writer.file.revoke, lease))

    def _lease_number(self, session: Session) -> int:
        if not (isinstance(session, LeasedSession) and session in self._sessions):
            raise LimitError("the session is not one of this registry")
        if session.lost:
            raise SessionLostError("the session is lost; nothing was written")
        assert isinstance(session.lease, _SqliteLease)
        return session.lease.number

    async def _read(self, job: Callable[..., T]) -> T:
        self._start()
        call = partial(job, deadline=clock() + self._deadline_s * _INNER_DEADLINE)
        try:
            return await self._reader.run(call, self._deadline_s)
        except TimeoutError as error:
            raise self._too_slow() from error

    async def _write(self, job: Callable[..., T]) -> T:
        self._start()
        gate = Gate()
        call = partial(job, gate=gate, deadline=clock() + self._deadline_s * _INNER_DEADLINE)
        try:
            result = await self._writer.run(call, self._deadline_s)
        except TimeoutError as error:
            if gate.shut():
                raise self._too_slow() from error
            raise CommitUnknownError(
                f"registry {self.path}: a commit takes longer than {self._deadline_s} s"
            ) from error
        finally:
            # A caller that was cancelled here doesn't want the commit any more.
            gate.shut()
        for registry in list(_OPEN):
            if registry.path == self.path:
                registry._looker.wake()
        return result

    def _too_slow(self) -> RegistryUnavailableError:
        return RegistryUnavailableError(
            f"registry {self.path}: no answer within {self._deadline_s} s"
        )

    def _start(self) -> None:
        if self._closed:
            raise RegistryUnavailableError(f"registry {self.path}: this connection was closed")
        if self._poller is None:
            self._looker.start(asyncio.get_running_loop(), self._seen.set)
            self._poller = asyncio.create_task(self._poll(), name="registry poller")
            _OPEN.add(self)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _poll(self) -> None:
        """After each change that the looker has seen: wakes the watches, ends overdue leases."""
        while True:
            await self._seen.wait()
            self._seen.clear()
            self._notify()
            if clock() >= self._looker.expiry:
                try:
                    await self._write(self._writer.file.sweep)
                except RegistryError:
                    # The looker reports it again, and other processes try as well.
                    await asyncio.sleep(self._poll_interval_s * random.uniform(5, 10))


# The open registries of this process: a commit wakes those that look at the same file.
_OPEN: weakref.WeakSet[SqliteRegistry] = weakref.WeakSet()


class _SqliteLease:
    """`ringmq_gm.registry.sessions.Lease`."""

    def __init__(self, registry: SqliteRegistry, number: int, ttl_s: float) -> None:
        self.number = number
        self._registry = registry
        self._ttl_s = ttl_s

    async def renew(self) -> float | None:
        return await self._registry.renew(self.number, self._ttl_s)

    async def revoke(self) -> None:
        await self._registry.revoke(self.number)
