"""A server: listens, and gives each call to the route of its path.

    server = WireServer({"/pkg.Echo/Unary": unary(echo), "/pkg.Echo/Stream": streaming(echo_all)})
    port = server.bind("127.0.0.1:0")
    server.start()
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
from ringmq_wire.dropping import drop
from ringmq_wire.errors import RpcError
from ringmq_wire.handler import CallHandler
from ringmq_wire.inbound import SharedBudgets
from ringmq_wire.listener import Listener, bind
from ringmq_wire.options import WireOptions
from ringmq_wire.streaming import CallStream
from ringmq_wire.transport import Accept, WireCall, WireProtocol
from ringmq_wire.unfinished import UnfinishedBytes
from ringmq_wire.unread import UnreadBytes

log = logging.getLogger(__name__)

# Of handlers whose calls were ended because the server stops.
HANDLERS_TIMEOUT_S = 5.0
# The beginnings of messages on all connections together.
UNFINISHED_BYTES_MAX = 512 * 1024 * 1024
# Whole messages that the application hasn't consumed, on all connections together.
UNREAD_BYTES_MAX = 256 * 1024 * 1024

UnaryFunction = Callable[[bytes, WireCall], Awaitable[bytes]]
StreamFunction = Callable[[CallStream], Awaitable[None]]


class WireServer:
    """See the module."""

    def __init__(
        self,
        routes: Mapping[str, Accept] | None = None,
        options: WireOptions | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        unfinished_bytes_max: int = UNFINISHED_BYTES_MAX,
        unread_bytes_max: int = UNREAD_BYTES_MAX,
    ) -> None:
        self._routes = dict(routes or {})
        self._options = options or WireOptions()
        self._tls = tls
        self._listeners: list[Listener] = []
        self.connections: set[WireProtocol] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.unfinished = UnfinishedBytes(unfinished_bytes_max)
        self.unread = UnreadBytes(unread_bytes_max, self._give_credit)

    def add(self, routes: Mapping[str, Accept]) -> None:
        """Answers these paths as well."""
        self._routes.update(routes)

    def bind(self, address: str) -> int:
        """Takes `host:port` at once, and returns the port; its clients wait for `start`.

        Raises OSError if the address can't be had, ValueError if it is none.
        """
        made = [Listener(bound, self._connection, self._tls) for bound in bind(address)]
        self._listeners += made
        return made[0].port

    def start(self) -> None:
        """Serves what is bound, on the running loop."""
        for listener in self._listeners:
            listener.start()

    async def listen(self, host: str, port: int) -> int:
        """Binds and serves at once."""
        port = self.bind(f"{host}:{port}")
        self.start()
        return port

    async def stop(self, grace_s: float) -> None:
        """Takes no new calls; those that are open may go on for so long. Then they are ended.

        Their handlers have ended when it returns, but for any that takes longer than
        `HANDLERS_TIMEOUT_S` after it was cancelled.
        """
        self._stopping = True
        for listener in self._listeners:
            listener.close()
        for connection in list(self.connections):
            connection.shutdown()
        lost = [connection.lost for connection in self.connections]
        if lost and grace_s > 0:
            await asyncio.wait(lost, timeout=grace_s)
        for listener in self._listeners:
            await listener.drop_handshakes()
        await drop(self.connections, "the server has stopped")
        if self._serving:
            await asyncio.wait(self._serving, timeout=HANDLERS_TIMEOUT_S)

    def _connection(self) -> WireProtocol:
        return WireProtocol(
            self._options,
            client=False,
            accept=self._accept,
            made=self._made,
            shared=SharedBudgets(self.unfinished, self.unread),
            shed=self._shed,
        )

    def _give_credit(self) -> None:
        for connection in self.connections:
            connection.give_credit()

    def _shed(self) -> None:
        """Those who keep the most pay for it: a peer that fills the server harms few others."""
        while self.unfinished.is_over:
            most = max(self.connections, key=lambda each: each.core.unfinished.kept_bytes)
            log.warning(
                "unfinished messages have more than %d bytes: ends those of %s, %d bytes",
                self.unfinished.bytes_max,
                most.peer,
                most.core.unfinished.kept_bytes,
            )
            most.shed()

    def _made(self, connection: WireProtocol) -> None:
        self.connections.add(connection)
        connection.lost.add_done_callback(lambda _: self.connections.discard(connection))
        if self._stopping:
            connection.shutdown()

    def _accept(self, call: WireCall) -> CallHandler:
        route = self._routes.get(call.path)
        if route is None:
            raise RpcError(RpcStatus(Code.UNIMPLEMENTED, f"there is no method {call.path}"))
        handler = route(call)
        if isinstance(handler, _Served) and handler.task is not None:
            # The loop itself holds no task that waits.
            self._serving.add(handler.task)
            handler.task.add_done_callback(self._serving.discard)
        return handler


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
        return _Served(call, function)

    return accept


class _Served(CallStream):
    """A call that a task of ours answers."""

    def __init__(self, call: WireCall, function: StreamFunction) -> None:
        super().__init__()
        self.bind(call)
        self.task: asyncio.Task[None] | None = asyncio.create_task(
            self._serve(function), name=f"serve {call.path}"
        )
        self.task.add_done_callback(self._served)

    def ended(self, status: RpcStatus) -> None:
        super().ended(status)
        if self.task is not None:
            self.task.cancel()

    def _served(self, _: asyncio.Task[None]) -> None:
        # A task that was cancelled keeps the error, whose frames refer to this call.
        self.task = None

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
