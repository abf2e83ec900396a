"""Connections break while confirms are on their way: messages sent again are enqueued once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest
from nemesis import Cluster, scenario
from nemesis.oracle import body_of
from nemesis.wire import RawStream, Refusal
from waiting import until

import ringmq

PRODUCER = b"a producer of its own"


@scenario(deadline_s=60, proxied=True)
async def test_connections_cut_again_and_again(cluster: Cluster) -> None:
    """Every 0.1 s the master's connections are reset, those in the ring, too."""
    async with cluster.publishing("q", total=3000) as load:
        for _ in range(15):
            await asyncio.sleep(0.1)
            for proxy in cluster.proxies.values():
                proxy.cut()
        await load.finishes(within_s=30)
    assert load.errors == []
    assert (await cluster.info("q")).next_position == 3000
    await cluster.wait_synchronised("q")
    (await cluster.drained("q")).judge(load)


@scenario(deadline_s=30)
async def test_batch_sent_twice(cluster: Cluster) -> None:
    """A batch is repeated on its own stream, on the next one, in part, and through another node."""
    bodies = [body_of("p", number, 100) for number in range(10)]
    addresses = cluster.seeds
    async with RawStream(addresses[0], "Publish") as stream:
        assert (await stream.open_publisher("q", PRODUCER)).last_sequence == 0
        await stream.send_batch(1, bodies[:5])
        await stream.send_batch(1, bodies[:5])
        await stream.confirmed_up_to(5)
    for address in addresses:
        async with RawStream(address, "Publish") as stream:
            assert (await stream.open_publisher("q", PRODUCER)).last_sequence >= 5
            # Half known, half new; then all known.
            await stream.send_batch(3, bodies[2:])
            await stream.confirmed_up_to(10)
    found = await cluster.drained("q")
    assert [found.at[position] for position in sorted(found.at)] == [("p", i) for i in range(10)]


@scenario(deadline_s=60)
async def test_batch_sent_again_after_failover(cluster: Cluster) -> None:
    """The stream breaks before the confirm is read; the next master knows the producer."""
    bodies = [body_of("p", number, 100) for number in range(100)]
    master = await cluster.master_of("q")
    async with RawStream(cluster.addresses[master], "Publish") as stream:
        await stream.open_publisher("q", PRODUCER)
        await stream.send_batch(1, bodies)
        await stream.receive()  # At least some of the batch has been around the ring.
        cluster.kill(master)
    await cluster.wait_synchronised("q", 2)
    info = await cluster.info("q")
    async with RawStream(cluster.addresses[info.master], "Publish") as stream:
        assert (await stream.open_publisher("q", PRODUCER)).last_sequence == 100
        await stream.send_batch(1, bodies)
        await stream.confirmed_up_to(100)
    found = await cluster.drained("q")
    assert sorted(found.at) == list(range(100))


@scenario(deadline_s=90)
async def test_producers_that_come_and_go_are_forgotten_and_the_others_are_not(
    cluster: Cluster,
) -> None:
    """Plain ones, and ones through an exchange by each node. Those that live over a failover send
    messages again under their random ids, and are recognised."""

    async def producers(client: ringmq.Client, count: int) -> None:
        async def as_many() -> bool:
            return (await client.queue("q")).producers == count

        await until(as_many, f"{count} producers are left", within_s=40.0)

    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(cluster.client(node, deadline_s=40))
            for node in cluster.nodes
        ]
        client = await stack.enter_async_context(cluster.client(deadline_s=40))
        async with client.publisher("q", producer_id=b"of a program") as kept:
            await kept.publish(b"kept")
        living = [client.publisher("q"), clients[1].publisher(exchange="")]
        for publisher in living:
            await publisher.open()
        key = {True: "q", False: ""}
        for number in range(120):
            async with (
                clients[number % 3].publisher("q") as plain,
                clients[number % 3].publisher(exchange="") as routed,
            ):
                await plain.publish(b"plain")
                await routed.publish(b"routed", routing_key="q")
            if number == 60:
                for publisher in living:
                    publisher.publish_nowait(
                        b"living", routing_key=key[publisher.exchange is not None]
                    )
        for publisher in living:
            await publisher.flush()
        # The program's, and the two that live.
        await producers(client, 3)
        sent = [
            publisher.publish_nowait(
                b"%d" % number, routing_key=key[publisher.exchange is not None]
            )
            for number in range(300)
            for publisher in living
        ]
        master = await cluster.master_of("q")
        cluster.kill(master)
        await asyncio.gather(*sent)
        assert (await client.queue("q")).next_position == 1 + 240 + 2 + 600
        for publisher in living:
            await publisher.close()
        await producers(client, 1)
        async with client.publisher("q", producer_id=b"of a program") as kept:
            assert kept.last_sequence == 1
    await cluster.start(master)
    await cluster.wait_synchronised("q")
    await cluster.wait_equal("q")


@scenario(deadline_s=60)
async def test_producers_that_had_nothing_to_send_when_their_master_died_are_forgotten(
    cluster: Cluster,
) -> None:
    """All of theirs was confirmed by the old master. Those through an exchange are closed before
    there is another one, so that their nodes have no stream to say it on."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(cluster.client(deadline_s=40))
        master = await cluster.master_of("q")
        others = [
            await stack.enter_async_context(cluster.client(node, deadline_s=40))
            for node in cluster.nodes
            if node != master
        ]
        plain = [client.publisher("q") for _ in range(10)]
        routed = [other.publisher(exchange="") for other in others for _ in range(10)]
        for publisher in plain + routed:
            await publisher.open()
            await publisher.publish(b"x", routing_key="q" if publisher in routed else "")
        cluster.kill(master)
        await asyncio.gather(*(publisher.close() for publisher in routed))
        # It has an answer once there is a master.
        await client.queue("q")
        await asyncio.gather(*(publisher.close() for publisher in plain))

        async def none_is_left() -> bool:
            return (await client.queue("q")).producers == 0

        await until(none_is_left, "producers are left", within_s=20.0)


@scenario(deadline_s=60)
async def test_no_sequence_is_told_that_dies_with_the_master(cluster: Cluster) -> None:
    """Both mirrors stand still: the master alone has 10 to 19 when the producer resumes. Told 19,
    it would go on with 20, and 10 to 19 would be missing for ever."""
    bodies = [body_of("p", number, 100) for number in range(20)]
    master = await cluster.master_of("q")
    mirrors = await cluster.mirrors_of("q")
    async with (
        RawStream(cluster.addresses[master], "Publish") as stream,
        RawStream(cluster.addresses[master], "Publish") as resumed,
    ):
        assert (await stream.open_publisher("q", PRODUCER)).last_sequence == 0
        await stream.send_batch(1, bodies[:9])
        await stream.confirmed_up_to(9)
        for mirror in mirrors:
            cluster.pause(mirror)
        await stream.send_batch(10, bodies[9:19])
        # The wait ends after its own time, or with the master's contact to its ring.
        with pytest.raises(Refusal, match=r"no trip around the ring|ended before") as caught:
            await resumed.open_publisher("q", PRODUCER)
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE
        assert caught.value.reason in ("NO_MASTER", "NOT_MASTER")
        cluster.kill(master)
    for mirror in mirrors:
        cluster.resume(mirror)
    await cluster.wait_synchronised("q", 2)
    info = await cluster.info("q")
    async with RawStream(cluster.addresses[info.master], "Publish") as stream:
        # Or 19, if a frame with them was in a socket of a mirror.
        told = (await stream.open_publisher("q", PRODUCER)).last_sequence
        assert told in (9, 19)
        await stream.send_batch(told + 1, bodies[told:])
        await stream.confirmed_up_to(20)
    found = await cluster.drained("q")
    assert [found.at[position] for position in sorted(found.at)] == [("p", i) for i in range(20)]


@scenario(deadline_s=60)
async def test_known_after_a_restart_of_all(cluster: Cluster) -> None:
    bodies = [body_of("p", number, 100) for number in range(20)]
    async with RawStream(cluster.seeds[0], "Publish") as stream:
        await stream.open_publisher("q", PRODUCER)
        await stream.send_batch(1, bodies)
        await stream.confirmed_up_to(20)
    cluster.kill(*cluster.nodes)
    await cluster.start()
    await cluster.wait_synchronised("q")
    async with RawStream(cluster.seeds[0], "Publish") as stream:
        assert (await stream.open_publisher("q", PRODUCER)).last_sequence == 20
        await stream.send_batch(11, bodies[10:])
        await stream.confirmed_up_to(20)
    assert (await cluster.info("q")).next_position == 20


@scenario(deadline_s=30)
async def test_sequences_that_can_not_be(cluster: Cluster) -> None:
    """A gap, and a producer that nobody knows, are refused by name; nothing is enqueued."""
    async with RawStream(cluster.seeds[0], "Publish") as stream:
        await stream.open_publisher("q", PRODUCER)
        await stream.send_batch(7, [b"x 1 x"])
        rejected = (await stream.receive()).rejected
        assert "knows nothing of this producer" in rejected.message
        await stream.send_batch(1, [b"x 1 x"])
        await stream.confirmed_up_to(1)
        await stream.send_batch(3, [b"x 3 x"])
        rejected = (await stream.receive()).rejected
        assert rejected.message == "the batch begins with 3, 2 is next"
        assert rejected.retryable
        await stream.send_batch(0, [b"x 0 x"])
        assert "begin with 1" in (await stream.receive()).rejected.message
    assert (await cluster.info("q")).next_position == 1
    async with RawStream(cluster.seeds[0], "Publish") as stream:
        with pytest.raises(Refusal, match="at most") as caught:
            await stream.open_publisher("q", b"p" * 65)
        assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert (caught.value.reason, caught.value.metadata["field"]) == (
            "BAD_REQUEST",
            "producer_id",
        )
