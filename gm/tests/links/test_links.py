"""The answering end of a link, called with raw messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import loops
import pytest
from group_harness import LocalCluster, local_cluster
from waiting import until

from ringmq_gm import GroupOptions, MemberId, NodeRecord, first_view, ring_key
from ringmq_gm.core.frames import Frame, Hello, Mark, OpFrame, decode, encode
from ringmq_gm.links import wire
from ringmq_gm.links.link import METHOD
from ringmq_gm.registry.base import Put
from ringmq_wire import WireCall

ME = MemberId("z", 3)
RING_TIMEOUT_S = 0.4
# Where no time-out is to come: a busy machine may take a second for what the test does.
LONG_S = 10.0
# The calling end is a stock one: that the two ends of ours agree shows too little.
StockCall = grpc.aio.StreamStreamCall[bytes, bytes]


class Caller:
    """The calling end of the link to node a."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{cluster.nodes['a'].port}")

    async def call(self, first: bytes) -> StockCall:
        call: StockCall = self._channel.stream_stream(METHOD)()
        await call.write(first)
        return call

    async def open(self, session: int, *, me: MemberId = ME, target: str = "a") -> StockCall:
        """A call whose handshake was answered; raises `AioRpcError` if it was refused."""
        call = await self.call(wire.opening_message(wire.Opening(me, target, session, 1000)))
        data = await call.read()
        assert isinstance(data, bytes), data
        assert wire.read_answer(data) == self.cluster.nodes["a"].group.me
        return call

    async def close(self) -> None:
        await self._channel.close()


def run(
    tmp_path: Path,
    story: Callable[[Caller], Awaitable[None]],
    *,
    ring_timeout_s: float = RING_TIMEOUT_S,
) -> None:
    @asynccontextmanager
    async def caller() -> AsyncIterator[Caller]:
        options = GroupOptions(payload_bytes_max=10_000, ring_timeout_s=ring_timeout_s)
        async with local_cluster(tmp_path, "a", options) as cluster:
            made = Caller(cluster)
            try:
                yield made
            finally:
                await made.close()

    async def main() -> None:
        async with caller() as made, asyncio.timeout(20):
            await story(made)

    loops.run(main())


def frames_message(*frames: Frame) -> bytes:
    return wire.frames_message(wire.WHOLE, [piece for frame in frames for piece in encode(frame)])


async def refused(call: Awaitable[StockCall], code: grpc.StatusCode, text: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=text) as refusal:
        await call
    assert refusal.value.code() is code


async def ended(call: StockCall) -> None:
    """Reads the remaining responses."""
    while isinstance(await call.read(), bytes):
        continue


def test_a_call_to_another_node_or_from_an_earlier_life_is_refused(tmp_path: Path) -> None:
    async def story(caller: Caller) -> None:
        failed = grpc.StatusCode.FAILED_PRECONDITION
        await refused(caller.open(1, target="b"), failed, "this is a#1, not 'b'")
        await caller.open(5)
        await refused(caller.open(5), failed, "a newer stream from z is there")
        await refused(caller.open(9, me=MemberId("z", 2)), failed, "z#2 is a life that has ended")
        await caller.open(1, me=MemberId("z", 4))

    run(tmp_path, story)


@pytest.mark.logs(r"link from z#3: 8 bytes left, a frame has at least 16")
def test_garbage_is_refused_and_harms_nobody(tmp_path: Path) -> None:
    async def story(caller: Caller) -> None:
        for garbage in (b"", b"\x0a", b"\x0a\x05hello", b"GET / HTTP/1.1\r\n\r\n", bytes(5000)):
            call = await caller.call(garbage)
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await ended(call)
            assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        call = await caller.open(1)
        await call.write(wire.frames_message(wire.WHOLE, [b"no frame"]))
        with pytest.raises(grpc.aio.AioRpcError, match="8 bytes left, a frame has at least 16"):
            await ended(call)
        assert not caller.cluster.nodes["a"].task.done()
        await caller.open(2)

    run(tmp_path, story)


@pytest.mark.logs(r"link from z#3: frame of more than \d+ bytes")
def test_a_frame_over_the_limit_is_refused_before_it_is_gathered(tmp_path: Path) -> None:
    async def story(caller: Caller) -> None:
        call = await caller.open(1)
        for _ in range(3):
            await call.write(wire.frames_message(wire.PART, [bytes(1_000_000)]))
        with pytest.raises(grpc.aio.AioRpcError, match="frame of more than 2107152 bytes"):
            await ended(call)

    run(tmp_path, story)


def test_credit_comes_for_taken_frames_and_with_each_heartbeat(tmp_path: Path) -> None:
    async def story(caller: Caller) -> None:
        call = await caller.open(1)
        first = await call.read()
        assert isinstance(first, bytes)
        assert wire.read_credit(first) == (0, 0)
        message = frames_message(Hello("no such ring " + "x" * 300, 1, 0, 0, 0, 0))
        await call.write(message)
        credited = 0
        while credited < len(message):
            data = await call.read()
            assert isinstance(data, bytes)
            credited, _ = wire.read_credit(data)
        assert credited == len(message)

    run(tmp_path, story)


def test_answers_that_do_not_arrive_end_the_stream_after_half_the_ring_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calling end has the same: `test_outgoing.py`."""
    given_up_after_s: list[float] = []
    monkeypatch.setattr(
        WireCall, "give_up_after", lambda _, seconds: given_up_after_s.append(seconds)
    )

    async def story(caller: Caller) -> None:
        await caller.open(1)
        assert given_up_after_s == [RING_TIMEOUT_S / 2]

    run(tmp_path, story)


async def mirror_of_z(caller: Caller) -> LocalCluster:
    """z is the master of a ring in which a is the mirror."""
    cluster = caller.cluster
    # Two must hold an op, and z lives as far as the registry knows: so a can't go on alone.
    view = first_view([ME, cluster.nodes["a"].group.me], min_insync=2)
    z = NodeRecord("z", 3, "127.0.0.1:1")
    puts = [Put(ring_key("r"), view.encode()), Put("nodes/z", z.encode())]
    await cluster.nodes["a"].registry.commit([], puts)
    ring = cluster.open("r", "a")
    await until(lambda: ring.view is not None)
    return cluster


def test_late_frames_of_an_older_stream_are_dropped(tmp_path: Path) -> None:
    async def story(caller: Caller) -> None:
        cluster = await mirror_of_z(caller)
        ops = [OpFrame("r", 1, 0, 0, 1, n, False, (), b"%d" % n) for n in (1, 2, 3)]
        old = await caller.open(1)
        await old.write(frames_message(Hello("r", 1, 0, 3, 0, 0), ops[0]))
        await until(lambda: cluster.apps["r"]["a"].payloads == [b"1"])
        new = await caller.open(2)
        await ended(old)
        with pytest.raises(asyncio.InvalidStateError):
            await old.write(frames_message(ops[1]))
        assert cluster.apps["r"]["a"].payloads == [b"1"]
        await new.write(frames_message(Hello("r", 1, 0, 3, 0, 0), *ops))
        await until(lambda: cluster.apps["r"]["a"].payloads == [b"1", b"2", b"3"])

    run(tmp_path, story, ring_timeout_s=LONG_S)


def test_an_op_that_comes_in_parts_is_delivered_whole(tmp_path: Path) -> None:
    async def story(caller: Caller) -> None:
        cluster = await mirror_of_z(caller)
        body = bytes(number % 251 for number in range(100_000))
        op = b"".join(encode(OpFrame("r", 1, 0, 0, 1, 1, False, (), body)))
        call = await caller.open(1)
        await call.write(frames_message(Hello("r", 1, 0, 3, 0, 0)))
        await call.write(wire.frames_message(wire.PART, [op[:40_000]]))
        # Frames of other rings come in between.
        await call.write(frames_message(Hello("no such ring", 1, 0, 0, 0, 0)))
        await call.write(wire.frames_message(wire.PART, [op[40_000:41_000]]))
        await call.write(wire.frames_message(wire.LAST_PART, [op[41_000:]]))
        await until(lambda: cluster.apps["r"]["a"].payloads == [body])

    run(tmp_path, story, ring_timeout_s=LONG_S)


def test_frames_are_read_as_they_were_written() -> None:
    frames: list[Frame] = [
        Hello("r", 1, 0, 2, 3, 0),
        OpFrame("r", 1, 0, 0, 1, 4, True, (Mark(1),), b"x"),
    ]
    data = frames_message(*frames)
    kind, begin = wire.frames_in(data)
    assert kind == wire.WHOLE
    assert list(decode(data, begin)) == frames
