"""Which node a browse asks: the master where it can be reached, else one that relays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from loops import run

from ringmq.calls.known_nodes import KnownNodes
from ringmq.errors import TimedOutError
from ringmq.reading.pieces import browse_pieces
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import reader_pb2 as wire
from ringmq_wire import Code, RpcError, RpcStatus


class Played(KnownNodes):
    """A node `relay`, which answers first, and the master; `down`: can't be reached from here."""

    def __init__(self, down: str = "", breaks_at: int = -1) -> None:
        super().__init__(["relay:1", "master:1"], deadline_s=5.0, receive_bytes_max=1 << 20)
        self._order = ["relay:1", "master:1"]
        self._down, self._breaks_at = down, breaks_at
        self.asked: list[str] = []

    def channel(self, address: str) -> Any:
        async def locate(request: Any, *, timeout: float) -> Any:
            if address == self._down:
                raise RpcError(RpcStatus(Code.UNAVAILABLE, "away"))
            return broker.LocateQueueResponse(node="master", address="master:1", epoch=1)

        async def browse(request: wire.BrowseRequest) -> AsyncIterator[wire.BrowseResponse]:
            self.asked.append(address)
            at = request.first
            while at < request.end:
                if address == self._down or at == self._breaks_at:
                    self._breaks_at, self._down = -1, address
                    raise RpcError(RpcStatus(Code.UNAVAILABLE, "away"))
                yield wire.BrowseResponse(first=at, end=at + 1)
                at += 1

        return SimpleNamespace(
            address=address,
            broker=SimpleNamespace(LocateQueue=locate),
            reader=SimpleNamespace(Browse=browse),
        )


def asked_by(nodes: Played, source: wire.BrowseSource.ValueType) -> list[str]:
    request = wire.BrowseRequest(queue="q", first=3, end=6, source=source)

    async def main() -> list[int]:
        return [piece.first async for piece in browse_pieces(nodes, request, 5.0)]

    assert run(main()) == [3, 4, 5]
    return nodes.asked


def test_the_master_is_asked_itself() -> None:
    assert asked_by(Played(), wire.BROWSE_SOURCE_MASTER) == ["master:1"]


def test_a_master_that_cannot_be_reached_is_relayed_to() -> None:
    assert asked_by(Played(down="master:1"), wire.BROWSE_SOURCE_MASTER) == ["master:1", "relay:1"]


def test_a_browse_that_breaks_off_goes_on_by_a_relay() -> None:
    assert asked_by(Played(breaks_at=5), wire.BROWSE_SOURCE_MASTER) == ["master:1", "relay:1"]


def test_any_replica_is_that_of_the_node_that_answered_last() -> None:
    assert asked_by(Played(), wire.BROWSE_SOURCE_ANY) == ["relay:1"]


@pytest.mark.slow
def test_the_search_for_the_master_is_within_the_deadline() -> None:
    """And not before it."""

    class Slow(Played):
        def channel(self, address: str) -> Any:
            found = super().channel(address)
            locate = found.broker.LocateQueue

            async def later(request: Any, *, timeout: float) -> Any:
                await asyncio.sleep(0.9)
                return await locate(request, timeout=timeout)

            async def nothing(request: wire.BrowseRequest) -> AsyncIterator[wire.BrowseResponse]:
                await asyncio.get_running_loop().create_future()
                yield wire.BrowseResponse()

            found.broker.LocateQueue, found.reader.Browse = later, nothing
            return found

    request = wire.BrowseRequest(queue="q", end=6, source=wire.BROWSE_SOURCE_MASTER)

    async def main() -> None:
        with pytest.raises(TimedOutError):
            await anext(browse_pieces(Slow(), request, 2.0))

    begin = time.monotonic()
    run(main())
    assert 1.9 < time.monotonic() - begin < 2.7
