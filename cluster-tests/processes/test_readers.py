"""Readers by position while the queue's master, or the mirror that answers them, is killed in the
middle of what they ask for."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest
from nemesis import Cluster, scenario, until
from nemesis.oracle import body_of

import ringmq
from ringmq import BrowseSource, LeaseHeldError, LeaseLostError, Reader

COUNT = 6000
# So that a range takes many pieces: the master is killed after the first of them.
BODY_BYTES = 1000
# More than what is on its way between a node and its reader at a time.
LARGE_BYTES = 8000
# Calls that are under way at any moment, and how many have to be answered on each side of a kill.
ASKING, ANSWERS = 4, 20
TTL_S = 2.0


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


async def fill(client: ringmq.Client, body_bytes: int) -> list[bytes]:
    bodies = [body_of("p", number, body_bytes) for number in range(COUNT)]
    async with client.publisher("q") as publisher:
        await publisher.publish_batch(bodies)
    return bodies


@scenario(deadline_s=60)
async def test_range_ends_are_the_same_at_the_next_master(cluster: Cluster) -> None:
    """Four readers ask without a pause. Each is asking when the master dies, and has its answer."""
    async with cluster.client(deadline_s=30) as client:
        await fill(client, BODY_BYTES)
        answered: list[float] = []

        async def ask(reader: Reader, messages: int) -> None:
            first = 0
            while True:
                # By one byte too few for one message more.
                counted = await reader.range_end(first, bytes_max=(messages + 1) * BODY_BYTES - 1)
                end = min(first + messages, COUNT)
                assert counted == ringmq.CountedRange(end, end - first, (end - first) * BODY_BYTES)
                answered.append(time.monotonic())
                first = end % COUNT

        async def answers(more: int) -> None:
            wanted = len(answered) + more
            await until(lambda: len(answered) >= wanted or any(each.done() for each in asking))

        readers = [client.reader("q") for _ in range(ASKING)]
        for reader in readers:
            await reader.stat()
        asking = [
            asyncio.create_task(ask(reader, 300 + number)) for number, reader in enumerate(readers)
        ]
        try:
            await answers(ANSWERS)
            await kill_the_master(cluster)
            # What was asked before is answered first: so this takes the next master.
            await answers(ANSWERS + ASKING)
        finally:
            for each in asking:
                each.cancel()
            results = await asyncio.gather(*asking, return_exceptions=True)
        assert [*map(type, results)] == [asyncio.CancelledError] * ASKING, results
        with pytest.raises(ringmq.PositionsGoneError):
            await readers[0].range_end(COUNT + 1)


async def take_over(reader: Reader, holder: str, before: ringmq.HeldLease) -> ringmq.HeldLease:
    """Asks without a pause until the lease of the one before has expired, and not earlier."""
    while True:
        with suppress(LeaseHeldError):
            lease = await reader.acquire_lease("ingest", ttl_s=TTL_S, holder=holder)
            assert before.expires_in_s == 0
            return lease


@scenario(deadline_s=90)
async def test_an_expired_lease_is_taken_over_though_the_master_dies(cluster: Cluster) -> None:
    """A lease runs out at another master than the one that gave it. Then a master dies over the
    call that takes an expired lease over."""
    async with cluster.client(deadline_s=30) as client:
        bodies = await fill(client, BODY_BYTES)
        readers = [client.reader("q") for _ in range(3)]
        first = await readers[0].acquire_lease("ingest", ttl_s=TTL_S, holder="the first")
        taking = asyncio.create_task(take_over(readers[1], "the second", first))
        dead = await kill_the_master(cluster)
        assert first.expires_in_s > 0
        second = await taking
        assert second.token > first.token
        with pytest.raises(LeaseLostError):
            await first.renew()
        with pytest.raises(LeaseLostError):
            await readers[0].ack_up_to(10, lease=first)
        await cluster.restart(dead)
        await cluster.wait_synchronised("q")

        await second.renew()
        await until(lambda: second.expires_in_s == 0)
        taking = asyncio.create_task(take_over(readers[2], "the third", second))
        await kill_the_master(cluster)
        third = await taking
        assert third.token > second.token
        with pytest.raises(LeaseLostError):
            await readers[1].ack_up_to(10, lease=second)
        await third.renew()
        assert (await readers[2].ack_up_to(10, lease=third)).acked_end == 10
        rest = await read(readers[2], 10, COUNT, BrowseSource.MASTER)
        assert rest == dict(enumerate(bodies[10:], 10))


@scenario(deadline_s=90)
async def test_a_browse_of_mirrors_goes_on_when_each_of_them_dies(cluster: Cluster) -> None:
    """The first mirror dies, and the second one answers; that one dies when the first is back."""
    master, (mirror, other) = await cluster.master_of("q"), await cluster.mirrors_of("q")
    async with cluster.client(mirror, deadline_s=30) as client:
        bodies = await fill(client, LARGE_BYTES)
        await cluster.wait_equal("q")
        found: dict[int, bytes] = {}
        begun = 0
        async for batch in client.reader("q").browse(0, COUNT, source=BrowseSource.MIRROR):
            assert not {message.position for message in batch.messages} & {*found}
            found.update((message.position, message.body) for message in batch.messages)
            if not begun:
                cluster.kill(mirror)
                begun = batch.end
            elif batch.end > COUNT // 2 and cluster.is_running(other):
                await cluster.restart(mirror)
                await cluster.wait_synchronised("q")
                cluster.kill(other)
                begun = batch.end
        assert COUNT // 2 < begun < COUNT
        assert found == dict(enumerate(bodies))
    assert await cluster.master_of("q") == master
