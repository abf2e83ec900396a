"""A ring that takes nothing: memory stays bounded, publishers wait, and control goes through."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from nemesis import Cluster, scenario
from nemesis.oracle import body_of
from nemesis.wire import RawStream

from ringmq.v1 import common_pb2 as common

MIB = 1024 * 1024
BATCH = 8
BODY_BYTES = 64 * 1024
ROUNDS = 200
# Nobody is put out while the test looks.
PATIENT: dict[str, Any] = {
    "ring_timeout_s": 30.0,
    "slow_timeout_s": 60.0,
    "lease_s": 60.0,
    "ring_bytes_max": 4 * MIB,
    "queue_memory_bytes_max": 4 * MIB,
}
# Besides the ring's own bytes: gRPC's windows of the stream and of two links, a batch in hand.
GROWTH_BYTES_MAX = 48 * MIB


def memory_bytes(pid: int) -> int:
    """What a process has resident."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no memory")


async def offer(stream: RawStream) -> None:
    """100 MiB."""
    await stream.open_publisher("q", b"eager")
    for number in range(ROUNDS):
        bodies = [body_of("p", number * BATCH + i, BODY_BYTES) for i in range(BATCH)]
        await stream.send_batch(number * BATCH + 1, bodies)


@scenario(deadline_s=60, **PATIENT)
async def test_publisher_waits_while_mirrors_take_nothing(cluster: Cluster) -> None:
    """100 MiB are offered to a ring whose mirrors stand still: the master takes what its
    limits allow, and answers whoever asks. When they go on, everything is confirmed."""
    async with cluster.publishing("q", total=200) as load:
        await load.finishes(within_s=10)
    (await cluster.drained("q")).judge(load)
    master, *mirrors = [replica.node for replica in (await cluster.info("q")).ring]
    before = memory_bytes(cluster.pid(master))
    for mirror in mirrors:
        cluster.pause(mirror)
    async with RawStream(cluster.addresses[master], "Publish") as stream:
        offering = asyncio.create_task(offer(stream))
        try:
            # Longer than a publisher may be silent: it can't say anything while it waits.
            await asyncio.sleep(4.5)
            assert not offering.done()
            assert memory_bytes(cluster.pid(master)) - before < GROWTH_BYTES_MAX
            async with cluster.client(master) as client:
                began = time.monotonic()
                assert (await client.queue("q")).publishers == 1
                assert (await client.cluster_status()).node == master
                assert time.monotonic() - began < 1.0
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
    for mirror in mirrors:
        cluster.pause(mirror)
    async with RawStream(cluster.addresses[master], "Publish") as stream:
        offering = asyncio.create_task(offer(stream))
        await asyncio.sleep(1.0)
        async with cluster.client(master) as client:
            began = time.monotonic()
            await client.delete_queue("q")
            assert time.monotonic() - began < 3.0
        moved = (await stream.receive()).moved
        assert moved.reason == common.REASON_QUEUE_NOT_FOUND
        offering.cancel()
        await asyncio.gather(offering, return_exceptions=True)
    for mirror in mirrors:
        cluster.resume(mirror)
    await cluster.declare("q")
    await cluster.wait_synchronised("q")
    assert (await cluster.info("q")).next_position == 0


@scenario(deadline_s=60)
async def test_consumer_that_reads_nothing(cluster: Cluster) -> None:
    """It gets what its prefetch allows, and holds up nobody."""
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
