"""How many bytes go before a heartbeat or a small op: a link's sender down to the kernel."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from hypothesis import example, given
from hypothesis import strategies as st
from loops import run
from wirepair import End

from ringmq_gm import GroupOptions, MemberId
from ringmq_gm.core.frames import Mark, MarksFrame, OpFrame, Ping
from ringmq_gm.links import wire
from ringmq_gm.links.link import METHOD, LinkOwner
from ringmq_gm.links.outbox import SMALL_BYTES_MAX
from ringmq_gm.links.outgoing import WIRE_OPTIONS, _OutgoingSession
from ringmq_wire import WireOptions
from ringmq_wire.options import MIB
from ringmq_wire.tcp import UNSENT_BYTES_MAX
from ringmq_wire.transport import WireProtocol

AHEAD_BYTES_MAX = 64 * 1024
# Of one message, with the frame without a body that may make it larger.
FRAMING_BYTES_MAX = 256
WIDE = WireOptions(stream_window_bytes=16 * MIB)


class Protocol(WireProtocol):
    """Its kernel tells what it takes."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(WIRE_OPTIONS, client=True)
        self.kernel = kernel

    def taken_at_once(self) -> int:
        return self.kernel.sure_bytes


class Kernel:
    """A socket, and the transport above it: takes bytes as the test says, and brings them to the
    other end at once."""

    def __init__(self, *, tells: bool = False) -> None:
        self.protocol = Protocol(self) if tells else WireProtocol(WIRE_OPTIONS, client=True)
        self.taken = bytearray()
        self.other = End(client=False, options=WIDE)
        self._room = 1 << 40
        self._buffer = bytearray()
        self._high = 0

    def take(self, size_bytes: int) -> None:
        """There is room for so much, and no more than that."""
        self._room = size_bytes
        self._drain()
        if self.protocol.is_paused and not self._buffer:
            self.protocol.resume_writing()

    @property
    def sure_bytes(self) -> int:
        """What it takes at once."""
        return 0 if self._buffer else min(self._room, UNSENT_BYTES_MAX)

    @property
    def waiting_bytes(self) -> int:
        """What has left the outbox, and the kernel hasn't taken."""
        return len(self._buffer) + sum(
            stream.queued_bytes for stream in self.protocol.core.calls.streams.values()
        )

    def _drain(self) -> None:
        data = bytes(self._buffer[: self._room])
        del self._buffer[: len(data)]
        self._room -= len(data)
        self.taken += data
        self.other.receive(data)
        answer = self.other.output()
        if answer:
            self.protocol.data_received(answer)

    # --- asyncio.Transport ---

    def write(self, data: bytes) -> None:
        was_empty = not self._buffer
        self._buffer += data
        if was_empty:
            self._drain()
        if len(self._buffer) > self._high and not self.protocol.is_paused:
            self.protocol.pause_writing()

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return False


class Nobody:
    def heard(self, node: str) -> None:
        pass

    def noticed(self, node: str, notice: int) -> None:
        pass


async def opened(kernel: Kernel, options: GroupOptions) -> _OutgoingSession:
    """A link whose handshake is over."""
    session = _OutgoingSession("b", cast(LinkOwner, Nobody()), options)
    protocol = kernel.protocol
    protocol.connection_made(cast(Any, kernel))
    call = protocol.open(METHOD, "b", session, scheme="http", metadata=(), timeout_s=None)
    session.begin(cast(Any, None), call)
    shaken = asyncio.create_task(session.shake_hands(b"opening"))
    await asyncio.sleep(0.001)
    stream = kernel.other.stream()
    kernel.other.core.calls.send(stream, [wire.answer_message(MemberId("b", 1))])
    kernel.take(1 << 40)
    await shaken
    return session


def tagged(number: int, size: int) -> bytes:
    """A body that is found again among all that was sent."""
    return (b"<%d>" % number).ljust(size, b".")


STEPS = st.lists(
    st.one_of(
        # A ring and the size of a large body, or of a small one.
        st.tuples(st.sampled_from("abc"), st.integers(SMALL_BYTES_MAX + 1, 300_000)),
        st.tuples(st.sampled_from("abc"), st.just(20_000)),
        st.tuples(st.just(""), st.integers(10, SMALL_BYTES_MAX)),
        st.tuples(st.just(""), st.just(SMALL_BYTES_MAX)),
        # What the kernel has room for.
        st.integers(0, 100_000),
    ),
    max_size=60,
)


@given(STEPS, st.booleans())
# So many small ones that large ones have a turn before the last of them.
@example([("a", 250_000), *[("", SMALL_BYTES_MAX)] * 24], True)
def test_a_heartbeat_or_a_small_op_waits_behind_64_kib_at_most(
    steps: list[tuple[str, int] | int], tells: bool
) -> None:
    """Of what this process holds; other small frames that came before not counted. With each small
    op, of a ring of its own, go a Ping and marks of a ring that sends no bodies."""

    async def main() -> None:
        kernel = Kernel(tells=tells)
        session = await opened(kernel, GroupOptions())
        kernel.take(0)
        # When each was put: the bytes that the kernel had.
        at: dict[bytes, int] = {}
        smalls: list[bytes] = []
        for number, step in enumerate([*steps, *[("", 10)] * 3], 1):
            if isinstance(step, int):
                kernel.take(step)
            elif step[0]:
                body = tagged(number, step[1])
                session.put(OpFrame(step[0], 1, 0, 0, 1, number, False, (), body))
            else:
                body, name = tagged(number, step[1]), f"quiet {number} "
                session.put(OpFrame(name, 1, 0, 0, 1, 1, False, (), body))
                session.put(Ping(f"ping {number} ", 1, 1))
                session.put(MarksFrame(f"marks {number} ", 1, 0, 0, (Mark(1, 1),)))
                smalls.append(body)
                for found in (body, b"ping %d " % number, b"marks %d " % number):
                    at[found] = len(kernel.taken)
            await asyncio.sleep(0)
            assert kernel.waiting_bytes <= GroupOptions().message_bytes + FRAMING_BYTES_MAX
        while session.outbox or kernel.protocol.is_paused or session._paused:
            kernel.take(1 << 40)
            await asyncio.sleep(0)
        sent = bytes(kernel.taken)
        small_at = [(sent.index(body), len(body)) for body in smalls]
        for frame, taken in at.items():
            begins = sent.index(frame)
            small = sum(size + 100 for place, size in small_at if taken <= place < begins)
            assert begins - taken - small <= AHEAD_BYTES_MAX, frame[:20]

    run(main())


def test_a_small_op_goes_though_other_rings_have_used_up_the_window() -> None:
    """And no credit comes: the other node's disk has too much to write."""

    async def main() -> None:
        options = GroupOptions(window_bytes=300_000)
        kernel = Kernel()
        session = await opened(kernel, options)
        for number in range(1, 9):
            session.put(OpFrame("busy", 1, 0, 0, 1, number, False, (), tagged(number, 100_000)))
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        taken = len(kernel.taken)
        assert taken < options.window_bytes + AHEAD_BYTES_MAX
        for number in range(100, 140):
            body = tagged(number, SMALL_BYTES_MAX)
            session.put(OpFrame(f"quiet {number}", 1, 0, 0, 1, 1, False, (), body))
        for _ in range(20):
            await asyncio.sleep(0)
        assert all(b"<%d>" % number in kernel.taken for number in range(100, 140))
        assert len(kernel.taken) - taken < 41 * (SMALL_BYTES_MAX + 200)
        assert session.outbox.waiting_bytes("busy") > 300_000

    run(main())


def test_large_bodies_go_on_while_small_ones_always_wait() -> None:
    """And a frame as large as a message, though control frames go before it in each."""

    async def main() -> None:
        options = GroupOptions()
        kernel = Kernel()
        session = await opened(kernel, options)
        kernel.take(0)
        for number, size in enumerate((100_000, options.message_bytes - 80, 100_000), 1):
            name = f"large {number}"
            session.put(OpFrame(name, 1, 0, 0, 1, 1, False, (), tagged(number, size)))
        turns = 0
        while any(session.outbox.waiting_bytes(f"large {number}") for number in (1, 2, 3)):
            turns += 1
            assert turns < 200
            for ring in range(10):
                body = bytes(SMALL_BYTES_MAX)
                session.put(OpFrame(f"small {turns} {ring}", 1, 0, 0, 1, 1, False, (), body))
            session.put(Ping("ping", 1, turns))
            kernel.take(options.message_bytes)
            await asyncio.sleep(0)

    run(main())
