"""Time to live, length limits and unused queues, with the master killed in the middle.

RabbitMQ's names of these cases are in the tests' names: `queue_length_limits_SUITE`, and the
`dropwhile` of `backing_queue_SUITE`.
"""

from __future__ import annotations

import pytest
from nemesis import Cluster, scenario, until

import ringmq
from ringmq import Overflow, QueueRules

RULES = {
    "short": QueueRules(max_length=5),
    "full": QueueRules(max_length=3, overflow=Overflow.REJECT_PUBLISH),
    "bytes": QueueRules(max_length_bytes=10),
    "ttl": QueueRules(),
    "unused": QueueRules(expires_ms=1500),
}
KEPT = [queue for queue in RULES if queue != "unused"]


async def bodies_in(client: ringmq.Client, queue: str) -> list[bytes]:
    return [message.body for message in await client.get_messages(queue, 1000, remove=False)]


async def publish(
    client: ringmq.Client, queue: str, *bodies: bytes, ttl_ms: int | None = None
) -> None:
    async with client.publisher(queue) as publisher:
        await publisher.publish_batch(bodies, ttl_ms=ttl_ms)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%04d" % number for number in range(first, first + count)]


@scenario(deadline_s=60, queue="")
async def test_rules_through_a_failover(cluster: Cluster) -> None:
    async with cluster.client("a") as client:
        for queue, rules in RULES.items():
            await client.declare_queue(
                queue, rules=rules, master_locator=ringmq.MasterLocator.CLIENT_LOCAL
            )
    async with cluster.client() as client:
        for queue in KEPT:
            await cluster.wait_synchronised(queue)
        # max_length_drop_head, max_length_bytes_drop_head: the newest stay.
        await publish(client, "short", *numbered(12))
        assert await bodies_in(client, "short") == numbered(5, 7)
        assert (await client.queue("short")).dropped_total == 7
        await publish(client, "bytes", *numbered(4))
        assert await bodies_in(client, "bytes") == numbered(2, 2)
        await reject_confirm(client)
        # variable_queue_dropwhile: expired ones in the middle go, the rest is in order.
        await publish(client, "ttl", *numbered(3))
        await publish(client, "ttl", b"soon", ttl_ms=1)
        await publish(client, "ttl", b"later", ttl_ms=600_000)
        await publish(client, "ttl", b"at once", ttl_ms=0)
        assert await bodies_in(client, "ttl") == [*numbered(3), b"later"]
        await publish(client, "ttl", b"never seen", ttl_ms=1500)

        cluster.kill("a")
        for queue in KEPT:
            await cluster.wait_synchronised(queue, 2)
        assert await bodies_in(client, "short") == numbered(5, 7)
        await publish(client, "short", *numbered(3, 12))
        assert await bodies_in(client, "short") == numbered(5, 10)
        await reject_confirm(client)

        async def has_expired() -> bool:
            return (await client.queue("ttl")).messages_ready == 4

        await until(has_expired, "the new master lets it expire")
        assert await bodies_in(client, "ttl") == [*numbered(3), b"later"]

        async def is_gone() -> bool:
            return "unused" not in [info.queue for info in await client.queues()]

        await until(is_gone, "nobody has used it")
        await cluster.start("a")
        for queue in KEPT:
            await cluster.wait_synchronised(queue)
            await cluster.wait_equal(queue)


async def reject_confirm(client: ringmq.Client) -> None:
    """max_length_reject_confirm, max_length_drop_publish_requeue: of a batch that is too large the
    first ones are taken; after a get there is room again; what is requeued has its place."""
    await client.purge_queue("full")
    async with client.publisher("full") as publisher:
        with pytest.raises(ringmq.QueueFullError) as caught:
            await publisher.publish_batch(numbered(5))
        assert caught.value.failed == ((3, 4),)
        with pytest.raises(ringmq.QueueFullError):
            await publisher.publish(b"x")
        async with client.consumer("full", prefetch=1) as consumer:
            first = await consumer.next_batch(timeout_s=10.0)
            assert first is not None
            await publisher.publish(b"in its place")
            await consumer.nack(first)

        async def all_are_back() -> bool:
            return await bodies_in(client, "full") == [*numbered(3), b"in its place"]

        await until(all_are_back, "it is back")
        with pytest.raises(ringmq.QueueFullError):
            await publisher.publish(b"x")


@scenario(deadline_s=60, queue="")
async def test_policies_change_the_rules_of_a_queue_in_use(cluster: Cluster) -> None:
    """policy_ttl, operator_policy_ttl: for what is published from then on. A shorter length is for
    what is there, too."""
    async with cluster.client() as client:
        await client.declare_queue("q", rules=QueueRules(message_ttl_ms=600_000))
        await publish(client, "q", *numbered(10))
        rules = QueueRules(max_length=4, message_ttl_ms=1)
        operator = client.operator
        await operator.set_policy(ringmq.Policy("p", "^q$", rules=rules, is_operator=True))

        async def is_short() -> bool:
            return (await client.queue("q")).messages_ready == 4

        await until(is_short, "the policy reaches the master")
        assert await bodies_in(client, "q") == numbered(4, 6)
        await publish(client, "q", b"gone")

        async def is_expired() -> bool:
            return (await client.queue("q")).expired_total == 1

        await until(is_expired, "its millisecond is over")
        assert b"gone" not in await bodies_in(client, "q")
        with pytest.raises(ringmq.QueueExistsError, match="max_length none, not 9"):
            await client.declare_queue("q", rules=QueueRules(max_length=9))
        with pytest.raises(ringmq.BadRequestError) as caught:
            await client.declare_queue("other", rules=QueueRules(max_length=2**60))
        assert caught.value.field == "max_length"
        await cluster.wait_equal("q")


@scenario(deadline_s=60, queue="")
async def test_priorities_lives_and_lengths_together(cluster: Cluster) -> None:
    """What is least urgent and oldest is dropped, what has expired goes, and the rest comes by its
    priority: with a consumer that has the first one as the master dies."""
    rules = QueueRules(
        max_priority=5, max_length=6, dead_letter_exchange="", dead_letter_routing_key="letters"
    )
    async with cluster.client("a") as client:
        local = ringmq.MasterLocator.CLIENT_LOCAL
        await client.declare_queue("letters", master_locator=local)
        await client.declare_queue("all", rules=rules, master_locator=local)
    for queue in ("all", "letters"):
        await cluster.wait_synchronised(queue)
    async with cluster.client() as client, client.publisher("all") as publisher:
        await publisher.publish_batch([b"low 0", b"low 1", b"low 2"])
        await publisher.publish_batch([b"high 0", b"high 1"], priority=9)
        await publisher.publish_batch([b"dies 0", b"dies 1"], priority=2, ttl_ms=6000)
        dying = [b"dies 0", b"dies 1"]
        assert await bodies_in(client, "all") == [b"high 0", b"high 1", *dying, b"low 1", b"low 2"]
        async with client.consumer("all", prefetch=1) as consumer:
            first = await consumer.next_batch(timeout_s=10.0)
            assert first is not None
            generation = consumer.generation
            cluster.kill("a")
            await until(lambda: consumer.generation > generation, "its stream is open again")
            first = await consumer.next_batch(timeout_s=20.0)
            assert first is not None
            assert [(each.body, each.redelivered) for each in first] == [(b"high 0", True)]
        await publisher.publish(b"high 2", priority=5)
        highs = [b"high 0", b"high 1", b"high 2"]

        async def is_as(*bodies: bytes) -> bool:
            return await bodies_in(client, "all") == [*bodies]

        await until(lambda: is_as(*highs, b"low 2"), "what dies has died", within_s=20)
        await cluster.start("a")
        for queue in ("all", "letters"):
            await cluster.wait_synchronised(queue)

        async def arrived() -> bool:
            return (await client.queue("letters")).messages_ready == 4

        await until(arrived, "its letters")
        letters = {
            each.body: each.properties.deaths[0].reason
            for each in await client.get_messages("letters", 10)
        }
        expired, dropped = dict.fromkeys(dying, "expired"), (b"low 0", b"low 1")
        assert letters == expired | dict.fromkeys(dropped, "maxlen")
    for queue in ("all", "letters"):
        await cluster.wait_equal(queue)
