"""Publishers that are held, and told why: by an alarm on any node, and by a mirror that is behind.

Disks of their own can be filled, and frozen where loop devices can be had (`chaos.disks`). These
tests have to be root, which CI is. A process that is stopped again and again is slow anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from chaos.disks import Disks, NoDisksError
from loops import run
from nemesis import NODES, Cluster, until
from nemesis.oracle import body_of
from nemesis.wire import RawStream

import ringmq
from ringmq import BlockReason
from ringmq_base.limits import KIB, MIB
from ringmq_node.broker.publishing import ALARM_READY_MESSAGES_MAX

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

# Of each; see `settings`.
BYTES_MAX = 2 * MIB
BODY = bytes(64 * KIB)
# A window that a node could not keep, or it would not be bounded.
WINDOW_BYTES = 64 * MIB
# What one node may have in memory beside its own: far less than the window.
GROWTH_BYTES_MAX = 32 * MIB
HELD_BYTES = 32 * MIB
# A node tells a publisher a moment after it holds it: a stop is longer than that. It is shorter
# than the ring's time-out, and so the mirror stays.
STOPS_S, RUNS_S = 2.0, 0.2
PATIENT: dict[str, object] = {"ring_timeout_s": 20.0, "lease_s": 40.0}


class Told:
    """What a publisher was told last, and how often that it goes on."""

    def __init__(self) -> None:
        self.now: tuple[BlockReason, ...] = ()
        self.ends = 0

    def on_blocked(self, reasons: tuple[BlockReason, ...]) -> None:
        self.now = reasons

    def on_unblocked(self) -> None:
        self.now = ()
        self.ends += 1


def publisher(client: ringmq.Client, queue: str, told: Told) -> ringmq.Publisher:
    return client.publisher(
        queue,
        window_messages=1_000_000,
        window_bytes=WINDOW_BYTES,
        on_blocked=told.on_blocked,
        on_unblocked=told.on_unblocked,
        deadline_s=60.0,
    )


@asynccontextmanager
async def alarmed(cluster: Cluster, disks: Disks, name: str) -> AsyncIterator[None]:
    """The node's disk is full for as long as the block lasts, and all nodes know."""
    before = _alarms(cluster)
    disks.fill(name)
    try:
        await until(lambda: all_more(_alarms(cluster), before), "all nodes know of the alarm")
        yield
    finally:
        disks.make_room(name)


def all_more(now: list[int], then: list[int]) -> bool:
    return all(one > other for one, other in zip(now, then, strict=True))


def _alarms(cluster: Cluster) -> list[int]:
    """How often each node has said that an alarm holds its publishers."""
    return [cluster.log(node, 500).count("publishers are blocked") for node in cluster.nodes]


async def memory_of(cluster: Cluster) -> dict[str, int]:
    async with cluster.client() as client:
        status = await client.cluster_status(with_resources=True)
    return {
        node.node: node.resources.memory_used_bytes
        for node in status.nodes
        if node.resources is not None
    }


async def alarm_story(cluster: Cluster, disks: Disks) -> None:
    """`q` has no replica on the node whose disk is full: its master hears by the registry."""
    async with cluster.client() as client:
        info = await client.declare_queue("q", replicas=2, min_insync=1)
        while len(info.ring) < 2:
            info = await client.queue("q")
        (full,) = cluster.others(*(replica.node for replica in info.ring))
        told, routed_told = Told(), Told()
        async with (
            publisher(client, "q", told) as publishing,
            client.publisher(
                exchange="", on_blocked=routed_told.on_blocked, deadline_s=60.0
            ) as routed,
        ):
            await publishing.publish(b"before")
            async with alarmed(cluster, disks, full):
                held = asyncio.ensure_future(publishing.publish(b"held"))
                held_too = asyncio.ensure_future(routed.publish(b"held", routing_key="q"))
                await until(lambda: told.now == (BlockReason.DISK,), "told why")
                await until(lambda: routed_told.now == (BlockReason.DISK,), "told why")
                state = await client.queue("q")
                assert state.state is ringmq.QueueState.FLOW
                assert state.flow_reasons == (BlockReason.DISK,)
                # Both publishers are of one client, and go to nodes that may differ.
                assert await states_of(client) == {ringmq.ConnectionState.BLOCKED}
                # Consumers, acks, gets, purges, declares and deletes go on.
                async with client.consumer("q") as consumer:
                    batch = await consumer.next_batch(20.0)
                    assert batch is not None
                    assert await consumer.ack(batch, wait=True)
                await client.get_messages("q")
                await client.purge_queue("q")
                await client.declare_queue("other", replicas=2, min_insync=1)
                await client.delete_queue("other")
                assert not held.done()
                assert not held_too.done()
            await asyncio.gather(held, held_too)
            await until(lambda: told.now == (), "told the end")

            async def run() -> bool:
                return await states_of(client) == {ringmq.ConnectionState.RUNNING}

            # Batches that were held are shown for some seconds.
            assert await states_of(client) == {ringmq.ConnectionState.FLOW}
            await until(run, "its connections run")
        await cluster.wait_equal("q", on=[replica.node for replica in info.ring])


async def states_of(client: ringmq.Client) -> set[ringmq.ConnectionState]:
    """Of connections with publishers, which are this client's."""
    found = await client.operator.connections()
    assert found.silent_nodes == ()
    return {each.state for each in found.connections if each.publishers and not each.relayed}


# Makes one node of a cluster slow for as long as the block lasts.
Slowed = Callable[[Cluster, str], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def stopped_again_and_again(cluster: Cluster, name: str) -> AsyncIterator[None]:
    """The node's process has its processor for a tenth of the time."""

    async def stutter() -> None:
        while True:
            cluster.pause(name)
            await asyncio.sleep(STOPS_S)
            cluster.resume(name)
            await asyncio.sleep(RUNS_S)

    stuttering = asyncio.create_task(stutter())
    try:
        yield
    finally:
        stuttering.cancel()
        await asyncio.gather(stuttering, return_exceptions=True)
        cluster.resume(name)


def frozen_on(disks: Disks) -> Slowed:
    @asynccontextmanager
    async def frozen(_: Cluster, name: str) -> AsyncIterator[None]:
        await asyncio.to_thread(disks.freeze, name)
        try:
            yield
        finally:
            await asyncio.to_thread(disks.thaw, name)

    return frozen


async def slow_mirror_story(cluster: Cluster, slowed: Slowed) -> None:
    """A publisher at full speed fills a queue with a slow mirror. It is held and told why. One of a
    queue without a replica there isn't, on the same connection; no node's memory grows by the
    window. Consumers of both queues have what is confirmed."""
    async with cluster.client() as client:
        info = await client.declare_queue("slow", replicas=3, min_insync=3)
        await cluster.wait_synchronised("slow")
        quick = await client.declare_queue("quick", replicas=1, min_insync=1)
        while not quick.ring:
            quick = await client.queue("quick")
        behind = next(r.node for r in info.ring[1:] if r.node != quick.master)
    async with cluster.client(*cluster.others(behind), deadline_s=60.0) as client:
        told, untold = Told(), Told()
        async with (
            publisher(client, "slow", told) as slow,
            publisher(client, "quick", untold) as other,
        ):
            await slow.publish(b"before")
            before = resident_bytes(cluster)
            async with slowed(cluster, behind):
                held = [await slow.submit(BODY) for _ in range(WINDOW_BYTES // len(BODY))]
                await until(lambda: BlockReason.RING_FULL in told.now, "told why")
                assert not all(future.done() for future in held)
                for _ in range(20):
                    await other.publish(BODY, deadline_s=20.0)
                assert untold.now == ()
                after = resident_bytes(cluster)
            await asyncio.gather(*held)
            await until(lambda: told.now == (), "told the end")
        for node, used in after.items():
            assert used < before[node] + GROWTH_BYTES_MAX, (node, before, after)
        await cluster.wait_synchronised("slow")
        await cluster.wait_equal("slow")
        assert (await client.queue("slow")).messages_ready == len(held) + 1


def resident_bytes(cluster: Cluster) -> dict[str, int]:
    """The memory of each node, of a stopped one, too."""
    return {name: cluster.resident_bytes(name) for name in cluster.nodes}


async def dead_node_story(cluster: Cluster, disks: Disks) -> None:
    """The alarm of a node that is killed ends with it, also if that was the master."""
    async with cluster.client() as client:
        info = await client.declare_queue("orphan", replicas=3, min_insync=2)
        await cluster.wait_synchronised("orphan")
        told = Told()
        async with publisher(client, "orphan", told) as publishing:
            await publishing.publish(b"before")
            async with alarmed(cluster, disks, info.master):
                held = asyncio.ensure_future(publishing.publish(b"held"))
                await until(lambda: told.now == (BlockReason.DISK,), "told why")
                cluster.kill(info.master)
                await held
            assert told.now == ()
    await cluster.start(info.master)
    await cluster.wait_synchronised("orphan")
    await cluster.wait_equal("orphan")


async def with_tiny_watermark(cluster: Cluster, name: str) -> None:
    """Starts a node again whose memory is above its watermark from the beginning, and waits until
    all nodes know."""
    alarms = _alarms(cluster)
    if cluster.is_running(name):
        await cluster.stop(name)
    before = cluster.ready_lines(name)
    cluster.launch(name, memory_watermark="2MiB")
    await cluster.wait_ready(name, after=before)
    await until(lambda: all_more(_alarms(cluster), alarms), "all nodes know of the alarm")


async def memory_alarm_story(cluster: Cluster, full: str) -> None:
    """The node without a replica of the queue has no memory left: publishers on the others are
    held, and told so, until it has some again. A second alarm ends with its node."""
    left = cluster.others(full)
    async with cluster.client(*left, deadline_s=60.0) as client:
        told = Told()
        async with publisher(client, "q", told) as publishing:
            await publishing.publish(b"before")
            for ends_by in ("room", "death"):
                await with_tiny_watermark(cluster, full)
                held = asyncio.ensure_future(publishing.publish(b"held"))
                await until(lambda: told.now == (BlockReason.MEMORY,), "told why")
                info = await client.queue("q")
                assert info.state is ringmq.QueueState.FLOW
                assert info.flow_reasons == (BlockReason.MEMORY,)
                await ignores_the_alarm(cluster, info.master)
                ends = told.ends
                await is_held_by_the_next_master(cluster, client, publishing)
                assert (told.now, told.ends) == ((BlockReason.MEMORY,), ends)
                assert not held.done()
                if ends_by == "room":
                    await cluster.restart(full)
                else:
                    cluster.kill(full)
                await held
                await until(lambda: told.now == (), f"told the end by {ends_by}")


async def is_held_by_the_next_master(
    cluster: Cluster, client: ringmq.Client, publishing: ringmq.Publisher
) -> None:
    """In an alarm the queue's other replica becomes its master, and holds the publisher, too."""
    mirror = (await client.queue("q")).ring[1].node
    await cluster.promote("q", mirror)

    async def is_held_there() -> bool:
        found = await client.operator.connections()
        states = [each.state for each in found.connections if each.node == mirror]
        is_there = publishing.node_address == cluster.addresses[mirror]
        return is_there and ringmq.ConnectionState.BLOCKED in states

    await until(is_held_there, "the next master holds it")


async def ignores_the_alarm(cluster: Cluster, master: str) -> None:
    """A publisher that goes on sending, beside a consumer that acks nothing: the node reads no
    more than it can hold, and the consumer has no more than its prefetch."""
    async with (
        cluster.client(master) as client,
        client.consumer("q", prefetch=10) as idle,
        RawStream(cluster.addresses[master], "Publish") as stream,
    ):
        await stream.open_publisher("q", b"deaf")
        before = (await memory_of(cluster))[master]
        count = HELD_BYTES * 4 // len(BODY)
        sent = 0

        async def offer() -> None:
            nonlocal sent
            for number in range(count):
                await stream.send_batch(number + 1, [body_of("deaf", number, len(BODY))])
                sent += 1

        offering = asyncio.create_task(offer())
        try:
            await until(lambda: sent > 0, "it has begun")
            await stands_still(lambda: sent)
            assert not offering.done()
            after = (await memory_of(cluster))[master]
            assert after - before < GROWTH_BYTES_MAX, (before, after, sent)
            batch = await idle.next_batch(20.0)
            assert batch is not None
            assert len(batch) <= 10
            info = await client.queue("q")
            assert info.messages_unacknowledged <= 10
        finally:
            offering.cancel()
            await asyncio.gather(offering, return_exceptions=True)


async def stands_still(number: Callable[[], int], for_s: float = 1.0) -> None:
    """Until it hasn't changed for so long."""
    last, since = number(), asyncio.get_running_loop().time()

    def is_still() -> bool:
        nonlocal last, since
        now = asyncio.get_running_loop().time()
        if number() != last:
            last, since = number(), now
        return now - since >= for_s

    await until(is_still, "it stands still")


def test_a_memory_alarm_holds_the_publishers_of_all_nodes(tmp_path: Path) -> None:
    async def story() -> None:
        cluster = Cluster(tmp_path, slow_timeout_s=60.0)
        async with cluster, asyncio.timeout(150):
            async with cluster.client() as client:
                info = await client.declare_queue("q", replicas=2, min_insync=1)
                while len(info.ring) < 2:
                    info = await client.queue("q")
                nodes = [replica.node for replica in info.ring]
                async with client.publisher("q") as filling:
                    await filling.publish_batch([b"to be held"] * 30)
            (full,) = cluster.others(*nodes)
            await memory_alarm_story(cluster, full)
            await cluster.wait_equal("q", on=nodes)

    run(story())


def test_a_full_disk_holds_the_publishers_of_all_nodes(tmp_path: Path) -> None:
    async def story(disks: Disks) -> None:
        cluster = Cluster(tmp_path, data_of=disks.data, disk_free_limit="200MiB")
        async with cluster, asyncio.timeout(120):
            await alarm_story(cluster, disks)
            await dead_node_story(cluster, disks)

    try:
        with Disks(tmp_path, NODES) as disks:
            run(story(disks))
    except NoDisksError as error:
        pytest.skip(str(error))


def of_small_bounds(folder: Path, **settings: Any) -> Cluster:
    return Cluster(
        folder,
        ring_bytes_max=BYTES_MAX,
        unsynced_bytes_max=BYTES_MAX,
        slow_timeout_s=60.0,
        **settings,
    )


def test_a_mirror_that_is_stopped_again_and_again_holds_one_publisher(tmp_path: Path) -> None:
    async def story() -> None:
        async with of_small_bounds(tmp_path, **PATIENT) as cluster, asyncio.timeout(120):
            await slow_mirror_story(cluster, stopped_again_and_again)

    run(story())


def test_a_mirror_whose_disk_stands_still_holds_one_publisher(tmp_path: Path) -> None:
    async def story(disks: Disks) -> None:
        async with of_small_bounds(tmp_path, data_of=disks.data) as cluster, asyncio.timeout(120):
            await slow_mirror_story(cluster, frozen_on(disks))

    try:
        with Disks(tmp_path, NODES) as disks:
            if not disks.can_freeze:
                pytest.skip("no loop devices here: a disk can't be frozen")
            run(story(disks))
    except NoDisksError as error:
        pytest.skip(str(error))


async def letters_in_an_alarm(cluster: Cluster) -> None:
    """Messages come to consumers by way of their dead-letter exchange: if their letters waited for
    the end of the alarm, nobody could consume what has to go for it to end."""
    count = 2 * ALARM_READY_MESSAGES_MAX
    async with cluster.client(deadline_s=60.0) as client:
        rules = ringmq.QueueRules(dead_letter_exchange="", dead_letter_routing_key="dead")
        await cluster.declare("work", rules=rules)
        await cluster.declare("dead")
        async with client.publisher("work") as filling:
            await filling.publish_batch([b"%d" % number for number in range(count)])
        for queue, node in (("work", "a"), ("dead", "b")):
            await cluster.wait_synchronised(queue)
            if await cluster.master_of(queue) != node:
                await cluster.promote(queue, node)
        await with_tiny_watermark(cluster, "c")
        held = asyncio.ensure_future(publish_one(client, "dead"))
        async with client.consumer("work", prefetch=1000) as consumer:
            left = count
            while left:
                batch = await consumer.next_batch(20.0)
                assert batch is not None, left
                left -= len(batch)
                await consumer.nack(batch, requeue=False)

            async def as_many_as_may() -> bool:
                return (await client.queue("dead")).messages_ready >= ALARM_READY_MESSAGES_MAX

            # Nobody consumes them yet.
            await until(as_many_as_may, "the first letters have arrived")
        got: list[int] = []
        async with client.consumer("dead") as consumer:
            while len(got) < count:
                batch = await consumer.next_batch(20.0)
                assert batch is not None, len(got)
                got += map(int, batch.bodies)
                await consumer.ack(batch)
        assert sorted(got) == [*range(count)]
        assert not held.done()
        await cluster.restart("c")
        await held


async def publish_one(client: ringmq.Client, queue: str) -> None:
    async with client.publisher(queue, deadline_s=60.0) as publishing:
        await publishing.publish(b"-1")


def test_letters_go_on_in_an_alarm_as_far_as_they_are_consumed(tmp_path: Path) -> None:
    async def story() -> None:
        async with Cluster(tmp_path) as cluster, asyncio.timeout(120):
            await letters_in_an_alarm(cluster)
            for queue in ("work", "dead"):
                await cluster.wait_synchronised(queue)
                await cluster.wait_equal(queue)

    run(story())
