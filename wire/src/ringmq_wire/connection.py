"""One end of a connection of HTTP/2 that carries calls of gRPC, as a state machine without I/O.

The shell gives bytes to `receive` and the loop's clock to `tick`, carries out the events that they
return, and writes the bytes that `take` returns. `now` is any clock that rises, in seconds. Calls
are opened, fed and ended through `calls`.

Why not a library: h2 and its like make an object for each frame, and leave windows, messages and
turns to their user; an echo costs ten times the processor time. Here an open stream runs through
`_data` and `Reassembly.feed` only, and all messages of one input are one event.

Invariants (`check`): the held bytes are the sum over the streams; no window is above the one
announced; no stream that has ended on both sides is kept. Whatever the peer sends, `receive` raises
nothing: a fault ends a call, a stream, or the connection with a GOAWAY of the right code.

Memory is bounded by `WireOptions`, by the budgets (control frames), and by `RESET_KEPT_MAX` numbers
of streams that were reset lately.
"""

from __future__ import annotations

from ringmq_wire import frames
from ringmq_wire.blocks import HeaderBlock
from ringmq_wire.calls import CallTable
from ringmq_wire.clocks import Timeout
from ringmq_wire.codes import Code, ErrorCode, RpcStatus
from ringmq_wire.compression import HeaderDecoder
from ringmq_wire.control import ControlFrames
from ringmq_wire.errors import CallRefusal, ConnectionFault, StreamFault
from ringmq_wire.events import CallMessages, ConnectionClosed, WireEvent
from ringmq_wire.frames import (
    DATA,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    HEADERS,
    PADDED,
    PREFACE,
    STREAM_ID_MAX,
)
from ringmq_wire.inbound import SharedBudgets, own_budgets
from ringmq_wire.inflow import Inflow
from ringmq_wire.options import FRAME_BYTES_MAX, WireOptions
from ringmq_wire.outflow import Outflow
from ringmq_wire.streams import WireStream

_WINDOW_UPDATES_PER_FRAME = 4
# Where there are so many, the rest of an input waits: a call that begins costs some 30 us, and its
# task as much again, once the first message is there.
EVENTS_AT_ONCE = 200


class Connection:
    """See the module."""

    def __init__(
        self,
        *,
        client: bool,
        options: WireOptions,
        now: float,
        shared: SharedBudgets | None = None,
    ) -> None:
        """`shared` counts the messages of all connections of a server together."""
        self._client = client
        self._options = options
        # Its `ready` tells whether `take` has anything.
        self.outflow = Outflow(options.send_bytes_high // 2)
        self.unfinished, unread = own_budgets(options, shared)
        self._inflow = Inflow(options, self.outflow.control, self.unfinished, unread)
        self._decoder = HeaderDecoder(options.header_list_bytes_max)
        self.calls = CallTable(
            client=client, options=options, outflow=self.outflow, inflow=self._inflow
        )
        self.calls.now = now
        self._control = ControlFrames(self.calls, self.outflow, options, client=client)
        self._clocks = self.calls.clocks
        self._budgets = self.calls.budgets
        self.closed = False
        self._frames_credited = 0
        # The part of a frame that has come, in pieces, and the size that is worth a look.
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._rest_needed = 0 if client else len(PREFACE)
        self._preface_due = not client
        # The DATA frame whose payload is coming: None while it is dropped.
        self._flow: WireStream | None = None
        self._flow_left = 0
        self._flow_ends = False
        self._block: HeaderBlock | None = None
        # Streams whose `batch` is an event of this `receive`.
        self._batched: list[WireStream] = []
        self._begin(now)

    def _begin(self, now: float) -> None:
        options = self._options
        pairs = [
            (frames.INITIAL_WINDOW_SIZE, options.stream_window_bytes),
            (frames.MAX_FRAME_SIZE, FRAME_BYTES_MAX),
            (frames.MAX_HEADER_LIST_SIZE, options.header_list_bytes_max),
        ]
        if self._client:
            self.outflow.control(PREFACE)
            pairs.append((frames.ENABLE_PUSH, 0))
        else:
            pairs.append((frames.MAX_CONCURRENT_STREAMS, options.streams_max))
        self.outflow.control(frames.settings(pairs))
        self._inflow.settle()
        self._clocks.start(Timeout.HANDSHAKE, now + options.handshake_timeout_s)
        self._clocks.start(Timeout.SETTINGS, now + options.settings_timeout_s)
        if options.idle_timeout_s is not None:
            self._clocks.start(Timeout.IDLE, now + options.idle_timeout_s)

    # --- bytes and time in, events out ---

    def receive(self, data: bytes, now: float) -> list[WireEvent]:
        """Takes the bytes that the transport has read."""
        calls = self.calls
        calls.now = now
        events = calls.events = []
        if self.closed:
            return events
        if self._rest:
            self._rest.append(data)
            self._rest_bytes += len(data)
            if self._rest_bytes < self._rest_needed:
                return events
            data = b"".join(self._rest)
            self._rest.clear()
        try:
            self.outflow.check_waiting()
            at = self._parse(data)
            if at < len(data):
                self._rest.append(data[at:] if at else data)
                self._rest_bytes = len(data) - at
        except ConnectionFault as fault:
            self._fail(fault)
        self._after_input()
        if self._options.keepalive_s is not None:
            self._clocks.start(Timeout.KEEPALIVE, now + self._options.keepalive_s)
            self._clocks.stop(Timeout.PING)
        if calls.draining:
            self._close_if_drained()
        return events

    @property
    def has_more(self) -> bool:
        """Whether `receive` has left frames for the next one: see `EVENTS_AT_ONCE`."""
        return self._rest_needed == 0 and bool(self._rest)

    def _after_input(self) -> None:
        for stream in self._batched:
            stream.batch = None
            # Messages that the application has got are settled when it consumes them.
            reassembly = stream.reassembly
            if (reassembly.need >= 0 or reassembly.prefix) and reassembly.lacking_bytes:
                self._inflow.settle_stream(stream)
        self._batched.clear()
        if not self.closed:
            self._inflow.settle()

    def eof(self, reason: str, now: float) -> list[WireEvent]:
        """The transport is gone."""
        self.calls.now = now
        self.calls.events = []
        if not self.closed:
            self._close(reason)
        return self.calls.events

    def tick(self, now: float) -> list[WireEvent]:
        """To be called at `next_deadline`; earlier does no harm."""
        self.calls.now = now
        self.calls.events = []
        timeouts, overdue = self._clocks.ran_out(now)
        try:
            for timeout in timeouts:
                self._control.ran_out(timeout, now)
            for stream_id in overdue:
                stream = self.calls.streams.get(stream_id)
                if stream is not None:
                    self.calls.overdue(stream)
        except ConnectionFault as fault:
            self._fail(fault)
        self._close_if_drained()
        return self.calls.events

    def next_deadline(self) -> float | None:
        """When to `tick`. It moves forward when calls open, and at `shutdown`."""
        return None if self.closed else self._clocks.next_deadline()

    # --- bytes out ---

    def take(self, bytes_max: int) -> list[bytes | memoryview]:
        """The pieces to be written next: about so many bytes, or one frame more."""
        return self.outflow.take(bytes_max)

    def taken(self, now: float) -> list[WireStream]:
        """To be called after `take`; returns the streams whose senders may go on."""
        self.calls.now = now
        outflow = self.outflow
        sent = outflow.frames_sent - self._frames_credited
        if sent:
            self._frames_credited += sent
            self._budgets.updates.give_back(sent * _WINDOW_UPDATES_PER_FRAME)
        if not outflow.closed and not outflow.resumable:
            return []
        return self.calls.sweep()

    # --- going away ---

    @property
    def drained(self) -> bool:
        """No call is open, and none can be."""
        return self.calls.draining and not self.calls.streams

    def shutdown(self, now: float) -> None:
        """Takes no new calls; those that are open go on. The connection closes behind the last."""
        if not self.closed:
            self._control.shutdown(now)

    def abort(self, reason: str, now: float) -> list[WireEvent]:
        """Ends the connection at once, by this side's decision."""
        self.calls.now = now
        self.calls.events = []
        if not self.closed:
            self.outflow.drop_all()
            self._control.send_goaway(ErrorCode.NO_ERROR, reason)
            self._close(reason)
        return self.calls.events

    def close_if_drained(self) -> list[WireEvent]:
        """To be called after `taken`: the last answer may have gone."""
        self.calls.events = []
        self._close_if_drained()
        return self.calls.events

    def _close_if_drained(self) -> None:
        if self.drained and not self.closed:
            self._close("all calls have ended")

    def _fail(self, fault: ConnectionFault) -> None:
        self.outflow.drop_all()
        self._control.send_goaway(fault.code, str(fault))
        self._close(f"{fault.code.name}: {fault}")

    def _close(self, reason: str) -> None:
        self.closed = True
        self.calls.draining = True
        status = RpcStatus(Code.UNAVAILABLE, reason)
        for stream in list(self.calls.streams.values()):
            self.calls.lose(stream, status)
        self._rest.clear()
        self._block = self._flow = None
        self.calls.events.append(ConnectionClosed(reason))

    # --- frames ---

    def _parse(self, data: bytes) -> int:
        """Carries out all frames in `data`; returns where the first one begins that isn't whole."""
        at = 0
        if self._preface_due:
            at = self._read_preface(data)
            if self._preface_due:
                return at
        end = len(data)
        unpack = FRAME_HEADER.unpack_from
        if self._flow_left:
            at = self._payload(data, at, end)
        while end - at >= FRAME_HEADER_BYTES:
            if len(self.calls.events) >= EVENTS_AT_ONCE:
                self._rest_needed = 0
                return at
            high, low, kind, flags, stream_id = unpack(data, at)
            length = high << 8 | low
            stop: int = at + FRAME_HEADER_BYTES + length
            if length > FRAME_BYTES_MAX:
                raise ConnectionFault(
                    ErrorCode.FRAME_SIZE_ERROR,
                    f"frame of {length} bytes, at most {FRAME_BYTES_MAX} are allowed",
                )
            if (
                kind == DATA
                and not flags & PADDED
                and self._block is None
                and self._control.settings_seen
            ):
                if not flags and stop <= end and self._whole(stream_id, data, stop - length, stop):
                    at = stop
                    continue
                # The payload isn't waited for: a frame of a large body comes in several inputs.
                at = self._data(data, at + FRAME_HEADER_BYTES, end, length, flags, stream_id)
                continue
            if stop > end:
                self._rest_needed = stop - at
                return at
            self._frame(kind, flags, stream_id & STREAM_ID_MAX, data[stop - length : stop])
            at = stop
        self._rest_needed = FRAME_HEADER_BYTES
        return at

    def _read_preface(self, data: bytes) -> int:
        size = min(len(data), len(PREFACE))
        if data[:size] != PREFACE[:size]:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"the connection begins with {data[:24]!r}, not HTTP/2"
            )
        if size < len(PREFACE):
            self._rest_needed = len(PREFACE)
            return 0
        self._preface_due = False
        return size

    # --- DATA ---

    def _whole(self, stream_id: int, data: bytes, at: int, stop: int) -> bool:
        """A DATA frame without flags has come whole. If nothing about it needs a closer look, takes
        its messages, with the outcome that `_data` would have."""
        stream = self.calls.streams.get(stream_id)
        if stream is None or (self._client and not stream.head_seen):
            return False
        batch = stream.batch or CallMessages(stream)
        first = not batch.messages
        if not self._inflow.take_whole(stream, data, at, stop, batch.messages):
            return False
        batch.size_bytes += stop - at
        self._budgets.data_came()
        if stream.batch is None:
            stream.batch = batch
            self._batched.append(stream)
        if first:
            self.calls.events.append(batch)
        return True

    def _data(self, data: bytes, at: int, end: int, length: int, flags: int, stream_id: int) -> int:
        """A DATA frame without padding has begun; its payload starts at `at`."""
        stream = self.calls.streams.get(stream_id)
        self._inflow.expect(length)
        self._flow = None
        self._flow_left = length
        self._flow_ends = bool(flags & frames.END_STREAM)
        if stream is None:
            stream_id &= STREAM_ID_MAX
            stream = self.calls.streams.get(stream_id)
        try:
            if stream is None:
                self.calls.data_of_no_stream(stream_id)
            else:
                self._check_data(stream, length)
                self._flow = stream
                if not length and not self._flow_ends:
                    self._budgets.empty.count(self.calls.now)
        except StreamFault as fault:
            self.calls.fault(stream_id, fault)
        return self._payload(data, at, end)

    def _check_data(self, stream: WireStream, length: int) -> None:
        """For the whole frame, before its payload."""
        if stream.remote_closed:
            raise StreamFault(ErrorCode.STREAM_CLOSED, "DATA behind the end of the stream")
        if self._client and not stream.head_seen:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "DATA before the head of the answer")
        self._inflow.expect_on(stream, length)

    def _payload(self, data: bytes, at: int, end: int) -> int:
        """More of the payload of the DATA frame that has begun; returns where it ends."""
        stop = min(end, at + self._flow_left)
        self._flow_left -= stop - at
        self._inflow.came(stop - at)
        stream = self._flow
        if stream is not None:
            try:
                if stop > at:
                    self._feed(stream, data, at, stop)
                if not self._flow_left and self._flow_ends:
                    self.calls.remote_end(stream)
            except StreamFault as fault:
                self._flow = None
                self.calls.fault(stream.id, fault)
            except CallRefusal as refusal:
                self._flow = None
                self.calls.refuse(stream, refusal)
        return stop

    def _feed(self, stream: WireStream, data: bytes, at: int, stop: int) -> None:
        size = stop - at
        stream.receive_window -= size
        stream.received_bytes += size
        if stream.content_length is not None and stream.received_bytes > stream.content_length:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "more DATA than content-length says")
        self._budgets.data_came()
        if stream.ended:
            # The application has finished the answer: messages that still come are dropped.
            return
        batch = stream.batch
        if batch is None:
            batch = stream.batch = CallMessages(stream)
            self._batched.append(stream)
        messages = batch.messages
        first = not messages
        reassembly = stream.reassembly
        held_before = reassembly.held_bytes
        try:
            reassembly.feed(data, at, stop, messages)
        finally:
            if messages:
                if first:
                    self.calls.events.append(batch)
                whole = held_before + size - reassembly.held_bytes
                batch.size_bytes += whole
                self._inflow.hold(stream, whole)
        if stream.unfinished_bytes or reassembly.lacking_bytes:
            self._inflow.keep(stream)

    # --- other frames ---

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        block = self._block
        if block is not None:
            whole = block.add(kind, flags, stream_id, payload)
            if whole is not None:
                self._block = None
                self._headers(block, whole)
            return
        if not self._control.settings_seen and (kind != frames.SETTINGS or flags & frames.ACK):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"the first frame is of type {kind}, expected SETTINGS"
            )
        if kind == DATA:
            self._padded_data(flags, stream_id, payload)
        elif kind == HEADERS:
            self._begin_headers(flags, stream_id, payload)
        else:
            self._control.frame(kind, flags, stream_id, payload)

    def _padded_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        content = frames.unpadded(DATA, flags, payload)
        if not content and not flags & frames.END_STREAM:
            self._budgets.empty.count(self.calls.now)
        # Its credit is due with the stream's next one; frames of padding alone have a budget.
        padding = len(payload) - len(content)
        self._inflow.expect(padding)
        self._inflow.came(padding)
        stream = self.calls.streams.get(stream_id)
        if stream is not None and not stream.remote_closed:
            try:
                self._inflow.expect_on(stream, padding)
                stream.receive_window -= padding
            except StreamFault as fault:
                self.calls.fault(stream_id, fault)
        if content or flags & frames.END_STREAM:
            self._data(content, 0, len(content), len(content), flags, stream_id)
        elif stream is None:
            self._data(b"", 0, 0, 0, flags, stream_id)

    def _begin_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id % 2 == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"HEADERS of stream {stream_id}")
        self._budgets.control.give_back(1)
        block = HeaderBlock(
            HEADERS, flags, stream_id, payload, self._options.header_block_bytes_max
        )
        if flags & frames.END_HEADERS:
            self._headers(block, block.data())
        else:
            self._block = block

    def _headers(self, block: HeaderBlock, data: bytes) -> None:
        calls = self.calls
        stream_id = block.stream_id
        # Read in any case: the table must follow the peer's, whatever becomes of the stream.
        headers = self._decoder.decode(data)
        stream = calls.streams.get(stream_id)
        last = block.ends_stream
        try:
            if stream is None:
                if not calls.is_idle(stream_id):
                    calls.headers_of_no_stream(stream_id)
                    return
                if self._client:
                    raise ConnectionFault(
                        ErrorCode.PROTOCOL_ERROR, f"HEADERS of stream {stream_id}, not opened here"
                    )
                stream = calls.opened(stream_id, headers, on_itself=block.on_itself)
            elif self._client:
                calls.answered(stream, headers, last=last)
                return
            else:
                calls.request_trailers(stream, headers, last=last)
            if last and stream is not None:
                calls.remote_end(stream)
        except StreamFault as fault:
            calls.fault(stream_id, fault)
        except CallRefusal as refusal:
            stream = calls.streams[stream_id]
            stream.remote_closed = stream.remote_closed or last
            calls.refuse(stream, refusal)

    # --- for tests ---

    def check(self) -> None:
        """The invariants."""
        self._inflow.check(self.calls.streams.values())
