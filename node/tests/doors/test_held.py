"""Batches that a publish stream has read and its queue doesn't take: credit, order, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import loops
import pytest

from ringmq.v1 import broker_pb2 as broker
from ringmq_gm import RingClosedError
from ringmq_node.broker.locating import NOWHERE, Location
from ringmq_node.doors.grpc.streams import PublishStream
from ringmq_node.model.flow import BlockReason
from ringmq_node.model.reasons import Reason
from ringmq_node.model.settings import BrokerSettings
from ringmq_node.replica.upkeep import FullQueueRefusal
from ringmq_node.resources.connection_states import ConnectionStates
from ringmq_node.resources.credit import Credit

CREDIT = Credit(10, 5, 10_000)


class Played:
    """A client that has sent `total` batches of one message and a heartbeat behind each, and a
    queue that takes them while `open` is set."""

    def __init__(self, total: int, *, failure: Exception | None = None) -> None:
        self.open = asyncio.Event()
        self.sent = 0
        self.published: list[int] = []
        self.parked = 0
        self.got: list[broker.PublishResponse] = []
        self.failure = failure
        # The queue has its length.
        self.refuses = False
        self.ending = asyncio.Event()
        self.streams: list[PublishStream] = []
        self._requests: list[broker.PublishRequest] = []
        for number in range(1, total + 1):
            batch = broker.PublishBatch(first_sequence=number, bodies=[b"x"])
            self._requests += [
                broker.PublishRequest(batch=batch),
                broker.PublishRequest(heartbeat=broker.Heartbeat()),
            ]

    # The stream's context.

    is_writable = True

    @property
    def next_bytes(self) -> None:
        """Each one is waited for."""

    async def wait_message(self) -> int:
        if self.sent == len(self._requests):
            await self.ending.wait()
            return 0
        return len(self._requests[self.sent].SerializeToString())

    async def read(self) -> bytes | None:
        if self.sent == len(self._requests):
            return None
        self.sent += 1
        return self._requests[self.sent - 1].SerializeToString()

    def write_now(self, data: bytes) -> None:
        self.got.append(broker.PublishResponse.FromString(data))

    async def write(self, data: bytes) -> None:
        self.write_now(data)

    # The queue.

    async def wait_room(self, size_bytes: int) -> None:
        await self.open.wait()
        if self.failure is not None:
            self.streams[0].moved(Reason.NOT_MASTER)
            raise self.failure

    def park(self, size_bytes: int) -> None:
        self.parked += size_bytes

    async def stream(self) -> PublishStream:
        streams = self.streams

        def publish(first: int, bodies: Sequence[bytes], *_: Any, **__: Any) -> None:
            self.published.append(first)
            if self.refuses:
                raise FullQueueRefusal("q", [(first, first)])
            streams[0].confirmed([(first, first)])

        async def open_publisher(queue: str, stream: PublishStream, **_: Any) -> Any:
            streams.append(stream)
            return _Publishing(self, publish)

        door = SimpleNamespace(
            settings=BrokerSettings(1024, 1024, 30.0),
            node="a",
            open_publisher=open_publisher,
            buffers=SimpleNamespace(credit=CREDIT),
        )
        states = ConnectionStates("a", lambda: 0.0, frozenset)
        return await PublishStream.open(
            cast(Any, self),
            cast(Any, door),
            broker.PublishOpen(),
            states.stream("peer").__enter__(),
        )


class _Publishing:
    last_sequence, epoch, queue_id, is_readable = 0, 1, "id", True

    def __init__(self, played: Played, publish: Callable[..., None]) -> None:
        self.publish = publish
        self.park = played.park
        self.wait_room = played.wait_room
        self._played = played

    @property
    def has_room(self) -> bool:
        return self._played.open.is_set()

    def block_reasons(self) -> tuple[BlockReason, ...]:
        return (BlockReason.DISK,)

    def successor(self) -> Location:
        return NOWHERE

    def close(self, *, has_ended: bool) -> None: ...


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await work()

    loops.run(main())


async def settled(played: Played) -> None:
    before = -1
    while before != played.sent:
        before = played.sent
        for _ in range(20):
            await asyncio.sleep(0)


def test_a_stream_is_read_up_to_its_credit_and_heartbeats_behind_it() -> None:
    async def work() -> None:
        played = Played(100)
        running = asyncio.create_task((await played.stream()).run())
        await settled(played)
        # Ten batches with their heartbeats. The next one waits for credit where the transport is.
        assert played.sent == 2 * CREDIT.messages
        assert played.published == []
        assert played.parked > 0
        played.open.set()
        played.ending.set()
        await running
        assert played.published == list(range(1, 101))
        told = [each.WhichOneof("response") for each in played.got]
        assert told[:2] == ["opened", "blocked"]
        assert told.count("unblocked") == 1
        assert played.parked == 0

    run(work)


def test_a_client_that_half_closes_hears_of_batches_that_were_held() -> None:
    async def work() -> None:
        played = Played(3)
        running = asyncio.create_task((await played.stream()).run())
        played.ending.set()
        await settled(played)
        assert not running.done()
        played.open.set()
        await running
        confirmed = [
            (pair.first, pair.last) for each in played.got for pair in each.confirmed.sequences
        ]
        assert {number for first, last in confirmed for number in range(first, last + 1)} == {
            *range(1, 4)
        }

    run(work)


def test_a_client_that_half_closes_hears_that_held_batches_are_refused() -> None:
    async def work() -> None:
        played = Played(3)
        played.refuses = True
        running = asyncio.create_task((await played.stream()).run())
        played.ending.set()
        await settled(played)
        played.open.set()
        await running
        refused = [each.rejected for each in played.got if each.HasField("rejected")]
        assert [each.sequences.first for each in refused] == [1, 2, 3]

    run(work)


@pytest.mark.parametrize("cancelled", [True, False], ids=["the client", "the ring"])
def test_nothing_is_left_when_either_end_dies(cancelled: bool) -> None:
    async def work() -> None:
        played = Played(100, failure=RingClosedError("q"))
        stream = await played.stream()
        running = asyncio.create_task(stream.run())
        await settled(played)
        if cancelled:
            running.cancel()
        else:
            played.open.set()
        await asyncio.gather(running, return_exceptions=True)
        for _ in range(20):
            await asyncio.sleep(0)
        assert played.published == []
        assert played.parked == 0

    run(work)


def test_a_batch_that_is_added_behind_the_end_takes_nothing() -> None:
    async def work() -> None:
        played = Played(0)
        held = (await played.stream()).held
        held.close()
        held.add(broker.PublishBatch(first_sequence=1, bodies=[b"x"]), 10, lambda _: None)
        await asyncio.sleep(0)
        assert played.parked == 0

    run(work)
