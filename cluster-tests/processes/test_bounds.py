"""A ring that takes nothing: memory stays bounded, publishers wait, and control goes through."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from nemesis import Cluster, scenario
from nemesis.oracle import body_of
from nemesis.wire import RawStream
from waiting import leeway

from ringmq.v1 import common_pb2 as common

MIB = 1024 * 1024
BATCH = 8
BODY_BYTES = 64 * 1024
ROUNDS = 200
# No member is put out of the ring while the test looks at it.
PATIENT: dict[str, Any] = {
    "ring_timeout_s": 30.0,
    "slow_timeout_s": 60.0,
    "lease_s": 60.0,
    "ring_bytes_max": 4 * MIB,
    "queue_memory_bytes_max": 4 * MIB,
}
# Memory besides the ring's own bytes: the windows of the stream and of two links, which gRPC
# fills, and the batch that the master has in hand.
GROWTH_BYTES_MAX = 48 * MIB


async def moved_of(stream: RawStream) -> Any:
    """The message that ends the stream. Before it, the publisher is told that it is held."""
    while not (response := await stream.receive()).HasField("moved"):
        assert response.HasField("blocked"), response
    return response.moved


async def offer(stream: RawStream) -> None:
    """Offers 100 MiB to the master, on an open stream."""
    for number in range(ROUNDS):
        bodies = [body_of("p", number * BATCH + i, BODY_BYTES) for i in range(BATCH)]
        await stream.send_batch(number * BATCH + 1, bodies)


@scenario(deadline_s=60, **PATIENT)
async def test_publisher_waits_while_mirrors_take_nothing(cluster: Cluster) -> None:
    """Mirrors stand still while a publisher offers 100 MiB: the master takes no more than its
    limits allow, and still answers other calls. When the mirrors go on, it confirms everything."""
    async with cluster.publishing("q", total=200) as load:
        await load.finishes(within_s=10)
    (await cluster.drained("q")).judge(load)
    master, *mirrors = [replica.node for replica in (await cluster.info("q")).ring]
    before = cluster.resident_bytes(master)
    async with RawStream(cluster.addresses[master], "Publish") as stream:
        await stream.open_publisher("q", b"eager")
        for mirror in mirrors:
            cluster.pause(mirror)
        offering = asyncio.create_task(offer(stream))
        try:
            # Longer than the node lets a publisher be silent. This publisher can't send even a
            # heartbeat, because the master reads no more; the master must not give it up for that.
            await asyncio.sleep(4.5)
            assert not offering.done()
            assert cluster.resident_bytes(master) - before < GROWTH_BYTES_MAX
            async with cluster.client(master) as client:
                began = time.monotonic()
                assert (await client.queue("q")).publishers == 1
                assert (await client.cluster_status()).node == master
                assert time.monotonic() - began < leeway(1.0)
            for mirror in mirrors:
                cluster.resume(mirror)
            await stream.confirmed_up_to(ROUNDS * BATCH)
            await offering
        finally:
            offering.cancel()
    found = await cluster.drained("q")
    assert sorted(found.at) == list(range(200, 200 + ROUNDS * BATCH))


@scenario(deadline_s=60, **PATIENT)
async def test_queue_that_takes_nothing_is_deleted(cluster: Cluster) -> None:
    """A delete does not wait behind the data; the publisher's stream ends with the reason."""
    master, *mirrors = [replica.node for replica in (await cluster.info("q")).ring]
    async with RawStream(cluster.addresses[master], "Publish") as stream:
        await stream.open_publisher("q", b"eager")
        for mirror in mirrors:
            cluster.pause(mirror)
        offering = asyncio.create_task(offer(stream))
        await asyncio.sleep(1.0)
        # The read is under way before the stream ends. The end makes the publisher's write fail,
        # after which gRPC gives this error to a later read instead of the node's last message.
        ending = asyncio.create_task(moved_of(stream))
        async with cluster.client(master) as client:
            began = time.monotonic()
            await client.delete_queue("q")
            assert time.monotonic() - began < leeway(3.0)
        assert (await ending).reason == common.REASON_QUEUE_NOT_FOUND
        offering.cancel()
        await asyncio.gather(offering, return_exceptions=True)
    for mirror in mirrors:
        cluster.resume(mirror)
    await cluster.declare("q")
    await cluster.wait_synchronised("q")
    assert (await cluster.info("q")).next_position == 0


@scenario(deadline_s=60)
async def test_consumer_that_reads_nothing(cluster: Cluster) -> None:
    """A consumer that doesn't read gets as much as its prefetch allows, and delays nobody else."""
    async with RawStream(cluster.seeds[0], "Consume") as idle:
        await idle.open_consumer("q", prefetch=100)
        async with (
            cluster.publishing("q", size_bytes=5000) as load,
            cluster.consuming("q") as eager,
        ):
            await load.confirms(2000)
            await eager.gets(1500)
        assert load.errors == []
        assert (await cluster.info("q")).messages_unacknowledged <= 100
    eager.delivered.merge(await cluster.drained("q"))
    eager.delivered.judge(load)
