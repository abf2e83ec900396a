"""A publisher over real streams to a node with its queues in memory (`fake_broker`)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from fake_broker import FakeNode
from on_loops import Run, bodies, seconds
from waiting import leeway, until

import ringmq
from ringmq import HeaderValue
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import common_pb2 as common

HEADERS: dict[str, HeaderValue] = {
    "text": "v",
    "integer": -(2**63),
    "flag": True,
    "number": 1.0,
    "data": b"\xff",
    "none": None,
    "time": datetime(2026, 11, 26, tzinfo=UTC),
    "list": [1, "1", {"k": "v"}],
    "other": ringmq.OtherValue("amqp:D", b"\x01"),
}


def test_publishes_are_confirmed_in_order_with_their_properties(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                await publisher.publish(b"one", ringmq.Properties(headers=HEADERS))
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
            assert ringmq.Properties.from_wire(first).headers == HEADERS
            assert third.message_id == "3"
            assert len(node.batches) < 100
            assert node.batches[-1].transient

    run(test)


def test_wrong_bodies_fail_here_and_at_once(run: Run) -> None:
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


@pytest.mark.parametrize("own", [None, b"an id of the program's"])
def test_a_random_id_ends_with_its_publisher(run: Run, own: bytes | None) -> None:
    """Not with a stream; and also if the program leaves it without a flush."""

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            node.faults.hang_up_after_batches = [1]
            async with client.publisher("q", producer_id=own) as publisher:
                await publisher.publish(b"x")
                await publisher.publish(b"y")
                assert node.opens == 2
                assert node.ended_producers == []
            ended = [publisher.producer_id] if own is None else []
            await until(lambda: node.ended_producers == ended)
            publisher = client.publisher("q", producer_id=own)
            await publisher.open()
            await publisher.close(flush=False)
            ended += [publisher.producer_id] if own is None else []
            await until(lambda: node.ended_producers == ended)

    run(test)


def test_a_publisher_that_is_closed_between_two_streams_says_its_end_on_the_next(run: Run) -> None:
    """Its master has died, and it waits for the next attempt: the next master remembers it."""

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            publisher = client.publisher("q")
            node.faults.hang_up_after_batches = [1]
            await publisher.open()
            node.faults.refuse = [common.REASON_NO_MASTER] * 1000
            await publisher.publish(b"one")
            opens = node.opens
            await until(lambda: node.opens > opens)
            closing = asyncio.create_task(publisher.close())
            opens = node.opens
            await until(lambda: node.opens > opens + 1)
            assert node.ended_producers == []
            node.faults.refuse.clear()
            await closing
            assert node.ended_producers == [publisher.producer_id]

    run(test)


def test_a_publisher_whose_end_nobody_hears_is_closed_all_the_same(run: Run) -> None:
    """At once, if no queue knows it or the queue is gone; else after a while."""

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            for published, reason in (
                (False, common.REASON_NO_MASTER),
                (True, common.REASON_QUEUE_NOT_FOUND),
                (True, common.REASON_NO_MASTER),
            ):
                publisher = client.publisher("q")
                node.faults.hang_up_after_batches = [1]
                await publisher.open()
                if published:
                    node.faults.refuse = [reason] * 1000
                    opens = node.opens
                    await publisher.publish(b"one")
                    await until(lambda before=opens: node.opens > before)
                await publisher.close()
                node.faults.refuse.clear()
            # The one that published nothing has said it on the stream that it had.
            assert len(node.ended_producers) == 1

    run(test)


def test_refusals_are_retried_or_told_and_the_order_stays(run: Run) -> None:
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
                assert publisher.producer_id == before
                node.faults.reject = [forgotten]
                await publisher.publish(b"last")
            expected = bodies(40) + bodies(2) + bodies(20)[4:] + [b"last"]
            assert node.queue("q").bodies == expected

    run(test)


def test_a_deadline_ends_the_wait(run: Run) -> None:
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


def test_flush_reports_what_nobody_awaited(run: Run) -> None:
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


@pytest.mark.parametrize("leaves", [False, True], ids=["flush", "the context's end"])
def test_flush_reports_a_failure_of_the_same_turn_of_the_loop(run: Run, leaves: bool) -> None:
    """1. Two messages of one request are refused. 2. The task that awaits the first one runs next,
    and flushes: before any callback of the second one's future."""

    async def publish_both(publisher: ringmq.Publisher) -> None:
        async with publisher:
            awaited = publisher.publishing(b"awaited")
            publisher.publish_nowait(b"detached")
            with pytest.raises(ringmq.StoreFailedError):
                await awaited
            if not leaves:
                await publisher.flush()

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            node.faults.reject = [broker.Rejected(reason=common.REASON_STORE_FAILED)]
            with pytest.raises(ringmq.StoreFailedError):
                await publish_both(client.publisher("q"))
            assert len(node.batches) == 1

    run(test)


def test_a_message_that_its_caller_has_cancelled_is_nothing_for_a_flush_to_report(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                node.faults.reject = [broker.Rejected(reason=common.REASON_STORE_FAILED)]
                assert publisher.publish_nowait(b"cancelled").cancel()
                with pytest.raises(ringmq.StoreFailedError):
                    await publisher.publish(b"awaited")
                await publisher.flush()

    run(test)


def test_submit_has_the_room_of_a_message_that_has_expired_and_never_arrived(run: Run) -> None:
    """It keeps its sequence until the next stream shows that; nothing else on it may be answered
    then, as nothing else is on its way."""

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            node.faults.die_after_batches = [1]
            node.faults.enqueue_the_last = False
            async with client.publisher("q", window_messages=1) as publisher:
                node.faults.refuse = [common.REASON_NO_MASTER] * 1000
                with pytest.raises(ringmq.OutcomeUnknownError):
                    await publisher.publish(b"lost", deadline_s=0.1)
                waiting = asyncio.create_task(publisher.submit(b"waits", deadline_s=60.0))
                await asyncio.sleep(0)
                assert not waiting.done()
                node.faults.refuse.clear()
                assert await seconds(waiting) < leeway(3)
                await waiting.result()
            assert node.queue("q").bodies == [b"waits"]

    run(test)


def test_submit_waits_for_room_in_bytes_too(run: Run) -> None:
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


def test_a_deleted_queue_fails_what_waits_and_works_again_once_declared(run: Run) -> None:
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


def test_cancelling_a_publish_leaves_the_stream_alone(run: Run) -> None:
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


@pytest.mark.logs("a callback has failed")
def test_a_publisher_that_is_blocked_is_told_why_and_when_it_ends(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            told: list[object] = []

            def on_blocked(reasons: tuple[ringmq.BlockReason, ...]) -> None:
                told.append(reasons)
                raise RuntimeError("a fault of the user's own")

            node.faults.blocked = [
                [broker.BLOCK_REASON_DISK],
                [broker.BLOCK_REASON_DISK],
                [broker.BLOCK_REASON_DISK, broker.BLOCK_REASON_RING_FULL],
                [],
                [99],  # type: ignore[list-item]
            ]
            async with client.publisher(
                "q", on_blocked=on_blocked, on_unblocked=lambda: told.append(())
            ) as publisher:
                for number in range(3):
                    await publisher.publish(b"%d" % number)
                assert [reason.text for reason in publisher.blocked_by] == ["disk", "ring full"]
                await publisher.publish(b"3")
                assert publisher.blocked_by == ()
                await publisher.publish(b"4")
                # The stream ends: nobody holds the publisher any more.
                await publisher.publish(b"5")
            assert told == [
                (ringmq.BlockReason.DISK,),
                (ringmq.BlockReason.DISK, ringmq.BlockReason.RING_FULL),
                (),
                (ringmq.BlockReason.UNKNOWN,),
                (),
            ]

    run(test)


DISK, RING_FULL = broker.BLOCK_REASON_DISK, broker.BLOCK_REASON_RING_FULL
Reasons = list[broker.BlockReason.ValueType]


async def told_over_a_broken_stream(*, before: Reasons, after: Reasons | None) -> list[list[str]]:
    """A publisher is told `before`, and its stream breaks under its second message. `after`: what
    the next node says as it gets that message, if anything. It confirms it in any case."""
    told: list[list[str]] = []
    async with FakeNode() as node, ringmq.connect(node.address) as client:
        await client.declare_queue("q")
        node.faults.blocked = [before, after]
        node.faults.die_after_batches = [2]
        async with client.publisher(
            "q",
            on_blocked=lambda reasons: told.append([each.text for each in reasons]),
            on_unblocked=lambda: told.append([]),
        ) as publisher:
            await publisher.publish(b"one")
            await publisher.publish(b"two")
            assert node.opens == 2
            assert [each.text for each in publisher.blocked_by] == told[-1]
            told.append(["closed"])
    return told


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([DISK], [DISK], [["disk"], ["closed"], []]),
        ([DISK], None, [["disk"], [], ["closed"]]),
        ([DISK], [], [["disk"], [], ["closed"]]),
        ([RING_FULL], None, [["ring full"], [], ["closed"]]),
        ([DISK, RING_FULL], [DISK], [["disk", "ring full"], ["disk"], ["closed"], []]),
    ],
    ids=["it goes on", "it is over", "it ends", "another reason", "both"],
)
def test_an_alarm_outlives_the_stream(
    run: Run, before: Reasons, after: Reasons | None, told: list[list[str]]
) -> None:
    """Who hears of its end publishes at full speed again."""

    async def test() -> None:
        assert await told_over_a_broken_stream(before=before, after=after) == told

    run(test)


def test_an_alarm_is_over_for_who_has_no_message_on_its_way(run: Run) -> None:
    """No node would tell it of the end."""

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            node.faults.blocked = [[DISK]]
            node.faults.hang_up_after_batches = [1]
            async with client.publisher("q") as publisher:
                await publisher.publish(b"one")
                await until(lambda: node.opens == 2)
                await until(lambda: publisher.blocked_by == ())

    run(test)


def test_a_publisher_that_no_node_will_have_is_not_blocked(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            node.faults.blocked = [[DISK]]
            node.faults.die_after_batches = [2]
            async with client.publisher("q") as publisher:
                await publisher.publish(b"one")
                node.faults.refuse = [common.REASON_ACCESS_REFUSED] * 10
                with pytest.raises(ringmq.RingMQError):
                    await publisher.publish(b"two")
                assert publisher.blocked_by == ()
                node.faults.refuse.clear()

    run(test)


def test_a_blocked_message_that_runs_out_of_time_says_why(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            node.faults.blocked = [[broker.BLOCK_REASON_MEMORY]]
            node.faults.confirm_delay_s = 1.0
            async with client.publisher("q") as publisher:
                with pytest.raises(ringmq.OutcomeUnknownError, match="blocked: memory"):
                    await publisher.publish(b"x", deadline_s=0.3)
                await publisher.publish(b"y")

    run(test)


def test_a_publisher_that_an_alarm_holds_does_not_wait_for_its_streams_end(run: Run) -> None:
    """The node reads nothing behind the batch that it holds, so it wouldn't answer a goodbye."""

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            node.faults.blocked = [[broker.BLOCK_REASON_DISK]]
            node.faults.confirm_delay_s = 60.0
            loop = asyncio.get_running_loop()
            publisher = client.publisher("q")
            await publisher.open()
            with pytest.raises(ringmq.OutcomeUnknownError, match=r"queue 'q': .*blocked: disk"):
                await publisher.publish(b"x", deadline_s=0.3)
            began = loop.time()
            await publisher.close(flush=False)
            assert loop.time() - began < leeway(0.5)

    run(test)


def test_who_finds_no_room_has_an_error_of_its_own(run: Run) -> None:
    """The publisher's would gather the frames of all callers, and their bodies. And that of a
    message which is out says nothing of one that was never sent."""

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            async with client.publisher("q", window_messages=1, deadline_s=0.5) as publisher:
                await publisher.publish(b"one")
                node.faults.confirm_delay_s = 60.0
                out = asyncio.create_task(publisher.publish(b"out", deadline_s=0.1))
                await until(lambda: len(node.batches) == 2)
                await node.die()
                with pytest.raises(ringmq.OutcomeUnknownError):
                    await out
                found: list[ringmq.RingMQError] = []
                await until(lambda: publisher._core.why_waiting is not None)
                for _ in range(2):
                    with pytest.raises(ringmq.RetryableError) as caught:
                        await publisher.submit(b"no room", deadline_s=0.05)
                    found.append(caught.value)
                assert found[0] is not found[1]
                publisher._core.trouble = ringmq.OutcomeUnknownError("of another message")
                with pytest.raises(ringmq.UnavailableError, match="window"):
                    await publisher.submit(b"no room", deadline_s=0.0)

    run(test)


def test_a_client_waits_for_all_its_streams_at_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringmq.streams.lifetime.CLOSE_S", 0.5)

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            for _ in range(10):
                publisher = client.publisher("q")
                await publisher.open()
                await publisher.publish(b"one")
            await node.die()
            # Each says its end to the last, and nobody hears it.
            assert 0.4 < await seconds(client.close()) < 3.0

    run(test)
