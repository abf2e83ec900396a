"""Valid traffic, however it is cut; broken traffic, however it is broken; and no credit lost."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from wirepair import End, Pair, client_ready, goaway_code, pair_ready, server_ready, story

from ringmq_wire import frames
from ringmq_wire.codes import Code, ErrorCode, RpcStatus
from ringmq_wire.events import CallMessages, ConnectionClosed
from ringmq_wire.options import WireOptions

SIZES = st.sampled_from([0, 1, 4, 5, 100, 4096, 4097, 16_384, 16_379, 70_000, 200_000])
# For traffic that is fed in many pieces.
SMALL_SIZES = st.sampled_from([0, 1, 4, 5, 100, 4097, 17_000])
WINDOWS = st.sampled_from([65_535, 100_000, 1 << 20])


@dataclass(frozen=True)
class Plan:
    """One call: the sizes of its messages each way, and how it ends."""

    requests: list[int]
    answers: list[int]
    code: Code


def plans_of(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[list[Plan]]:
    plan = st.builds(
        Plan,
        st.lists(sizes, max_size=4),
        st.lists(sizes, max_size=4),
        st.sampled_from([Code.OK, Code.ABORTED]),
    )
    return st.lists(plan, min_size=1, max_size=3)


def body(size: int, number: int) -> bytes:
    return bytes((number,)) * size


def carried_out(plans: list[Plan]) -> Pair:
    """All calls at once, to their ends."""
    pair = pair_ready()
    client, server = pair.client.core.calls, pair.server.core.calls
    streams = [pair.client.open() for _ in plans]
    for stream, plan in zip(streams, plans, strict=True):
        client.send(stream, [body(size, stream.id) for size in plan.requests])
        client.half_close(stream)
    pair.pump()
    for stream, plan in zip(streams, plans, strict=True):
        answer = pair.server.stream(stream.id)
        server.send(answer, [body(size, stream.id + 100) for size in plan.answers])
        server.finish(answer, RpcStatus(plan.code, "done"))
    pair.pump()
    return pair


@given(plans=plans_of(SIZES))
@settings(max_examples=40)
def test_calls_arrive_as_they_were_made(plans: list[Plan]) -> None:
    pair = carried_out(plans)
    for number, plan in enumerate(plans):
        stream_id = 2 * number + 1
        assert pair.server.messages(stream_id) == [body(n, stream_id) for n in plan.requests]
        assert pair.client.messages(stream_id) == [body(n, stream_id + 100) for n in plan.answers]
        assert pair.client.ended(stream_id).status.code is plan.code
    assert not pair.client.core.calls.streams
    assert not pair.server.core.calls.streams


@given(plans=plans_of(SMALL_SIZES), cuts=st.lists(st.integers(1, 3000), min_size=1, max_size=20))
@settings(max_examples=40)
def test_traffic_means_the_same_however_it_is_cut(plans: list[Plan], cuts: list[int]) -> None:
    pair = carried_out(plans)
    server, client = Pair().server, client_ready()
    whole = Pair().server
    whole.receive(bytes(pair.to_server))
    for _ in plans:
        client.open()
    for end, data in ((server, pair.to_server), (client, pair.to_client)):
        at = turn = 0
        while at < len(data):
            size = cuts[turn % len(cuts)]
            end.receive(bytes(data[at : at + size]))
            at, turn = at + size, turn + 1
            end.core.check()
    assert story(server.events) == story(whole.events) == story(pair.server.events)
    told = story(pair.client.events)
    del told[0]
    again = story(client.events)
    again.pop(0, None)
    assert again == told


def test_traffic_means_the_same_byte_by_byte() -> None:
    plans = [Plan([0, 3], [5, 70], Code.OK), Plan([9], [], Code.ABORTED)]
    pair = carried_out(plans)
    server = Pair().server
    for byte in pair.to_server:
        server.receive(bytes((byte,)))
    assert story(server.events) == story(pair.server.events)


@given(sizes=st.lists(st.sampled_from([0, 1, 100, 4097]), min_size=1, max_size=6))
@settings(max_examples=20)
def test_whole_frames_count_as_much_as_frames_in_pieces(sizes: list[int]) -> None:
    """Whole small messages have a way of their own: windows and budgets are those of the other."""
    pair = pair_ready()
    stream = pair.client.open()
    for size in sizes:
        pair.client.core.calls.send(stream, [body(size, 1), body(size, 2)])
        pair.pump()
    ends = []
    for step in (len(pair.to_server), 1):
        end = Pair().server
        for at in range(0, len(pair.to_server), step):
            end.receive(bytes(pair.to_server[at : at + step]))
        end.core.check()
        there = end.stream(stream.id)
        inflow, budgets = end.core._inflow, end.core._budgets
        ends.append(
            (
                end.messages(stream.id),
                (there.receive_window, there.held_bytes, there.received_bytes),
                (inflow._window, inflow.held_bytes, inflow._unread.held_bytes),
                (budgets.control.level, budgets.empty.level),
            )
        )
    assert ends[0] == ends[1]


MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "drop", "insert", "repeat"]),
        st.floats(0, 1),
        st.integers(0, 255),
        st.integers(1, 40),
    ),
    min_size=1,
    max_size=8,
)


def mutated(data: bytes, mutations: list[tuple[str, float, int, int]]) -> bytes:
    out = bytearray(data)
    for what, where, value, length in mutations:
        at = int(where * len(out))
        match what:
            case "flip":
                out[at : at + 1] = bytes((value,))
            case "drop":
                del out[at : at + length]
            case "insert":
                out[at:at] = bytes((value,)) * length
            case _:
                out[at:at] = out[at : at + length]
    return bytes(out)


SMALL = [Plan([0, 3, 100], [5, 70], Code.OK), Plan([9, 2000], [1], Code.ABORTED)]
TRAFFIC = carried_out(SMALL)


@given(mutations=MUTATIONS, cut=st.integers(1, 4000))
@settings(max_examples=150)
def test_mutated_traffic_raises_nothing_and_breaks_no_invariant(
    mutations: list[tuple[str, float, int, int]], cut: int
) -> None:
    client = client_ready()
    for _ in SMALL:
        client.open()
    for end, data in (
        (Pair().server, bytes(TRAFFIC.to_server)),
        (client, bytes(TRAFFIC.to_client)),
    ):
        bad = mutated(data, mutations)
        for at in range(0, len(bad), cut):
            end.receive(bad[at : at + cut])
            end.core.check()
        assert_farewell(end)


def assert_farewell(end: End) -> None:
    """If a fault has ended the connection, the peer is told which."""
    output = end.output(1 << 30)
    ends = [event.reason for event in end.events if isinstance(event, ConnectionClosed)]
    assert len(ends) == end.core.closed
    if ends and ends[0] != "all calls have ended":
        assert goaway_code(output) in set(ErrorCode) - {ErrorCode.NO_ERROR}


FRAMES = st.lists(
    st.tuples(
        st.integers(0, 10),
        st.sampled_from([0, 1, 4, 5, 8, 9, 12, 0x20, 0x24, 0x2D, 255]),
        st.sampled_from([0, 1, 2, 3, 5, 7, 2**31 - 1]),
        st.binary(max_size=40),
    ),
    max_size=40,
)


@given(pieces=FRAMES)
@settings(max_examples=150)
def test_frames_by_chance_raise_nothing_and_break_no_invariant(
    pieces: list[tuple[int, int, int, bytes]],
) -> None:
    client = client_ready()
    client.open()
    client.open()
    for end in (server_ready(), client):
        for kind, flags, stream_id, payload in pieces:
            end.receive(frames.frame(kind, flags, stream_id, payload))
            end.core.check()
        assert_farewell(end)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 4), SIZES), min_size=1, max_size=30),
    window=WINDOWS,
    assembly=st.sampled_from([1, 150_000, 1 << 26]),
    slow=st.lists(st.booleans(), min_size=1, max_size=7),
)
@settings(max_examples=60)
def test_every_message_comes_however_small_the_windows(
    sizes: list[tuple[int, int]], window: int, assembly: int, slow: list[bool]
) -> None:
    """No credit is lost, and none is waited for by everybody: else messages would stay behind."""
    options = WireOptions(
        stream_window_bytes=window, connection_window_bytes=window, assembly_bytes_max=assembly
    )
    pair = pair_ready(server=options)
    pair.server.consumes = False
    calls = pair.client.core.calls
    streams = [pair.client.open() for _ in range(5)]
    expected: dict[int, list[bytes]] = {stream.id: [] for stream in streams}
    for number, size in sizes:
        stream = streams[number]
        expected[stream.id].append(body(size, stream.id))
        calls.send(stream, [body(size, stream.id)])
    for stream in streams:
        calls.half_close(stream)
    turn = seen = 0
    waiting = []
    while True:
        pair.pump()
        new = [e for e in pair.server.events[seen:] if isinstance(e, CallMessages)]
        seen = len(pair.server.events)
        waiting += new
        if not waiting:
            break
        # The application takes one batch, or all that there are.
        for event in [waiting.pop(0)] if slow[turn % len(slow)] else waiting[:]:
            if event in waiting:
                waiting.remove(event)
            pair.server.core.calls.consumed(event.stream, event.size_bytes)
        turn += 1
    assert {n: pair.server.messages(n) for n in expected} == expected
