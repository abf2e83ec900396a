"""The calls of one connection: how each is opened, fed and ended, from either side. Pure.

Whoever ends a call first decides its status. The application is told each end once: by
`CallEnded`, unless it has made the end itself, by `finish` or `cancel`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringmq_wire.budgets import RAPID_RESET_S, FloodBudgets
from ringmq_wire.clocks import ConnectionClocks
from ringmq_wire.codes import Code, ErrorCode, Metadata, RpcStatus, status_of_reset
from ringmq_wire.compression import HeaderEncoder, Headers
from ringmq_wire.errors import (
    CallClosedError,
    CallRefusal,
    ConnectionFault,
    SendQueueFullError,
    StreamFault,
)
from ringmq_wire.events import CallEnded, CallHalfClosed, CallHead, CallOpened, WireEvent
from ringmq_wire.frames import END_STREAM, STREAM_ID_MAX, header_frames, rst_stream
from ringmq_wire.heads import (
    check_request_trailers,
    read_request,
    read_response,
    read_trailers,
    request_headers,
    response_headers,
    trailers,
)
from ringmq_wire.inflow import Inflow
from ringmq_wire.options import WINDOW_BYTES_INITIAL, WireOptions
from ringmq_wire.outflow import Outflow
from ringmq_wire.parts import WireMessage
from ringmq_wire.streams import WireStream

# Numbers of streams that this side reset: what the peer sent before it knew is dropped. As many are
# kept as may be open at once, within these bounds: all may be reset together.
RESET_KEPT_MIN = 4096
RESET_KEPT_MAX = 65_536
# What a client assumes until the server's SETTINGS say otherwise (RFC 9113, section 6.5.2).
PEER_STREAMS_MAX = 100


class CallTable:
    """See the module. `events` is emptied by the connection, `now` set by it."""

    def __init__(
        self, *, client: bool, options: WireOptions, outflow: Outflow, inflow: Inflow
    ) -> None:
        self._client = client
        self._options = options
        self._outflow = outflow
        self._inflow = inflow
        self._encoder = HeaderEncoder()
        self.budgets = FloodBudgets()
        self.clocks = ConnectionClocks()
        self.events: list[WireEvent] = []
        self.now = 0.0
        self.streams: dict[int, WireStream] = {}
        self.peer_window = WINDOW_BYTES_INITIAL
        self.peer_streams_max = PEER_STREAMS_MAX
        # The peer knows this side's limit for streams.
        self.settings_acknowledged = False
        # No call is opened any more, by either side.
        self.draining = False
        self._next_id = 1
        # The highest stream that the peer has opened.
        self.last_peer_id = 0
        # The last one that a final GOAWAY has taken.
        self.last_taken_id = STREAM_ID_MAX
        # When the last call has ended; of no meaning while there are any.
        self.idle_since = 0.0
        self._reset: dict[int, None] = {}

    # --- for the application ---

    @property
    def can_open(self) -> bool:
        return not self.draining and len(self.streams) < self.peer_streams_max

    def open(
        self,
        path: str,
        authority: str,
        *,
        scheme: str = "http",
        metadata: Metadata = (),
        timeout_s: float | None = None,
        now: float,
    ) -> WireStream:
        """Begins a call. Raises ValueError if path or metadata can't travel."""
        self.now = now
        if not self._client or not self.can_open:
            raise CallClosedError("no call can be opened on this connection now")
        same, changing = request_headers(path, authority, scheme, metadata, timeout_s)
        stream = self._new_stream(self._next_id)
        self._next_id += 2
        if self._next_id > STREAM_ID_MAX:
            self.draining = True
        if timeout_s is not None:
            stream.deadline = self.now + timeout_s
            self.clocks.watch(stream, self.streams)
        self._send_head(stream, same, changing)
        return stream

    def respond(self, stream: WireStream, metadata: Metadata = ()) -> None:
        """Begins the answer; `send` does so by itself."""
        if stream.ended or stream.head_sent:
            raise CallClosedError(f"the answer of stream {stream.id} has begun or ended")
        stream.head_sent = True
        stream.answered = True
        self._send_head(stream, *response_headers(metadata))

    def send(self, stream: WireStream, messages: Sequence[WireMessage]) -> bool:
        """Queues messages. False: the sender should pause until the stream is resumed."""
        if stream.finish_flags or stream.ended:
            raise CallClosedError(f"this side of stream {stream.id} is closed")
        if stream.queued_bytes > self._options.send_bytes_max:
            raise SendQueueFullError(
                f"stream {stream.id} has {stream.queued_bytes} bytes to send, "
                f"at most {self._options.send_bytes_max} may wait"
            )
        if not stream.head_sent:
            self.respond(stream)
        stream.put(messages)
        if stream.queued_bytes > self._options.send_bytes_high:
            stream.paused = True
        self._outflow.schedule(stream)
        return not stream.paused

    def half_close(self, stream: WireStream) -> None:
        """The client sends no more; the answer goes on."""
        if not stream.ended and not stream.finish_flags:
            stream.finish_flags = END_STREAM
            self._outflow.schedule(stream)

    def finish(self, stream: WireStream, status: RpcStatus, *, http_status: int = 200) -> None:
        """Ends the answer, behind what waits. Does nothing if the call has ended."""
        if stream.ended:
            return
        same, changing = trailers(status, alone=not stream.head_sent, http_status=http_status)
        stream.trailers = self._encoder.encode(same, changing)
        stream.finish_flags = END_STREAM
        stream.ended = True
        stream.reassembly.clear()
        self._inflow.forget(stream)
        # What it held may be all that kept the peer from sending: no input would come then.
        self._inflow.settle()
        self._outflow.schedule(stream)

    def cancel(self, stream: WireStream, now: float, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """Resets the stream. Does nothing if the call has ended."""
        if not stream.ended:
            self.now = now
            stream.ended = True
            self._send_reset(stream, code)
            self._inflow.settle()

    def consumed(self, stream: WireStream, size_bytes: int) -> None:
        """The application is done with messages of this size, so the peer may send as much."""
        if stream.ended:
            return
        self._inflow.consumed(stream, size_bytes)
        self._inflow.settle_stream(stream)
        self._inflow.settle()

    def settle(self) -> None:
        """There is room for unread messages again: gives the credit that was held back."""
        self._inflow.settle()

    # --- heads that have come ---

    def opened(self, stream_id: int, headers: Headers, *, on_itself: bool) -> WireStream | None:
        """The peer opens a stream (server). None: it isn't taken, or ended at once."""
        self.last_peer_id = stream_id
        if self.draining and stream_id > self.last_taken_id:
            # RFC 9113, section 6.8: the final GOAWAY has told the peer that it is not taken.
            self._remember_reset(stream_id)
            return None
        if len(self.streams) >= self._options.streams_max:
            if self.settings_acknowledged:
                self.budgets.resets.count(self.now)
            self._outflow.control(rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
            self._remember_reset(stream_id)
            return None
        stream = self._new_stream(stream_id)
        if on_itself:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} depends on itself")
        head = read_request(headers)
        stream.content_length = head.content_length
        if head.timeout_s is not None:
            stream.deadline = self.now + head.timeout_s
            self.clocks.watch(stream, self.streams)
        stream.announced = True
        self.events.append(CallOpened(stream, head))
        return stream

    def request_trailers(self, stream: WireStream, headers: Headers, *, last: bool) -> None:
        if stream.remote_closed:
            raise StreamFault(ErrorCode.STREAM_CLOSED, "HEADERS behind the end of the stream")
        if not last:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "trailers that don't end the stream")
        check_request_trailers(headers)

    def answered(self, stream: WireStream, headers: Headers, *, last: bool) -> None:
        """A head, or the trailers, of the answer (client)."""
        if not stream.head_seen:
            head = read_response(headers, last=last)
            if head.informational:
                return
            stream.head_seen = True
            stream.content_length = head.content_length
            if head.status is None:
                self.events.append(CallHead(stream, head.metadata))
                return
            self.end(stream, head.status)
        elif not last:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "trailers that don't end the stream")
        else:
            self._check_content_length(stream)
            status = read_trailers(headers)
            if stream.reassembly.held_bytes and status.code is Code.OK:
                status = RpcStatus(Code.INTERNAL, "the answer ended within a message")
            self.end(stream, status)

    def remote_end(self, stream: WireStream) -> None:
        """The peer's half has ended, by a frame without headers (or by trailers of a request)."""
        if stream.id not in self.streams:
            return
        self._check_content_length(stream)
        if self._client:
            self.end(stream, RpcStatus(Code.INTERNAL, "the answer ended without trailers"))
            return
        stream.remote_closed = True
        if stream.local_closed:
            self._remove(stream)
        elif stream.ended:
            return
        elif stream.reassembly.held_bytes:
            raise CallRefusal(RpcStatus(Code.INTERNAL, "the request ended within a message"))
        else:
            self.events.append(CallHalfClosed(stream))

    # --- ends that have come ---

    def end(self, stream: WireStream, status: RpcStatus) -> None:
        """The call has ended with this status, by the peer's word or by a deadline (client)."""
        if not stream.local_closed:
            # RFC 9113, section 8.1: nobody reads the rest of the request.
            self._send_reset(stream, ErrorCode.NO_ERROR)
        else:
            self._remove(stream)
        if status.code is Code.OK:
            self.budgets.resets.give_back(1)
        self._tell_end(stream, status)

    def was_reset(self, stream: WireStream, code: int) -> None:
        """The peer has reset the stream."""
        is_young = self.now < stream.opened_at + RAPID_RESET_S
        if is_young and not self._client and not stream.answered:
            self.budgets.resets.count(self.now)
        self._remove(stream)
        self._tell_end(stream, status_of_reset(code))

    def fault(self, stream_id: int, fault: StreamFault) -> None:
        """The peer has broken the rules of this stream."""
        self.budgets.resets.count(self.now)
        stream = self.streams.get(stream_id)
        if stream is None:
            self._outflow.control(rst_stream(stream_id, fault.code))
            self._remember_reset(stream_id)
            return
        self._send_reset(stream, fault.code)
        self._tell_end(stream, RpcStatus(Code.INTERNAL, str(fault)))

    def refuse(self, stream: WireStream, refusal: CallRefusal) -> None:
        """This side ends the call: a message is too large, a head isn't gRPC's."""
        if self._client or stream.within_message or stream.queued_bytes:
            self._send_reset(stream, ErrorCode.CANCEL)
        else:
            self.finish(stream, refusal.status, http_status=refusal.http_status)
            stream.ended = False
        self._tell_end(stream, refusal.status)

    def overdue(self, stream: WireStream) -> None:
        """The call's deadline has passed."""
        status = RpcStatus(Code.DEADLINE_EXCEEDED, "the call's deadline has passed")
        if stream.ended:
            # Finished by the application, but the peer takes no end of it.
            self._send_reset(stream, ErrorCode.CANCEL)
        else:
            self.refuse(stream, CallRefusal(status))
        self._inflow.settle()

    def shed(self, now: float) -> list[WireEvent]:
        """Ends the calls that keep the beginning of a message: the server has no room for them."""
        self.now = now
        self.events = []
        status = RpcStatus(Code.UNAVAILABLE, "too many unfinished messages here: try again")
        for stream in list(self.streams.values()):
            if stream.unfinished_bytes:
                self.refuse(stream, CallRefusal(status))
        return self.events

    def lose(self, stream: WireStream, status: RpcStatus) -> None:
        """The connection is lost, or won't serve this stream: nothing can be sent any more."""
        self._remove(stream)
        self._tell_end(stream, status)

    # --- after `Outflow.take` ---

    def sweep(self) -> list[WireStream]:
        """Forgets the streams that have ended on both sides; returns those that may go on."""
        for stream in self._outflow.closed:
            if stream.id not in self.streams:
                continue
            if stream.remote_closed:
                self._remove(stream)
            elif stream.trailers is not None:
                self._remember_reset(stream.id)
                self._remove(stream)
            if stream.ended and stream.answered:
                self.budgets.resets.give_back(1)
        self._outflow.closed.clear()
        resumed = [stream for stream in self._outflow.resumable if not stream.ended]
        self._outflow.resumable.clear()
        return resumed

    # --- streams that aren't there ---

    def data_of_no_stream(self, stream_id: int) -> None:
        if self.is_idle(stream_id):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"DATA of stream {stream_id}, which nobody has opened"
            )
        if not self.was_reset_here(stream_id):
            raise StreamFault(ErrorCode.STREAM_CLOSED, "DATA behind the end of the stream")

    def headers_of_no_stream(self, stream_id: int) -> None:
        if self._client or self.was_reset_here(stream_id):
            return
        raise ConnectionFault(
            ErrorCode.STREAM_CLOSED, f"HEADERS of stream {stream_id}, which is closed"
        )

    def is_idle(self, stream_id: int) -> bool:
        """Nobody has opened this stream yet. Servers open none."""
        if stream_id % 2 == 0:
            return True
        return stream_id >= self._next_id if self._client else stream_id > self.last_peer_id

    def was_reset_here(self, stream_id: int) -> bool:
        return stream_id in self._reset

    # --- inside ---

    def _new_stream(self, stream_id: int) -> WireStream:
        stream = self.streams[stream_id] = WireStream(
            stream_id,
            now=self.now,
            send_window=self.peer_window,
            receive_window=self._options.stream_window_bytes,
            message_bytes_max=self._options.message_bytes_max,
            # "Compression" of gRPC over HTTP/2: what a server and a client say to it.
            compressed_code=Code.INTERNAL if self._client else Code.UNIMPLEMENTED,
        )
        stream.head_sent = stream.announced = self._client
        return stream

    def _send_head(self, stream: WireStream, same: Headers, changing: Headers) -> None:
        block = self._encoder.encode(same, changing)
        head = header_frames(stream.id, 0, block, self._outflow.frame_bytes_max)
        self._outflow.head(stream, head)

    def _send_reset(self, stream: WireStream, code: ErrorCode) -> None:
        # The server has never heard of a call whose head hasn't left.
        if not self._client or not self._outflow.has_head(stream):
            self._outflow.control(rst_stream(stream.id, code), own=self._client)
        self._remember_reset(stream.id)
        self._remove(stream)

    def _remember_reset(self, stream_id: int) -> None:
        self._reset[stream_id] = None
        streams_max = self.peer_streams_max if self._client else self._options.streams_max
        if len(self._reset) > max(RESET_KEPT_MIN, min(streams_max, RESET_KEPT_MAX)):
            del self._reset[next(iter(self._reset))]

    def _remove(self, stream: WireStream) -> None:
        self.streams.pop(stream.id, None)
        stream.local_closed = stream.remote_closed = True
        stream.drop_queue()
        stream.reassembly.clear()
        self._inflow.forget(stream)
        self._outflow.forget(stream)
        if not self.streams:
            self.idle_since = self.now

    def _tell_end(self, stream: WireStream, status: RpcStatus) -> None:
        if not stream.ended:
            stream.ended = True
            if stream.announced:
                self.events.append(CallEnded(stream, status))

    def _check_content_length(self, stream: WireStream) -> None:
        if stream.content_length not in (None, stream.received_bytes):
            raise StreamFault(
                ErrorCode.PROTOCOL_ERROR,
                f"content-length is {stream.content_length}, {stream.received_bytes} bytes came",
            )
