"""Policies that change while queues come and go, and from several nodes at once."""

from __future__ import annotations

import asyncio
import contextlib
import random

from nemesis import Cluster, scenario
from waiting import until

from ringmq import Mirrors, Policy


@scenario(deadline_s=120, queue="")
async def test_queues_come_and_go_while_a_policy_is_toggled(cluster: Cluster) -> None:
    """`rapid_change` of RabbitMQ's dynamic_ha_SUITE: queues are declared, published to, consumed
    and deleted, one after the other, while a policy makes one replica of them, and none does."""
    toggles = 0
    async with cluster.client() as client, cluster.client("b") as operator:

        async def toggle() -> None:
            nonlocal toggles
            while True:
                await operator.operator.set_policy(Policy("p", "^short", mirrors=Mirrors(1)))
                await operator.operator.delete_policy("p")
                toggles += 1

        toggling = asyncio.create_task(toggle())
        try:
            for number in range(40):
                name = f"short{number}"
                await client.declare_queue(name)
                async with client.publisher(name) as publisher:
                    await publisher.publish(b"%d" % number)
                async with client.consumer(name) as consumer:
                    batch = await anext(aiter(consumer))
                    assert [message.body for message in batch] == [b"%d" % number]
                    await consumer.ack(batch)
                assert await client.delete_queue(name) == 0
        finally:
            toggling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await toggling
        assert toggles > 10

        async def none_is_left() -> bool:
            # Not at once: the client may ask another node now than before.
            return await client.queues() == []

        await until(none_is_left, "no queue is listed")


@scenario(deadline_s=120)
async def test_policies_from_all_nodes_at_once(cluster: Cluster) -> None:
    """`random_policy` of dynamic_ha_SUITE (#803 there), under load: each node sets policies as fast
    as it can. All agree on the one that came last, and the queue has the replicas that it wants."""
    choices = [Mirrors(1), Mirrors(2), Mirrors(), Mirrors(nodes=("a", "b")), Mirrors(nodes=("c",))]
    rand = random.Random(803)
    async with cluster.publishing("q") as load, cluster.consuming("q") as eager:

        async def set_many(node: str) -> None:
            async with cluster.client(node) as client:
                for _ in range(25):
                    mirrors = rand.choice(choices)
                    await client.operator.set_policy(Policy("p", "^q$", mirrors=mirrors))

        async with asyncio.TaskGroup() as setting:
            for node in ("a", "b", "c"):
                setting.create_task(set_many(node))

        async def listed_by(node: str) -> list[Policy]:
            async with cluster.client(node) as client:
                return await client.operator.policies()

        async def agree() -> bool:
            # Each node has seen its own changes; those of the others come by its watch.
            first, *rest = [await listed_by(node) for node in ("a", "b", "c")]
            return all(each == first for each in rest)

        await until(agree, "all nodes list the same policies")
        listed = await listed_by("a")
        last = listed[0].mirrors
        assert last is not None

        async def fits() -> bool:
            ring = (await cluster.info("q")).ring
            nodes = {each.node for each in ring if each.synchronised}
            if last.nodes:
                return nodes == set(last.nodes) and len(ring) == len(nodes)
            return len(nodes) == len(ring) == (last.count or 3)

        await until(fits, f"the replicas are as {last} wants them", within_s=40)
        await load.confirms(100)
        await eager.gets(100)
    assert load.errors == []
    eager.delivered.merge(await cluster.drained("q"))
    eager.delivered.judge(load)
    await cluster.wait_equal("q")
