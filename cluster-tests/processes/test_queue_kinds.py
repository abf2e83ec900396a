"""Exclusive, auto-delete and server-named queues of a cluster, one node of which is killed.

One cluster for all of it: node a is the home of one connection, the master of all queues, and has
the only consumer of one of them when it dies.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
from nemesis import Cluster, scenario, until
from nemesis.wire import RawStream, Refusal, call

import ringmq
from ringmq.v1 import broker_pb2 as broker
from ringmq.v1 import reader_pb2 as reader


async def names(client: ringmq.Client) -> set[str]:
    return {info.queue for info in await client.queues()}


async def wait_gone(client: ringmq.Client, *queues: str) -> None:
    async def are_gone() -> bool:
        return not {*queues} & await names(client)

    await until(are_gone, f"{queues} are gone", within_s=30.0)


async def declare_at_a(cluster: Cluster) -> None:
    """Queues without a connection, whose master is a."""
    async with cluster.client("a") as client:
        for queue in ("shared", "lost", "unused"):
            info = await client.declare_queue(
                queue, auto_delete=True, master_locator=ringmq.MasterLocator.CLIENT_LOCAL
            )
            assert info.auto_delete
        info = await client.declare_queue(
            "urgent",
            rules=ringmq.QueueRules(max_priority=3),
            master_locator=ringmq.MasterLocator.CLIENT_LOCAL,
        )
        assert info.wanted["max_priority"] == "3"
        with pytest.raises(ringmq.QueueExistsError, match="max_priority 3, not 4"):
            await client.declare_queue("urgent", rules=ringmq.QueueRules(max_priority=4))


# With 3 as the highest, 9 stands behind the 3 that came before it.
PRIORITIES = (0, 3, 1, 0, 2, 9, 1)


async def publish_by_priority(client: ringmq.Client) -> None:
    """Two messages of each of `PRIORITIES`, one batch after the other."""
    async with client.publisher("urgent") as publisher:
        for number, priority in enumerate(PRIORITIES):
            bodies = [b"%d.%d" % (number, part) for part in range(2)]
            await publisher.publish_batch(bodies, priority=priority)


def by_priority(priority_max: int) -> list[bytes]:
    """In the order in which they are to come."""
    numbers = sorted(
        range(len(PRIORITIES)), key=lambda number: (-min(PRIORITIES[number], priority_max), number)
    )
    return [b"%d.%d" % (number, part) for number in numbers for part in range(2)]


async def take(consumer: ringmq.Consumer, messages: int) -> list[ringmq.Message]:
    found: list[ringmq.Message] = []
    while len(found) < messages:
        batch = await consumer.next_batch(timeout_s=20.0)
        assert batch is not None, f"{len(found)} of {messages} came"
        found += batch
    return found


async def check_locks(other: ringmq.Client, *, mine: str) -> None:
    """Another client may publish to an exclusive queue, and do nothing else with it."""
    async with other.publisher(mine) as publisher:
        await publisher.publish(b"answer")
    for refused in (
        other.check_queue(mine),
        other.declare_queue("x", exclusive=True),
        other.delete_queue(mine),
        other.purge_queue(mine),
        other.get_messages(mine),
    ):
        with pytest.raises(ringmq.QueueLockedError):
            await refused
    with pytest.raises(ringmq.QueueLockedError):
        async with other.consumer(mine):
            pass
    with pytest.raises(ringmq.AccessDeniedError):
        await other.declare_queue("amq.mine")
    with pytest.raises(ringmq.QueueNotFoundError):
        await other.check_queue("none")


async def check_readers(cluster: Cluster, client: ringmq.Client, *, mine: str) -> None:
    """Its messages can't be read by their positions either, through whichever node, while its own
    client can, also where the call is relayed."""
    browse = reader.BrowseRequest(queue=mine, first=0, end=1, source=reader.BROWSE_SOURCE_ANY)
    for address in cluster.addresses.values():
        for method, request in (
            ("QueueStat", reader.QueueStatRequest(queue=mine)),
            ("Browse", browse),
            ("AckUpTo", reader.AckUpToRequest(queue=mine, end=1)),
        ):
            with pytest.raises(Refusal) as refused:
                await call(address, f"Reader/{method}", request)
            assert refused.value.reason == "QUEUE_LOCKED"
    assert (await client.reader(mine).stat()).messages == 1
    for source in ringmq.BrowseSource:
        found = [each async for each in client.reader(mine).browse(0, 1, source=source)]
        assert [message.body for batch in found for message in batch.messages] == [b"answer"]


# Not less: the consumer of a queue whose master dies has `orphan_s` to come back, on any machine.
@scenario(deadline_s=90, queue="", orphan_s=4.0, lease_s=2.0)
async def test_queues_go_with_what_they_live_by(cluster: Cluster) -> None:
    await declare_at_a(cluster)
    async with (
        cluster.client("b") as other,
        cluster.client("a") as dying,
        AsyncExitStack() as streams,
    ):
        async with cluster.client("c") as client:
            # The home of this connection lives on, and the queue's master dies.
            mine = (await client.declare_queue(exclusive=True, min_insync=2)).queue
            assert mine.startswith("amq.gen-")
            assert (await other.queue(mine)).owner.startswith("c.")
            # The home of this one dies.
            await dying.declare_queue("x", exclusive=True)
            for queue in (mine, "x", "shared", "lost", "unused", "urgent"):
                await cluster.wait_synchronised(queue)
            await publish_by_priority(client)
            if await cluster.master_of(mine) != "a":
                await cluster.promote(mine, "a")
            await check_locks(other, mine=mine)
            await check_readers(cluster, client, mine=mine)
            # Not earlier: a stream on which nobody says anything is ended.
            last_consumer = await streams.enter_async_context(
                RawStream(cluster.addresses["a"], "Consume")
            )
            await last_consumer.send(broker.ConsumeRequest(open=broker.ConsumeOpen(queue="lost")))
            assert (await last_consumer.receive()).HasField("opened")
            async with (
                client.consumer("shared") as consumer,
                client.consumer("urgent", prefetch=3) as urgent,
            ):
                # The first three are with a consumer, and come back to their places.
                first = await take(urgent, 3)
                assert [message.body for message in first] == by_priority(3)[:3]
                cluster.kill("a")
                async with other.publisher("shared") as publisher:
                    await publisher.publish(b"work")
                batch = await consumer.next_batch(timeout_s=20.0)
                assert batch is not None
                await consumer.ack(batch, wait=True)
                found: list[bytes] = []
                while len(found) < 2 * len(PRIORITIES):
                    batch = await urgent.next_batch(timeout_s=20.0)
                    assert batch is not None, found
                    found += [message.body for message in batch]
                    await urgent.ack(batch)
                assert found == by_priority(3)
                await cluster.wait_equal("urgent", on=("b", "c"))
                await wait_gone(other, "lost", "x")
                assert {mine, "shared", "unused"} <= await names(other)
                (answer,) = await client.get_messages(mine, remove=True)
                assert answer.body == b"answer"
            await wait_gone(other, "shared")
            # The client whose home has died goes on, with another connection.
            assert (await dying.declare_queue("x", exclusive=True)).owner[:2] in ("b.", "c.")
            with pytest.raises(ringmq.QueueLockedError):
                await client.check_queue("x")
        await wait_gone(other, mine)
        await cluster.start("a")
        for queue in ("urgent", "unused"):
            await cluster.wait_synchronised(queue, within_s=40)
            await cluster.wait_equal(queue)
