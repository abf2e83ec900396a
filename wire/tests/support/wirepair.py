"""Two ends of a connection without a transport, and frames written by hand."""

from __future__ import annotations

import struct
from collections import defaultdict

from ringmq_wire import frames
from ringmq_wire.codes import ErrorCode
from ringmq_wire.compression import HeaderEncoder, Headers
from ringmq_wire.connection import Connection
from ringmq_wire.events import (
    CallEnded,
    CallHalfClosed,
    CallHead,
    CallMessages,
    CallOpened,
    WireEvent,
)
from ringmq_wire.options import FRAME_BYTES_MAX, WireOptions
from ringmq_wire.streams import WireStream

PATH = "/test.Echo/Stream"
REQUEST: Headers = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", PATH.encode()),
    (b":authority", b"here"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


# One message, as DATA carries it: not compressed, a byte.
MESSAGE = b"\0\0\0\0\1x"
U32 = struct.Struct(">L").pack


class End:
    """One end, and all events that it has given."""

    def __init__(self, *, client: bool, options: WireOptions, now: float = 0.0) -> None:
        self.core = Connection(client=client, options=options, now=now)
        self.events: list[WireEvent] = []
        # The application consumes what it gets at once.
        self.consumes = True
        self.now = now

    def receive(self, data: bytes) -> list[WireEvent]:
        events = [*self.core.receive(data, self.now)]
        while self.core.has_more:
            events += self.core.receive(b"", self.now)
        self.events += events
        if self.consumes:
            for event in events:
                if isinstance(event, CallMessages):
                    self.core.calls.consumed(event.stream, event.size_bytes)
        return events

    def tick(self, now: float) -> list[WireEvent]:
        self.now = now
        events = self.core.tick(now)
        self.events += events
        return events

    def output(self, bytes_max: int = FRAME_BYTES_MAX) -> bytes:
        data = b"".join(self.core.take(bytes_max))
        self.core.taken(self.now)
        self.events += self.core.close_if_drained()
        return data

    def open(self, timeout_s: float | None = None) -> WireStream:
        return self.core.calls.open(PATH, "here", timeout_s=timeout_s, now=self.now)

    def stream(self, stream_id: int = 1) -> WireStream:
        return self.core.calls.streams[stream_id]

    def messages(self, stream_id: int = 1) -> list[bytes]:
        return [
            message
            for event in self.events
            if isinstance(event, CallMessages) and event.stream.id == stream_id
            for message in event.messages
        ]

    def ended(self, stream_id: int = 1) -> CallEnded:
        return next(
            event
            for event in self.events
            if isinstance(event, CallEnded) and event.stream.id == stream_id
        )


class Pair:
    def __init__(
        self, client: WireOptions | None = None, server: WireOptions | None = None
    ) -> None:
        self.client = End(client=True, options=client or WireOptions())
        self.server = End(client=False, options=server or WireOptions())
        # All that went each way.
        self.to_server = bytearray()
        self.to_client = bytearray()

    def pump(self) -> None:
        """Carries bytes to and fro until there are none."""
        while self.client.core.outflow.ready or self.server.core.outflow.ready:
            data = self.client.output()
            self.to_server += data
            self.server.receive(data)
            data = self.server.output()
            self.to_client += data
            self.client.receive(data)
        self.check()

    def check(self) -> None:
        self.client.core.check()
        self.server.core.check()


def pair_ready(client: WireOptions | None = None, server: WireOptions | None = None) -> Pair:
    pair = Pair(client, server)
    pair.pump()
    return pair


def story(events: list[WireEvent]) -> dict[int, list[object]]:
    """What each stream was told, however its messages were batched."""
    told: dict[int, list[object]] = defaultdict(list)
    for event in events:
        match event:
            case CallMessages(stream, messages):
                told[stream.id] += messages
            case CallOpened(stream, head):
                told[stream.id].append(head)
            case CallHead(stream, metadata):
                told[stream.id].append(("head", metadata))
            case CallHalfClosed(stream):
                told[stream.id].append("half closed")
            case CallEnded(stream, status):
                told[stream.id].append(status)
            case _:
                told[0].append(type(event).__name__)
    return dict(told)


def block(headers: Headers = REQUEST) -> bytes:
    return HeaderEncoder().encode(headers)


def request(stream_id: int, *, flags: int = 0, headers: Headers = REQUEST) -> bytes:
    return frames.header_frames(stream_id, flags, block(headers), 16_384)


def server_ready(options: WireOptions | None = None) -> End:
    """A server that has had the client's preface and SETTINGS, its own output taken."""
    server = End(client=False, options=options or WireOptions())
    server.receive(frames.PREFACE + frames.settings([]) + frames.frame(frames.SETTINGS, 1, 0))
    server.output()
    return server


def client_ready(options: WireOptions | None = None) -> End:
    client = End(client=True, options=options or WireOptions())
    client.receive(frames.settings([]) + frames.frame(frames.SETTINGS, 1, 0))
    client.output()
    return client


def read_frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """(type, flags, stream, payload) of each frame; the preface is passed over."""
    at = len(frames.PREFACE) if data.startswith(frames.PREFACE) else 0
    found = []
    while at < len(data):
        high, low, kind, flags, stream_id = frames.FRAME_HEADER.unpack_from(data, at)
        stop = at + 9 + (high << 8 | low)
        assert stop <= len(data)
        found.append((kind, flags, stream_id, data[at + 9 : stop]))
        at = stop
    return found


def goaway_code(data: bytes) -> ErrorCode | None:
    for kind, _, _, payload in read_frames(data):
        if kind == frames.GOAWAY:
            return ErrorCode(int.from_bytes(payload[4:8], "big"))
    return None


def reset_code(data: bytes, stream_id: int) -> ErrorCode | None:
    for kind, _, on, payload in read_frames(data):
        if kind == frames.RST_STREAM and on == stream_id:
            return ErrorCode(int.from_bytes(payload, "big"))
    return None


def raw(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """A frame with whatever it says, right or wrong."""
    return frames.frame(kind, flags, stream_id, payload)
