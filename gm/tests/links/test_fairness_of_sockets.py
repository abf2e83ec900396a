"""What lies before a small op on a real socket, in bytes: in the process, and in its kernel.

`test_fairness` has a kernel that the test plays. Here it is the machine's: the link's connection
goes over loopback, and the other end reads as little of it as the test says. What the network has
taken is asked of TCP itself when the small op is put, and compared with the place at which the
other end finds it.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import sys
from dataclasses import dataclass
from typing import cast

import pytest
from gm.tests.links.test_fairness import AHEAD_BYTES_MAX, WIDE, Nobody, tagged
from loops import run
from waiting import leeway, until
from wirepair import End

from ringmq_gm import GroupOptions, MemberId
from ringmq_gm.core.frames import Mark, MarksFrame, OpFrame, Ping
from ringmq_gm.links import wire
from ringmq_gm.links.link import METHOD, LinkOwner
from ringmq_gm.links.outgoing import WIRE_OPTIONS, _OutgoingSession
from ringmq_wire import WireChannel
from ringmq_wire.tcp import UNSENT_BYTES_MAX

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO is Linux's")

HOST = "127.0.0.1"
# Of the other end's socket: what the network has taken, and nobody has read, is little.
RECEIVE_BUFFER_BYTES = 64 * 1024
BODY_BYTES = 200_000
# In all: less than the link's window, which the other end gives no more of.
BODIES = 36
LOOKS = 25
# `struct tcp_info` of linux/tcp.h: where it says how many bytes wait to be sent, were sent, and
# were sent again.
NOT_SENT, SENT, SENT_AGAIN = (">I", 144), (">Q", 200), (">Q", 208)
INFO_BYTES = 232
# The kernel's own share. It looks at its limit before it takes a segment of up to 64 KiB: 93 KiB
# are usual here, and 139 were seen.
KERNEL_BYTES_MAX = 3 * UNSENT_BYTES_MAX


@dataclass(frozen=True)
class Kernel:
    """A socket, as TCP sees it at a moment."""

    taken_by_network: int
    unsent: int

    @classmethod
    def of(cls, sock: socket.socket) -> Kernel:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
        unsent, sent, again = (
            struct.unpack_from("=" + form[1], info, at)[0]
            for form, at in (NOT_SENT, SENT, SENT_AGAIN)
        )
        return cls(sent - again, unsent)


class OtherNode:
    """The other end of a link, which reads as the test says."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self.end = End(client=False, options=WIDE)
        self.taken = bytearray()

    async def read(self, size_bytes: int) -> int:
        """Up to so many bytes; none if there are none within a moment."""
        try:
            async with asyncio.timeout(0.2):
                data = await self._loop.sock_recv(self._peer, size_bytes)
        except TimeoutError:
            return 0
        self.taken += data
        self.end.receive(data)
        await self._loop.sock_sendall(self._peer, self.end.output())
        return len(data)


async def opened(listening: socket.socket) -> tuple[_OutgoingSession, WireChannel, OtherNode]:
    """A link whose handshake is over, and its other end."""
    session = _OutgoingSession("b", cast(LinkOwner, Nobody()), GroupOptions())
    channel = WireChannel(f"{HOST}:{listening.getsockname()[1]}", WIRE_OPTIONS)
    opening = asyncio.create_task(channel.open(METHOD, session))
    peer, _ = await asyncio.get_running_loop().sock_accept(listening)
    other = OtherNode(peer)
    while not opening.done():
        await other.read(1_000)
    session.begin(channel, opening.result())
    shaken = asyncio.create_task(session.shake_hands(b"opening"))
    while not other.end.core.calls.streams or not other.end.messages():
        await other.read(1_000)
    stream = other.end.stream()
    other.end.core.calls.send(stream, [wire.answer_message(MemberId("b", 1))])
    await asyncio.get_running_loop().sock_sendall(peer, other.end.output())
    await shaken
    return session, channel, other


def test_a_small_op_waits_behind_64_kib_of_its_process_and_its_kernels_share() -> None:
    chance = random.Random(11)

    async def scenario() -> None:
        with socket.socket() as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            listening.bind((HOST, 0))
            listening.listen()
            listening.setblocking(False)
            session, channel, other = await opened(listening)
            connection = channel._current
            assert connection is not None
            assert connection.tcp is not None
            sock = connection.tcp.socket
            for number in range(BODIES):
                body = tagged(number, BODY_BYTES)
                session.put(OpFrame("abc"[number % 3], 1, 0, 0, 1, number, False, (), body))
            # What each of them has before it: the kernel's state when it was put.
            put: dict[bytes, Kernel] = {}
            small_bytes = 0
            for look in range(LOOKS):
                # The link holds all that it may: its kernel takes no more.
                await until(lambda: session._paused)
                name, body = f"quiet {look} ", tagged(1_000 + look, 50)
                now = Kernel.of(sock)
                session.put(OpFrame(name, 1, 0, 0, 1, 1, False, (), body))
                session.put(Ping(f"ping {look} ", 1, 1))
                session.put(MarksFrame(f"marks {look} ", 1, 0, 0, (Mark(1, 1),)))
                for found in (body, b"ping %d " % look, b"marks %d " % look):
                    put[found] = now
                small_bytes += 500
                await other.read(chance.choice([1_000, 20_000, 60_000, 150_000]))
            assert session.outbox.has_bodies
            while session.outbox or session._paused or await other.read(1 << 20):
                await other.read(1 << 20)
            sent = bytes(other.taken)
            ahead = {found: sent.index(found) - now.taken_by_network for found, now in put.items()}
            for found, now in put.items():
                assert now.unsent <= KERNEL_BYTES_MAX, now
                in_process = ahead[found] - now.unsent
                assert in_process <= AHEAD_BYTES_MAX + small_bytes, found
            # They did wait behind something: of these sockets nothing was read in between.
            assert max(ahead.values()) > 20_000
            await channel.close()
            other._peer.close()

    async def in_time() -> None:
        async with asyncio.timeout(leeway(30)):
            await scenario()

    run(in_time())
