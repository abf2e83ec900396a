"""A client's channel to one address: one connection for all calls, made again when it is lost.

    channel = WireChannel("127.0.0.1:7800")
    answer = await channel.unary("/pkg.Echo/Unary", b"request", timeout_s=1)
    call = await channel.open("/pkg.Echo/Stream", handler)

A connection is made when a call wants one. While none can be had, calls fail with UNAVAILABLE as
soon as an attempt has failed, or wait for the next ones if they say `wait_for_ready`. Calls above
the peer's limit of streams wait for their turn, first come first served. A connection that the peer
drains keeps its calls; new ones go to a new connection.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from contextlib import suppress

from ringmq_wire.backoff import Backoff
from ringmq_wire.codes import Code, Metadata, RpcStatus
from ringmq_wire.dropping import drop
from ringmq_wire.errors import CallClosedError, RpcError
from ringmq_wire.handler import CallHandler
from ringmq_wire.options import WireOptions
from ringmq_wire.streaming import CallStream, OneAnswer
from ringmq_wire.transport import WireCall, WireProtocol

CONNECT_TIMEOUT_S = 20.0
# How long a connection is waited for before it is asked for anew; then without a limit of its own.
# The kernel asks again after 1, 3 and 7 s: late, where packets are lost for moments. The answer
# comes from the peer's kernel, so a busy process isn't asked more often.
ASKED_ANEW_AFTER_S = (0.25, 0.5)
BACKOFF_FIRST_S = 0.1
BACKOFF_LONGEST_S = 5.0
# Calls that wait for a connection or for their turn.
WAITING_MAX = 100_000


class WireChannel:
    """See the module. `address` is `host:port`; an IPv6 host stands in brackets."""

    def __init__(
        self,
        address: str,
        options: WireOptions | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        authority: str | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        backoff: Backoff | None = None,
    ) -> None:
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdigit():
            raise ValueError(f"{address!r} is no address: expected host:port")
        self.address = address
        self._host, self._port = host.strip("[]"), int(port)
        self._options = options or WireOptions()
        self._tls = tls
        self._authority = authority or address
        self._connect_timeout_s = connect_timeout_s
        self._backoff = backoff or Backoff(BACKOFF_FIRST_S, BACKOFF_LONGEST_S, random.Random())
        self._current: WireProtocol | None = None
        # Those that drain, and the current one.
        self._connections: set[WireProtocol] = set()
        self._connecting: asyncio.Task[None] | None = None
        # Why the last attempt has failed; empty after a success.
        self._failure = ""
        self._waiting: deque[tuple[asyncio.Future[WireProtocol], bool]] = deque()
        self._closed = False

    # --- calls ---

    async def open(
        self,
        path: str,
        handler: CallHandler,
        *,
        metadata: Metadata = (),
        timeout_s: float | None = None,
        wait_for_ready: bool = False,
    ) -> WireCall:
        """Begins a call; `timeout_s` counts from now. Raises `RpcError` if none can be begun."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        connection = self._current
        # Those who wait already go first.
        if connection is None or not connection.can_open or self._waiting:
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await self._connection(wait_for_ready)
            except TimeoutError as error:
                text = f"no connection to {self.address} in time: {self._failure}".rstrip(": ")
                status = RpcStatus(Code.DEADLINE_EXCEEDED, text, unprocessed=True)
                raise RpcError(status) from error
        call = connection.open(
            path,
            self._authority,
            handler,
            scheme="http" if self._tls is None else "https",
            metadata=(*self._options.metadata, *metadata),
            timeout_s=None if deadline is None else max(0.0, deadline - loop.time()),
        )
        if connection.core.calls.draining:
            # That was the last number of a stream. The next call needs another connection, and
            # can't wait for the end of one of these.
            self._changed(connection)
        return call

    async def stream(
        self,
        path: str,
        *,
        metadata: Metadata = (),
        timeout_s: float | None = None,
        wait_for_ready: bool = False,
    ) -> CallStream:
        """A call to be read and written by tasks."""
        stream = CallStream()
        call = await self.open(
            path, stream, metadata=metadata, timeout_s=timeout_s, wait_for_ready=wait_for_ready
        )
        stream.bind(call)
        return stream

    async def unary(
        self,
        path: str,
        request: bytes,
        *,
        metadata: Metadata = (),
        timeout_s: float | None = None,
        wait_for_ready: bool = False,
    ) -> bytes:
        """One request, one answer. Raises `RpcError`."""
        answer = OneAnswer()
        call = await self.open(
            path, answer, metadata=metadata, timeout_s=timeout_s, wait_for_ready=wait_for_ready
        )
        call.send((request,))
        call.half_close()
        try:
            return await answer.done
        except asyncio.CancelledError:
            call.cancel()
            raise
        finally:
            # The error of a call has this frame, and its future has the error.
            del answer

    async def close(self, grace_s: float = 0.0) -> None:
        """Begins no new calls; those that are open may go on for so long."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        self._fail_waiting("the channel is closed", all_of_them=True)
        lost = [connection.lost for connection in self._connections]
        for connection in list(self._connections):
            connection.shutdown()
        if lost and grace_s > 0:
            await asyncio.wait(lost, timeout=grace_s)
        await drop(self._connections, "the channel is closed")

    # --- connections ---

    async def _connection(self, wait_for_ready: bool) -> WireProtocol:
        """A connection with room for a call. The call must be opened in the same turn."""
        if self._closed:
            raise CallClosedError(f"the channel to {self.address} is closed")
        if len(self._waiting) >= WAITING_MAX:
            text = f"{WAITING_MAX} calls wait for {self.address}"
            raise RpcError(RpcStatus(Code.RESOURCE_EXHAUSTED, text))
        if self._failure and not wait_for_ready and self._current is None:
            # Within the pause after a failure.
            self._connect()
            raise RpcError(RpcStatus(Code.UNAVAILABLE, self._failure, unprocessed=True))
        mine: asyncio.Future[WireProtocol] = asyncio.get_running_loop().create_future()
        self._waiting.append((mine, wait_for_ready))
        self._connect()
        while True:
            self._serve_waiting()
            try:
                connection = await mine
            except asyncio.CancelledError:
                # Somebody else may have what was promised here.
                self._serve_waiting()
                raise
            finally:
                # The error of an attempt has this frame, and the future has the error.
                del mine
            if connection.can_open:
                return connection
            if self._closed:
                # `close` has failed those that waited, and this one had a promise by then.
                status = RpcStatus(Code.UNAVAILABLE, "the channel is closed", unprocessed=True)
                raise RpcError(status)
            # It was lost, or filled, between the promise and this turn: to the front again.
            mine = asyncio.get_running_loop().create_future()
            self._waiting.appendleft((mine, wait_for_ready))
            self._connect()

    def _connect(self) -> None:
        if self._current is None and self._connecting is None and not self._closed:
            self._connecting = asyncio.create_task(self._attempts(), name=f"dial {self.address}")

    async def _attempts(self) -> None:
        """Until a connection is there, or nobody wants one."""
        try:
            while True:
                try:
                    async with asyncio.timeout(self._connect_timeout_s):
                        self._current = await self._attempt()
                # A UnicodeError: no host can have this name. An OverflowError: the like, of a port.
                except (OSError, UnicodeError, OverflowError, RpcError) as error:
                    self._failure = f"connecting to {self.address}: {error or 'timed out'}"
                    self._fail_waiting(self._failure, all_of_them=False)
                else:
                    self._failure = ""
                    self._backoff.reset()
                    return
                await asyncio.sleep(self._backoff.pause_s())
                self._forget_given_up()
                if not self._waiting:
                    # The next call tries at once: the pause is over.
                    self._failure = ""
                    return
        finally:
            self._connecting = None
            self._serve_waiting()

    async def _attempt(self) -> WireProtocol:
        loop = asyncio.get_running_loop()
        connection = await self._connected()
        self._connections.add(connection)
        connection.lost.add_done_callback(lambda _: self._connections.discard(connection))
        while not connection.ready and not connection.closed:
            self._change = loop.create_future()
            try:
                await self._change
            except asyncio.CancelledError:
                connection.abort("not ready in time")
                raise
        if connection.closed or connection.core.calls.draining:
            # Perhaps with the word that made it ready, and `_changed` doesn't know this one yet.
            raise RpcError(RpcStatus(Code.UNAVAILABLE, connection.reason))
        return connection

    async def _connected(self) -> WireProtocol:
        if self._tls is None:
            for patience_s in ASKED_ANEW_AFTER_S:
                with suppress(TimeoutError):
                    async with asyncio.timeout(patience_s):
                        return await self._connected_once()
        # With TLS the peer's process answers, too.
        return await self._connected_once()

    async def _connected_once(self) -> WireProtocol:
        connection = WireProtocol(self._options, client=True, changed=self._changed)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                self._host,
                self._port,
                ssl=self._tls,
                server_hostname=self._host if self._tls is not None else None,
            )
        except BaseException:
            connection.given_up()
            raise
        return connection

    _change: asyncio.Future[None] | None = None

    def _changed(self, connection: WireProtocol) -> None:
        """The connection got ready, drains or is closed, or a call of it has ended."""
        if self._change is not None and not self._change.done():
            self._change.set_result(None)
        if connection is not self._current:
            return
        if connection.closed or connection.core.calls.draining:
            self._current = None
            if self._waiting:
                self._connect()
        else:
            self._serve_waiting()

    def _serve_waiting(self) -> None:
        """Promises the current connection to as many as it has room for."""
        connection = self._current
        if connection is None or not connection.can_open:
            return
        calls = connection.core.calls
        room = calls.peer_streams_max - len(calls.streams)
        while self._waiting and room > 0:
            waiting, _ = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(connection)
                room -= 1

    def _fail_waiting(self, reason: str, *, all_of_them: bool) -> None:
        kept = []
        for waiting, wait_for_ready in self._waiting:
            if waiting.done():
                continue
            if wait_for_ready and not all_of_them:
                kept.append((waiting, wait_for_ready))
            else:
                status = RpcStatus(Code.UNAVAILABLE, reason, unprocessed=True)
                waiting.set_exception(RpcError(status))
        self._waiting = deque(kept)

    def _forget_given_up(self) -> None:
        """Those whose deadlines have passed, or who were cancelled."""
        self._waiting = deque(entry for entry in self._waiting if not entry[0].done())
