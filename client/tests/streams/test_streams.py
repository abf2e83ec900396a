"""Streams that break, move, fall silent or are refused: the part that all users share."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest
from fake_broker import FakeNode
from fake_cluster import Cluster
from fake_nodes import two_nodes
from on_loops import Run, bodies, seconds
from waiting import leeway, until

import ringmq
from ringmq.calls.route import Route
from ringmq.v1 import common_pb2 as common
from ringmq_wire.transport import WireProtocol


def test_no_queue_is_said_at_once(run: Run) -> None:
    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            with pytest.raises(ringmq.QueueNotFoundError):
                await client.publisher("none").open()
            with pytest.raises(ringmq.QueueNotFoundError):
                await client.consumer("none").open()

    run(test)


@pytest.mark.parametrize("enqueue_the_last", [True, False])
def test_a_stream_that_breaks_costs_neither_a_loss_nor_a_duplicate(
    run: Run, enqueue_the_last: bool
) -> None:
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


def test_a_master_that_answers_nothing_is_left_for_the_one_that_has_followed_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lives, and doesn't know that it was followed: it is cut off from the others."""
    monkeypatch.setattr("ringmq.streams.conversation.DOUBT_S", 0.3)

    async def test() -> None:
        async with two_nodes() as (client, one, two):
            await client.declare_queue("q")
            one.faults.locates = (one.address, 1)
            one.faults.confirm_delay_s = 60.0
            async with client.publisher("q") as publisher:
                assert publisher.node_address == one.address
                work = asyncio.create_task(publisher.publish_batch(bodies(10)))
                await until(lambda: len(one.batches) > 0)
                one.cluster.master, one.cluster.epoch = two.address, 2
                assert await seconds(work) < leeway(3)
                assert publisher.node_address == two.address

    run(test)


def test_a_node_that_opens_nothing_is_left_for_the_master_that_has_followed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that is cut off waits for its quorum; a node that isn't master any more may relay to
    one from which it is cut off. Neither says so (4.3 s in chaos, seed 2611, round 136)."""
    monkeypatch.setattr("ringmq.streams.conversation.OPEN_DOUBT_S", 0.1)
    monkeypatch.setattr("ringmq.streams.conversation.OPEN_S", 60.0)

    async def test() -> None:
        async with two_nodes() as (client, one, two):
            await client.declare_queue("q")
            one.faults.locates = two.faults.locates = (one.address, 2)
            one.faults.open_silently = True

            async def publish() -> str:
                async with client.publisher("q") as publisher:
                    await publisher.publish_batch(bodies(10))
                    return publisher.node_address

            work = asyncio.create_task(publish())
            await until(lambda: one.opens == 1 and two.locates > 3)
            assert two.opens == 0
            two.faults.locates = (two.address, 3)
            assert await seconds(work) < leeway(3)
            assert work.result() == two.address

    run(test)


def test_a_master_that_is_stopped_when_a_stream_is_sent_there_is_left_for_the_next_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that has sent the stream away said in which epoch that one is master."""
    monkeypatch.setattr("ringmq.streams.conversation.OPEN_DOUBT_S", 0.1)
    monkeypatch.setattr("ringmq.streams.conversation.OPEN_S", 60.0)
    monkeypatch.setattr("ringmq.streams.conversation.ANSWER_S", 60.0)

    async def test() -> None:
        async with two_nodes(seeds=1) as (client, one, two):
            await client.declare_queue("q")
            one.faults.locates = (one.address, 1)
            one.faults.moved, one.faults.moved_epoch = [two.address], 2
            two.faults.silent = True

            async def opened() -> None:
                async with client.publisher("q") as publisher:
                    assert publisher.node_address == one.address

            work = asyncio.create_task(opened())
            await until(lambda: two.opens == 1 and one.locates > 3)
            assert one.opens == 1
            one.faults.locates = (one.address, 3)
            assert await seconds(work) < leeway(3)

    run(test)


@pytest.mark.parametrize("exchange", [None, "x"], ids=["of a queue", "of an exchange"])
def test_a_stopped_node_at_which_a_stream_is_opened_is_left_for_another(
    run: Run, monkeypatch: pytest.MonkeyPatch, exchange: str | None
) -> None:
    """Of an exchange no node is the master, and the master of a queue may be another one than the
    relay that is stopped: nobody tells of a newer one."""
    monkeypatch.setattr("ringmq.streams.conversation.OPEN_DOUBT_S", 0.1)
    monkeypatch.setattr("ringmq.streams.conversation.ANSWER_S", 0.2)
    monkeypatch.setattr("ringmq.streams.conversation.OPEN_S", 60.0)

    async def test() -> None:
        async with two_nodes() as (client, one, two):
            # So `one` is the node that has answered last.
            two.faults.fail = [common.REASON_NO_MASTER]
            await client.declare_queue("q")
            two.faults.fail.clear()
            # The fake finds exchanges among its queues: under no name.
            one.queue("")
            one.faults.silent = True

            async def opened() -> None:
                queue = "q" if exchange is None else ""
                async with client.publisher(queue, exchange=exchange) as publisher:
                    assert publisher.node_address == two.address

            assert await seconds(opened()) < leeway(3)

    run(test)


def test_a_node_that_takes_long_to_open_a_stream_and_answers_is_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for its quorum, or takes over."""
    monkeypatch.setattr("ringmq.streams.conversation.OPEN_DOUBT_S", 0.1)
    monkeypatch.setattr("ringmq.streams.conversation.ANSWER_S", 0.2)

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            node.faults.open_delay_s = 0.6
            async with client.publisher("q"):
                assert (node.opens, node.checks > 2) == (1, True)

    run(test)


def test_a_doubt_that_waits_for_a_stopped_node_does_not_delay_the_next_one(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes had nothing newer to tell when it began."""
    monkeypatch.setattr("ringmq.streams.conversation.OPEN_DOUBT_S", 0.1)
    asked: list[tuple[str, int]] = []

    async def test() -> None:
        async with two_nodes() as (client, one, two):

            async def newer_master(route: Route, node_name: str, epoch: int) -> str:
                asked.append((node_name, epoch))
                if len(asked) == 1:
                    await asyncio.sleep(60)
                return two.address

            monkeypatch.setattr(Route, "newer_master", newer_master)
            await client.declare_queue("q")
            one.faults.open_silently = True

            async def opened() -> None:
                async with client.publisher("q") as publisher:
                    assert publisher.node_address == two.address

            assert await seconds(opened()) < leeway(3)
            assert asked == [(one.address, 1)] * 2

    run(test)


def test_a_stream_that_is_opened_at_last_by_the_next_master_is_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes' answer, that there is another master than the one that was sought, comes late."""
    monkeypatch.setattr("ringmq.streams.conversation.OPEN_DOUBT_S", 0.1)
    opened = asyncio.Event()
    asked: list[tuple[str, int]] = []

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:

            async def newer_master(route: Route, node_name: str, epoch: int) -> str:
                asked.append((node_name, epoch))
                await opened.wait()
                return node.address

            monkeypatch.setattr(Route, "newer_master", newer_master)
            await client.declare_queue("q")
            node.faults.locates = (node.address, 1)
            node.cluster.epoch = 2
            node.faults.open_delay_s = 0.3
            async with client.publisher("q") as publisher:
                await publisher.publish(b"one")
                opened.set()
                await publisher.publish(b"two")
            assert set(asked) == {(node.address, 1)}
            assert node.opens == 1

    run(test)


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_slow_master_is_kept_while_no_other_one_is_known(
    run: Run, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    """In a later epoch as well, in which it is still the master."""
    monkeypatch.setattr("ringmq.streams.conversation.DOUBT_S", 0.1)

    async def test() -> None:
        async with FakeNode() as node, ringmq.connect(node.address) as client:
            await client.declare_queue("q")
            node.faults.confirm_delay_s = 0.6
            async with client.publisher("q") as publisher:
                node.cluster.epoch = epoch
                await publisher.publish(b"slow")
            assert node.opens == 1

    run(test)


def test_a_node_that_dies_is_left_for_the_new_master(run: Run) -> None:
    async def test() -> None:
        async with two_nodes() as (client, one, two):
            await client.declare_queue("q")
            async with client.publisher("q", window_messages=100) as publisher:
                assert publisher.node_address == one.address
                work = asyncio.create_task(publisher.publish_batch(bodies(20_000)))
                await until(lambda: len(one.cluster.queues["q"].messages) > 2000)
                one.cluster.master = two.address
                await one.die()
                assert await seconds(work) < leeway(3)
                assert publisher.node_address == two.address
        assert one.cluster.queues["q"].bodies == bodies(20_000)

    run(test)


def test_a_master_that_cannot_be_reached_is_reached_through_another_node(run: Run) -> None:
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


@pytest.mark.parametrize("refusals", [1, 3])
def test_a_master_that_refuses_for_a_moment_is_asked_again(run: Run, refusals: int) -> None:
    """Not through another node: that one may be cut off from it, as the old master is."""

    async def test() -> None:
        async with two_nodes() as (client, one, two):
            await client.declare_queue("q")
            one.faults.refuse = [common.REASON_NO_MASTER] * refusals
            two.faults.open_silently = True
            async with client.publisher("q") as publisher:
                assert publisher.node_address == one.address
            assert (one.opens, two.opens) == (refusals + 1, 0)

    run(test)


def test_moved_is_followed(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ringmq")

    async def test() -> None:
        async with two_nodes(seeds=1) as (client, one, two):
            await client.declare_queue("q")
            one.faults.moved = [two.address, ""]
            async with client.publisher("q") as publisher:
                assert publisher.node_address == two.address
                await publisher.publish(b"x")
            assert caplog.messages == [
                f"ringmq-publisher-q: {one.address} has sent the stream away"
            ]
            # Nobody known: asked for again.
            async with client.consumer("q") as consumer:
                assert consumer.node_address == one.address

    run(test)


@pytest.mark.slow
def test_silence_is_noticed_and_ours_is_filled(run: Run) -> None:
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


@pytest.mark.slow
def test_a_master_that_falls_silent_is_reached_through_another_node(run: Run) -> None:
    """Its connection stands, so nobody else would notice. Asked to open another stream, it would
    be waited for once more."""

    async def test() -> None:
        async with two_nodes() as (client, one, two):
            one.heartbeat_ms = 100
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                await publisher.publish(b"x")
                assert publisher.node_address == one.address
                one.faults.heartbeats = False
                await until(lambda: two.opens == 1)
                await publisher.publish(b"y")
                assert publisher.node_address == two.address
            assert one.opens == 1

    run(test)


def test_a_master_that_hears_nothing_is_reached_through_another_node(run: Run) -> None:
    """What it sends arrives: its heartbeats, and the end of the stream that it gives up."""

    async def test() -> None:
        async with two_nodes() as (client, one, two):
            await client.declare_queue("q")
            one.faults.hang_up_after_batches = [1]
            async with client.publisher("q") as publisher:
                await publisher.publish(b"x")
                await publisher.publish(b"y")
                assert publisher.node_address == two.address
            assert one.opens == 1
        assert one.cluster.queues["q"].bodies == [b"x", b"y"]

    run(test)


def test_a_master_whose_connection_timed_out_is_reached_through_another_node(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way there is cut, as its kernel has acknowledged nothing for two heartbeats. Asked for
    another connection, it would be waited for once more."""
    made: list[WireProtocol] = []
    original = WireProtocol.connection_made

    def connection_made(self: WireProtocol, transport: asyncio.BaseTransport) -> None:
        original(self, transport)
        made.append(self)

    monkeypatch.setattr(WireProtocol, "connection_made", connection_made)

    async def test() -> None:
        async with two_nodes() as (client, one, two):
            one.heartbeat_ms = 500
            await client.declare_queue("q")
            async with client.publisher("q") as publisher:
                await publisher.publish(b"x")
                assert publisher.node_address == one.address
                [cut] = [each for each in made if each.peer.endswith(one.address)]
                transport = cut._transport
                assert transport is not None
                assert cut.tcp is not None
                # Two heartbeats.
                limit_ms = cut.tcp.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert limit_ms == 1000
                cut.connection_lost(TimeoutError(110, "timed out"))
                await publisher.publish(b"y")
                assert publisher.node_address == two.address
                transport.abort()
            assert one.opens == 1

    run(test)
