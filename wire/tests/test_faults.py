"""What a peer does wrong, and what it costs: the connection, a stream, or nothing."""

from __future__ import annotations

import struct

import pytest
from wirepair import (
    MESSAGE,
    REQUEST,
    U32,
    End,
    block,
    client_ready,
    goaway_code,
    raw,
    read_frames,
    request,
    reset_code,
    server_ready,
)

from ringmq_wire import frames
from ringmq_wire.budgets import CONTROL_WAITING_MAX
from ringmq_wire.codes import OK, Code, ErrorCode
from ringmq_wire.events import ConnectionClosed
from ringmq_wire.options import WireOptions
from ringmq_wire.outflow import Outflow
from ringmq_wire.streams import WireStream

MANY = CONTROL_WAITING_MAX + 1_000
RESPONSE = ((b":status", b"200"), (b"content-type", b"application/grpc"))


def with_header(name: bytes, value: bytes) -> bytes:
    return request(1, headers=(*REQUEST, (name, value)))


CONNECTION_FAULTS = {
    "headers of an even stream": (request(2), ErrorCode.PROTOCOL_ERROR),
    "data of an idle stream": (raw(frames.DATA, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
    "data of no stream": (raw(frames.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
    "padding as long as the frame": (
        request(1) + raw(frames.DATA, frames.PADDED, 1, b"\x05abcd"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "reset of an idle stream": (raw(frames.RST_STREAM, 0, 1, U32(8)), ErrorCode.PROTOCOL_ERROR),
    "reset of three bytes": (
        request(1) + raw(frames.RST_STREAM, 0, 1, b"abc"),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "window of an idle stream": (
        raw(frames.WINDOW_UPDATE, 0, 1, U32(8)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "window by nothing": (raw(frames.WINDOW_UPDATE, 0, 0, U32(0)), ErrorCode.PROTOCOL_ERROR),
    "window too large": (
        raw(frames.WINDOW_UPDATE, 0, 0, U32(2**31 - 1)),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "settings of a stream": (raw(frames.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "settings of five bytes": (raw(frames.SETTINGS, 0, 0, b"12345"), ErrorCode.FRAME_SIZE_ERROR),
    "acknowledgement with settings": (
        raw(frames.SETTINGS, 1, 0, b"123456"),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "initial window too large": (
        frames.settings([(frames.INITIAL_WINDOW_SIZE, 2**31)]),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "small frames": (
        frames.settings([(frames.MAX_FRAME_SIZE, 16_383)]),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "push by 2": (frames.settings([(frames.ENABLE_PUSH, 2)]), ErrorCode.PROTOCOL_ERROR),
    "ping of a stream": (raw(frames.PING, 0, 1, b"12345678"), ErrorCode.PROTOCOL_ERROR),
    "ping of seven bytes": (raw(frames.PING, 0, 0, b"1234567"), ErrorCode.FRAME_SIZE_ERROR),
    "goaway of a stream": (raw(frames.GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "goaway of seven bytes": (raw(frames.GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
    "priority of no stream": (raw(frames.PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
    "a push": (raw(frames.PUSH_PROMISE, 4, 1, bytes(5)), ErrorCode.PROTOCOL_ERROR),
    "continuation of nothing": (raw(frames.CONTINUATION, 4, 1, b""), ErrorCode.PROTOCOL_ERROR),
    "a ping within headers": (
        raw(frames.HEADERS, 0, 1, block()) + raw(frames.PING, 0, 0, bytes(8)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "data within headers": (
        raw(frames.HEADERS, 0, 1, block()) + raw(frames.DATA, 0, 1, b"x"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "another stream's continuation": (
        raw(frames.HEADERS, 0, 1, block()) + raw(frames.CONTINUATION, 4, 3, b""),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "headers too short for a priority": (
        raw(frames.HEADERS, 0x24, 1, b"abcd"),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "no index of the table": (
        raw(frames.HEADERS, 4, 1, b"\xff\xff\x01"),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "a table larger than allowed": (
        raw(frames.HEADERS, 4, 1, b"\x3f\xff\xff\x01" + block()),
        ErrorCode.COMPRESSION_ERROR,
    ),
    "a frame larger than allowed": (
        struct.pack(">HBBBL", 65_537 >> 8, 65_537 & 255, 0, 0, 1),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "headers of a closed stream": (
        request(3, flags=1) + request(1),
        ErrorCode.STREAM_CLOSED,
    ),
    "a header bomb": (
        # An entry of 4000 bytes in the table, then five references to it.
        raw(frames.HEADERS, 4, 1, b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4000 + b"\xbe" * 5),
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
}


@pytest.mark.parametrize("case", CONNECTION_FAULTS)
def test_a_fault_of_the_connection_ends_it_with_its_code(case: str) -> None:
    data, code = CONNECTION_FAULTS[case]
    server = server_ready()
    server.receive(data)
    assert server.core.closed
    assert isinstance(server.events[-1], ConnectionClosed)
    assert goaway_code(server.output()) is code
    assert server.receive(request(5)) == []
    server.core.check()


STREAM_FAULTS = {
    "upper case": (with_header(b"Name", b"x"), ErrorCode.PROTOCOL_ERROR),
    "a line in a value": (with_header(b"name", b"x\r\ny"), ErrorCode.PROTOCOL_ERROR),
    "a header of the connection": (
        with_header(b"connection", b"close"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "te": (with_header(b"te", b"gzip"), ErrorCode.PROTOCOL_ERROR),
    "a pseudo header behind a field": (with_header(b":path", b"/"), ErrorCode.PROTOCOL_ERROR),
    "an unknown pseudo header": (
        request(1, headers=((b":status", b"200"), *REQUEST)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "two methods": (
        request(1, headers=((b":method", b"POST"), *REQUEST)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "no path": (request(1, headers=REQUEST[:2] + REQUEST[3:]), ErrorCode.PROTOCOL_ERROR),
    "content-length of words": (
        with_header(b"content-length", b"ten"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "less data than content-length": (
        with_header(b"content-length", b"9") + raw(frames.DATA, 1, 1, bytes(5)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "more data than content-length": (
        with_header(b"content-length", b"4") + raw(frames.DATA, 0, 1, bytes(5)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "data behind the end": (
        request(1, flags=1) + raw(frames.DATA, 0, 1, b"x"),
        ErrorCode.STREAM_CLOSED,
    ),
    "headers behind the end": (request(1, flags=1) + request(1, flags=1), ErrorCode.STREAM_CLOSED),
    "trailers that don't end": (request(1) + request(1), ErrorCode.PROTOCOL_ERROR),
    "window by nothing": (
        request(1) + raw(frames.WINDOW_UPDATE, 0, 1, U32(0)),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "window too large": (
        request(1) + raw(frames.WINDOW_UPDATE, 0, 1, U32(2**31 - 1)),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "priority of four bytes": (
        request(1) + raw(frames.PRIORITY, 0, 1, bytes(4)),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "priority over itself": (
        raw(frames.HEADERS, 0x24, 1, U32(1) + b"\0" + block()),
        ErrorCode.PROTOCOL_ERROR,
    ),
}


@pytest.mark.parametrize("case", STREAM_FAULTS)
def test_a_fault_of_a_stream_resets_it_and_no_other(case: str) -> None:
    data, code = STREAM_FAULTS[case]
    server = server_ready()
    server.receive(data)
    assert reset_code(server.output(), 1) is code
    server.receive(request(3) + raw(frames.DATA, 1, 3, b"\0\0\0\0\1x"))
    assert not server.core.closed
    assert server.messages(3) == [b"x"]
    server.core.check()


def test_a_stream_above_its_window_is_reset() -> None:
    server = server_ready(WireOptions(stream_window_bytes=65_535, connection_window_bytes=1 << 20))
    server.consumes = False
    data = raw(frames.DATA, 0, 1, bytes(16_384))
    server.receive(request(1) + data * 4)
    assert reset_code(server.output(), 1) is ErrorCode.FLOW_CONTROL_ERROR
    assert not server.core.closed
    server.core.check()


def test_a_connection_above_its_window_ends() -> None:
    options = WireOptions(stream_window_bytes=65_535, connection_window_bytes=65_535)
    server = server_ready(options)
    server.consumes = False
    data = b"".join(request(n) + raw(frames.DATA, 0, n, bytes(16_380)) for n in (1, 3, 5, 7, 9))
    server.receive(data)
    assert goaway_code(server.output()) is ErrorCode.FLOW_CONTROL_ERROR


def test_a_client_that_speaks_something_else_is_told_so() -> None:
    server = End(client=False, options=WireOptions())
    server.receive(b"GET / HTTP/1.1\r\n")
    assert goaway_code(server.output()) is ErrorCode.PROTOCOL_ERROR


def test_the_first_frame_is_settings() -> None:
    server = End(client=False, options=WireOptions())
    server.receive(frames.PREFACE + raw(frames.PING, 0, 0, bytes(8)))
    assert goaway_code(server.output()) is ErrorCode.PROTOCOL_ERROR


def test_a_message_above_the_limit_is_refused_at_its_prefix() -> None:
    server = server_ready(WireOptions(message_bytes_max=100))
    server.receive(request(1) + raw(frames.DATA, 0, 1, b"\0\0\0\0\1x\0\0\0\0\x65"))
    assert server.messages(1) == [b"x"]
    assert server.ended(1).status.code is Code.RESOURCE_EXHAUSTED
    output = server.output()
    assert b"grpc-status\x018" in output
    assert reset_code(output, 1) is ErrorCode.NO_ERROR


def test_a_compressed_message_is_refused_with_the_status_for_it() -> None:
    server = server_ready()
    server.receive(request(1) + raw(frames.DATA, 0, 1, b"\1\0\0\0\1x"))
    assert server.ended(1).status.code is Code.UNIMPLEMENTED
    assert b"grpc-accept-encoding\x08identity" in block(((b"grpc-accept-encoding", b"identity"),))


def test_a_request_that_ends_within_a_message_is_an_error() -> None:
    server = server_ready()
    server.receive(request(1) + raw(frames.DATA, 1, 1, b"\0\0\0\0\2x"))
    assert server.ended(1).status.code is Code.INTERNAL


@pytest.mark.parametrize(
    ("headers", "http_status"),
    [
        (((b":method", b"GET"), *REQUEST[1:]), b"405"),
        (REQUEST[:-1], b"415"),
        ((*REQUEST[:-1], (b"content-type", b"text/html")), b"415"),
    ],
    ids=["not a POST", "no content-type", "another content-type"],
)
def test_what_is_http_but_not_grpc_gets_an_answer(
    headers: tuple[tuple[bytes, bytes], ...], http_status: bytes
) -> None:
    server = server_ready()
    server.receive(request(1, flags=1, headers=headers))
    output = server.output()
    assert http_status in output
    assert not server.core.calls.streams
    assert len(server.events) == 1


# --- floods ---


def flood(piece: bytes, count: int) -> ErrorCode | None:
    server = server_ready()
    server.receive(request(1) + raw(frames.DATA, 0, 1, b"\0\0\0\0\1x"))
    server.core.calls.send(server.stream(), [b"y"])
    output = server.output()
    for _ in range(count):
        server.receive(piece)
        output = server.output()
        if server.core.closed:
            break
    server.core.check()
    return goaway_code(output)


FLOODS = {
    "PING": raw(frames.PING, 0, 0, bytes(8)),
    "SETTINGS": frames.settings([(frames.INITIAL_WINDOW_SIZE, 70_000)]),
    "PRIORITY": raw(frames.PRIORITY, 0, 1, bytes(5)),
    "unknown frames": raw(0x77, 0, 0, b"x"),
    "WINDOW_UPDATE": raw(frames.WINDOW_UPDATE, 0, 0, U32(1)),
    "empty DATA": raw(frames.DATA, 0, 1),
    "DATA of padding": raw(frames.DATA, frames.PADDED, 1, b"\x03abc"),
}


@pytest.mark.parametrize("case", FLOODS)
def test_a_flood_ends_the_connection(case: str) -> None:
    assert flood(FLOODS[case], 5_000) is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("case", FLOODS)
def test_a_handful_is_no_flood(case: str) -> None:
    assert flood(FLOODS[case], 100) is None


def test_a_rapid_reset_ends_the_connection() -> None:
    server = server_ready()
    for number in range(1, 2_200, 2):
        server.receive(request(number) + frames.rst_stream(number, ErrorCode.CANCEL))
    assert goaway_code(server.output()) is ErrorCode.ENHANCE_YOUR_CALM


def test_calls_that_are_given_up_together_are_no_rapid_reset() -> None:
    """Thousands that wait for one slow thing, and run out of their client's patience."""
    server = server_ready(WireOptions(streams_max=5_000))
    numbers = range(1, 6_001, 2)
    for number in numbers:
        server.receive(request(number))
    server.now = 1.0
    for number in numbers:
        server.receive(frames.rst_stream(number, ErrorCode.CANCEL))
    assert goaway_code(server.output()) is None
    assert not server.core.closed
    assert not server.core.calls.streams


def test_resets_that_the_peer_provokes_count_as_well() -> None:
    """CVE-2025-8671: the peer breaks each stream's rules, so that this side resets it."""
    server = server_ready()
    for number in range(1, 2_200, 2):
        server.receive(request(number) + raw(frames.WINDOW_UPDATE, 0, number, U32(0)))
    assert goaway_code(server.output()) is ErrorCode.ENHANCE_YOUR_CALM


def test_calls_that_wait_for_a_slow_network_are_no_flood() -> None:
    """A client begins thousands, or gives them up, while its socket takes nothing."""
    client = client_ready()
    client.receive(frames.settings([(frames.MAX_CONCURRENT_STREAMS, MANY)]))
    client.output()
    streams = [client.open() for _ in range(MANY)]
    client.receive(frames.window_update(0, 1))
    assert not client.core.closed
    for stream in streams:
        client.core.calls.cancel(stream, 0.0)
    client.receive(frames.window_update(0, 1))
    assert not client.core.closed


def test_answers_that_wait_for_a_slow_network_are_no_flood() -> None:
    server = server_ready(WireOptions(streams_max=MANY))
    numbers = range(1, 2 * MANY, 2)
    for number in numbers:
        server.receive(request(number))
    for number in numbers:
        server.core.calls.send(server.stream(number), [b"x"])
    server.receive(frames.window_update(0, 1))
    assert not server.core.closed


def test_a_frame_of_settings_moves_each_window_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has room for ten thousand values: with as many streams, one frame took seconds."""
    server = server_ready()
    for number in (1, 3):
        server.receive(request(number))
    moved: list[int] = []
    widen = Outflow.widen

    def counted(outflow: Outflow, stream: WireStream, increment: int) -> bool:
        moved.append(increment)
        return widen(outflow, stream, increment)

    monkeypatch.setattr(Outflow, "widen", counted)
    values = [(frames.INITIAL_WINDOW_SIZE, 65_535 + number) for number in range(10_000)]
    server.receive(frames.settings(values))
    assert moved == [9_999, 9_999]
    assert server.stream().send_window == 65_535 + 9_999
    server.receive(frames.settings([(frames.INITIAL_WINDOW_SIZE, 0), values[-1]]))
    assert len(moved) == 2


def test_what_was_under_way_to_thousands_of_cancelled_calls_is_dropped() -> None:
    client = client_ready()
    client.receive(frames.settings([(frames.MAX_CONCURRENT_STREAMS, MANY)]))
    streams = [client.open() for _ in range(MANY)]
    for stream in streams:
        client.receive(frames.header_frames(stream.id, 0, block(RESPONSE), 16_384))
        client.core.calls.cancel(stream, 0.0)
    client.output()
    for stream in streams:
        client.receive(raw(frames.DATA, 0, stream.id, MESSAGE))
    assert not client.core.closed
    assert read_frames(client.output()) == []


def test_what_was_under_way_to_thousands_of_answered_calls_is_dropped() -> None:
    server = server_ready(WireOptions(streams_max=MANY))
    numbers = range(1, 2 * MANY, 2)
    for number in numbers:
        server.receive(request(number))
    for number in numbers:
        server.core.calls.finish(server.stream(number), OK)
    while server.output():
        pass
    for number in numbers:
        server.receive(raw(frames.DATA, 0, number, MESSAGE))
    assert read_frames(server.output()) == []


def test_calls_that_end_well_are_no_flood() -> None:
    server = server_ready()
    for number in range(1, 3_000, 2):
        server.receive(request(number) + raw(frames.DATA, 1, number, b"\0\0\0\0\1x"))
        server.core.calls.send(server.stream(number), [b"y"])
        server.core.calls.finish(server.stream(number), OK)
        assert goaway_code(server.output()) is None
    assert not server.core.calls.streams


def test_streams_that_are_cancelled_after_an_answer_are_no_flood() -> None:
    server = server_ready()
    for number in range(1, 3_000, 2):
        server.receive(request(number))
        server.core.calls.send(server.stream(number), [b"y"])
        server.output()
        server.receive(frames.rst_stream(number, ErrorCode.CANCEL))
    assert not server.core.closed


def test_pings_beside_data_are_no_flood() -> None:
    """Stock peers measure the bandwidth with a PING for nearly each frame."""
    server = server_ready()
    server.receive(request(1))
    for _ in range(5_000):
        server.receive(raw(frames.DATA, 0, 1, b"\0\0\0\0\1x") + raw(frames.PING, 0, 0, bytes(8)))
        server.output()
    assert not server.core.closed


def test_window_updates_for_what_was_sent_are_no_flood() -> None:
    server = server_ready()
    server.receive(request(1))
    for _ in range(5_000):
        server.core.calls.send(server.stream(), [b"y"])
        server.output()
        server.receive(
            raw(frames.WINDOW_UPDATE, 0, 0, U32(6)) + raw(frames.WINDOW_UPDATE, 0, 1, U32(6))
        )
    assert not server.core.closed


def test_a_peer_that_asks_and_does_not_read_ends_the_connection() -> None:
    """Its answers wait in memory, while time empties the budget for asking."""
    server = server_ready()
    for turn in range(1, 1_000):
        server.now = float(turn)
        server.receive(raw(frames.PING, 0, 0, bytes(8)) * 50)
        if server.core.closed:
            break
    assert goaway_code(server.output()) is ErrorCode.ENHANCE_YOUR_CALM
    assert turn < 150


@pytest.mark.parametrize("piece", [b"", bytes(1000)], ids=["empty", "of bytes"])
def test_continuations_without_end_end_the_connection(piece: bytes) -> None:
    server = server_ready()
    server.receive(raw(frames.HEADERS, 0, 1, b"\x20"))
    for _ in range(40):
        server.receive(raw(frames.CONTINUATION, 0, 1, piece))
    assert goaway_code(server.output()) is ErrorCode.ENHANCE_YOUR_CALM


def test_streams_above_the_limit_are_refused_and_nothing_else() -> None:
    server = server_ready(WireOptions(streams_max=2))
    server.receive(request(1) + request(3) + request(5))
    assert reset_code(server.output(), 5) is ErrorCode.REFUSED_STREAM
    server.receive(raw(frames.DATA, 0, 5, b"\0\0\0\0\1x") + raw(frames.DATA, 0, 3, b"\0\0\0\0\1x"))
    assert server.messages(3) == [b"x"]
    assert not server.core.closed
