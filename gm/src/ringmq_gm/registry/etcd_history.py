"""Whether an etcd still has the history that this process has seen of it.

An etcd that was put back to a backup shows a lower revision than before. Not for long: leases that
lapse raise it, and so do nodes that write themselves down again. So a process also keeps the newest
write that it has seen, a key and its revision. As of that revision the key must have been written
at it; in another history something else was written then.

That is asked again around each call, unless it was within the last `PROVEN_S`: in less time nobody
stops etcd, puts it back and starts it. Nothing is taken of it until the answer is there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import grpc
import grpc.aio

from ringmq_gm.registry.etcdpb import kv_pb2, rpc_pb2
from ringmq_gm.registry.sessions import clock
from ringmq_gm.registry.went_back import WentBack

PROVEN_S = 0.1

Look = Callable[[rpc_pb2.RangeRequest], Awaitable[rpc_pb2.RangeResponse]]


class History:
    """See the module. `name` is that of the registry, for errors."""

    def __init__(self, name: str) -> None:
        # The highest revision that a linearizable answer has shown.
        self.revision = 0
        self._went_back = WentBack(name)
        # The newest write that was seen.
        self._key = b""
        self._written_at = 0
        # Until when nothing else can be behind etcd's address; and how often it came into doubt.
        self._proven_until = 0.0
        self._doubts = 0

    def check_usable(self) -> None:
        """Raises `RegistryWentBackError` if that has been seen: nothing is to be sent any more."""
        self._went_back.check_usable()

    def check(self, header: rpc_pb2.ResponseHeader, asked_at: int) -> None:
        """Takes a linearizable answer; `asked_at` is what `revision` was when it was asked.

        Raises `RegistryWentBackError` if etcd was put back to an earlier state.
        """
        # Answers overtake each other, so one may be older than the newest: but not older than what
        # had been answered before it was asked for.
        if header.revision < asked_at:
            self._went_back.fail(f"from revision {asked_at} to {header.revision}")
        self.check_usable()
        self.revision = max(self.revision, header.revision)

    def saw(self, pairs: Iterable[kv_pb2.KeyValue]) -> None:
        """Keys with the revisions at which they were written."""
        newest = max(pairs, key=lambda pair: pair.mod_revision, default=None)
        if newest is not None:
            self.saw_write(newest.key, newest.mod_revision)

    def saw_write(self, key: bytes, revision: int) -> None:
        if revision > self._written_at:
            self._key, self._written_at = key, revision

    def doubt(self) -> None:
        """Etcd may have been stopped, and started with something else."""
        self._doubts += 1
        self._proven_until = 0.0

    async def settle(self, look: Look) -> None:
        """Asks etcd for the newest write that was seen, unless it was asked just now.

        Raises `RegistryWentBackError` if etcd never had it, and what `look` raises.
        """
        asked_at = clock()
        if asked_at < self._proven_until:
            return
        self.check_usable()
        doubts, key, written_at = self._doubts, self._key, self._written_at
        if written_at:
            found = await self._found(look, key, written_at)
            if found is not None and found != written_at:
                self._went_back.fail(f"behind revision {written_at}, where {key!r} was written")
            self.check_usable()
        if doubts == self._doubts:
            self._proven_until = asked_at + PROVEN_S

    async def _found(self, look: Look, key: bytes, written_at: int) -> int | None:
        """When the key was written last, as of that revision; None if nobody can tell any more."""
        try:
            response = await look(rpc_pb2.RangeRequest(key=key, revision=written_at))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.OUT_OF_RANGE:
                raise
            # An error has no header: this answer shows whether it is the same cluster at all.
            response = await look(rpc_pb2.RangeRequest(key=key))
            if "future" in (error.details() or ""):
                return 0
            # That revision is compacted. What the key has now may be later, or gone: that is no
            # proof of anything, but an earlier write is.
            now = [pair.mod_revision for pair in response.kvs]
            return now[0] if now and now[0] <= written_at else None
        return response.kvs[0].mod_revision if response.kvs else 0
