"""The client against a real gRPC server with a queue in memory (`fake_broker`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Coroutine

import grpc.aio
import pytest

import ringmq
from ringmq.calls.channels import parse_seeds
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common

from .fake_broker import Cluster, FakeNode

DEADLINE_S = 20.0


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), DEADLINE_S))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the fake node has no event for each of these
            await asyncio.sleep(0.005)


async def seconds(work: Awaitable[object]) -> float:
    start = time.monotonic()
    await work
    return time.monotonic() - start


def bodies(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


# --- calls ---


def test_modes_of_a_queue() -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            lazy = await client.declare_queue("q", mode=ringmq.QueueMode.LAZY)
            assert (lazy.mode, lazy.storage) == (ringmq.QueueMode.LAZY, None)
            assert (await client.declare_queue("plain")).mode is ringmq.QueueMode.DEFAULT
            before = await client.set_queue_mode("q", ringmq.QueueMode.DEFAULT)
            assert before is ringmq.QueueMode.LAZY
            info = await client.queue("q")
            assert info.mode is ringmq.QueueMode.DEFAULT
            assert info.storage is not None
            assert (info.storage.messages_q4, info.storage.messages_target) == (0, None)
            for act in (
                client.set_queue_mode("q", ringmq.QueueMode.UNKNOWN),
                client.declare_queue("new", mode=ringmq.QueueMode.UNKNOWN),
            ):
                with pytest.raises(ringmq.BadRequestError, match="mode") as caught:
                    await act
                assert caught.value.metadata == {"field": "mode"}
            with pytest.raises(ringmq.QueueNotFoundError):
                await client.set_queue_mode("nothing", ringmq.QueueMode.LAZY)
            # A mode of a newer node.
            node.cluster.queues["q"].mode = 7  # type: ignore[assignment]
            assert (await client.queue("q")).mode is ringmq.QueueMode.UNKNOWN

    asyncio.run(test())


def test_durability_of_a_queue() -> None:
    """None says nothing, so that the node takes the queue as it is."""

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            assert not (await client.declare_queue("t", durable=False)).durable
            assert not (await client.declare_queue("t")).durable
            assert (await client.declare_queue("q", durable=True)).durable
            assert (await client.declare_queue("r")).durable
            node.cluster.queues["t"].durable = None
            assert (await client.queue("t")).durable

    asyncio.run(test())


def test_target_of_a_queue_may_be_zero() -> None:
    """Which is not the same as none."""
    wire = broker.QueueInfo(storage=broker.QueueStorage(messages_target=0.0, publish_rate=2.5))
    storage = ringmq.QueueInfo.from_wire(wire).storage
    assert storage is not None
    assert (storage.messages_target, storage.publish_rate) == (0.0, 2.5)


def test_seeds_are_a_list_or_text() -> None:
    assert parse_seeds("a:1, b:2,a:1") == ["a:1", "b:2"]
    assert parse_seeds(["[::1]:7801"]) == ["[::1]:7801"]
    for wrong in ("", " , ", "nohost", "a:", ":1", "a:99999"):
        with pytest.raises(ringmq.BadRequestError):
            parse_seeds(wrong)


def test_what_the_wire_cannot_hold_is_a_bad_request() -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            strange = os.fsdecode(b"\xff\xfe")
            calls: list[tuple[str, Callable[[], Awaitable[object]]]] = [
                ("replicas", lambda: client.declare_queue("q", replicas=2**40)),
                ("min_insync", lambda: client.declare_queue("q", min_insync=2**32)),
                ("messages_max", lambda: client.get_messages("q", 2**40)),
                ("messages_max", lambda: client.get_messages("q", -1)),
                ("queue", lambda: client.queue(strange)),
                ("queue", lambda: client.locate_queue(strange)),
                ("prefix", lambda: client.queues(strange)),
                ("node", lambda: client.promote_mirror("q", strange)),
                ("prefetch_messages", lambda: client.consumer("q", prefetch=2**33).open()),
                ("prefetch_bytes", lambda: client.consumer("q", prefetch_bytes=2**80).open()),
                ("consumer_tag", lambda: client.consumer("q", consumer_tag=strange).open()),
                ("queue", lambda: client.publisher(strange).open()),
            ]
            for field, call in calls:
                with pytest.raises(ringmq.BadRequestError, match=field) as caught:
                    await call()
                assert caught.value.field == field
            with pytest.raises(ringmq.BadRequestError, match="udcff"):
                await ringmq.connect(f"{strange}:7801")

    run(test)


def test_queues_are_declared_listed_looked_at_purged_and_deleted() -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            for name in ("a", "b", "c", "d", "x"):
                await client.declare_queue(name)
            assert [each.queue for each in await client.queues()] == ["a", "b", "c", "d", "x"]
            assert [each.queue for each in await client.queues("x")] == ["x"]
            async with client.publisher("a") as publisher:
                await publisher.publish_batch(bodies(3), ringmq.Properties(message_id="m"))
            info = await client.queue("a")
            assert (info.messages_ready, info.state) == (3, ringmq.QueueState.RUNNING)
            assert info.master == "a"
            peeked = await client.get_messages("a", 2)
            assert peeked.bodies == bodies(2)
            assert peeked[0].properties.message_id == "m"
            assert (await client.get_messages("a", 1, remove=True)).bodies == bodies(1)
            with pytest.raises(ringmq.QueueNotEmptyError):
                await client.delete_queue("a", if_empty=True)
            assert await client.purge_queue("a") == 2
            assert await client.discard_damaged("a") == 3
            assert await client.delete_queue("a") == 0
            with pytest.raises(ringmq.QueueNotFoundError) as caught:
                await client.queue("a")
            assert caught.value.metadata == {"queue": "a"}
            assert (await client.locate_queue("b")).address == node.address
            assert (await client.promote_mirror("b", "n2")).new_master == "n2"
        with pytest.raises(ringmq.ClosedError):
            await client.queues()

    run(test)


def test_a_call_goes_on_to_another_node_and_through_a_passing_trouble() -> None:
    async def test() -> None:
        cluster = Cluster()
        async with (
            FakeNode(cluster) as one,
            FakeNode(cluster) as two,
            ringmq.connect([one.address]) as client,
        ):
            await one.die()
            # Known from the cluster's status, not from the seeds.
            assert (await client.cluster_status()).node == two.address
            two.faults.fail = [common.REASON_NO_MASTER, common.REASON_REGISTRY_UNAVAILABLE]
            await client.declare_queue("q")
            two.faults.fail = [common.REASON_NO_MASTER] * 1000
            with pytest.raises(ringmq.UnavailableError) as caught:
                await client.declare_queue("q", deadline_s=1.0)
            assert caught.value.reason == "NO_MASTER"
            assert caught.value.retry_after_s == pytest.approx(0.01)

    run(test)


def test_a_refusal_after_a_timeout_leaves_the_outcome_unknown() -> None:
    """A purge that was not answered may have been done, whatever the next node says."""

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            refusals = [common.REASON_TIMEOUT, *[common.REASON_TOO_FEW_SYNCHRONISED] * 100]
            node.faults.fail = [*refusals]
            with pytest.raises(ringmq.TimedOutError):
                await client.purge_queue("q", deadline_s=0.2)
            # Of what changes nothing, the last word counts.
            node.faults.fail = [*refusals]
            with pytest.raises(ringmq.TooFewSynchronisedError):
                await client.queue("q", deadline_s=0.2)
            # And a repeat that is answered is an answer.
            node.faults.fail = [common.REASON_TIMEOUT, common.REASON_QUEUE_NOT_FOUND]
            with pytest.raises(ringmq.QueueNotFoundError):
                await client.purge_queue("q")
            node.faults.fail = [common.REASON_TIMEOUT]
            assert await client.purge_queue("q") == 0

    run(test)


def test_nobody_there_is_unavailable_within_the_deadline() -> None:
    async def test() -> None:
        async with FakeNode() as node:
            address = node.address
        with pytest.raises(ringmq.UnavailableError):
            assert await seconds(ringmq.connect(address, deadline_s=0.5)._connect()) < 2

    run(test)


def test_a_port_that_is_not_ours_is_told_from_one_that_is_closed() -> None:
    async def garbage(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async def test() -> None:
        # Another gRPC service ...
        other = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        port = other.add_insecure_port("127.0.0.1:0")
        await other.start()
        with pytest.raises(ringmq.NotRingMQError):
            await ringmq.connect(f"127.0.0.1:{port}", deadline_s=0.3)
        await other.stop(0)
        # ... and none at all.
        server = await asyncio.start_server(garbage, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises((ringmq.UnavailableError, ringmq.TimedOutError)):
            await ringmq.connect(f"127.0.0.1:{port}", deadline_s=0.5)
        server.close()
        await server.wait_closed()

    run(test)


# --- publishing ---


def test_publishes_are_confirmed_in_order_with_their_properties() -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                await publisher.publish(b"one", ringmq.Properties(headers={"k": "v"}))
                await publisher.publish_batch(
                    [b"two", b"three"], [ringmq.Properties(message_id=name) for name in "23"]
                )
                await publisher.publish_batch([])
                futures = [await publisher.submit(b"%d" % number) for number in range(3000)]
                await publisher.flush()
                assert all(future.done() for future in futures)
                await asyncio.gather(*(publisher.publish(b"x", transient=True) for _ in range(9)))
            queue = node.queue("q")
            assert queue.bodies[:4] == [b"one", b"two", b"three", b"0"]
            assert queue.bodies[3:3003] == [b"%d" % number for number in range(3000)]
            first, third = queue.messages[1].properties, queue.messages[3].properties
            assert first is not None
            assert third is not None
            assert dict(first.headers) == {"k": "v"}
            assert third.message_id == "3"
            assert len(node.batches) < 100
            assert node.batches[-1].transient

    run(test)


def test_wrong_bodies_fail_here_and_at_once() -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                with pytest.raises(ringmq.MessageTooLargeError) as caught:
                    await publisher.publish_batch([b"a", b"x" * (1024 * 1024 + 1)])
                assert caught.value.limit_bytes == 1024 * 1024
                assert caught.value.size_bytes == 1024 * 1024 + 1
                assert caught.value.metadata["index"] == "1"
                for wrong in ("text", bytearray(b"x"), None):
                    with pytest.raises(TypeError):
                        await publisher.publish(wrong)  # type: ignore[arg-type]
                with pytest.raises(ringmq.BadRequestError):
                    await publisher.publish_batch([b"1", b"2"], [ringmq.Properties()])
                await publisher.publish(b"x" * 1024 * 1024)
            assert len(node.queue("q").messages) == 1
            with pytest.raises(ringmq.ClosedError):
                await publisher.publish(b"late")

    run(test)


def test_no_queue_is_said_at_once() -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            with pytest.raises(ringmq.QueueNotFoundError):
                await client.publisher("none").open()
            with pytest.raises(ringmq.QueueNotFoundError):
                await client.consumer("none").open()

    run(test)


@pytest.mark.parametrize("enqueue_the_last", [True, False])
def test_a_stream_that_breaks_costs_neither_a_loss_nor_a_duplicate(enqueue_the_last: bool) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            node.faults.die_after_batches = [1, 3, 2, 5]
            node.faults.enqueue_the_last = enqueue_the_last
            async with client.publisher("q", window_messages=40) as publisher:
                await publisher.publish_batch(bodies(1000))
            assert node.opens == 5
            assert node.queue("q").bodies == bodies(1000)

    run(test)


def test_a_node_that_dies_is_left_for_the_new_master() -> None:
    async def test() -> None:
        cluster = Cluster()
        async with (
            FakeNode(cluster) as one,
            FakeNode(cluster) as two,
            ringmq.connect([one.address, two.address]) as client,
        ):
            await client.declare_queue("q")
            async with client.publisher("q", window_messages=100) as publisher:
                assert publisher.node_address == one.address
                work = asyncio.create_task(publisher.publish_batch(bodies(20_000)))
                await until(lambda: len(cluster.queues["q"].messages) > 2000)
                cluster.master = two.address
                await one.die()
                assert await seconds(work) < 3
                assert publisher.node_address == two.address
        assert cluster.queues["q"].bodies == bodies(20_000)

    run(test)


def test_a_master_that_cannot_be_reached_is_reached_through_another_node() -> None:
    async def test() -> None:
        async with FakeNode() as gone:
            nowhere = gone.address
        cluster = Cluster(master=nowhere)
        async with FakeNode(cluster) as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                await publisher.publish(b"x")
                assert publisher.node_address == node.address

    run(test)


def test_moved_is_followed() -> None:
    async def test() -> None:
        cluster = Cluster()
        async with (
            FakeNode(cluster) as one,
            FakeNode(cluster) as two,
            ringmq.connect(one.address) as client,
        ):
            await client.declare_queue("q")
            one.faults.moved = [two.address, ""]
            async with client.publisher("q") as publisher:
                assert publisher.node_address == two.address
                await publisher.publish(b"x")
            # Nobody known: asked for again.
            async with client.consumer("q") as consumer:
                assert consumer.node_address == one.address

    run(test)


def test_refusals_are_retried_or_told_and_the_order_stays() -> None:
    later = broker.Rejected(
        reason=common.REASON_TOO_FEW_SYNCHRONISED, retryable=True, retry_after_ms=20
    )
    never = broker.Rejected(reason=common.REASON_DISK_FULL, message="disk full")
    forgotten = broker.Rejected(reason=common.REASON_UNKNOWN_PRODUCER)

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            async with client.publisher("q", window_messages=8) as publisher:
                node.faults.reject = [None, later, None, None, later]
                await publisher.publish_batch(bodies(40))
                assert node.queue("q").bodies == bodies(40)
                before = publisher.producer_id
                node.faults.reject = [None, never]
                with pytest.raises(ringmq.DiskFullError, match="disk full") as caught:
                    await publisher.publish_batch(bodies(20))
                assert caught.value.failed == ((2, 3),)
                assert publisher.producer_id != before
                node.faults.reject = [forgotten]
                await publisher.publish(b"last")
            expected = bodies(40) + bodies(2) + bodies(20)[4:] + [b"last"]
            assert node.queue("q").bodies == expected

    run(test)


def test_a_deadline_ends_the_wait() -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            async with client.publisher("q", window_messages=1) as publisher:
                node.faults.confirm_delay_s = 0.5
                first = asyncio.create_task(publisher.publish(b"sent", deadline_s=0.1))
                await until(lambda: bool(node.batches))
                with pytest.raises(ringmq.WindowFullError):
                    publisher.publish_nowait(b"no room")
                with pytest.raises(ringmq.UnavailableError):
                    await publisher.publish(b"never sent", deadline_s=0.05)
                with pytest.raises(ringmq.OutcomeUnknownError):
                    await first
                node.faults.confirm_delay_s = 0
                future = await publisher.submit(b"after")
                await publisher.flush()
                assert future.done()
            assert node.queue("q").bodies == [b"sent", b"after"]

    run(test)


def test_flush_reports_what_nobody_awaited() -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                node.faults.reject = [broker.Rejected(reason=common.REASON_STORE_FAILED)]
                publisher.publish_nowait(b"x")
                with pytest.raises(ringmq.StoreFailedError):
                    await publisher.flush()
                await publisher.flush()

    run(test)


def test_submit_waits_for_room_in_bytes_too() -> None:
    """Also while nothing has been sent: many tasks don't gather more than the window."""

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            async with client.publisher("q", window_bytes=10_000) as publisher:
                futures = [publisher.publish_nowait(bytes(4000)) for _ in range(3)]
                with pytest.raises(ringmq.WindowFullError):
                    publisher.publish_nowait(b"")
                waiting = asyncio.create_task(publisher.submit(b"later"))
                await asyncio.sleep(0)
                assert not waiting.done()
                await asyncio.gather(*futures)
                await (await waiting)
                assert publisher.outstanding_messages == 0
            assert len(node.queue("q").bodies) == 4

    run(test)


def test_a_deleted_queue_fails_what_waits_and_works_again_once_declared() -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                await publisher.publish(b"x")
                await client.delete_queue("q")
                node.faults.die_after_batches = []
                node.faults.reject = [broker.Rejected(reason=common.REASON_QUEUE_NOT_FOUND)]
                with pytest.raises(ringmq.QueueNotFoundError):
                    await publisher.publish(b"y")
                await client.declare_queue("q")
                await publisher.publish(b"z")
            assert node.queue("q").bodies == [b"z"]

    run(test)


@pytest.mark.slow
def test_silence_is_noticed_and_ours_is_filled() -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            node.heartbeat_ms = 100
            await client.declare_queue("q")
            async with client.publisher("q"), client.consumer("q"):
                await until(lambda: node.heartbeats_seen >= 6)
                assert node.opens == 2
                node.faults.heartbeats = False
                await until(lambda: node.opens >= 4)

    run(test)


def test_cancelling_a_publish_leaves_the_stream_alone() -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                node.faults.confirm_delay_s = 0.05
                for _ in range(3):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(publisher.publish(b"x"), 0.01)
                await publisher.publish(b"y")
            assert node.opens == 1
            assert node.queue("q").bodies == [b"x", b"x", b"x", b"y"]

    run(test)


# --- consuming ---


def test_batches_come_in_order_and_acks_go_as_ranges() -> None:
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


def test_ack_can_wait_and_nack_brings_back_or_discards() -> None:
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


def test_a_wait_for_an_ack_has_a_deadline() -> None:
    """What a queue below `min_insync` doesn't report isn't waited for, for ever."""

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address, deadline_s=0.2) as client:
            await client.declare_queue("q")
            async with client.publisher("q", deadline_s=5) as publisher:
                await publisher.publish_batch(bodies(3))
            async with client.consumer("q") as consumer:
                batch = await anext(consumer)
                node.faults.settle_silently = True
                with pytest.raises(ringmq.TimedOutError, match=r"after 0\.2 s .* delivered again"):
                    await consumer.ack(batch[0], wait=True)
                with pytest.raises(ringmq.TimedOutError, match=r"after 0\.1 s"):
                    await consumer.nack(batch[1], requeue=False, wait=True, deadline_s=0.1)
                # They did go out, and the stream goes on.
                node.faults.settle_silently = False
                assert await consumer.ack(batch[2], wait=True, deadline_s=5)
                assert node.queue("q").bodies == []

    run(test)


@pytest.mark.parametrize("ends", ["closed", "bug"])
def test_a_wait_for_an_ack_ends_with_the_consumer(
    ends: str, monkeypatch: pytest.MonkeyPatch
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
                monkeypatch.setattr("ringmq.consuming.consumer._Stream._on_settled", bug)
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


def test_an_ack_never_goes_on_another_stream_than_the_delivery_came_on() -> None:
    async def test() -> None:
        cluster = Cluster()
        async with (
            FakeNode(cluster) as one,
            FakeNode(cluster) as two,
            ringmq.connect([one.address, two.address]) as client,
        ):
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                await publisher.publish_batch(bodies(20))
            async with client.consumer("q", prefetch=10) as consumer:
                batch = await anext(consumer)
                waiting = asyncio.create_task(consumer.ack(batch[:2], wait=True))
                assert await waiting
                cluster.master = two.address
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


def test_a_consumer_of_a_deleted_queue_is_told() -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            async with client.consumer("q") as consumer:
                waiting = asyncio.create_task(anext(consumer))
                await client.delete_queue("q")
                with pytest.raises(ringmq.QueueNotFoundError):
                    await waiting

    run(test)


def test_closing_ends_the_iteration() -> None:
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
