"""A server: listens, and gives each call to the route of its path.

    server = WireServer({"/pkg.Echo/Unary": unary(echo), "/pkg.Echo/Stream": streaming(echo_all)})
    port = await server.listen("127.0.0.1", 0)
    ...
    await server.stop(grace_s=5)

A route makes a `CallHandler` for each call. `unary` and `streaming` make one of a coroutine: its
task is cancelled when the call ends, and its `RpcError` is the call's status.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping

from ringmq_wire.codes import OK, Code, RpcStatus
from ringmq_wire.errors import RpcError
from ringmq_wire.options import WireOptions
from ringmq_wire.streaming import CallStream
from ringmq_wire.transport import Accept, CallHandler, WireCall, WireProtocol

log = logging.getLogger(__name__)

UnaryFunction = Callable[[bytes, WireCall], Awaitable[bytes]]
StreamFunction = Callable[[CallStream], Awaitable[None]]


class WireServer:
    """See the module."""

    def __init__(
        self,
        routes: Mapping[str, Accept],
        options: WireOptions | None = None,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._routes = routes
        self._options = options or WireOptions()
        self._tls = tls
        self._listeners: list[asyncio.Server] = []
        self.connections: set[WireProtocol] = set()
        self._stopping = False

    async def listen(self, host: str, port: int) -> int:
        """Returns the port. Raises OSError if the address can't be had."""
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(
            self._connection, host, port, ssl=self._tls, reuse_address=True
        )
        self._listeners.append(listener)
        return int(listener.sockets[0].getsockname()[1])

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls; those that are open may go on for so long. Then they are ended."""
        self._stopping = True
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.shutdown()
        lost = [connection.lost for connection in self.connections]
        if lost:
            await asyncio.wait(lost, timeout=grace_s)
        for connection in list(self.connections):
            connection.abort("the server has stopped")
        lost = [connection.lost for connection in self.connections]
        if lost:
            await asyncio.wait(lost)
        for listener in self._listeners:
            await listener.wait_closed()

    def _connection(self) -> WireProtocol:
        return WireProtocol(self._options, client=False, accept=self._accept, made=self._made)

    def _made(self, connection: WireProtocol) -> None:
        self.connections.add(connection)
        connection.lost.add_done_callback(lambda _: self.connections.discard(connection))
        if self._stopping:
            connection.shutdown()

    def _accept(self, call: WireCall) -> CallHandler:
        route = self._routes.get(call.path)
        if route is None:
            raise RpcError(RpcStatus(Code.UNIMPLEMENTED, f"there is no method {call.path}"))
        return route(call)


def unary(function: UnaryFunction) -> Accept:
    """A route for calls of one request and one answer."""

    async def serve(stream: CallStream) -> None:
        request = await stream.read()
        if request is None or await stream.read() is not None:
            raise RpcError(RpcStatus(Code.INTERNAL, "a unary call has one request"))
        stream.call.send((await function(request, stream.call),))

    return streaming(serve)


def streaming(function: StreamFunction) -> Accept:
    """A route for calls of any number of requests and answers."""

    def accept(call: WireCall) -> CallHandler:
        stream = _Served()
        stream.bind(call)
        stream.run(function)
        return stream

    return accept


class _Served(CallStream):
    """A call that a task of ours answers."""

    def __init__(self) -> None:
        super().__init__()
        self._task: asyncio.Task[None] | None = None

    def run(self, function: StreamFunction) -> None:
        # The stream's call holds the task, and the connection the call, until either has ended.
        self._task = asyncio.create_task(self._serve(function), name=f"serve {self.call.path}")

    def ended(self, status: RpcStatus) -> None:
        super().ended(status)
        if self._task is not None:
            self._task.cancel()

    async def _serve(self, function: StreamFunction) -> None:
        try:
            await function(self)
        except RpcError as error:
            self.call.finish(error.status)
        except asyncio.CancelledError:
            self.call.finish(RpcStatus(Code.CANCELLED, "the server has given up the call"))
            raise
        except Exception as error:
            log.error("serving %s: %r", self.call.path, error, exc_info=error)
            self.call.finish(RpcStatus(Code.UNKNOWN, f"the server has failed: {error!r}"))
        else:
            self.call.finish(OK)
