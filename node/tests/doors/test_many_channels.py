"""One connection with many publish streams, at a node whose store is slow, or at a queue that takes
nothing: what is held is bounded by the node's one budget, not by a share of each stream, and other
calls of the connection go on.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from loops import run
from node.tests.broker.test_slow_disk import SlowDisk
from node.tests.nodes import called_node
from waiting import until

import ringmq
from ringmq.v1 import broker_pb2 as broker
from ringmq_base.limits import KIB, MIB
from ringmq_node.doors.grpc.held import HeldBatches
from ringmq_node.node import Node
from ringmq_node.replica.room import QueueRoom
from ringmq_node.resources.budget import SHARE
from ringmq_wire import WireChannel

CHANNELS = 100
BATCHES = 3
BODY = bytes(64 * KIB)
PUBLISH_BYTES_MAX = MIB
UNSYNCED_BYTES_MAX = MIB
# Of a batch, beside its body.
MORE_BYTES = KIB


class Most:
    """The most bytes that a node had, looked at in each turn of the loop."""

    def __init__(self, node: Node) -> None:
        self._budget = node.budget
        self.held_bytes = self.under_way_bytes = 0

    async def look(self) -> None:
        while True:
            self.held_bytes = max(self.held_bytes, self._budget.held_bytes)
            self.under_way_bytes = max(self.under_way_bytes, self._budget.under_way_bytes)
            await asyncio.sleep(0)


async def publish(channel: WireChannel, queue: str, start: asyncio.Barrier) -> None:
    """All channels send at once: each of them waits for a message by then."""
    stream = await channel.stream("/ringmq.v1.Broker/Publish")
    opening = broker.PublishRequest(open=broker.PublishOpen(queue=queue))
    await stream.write(opening.SerializeToString())
    assert broker.PublishResponse.FromString(await stream.read() or b"").HasField("opened")
    await start.wait()
    for sequence in range(1, BATCHES + 1):
        batch = broker.PublishBatch(first_sequence=sequence, bodies=[BODY])
        await stream.write(broker.PublishRequest(batch=batch).SerializeToString())
    stream.half_close()
    confirmed = 0
    while (data := await stream.read()) is not None:
        response = broker.PublishResponse.FromString(data)
        for pair in response.confirmed.sequences:
            confirmed += pair.last - pair.first + 1
        assert not response.HasField("rejected"), response
    assert confirmed == BATCHES


@pytest.mark.slow
def test_many_channels_of_a_connection_share_the_nodes_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)

    async def story(node: Node, channel: WireChannel) -> None:
        async with ringmq.connect(node.address) as client:
            for queue in ("p", "q", "r"):
                await client.declare_queue(queue)
            disk.folder = tmp_path
            most = Most(node)
            looking = asyncio.create_task(most.look())
            start = asyncio.Barrier(CHANNELS)
            publishing = [
                asyncio.create_task(publish(channel, "pqr"[number % 3], start))
                for number in range(CHANNELS)
            ]
            await until(lambda: most.held_bytes >= PUBLISH_BYTES_MAX, "the doors are full")
            # The connection isn't stuck: its window doesn't wait for its channels.
            request = broker.GetQueueRequest(queue="q").SerializeToString()
            await channel.unary("/ringmq.v1.Broker/GetQueue", request, timeout_s=10.0)
            assert not all(map(asyncio.Task.done, publishing))
            await asyncio.gather(*publishing)
            looking.cancel()
            ready = [(await client.queue(queue)).messages_ready for queue in ("p", "q", "r")]
            assert sum(ready) == CHANNELS * BATCHES
        batch = len(BODY) + MORE_BYTES
        # It was reached, and passed by one batch at most.
        assert PUBLISH_BYTES_MAX <= most.held_bytes <= PUBLISH_BYTES_MAX + batch
        # With the store and the ring, which count a batch twice. It was 18 MiB that were sent.
        assert most.under_way_bytes <= 4 * PUBLISH_BYTES_MAX
        assert (node.budget.held_bytes, node.budget.waiting) == (0, 0)

    async def main() -> None:
        limits = {
            "publish_bytes_max": PUBLISH_BYTES_MAX,
            "unsynced_bytes_max": UNSYNCED_BYTES_MAX,
        }
        async with called_node(tmp_path, **limits) as called:
            try:
                async with asyncio.timeout(60):
                    await story(*called)
            finally:
                disk.folder = None

    run(main())


class ShutQueues:
    """Queues that take nothing, as those whose ring is full or whose dead letters wait; and the
    bytes that doors have read for them, whatever the node counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read_bytes = 0
        self._rooms: set[QueueRoom] = set()
        add = HeldBatches.add

        def counted(held: HeldBatches, batch: Any, size_bytes: int, publish: Any) -> None:
            self.read_bytes += size_bytes
            add(held, batch, size_bytes, publish)

        monkeypatch.setattr(HeldBatches, "add", counted)
        takes = property(lambda room: room not in self._rooms)
        monkeypatch.setattr(QueueRoom, "_letters_fit", takes)

    def shut(self, node: Node, queue: str) -> None:
        self._rooms.add(node.broker._locator.replica_of(queue).serving().room)

    def open(self) -> None:
        while self._rooms:
            self._rooms.pop().look()


@pytest.mark.slow
def test_what_channels_hold_for_a_queue_that_takes_nothing_leaves_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shut = ShutQueues(monkeypatch)
    share_bytes = PUBLISH_BYTES_MAX * SHARE // (SHARE + 1)

    async def story(node: Node, channel: WireChannel) -> None:
        async with ringmq.connect(node.address) as client:
            for queue in ("q", "r"):
                await client.declare_queue(queue)
            shut.shut(node, "q")
            start = asyncio.Barrier(CHANNELS)
            publishing = [
                asyncio.create_task(publish(channel, "q", start)) for _ in range(CHANNELS)
            ]
            sent = CHANNELS * BATCHES * len(BODY)

            def is_all_there() -> bool:
                is_there = shut.read_bytes + node.buffers.unread.held_bytes >= sent
                return is_there and shut.read_bytes >= share_bytes

            await until(is_all_there, "what was sent is at a door, or in front of it")
            assert shut.read_bytes <= share_bytes + len(BODY) + MORE_BYTES < PUBLISH_BYTES_MAX
            assert node.budget.held_bytes == shut.read_bytes
            # Its publishers hear both: what stops the queue, and why their streams aren't read.
            (connection,) = [
                each
                for each in (await client.operator.connections()).connections
                if each.publishers
            ]
            assert connection.state is ringmq.ConnectionState.FLOW
            assert {*connection.flow_reasons} == {
                ringmq.BlockReason.DEAD_LETTERS,
                ringmq.BlockReason.PUBLISH_BUDGET,
            }
            # Another queue's publishers are read all the same, also on the same connection.
            await asyncio.gather(*[publish(channel, "r", asyncio.Barrier(1)) for _ in range(5)])
            assert (await client.queue("r")).messages_ready == 5 * BATCHES
            assert not any(map(asyncio.Task.done, publishing))
            shut.open()
            await asyncio.gather(*publishing)
            assert (await client.queue("q")).messages_ready == CHANNELS * BATCHES
        assert (node.budget.held_bytes, node.budget.waiting) == (0, 0)

    async def main() -> None:
        async with (
            called_node(tmp_path, publish_bytes_max=PUBLISH_BYTES_MAX) as called,
            asyncio.timeout(60),
        ):
            await story(*called)

    run(main())
