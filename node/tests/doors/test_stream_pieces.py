"""What comes to a stream together is taken together, however long the stream has waited for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import loops

from ringmq.v1 import broker_pb2 as broker
from ringmq_base.pieces import PIECE_S_MAX, timed_by
from ringmq_base.ranges import Range
from ringmq_node.broker.locating import NOWHERE, Location
from ringmq_node.doors.grpc.streams import Stream
from ringmq_wire import WireCall
from ringmq_wire.streaming import CallStream

BATCHES = [b"%d" % number for number in range(10)]
# Of a turn of the loop.
Turn = int


class Clock:
    """Stands still, but for what the test adds."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Turns:
    """Counts the turns of the loop, from `begin` on."""

    def __init__(self) -> None:
        self.number: Turn = 0

    def begin(self) -> None:
        self.number += 1
        asyncio.get_running_loop().call_soon(self.begin)


class Call:
    """The wire's end of a stream, which gives credit to nobody."""

    def consumed(self, size_bytes: int) -> None: ...


class ReadingStream(Stream):
    """A stream that only reads; it knows in which turn it has taken each request."""

    def __init__(self, context: CallStream, taken: Callable[[], None]) -> None:
        super().__init__(context, heartbeat_s=30.0)
        self._taken = taken

    async def wait_room(self, size_bytes: int) -> None: ...

    def received(self, data: bytes) -> None:
        self._taken()

    def successor(self) -> Location:
        return NOWHERE

    def closed(self) -> None: ...

    @staticmethod
    def ranges_response(ranges: Sequence[Range]) -> broker.PublishResponse:
        return broker.PublishResponse()

    def heartbeat(self) -> broker.PublishResponse:
        return broker.PublishResponse()

    def moved_response(self, moved: broker.Moved) -> broker.PublishResponse:
        return broker.PublishResponse()


def quiet_context() -> CallStream:
    context = CallStream()
    context.bind(cast("WireCall", Call()))
    return context


async def a_while() -> None:
    """All tasks have come to their waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_batches_that_come_together_after_a_wait_are_taken_in_one_turn() -> None:
    """Otherwise the first one is sent on and synced alone, and so it goes all the way round."""
    clock, turns = Clock(), Turns()
    taken: list[Turn] = []

    async def story() -> None:
        context = quiet_context()
        stream = ReadingStream(context, lambda: taken.append(turns.number))
        running = asyncio.create_task(stream.run())
        await a_while()
        turns.begin()
        for _ in range(3):
            clock.now_s += 2 * PIECE_S_MAX
            context.received([*BATCHES])
            await a_while()
        context.half_closed()
        await running

    with timed_by(clock):
        loops.run(story())
    assert len(taken) == 3 * len(BATCHES)
    assert len(set(taken)) == 3


def test_batches_that_take_long_are_taken_in_pieces() -> None:
    """Others have their turns between them."""
    clock, turns = Clock(), Turns()
    taken: list[Turn] = []

    def take() -> None:
        taken.append(turns.number)
        clock.now_s += 2 * PIECE_S_MAX

    async def story() -> None:
        context = quiet_context()
        running = asyncio.create_task(ReadingStream(context, take).run())
        await a_while()
        turns.begin()
        context.received([*BATCHES])
        await a_while()
        context.half_closed()
        await running

    with timed_by(clock):
        loops.run(story())
    assert len(set(taken)) == len(BATCHES)
