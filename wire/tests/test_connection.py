"""A connection's rules that a peer may rely on: windows, turns, deadlines, farewells."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from wirepair import (
    PATH,
    Pair,
    client_ready,
    goaway_code,
    pair_ready,
    read_frames,
    request,
    reset_code,
    server_ready,
)

from ringmq_wire import frames
from ringmq_wire.codes import OK, Code, ErrorCode, RpcStatus
from ringmq_wire.compression import HeaderDecoder, HeaderEncoder
from ringmq_wire.connection import EVENTS_AT_ONCE, Connection
from ringmq_wire.errors import CallClosedError, SendQueueFullError
from ringmq_wire.events import (
    CallEnded,
    CallHalfClosed,
    CallHead,
    CallMessages,
    CallOpened,
    ConnectionClosed,
    ConnectionDraining,
    ConnectionReady,
)
from ringmq_wire.heads import read_trailers, request_headers, trailers
from ringmq_wire.metadata import timeout_of_header, timeout_to_header
from ringmq_wire.options import FRAME_BYTES_MAX, WireOptions
from ringmq_wire.outflow import LIGHT_BYTES_MAX, Outflow
from ringmq_wire.streams import WireStream

KIB = 1024
MIB = 1024 * KIB


# --- inputs of many calls ---


def test_an_input_of_many_calls_is_taken_in_pieces() -> None:
    """And what comes after a piece is taken behind it, also the second half of a frame."""
    pair = pair_ready()
    streams = [pair.client.open() for _ in range(2 * EVENTS_AT_ONCE + 50)]
    pair.client.core.calls.send(streams[-1], [bytes(1000)])
    data = pair.client.output(1 << 20)
    core = pair.server.core
    pieces = [[*core.receive(data[:-500], 0.0)]]
    while core.has_more:
        pieces.append([*core.receive(b"", 0.0)])
    assert [len(piece) for piece in pieces] == [EVENTS_AT_ONCE, EVENTS_AT_ONCE, 50]
    opened = [event.stream.id for piece in pieces for event in piece if type(event) is CallOpened]
    assert opened == [stream.id for stream in streams]
    (batch,) = core.receive(data[-500:], 0.0)
    assert isinstance(batch, CallMessages)
    assert batch.messages == [bytes(1000)]


@pytest.mark.parametrize("ends", [False, True])
def test_first_messages_of_many_calls_are_taken_in_pieces(ends: bool) -> None:
    """The calls have begun before: an input of DATA frames only wakes a task for each of them."""
    pair = pair_ready()
    streams = [pair.client.open() for _ in range(2 * EVENTS_AT_ONCE)]
    core = pair.server.core
    core.receive(pair.client.output(1 << 20), 0.0)
    while core.has_more:
        core.receive(b"", 0.0)
    for stream in streams:
        pair.client.core.calls.send(stream, [b"a message"])
        if ends:
            pair.client.core.calls.half_close(stream)
    pieces = [[*core.receive(pair.client.output(1 << 20), 0.0)]]
    while core.has_more:
        pieces.append([*core.receive(b"", 0.0)])
    taken = [each.stream.id for piece in pieces for each in piece if type(each) is CallMessages]
    assert taken == [stream.id for stream in streams]
    assert max(map(len, pieces)) <= EVENTS_AT_ONCE + 1


def test_a_connection_that_is_lost_between_two_pieces_has_nothing_left() -> None:
    pair = pair_ready()
    for _ in range(EVENTS_AT_ONCE + 1):
        pair.client.open()
    pair.server.core.receive(pair.client.output(1 << 20), 0.0)
    assert pair.server.core.has_more
    pair.server.core.abort("enough", 0.0)
    assert not pair.server.core.has_more
    assert pair.server.core.receive(b"", 0.0) == []


# --- windows ---


def test_an_update_of_the_connections_window_looks_at_few_of_the_streams_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each was looked at, 5 ms for ten thousand; a peer may send thirteen bytes for each look."""
    server = server_ready()
    for number in range(1, 2_000, 2):
        server.receive(request(number))
        server.core.calls.send(server.stream(number), [bytes(1_000)])
    while server.output():
        pass
    assert server.core.outflow.window == 0
    looks = 0
    schedule = Outflow.schedule

    def counted(outflow: Outflow, stream: WireStream) -> None:
        nonlocal looks
        looks += 1
        schedule(outflow, stream)

    monkeypatch.setattr(Outflow, "schedule", counted)
    for _ in range(100):
        server.receive(frames.window_update(0, 10))
        sent = [frame[3] for frame in read_frames(server.output()) if frame[0] == frames.DATA]
        assert sum(map(len, sent)) == 10
    assert looks <= 300


@pytest.mark.parametrize("seed", range(20))
def test_streams_that_wait_for_the_connections_window_all_have_their_turns(seed: int) -> None:
    """Whatever each has to send, whichever of them end, and however little the window opens."""
    chance = random.Random(seed)
    server = server_ready(WireOptions(streams_max=200))
    sent, came = Counter[int](), Counter[int]()
    for number in range(1, 201, 2):
        server.receive(request(number) + frames.window_update(number, 2**20))

    def send(number: int) -> None:
        size = chance.choice([1, 100, LIGHT_BYTES_MAX - 5, LIGHT_BYTES_MAX, 50_000])
        server.core.calls.send(server.stream(number), [bytes(size)])
        sent[number] += size + 5

    for number in list(server.core.calls.streams):
        send(number)
    while any(stream.queued_bytes for stream in server.core.calls.streams.values()):
        match chance.randrange(20):
            case 0:
                number = chance.choice(list(server.core.calls.streams))
                server.receive(frames.rst_stream(number, ErrorCode.CANCEL))
                del sent[number]
            case 1 if sent.total() < 10_000_000:
                send(chance.choice(list(server.core.calls.streams)))
            case _:
                server.receive(frames.window_update(0, chance.choice([1, 1_000, 30_000, 200_000])))
        outflow = server.core.outflow
        for kind, _, number, payload in read_frames(server.output(chance.choice([1, 2**20]))):
            came[number] += len(payload) if kind == frames.DATA else 0
        waiting = [stream for stream in server.core.calls.streams.values() if stream.parked]
        assert outflow.ready or outflow.window <= 0 or not waiting
    while server.core.outflow.ready:
        for kind, _, number, payload in read_frames(server.output()):
            came[number] += len(payload) if kind == frames.DATA else 0
    assert {number: came[number] for number in sent} == sent


def test_little_passes_much_when_the_connections_window_opens() -> None:
    server = server_ready()
    for number in range(1, 41, 2):
        server.receive(request(number))
        server.core.calls.send(server.stream(number), [bytes(60_000)])
    while server.output():
        pass
    server.receive(request(41))
    server.core.calls.send(server.stream(41), [b"little"])
    server.output()
    server.receive(frames.window_update(0, 1_000))
    served = [frame[2] for frame in read_frames(server.output()) if frame[0] == frames.DATA]
    assert served[0] == 41
    assert len(served) == 2


def test_calls_that_end_while_the_connections_window_is_shut_leave_nothing() -> None:
    """On the client's side, and the answers of them on the server's."""
    small = WireOptions(
        stream_window_bytes=65_535, connection_window_bytes=65_535, unread_bytes_max=1
    )
    pair = pair_ready(client=small, server=small)
    pair.client.consumes = pair.server.consumes = False
    first = pair.client.open()
    pair.pump()
    pair.client.core.calls.send(first, [bytes(40_000)] * 2)
    pair.server.core.calls.send(pair.server.stream(), [bytes(40_000)] * 2)
    pair.pump()
    for number in range(1, 100):
        stream = pair.client.open()
        pair.client.core.calls.send(stream, [b"a request"])
        pair.pump()
        pair.server.core.calls.send(pair.server.stream(stream.id), [b"an answer"])
        pair.pump()
        pair.client.core.calls.cancel(stream, 0.0)
        pair.pump()
        for end in (pair.client, pair.server):
            assert end.core.outflow.window <= 0
            outflow = end.core.outflow
            waiting = {*outflow._parked_light, *outflow._parked_heavy}
            assert waiting <= {first.id}, number


def test_a_window_is_given_back_when_messages_are_consumed_not_when_they_come() -> None:
    pair = pair_ready(server=WireOptions(stream_window_bytes=65_535))
    pair.server.consumes = False
    stream = pair.client.open()
    pair.client.core.calls.send(stream, [bytes(10_000)] * 20)
    pair.pump()
    assert len(pair.server.messages()) == 6
    held = pair.server.stream().held_bytes
    assert held == 6 * 10_005
    pair.server.core.calls.consumed(pair.server.stream(), held)
    pair.pump()
    assert len(pair.server.messages()) == 12


@pytest.mark.parametrize("unread_mib", [0, 8])
def test_a_thousand_streams_that_nobody_reads_hold_one_window_of_the_connection(
    unread_mib: int,
) -> None:
    """And half of the budget of unread bytes."""
    options = WireOptions(
        stream_window_bytes=1 * MIB,
        connection_window_bytes=4 * MIB,
        unread_bytes_max=unread_mib * MIB,
    )
    pair = pair_ready(server=options)
    pair.server.consumes = False
    for _ in range(1_000):
        stream = pair.client.open()
        pair.client.core.calls.send(stream, [bytes(60 * KIB)])
    pair.pump()
    kept = sum(
        s.held_bytes + s.reassembly.held_bytes for s in pair.server.core.calls.streams.values()
    )
    # And the beginnings of messages, which hold no credit of the connection: one at most here.
    above = 4 * MIB if unread_mib == 0 else (unread_mib + 4) * MIB // 2
    assert above - 1 * MIB < kept <= above + 2 * MIB + 64 * KIB
    # One that is consumed makes room for others, and all of them get through.
    for consumed in pair.server.core.calls.streams.values():
        pair.server.core.calls.consumed(consumed, consumed.held_bytes)
        pair.pump()
    assert all(pair.server.messages(1 + 2 * index) for index in range(1_000))
    pair.check()


def test_a_frame_that_is_still_coming_is_given_no_credit_twice() -> None:
    pair = pair_ready(server=WireOptions(stream_window_bytes=65_535))
    stream = pair.client.open()
    pair.client.core.calls.send(stream, [bytes(60_000)] * 2)
    data = pair.client.output(1 << 20)
    assert sum(size for _, size in data_streams(data)) == 65_535
    pair.server.consumes = False
    pair.server.receive(data[:-100])
    assert pair.server.output() == b""
    pair.server.receive(data[-100:])
    assert pair.server.output() == b""


def test_less_than_half_a_window_is_given_back_if_a_message_waits_for_it() -> None:
    pair = pair_ready(server=WireOptions(stream_window_bytes=65_535))
    stream = pair.client.open()
    # The first is consumed, and its credit is too small to be worth a frame, until the second
    # lacks it.
    for size in (20_000, 60_000):
        pair.client.core.calls.send(stream, [bytes(size)])
        pair.pump()
    assert [len(m) for m in pair.server.messages()] == [20_000, 60_000]


def test_a_message_larger_than_every_window_comes_whole() -> None:
    options = WireOptions(stream_window_bytes=65_535, connection_window_bytes=65_535)
    pair = pair_ready(server=options)
    stream = pair.client.open()
    pair.client.core.calls.send(stream, [bytes(5 * MIB)])
    pair.pump()
    assert [len(m) for m in pair.server.messages()] == [5 * MIB]


def test_large_messages_wait_for_their_turn_with_a_window_in_memory() -> None:
    options = WireOptions(stream_window_bytes=65_535, assembly_bytes_max=2 * MIB)
    pair = pair_ready(server=options)
    streams = [pair.client.open() for _ in range(5)]
    for stream in streams:
        pair.client.core.calls.send(stream, [bytes(1 * MIB - 5)])
    most = 0
    while pair.client.core.outflow.ready or pair.server.core.outflow.ready:
        pair.server.receive(pair.client.output())
        pair.client.receive(pair.server.output())
        kept = sum(s.reassembly.held_bytes for s in pair.server.core.calls.streams.values())
        most = max(most, kept)
    assert most <= 2 * MIB + 5 * 65_535
    assert all(len(pair.server.messages(s.id)) == 1 for s in streams)


def test_credit_of_a_stream_that_ended_goes_back_to_the_connection() -> None:
    options = WireOptions(stream_window_bytes=65_535, connection_window_bytes=131_072)
    pair = pair_ready(server=options)
    pair.server.consumes = False
    for _ in range(20):
        stream = pair.client.open()
        pair.client.core.calls.send(stream, [bytes(50_000)])
        pair.pump()
        assert len(pair.server.messages(stream.id)) == 1
        pair.client.core.calls.cancel(stream, 0.0)
        pair.pump()


@pytest.mark.parametrize("ends", ["cancelled", "overdue", "finished"])
def test_what_an_ended_call_held_is_credit_at_once(ends: str) -> None:
    """It was all that the peer had: no input would come that has the credit looked at."""
    window = 2 * 65_535
    options = WireOptions(
        stream_window_bytes=window, connection_window_bytes=window, unread_bytes_max=1
    )
    pair = pair_ready(client=options, server=options)
    stream = pair.client.open(timeout_s=5)
    holder = pair.server if ends == "finished" else pair.client
    sender = pair.client if ends == "finished" else pair.server
    pair.pump()
    holder.consumes = False
    # One large message would be given credit of the connection while it isn't whole.
    sender.core.calls.send(sender.stream(), [bytes(995)] * (window // 1000))
    pair.pump()
    assert sender.core.outflow.window < 1000
    if ends == "cancelled":
        holder.core.calls.cancel(stream, 0.0)
    elif ends == "overdue":
        holder.tick(5.0)
    else:
        holder.core.calls.finish(holder.stream(), OK)
    # Nothing comes in between.
    sender.receive(holder.output())
    assert sender.core.outflow.window == window


def test_padding_is_given_back_at_once() -> None:
    server = server_ready(WireOptions(stream_window_bytes=65_535, connection_window_bytes=65_535))
    server.receive(request(1))
    padded = frames.frame(frames.DATA, frames.PADDED, 1, b"\xff" + b"\0\0\0\0\0" + bytes(255))
    for _ in range(1_000):
        server.receive(padded)
        server.output()
    assert not server.core.closed
    assert len(server.messages()) == 1_000


# --- turns ---


def data_streams(data: bytes) -> list[tuple[int, int]]:
    return [(s, len(payload)) for kind, _, s, payload in read_frames(data) if kind == frames.DATA]


def wide_open() -> WireOptions:
    return WireOptions(stream_window_bytes=64 * MIB, connection_window_bytes=256 * MIB)


def test_a_small_message_waits_behind_no_more_than_one_frame_of_a_body() -> None:
    pair = pair_ready(server=wide_open())
    calls = pair.client.core.calls
    large = [pair.client.open() for _ in range(3)]
    small = pair.client.open()
    pair.client.output()
    for stream in large:
        calls.send(stream, [bytes(4 * MIB)])
    pair.client.output(FRAME_BYTES_MAX)
    calls.send(small, [b"beat"])
    order = data_streams(pair.client.output(FRAME_BYTES_MAX))
    assert order[0] == (small.id, 9)
    assert all(size <= FRAME_BYTES_MAX for _, size in order)


def test_bodies_have_their_turn_under_a_storm_of_small_messages() -> None:
    pair = pair_ready(server=wide_open())
    calls = pair.client.core.calls
    large, *small = [pair.client.open() for _ in range(20)]
    pair.client.output()
    calls.send(large, [bytes(1 * MIB)])
    went = 0
    for _ in range(40):
        for stream in small:
            calls.send(stream, [bytes(8 * KIB)])
        went += sum(n for s, n in data_streams(pair.client.output(128 * KIB)) if s == large.id)
    assert went == 1 * MIB + 5


def test_large_streams_go_in_turns() -> None:
    pair = pair_ready(server=wide_open())
    streams = [pair.client.open() for _ in range(3)]
    pair.client.output()
    for stream in streams:
        pair.client.core.calls.send(stream, [bytes(1 * MIB)])
    order = [s for s, _ in data_streams(pair.client.output(6 * FRAME_BYTES_MAX))]
    assert order == [s.id for s in streams] * 2


def test_an_acknowledgement_stands_before_all_that_relies_on_the_settings() -> None:
    """Stock clients close the connection when DATA above the old window comes first."""
    server = server_ready()
    server.receive(request(1, flags=frames.END_STREAM))
    server.core.calls.send(server.stream(), [bytes(100_000)])
    first = data_streams(server.output(1 << 20))
    assert sum(size for _, size in first) == 65_535
    server.receive(
        frames.settings([(frames.INITIAL_WINDOW_SIZE, 200_000), (frames.MAX_FRAME_SIZE, 40_000)])
        + frames.window_update(0, 100_000)
    )
    kinds = [(kind, flags) for kind, flags, _, _ in read_frames(server.output(1 << 20))]
    assert kinds[0] == (frames.SETTINGS, frames.ACK)
    assert kinds[1:] == [(frames.DATA, 0)]


def test_a_call_that_was_begun_before_a_ping_leaves_before_its_answer() -> None:
    """A server that goes away counts the calls until then. The answer had overtaken them, and calls
    that were under way ended as not processed."""
    pair = pair_ready()
    begun = pair.client.open()
    pair.client.core.calls.send(begun, [b"a request"])
    pair.server.core.shutdown(0.0)
    pair.client.receive(pair.server.output())
    kinds = [kind for kind, _, _, _ in read_frames(pair.client.output())]
    assert kinds == [frames.HEADERS, frames.PING, frames.DATA]

    given_up = pair_ready()
    begun = given_up.client.open()
    given_up.client.core.calls.send(begun, [b"a request"])
    given_up.server.core.shutdown(0.0)
    given_up.client.receive(given_up.server.output())
    given_up.client.core.calls.cancel(begun, 0.0)
    kinds = [kind for kind, _, _, _ in read_frames(given_up.client.output())]
    assert kinds == [frames.HEADERS, frames.PING, frames.RST_STREAM]


def test_a_server_that_goes_away_serves_the_calls_that_were_begun_before() -> None:
    pair = pair_ready()
    begun = pair.client.open()
    pair.client.core.calls.send(begun, [b"a request"])
    pair.client.core.calls.half_close(begun)
    pair.server.core.shutdown(0.0)
    pair.client.receive(pair.server.output())
    pair.pump()
    assert pair.server.messages(begun.id) == [b"a request"]
    assert not [event for event in pair.client.events if isinstance(event, CallEnded)]


def test_a_window_that_settings_shrink_below_nothing_is_waited_for() -> None:
    server = server_ready()
    server.receive(request(1, flags=frames.END_STREAM))
    server.core.calls.send(server.stream(), [bytes(60_000)])
    server.output(1 << 20)
    server.receive(frames.settings([(frames.INITIAL_WINDOW_SIZE, 1_000)]))
    server.core.calls.send(server.stream(), [bytes(100)])
    assert data_streams(server.output(1 << 20)) == []
    assert server.stream().send_window < 0
    server.receive(frames.window_update(1, 60_000))
    assert data_streams(server.output(1 << 20)) == [(1, 105)]


# --- queues ---


def test_a_sender_is_told_to_pause_and_to_go_on() -> None:
    pair = pair_ready(client=WireOptions(send_bytes_high=100_000, send_bytes_max=200_000))
    calls = pair.client.core.calls
    stream = pair.client.open()
    assert calls.send(stream, [bytes(50_000)])
    assert not calls.send(stream, [bytes(60_000)])
    calls.send(stream, [bytes(100_000)])
    with pytest.raises(SendQueueFullError, match="200000 may wait"):
        calls.send(stream, [b"x"])
    resumed = []
    while stream.queued_bytes:
        pair.server.receive(b"".join(pair.client.core.take(1)))
        resumed += pair.client.core.taken(0.0)
        pair.client.receive(pair.server.output())
        assert bool(resumed) == (stream.queued_bytes < 50_000)
    assert resumed == [stream]


def test_a_sender_may_wait_until_all_is_taken() -> None:
    server = server_ready()
    server.receive(frames.settings([(frames.INITIAL_WINDOW_SIZE, 10)]) + request(1))
    stream = server.stream()
    assert not stream.pause_until_taken()
    assert server.core.calls.send(stream, [bytes(95)])
    server.output()
    assert stream.pause_until_taken()
    server.receive(frames.window_update(1, 80))
    server.output()
    assert (stream.queued_bytes, stream.paused) == (10, True)
    server.receive(frames.window_update(1, 10))
    server.output()
    assert (stream.queued_bytes, stream.paused) == (0, False)


def test_a_cancelled_stream_sends_nothing_more() -> None:
    pair = pair_ready()
    stream = pair.client.open()
    pair.client.core.calls.send(stream, [bytes(1 * MIB)])
    kinds = [kind for kind, *_ in read_frames(pair.client.output(1))]
    assert kinds == [frames.HEADERS, frames.DATA]
    pair.client.core.calls.cancel(stream, 0.0)
    kinds = [kind for kind, *_ in read_frames(pair.client.output(1 << 22))]
    assert kinds == [frames.RST_STREAM]
    with pytest.raises(CallClosedError):
        pair.client.core.calls.send(stream, [b"x"])


def test_a_call_that_is_given_up_before_it_could_leave_was_never_there() -> None:
    """A client whose server hangs gives up one call after the other: each left two kilobytes. Its
    first block, too, which says that it uses no table."""
    pair = pair_ready()
    outflow = pair.client.core.outflow
    for _ in range(100):
        stream = pair.client.open()
        pair.client.core.calls.send(stream, [b"a request"])
        pair.client.core.calls.half_close(stream)
        pair.client.core.calls.cancel(stream, 0.0)
        assert not outflow.ready
    last = pair.client.open()
    pair.client.core.calls.send(last, [b"x"])
    pair.pump()
    assert pair.server.messages(last.id) == [b"x"]
    assert list(pair.server.core.calls.streams) == [last.id]


def test_an_answer_to_a_call_that_was_reset_waits_no_more() -> None:
    """A peer that reads nothing could have as many of them wait as it liked."""
    server = server_ready()
    for number in range(1, 2_000, 2):
        server.receive(request(number))
        server.core.calls.send(server.stream(number), [b"an answer"])
        server.core.calls.finish(server.stream(number), OK)
        server.receive(frames.rst_stream(number, ErrorCode.CANCEL))
        assert not server.core.outflow.ready


# --- calls ---


def test_a_call_from_its_head_to_its_trailers() -> None:
    pair = pair_ready()
    metadata = (("key", "value"), ("raw-bin", b"\x00\xff"), ("raw-bin", b""))
    stream = pair.client.core.calls.open(PATH, "here", metadata=metadata, timeout_s=5, now=0.0)
    pair.client.core.calls.send(stream, [b"one", b""])
    pair.client.core.calls.half_close(stream)
    pair.pump()
    _, opened, messages, half_closed = pair.server.events
    assert isinstance(opened, CallOpened)
    assert (opened.head.path, opened.head.authority) == (PATH, "here")
    assert opened.head.timeout_s == pytest.approx(5)
    assert opened.head.metadata[1:] == metadata
    assert isinstance(messages, CallMessages)
    assert messages.messages == [b"one", b""]
    assert isinstance(half_closed, CallHalfClosed)
    answer = pair.server.stream()
    pair.server.core.calls.respond(answer, (("first", "1"),))
    pair.server.core.calls.send(answer, [b"two"])
    status = RpcStatus(Code.ABORTED, "100 % größer\n", b"details", (("last-bin", b"\x01"),))
    pair.server.core.calls.finish(answer, status)
    pair.pump()
    assert isinstance(pair.client.events[1], CallHead)
    assert pair.client.events[1].metadata == (("first", "1"),)
    assert pair.client.messages() == [b"two"]
    assert pair.client.ended().status == status
    assert not pair.client.core.calls.streams
    assert not pair.server.core.calls.streams


def test_an_answer_before_the_request_has_ended_stops_the_request() -> None:
    pair = pair_ready()
    stream = pair.client.open()
    pair.pump()
    pair.server.core.calls.finish(pair.server.stream(), OK)
    pair.client.core.calls.send(stream, [bytes(10 * MIB)])
    pair.pump()
    assert pair.client.ended().status.code is Code.OK
    assert not pair.client.core.calls.streams
    assert not pair.server.core.calls.streams
    assert pair.server.core._inflow.held_bytes == 0


def test_a_deadline_ends_the_call_on_both_sides() -> None:
    pair = pair_ready()
    pair.client.open(timeout_s=2.0)
    pair.pump()
    assert pair.server.core.next_deadline() == pytest.approx(2.0)
    pair.server.tick(2.1)
    assert pair.server.ended().status.code is Code.DEADLINE_EXCEEDED
    pair.client.tick(2.1)
    assert pair.client.ended().status.code is Code.DEADLINE_EXCEEDED
    pair.pump()
    assert not pair.client.core.calls.streams
    assert not pair.server.core.calls.streams


def test_deadlines_of_calls_that_ended_are_forgotten() -> None:
    pair = pair_ready()
    for _ in range(1_000):
        stream = pair.client.open(timeout_s=1_000)
        pair.client.core.calls.cancel(stream, 0.0)
    assert len(pair.client.core._clocks._deadlines) < 100


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (((b":status", b"404"),), Code.UNIMPLEMENTED),
        (((b":status", b"503"), (b"content-type", b"text/html")), Code.UNAVAILABLE),
        (((b":status", b"200"), (b"content-type", b"text/html")), Code.UNKNOWN),
    ],
)
def test_an_answer_that_is_not_grpc_ends_the_call(
    headers: tuple[tuple[bytes, bytes], ...], code: Code
) -> None:
    client = client_ready()
    client.open()
    client.output()
    client.receive(request(1, headers=headers))
    assert client.ended().status.code is code
    assert reset_code(client.output(), 1) is ErrorCode.CANCEL


def test_an_informational_head_is_passed_over() -> None:
    client = client_ready()
    client.open()
    client.receive(request(1, headers=((b":status", b"103"),)))
    assert client.events[1:] == []
    assert client.core.calls.streams


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.REFUSED_STREAM, Code.UNAVAILABLE),
        (ErrorCode.CANCEL, Code.CANCELLED),
        (ErrorCode.ENHANCE_YOUR_CALM, Code.RESOURCE_EXHAUSTED),
        (ErrorCode.INTERNAL_ERROR, Code.INTERNAL),
    ],
)
def test_a_reset_becomes_a_status(code: ErrorCode, status: Code) -> None:
    client = client_ready()
    client.open()
    client.receive(frames.rst_stream(1, code))
    assert client.ended().status.code is status
    assert client.ended().status.unprocessed == (code is ErrorCode.REFUSED_STREAM)


def test_no_call_is_opened_above_the_limit_of_the_peer() -> None:
    pair = pair_ready(server=WireOptions(streams_max=2))
    pair.client.open()
    pair.client.open()
    assert not pair.client.core.calls.can_open
    with pytest.raises(CallClosedError):
        pair.client.open()


def test_a_client_whose_streams_run_out_drains() -> None:
    pair = pair_ready()
    pair.client.core.calls._next_id = 2**31 - 1
    stream = pair.client.open()
    assert not pair.client.core.calls.can_open
    assert stream.id == 2**31 - 1
    pair.pump()
    pair.server.core.calls.finish(pair.server.stream(stream.id), OK)
    pair.pump()
    assert isinstance(pair.client.events[-1], ConnectionClosed)


# --- time ---


def test_a_peer_that_says_nothing_is_given_up() -> None:
    pair = Pair()
    pair.server.tick(9.9)
    assert not pair.server.core.closed
    pair.server.tick(10.0)
    assert pair.server.core.closed


def test_settings_that_are_not_acknowledged_end_the_connection() -> None:
    server = Pair().server
    server.receive(frames.PREFACE + frames.settings([]))
    server.output()
    server.tick(10.0)
    assert goaway_code(server.output()) is ErrorCode.SETTINGS_TIMEOUT


def test_keepalive_asks_only_while_calls_are_open_and_ends_without_an_answer() -> None:
    pair = pair_ready(client=WireOptions(keepalive_s=5, keepalive_timeout_s=1))
    pair.client.tick(5.0)
    assert pair.client.output() == b""
    pair.client.open()
    pair.pump()
    pair.client.tick(10.0)
    assert pair.client.core.outflow.ready
    pair.server.now = pair.client.now
    pair.pump()
    pair.client.tick(11.5)
    assert not pair.client.core.closed
    pair.client.tick(15.0)
    pair.client.output()
    pair.client.tick(16.1)
    assert pair.client.core.closed
    assert pair.client.ended().status.code is Code.UNAVAILABLE


def test_keepalive_without_calls_ends_a_connection_that_is_cut() -> None:
    options = WireOptions(keepalive_s=5, keepalive_timeout_s=1, keepalive_without_calls=True)
    pair = pair_ready(client=options)
    pair.client.tick(5.0)
    pair.server.now = pair.client.now
    pair.pump()
    pair.client.tick(6.5)
    assert not pair.client.core.closed
    pair.client.tick(10.0)
    pair.client.output()
    pair.client.tick(11.1)
    assert pair.client.core.closed


def test_an_idle_connection_is_closed_and_a_busy_one_not() -> None:
    pair = pair_ready(server=WireOptions(idle_timeout_s=30))
    stream = pair.client.open()
    pair.pump()
    pair.server.tick(100.0)
    assert not pair.server.core.closed
    pair.client.core.calls.cancel(stream, 100.0)
    pair.pump()
    pair.server.tick(129.0)
    assert not pair.client.core.calls.draining
    pair.server.tick(130.0)
    pair.pump()
    assert pair.client.core.closed
    assert pair.server.core.closed


# --- farewells ---


def test_calls_that_cross_the_first_goaway_are_served() -> None:
    pair = pair_ready()
    pair.client.open()
    pair.pump()
    pair.server.core.shutdown(0.0)
    # 1. the server says that it goes; 2. the client, which hasn't read that, opens a call;
    # 3. the client answers the server's PING; 4. the server names the last call that it takes.
    farewell = pair.server.output()
    crossing = pair.client.open()
    pair.server.receive(pair.client.output())
    pair.client.receive(farewell)
    assert isinstance(pair.client.events[-1], ConnectionDraining)
    pair.pump()
    assert not pair.client.core.closed
    for stream_id in (1, crossing.id):
        pair.server.core.calls.finish(pair.server.stream(stream_id), OK)
    pair.pump()
    assert pair.client.ended(crossing.id).status.code is Code.OK
    assert pair.client.core.closed
    assert pair.server.core.closed


def test_a_peer_that_answers_no_ping_gets_the_second_goaway_by_the_clock() -> None:
    server = server_ready()
    server.receive(request(1))
    server.core.shutdown(0.0)
    server.output()
    server.tick(1.0)
    (kind, _, _, payload) = read_frames(server.output())[-1]
    assert kind == frames.GOAWAY
    assert payload[:4] == b"\0\0\0\1"
    server.receive(request(3))
    assert 3 not in server.core.calls.streams
    assert not server.core.closed


def test_calls_that_a_goaway_does_not_name_were_not_processed() -> None:
    client = client_ready()
    client.open()
    client.open()
    client.receive(frames.goaway(1, ErrorCode.NO_ERROR, "enough"))
    assert client.ended(3).status.unprocessed
    assert not any(isinstance(e, CallEnded) and e.stream.id == 1 for e in client.events)


def test_the_last_goaway_names_no_call_that_the_one_before_left_out() -> None:
    """The client has sent that call elsewhere by then (RFC 9113, section 6.8)."""
    server = server_ready()
    server.receive(request(1))
    server.core.shutdown(0.0)
    server.tick(10.0)
    server.receive(request(3))
    server.events += server.core.abort("at once", 10.0)
    named = [
        int.from_bytes(payload[:4], "big")
        for kind, _, _, payload in read_frames(server.output())
        if kind == frames.GOAWAY
    ]
    assert named == [frames.STREAM_ID_MAX, 1, 1]


def test_a_lost_transport_ends_all_calls_as_unavailable() -> None:
    pair = pair_ready()
    pair.client.open()
    pair.client.events += pair.client.core.eof("the wire was cut", 0.0)
    status = pair.client.ended().status
    assert (status.code, status.unprocessed) == (Code.UNAVAILABLE, False)
    assert isinstance(pair.client.events[-1], ConnectionClosed)


def test_ready_is_told_once() -> None:
    pair = pair_ready()
    assert [type(e) for e in pair.client.events] == [ConnectionReady]
    pair.client.receive(frames.settings([]))
    assert len(pair.client.events) == 1


# --- headers ---


def test_blocks_are_read_alike_whether_kept_or_not() -> None:
    encoder, decoder = HeaderEncoder(), HeaderDecoder(16_384)
    headers = ((b"a", b"1"), (b"b", b"x" * 300))
    blocks = [encoder.encode(headers, ((b"c", b"%d" % n),)) for n in (1, 2, 1)]
    read = [decoder.decode(block) for block in blocks]
    assert read == [(*headers, (b"c", b"%d" % n)) for n in (1, 2, 1)]


def test_blocks_of_calls_with_a_timeout_are_not_kept() -> None:
    """They differ by the time that is left. A node had 650 KiB of them for each connection."""
    encoder, decoder = HeaderEncoder(), HeaderDecoder(16_384)
    for left_s in (5.0, 4.9, 4.8):
        decoder.decode(encoder.encode(*request_headers("/a/B", "here", "http", (), left_s)))
    assert not decoder._kept
    block = encoder.encode(*request_headers("/a/B", "here", "http", (), None))
    assert decoder.decode(block) is decoder.decode(block)


def test_a_block_that_found_no_room_in_the_table_is_read_again_when_there_is() -> None:
    decoder = HeaderDecoder(16_384)
    no_room, room = b"\x20", b"\x3f\xe1\x1f"
    indexed = b"\x40\x01a\x011"
    for block in (no_room, indexed, room, indexed):
        decoder.decode(block)
    assert decoder.decode(b"\xbe") == ((b"a", b"1"),)


def test_a_block_that_uses_the_table_is_read_each_time() -> None:
    decoder = HeaderDecoder(16_384)
    # "k: v" with indexing, then what index 62 is: the same bytes, another meaning after "k: w".
    assert decoder.decode(b"\x40\x01k\x01v") == ((b"k", b"v"),)
    assert decoder.decode(b"\xbe") == ((b"k", b"v"),)
    assert decoder.decode(b"\x40\x01k\x01w") == ((b"k", b"w"),)
    assert decoder.decode(b"\xbe") == ((b"k", b"w"),)


@pytest.mark.parametrize("timeout_s", [1e-9, 0.0015, 1, 59.5, 3_600, 1e7, 1e9])
def test_a_timeout_is_never_told_shorter(timeout_s: float) -> None:
    told = timeout_of_header(timeout_to_header(timeout_s))
    assert timeout_s * 0.999999 <= told <= timeout_s * 1.01 + 1e-9


def test_a_long_status_message_is_cut_not_within_an_escape() -> None:
    same, changing = trailers(RpcStatus(Code.INTERNAL, "é" * 5_000), alone=False)
    status = read_trailers(same + changing)
    assert len(dict(changing)[b"grpc-message"]) <= 4_096
    assert set(status.message[:-1]) == {"é"}


def test_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="stream_window_bytes is 5"):
        WireOptions(stream_window_bytes=5)
    with pytest.raises(ValueError, match="less than"):
        WireOptions(stream_window_bytes=1 << 20, connection_window_bytes=1 << 18)


def test_metadata_that_can_not_travel_is_refused_before_a_stream_is_used() -> None:
    pair = pair_ready()
    for bad in (("Key", "v"), ("key", "ü"), ("grpc-x", "v"), ("key", b"raw"), ("key", "a\nb")):
        with pytest.raises(ValueError, match="can't be"):
            pair.client.core.calls.open(PATH, "here", metadata=(bad,), now=0.0)
    assert pair.client.open().id == 1
    assert isinstance(pair.client.core, Connection)
