"""A peer sends and doesn't read: the answers that wait for it are bounded, and it isn't read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any, cast

import loops
import pytest

from ringmq.v1 import broker_pb2 as broker
from ringmq_base.pieces import timed_by
from ringmq_node.doors.grpc import streams
from ringmq_node.doors.grpc.streams import PublishStream
from ringmq_node.doors.grpc.wire import ranges_to_wire
from ringmq_node.doors.grpc.writer import ANSWERS_MAX, MERGED_RANGES_MAX, StreamWriter
from ringmq_node.model.reasons import bad_request
from ringmq_node.model.settings import BrokerSettings
from ringmq_node.resources.connection_states import ConnectionStates
from ringmq_node.resources.credit import Credit

BATCHES = 3 * ANSWERS_MAX


class Peer:
    """Sends batches of one message with these sequences; reads once `reading` is set."""

    def __init__(self, sequences: Sequence[int], *, then_quiet: bool = False) -> None:
        self.reading = asyncio.Event()
        self.got: list[broker.PublishResponse] = []
        self.sent = 0
        self.changed = asyncio.Event()
        self._sequences = sequences
        self._then_quiet = then_quiet

    @property
    def next_bytes(self) -> int | None:
        return 10 if self.sent < len(self._sequences) else None

    async def wait_message(self) -> int:
        if self.sent == len(self._sequences):
            if self._then_quiet:
                await asyncio.Event().wait()
            return 0
        return 10

    async def read(self) -> Any:
        if self.sent == len(self._sequences):
            return None
        batch = broker.PublishBatch(first_sequence=self._sequences[self.sent], bodies=[b"x"])
        self.sent += 1
        if self.sent % 64 == 0:
            await asyncio.sleep(0)
        return broker.PublishRequest(batch=batch).SerializeToString()

    @property
    def is_writable(self) -> bool:
        return self.reading.is_set()

    def write_now(self, data: bytes) -> None:
        self.got.append(broker.PublishResponse.FromString(data))

    async def write(self, data: bytes) -> None:
        await self.reading.wait()
        self.got.append(broker.PublishResponse.FromString(data))


async def stream_of(peer: Peer, heartbeat_s: float = 30.0) -> PublishStream:
    """A publish stream to a queue that confirms at once."""

    streams: list[PublishStream] = []

    def publish(first: int, bodies: Sequence[bytes], *_: Any, **__: Any) -> None:
        if first < 1:
            raise bad_request("sequences begin with 1", field="first_sequence")
        streams[0].confirmed([(first, first)])

    async def wait_room(size_bytes: int) -> None: ...

    async def open_publisher(queue: str, stream: PublishStream, **_: Any) -> Any:
        streams.append(stream)
        return SimpleNamespace(
            publish=publish,
            wait_room=wait_room,
            has_room=True,
            park=lambda size_bytes: None,
            block_reasons=tuple,
            is_readable=True,
            close=lambda *, has_ended: None,
            last_sequence=0,
            epoch=1,
            queue_id="id",
        )

    broker_played = SimpleNamespace(
        settings=BrokerSettings(1024, 1024, heartbeat_s),
        node="a",
        open_publisher=open_publisher,
        buffers=SimpleNamespace(credit=Credit()),
    )
    states = ConnectionStates("a", lambda: 0.0, frozenset)
    return await PublishStream.open(
        cast(Any, peer),
        cast(Any, broker_played),
        broker.PublishOpen(),
        states.stream("peer").__enter__(),
    )


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await work()

    loops.run(main())


async def settled(peer: Peer) -> None:
    """Returns when nothing more is read from the peer."""
    sent = -1
    while sent != peer.sent:
        sent = peer.sent
        for _ in range(20):
            await asyncio.sleep(0)


def confirmed(peer: Peer) -> list[tuple[int, int]]:
    return [(pair.first, pair.last) for answer in peer.got for pair in answer.confirmed.sequences]


def test_confirms_that_wait_become_one() -> None:
    async def work() -> None:
        peer = Peer(range(1, BATCHES + 1))
        running = asyncio.create_task((await stream_of(peer)).run())
        await settled(peer)
        assert peer.sent == BATCHES
        peer.reading.set()
        await running
        assert [answer.WhichOneof("response") for answer in peer.got] == ["opened", "confirmed"]
        assert confirmed(peer) == [(1, BATCHES)]

    run(work)


def test_who_does_not_read_is_not_read() -> None:
    """Confirms that can't be merged: each second sequence."""

    async def work() -> None:
        peer = Peer(range(1, 2 * BATCHES, 2))
        running = asyncio.create_task((await stream_of(peer)).run())
        await settled(peer)
        assert ANSWERS_MAX <= peer.sent <= ANSWERS_MAX + 1
        peer.reading.set()
        await running
        assert peer.sent == BATCHES
        assert confirmed(peer) == [(each, each) for each in range(1, 2 * BATCHES, 2)]

    run(work)


def test_requests_that_are_here_already_are_read_in_pieces() -> None:
    """Each takes 6 ms by this clock; without pauses 63 of them were one turn of the loop."""

    async def work() -> None:
        peer = Peer(range(1, 60))
        turns = [0]
        with timed_by(partial(next, count(step=0.006))):
            running = asyncio.create_task((await stream_of(peer)).run())
            while peer.sent < 59:
                await asyncio.sleep(0)
                turns.append(peer.sent)
        assert max(behind - before for before, behind in pairwise(turns)) <= 2
        peer.reading.set()
        await running

    run(work)


def test_what_is_merged_for_a_slow_reader_stays_small_enough_to_be_made_at_once() -> None:
    async def work() -> None:
        peer = Peer([])
        writer = StreamWriter(cast(Any, peer), response_of)
        writing = asyncio.create_task(writer.run())
        for first in range(1, 10 * MERGED_RANGES_MAX, 2 * 100):
            writer.put_ranges([(each, each) for each in range(first, first + 200, 2)])
        await asyncio.sleep(0)
        peer.reading.set()
        writer.close()
        await writing
        counts = [len(answer.confirmed.sequences) for answer in peer.got]
        assert sum(counts) == len(confirmed(peer)) > 4 * MERGED_RANGES_MAX
        assert max(counts) < MERGED_RANGES_MAX + 100
        assert confirmed(peer) == sorted(confirmed(peer))

    run(work)


def response_of(ranges: Sequence[tuple[int, int]]) -> broker.PublishResponse:
    return broker.PublishResponse(confirmed=broker.Confirmed(sequences=ranges_to_wire(ranges)))


def test_a_refusal_stays_behind_the_confirms_before_it() -> None:
    async def work() -> None:
        peer = Peer([1, 2, 0, 3])
        running = asyncio.create_task((await stream_of(peer)).run())
        await settled(peer)
        peer.reading.set()
        await running
        kinds = [answer.WhichOneof("response") for answer in peer.got]
        assert kinds == ["opened", "confirmed", "rejected", "confirmed"]

    run(work)


def test_who_never_reads_again_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its heartbeats can't be heard: they come behind requests that aren't read."""
    monkeypatch.setattr(streams, "LAST_WRITE_S", 0.01)

    async def work() -> None:
        peer = Peer(range(1, 2 * BATCHES, 2))
        stream = await stream_of(peer, heartbeat_s=0.02)
        await stream.run()
        assert peer.sent < BATCHES

    run(work)


def test_heartbeats_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LAST_WRITE_S", 0.01)

    async def work() -> None:
        peer = Peer([], then_quiet=True)
        stream = await stream_of(peer, heartbeat_s=0.01)
        running = asyncio.create_task(stream.run())
        for _ in range(20):
            stream._heard = True
            await asyncio.sleep(0.01)
        assert not running.done()
        assert len(stream.writer._messages) <= 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(work)
