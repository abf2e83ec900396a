"""The client's connection, which its exclusive queues live by.

A client talks to any node, and over several sockets: none of them is "the" connection. So the first
exclusive queue has the client hold one: a stream to one node, which gives it an id. From then on
every call and stream of the client says that id (`calls.identity`). When the stream breaks, or its
node dies, the connection is over, and the cluster deletes its queues. The client doesn't restore
them, as their messages are gone: a consumer of one fails with `QueueNotFoundError`, and the next
exclusive queue has another connection held.
"""

from __future__ import annotations

import asyncio
import contextlib
import os

from google.protobuf.message import DecodeError

from ringmq.calls.arguments import checked_calls
from ringmq.calls.known_nodes import KnownNodes
from ringmq.calls.node_channel import NodeChannel
from ringmq.calls.requests import request_of
from ringmq.errors import ProtocolError
from ringmq.model.queues import QueueInfo
from ringmq.v1 import broker_pb2 as broker
from ringmq_base.limits import HEARTBEATS_MISSED_MAX
from ringmq_wire import CallStream, Code, RpcError, RpcStatus

PATH = "/ringmq.v1.Broker/Connect"
#: How long the node may take to delete the queues when the client ends the connection.
CLOSE_S = 5.0
NAME_TOKEN_BYTES = 16

_OPEN = broker.ConnectRequest(open=broker.ConnectOpen()).SerializeToString()
_HEARTBEAT = broker.ConnectRequest(heartbeat=broker.Heartbeat()).SerializeToString()


def name_token() -> bytes:
    """Identifies one declaration of a queue that the cluster is to name, over its repeats."""
    return os.urandom(NAME_TOKEN_BYTES)


class HeldConnection:
    """At most one at a time; opened by `hold`."""

    def __init__(self, nodes: KnownNodes) -> None:
        self._nodes = nodes
        self._opening = asyncio.Lock()
        self._call: CallStream | None = None
        self._task: asyncio.Task[None] | None = None

    async def hold(self, deadline_s: float | None) -> None:
        """Opens a connection, unless there is one."""
        async with self._opening:
            if self._call is not None:
                return
            call, opened = await self._nodes.call(_open, deadline_s=deadline_s)
            self._call = call
            call.call.give_up_after(HEARTBEATS_MISSED_MAX * opened.heartbeat_ms / 1000)
            self._nodes.identity.become(opened.connection)
            self._task = asyncio.get_running_loop().create_task(
                self._keep(call, opened.heartbeat_ms / 1000), name="ringmq-connection"
            )

    async def wait_over(self) -> None:
        """Returns when there is no connection."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """Ends the connection; its queues are gone, unless the node can't delete them now."""
        call, task = self._call, self._task
        if call is None or task is None:
            return
        call.half_close()
        await asyncio.wait([task], timeout=CLOSE_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _keep(self, call: CallStream, heartbeat_s: float) -> None:
        beats = asyncio.get_running_loop().create_task(
            _beat(call, heartbeat_s), name="ringmq-connection-heartbeat"
        )
        try:
            with contextlib.suppress(RpcError):
                await _listen(call, heartbeat_s)
        finally:
            self._call = None
            self._nodes.identity.become("")
            beats.cancel()
            # Does nothing to a call that has ended.
            call.cancel()
            await asyncio.gather(beats, return_exceptions=True)


@checked_calls
class ConnectedClient:
    """The part of a client that has to do with its connection."""

    def __init__(self, nodes: KnownNodes) -> None:
        self._nodes = nodes
        self._connection = HeldConnection(nodes)

    async def check_queue(self, name: str, *, deadline_s: float | None = None) -> QueueInfo:
        """The queue, if it exists and this client may use it: `QueueNotFoundError`, or
        `QueueLockedError` for another client's exclusive one. Creates nothing."""
        request = request_of(
            broker.DeclareQueueRequest, vhost=self._nodes.vhost, queue=name, passive=True
        )

        async def attempt(node: NodeChannel, timeout_s: float) -> QueueInfo:
            answer = await node.broker.DeclareQueue(request, timeout=timeout_s)
            return QueueInfo.from_wire(answer.queue)

        return await self._nodes.call(attempt, deadline_s=deadline_s)

    async def wait_disconnected(self) -> None:
        """Returns when this client holds no connection any more: its exclusive queues are gone."""
        await self._connection.wait_over()


async def _open(node: NodeChannel, timeout_s: float) -> tuple[CallStream, broker.ConnectOpened]:
    call: CallStream | None = None
    try:
        async with asyncio.timeout(timeout_s):
            call = await node.wire.stream(PATH)
            await call.write(_OPEN)
            data = await call.read()
        response = broker.ConnectResponse.FromString(data or b"")
        if response.WhichOneof("response") != "opened":
            raise ProtocolError(f"{node.address}: a connection's Open was not answered with opened")
        return call, response.opened
    except BaseException as error:
        if call is not None:
            call.cancel()
        if isinstance(error, TimeoutError):
            status = RpcStatus(Code.DEADLINE_EXCEEDED, "no answer to Open")
            raise RpcError(status) from error
        if isinstance(error, DecodeError):
            raise ProtocolError(f"{node.address}: these bytes are no response") from error
        raise


async def _listen(call: CallStream, heartbeat_s: float) -> None:
    """Returns when the node ends the stream, or falls silent."""
    # Counted, and not one long time-out: after a pause of this loop, the node's heartbeats are
    # there, unread.
    missed = 0
    while missed < HEARTBEATS_MISSED_MAX:
        try:
            async with asyncio.timeout(heartbeat_s):
                if await call.read() is None:
                    return
            missed = 0
        except TimeoutError:
            missed += 1


async def _beat(call: CallStream, heartbeat_s: float) -> None:
    # A write fails when the call is over, which the reader hears too.
    with contextlib.suppress(RpcError):
        while True:
            await asyncio.sleep(heartbeat_s)
            await call.write(_HEARTBEAT)
