"""Streams that nobody reads: they don't stop the others of their connection, and are bounded."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from loops import run
from waiting import until
from wirepair import Pair, pair_ready
from wireserver import HOST

from ringmq_wire import CallStream, WireChannel, WireOptions, WireServer, streaming
from ringmq_wire.unread import UnreadBytes

KIB = 1024
MIB = 1024 * 1024
MESSAGE = bytes(64 * KIB)


def filled(pair: Pair, streams: int) -> None:
    """So many streams whose windows are full of messages that nobody reads."""
    for _ in range(streams):
        stream = pair.client.open()
        pair.client.core.calls.send(stream, [MESSAGE] * 16)
        pair.pump()


def test_streams_that_nobody_reads_do_not_stop_the_others() -> None:
    pair = pair_ready(server=WireOptions(connection_window_bytes=2 * MIB))
    pair.server.consumes = False
    filled(pair, 20)
    other = pair.client.open()
    for number in range(10):
        pair.client.core.calls.send(other, [MESSAGE])
        pair.pump()
        assert len(pair.server.messages(other.id)) == number + 1
        pair.server.core.calls.consumed(pair.server.stream(other.id), len(MESSAGE) + 5)
    pair.check()


def test_who_has_more_than_is_left_gets_credit_again_when_others_make_room() -> None:
    told: list[bool] = []
    unread = UnreadBytes(100, lambda: told.append(True))
    unread.change(40)
    assert unread.excess(40) == 0
    unread.change(40)
    assert unread.excess(40) == 20
    assert unread.excess(10) == 0
    unread.change(-29)
    assert told == []
    unread.change(-1)
    assert told == [True]
    unread.change(-50)
    assert told == [True]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-30, 60)), max_size=60))
def test_the_budget_is_the_sum_and_bounds_what_holds_no_credit(
    steps: list[tuple[int, int]],
) -> None:
    """However many connections there are: the bytes that hold no credit are within the budget."""
    unread = UnreadBytes(100)
    held = [0] * 5
    for connection, change in steps:
        # A connection brings more only while it has no excess.
        if change > 0 and unread.excess(held[connection]):
            continue
        change = max(change, -held[connection])
        held[connection] += change
        unread.change(change)
        assert unread.held_bytes == sum(held)
        free = sum(each - unread.excess(each) for each in held)
        assert free <= 5 * 100


def test_a_server_bounds_the_unread_bytes_of_all_connections() -> None:
    """Held back connections go on when the others are gone."""

    async def main() -> None:
        reading = asyncio.Event()
        taken = 0

        async def read_late(stream: CallStream) -> None:
            nonlocal taken
            await reading.wait()
            while await stream.read() is not None:
                taken += 1

        options = WireOptions(connection_window_bytes=1 * MIB)
        server = WireServer({"/a/B": streaming(read_late)}, options, unread_bytes_max=8 * MIB)
        port = await server.listen(HOST, 0)
        channels = [WireChannel(f"{HOST}:{port}") for _ in range(4)]
        calls: list[CallStream] = []
        try:
            for channel in channels:
                calls += [await channel.stream("/a/B") for _ in range(8)]
            for call in calls:
                call.call.send([MESSAGE] * 16)
            await until(lambda: server.unread.held_bytes > 6 * MIB)
            assert server.unread.held_bytes < 8 * MIB + 5 * MIB
            reading.set()
            await until(lambda: taken == 16 * len(calls))
            await until(lambda: server.unread.held_bytes == 0)
        finally:
            for channel in channels:
                await channel.close()
            await server.stop(0)

    run(main())
