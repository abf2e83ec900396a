"""Frames that carry no call: SETTINGS, PING, GOAWAY, windows, resets; and the time-outs. Pure."""

from __future__ import annotations

from ringmq_wire import frames
from ringmq_wire.calls import CallTable
from ringmq_wire.clocks import Timeout
from ringmq_wire.codes import Code, ErrorCode, RpcStatus, code_name
from ringmq_wire.errors import ConnectionFault, StreamFault
from ringmq_wire.events import ConnectionDraining, ConnectionReady
from ringmq_wire.frames import ACK, PING, SETTINGS, STREAM_ID_MAX
from ringmq_wire.options import FRAME_BYTES_MAX, FRAME_BYTES_MIN, WINDOW_BYTES_MAX, WireOptions
from ringmq_wire.outflow import Outflow

_KEEPALIVE = b"keepaliv"
_SHUTDOWN = b"shutdown"


class ControlFrames:
    """Those of one connection. Raises `ConnectionFault`."""

    def __init__(
        self, calls: CallTable, outflow: Outflow, options: WireOptions, *, client: bool
    ) -> None:
        self.calls = calls
        self._client = client
        self._options = options
        self._outflow = outflow
        self._clocks = calls.clocks
        self._budgets = calls.budgets
        # The peer's first SETTINGS have come.
        self.settings_seen = False

    def frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        match kind:
            case frames.SETTINGS:
                self._settings(flags, stream_id, payload)
            case frames.WINDOW_UPDATE:
                self._window_update(stream_id, payload)
            case frames.RST_STREAM:
                self._rst_stream(stream_id, payload)
            case frames.PING:
                self._ping(flags, stream_id, payload)
            case frames.GOAWAY:
                self._goaway(stream_id, payload)
            case frames.PRIORITY:
                self._priority(stream_id, payload)
            case frames.CONTINUATION | frames.PUSH_PROMISE:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"frame {kind} where none may be")
            case _:
                # RFC 9113, section 5.5: ignored.
                self._budgets.control.count(self.calls.now)

    # --- this side goes away ---

    def send_goaway(self, code: ErrorCode, reason: str) -> None:
        # RFC 9113, section 6.8: never above the one before. What came since wasn't taken.
        last = min(self.calls.last_peer_id, self.calls.last_taken_id)
        self._outflow.control(frames.goaway(last, code, reason))

    def shutdown(self, now: float) -> None:
        """Takes no new calls; those that are open go on. The connection closes behind the last.

        A server says so twice (RFC 9113, section 6.8): calls that the client sends before it has
        read the first GOAWAY are served; the second one names the last of them.
        """
        calls = self.calls
        if calls.draining or self._clocks.runs(Timeout.GOAWAY):
            return
        if self._client:
            calls.draining = True
            self._outflow.control(frames.goaway(0, ErrorCode.NO_ERROR, "the client shuts down"))
            return
        self._outflow.control(
            frames.goaway(STREAM_ID_MAX, ErrorCode.NO_ERROR, "the server shuts down")
        )
        self._outflow.control(frames.frame(PING, 0, 0, _SHUTDOWN))
        self._clocks.start(Timeout.GOAWAY, now + self._options.goaway_grace_s)

    def ran_out(self, timeout: Timeout, now: float) -> None:
        options = self._options
        match timeout:
            case Timeout.HANDSHAKE:
                raise ConnectionFault(
                    ErrorCode.PROTOCOL_ERROR, f"no SETTINGS within {options.handshake_timeout_s} s"
                )
            case Timeout.SETTINGS:
                raise ConnectionFault(
                    ErrorCode.SETTINGS_TIMEOUT,
                    f"SETTINGS not acknowledged within {options.settings_timeout_s} s",
                )
            case Timeout.KEEPALIVE:
                assert options.keepalive_s is not None
                self._clocks.start(Timeout.KEEPALIVE, now + options.keepalive_s)
                # Without calls nobody waits for the peer, and stock servers count such PINGs.
                wanted = self.calls.streams or options.keepalive_without_calls
                if wanted and not self._clocks.runs(Timeout.PING):
                    self._outflow.control(frames.frame(PING, 0, 0, _KEEPALIVE))
                    self._clocks.start(Timeout.PING, now + options.keepalive_timeout_s)
            case Timeout.PING:
                raise ConnectionFault(
                    ErrorCode.NO_ERROR, f"no answer to a PING in {options.keepalive_timeout_s} s"
                )
            case Timeout.IDLE:
                # It goes on while there are calls: whoever keeps the time isn't told of their end.
                assert options.idle_timeout_s is not None
                since = now if self.calls.streams else self.calls.idle_since
                if now >= since + options.idle_timeout_s:
                    self.shutdown(now)
                else:
                    self._clocks.start(Timeout.IDLE, since + options.idle_timeout_s)
            case Timeout.GOAWAY:
                self._second_goaway()

    def _second_goaway(self) -> None:
        self._clocks.stop(Timeout.GOAWAY)
        if not self.calls.draining:
            self.calls.draining = True
            self.calls.last_taken_id = self.calls.last_peer_id
            self.send_goaway(ErrorCode.NO_ERROR, "the server shuts down")

    # --- frames of the peer ---

    def _rst_stream(self, stream_id: int, payload: bytes) -> None:
        code = frames.read_u32(payload, "RST_STREAM")
        stream = self.calls.streams.get(stream_id)
        if stream is not None:
            self.calls.was_reset(stream, code)
        elif self.calls.is_idle(stream_id):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"RST_STREAM of stream {stream_id}, not open yet"
            )

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        increment = frames.read_u32(payload, "WINDOW_UPDATE") & WINDOW_BYTES_MAX
        self._budgets.updates.count(self.calls.now)
        if stream_id == 0:
            if not increment:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            self._outflow.widen_connection(increment)
            return
        stream = self.calls.streams.get(stream_id)
        if stream is None:
            if self.calls.is_idle(stream_id):
                raise ConnectionFault(
                    ErrorCode.PROTOCOL_ERROR, f"WINDOW_UPDATE of stream {stream_id}, not open yet"
                )
        elif not increment:
            fault = StreamFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            self.calls.fault(stream_id, fault)
        elif not self._outflow.widen(stream, increment):
            fault = StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "the window is above 2**31 - 1")
            self.calls.fault(stream_id, fault)

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"SETTINGS of stream {stream_id}")
        if flags & ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "acknowledgement with settings")
            self._clocks.stop(Timeout.SETTINGS)
            self.calls.settings_acknowledged = True
            return
        streams_max = self.calls.peer_streams_max
        window = self.calls.peer_window
        for name, value in frames.read_settings(payload):
            self._apply_setting(name, value)
        # Once: a frame has room for ten thousand values, each of which would move every window.
        self._resize_windows(self.calls.peer_window - window)
        # Now, not with the next turn: what relies on these settings must stand behind it.
        self._outflow.control(frames.frame(SETTINGS, ACK, 0))
        if self.settings_seen:
            self._budgets.control.count(self.calls.now)
            if self.calls.peer_streams_max > streams_max:
                self.calls.events.append(ConnectionReady())
        else:
            self.settings_seen = True
            self._clocks.stop(Timeout.HANDSHAKE)
            self.calls.events.append(ConnectionReady())

    def _apply_setting(self, name: int, value: int) -> None:
        match name:
            case frames.INITIAL_WINDOW_SIZE:
                if value > WINDOW_BYTES_MAX:
                    raise ConnectionFault(
                        ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {value}"
                    )
                self.calls.peer_window = value
            case frames.MAX_FRAME_SIZE:
                if not FRAME_BYTES_MIN <= value < 2**24:
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}")
                self._outflow.frame_bytes_max = min(value, FRAME_BYTES_MAX)
            case frames.MAX_CONCURRENT_STREAMS:
                self.calls.peer_streams_max = value
            case frames.ENABLE_PUSH:
                if value > 1 or (value and self._client):
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
            case _:
                # HEADER_TABLE_SIZE: this side uses no table. MAX_HEADER_LIST_SIZE: advice.
                pass

    def _resize_windows(self, change: int) -> None:
        if not change:
            return
        for stream in self.calls.streams.values():
            if not self._outflow.widen(stream, change):
                raise ConnectionFault(
                    ErrorCode.FLOW_CONTROL_ERROR,
                    f"INITIAL_WINDOW_SIZE lifts stream {stream.id} above 2**31 - 1",
                )

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"PING of stream {stream_id}")
        if len(payload) != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes")
        if not flags & ACK:
            self._budgets.control.count(self.calls.now)
            self._outflow.pong(frames.frame(PING, ACK, 0, payload))
        elif payload == _SHUTDOWN and self._clocks.runs(Timeout.GOAWAY):
            self._second_goaway()

    def _goaway(self, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"GOAWAY of stream {stream_id}")
        last, code, message = frames.read_goaway(payload)
        reason = f"the peer goes away: {code_name(code)} {message}".rstrip()
        if not self.calls.draining:
            self.calls.draining = True
            self.calls.events.append(ConnectionDraining(reason))
        if self._client:
            status = RpcStatus(Code.UNAVAILABLE, reason, unprocessed=True)
            for unserved in [s for s in self.calls.streams.values() if s.id > last]:
                self.calls.lose(unserved, status)

    def _priority(self, stream_id: int, payload: bytes) -> None:
        """Ignored (RFC 9113, section 5.3.2), but for its faults."""
        self._budgets.control.count(self.calls.now)
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY of no stream")
        if len(payload) != 5:
            fault = StreamFault(ErrorCode.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes")
            self.calls.fault(stream_id, fault)
        elif int.from_bytes(payload[:4], "big") & STREAM_ID_MAX == stream_id:
            fault = StreamFault(ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
            self.calls.fault(stream_id, fault)
