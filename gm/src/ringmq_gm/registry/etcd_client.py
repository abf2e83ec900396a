"""The endpoints of one etcd cluster, and calls to any of them that answers.

Two kinds of calls, because etcd can't tell a repeated request from a new one:

* `ask`: may be repeated. Goes from endpoint to endpoint, with back-off, until the deadline.
* `send_once`: a transaction. It waits for an endpoint with an open connection (until
  then nothing was sent, so the failure is `RegistryUnavailableError`) and is sent to that
  one, once. Any answer that doesn't exclude that it was carried out is
  `CommitUnknownError`.

Every call demands that the endpoint has a leader (`hasleader`): one that is cut off
from the others says so at once, instead of letting the caller wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import grpc
import grpc.aio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from ringmq_gm.registry.base import (
    CommitUnknownError,
    LimitError,
    RegistryError,
    RegistryUnavailableError,
    RegistryWentBackError,
    SessionLostError,
)
from ringmq_gm.registry.etcd_endpoint import Endpoint
from ringmq_gm.registry.etcd_history import History
from ringmq_gm.registry.etcdpb import rpc_pb2
from ringmq_gm.registry.sessions import clock

T = TypeVar("T")

METADATA = (("hasleader", "true"),)
# The least that one endpoint gets of a call's deadline before the next one is asked.
ATTEMPT_S_MIN = 0.5
_READY_POLL_S = 0.01


class CompactedError(RegistryUnavailableError):
    """The revision that was asked for is gone: begin with the present one."""


class NoSpaceError(CommitUnknownError):
    """Etcd's database is full. It says so of what it has refused, and also of a transaction that it
    has carried out, if others that were under way with it have filled the database up meanwhile. It
    has decided: a read shows which of the two it was."""


class EtcdClient:
    """For one event loop. Connects when it is first used."""

    def __init__(self, endpoints: Sequence[str], deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.closed = False
        self._targets = tuple(endpoints)
        self._endpoints: list[Endpoint] = []
        self._current = 0
        self._cluster_id = 0
        self.history = History(str(self))

    def __str__(self) -> str:
        return f"etcd {','.join(self._targets)}"

    async def ask(self, call: Callable[[Endpoint, float], Awaitable[T]]) -> T:
        """The result of `call(endpoint, timeout_s)`, which may be made several times.

        Raises `RegistryUnavailableError` at the deadline, other `RegistryError`s at once.
        """
        deadline = clock() + self.deadline_s
        share = max(ATTEMPT_S_MIN, self.deadline_s / len(self._targets))

        # The faults of attempts that etcd has ended, or that had their full share of time.
        told: list[RegistryUnavailableError] = []

        async def attempt() -> T:
            endpoint = await self.ready_endpoint(deadline)
            left = deadline - clock()
            timeout_s = max(0.001, min(share, left))
            try:
                await self._settle(endpoint, timeout_s)
                answer = await call(endpoint, timeout_s)
                # It may have taken long enough for anything.
                await self._settle(endpoint, timeout_s)
                return answer
            except grpc.aio.AioRpcError as error:
                fault = self.fault(error)
                if isinstance(fault, RegistryUnavailableError):
                    self.avoid(endpoint)
                    # The deadline cuts the last attempt short: the earlier faults say more.
                    if left >= share or error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                        told.append(fault)
                    elif told:
                        fault = told[-1]
                raise fault from error
            except RegistryUnavailableError as error:
                told.append(error)
                raise

        def stop(_: RetryCallState) -> bool:
            return self.closed or clock() >= deadline

        retrying = AsyncRetrying(
            retry=retry_if_exception(_is_repeatable),
            wait=wait_random_exponential(multiplier=0.02, max=0.2),
            stop=stop,
            reraise=True,
        )
        return await retrying(attempt)

    async def send_once(self, call: Callable[[Endpoint, float], Awaitable[T]]) -> T:
        """The result of `call(endpoint, timeout_s)`, which is made once at most."""
        deadline = clock() + self.deadline_s
        endpoint = await self.ready_endpoint(deadline)
        try:
            await self._settle(endpoint, max(0.001, deadline - clock()))
        except grpc.aio.AioRpcError as error:
            self.avoid(endpoint)
            raise self.fault(error) from error
        try:
            answer = await call(endpoint, max(0.001, deadline - clock()))
        except RegistryWentBackError as error:
            # Its guards may have held in the earlier state, too.
            raise CommitUnknownError(str(error)) from error
        except grpc.aio.AioRpcError as error:
            if error.code() not in _REFUSALS:
                self.avoid(endpoint)
            raise self._unanswered(endpoint, error) from error
        try:
            await self._settle(endpoint, max(0.001, deadline - clock()))
        except (RegistryUnavailableError, grpc.aio.AioRpcError) as error:
            # It was carried out. Only that this was the registry's etcd isn't known.
            self.avoid(endpoint)
            text = _text(error) if isinstance(error, grpc.aio.AioRpcError) else str(error)
            raise CommitUnknownError(f"{self}: a transaction was answered, then: {text}") from error
        return answer

    def _unanswered(self, endpoint: Endpoint, error: grpc.aio.AioRpcError) -> RegistryError:
        """What the failure of a transaction means that was sent to this endpoint."""
        if error.details() == _NO_SPACE:
            return NoSpaceError(f"{self}: {_text(error)}")
        if _was_refused(error):
            return self.fault(error)
        return CommitUnknownError(f"{self}: transaction sent to {endpoint.target}: {_text(error)}")

    async def _settle(self, endpoint: Endpoint, timeout_s: float) -> None:
        async def look(request: rpc_pb2.RangeRequest) -> rpc_pb2.RangeResponse:
            response = await endpoint.kv.Range(request, timeout=timeout_s, metadata=METADATA)
            self.check(response.header)
            return response

        await self.history.settle(look)

    async def ready_endpoint(self, deadline: float) -> Endpoint:
        """An endpoint with an open connection, preferably the one that answered last."""
        while True:
            endpoints = self._opened()
            for offset in range(len(endpoints)):
                index = (self._current + offset) % len(endpoints)
                if endpoints[index].is_ready():
                    self._current = index
                    return endpoints[index]
            if clock() >= deadline:
                raise RegistryUnavailableError(f"{self}: no connection within {self.deadline_s} s")
            # Cancelling a wait for a change of state would leave the wait behind in gRPC.
            await asyncio.sleep(_READY_POLL_S)

    def avoid(self, endpoint: Endpoint) -> None:
        """Begins with the next endpoint from now on, and asks it for its history."""
        self.history.doubt()
        if self._endpoints and self._endpoints[self._current] is endpoint:
            self._current = (self._current + 1) % len(self._endpoints)

    def check(self, header: rpc_pb2.ResponseHeader) -> None:
        """Raises `RegistryUnavailableError` if another cluster than before has answered."""
        self._cluster_id = self._cluster_id or header.cluster_id
        if header.cluster_id != self._cluster_id:
            raise RegistryUnavailableError(
                f"{self}: another cluster has answered"
                f" (id {header.cluster_id:x}, expected {self._cluster_id:x})"
            )

    def check_revision(self, header: rpc_pb2.ResponseHeader, asked_at: int) -> None:
        """`check`, of a linearizable answer; `asked_at` is what `revision` was when it was asked.

        Raises `RegistryWentBackError` if etcd was put back to an earlier state.
        """
        self.check(header)
        self.history.check(header, asked_at)

    def fault(self, error: grpc.aio.AioRpcError) -> RegistryError:
        """The fault of a call that changed nothing, as an error of the registry."""
        details = error.details() or ""
        match error.code():
            case grpc.StatusCode.OUT_OF_RANGE:
                return CompactedError(f"{self}: {details}")
            case grpc.StatusCode.INVALID_ARGUMENT if details != _NO_USER:
                return LimitError(f"{self}: {details}")
            case grpc.StatusCode.NOT_FOUND:
                return SessionLostError(f"{self}: {details}")
            case _:
                return RegistryUnavailableError(f"{self}: {_text(error)}")

    async def close(self) -> None:
        self.closed = True
        for endpoint in self._endpoints:
            await endpoint.channel.close()

    def _opened(self) -> list[Endpoint]:
        if self.closed:
            raise RegistryUnavailableError(f"{self}: this connection was closed")
        if not self._endpoints:
            self._endpoints = [Endpoint(target) for target in self._targets]
        return self._endpoints


# Its authentication was enabled. That is no fault of the call, and may be put right.
_NO_USER = "etcdserver: user name is empty"
_NO_SPACE = "etcdserver: mvcc: database space exceeded"
# Too many transactions have been proposed, and aren't applied yet.
_TOO_MANY = "etcdserver: too many requests"

# With these an endpoint answers only before it has proposed the transaction, or after it has
# refused to apply it.
_REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
}


def _was_refused(error: grpc.aio.AioRpcError) -> bool:
    """Whether the transaction has certainly not been carried out."""
    # The check for a leader comes before the request is looked at.
    is_before = error.details() in ("etcdserver: no leader", _TOO_MANY)
    return is_before or error.code() in _REFUSALS


def _is_repeatable(error: BaseException) -> bool:
    for_good = (CompactedError, RegistryWentBackError)
    return isinstance(error, RegistryUnavailableError) and not isinstance(error, for_good)


def _text(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details()}"
