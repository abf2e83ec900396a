"""Properties count towards the limits of a publish, of a delivery and of a get."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from loops import run
from node.tests.broker.test_deleting import with_node
from node.tests.nodes import replica_of, running_nodes
from waiting import leeway

import ringmq
from ringmq.errors import MessageTooLargeError
from ringmq.publishing import stream
from ringmq.publishing.answers import Limits
from ringmq.publishing.asked import MessageOptions
from ringmq.v1 import common_pb2 as common
from ringmq_node.node import Node
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.consumers import ConsumerTerms
from ringmq_node.queue.deliveries import TURN_BYTES_MAX
from ringmq_node.queue.effects import DeliverRuns
from ringmq_node.queue.master import QueueMaster
from ringmq_node.queue.ops import Publish
from ringmq_node.queue.run import Run
from ringmq_node.replica.description import queue_info
from ringmq_node.replica.reading import MasterBodies, read_whole
from ringmq_node.storage import QueueStore, Store, StoreError

COUNT = 60
PROPERTIES = common.Properties(correlation_id="y" * 40_000).SerializeToString()


def small_bodies(folder: Path, blocks: list[Block]) -> tuple[QueueMaster, QueueStore]:
    """The master of a queue with these messages, all confirmed."""
    store = Store.open(folder, cluster_id="c", node="a")
    queue = store.open_queue("q")
    queue.begin_epoch(1)
    failures: list[StoreError] = []
    master = QueueMaster(queue.state, MasterBodies(queue, failures.append))
    for number, block in enumerate(blocks, 1):
        op = Publish(queue.state.next_position, block)
        queue.append(number, op, ops.encode(op))
        master.published(number, op, 1)
    master.watermarks(len(blocks), len(blocks))
    return master, queue


def sent(runs: list[Run] | tuple[Run, ...]) -> int:
    return sum(len(part) for run in runs for part in run.block.bodies() + run.block.properties())


@pytest.mark.parametrize("each", [1, COUNT])
def test_one_delivery_and_one_get_are_bounded(tmp_path: Path, each: int) -> None:
    """The bound is on sent bytes, for messages published singly or in a batch; none is left out."""
    blocks = [Block.of([b"x"] * each, [PROPERTIES] * each)] * (COUNT // each)
    master, queue = small_bodies(tmp_path, blocks)
    bound = TURN_BYTES_MAX + len(PROPERTIES) + 1
    peeked = master.peek(COUNT, TURN_BYTES_MAX)
    read = read_whole(queue, 0, COUNT, bytes_max=TURN_BYTES_MAX, messages_max=COUNT, ahead=False)
    taken, effects = master.take(9, COUNT, TURN_BYTES_MAX)
    for runs in (peeked, read, taken):
        assert bound // 2 < sent(runs) <= bound
    effects += master.consumer_opened(7, ConsumerTerms(COUNT, 16 << 20))
    effects += master.consumer_begun(7)
    turns = [effect.runs for effect in effects if isinstance(effect, DeliverRuns)]
    assert len(turns) > 1
    assert max(map(sent, turns)) <= bound
    positions = [
        run.first_position + place
        for runs in (taken, *turns)
        for run in runs
        for place in range(run.block.count)
    ]
    assert positions == [*range(COUNT)]


def test_properties_above_the_limit_are_refused(tmp_path: Path) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        limit = node.config.properties_bytes_max
        async with client.publisher("q") as publisher:
            await publisher.publish(
                b"x", properties=ringmq.Properties(correlation_id="y" * (limit - 8))
            )
            with pytest.raises(MessageTooLargeError, match="properties of"):
                await publisher.publish(
                    b"x", properties=ringmq.Properties(correlation_id="y" * limit)
                )
        assert queue_info(replica_of(node)).messages_ready == 1

    with_node(tmp_path, work)


@pytest.mark.parametrize("limit", [1024, 128 * 1024])
@pytest.mark.parametrize("exchange", [None, ""], ids=["to a queue", "to an exchange"])
def test_properties_above_the_limit_are_refused_to_their_own_caller_only(
    tmp_path: Path, exchange: str | None, limit: int
) -> None:
    """Messages of several callers share a request, which a node refuses whole."""

    async def test() -> None:
        async with (
            asyncio.timeout(leeway(20)),
            running_nodes(tmp_path, "a", properties_bytes_max=limit) as nodes,
            ringmq.connect(nodes["a"].address) as client,
        ):
            await client.declare_queue("q")
            queue = "q" if exchange is None else ""
            options: MessageOptions = {} if exchange is None else {"routing_key": "q"}
            too_large = ringmq.Properties(correlation_id="y" * limit)
            async with client.publisher(queue, exchange=exchange) as publisher:
                outcomes = await asyncio.gather(
                    publisher.publish(b"1", **options),
                    publisher.publish(b"2", ringmq.Properties(correlation_id="y"), **options),
                    publisher.publish(b"too large", too_large, **options),
                    publisher.publish_batch([b"3", b"4"], **options),
                    publisher.publish(b"too large", too_large, **options),
                    publisher.publish(b"5", **options),
                    return_exceptions=True,
                )
                failed = [index for index, outcome in enumerate(outcomes) if outcome is not None]
                assert failed == [2, 4]
                assert {type(outcomes[index]) for index in failed} == {MessageTooLargeError}
            assert await bodies_in(client) == [b"1", b"2", b"3", b"4", b"5"]

    run(test())


def test_too_large_properties_take_no_other_message_to_an_exchange_with_them(
    tmp_path: Path,
) -> None:
    """Requests of several calls are on their way behind them, and no gap has those refused."""
    limit, small = 1024, ringmq.Properties(correlation_id="y")
    too_large = ringmq.Properties(correlation_id="y" * limit)

    async def test() -> None:
        async with (
            asyncio.timeout(leeway(20)),
            running_nodes(tmp_path, "a", properties_bytes_max=limit) as nodes,
            ringmq.connect(nodes["a"].address) as client,
        ):
            await client.declare_queue("q")
            async with client.publisher(exchange="", window_messages=40) as publisher:
                assert publisher.properties_bytes_max == limit
                outcomes = await asyncio.gather(
                    *(
                        publisher.publish(
                            b"%d" % number,
                            too_large if number % 70 == 5 else small,
                            routing_key="q",
                        )
                        for number in range(500)
                    ),
                    return_exceptions=True,
                )
            failed = [number for number, each in enumerate(outcomes) if each is not None]
            assert failed == [*range(5, 500, 70)]
            for number in failed:
                error = outcomes[number]
                assert isinstance(error, MessageTooLargeError)
                assert (error.limit_bytes, error.metadata["field"]) == (limit, "properties")
            expected = [b"%d" % number for number in range(500) if number not in failed]
            assert await bodies_in(client) == expected

    run(test())


def test_messages_around_refused_ones_are_enqueued_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many requests are on their way, and several of them are refused."""
    # As if the client had been told of no limit: only so it sends what is above it.
    monkeypatch.setattr(stream, "Limits", lambda *told: Limits(*told[:3]))
    limit, small = 1024, ringmq.Properties(correlation_id="y")
    too_large = ringmq.Properties(correlation_id="y" * limit)

    async def test() -> None:
        async with (
            asyncio.timeout(leeway(20)),
            running_nodes(tmp_path, "a", properties_bytes_max=limit) as nodes,
            ringmq.connect(nodes["a"].address) as client,
        ):
            await client.declare_queue("q")
            publisher = client.publisher("q", window_messages=40)
            await publisher.open()
            futures = [
                await publisher.submit(b"%d" % number, too_large if number % 70 == 5 else small)
                for number in range(500)
            ]
            with pytest.raises(MessageTooLargeError):
                await publisher.close()
            failed = [number for number, each in enumerate(futures) if each.exception() is not None]
            assert failed == [*range(5, 500, 70)]
            expected = [b"%d" % number for number in range(500) if number not in failed]
            assert await bodies_in(client) == expected

    run(test())


async def bodies_in(client: ringmq.Client) -> list[bytes]:
    return [message.body for message in await client.get_messages("q", 1000)]


def test_a_message_to_the_queue_itself_has_the_queues_name_for_its_key(tmp_path: Path) -> None:
    """However it is read, and nothing of it is stored. One that came by an exchange with an empty
    key has none."""

    async def work(node: Node, client: ringmq.Client) -> None:
        await client.topology.declare_exchange("x", ringmq.ExchangeType.FANOUT)
        await client.topology.bind("x", "q")
        sent_bodies = [b"bare", b"with", b"routed"]
        async with client.publisher("q") as publisher:
            await publisher.publish(b"bare")
            await publisher.publish(b"with", properties=ringmq.Properties(correlation_id="c"))
        async with client.publisher(exchange="x") as routed:
            await routed.publish(b"routed")
        bare, _, _ = replica_of(node).store.fetch(0, 2, bytes_max=1000, messages_max=3)
        assert bare.block.properties() == []
        async with client.consumer("q") as consumer:
            delivered: list[ringmq.Message] = []
            while len(delivered) < 3:
                delivered += await consumer.next_batch(timeout_s=20.0) or ()
            await consumer.nack(delivered[0].position, delivered[-1].position)
        peeked = await client.get_messages("q", 3)
        async with client.consumer("q", pulls=True) as puller:
            pulled = await puller.pull(3)
        browsed = [m async for batch in client.reader("q").browse(0) for m in batch.messages]
        for messages in (delivered, [*peeked], [*pulled], browsed):
            assert [message.body for message in messages] == sent_bodies
            found = [(each.properties.exchange, each.properties.routing_key) for each in messages]
            assert found == [("", "q"), ("", "q"), ("x", "")]
            assert messages[1].properties.correlation_id == "c"

    with_node(tmp_path, work)
