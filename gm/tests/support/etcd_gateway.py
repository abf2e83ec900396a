"""A member of etcd whose calls may end with the status OK and without an answer.

It passes calls on to a real one, of which it knows the methods that a registry calls. A call that
is to have no answer is carried out all the same. It may also lose its leader behind a transaction,
be full because of it, or grant no lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from ringmq_wire import Accept, CallStream, Code, RpcError, RpcStatus, WireServer, streaming

METHODS = ("KV/Range", "KV/Txn", "Lease/LeaseGrant", "Lease/LeaseRevoke")
TIMEOUT_S = 5.0
NO_SPACE = "etcdserver: mvcc: database space exceeded"


class SilentGateway:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.port = 0
        # So many of the next calls of these methods get no answer.
        self.silent = 0
        self.silent_paths = {f"/etcdserverpb.{method}" for method in METHODS}
        # From the next transaction that it has answered on, it has no leader.
        self.leaderless_after_txn = False
        self._is_leaderless = False
        # So many leases are refused for want of space; then it hangs. None: all are granted.
        self.grants_refused: int | None = None
        # The transactions that it carries out fill its database up.
        self.fills_up = False
        self._channel = channel

    def routes(self) -> dict[str, Accept]:
        return {f"/etcdserverpb.{method}": streaming(self._serve) for method in METHODS}

    async def _serve(self, stream: CallStream) -> None:
        request = await stream.read()
        path = stream.call.path
        if self._is_leaderless:
            raise RpcError(RpcStatus(Code.UNAVAILABLE, "etcdserver: no leader"))
        if self.grants_refused is not None and path == "/etcdserverpb.Lease/LeaseGrant":
            if not self.grants_refused:
                await asyncio.Event().wait()
            self.grants_refused -= 1
            raise RpcError(RpcStatus(Code.RESOURCE_EXHAUSTED, NO_SPACE))
        method: grpc.aio.UnaryUnaryMultiCallable[bytes | None, bytes] = self._channel.unary_unary(
            path
        )
        try:
            answer = await method(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            code = Code(error.code().value[0])
            raise RpcError(RpcStatus(code, error.details() or "")) from error
        if self.silent and path in self.silent_paths:
            self.silent -= 1
            return
        is_txn = path == "/etcdserverpb.KV/Txn"
        self._is_leaderless = self.leaderless_after_txn and is_txn
        if self.fills_up and is_txn:
            raise RpcError(RpcStatus(Code.RESOURCE_EXHAUSTED, NO_SPACE))
        stream.call.send((answer,))


@asynccontextmanager
async def silent_gateway(endpoint: str) -> AsyncIterator[SilentGateway]:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        gateway = SilentGateway(channel)
        server = WireServer(gateway.routes())
        gateway.port = await server.listen("127.0.0.1", 0)
        try:
            yield gateway
        finally:
            await server.stop(0)
