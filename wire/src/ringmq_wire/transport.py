"""One connection on asyncio: bytes in, callbacks; calls, and one write for each turn of the loop.

All messages of a turn go out together: at the end of `data_received` if input caused it,
otherwise in the loop's next turn. Output is cut into frames only as far as the socket takes it
(`WireOptions.unsent_bytes_high`), so that a small message waits behind about one frame, not behind
all bodies.

A `CallHandler` is called from the loop, and must not block. All its callbacks after the first
have an exception caught: it is logged, and ends the call, not the connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any, cast

from ringmq_wire.codes import Code, Metadata, RpcStatus
from ringmq_wire.connection import Connection
from ringmq_wire.errors import RpcError
from ringmq_wire.events import (
    CallEnded,
    CallHalfClosed,
    CallHead,
    CallMessages,
    CallOpened,
    ConnectionClosed,
    ConnectionDraining,
    ConnectionReady,
    WireEvent,
)
from ringmq_wire.handler import ENDED, NOBODY, CallHandler
from ringmq_wire.heads import RequestHead
from ringmq_wire.inbound import SharedBudgets
from ringmq_wire.options import FRAME_BYTES_MAX, WireOptions
from ringmq_wire.parts import WireMessage
from ringmq_wire.streams import WireStream
from ringmq_wire.tcp import TcpSocket

log = logging.getLogger(__name__)

# From closing to abandoning a transport whose peer doesn't read the rest.
CLOSE_TIMEOUT_S = 5.0


class WireCall:
    """A call, as the application uses it, on either side. After its end all of this is no-op or
    raises `CallClosedError`.

    While it goes on, call, stream and handler refer to each other, and the call to its connection.
    Whoever ends it cuts that (`let_go`): in a cycle they would be left to the garbage collector,
    which a node keeps away from all that has lived for a while.
    """

    __slots__ = ("_link", "credit_by_hand", "deadline", "handler", "head", "stream")

    def __init__(
        self, link: WireProtocol, stream: WireStream, handler: CallHandler, head: RequestHead | None
    ) -> None:
        self._link = link
        self.stream = stream
        self.handler = handler
        # Server: the request that has opened the call.
        self.head = head
        # Messages aren't consumed when `received` returns, but as `consumed` says.
        self.credit_by_hand = False
        # On the loop's clock.
        self.deadline = stream.deadline

    @property
    def path(self) -> str:
        return self.head.path if self.head is not None else ""

    @property
    def metadata(self) -> Metadata:
        """Server: the metadata that the client sent with its call."""
        return self.head.metadata if self.head is not None else ()

    @property
    def peer(self) -> str:
        """The other end's address, as grpcio writes it."""
        return self._link.peer

    @property
    def has_ended(self) -> bool:
        return self.stream.ended

    @property
    def waiting_bytes(self) -> int:
        """Bytes that `send` has taken, and the connection hasn't."""
        return self.stream.queued_bytes

    def give_up_after(self, unacknowledged_s: float) -> None:
        """The call's connection is lost once the other end's kernel has taken nothing for so long;
        of several limits the shortest counts. Else it may bring nothing for minutes where the
        network comes and goes: TCP waits twice as long each time it sends again."""
        self._link.give_up_after(unacknowledged_s)

    @property
    def timed_out(self) -> bool:
        """Whether its connection was lost because nothing was acknowledged any more."""
        return self._link.timed_out

    def time_remaining(self) -> float | None:
        """Seconds to the deadline; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - self._link.now())

    def send(self, messages: Sequence[WireMessage]) -> bool:
        """Queues messages; False asks to pause until `resume_sending`."""
        link = self._link
        going_on = link.core.calls.send(self.stream, messages)
        link.flush_soon()
        if not going_on:
            self.handler.pause_sending()
        return going_on

    def send_now(self, messages: Sequence[bytes]) -> bool:
        """As `send`, but the message goes out in this turn: for a caller that gathers by itself,
        and keeps what would have to wait here. False as soon as the transport holds more than
        `unsent_bytes_high`, too."""
        link = self._link
        link.core.calls.send(self.stream, messages)
        link.flush()
        if link.is_paused:
            link.held.append(self)
        elif not self.stream.paused:
            return True
        self.handler.pause_sending()
        return False

    def taken_at_once(self) -> int:
        """The bytes of a message that the kernel and the other end's windows are sure to take in
        `send_now`; 0 if that isn't known."""
        link, stream = self._link, self.stream
        if link.is_paused or stream.queued_bytes:
            return 0
        return max(0, min(link.taken_at_once(), stream.send_window, link.core.outflow.window))

    def cork(self, on: bool) -> None:
        """While it is on, the kernel sends full segments only: for messages of one turn."""
        self._link.cork(on)

    def respond(self, metadata: Metadata = ()) -> None:
        """Begins the answer (server); `send` does so by itself, without metadata."""
        self._link.core.calls.respond(self.stream, metadata)
        self._link.flush_soon()

    def half_close(self) -> None:
        """No more is sent (client)."""
        self._link.core.calls.half_close(self.stream)
        self._link.flush_soon()

    def finish(self, status: RpcStatus) -> None:
        """Ends the answer behind the messages that wait (server)."""
        self._link.core.calls.finish(self.stream, status)
        self.let_go()
        self._link.flush_soon()

    def cancel(self) -> None:
        """Ends the call at once; messages that wait aren't sent."""
        self._link.core.calls.cancel(self.stream, self._link.now())
        self.let_go()
        self._link.tell_change(self._link)
        self._link.flush_soon()

    def let_go(self) -> None:
        """The call has ended, and its handler knows. Events of this turn may name its stream."""
        self.stream.owner = ENDED
        self.handler = NOBODY

    def consumed(self, size_bytes: int) -> None:
        """With `credit_by_hand`: the application is done with so many bytes of messages, each
        counted with 5 more."""
        link = self._link
        link.core.calls.consumed(self.stream, size_bytes)
        if link.core.outflow.ready:
            link.flush_soon()


Accept = Callable[[WireCall], CallHandler]


class WireProtocol(asyncio.Protocol):
    """See the module. A server's end is given `accept`, which is called for each call."""

    def __init__(
        self,
        options: WireOptions,
        *,
        client: bool,
        accept: Accept | None = None,
        made: Callable[[WireProtocol], None] | None = None,
        changed: Callable[[WireProtocol], None] | None = None,
        shared: SharedBudgets | None = None,
        shed: Callable[[], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._options = options
        self._client = client
        self._accept = accept
        # Told when there is a connection: TLS may fail before, and then nothing is lost either.
        self._made = made
        # Told when the connection gets ready, drains, closes, or has room for another call.
        self.tell_change = changed or (lambda _: None)
        # The messages of all connections of a server; and a way to end some that aren't whole.
        self._shared = shared
        self._shed = shed
        self.core = Connection(client=client, options=options, now=self.now(), shared=shared)
        self.ready = False
        self.closed = False
        self.timed_out = False
        # Why it drains or is closed.
        self.reason = ""
        self._transport: asyncio.Transport | None = None
        self._paused = False
        # None without a connection, or if it isn't one of TCP.
        self.tcp: TcpSocket | None = None
        # Their senders go on once the network takes our bytes again.
        self.held: list[WireCall] = []
        self._flush_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.lost: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_paused(self) -> bool:
        """The network doesn't take our bytes any more."""
        return self._paused

    @property
    def can_open(self) -> bool:
        return self.ready and not self.closed and self.core.calls.can_open

    @property
    def peer(self) -> str:
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        if not isinstance(name, tuple):
            return "unknown"
        return f"ipv4:{name[0]}:{name[1]}" if len(name) == 2 else f"ipv6:[{name[0]}]:{name[1]}"

    def open(
        self,
        path: str,
        authority: str,
        handler: CallHandler,
        *,
        scheme: str,
        metadata: Metadata,
        timeout_s: float | None,
    ) -> WireCall:
        stream = self.core.calls.open(
            path, authority, scheme=scheme, metadata=metadata, timeout_s=timeout_s, now=self.now()
        )
        stream.owner = call = WireCall(self, stream, handler, None)
        if timeout_s is not None:
            self._set_timer()
        self.flush_soon()
        return call

    def shutdown(self) -> None:
        """Takes no new calls, and closes behind the last."""
        self.core.shutdown(self.now())
        self._set_timer()
        self.flush()

    def abort(self, reason: str) -> None:
        """Ends all calls and the connection."""
        self._handle(self.core.abort(reason, self.now()))
        self.flush()

    def shed(self) -> None:
        """Ends the calls that keep the beginning of a message."""
        self._handle(self.core.calls.shed(self.now()))
        self.flush()

    def give_credit(self) -> None:
        """There is room for unread messages again."""
        if not self.closed and not self.core.closed:
            self.core.calls.settle()
            self.flush_soon()

    def give_up_after(self, unacknowledged_s: float) -> None:
        """See `WireCall.give_up_after`."""
        if self.tcp is not None:
            self.tcp.give_up_after(unacknowledged_s)

    def taken_at_once(self) -> int:
        """What the kernel takes; see `WireCall.taken_at_once`."""
        return 0 if self.tcp is None else self.tcp.taken_at_once()

    def cork(self, on: bool) -> None:
        """See `WireCall.cork`."""
        # A socket that has failed is closed after `connection_lost`: it is still ours.
        if self.tcp is not None:
            self.tcp.cork(on)

    def abandon(self) -> None:
        """Gives up the bytes that the peer hasn't read."""
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are of no class of asyncio's.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        if self._made is not None:
            self._made(self)
        transport.set_write_buffer_limits(high=self._options.unsent_bytes_high)
        sock = transport.get_extra_info("socket")
        tls = transport.get_extra_info("ssl_object")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            self.tcp = TcpSocket(sock, self._options.unacknowledged_s, with_tls=tls is not None)
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            # RFC 9113, section 3.2: over TLS, ALPN must have chosen HTTP/2.
            self.abort("the peer doesn't speak HTTP/2: ALPN hasn't chosen h2")
            return
        self._set_timer()
        self.flush()

    def data_received(self, data: bytes) -> None:
        core, transport = self.core, self._transport
        events = core.receive(data, self.now())
        if events:
            self._handle(events)
            # The core has this list until the next input, which an idle peer doesn't send.
            events.clear()
        if core.has_more and transport is not None and not transport.is_closing():
            # The rest has its turn behind the tasks that these calls have begun.
            transport.pause_reading()
            self._loop.call_soon(self._go_on, transport)
        if core.outflow.ready or core.calls.draining:
            self.flush()
        shared = self._shared
        if shared is not None and shared.unfinished.is_over and self._shed is not None:
            self._shed()

    def _go_on(self, transport: asyncio.Transport) -> None:
        if not transport.is_closing():
            transport.resume_reading()
            self.data_received(b"")

    def eof_received(self) -> bool | None:
        # It may be one half only, of a peer that doesn't read what is left to be written.
        if self._transport is not None and self._transport.get_write_buffer_size():
            self._loop.call_later(CLOSE_TIMEOUT_S, self._transport.abort)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        while self.core.has_more:  # It came before the loss, so it counts.
            self._handle(self.core.receive(b"", self.now()))
        self.timed_out = isinstance(exc, TimeoutError)
        reason = f"the connection was lost: {exc}" if exc is not None else "the peer closed it"
        self._handle(self.core.eof(reason, self.now()))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.tcp is not None:
            self.tcp.close()
        self._transport = self.tcp = None
        self.held.clear()  # Its calls refer to this connection.
        if not self.lost.done():
            self.lost.set_result(None)

    def given_up(self) -> None:
        """The attempt to connect was cancelled. If that was in the turn in which it succeeded,
        uvloop closes the transport without a word."""
        if self._transport is not None:
            self.connection_lost(None)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.flush()
        held, self.held = self.held, []
        for call in held:
            if not call.has_ended and not call.stream.paused:
                self._guard(call, call.handler.resume_sending)

    # --- out ---

    def flush_soon(self) -> None:
        """Messages of this turn go out in the next one, or with input that comes first."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Writes the frames that wait, as far as the socket takes them."""
        self._flush_is_due = False
        transport, core = self._transport, self.core
        if transport is None:
            return
        outflow = core.outflow
        while outflow.ready and not self._paused:
            transport.write(b"".join(core.take(FRAME_BYTES_MAX)))
            for stream in core.taken(self.now()):
                self._guard(stream.owner, stream.owner.handler.resume_sending)
        if core.calls.draining and not self.closed:
            self._handle(core.close_if_drained())
        if self.closed:
            self._close_transport(transport)

    def _close_transport(self, transport: asyncio.Transport) -> None:
        if not transport.is_closing():
            transport.close()
            self._loop.call_later(CLOSE_TIMEOUT_S, transport.abort)

    # --- in ---

    def _handle(self, events: list[WireEvent]) -> None:
        for event in events:
            match event:
                case CallMessages():
                    # A pattern with fields in it would take twice as long.
                    call: WireCall = event.stream.owner
                    try:
                        call.handler.received(event.messages)
                    except Exception as error:
                        self._failed(call, error)
                    if not call.credit_by_hand:
                        self.core.calls.consumed(event.stream, event.size_bytes)
                case CallOpened(stream, head):
                    self._open(stream, head)
                case CallHead(stream, metadata):
                    self._guard(stream.owner, stream.owner.handler.began, metadata)
                case CallHalfClosed(stream):
                    self._guard(stream.owner, stream.owner.handler.half_closed)
                case CallEnded(stream, status):
                    call = stream.owner
                    self._guard(call, call.handler.ended, status)
                    call.let_go()
                    self.tell_change(self)
                case ConnectionReady():
                    self.ready = True
                    self.tell_change(self)
                case ConnectionDraining(reason):
                    self.reason = reason
                    self.tell_change(self)
                case ConnectionClosed(reason):
                    self.closed = True
                    self.reason = self.reason or reason
                    self.tell_change(self)

    def _open(self, stream: WireStream, head: RequestHead) -> None:
        assert self._accept is not None
        stream.owner = call = WireCall(self, stream, NOBODY, head)
        if stream.deadline is not None:
            self._set_timer()
        try:
            handler = self._accept(call)
        except Exception as error:
            self._failed(call, error)
        else:
            if stream.owner is call:  # It wasn't ended at once.
                call.handler = handler

    def _guard(self, call: WireCall, callback: Callable[..., None], *args: Any) -> None:
        try:
            callback(*args)
        except Exception as error:
            self._failed(call, error)

    def _failed(self, call: WireCall, error: Exception) -> None:
        """A callback of the application has raised: its call ends."""
        status = RpcStatus(Code.INTERNAL, "the handler of this call has failed")
        if isinstance(error, RpcError):
            status = error.status
        else:
            log.error("handler of %s: %r", call.path or "a call", error, exc_info=error)
        if self._client:
            call.cancel()
        else:
            call.finish(status)

    # --- time ---

    def _set_timer(self) -> None:
        """The timer is never later than the core's deadline. A deadline that has moved away since
        costs a tick that finds nothing; one that comes nearer passes here."""
        at = self.core.next_deadline()
        if at is None or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._handle(self.core.tick(self.now()))
        self.flush()
        if self._transport is not None:
            self._set_timer()
