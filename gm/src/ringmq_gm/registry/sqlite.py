"""The embedded registry: one SQLite file, for a cluster of processes on one machine.

The asyncio side; `sqlite_store.py` is what blocks, and has the invariants. Reads
and writes have a thread and a connection each, so that a get never waits behind
a commit, and a third thread looks for changes. Nothing here blocks the loop, and
each call ends by its deadline even if the file system doesn't answer.

Watches look at the file each `poll_interval_s` (SQLite has a counter in shared
memory for that; a look costs microseconds), and at once after a commit by any
connection in the same process. The same loop ends leases that have run out,
whichever process they belong to.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from ringmq_gm.registry.limits import check_commit, check_ttl, key_bytes, prefix_bytes
from ringmq_gm.registry.sessions import LeasedSession, clock
from ringmq_gm.registry.sqlite_store import REVISIONS_KEPT, FileIdentity, Gate, RegistryFile

T = TypeVar("T")

DEADLINE_S = 2.0
# How late another process may see a change. It adds to each fail-over.
POLL_INTERVAL_S = 0.02
# The share of a deadline after which the thread gives up by itself, with a better reason.
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
        place = FileIdentity(path)
        self._reader = _Worker(RegistryFile(place, revisions_kept=revisions_kept), "read")
        self._writer = _Worker(RegistryFile(place, revisions_kept=revisions_kept), "write")
        self._sessions: weakref.WeakSet[LeasedSession] = weakref.WeakSet()
        self._poller: asyncio.Task[None] | None = None
        self._looker = _Looker(RegistryFile(place), deadline_s, poll_interval_s)
        self._seen = asyncio.Event()
        # Replaced by a new one each time it is set: wakes those who wait, exactly once.
        self._changed = asyncio.Event()
        self._closed = False

    async def get(self, key: str) -> KeyValue | None:
        return await self._read(partial(self._reader.store.get, key_bytes(key)))

    async def list(self, prefix: str) -> Snapshot:
        return await self._read(partial(self._reader.store.list, prefix_bytes(prefix)))

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
                partial(self._writer.store.commit, tuple(guards), tuple(operations), lease)
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
            changes, seen = await self._read(partial(self._reader.store.changes, encoded, seen))
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
        number, until = await self._write(partial(self._writer.store.grant, ttl_s))
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
        return await self._write(partial(self._writer.store.renew, lease, ttl_s))

    async def revoke(self, lease: int) -> None:
        """For the session with this lease."""
        await self._write(partial(self._writer.store.revoke, lease))

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
            # Whoever was cancelled here doesn't want it any more.
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
        """Acts on what the looker has seen: wakes the watches, ends leases."""
        while True:
            await self._seen.wait()
            self._seen.clear()
            self._notify()
            if clock() >= self._looker.expiry:
                try:
                    await self._write(self._writer.store.sweep)
                except RegistryError:
                    # It stays seen, and others try as well.
                    await asyncio.sleep(self._poll_interval_s * random.uniform(5, 10))


# Those in this process that look at a file: a commit wakes the ones that look at the same.
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


class _Looker:
    """A thread that looks at the file again and again.

    It hands over to the loop only when there is something to do: an idle connection
    would spend a hundred times as much on going to and fro as on the look itself.
    """

    def __init__(self, store: RegistryFile, deadline_s: float, interval_s: float) -> None:
        # When (`clock()`) the next lease runs out, as of the last look.
        self.expiry = math.inf
        self._store = store
        self._deadline_s = deadline_s
        self._interval_s = interval_s
        self._now = threading.Event()
        self._stopped = False
        self._ended = asyncio.Event()

    def start(self, loop: asyncio.AbstractEventLoop, seen: Callable[[], None]) -> None:
        """From now on calls `seen` in the loop after a change, while a lease is overdue,
        and while the file can't be read."""
        threading.Thread(
            target=self._run, args=(loop, seen), name="registry-look", daemon=True
        ).start()

    def wake(self) -> None:
        """Looks now. From any thread."""
        self._now.set()

    async def close(self, timeout_s: float) -> None:
        self._stopped = True
        self._now.set()
        # A thread that hangs in the file system ends when that answers.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()

    def _run(self, loop: asyncio.AbstractEventLoop, seen: Callable[[], None]) -> None:
        version: int | None = None
        try:
            while not self._stopped:
                self._now.clear()
                pause_s = self._interval_s
                try:
                    newest, self.expiry = self._store.look(deadline=clock() + self._deadline_s)
                except RegistryError:
                    # The watches find it out by themselves, and begin anew.
                    newest = None
                    pause_s *= random.uniform(5, 10)
                if newest is None or newest != version or clock() >= self.expiry:
                    version = newest
                    loop.call_soon_threadsafe(seen)
                self._now.wait(pause_s)
            self._store.close()
            loop.call_soon_threadsafe(self._ended.set)
        except RuntimeError:
            # The loop was closed, and the registry was not.
            assert loop.is_closed()
            self._store.close()


class _Worker:
    """A store and the one thread that uses it."""

    def __init__(self, store: RegistryFile, name: str) -> None:
        self.store = store
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"registry-{name}")

    async def run(self, call: Callable[[], T], timeout_s: float) -> T:
        """The call's result; raises `TimeoutError` while it may still be running, but
        never begins it after that."""
        submitted = self._executor.submit(call)
        future = asyncio.wrap_future(submitted)
        try:
            done, _ = await asyncio.wait({future}, timeout=timeout_s)
        except asyncio.CancelledError:
            submitted.cancel()
            future.add_done_callback(_forget)
            raise
        if not done:
            submitted.cancel()
            future.add_done_callback(_forget)
            raise TimeoutError
        return future.result()

    async def close(self, timeout_s: float) -> None:
        # A thread that hangs in the file system ends when that answers.
        with contextlib.suppress(TimeoutError):
            await self.run(self.store.close, timeout_s)
        self._executor.shutdown(wait=False)


def _forget(future: asyncio.Future[T]) -> None:
    """Nobody waits for this result any more, be it an error."""
    if not future.cancelled():
        future.exception()
