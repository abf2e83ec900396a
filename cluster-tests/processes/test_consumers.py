"""The promises to consumers: prefetch, order, redelivery, requeue, at any node."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from nemesis import Cluster, scenario, until
from nemesis.oracle import body_of, parse_body
from nemesis.wire import RawStream, Refusal

import ringmq
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common


async def fill(cluster: Cluster, messages: int, queue: str = "q") -> None:
    async with cluster.client() as client, client.publisher(queue) as publisher:
        await publisher.publish_batch([body_of("p", i, 100) for i in range(messages)])


async def take(consumer: ringmq.Consumer, messages: int) -> list[ringmq.Message]:
    """Exactly so many messages, which stay unsettled."""
    found: list[ringmq.Message] = []
    while len(found) < messages:
        batch = await consumer.next_batch(timeout_s=10.0)
        assert batch is not None, f"{len(found)} of {messages} came"
        found += batch
    assert len(found) == messages
    return found


async def take_behind(consumer: ringmq.Consumer, generation: int) -> ringmq.Batch:
    """The first batch of a later stream."""
    while (batch := await consumer.next_batch(timeout_s=20.0)) is not None:
        if batch.generation > generation:
            return batch
    raise AssertionError(f"no batch behind generation {generation} came")


def numbers(messages: list[ringmq.Message]) -> list[int]:
    return [parse_body(message.body)[1] for message in messages]


@scenario(deadline_s=30)
async def test_prefetch_bounds_what_is_unsettled(cluster: Cluster) -> None:
    await fill(cluster, 100)
    async with cluster.client() as client, client.consumer("q", prefetch=10) as consumer:
        got = await take(consumer, 10)
        assert numbers(got) == list(range(10))
        assert await consumer.next_batch(timeout_s=0.3) is None
        assert (await client.queue("q")).messages_unacknowledged == 10
        # From the middle: a range, then a single one.
        assert await consumer.ack(got[3].position, got[6].position, wait=True)
        assert await consumer.ack(got[9], wait=True)
        more = await take(consumer, 5)
        assert numbers(more) == list(range(10, 15))
        with pytest.raises(ringmq.UnknownDeliveryError):
            await consumer.ack(got[3])


@scenario(deadline_s=30)
async def test_prefetch_in_bytes(cluster: Cluster) -> None:
    """At most so many unsettled bytes; a single message always passes, however large it is."""
    await fill(cluster, 20)
    async with cluster.client() as client:
        async with client.consumer("q", prefetch_bytes=350) as consumer:
            assert len(await take(consumer, 3)) == 3
            assert await consumer.next_batch(timeout_s=0.2) is None
        async with client.consumer("q", prefetch_bytes=1) as consumer:
            for expected in range(3):
                (only,) = await take(consumer, 1)
                assert numbers([only]) == [expected]
                assert await consumer.next_batch(timeout_s=0.1) is None
                await consumer.ack(only)


@scenario(deadline_s=30)
async def test_requeued_to_their_places(cluster: Cluster) -> None:
    """Requeued messages come again in order, before later ones, and marked as redelivered."""
    await fill(cluster, 20)
    async with cluster.client() as client, client.consumer("q", prefetch=10) as consumer:
        got = await take(consumer, 10)
        await consumer.ack(got[0].position, got[4].position)
        await consumer.nack(got[5].position, got[8].position)
        await consumer.nack(got[9], requeue=False)
        again = await take(consumer, 10)
        assert numbers(again) == [5, 6, 7, 8, *range(10, 16)]
        assert [message.redelivered for message in again] == [True] * 4 + [False] * 6


@scenario(deadline_s=30)
async def test_dead_consumer(cluster: Cluster) -> None:
    """Another consumer gets the dead one's unsettled messages, in order and marked; not the acked.

    The dead one had been given 60: after it had acked ten there was room for ten more.
    """
    await fill(cluster, 100)
    async with cluster.client() as survivor:
        async with cluster.client() as client:
            dying = client.consumer("q", prefetch=50)
            await dying.open()
            got = await take(dying, 50)
            await dying.ack(got[0].position, got[9].position, wait=True)
        async with survivor.consumer("q", prefetch=90) as other:
            rest = await take(other, 90)
    assert numbers(rest) == list(range(10, 100))
    assert [message.redelivered for message in rest] == [True] * 50 + [False] * 40


@scenario(deadline_s=60)
async def test_consumer_hears_of_moves_and_failovers(cluster: Cluster) -> None:
    """So that its program drops what it has in hand. What was unsettled comes again."""
    await fill(cluster, 20)
    told: list[int] = []
    async with cluster.client() as client:
        async with client.consumer("q", prefetch=10, on_interrupted=told.append) as consumer:
            messages = await take(consumer, 10)
            assert await consumer.ack(messages[0], wait=True)
            assert told == []
            await client.promote_mirror("q", (await cluster.mirrors_of("q"))[0])
            moved = await take_behind(consumer, 1)
            assert told == [*range(1, moved.generation)]
            assert (numbers([moved[0]]), moved[0].redelivered) == ([1], True)
            cluster.kill(await cluster.master_of("q"))
            failed_over = await take_behind(consumer, moved.generation)
            assert told == [*range(1, failed_over.generation)]
            assert (numbers([failed_over[0]]), failed_over[0].redelivered) == ([1], True)
        assert told == [*range(1, failed_over.generation)]


@scenario(deadline_s=30)
async def test_two_consumers_share(cluster: Cluster) -> None:
    await fill(cluster, 200)
    async with (
        cluster.client() as client,
        client.consumer("q", prefetch=50) as one,
        client.consumer("q", prefetch=50) as two,
    ):
        mine, yours = await take(one, 50), await take(two, 50)
        assert sorted(numbers(mine) + numbers(yours)) == list(range(100))
        assert (await client.queue("q")).consumers == 2
        for message in yours:
            await two.ack(message)
        assert len(await take(two, 50)) == 50


async def cancel_and_settle_five(stream: RawStream) -> None:
    """Of twenty messages, ten are given out, the consumer is cancelled, and then five are acked."""
    await stream.open_consumer("q", prefetch=10)
    delivered = (await stream.receive()).deliveries.deliveries
    assert sum(len(each.bodies) for each in delivered) == 10
    await stream.send(broker.ConsumeRequest(cancel=broker.ConsumeCancel()))
    assert (await stream.receive()).HasField("cancelled")
    ack = broker.Settle(ack=[common.Range(first=0, last=4)])
    await stream.send(broker.ConsumeRequest(settle=ack))
    settled = (await stream.receive()).settled
    assert [(each.first, each.last) for each in settled.positions] == [(0, 4)]


async def fifteen_are_ready(cluster: Cluster) -> None:
    async with cluster.client() as client:

        async def is_requeued() -> bool:
            return (await client.queue("q")).messages_ready == 15

        await until(is_requeued, "the unsettled messages are ready again")
        batch = await client.get_messages("q", 20)
    assert [message.position for message in batch] == [*range(5, 20)]


@scenario(deadline_s=30)
async def test_cancelled_consumer_may_still_settle(cluster: Cluster) -> None:
    await fill(cluster, 20)
    async with RawStream(cluster.seeds[0], "Consume") as stream:
        await cancel_and_settle_five(stream)
    await fifteen_are_ready(cluster)
    await cluster.wait_equal("q")


@scenario(deadline_s=60)
async def test_the_master_dies_under_a_cancelled_consumer(cluster: Cluster) -> None:
    """What it settled is gone, and the rest is back, in its places."""
    await fill(cluster, 20)
    master = await cluster.master_of("q")
    async with RawStream(cluster.addresses[master], "Consume") as stream:
        await cancel_and_settle_five(stream)
        cluster.kill(master)
    await cluster.wait_synchronised("q", 2)
    await fifteen_are_ready(cluster)
    await cluster.start(master)
    await cluster.wait_synchronised("q")
    await cluster.wait_equal("q")


@scenario(deadline_s=30)
async def test_through_any_node(cluster: Cluster) -> None:
    """A node that is not the master passes streams and calls on, byte for byte."""
    bodies = [body_of("p", i, 100) for i in range(10)]
    for mirror in await cluster.mirrors_of("q"):
        address = cluster.addresses[mirror]
        async with RawStream(address, "Publish") as stream:
            await stream.open_publisher("q", b"")
            await stream.send_batch(1, bodies)
            await stream.confirmed_up_to(10)
            # The client's connection, and that of the node which relays it.
            async with cluster.client() as client:
                found = (await client.operator.connections()).connections
            publishing = {(each.node, each.relayed) for each in found if each.publishers}
            assert publishing == {(mirror, False), (await cluster.master_of("q"), True)}
        async with RawStream(address, "Consume") as stream:
            await stream.open_consumer("q")
            (delivery,) = (await stream.receive()).deliveries.deliveries
            assert list(delivery.bodies) == bodies
            # Any node tells of it, and where its client is.
            for asked in cluster.addresses.values():
                async with ringmq.connect(asked) as client:
                    (listed,) = await client.operator.consumers("q")
                    assert (listed.node, listed.messages_unacknowledged) == (mirror, 10)
                    connections = (await client.operator.connections()).connections
                    assert (mirror, listed.peer) in {(each.node, each.peer) for each in connections}
            first = delivery.first_position
            ack = broker.Settle(ack=[common.Range(first=first, last=first + 9)])
            await stream.send(broker.ConsumeRequest(settle=ack))
            assert (await stream.receive()).HasField("settled")
            # A wrong ack ends the stream, here as at the master.
            await stream.send(broker.ConsumeRequest(settle=ack))
            with pytest.raises(Refusal) as caught:
                await stream.receive()
            assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
            assert caught.value.reason == "UNKNOWN_DELIVERY"
    assert (await cluster.info("q")).messages_ready == 0


@scenario(deadline_s=30)
async def test_get_peek_and_purge(cluster: Cluster) -> None:
    await fill(cluster, 50)
    async with cluster.client() as client:
        assert numbers(list(await client.get_messages("q", 3))) == [0, 1, 2]
        assert numbers(list(await client.get_messages("q", 3, remove=True))) == [0, 1, 2]
        assert numbers(list(await client.get_messages("q", 2))) == [3, 4]
        async with client.consumer("q", prefetch=10) as consumer:
            held = await take(consumer, 10)
            assert await client.purge_queue("q") == 37
            assert await client.purge_queue("q") == 0
            await consumer.nack(held[0])
            assert numbers(await take(consumer, 1)) == [3]
        await fill(cluster, 1)
        assert len(await client.get_messages("q", 100)) == 11
    for replica in await cluster.wait_equal("q"):
        assert replica.messages == 11


@scenario(deadline_s=30)
async def test_deleted_under_live_streams(cluster: Cluster) -> None:
    """Deleting a queue ends its streams with its name and a reason; a new queue of the same name
    starts empty."""
    await fill(cluster, 10)
    async with cluster.client() as client:
        with pytest.raises(ringmq.QueueNotEmptyError):
            await client.delete_queue("q", if_empty=True)
        consumer = client.consumer("q")
        publisher = client.publisher("q")
        await consumer.open()
        await publisher.open()
        assert len(await take(consumer, 10)) == 10
        with pytest.raises(ringmq.QueueInUseError):
            await client.delete_queue("q", if_unused=True)
        assert await client.delete_queue("q") == 10
        with pytest.raises(ringmq.QueueNotFoundError):
            await consumer.next_batch(timeout_s=10.0)
        with pytest.raises(ringmq.QueueNotFoundError):
            await publisher.publish(b"too late")
        await consumer.close()
        await publisher.close(flush=False)
        with pytest.raises(ringmq.QueueNotFoundError):
            await client.queue("q")
        with pytest.raises(ringmq.QueueNotFoundError):
            await client.delete_queue("q")
        await client.declare_queue("q")
        info = await client.queue("q")
        assert (info.messages_ready, info.next_position) == (0, 0)
    # A queue has no folder before its first op.
    await fill(cluster, 1)
    await cluster.wait_equal("q")
    for name in cluster.nodes:
        folders = [path.name for path in (cluster.data(name) / "queues").iterdir()]
        assert len(folders) == 1, folders


@scenario(deadline_s=30)
async def test_declared_again(cluster: Cluster) -> None:
    """The same declaration changes nothing. Another one is refused, and names the argument."""
    await fill(cluster, 1)
    async with cluster.client() as client:
        assert (await client.declare_queue("q")).messages_ready == 1
        assert (await client.declare_queue("q", replicas=3, min_insync=2)).min_insync == 2
        with pytest.raises(ringmq.QueueExistsError, match="replicas 3, not 2") as caught:
            await client.declare_queue("q", replicas=2)
        assert caught.value.metadata["field"] == "replicas"
        with pytest.raises(ringmq.QueueExistsError, match="min_insync 2, not 1"):
            await client.declare_queue("q", min_insync=1)
        await client.declare_queue("q", mode=ringmq.QueueMode.DEFAULT)
        with pytest.raises(ringmq.QueueExistsError, match="mode default, not lazy") as caught:
            await client.declare_queue("q", mode=ringmq.QueueMode.LAZY)
        assert caught.value.metadata["field"] == "mode"
        with pytest.raises(ringmq.LimitExceededError):
            await client.declare_queue("wide", replicas=4)
        with pytest.raises(ringmq.BadRequestError):
            await client.declare_queue("strange", replicas=2, min_insync=3)
        both = await asyncio.gather(
            *(client.declare_queue("together") for _ in range(5)), return_exceptions=True
        )
        assert not [each for each in both if isinstance(each, BaseException)]


@scenario(deadline_s=30)
async def test_transient_messages(cluster: Cluster) -> None:
    """Transient messages are confirmed and delivered like others, and gone once the whole ring
    has been restarted."""
    async with cluster.client() as client, client.publisher("q") as publisher:
        await publisher.publish_batch([body_of("t", i, 100) for i in range(10)], transient=True)
        await publisher.publish(body_of("p", 0, 100))
        assert len(await client.get_messages("q")) == 11
        cluster.kill(await cluster.master_of("q"))
        await cluster.wait_synchronised("q", 2)
        assert len(await client.get_messages("q")) == 11
    cluster.kill(*cluster.nodes)
    await cluster.start()
    await cluster.wait_synchronised("q")
    async with cluster.client() as client:
        left = await client.get_messages("q")
        assert [parse_body(message.body) for message in left] == [("p", 0)]
    await cluster.wait_equal("q")
