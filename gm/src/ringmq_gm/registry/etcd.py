"""The registry in etcd (3.4 or later), for a cluster of machines.

Etcd has all that the interface promises: transactions with comparisons of revisions, linearizable
reads, watches in order of revisions, leases. This module adds:

* All keys lie below a prefix, so that clusters and other users can share an etcd.
* A transaction is never repeated (`etcd_client.py`). Etcd says that it has no space also of one
  that it has carried out: a read tells which it was.
* A watch that breaks, or whose endpoint is cut off (no leader) or silent, or whose revisions are
  compacted, starts again on any endpoint with the whole state. There is one way to begin, so there
  is one way to repair.
* A response that etcd sends in fragments is put together again: the changes of one commit stay
  together.
* An etcd that was put back to an earlier state is refused for good (`etcd_history.py`).
* A session counts from before its renewal was sent, and by a clock that may run
  slower than etcd's by `CLOCK_DRIFT_MAX`.
"""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from typing import TypeVar

import grpc
import grpc.aio
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from ringmq_gm.registry.base import (
    Change,
    Changed,
    Guard,
    KeyValue,
    LimitError,
    Operation,
    Put,
    RegistryUnavailableError,
    Removed,
    Reset,
    Session,
    SessionLostError,
    Snapshot,
)
from ringmq_gm.registry.etcd_client import (
    METADATA,
    CompactedError,
    EtcdClient,
    NoSpaceError,
)
from ringmq_gm.registry.etcd_endpoint import PAGE_ENTRIES_MAX, Endpoint
from ringmq_gm.registry.etcdpb import kv_pb2, rpc_pb2
from ringmq_gm.registry.limits import (
    check_commit,
    check_read,
    check_ttl,
    key_bytes,
    key_text,
    prefix_bytes,
    prefix_end,
)
from ringmq_gm.registry.sessions import LeasedSession, clock

DEADLINE_S = 2.0
# How often a list that is overtaken by compaction begins anew.
SNAPSHOT_ATTEMPTS_MAX = 3
# How long a watch hears nothing before it asks for a sign of life.
WATCH_QUIET_S = 1.0
# How many of these go by without one before it tries another endpoint.
WATCH_QUIET_MAX = 3
# How much slower than etcd's this machine's clock may run, as a share.
CLOCK_DRIFT_MAX = 0.01

WatchCall = grpc.aio.StreamStreamCall[rpc_pb2.WatchRequest, rpc_pb2.WatchResponse]


class EtcdRegistry:
    """`ringmq_gm.registry.base.Registry` on an etcd cluster. For one event loop."""

    def __init__(
        self, endpoints: Sequence[str], *, prefix: str, deadline_s: float = DEADLINE_S
    ) -> None:
        """`endpoints` are `host:port` of members of one cluster; `prefix` is put before
        each key. Connects at the first call."""
        self.endpoints = tuple(endpoints)
        self.prefix = prefix.encode()
        self._client = EtcdClient(endpoints, deadline_s)
        self._sessions: weakref.WeakSet[LeasedSession] = weakref.WeakSet()
        self._watches: set[_Follower] = set()

    async def get(self, key: str) -> KeyValue | None:
        response = await self._range(rpc_pb2.RangeRequest(key=self.prefix + key_bytes(key)))
        return next(iter(self._entries(response.kvs)), None)

    async def read(self, keys: Sequence[str]) -> Snapshot:
        # One transaction that only reads: it is linearizable, and may be asked again.
        request = rpc_pb2.TxnRequest(
            success=[
                rpc_pb2.RequestOp(request_range=rpc_pb2.RangeRequest(key=self.prefix + key))
                for key in check_read(keys)
            ]
        )

        async def call(endpoint: Endpoint, timeout_s: float) -> rpc_pb2.TxnResponse:
            asked_at = self._client.history.revision
            response = await endpoint.kv.Txn(request, timeout=timeout_s, metadata=METADATA)
            self._client.check_revision(response.header, asked_at)
            return response

        response = await self._client.ask(call)
        pairs = [pair for each in response.responses for pair in each.response_range.kvs]
        self._client.history.saw(pairs)
        return Snapshot(tuple(self._entries(pairs)), response.header.revision)

    async def list(self, prefix: str) -> Snapshot:
        return await self.snapshot(self.prefix + prefix_bytes(prefix))

    async def commit(
        self,
        guards: Sequence[Guard],
        operations: Sequence[Operation],
        *,
        session: Session | None = None,
    ) -> int | None:
        check_commit(guards, operations, session)
        lease = 0 if session is None else self._lease_number(session)
        request = rpc_pb2.TxnRequest(
            compare=[
                rpc_pb2.Compare(
                    target=rpc_pb2.Compare.MOD,
                    result=rpc_pb2.Compare.EQUAL,
                    key=self.prefix + guard.key.encode(),
                    mod_revision=guard.revision,
                )
                for guard in guards
            ],
            success=[self._operation(operation, lease) for operation in operations],
        )

        async def call(endpoint: Endpoint, timeout_s: float) -> rpc_pb2.TxnResponse:
            asked_at = self._client.history.revision
            response = await endpoint.kv.Txn(request, timeout=timeout_s, metadata=METADATA)
            self._client.check_revision(response.header, asked_at)
            return response

        self._client.history.check_usable()
        try:
            response = await self._client.send_once(call)
        except SessionLostError:
            if isinstance(session, LeasedSession):
                session.renounce()
            raise
        except NoSpaceError as error:
            if await self._is_unchanged(guards, operations):
                raise RegistryUnavailableError(str(error)) from error
            raise
        if not response.succeeded:
            return None
        for operation in operations:
            if isinstance(operation, Put):
                key = self.prefix + operation.key.encode()
                self._client.history.saw_write(key, response.header.revision)
        return response.header.revision

    async def _is_unchanged(self, guards: Sequence[Guard], operations: Sequence[Operation]) -> bool:
        """Whether it is known that a transaction was not carried out which etcd has ended: a key
        that it would have written is as its guard wants it. (One that was made by it, and deleted
        since, is so too: then nothing of it is left.)"""
        revisions = {guard.key: guard.revision for guard in guards}
        guarded = next((each.key for each in operations if each.key in revisions), None)
        if guarded is None:
            return False
        try:
            entry = await self.get(guarded)
        except RegistryUnavailableError:
            return False
        return revisions[guarded] == (0 if entry is None else entry.revision)

    async def watch(self, prefix: str) -> AsyncIterator[Sequence[Change]]:
        follower = _Follower(self, self._client, self.prefix + prefix_bytes(prefix))
        self._watches.add(follower)
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(RegistryUnavailableError),
            wait=wait_random_exponential(multiplier=0.05, max=1.0),
            stop=lambda _: self._client.closed,
            retry_error_callback=lambda _: (),
        )
        try:
            while not self._client.closed:
                changes: Sequence[Change] = await retrying(follower.next)
                if changes:
                    yield changes
        finally:
            self._watches.discard(follower)
            await follower.close()

    async def session(self, ttl_s: float) -> Session:
        check_ttl(ttl_s)
        request = rpc_pb2.LeaseGrantRequest(TTL=math.ceil(ttl_s))

        async def call(endpoint: Endpoint, timeout_s: float) -> tuple[int, float]:
            before = clock()
            response = await endpoint.lease.LeaseGrant(
                request, timeout=timeout_s, metadata=METADATA
            )
            self._client.check(response.header)
            return response.ID, good_until(before, response.TTL)

        # A grant that is repeated may leave an unused lease behind, which runs out.
        number, until = await self._client.ask(call)
        session = LeasedSession(_EtcdLease(self._client, number), ttl_s=ttl_s, until=until)
        self._sessions.add(session)
        return session

    async def close(self) -> None:
        if self._client.closed:
            return
        for session in list(self._sessions):
            await session.abandon()
        self._client.closed = True
        for follower in list(self._watches):
            await follower.close()
        await self._client.close()

    async def snapshot(self, prefix: bytes) -> Snapshot:
        """The entries below `prefix` (with the registry's own), as of one revision."""
        for _ in range(SNAPSHOT_ATTEMPTS_MAX - 1):
            try:
                return await self._pages(prefix)
            except CompactedError:
                continue  # Between two pages: begin with the present state.
        return await self._pages(prefix)

    async def _pages(self, prefix: bytes) -> Snapshot:
        entries: list[KeyValue] = []
        start, end, revision = prefix, prefix_end(prefix), 0
        while True:
            response = await self._range(
                rpc_pb2.RangeRequest(
                    key=start, range_end=end, revision=revision, limit=PAGE_ENTRIES_MAX
                )
            )
            entries += self._entries(response.kvs)
            revision = revision or response.header.revision
            if not response.more:
                return Snapshot(tuple(entries), revision)
            start = response.kvs[-1].key + b"\0"

    def _entries(self, pairs: Iterable[kv_pb2.KeyValue]) -> Sequence[KeyValue]:
        return [
            KeyValue(key, pair.value, pair.mod_revision)
            for pair in pairs
            if (key := self.key(pair)) is not None
        ]

    def key(self, pair: kv_pb2.KeyValue) -> str | None:
        """Without the registry's prefix; None if it isn't text."""
        return key_text(pair.key[len(self.prefix) :])

    def _operation(self, operation: Operation, lease: int) -> rpc_pb2.RequestOp:
        key = self.prefix + operation.key.encode()
        if isinstance(operation, Put):
            return rpc_pb2.RequestOp(
                request_put=rpc_pb2.PutRequest(
                    key=key, value=operation.value, lease=lease if operation.leased else 0
                )
            )
        return rpc_pb2.RequestOp(request_delete_range=rpc_pb2.DeleteRangeRequest(key=key))

    def _lease_number(self, session: Session) -> int:
        if not (isinstance(session, LeasedSession) and session in self._sessions):
            raise LimitError("the session is not one of this registry")
        if session.lost:
            raise SessionLostError("the session is lost; nothing was written")
        assert isinstance(session.lease, _EtcdLease)
        return session.lease.number

    async def _range(self, request: rpc_pb2.RangeRequest) -> rpc_pb2.RangeResponse:
        async def call(endpoint: Endpoint, timeout_s: float) -> rpc_pb2.RangeResponse:
            asked_at = self._client.history.revision
            response = await endpoint.kv.Range(request, timeout=timeout_s, metadata=METADATA)
            self._client.check_revision(response.header, asked_at)
            return response

        response = await self._client.ask(call)
        self._client.history.saw(response.kvs)
        return response


def good_until(before: float, ttl_s: int) -> float:
    """Until when a lease is good that was granted or renewed after `before`."""
    return before + ttl_s * (1 - CLOCK_DRIFT_MAX)


class _EtcdLease:
    """`ringmq_gm.registry.sessions.Lease`."""

    def __init__(self, client: EtcdClient, number: int) -> None:
        self.number = number
        self._client = client

    async def renew(self) -> float | None:
        return await self._client.ask(self._keep_alive)

    async def revoke(self) -> None:
        async def call(endpoint: Endpoint, timeout_s: float) -> None:
            request = rpc_pb2.LeaseRevokeRequest(ID=self.number)
            await endpoint.lease.LeaseRevoke(request, timeout=timeout_s, metadata=METADATA)

        try:
            await self._client.ask(call)
        except SessionLostError:
            return  # It had run out already.

    async def _keep_alive(self, endpoint: Endpoint, timeout_s: float) -> float | None:
        """One exchange on a stream of its own: there is no stream whose state could be wrong."""
        before = clock()
        call = endpoint.lease.LeaseKeepAlive(timeout=timeout_s, metadata=METADATA)
        try:
            await call.write(rpc_pb2.LeaseKeepAliveRequest(ID=self.number))
            response = await call.read()
            if not isinstance(response, rpc_pb2.LeaseKeepAliveResponse):
                raise RegistryUnavailableError(
                    f"{self._client}: keep-alive ended without an answer"
                )
        except asyncio.InvalidStateError as error:
            raise RegistryUnavailableError(
                f"{self._client}: keep-alive ended while sending"
            ) from error
        finally:
            call.cancel()
        self._client.check(response.header)
        return good_until(before, response.TTL) if response.TTL > 0 else None


T = TypeVar("T")


class _Follower:
    """One watch: the present state first, then responses of one stream, until that breaks."""

    def __init__(self, registry: EtcdRegistry, client: EtcdClient, prefix: bytes) -> None:
        self._registry = registry
        self._client = client
        self._prefix = prefix
        self._endpoint: Endpoint | None = None
        self._call: WatchCall | None = None
        self._read: asyncio.Task[object] | None = None

    async def next(self) -> Sequence[Change]:
        """The next batch, empty if the registry was closed.

        Raises `RegistryUnavailableError` if the stream broke; the next batch is a `Reset` then.
        """
        if self._call is None:
            snapshot = await self._registry.snapshot(self._prefix)
            await self._or_broken(self._open(snapshot.revision + 1))
            return (Reset(snapshot),)
        return await self._or_broken(self._changes())

    async def _or_broken(self, step: Awaitable[T]) -> T:
        """The endpoint may go in any step, in the write that opens the watch as well."""
        try:
            return await step
        except grpc.aio.AioRpcError as error:
            await self._break()
            raise RegistryUnavailableError(f"{self._client}: watch: {error.details()}") from error
        except Exception:
            await self._break()
            raise

    async def close(self) -> None:
        """Ends the stream; a `next` that waits for it fails."""
        call, self._call = self._call, None
        read, self._read = self._read, None
        if call is not None:
            call.cancel()
        if read is not None:
            # The stream is given up: neither a response nor an error of it is of use.
            await asyncio.gather(read, return_exceptions=True)

    async def _open(self, revision: int) -> None:
        self._endpoint = await self._client.ready_endpoint(clock() + self._client.deadline_s)
        self._call = self._endpoint.watch.Watch(metadata=METADATA)
        create = rpc_pb2.WatchCreateRequest(
            key=self._prefix,
            range_end=prefix_end(self._prefix),
            start_revision=revision,
            fragment=True,
        )
        await self._send(rpc_pb2.WatchRequest(create_request=create))

    async def _break(self) -> None:
        if self._endpoint is not None:
            self._client.avoid(self._endpoint)
        await self.close()

    async def _changes(self) -> Sequence[Change]:
        events: list[kv_pb2.Event] = []
        while True:
            response = await self._response()
            self._client.check(response.header)
            if response.canceled:
                why = response.cancel_reason or f"compacted up to {response.compact_revision}"
                raise RegistryUnavailableError(f"{self._client}: watch cancelled: {why}")
            events += response.events
            if events and not response.fragment:
                changes = map(self._change, events)
                return [change for change in changes if change is not None]

    def _change(self, event: kv_pb2.Event) -> Change | None:
        """None if its key isn't text."""
        pair = event.kv
        key = self._registry.key(pair)
        if event.type == kv_pb2.Event.DELETE:
            return None if key is None else Removed(key, pair.mod_revision)
        self._client.history.saw_write(pair.key, pair.mod_revision)
        return None if key is None else Changed(KeyValue(key, pair.value, pair.mod_revision))

    async def _response(self) -> rpc_pb2.WatchResponse:
        """The next response of any kind; makes sure that the endpoint is still there."""
        quiet = 0
        while True:
            if self._call is None:
                raise RegistryUnavailableError(f"{self._client}: this connection was closed")
            if self._read is None:
                self._read = asyncio.ensure_future(self._call.read())
            done, _ = await asyncio.wait({self._read}, timeout=WATCH_QUIET_S)
            if done:
                read, self._read = done.pop(), None
                # Cancelled by `close`: not the task that waits here.
                response = None if read.cancelled() else read.result()
                if not isinstance(response, rpc_pb2.WatchResponse):
                    raise RegistryUnavailableError(f"{self._client}: the watch has ended")
                return response
            quiet += 1
            if quiet > WATCH_QUIET_MAX:
                raise RegistryUnavailableError(
                    f"{self._client}: a watch hears nothing for {quiet * WATCH_QUIET_S} s"
                )
            progress = rpc_pb2.WatchProgressRequest()
            await self._send(rpc_pb2.WatchRequest(progress_request=progress))

    async def _send(self, request: rpc_pb2.WatchRequest) -> None:
        if self._call is None:
            raise RegistryUnavailableError(f"{self._client}: this connection was closed")
        try:
            async with asyncio.timeout(WATCH_QUIET_S):
                await self._call.write(request)
        except (TimeoutError, asyncio.InvalidStateError) as error:
            raise RegistryUnavailableError(
                f"{self._client}: a watch can't be written to"
            ) from error
