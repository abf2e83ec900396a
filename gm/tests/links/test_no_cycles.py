"""The streams of links that have ended go at once, and aren't left to the garbage collector."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import cast

import cycles
import pytest
from cycles import collected_by_hand
from loops import run
from waiting import until

from ringmq_gm import GroupOptions, MemberId
from ringmq_gm.core.frames import Frame, Mark, OpFrame, encode
from ringmq_gm.links import wire
from ringmq_gm.links.incoming import PIECE_BYTES_MIN, IncomingLinks, _IncomingSession
from ringmq_gm.links.link import METHOD
from ringmq_gm.links.outgoing import OutgoingLink, _OutgoingSession
from ringmq_wire import CallStream, Code, RpcStatus, WireCall, WireChannel, WireServer, streaming
from ringmq_wire.connection import Connection
from ringmq_wire.streams import WireStream
from ringmq_wire.transport import WireProtocol

ME = MemberId("a", 1)
KINDS = (
    _IncomingSession,
    _OutgoingSession,
    WireCall,
    WireStream,
    WireProtocol,
    Connection,
    WireChannel,
)
OPTIONS = GroupOptions(dial_timeout_s=0.3)


@pytest.fixture(autouse=True)
def collector_is_off() -> Iterator[None]:
    with collected_by_hand():
        yield


class Owner:
    """Node a, at both ends of a link to itself."""

    me = ME

    def __init__(self) -> None:
        self.running = True
        self.address = ""
        self.payload_bytes = 0
        self.opened = 0
        self.broken = 0
        self.dials_failed = 0

    def address_of(self, node: str) -> str | None:
        return self.address

    def known_incarnation(self, node: str) -> int:
        return 0

    def saw(self, member_id: MemberId) -> None: ...

    def heard(self, node: str) -> None: ...

    def noticed(self, node: str, notice: int) -> None: ...

    def link_opened(self, node: str) -> None:
        self.opened += 1

    def link_broke(self, node: str, *, given_up: bool) -> None:
        self.broken += 1

    def dial_failed(self, node: str) -> None:
        self.dials_failed += 1

    def received(self, sender: MemberId, frames: Iterable[Frame]) -> None:
        for frame in frames:
            assert isinstance(frame, OpFrame)
            self.payload_bytes += len(frame.payload)


def op(number: int, size: int) -> OpFrame:
    return OpFrame("r", 1, 0, 0, 1, number, False, (Mark(0, 0),), bytes(size))


class Link:
    """One that is open, and whose frames have come."""

    def __init__(self, owner: Owner, server: WireServer, incoming: IncomingLinks) -> None:
        self.owner = owner
        self.server = server
        self.incoming = incoming
        self.outgoing = OutgoingLink("a", owner, OPTIONS, count(1).__next__)
        self.running = asyncio.create_task(self.outgoing.run())

    async def use(self) -> None:
        await until(lambda: self.outgoing.is_open)
        sizes = (10, 3 * PIECE_BYTES_MIN, 300_000)
        for number, size in enumerate(sizes, 1):
            self.outgoing.send(op(number, size))
        await until(lambda: self.owner.payload_bytes == sum(sizes))

    async def end(self) -> None:
        self.running.cancel()
        await asyncio.wait([self.running])


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Owner, WireServer, IncomingLinks]]:
    owner, server = Owner(), WireServer()
    incoming = IncomingLinks(owner, OPTIONS)
    server.add(incoming.routes())
    owner.address = f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"
    try:
        yield owner, server, incoming
    finally:
        await server.stop(0)


gone = partial(cycles.gone, *KINDS, modules=("ringmq", "tenacity"), within_s=2)


async def aborted(link: Link) -> None:
    """The connection, by either end or the network."""
    (connection,) = link.server.connections
    connection.abandon()
    await until(lambda: link.owner.broken == 1)


async def unheard(link: Link) -> None:
    link.outgoing.break_off()
    await until(lambda: link.owner.broken == 1)


async def ended_there(link: Link) -> None:
    link.incoming.close()
    await until(lambda: link.owner.broken == 1)


async def replaced(link: Link) -> None:
    other = Link(link.owner, link.server, link.incoming)
    other.outgoing = OutgoingLink("a", link.owner, OPTIONS, count(1000).__next__)
    other.running.cancel()
    other.running = asyncio.create_task(other.outgoing.run())
    await until(lambda: link.owner.broken == 1)
    await other.end()


async def closed(link: Link) -> None:
    """In good order."""


@pytest.mark.parametrize("end", [aborted, unheard, ended_there, replaced, closed])
def test_a_link_that_has_ended_leaves_nothing(end: Callable[[Link], Awaitable[None]]) -> None:
    async def main() -> None:
        async with listening() as at:
            link = Link(*at)
            await link.use()
            await end(link)
            await link.end()
            del link
            await gone()

    run(main())


def test_a_link_that_is_dialled_in_vain_keeps_nothing_of_its_last_stream() -> None:
    async def main() -> None:
        async with listening() as at:
            owner, server, _ = at
            link = Link(*at)
            await link.use()
            await server.stop(0)
            await until(lambda: owner.dials_failed > 0)
            # Between two dials.
            await gone()
            await link.end()

    run(main())


def test_a_link_that_is_refused_leaves_nothing() -> None:
    async def main() -> None:
        async with listening() as at:
            owner, *_ = at
            owner.running = False
            link = Link(*at)
            await until(lambda: owner.dials_failed >= 3)
            await link.end()
            await gone()

    run(main())


def test_a_dial_that_is_given_up_leaves_nothing() -> None:
    async def main() -> None:
        server = WireServer()
        owner = Owner()
        asked = asyncio.Event()

        async def silent(stream: CallStream) -> None:
            asked.set()
            await stream.read_batch()
            await stream.read_batch()

        server.add({METHOD: streaming(silent)})
        owner.address = f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"
        link = Link(owner, server, IncomingLinks(owner, OPTIONS))
        await asked.wait()
        await link.end()
        del link
        await gone()
        await server.stop(0)

    run(main())


def test_a_stream_without_an_opening_leaves_nothing() -> None:
    async def main() -> None:
        async with listening() as (owner, *_):
            channel = WireChannel(owner.address)
            stream = await channel.stream(METHOD)
            assert await stream.read() is None
            await channel.close()
            del stream, channel
            await gone()

    run(main())


class Call:
    """The transport's end of a stream from a node."""

    def consumed(self, size_bytes: int) -> None: ...

    def send(self, messages: Sequence[bytes]) -> None: ...

    def give_up_after(self, unacknowledged_s: float) -> None: ...

    def finish(self, status: RpcStatus) -> None: ...


def test_a_stream_that_ends_before_its_frames_are_taken_leaves_nothing() -> None:
    """A task takes them, which is cancelled before it has begun."""

    async def main() -> None:
        owner = Owner()
        links = IncomingLinks(owner, OPTIONS)
        session = _IncomingSession(links, cast(WireCall, Call()), owner, OPTIONS)
        opening = wire.Opening(MemberId("b", 1), "a", 1, 1_000_000)
        session.received([wire.opening_message(opening)])
        session.received([wire.frames_message(wire.WHOLE, encode(op(1, 3 * PIECE_BYTES_MIN)))])
        session.ended(RpcStatus(Code.CANCELLED, "the node has died"))
        del session
        await gone()
        assert not owner.payload_bytes

    run(main())
