"""Readers by position while the queue's master is killed in the middle of what they ask for."""

from __future__ import annotations

import asyncio

import pytest
from nemesis import Cluster, scenario
from nemesis.oracle import body_of

import ringmq
from ringmq import BrowseSource, LeaseHeldError, LeaseLostError, Reader

COUNT = 6000
# So that a range takes many pieces: the master is killed after the first of them.
BODY_BYTES = 1000


async def read(reader: Reader, first: int, end: int, source: BrowseSource) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = first
    async for batch in reader.browse(first, end, source=source):
        assert batch.first == at
        at = batch.end
        for message in batch.messages:
            assert message.position not in found
            found[message.position] = message.body
    assert at == end
    return found


async def kill_the_master(cluster: Cluster) -> str:
    master = await cluster.master_of("q")
    cluster.kill(master)
    return master


@scenario(deadline_s=90)
async def test_browses_acks_and_leases_survive_the_master(cluster: Cluster) -> None:
    """Three masters die: one in the middle of a browse, one of acknowledgements, one of leases.
    Each call goes on, and what it has said stays true."""
    bodies = [body_of("p", number, BODY_BYTES) for number in range(COUNT)]
    async with cluster.client(deadline_s=30) as client:
        async with client.publisher("q") as publisher:
            await publisher.publish_batch(bodies)
        reader, other = client.reader("q"), client.reader("q")
        lease = await reader.acquire_lease("ingest", ttl_s=60, holder="the first")
        stat = await reader.stat()
        assert (stat.first, stat.end, stat.messages) == (0, COUNT, COUNT)

        await _browse(cluster, reader, bodies)
        await _acknowledge(cluster, reader, lease)
        await _change_holders(cluster, reader, other, lease)

        stat = await reader.stat()
        assert stat.acked_end == COUNT - 100
        assert set(await read(reader, COUNT - 100, COUNT, BrowseSource.MASTER)) == {
            *range(COUNT - 100, COUNT)
        }
    await cluster.wait_equal("q")


async def _browse(cluster: Cluster, reader: Reader, bodies: list[bytes]) -> None:
    dead = ""
    found: dict[int, bytes] = {}
    async for batch in reader.browse(0, COUNT):
        found.update((message.position, message.body) for message in batch.messages)
        if not dead:
            assert batch.end < COUNT
            dead = await kill_the_master(cluster)
    assert found == dict(enumerate(bodies))
    for source in (BrowseSource.MIRROR, BrowseSource.ANY):
        assert await read(reader, 0, COUNT, source) == found
    await cluster.restart(dead)
    await cluster.wait_synchronised("q")


async def _acknowledge(cluster: Cluster, reader: Reader, lease: ringmq.HeldLease) -> None:
    """In steps, each from its own task, while the master dies: the last one counts."""
    ends = range(100, COUNT - 100 + 1, 100)
    acked = 0

    async def acknowledge() -> None:
        nonlocal acked
        for end in ends:
            acked = (await reader.ack_up_to(end, lease=lease)).acked_end
            assert acked == end

    work = asyncio.create_task(acknowledge())
    while acked < COUNT // 3:
        assert not work.done()
        await asyncio.sleep(0.001)
    dead = await kill_the_master(cluster)
    safe = acked
    await work
    stat = await reader.stat()
    assert stat.acked_end >= safe
    assert (stat.first, stat.messages) == (COUNT - 100, 100)
    with pytest.raises(ringmq.PositionsGoneError):
        await read(reader, safe - 1, COUNT, BrowseSource.ANY)
    await cluster.restart(dead)
    await cluster.wait_synchronised("q")


async def _change_holders(
    cluster: Cluster, reader: Reader, other: Reader, lease: ringmq.HeldLease
) -> None:
    """The lease and its token are as they were at the next master, and so is the refusal."""
    renewing = asyncio.create_task(lease.renew())
    dead = await kill_the_master(cluster)
    await renewing
    with pytest.raises(LeaseHeldError) as held:
        await other.acquire_lease("ingest", holder="the second")
    assert held.value.holder == "the first"
    await lease.release()
    second = await other.acquire_lease("ingest", ttl_s=60, holder="the second")
    assert second.token > lease.token
    with pytest.raises(LeaseLostError):
        await reader.ack_up_to(COUNT - 50, lease=lease)
    await cluster.restart(dead)
    await cluster.wait_synchronised("q")
