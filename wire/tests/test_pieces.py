"""Input that takes long is taken in pieces: all of it, in order, and nothing is read meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any, cast

import loops
import pytest

from ringmq_wire import pieces
from ringmq_wire.pieces import PIECE_BYTES, PiecesOfInput

LONG = bytes(range(256)) * (5 * PIECE_BYTES // 256)


class Transport:
    """Of a socket that can be paused."""

    def __init__(self) -> None:
        self.reads = True
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class Taker(PiecesOfInput):
    """Keeps what it is given, and where turns end."""

    def __init__(self, transport: Transport) -> None:
        super().__init__()
        self._transport = cast(Any, transport)
        self.taken = b""
        self.turns: list[int] = []

    def take(self, data: bytes) -> None:
        self.taken += data

    def turn_ends(self) -> None:
        self.turns.append(len(self.taken))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is 6 ms after the one before."""
    monkeypatch.setattr(pieces, "perf_counter", partial(next, count(step=0.006)))


def run(work: Callable[[Transport, Taker], Awaitable[None]]) -> None:
    async def main() -> None:
        transport = Transport()
        await work(transport, Taker(transport))

    loops.run(main())


@pytest.mark.usefixtures("slow")
def test_what_takes_long_is_taken_in_several_turns() -> None:
    async def work(transport: Transport, taker: Taker) -> None:
        taker.data_received(LONG)
        assert taker.turns == [2 * PIECE_BYTES]
        assert not transport.reads
        # The rest of the same read, as a transport may still have it.
        taker.data_received(b"end")
        for _ in range(3):
            await asyncio.sleep(0)
        assert transport.reads
        assert taker.taken == LONG + b"end"
        assert taker.turns == [2 * PIECE_BYTES, 4 * PIECE_BYTES, len(LONG) + 3]

    run(work)


def test_what_takes_no_time_is_taken_at_once() -> None:
    async def work(transport: Transport, taker: Taker) -> None:
        taker.data_received(LONG)
        assert taker.turns == [len(LONG)]
        assert transport.reads

    run(work)


@pytest.mark.usefixtures("slow")
def test_what_came_before_the_end_of_the_connection_counts() -> None:
    async def work(transport: Transport, taker: Taker) -> None:
        taker.data_received(LONG)
        transport.closing = True
        taker.take_rest()
        assert taker.taken == LONG
        await asyncio.sleep(0)
        assert taker.taken == LONG

    run(work)
