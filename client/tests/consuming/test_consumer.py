"""A consumer over real streams to a node with its queues in memory (`fake_broker`)."""

from __future__ import annotations

import asyncio

import pytest
from fake_broker import FakeNode
from fake_nodes import two_nodes
from on_loops import Run, bodies, seconds
from waiting import until

import ringmq
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common


def test_batches_come_in_order_and_acks_go_as_ranges(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                await publisher.publish_batch(bodies(1000))
            seen: list[bytes] = []
            async with client.consumer("q", prefetch=100) as consumer:
                async for batch in consumer:
                    seen += batch.bodies
                    half = len(batch) // 2
                    await consumer.ack(batch[:half])
                    for message in batch[half:]:
                        await consumer.ack(message)
                    if len(seen) == 1000:
                        break
            assert seen == bodies(1000)
            assert node.queue("q").messages == {}
            assert len(node.settles) < 30
            assert sum(len(settle.ack) for settle in node.settles) == len(node.settles)

    run(test)


def test_ack_can_wait_and_nack_brings_back_or_discards(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                await publisher.publish_batch(bodies(10))
            async with client.consumer("q", prefetch=10) as consumer:
                batch = await consumer.next_batch(5)
                assert batch is not None
                assert await consumer.ack(batch[0], wait=True)
                assert 1 not in node.queue("q").messages
                assert await consumer.nack(2, 3, requeue=False, wait=True)
                assert 3 not in node.queue("q").messages
                assert await consumer.nack(batch[3])
                again = await consumer.next_batch(5)
                assert again is not None
                assert [(m.position, m.redelivered) for m in again] == [(4, True)]
                assert again.redelivered == [(4, 4)]
                for wrong in (batch[0], 2, 99):
                    with pytest.raises(ringmq.UnknownDeliveryError):
                        await consumer.ack(wrong)
                with pytest.raises(ringmq.BadRequestError):
                    await consumer.nack(batch[5], wait=True)
                assert consumer.unsettled_messages == 7
                assert await consumer.next_batch(0.01) is None
            assert len(node.queue("q").ready) == 7

    run(test)


def test_a_wait_for_an_ack_has_a_deadline(run: Run) -> None:
    """A queue below `min_insync` reports no ack, and nobody may wait for that for ever."""

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address, deadline_s=0.2) as client:
            await client.declare_queue("q", deadline_s=5)
            async with client.publisher("q", deadline_s=5) as publisher:
                await publisher.publish_batch(bodies(3))
            async with client.consumer("q") as consumer:
                batch = await anext(consumer)
                node.faults.settle_silently = True
                with pytest.raises(ringmq.TimedOutError, match=r"after 0\.2 s .* delivered again"):
                    await consumer.ack(batch[0], wait=True)
                with pytest.raises(ringmq.TimedOutError, match=r"after 0\.1 s"):
                    await consumer.nack(batch[1], requeue=False, wait=True, deadline_s=0.1)
                # Both acks have gone out, and the stream goes on.
                node.faults.settle_silently = False
                assert await consumer.ack(batch[2], wait=True, deadline_s=5)
                assert node.queue("q").bodies == []

    run(test)


@pytest.mark.parametrize("ends", ["closed", "bug"])
def test_a_wait_for_an_ack_ends_with_the_consumer(
    run: Run, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(self: object, positions: object) -> None:
        raise RuntimeError("a bug")

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                await publisher.publish_batch(bodies(2))
            consumer = client.consumer("q")
            await consumer.open()
            batch = await anext(consumer)
            if ends == "bug":
                monkeypatch.setattr("ringmq.consuming.settling.Settling.settled", bug)
                assert not await consumer.ack(batch[0], wait=True)
                assert not await consumer.ack(batch[1], wait=True)
                with pytest.raises(ringmq.ProtocolError, match="a bug"):
                    await anext(consumer)
                await consumer.close()
                return
            node.faults.settle_silently = True
            waiting = asyncio.create_task(consumer.ack(batch, wait=True))
            await until(lambda: bool(node.settles))
            await consumer.close()
            assert not await waiting

    run(test)


def test_an_ack_never_goes_on_another_stream_than_the_delivery_came_on(run: Run) -> None:
    async def test() -> None:
        async with two_nodes() as (client, one, two):
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                await publisher.publish_batch(bodies(20))
            async with client.consumer("q", prefetch=10) as consumer:
                batch = await anext(consumer)
                waiting = asyncio.create_task(consumer.ack(batch[:2], wait=True))
                assert await waiting
                one.cluster.master = two.address
                await one.die()
                await until(lambda: consumer.generation == 2)
                assert not await consumer.ack(batch[2:])
                with pytest.raises(ringmq.UnknownDeliveryError):
                    await consumer.ack(3)
                again = await anext(consumer)
                assert again.bodies[:8] == bodies(10)[2:]
                assert again[0].redelivered
                assert await consumer.ack(again, wait=True)

    run(test)


def test_a_program_is_told_when_its_unsettled_messages_go_back(run: Run) -> None:
    async def test() -> None:
        async with two_nodes() as (client, one, two):
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                await publisher.publish_batch(bodies(20))
            told: list[tuple[int, int]] = []

            def on_interrupted(generation: int) -> None:
                told.append((generation, consumer.unsettled_messages))

            consumer = client.consumer("q", prefetch=10, on_interrupted=on_interrupted)
            async with consumer:
                in_hand = await anext(consumer)
                assert told == []
                one.cluster.master = two.address
                await one.die()
                again = await anext(consumer)
                # Before a message of the next generation came, and when it held none.
                assert told == [(in_hand.generation, 0)]
                assert again.generation == 2
                # No node has the stream for a while: that is no other interruption.
                two.faults.refuse = [common.REASON_NO_MASTER] * 3
                two.send_away("q")
                assert (await anext(consumer)).generation == 3
                assert told == [(1, 0), (2, 0)]
            # It is closed: the program knows.
            assert told == [(1, 0), (2, 0)]

    run(test)


def test_a_consumer_that_was_never_open_is_not_interrupted(run: Run) -> None:
    async def test() -> None:
        told: list[int] = []
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            with pytest.raises(ringmq.QueueNotFoundError):
                await client.consumer("none", on_interrupted=told.append).open()
        assert told == []

    run(test)


def test_an_auto_ack_consumer_keeps_nothing_of_what_it_has_handed_out(run: Run) -> None:
    """Nobody settles it here. Beside another consumer the positions have gaps, and what was kept of
    them grew for as long as the stream lasted."""

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                await publisher.publish_batch(bodies(10))
            node.queue("q").ready.remove(5, 5)
            async with client.consumer("q", auto_ack=True) as consumer:
                taken = 0
                while taken < 9:
                    taken += len(await anext(consumer))
                    assert consumer.unsettled_messages == 0

    run(test)


def test_a_consumer_of_a_deleted_queue_is_told(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            told: list[int] = []
            async with client.consumer("q", on_interrupted=told.append) as consumer:
                waiting = asyncio.create_task(anext(consumer))
                await client.delete_queue("q")
                with pytest.raises(ringmq.QueueNotFoundError):
                    await waiting
                assert told == [1]
            assert told == [1]

    run(test)


def test_closing_ends_the_iteration(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            consumer = client.consumer("q")
            await consumer.open()

            async def consume() -> list[ringmq.Batch]:
                return [batch async for batch in consumer]

            task = asyncio.create_task(consume())
            await asyncio.sleep(0)
            assert await seconds(consumer.close()) < 1.5
            assert await task == []

    run(test)


def test_an_option_that_is_misspelt_is_refused(run: Run) -> None:
    """It opened a consumer that wasn't exclusive."""

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            with pytest.raises(TypeError, match="'exlusive'"):
                client.consumer("q", exlusive=True)  # type: ignore[call-arg]

    run(test)


@pytest.mark.logs("a callback has failed")
def test_a_callback_that_raises_does_not_end_the_consumer(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            told: list[bool] = []

            def on_active(active: bool) -> None:
                told.append(active)
                raise RuntimeError("a fault of the user's own")

            async with client.consumer("q", on_active=on_active) as consumer:
                active = broker.ConsumeResponse(active=broker.ActiveChanged(active=False))
                assert consumer._speaker.received(active)
                assert (told, consumer.active) == ([False], False)

    run(test)


@pytest.mark.logs("a callback has failed")
def test_an_interruption_whose_callback_raises_is_one_all_the_same(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")

            def on_interrupted(generation: int) -> None:
                raise RuntimeError("a fault of the user's own")

            async with client.consumer("q", on_interrupted=on_interrupted) as consumer:
                node.send_away("q")
                await until(lambda: consumer.generation == 2)
                async with client.publisher("q") as publisher:
                    await publisher.publish(b"x")
                assert (await anext(consumer)).bodies == [b"x"]

    run(test)
