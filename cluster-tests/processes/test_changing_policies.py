"""Policies that change: while queues come and go, from several nodes at once, and under load while
masters die."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from nemesis import Cluster, scenario
from waiting import until

import ringmq
from ringmq import Mirrors, Policy, QueueRules


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


LENGTH, TTL, DYING = "length", "ttl", "dying"
LETTERS, OTHERS = "letters", "others"
QUEUES = (LENGTH, TTL, DYING)
# By queue: what its policy says at first, and what it says instead.
FIRST = {
    LENGTH: QueueRules(max_length=60),
    TTL: QueueRules(message_ttl_ms=1),
    DYING: QueueRules(max_length=10, dead_letter_exchange=LETTERS),
}
CHANGED = {
    LENGTH: QueueRules(max_length=20),
    TTL: QueueRules(message_ttl_ms=3_600_000),
    DYING: QueueRules(max_length=5, dead_letter_exchange=OTHERS),
}


class Busy:
    """Publishers of all `QUEUES` that never rest, and what was confirmed, in order."""

    def __init__(self, client: ringmq.Client) -> None:
        self._client = client
        self._stopping = False
        self.confirmed: dict[str, list[bytes]] = {queue: [] for queue in QUEUES}
        # So many of `TTL` were confirmed when the longer time to live counted.
        self.before_longer = 0

    async def publish(self, queue: str) -> None:
        async with self._client.publisher(queue, deadline_s=60.0) as publisher:
            for first in itertools.count(0, 5):
                if self._stopping:
                    return
                bodies = [b"%s %d" % (queue.encode(), first + each) for each in range(5)]
                await publisher.publish_batch(bodies)
                self.confirmed[queue] += bodies
                # Else the lengths would be all that anybody sees.
                await asyncio.sleep(0.01)

    def stop(self) -> None:
        self._stopping = True

    async def goes_on(self, count: int = 50) -> None:
        """Until so many more are confirmed in each queue."""
        wanted = {queue: len(found) + count for queue, found in self.confirmed.items()}

        def are_more() -> bool:
            return all(len(self.confirmed[queue]) >= number for queue, number in wanted.items())

        await until(are_more, "publishers go on", within_s=30)


async def killed_meanwhile(
    cluster: Cluster, change: Callable[[str], Coroutine[Any, Any, None]]
) -> str:
    """The policy of each queue is changed, and the master of them all is killed when one has been
    and the others are being. Returns its node."""
    master = await cluster.master_of(LENGTH)
    first, *rest = QUEUES
    await change(first)
    async with asyncio.TaskGroup() as tasks:
        for queue in rest:
            tasks.create_task(change(queue))
        cluster.kill(master)
    for queue in (*QUEUES, LETTERS, OTHERS):
        await cluster.wait_synchronised(queue, 2)
    return master


async def taken(client: ringmq.Client, queue: str) -> list[bytes]:
    """All that is in the queue, which is empty afterwards."""
    found: list[bytes] = []
    while messages := await client.get_messages(queue, 1000, remove=True):
        found += messages.bodies
    return found


async def ready(client: ringmq.Client, queue: str) -> int:
    return (await client.queue(queue)).messages_ready


async def declare_all(cluster: Cluster) -> None:
    async with cluster.client("a") as client:
        for queue in (*QUEUES, LETTERS, OTHERS):
            await client.declare_queue(
                queue, master_locator=ringmq.MasterLocator.CLIENT_LOCAL, min_insync=2
            )
        for exchange in (LETTERS, OTHERS):
            await client.topology.declare_exchange(exchange, ringmq.ExchangeType.FANOUT)
            await client.topology.bind(exchange, exchange)
    for queue in (*QUEUES, LETTERS, OTHERS):
        await cluster.wait_synchronised(queue)
        assert await cluster.master_of(queue) == "a"


async def change_and_kill(cluster: Cluster, client: ringmq.Client, busy: Busy) -> None:
    """Policies are set, changed under the first master's death, and taken away under the next
    one's. Each change takes effect at whoever is the master then."""

    async def set_first(queue: str) -> None:
        await client.operator.set_policy(Policy(f"p-{queue}", f"^{queue}$", rules=FIRST[queue]))

    async def set_changed(queue: str) -> None:
        await client.operator.set_policy(Policy(f"p-{queue}", f"^{queue}$", rules=CHANGED[queue]))

    async def take_away(queue: str) -> None:
        await client.operator.delete_policy(f"p-{queue}")

    await busy.goes_on()
    for queue in QUEUES:
        await set_first(queue)

    async def first_count() -> bool:
        expired = (await client.queue(TTL)).expired_total
        return bool(expired and await ready(client, LETTERS)) and await ready(client, LENGTH) <= 60

    await until(first_count, "the policies count", within_s=30)
    await busy.goes_on()
    # What was there before has no time to live.
    old = await ready(client, TTL)
    gone = await killed_meanwhile(cluster, set_changed)

    async def changed_count() -> bool:
        others, living = await ready(client, OTHERS), await ready(client, TTL)
        return bool(others) and living > old + 50 and await ready(client, LENGTH) <= 20

    await until(changed_count, "the changed ones count at the next master", within_s=30)
    busy.before_longer = len(busy.confirmed[TTL])
    await busy.goes_on()
    await cluster.start(gone)
    for queue in (*QUEUES, LETTERS, OTHERS):
        await cluster.wait_synchronised(queue)
    gone = await killed_meanwhile(cluster, take_away)

    async def none_counts() -> bool:
        return await ready(client, LENGTH) > 60 and await ready(client, DYING) > 60

    await until(none_counts, "no policy counts any more", within_s=30)
    await busy.goes_on()
    await cluster.start(gone)


@scenario(deadline_s=150, queue="")
async def test_rules_of_policies_change_under_load_while_masters_are_killed(
    cluster: Cluster,
) -> None:
    """A length, a time to live and a dead-letter exchange are set, changed and taken away, and the
    masters die in the middle of it. Nothing is lost that no rule has taken, letters arrive once,
    and the replicas agree."""
    await declare_all(cluster)
    async with cluster.client(deadline_s=60) as client:
        busy = Busy(client)
        async with asyncio.TaskGroup() as tasks:
            for queue in QUEUES:
                tasks.create_task(busy.publish(queue))
            await change_and_kill(cluster, client, busy)
            busy.stop()

        async def letters_have_left() -> bool:
            return not (await client.queue(DYING)).messages_dead_lettering

        await until(letters_have_left, "all letters have arrived", within_s=30)
        for queue in (*QUEUES, LETTERS, OTHERS):
            await cluster.wait_synchronised(queue)
            await cluster.wait_same_bodies(queue)
        left = {queue: await taken(client, queue) for queue in (*QUEUES, LETTERS, OTHERS)}
    # The oldest were dropped, all others are there, in order.
    for queue in (LENGTH, DYING):
        dropped = len(busy.confirmed[queue]) - len(left[queue])
        assert dropped > 0
        assert left[queue] == busy.confirmed[queue][dropped:]
    # Those have expired that came while the time to live was short, and no others.
    lived = set(left[TTL])
    assert left[TTL] == [body for body in busy.confirmed[TTL] if body in lived]
    assert len(lived) < len(busy.confirmed[TTL])
    assert lived >= {busy.confirmed[TTL][0], *busy.confirmed[TTL][busy.before_longer :]}
    # By the first exchange, then by the other one; by both, if the first one's confirm died with
    # the master.
    dead = busy.confirmed[DYING][: -len(left[DYING])]
    for queue in (LETTERS, OTHERS):
        assert left[queue]
        assert max(Counter(left[queue]).values()) == 1
    # When the exchange is taken away, letters that wait for their turn are dropped: the last ones.
    arrived = {*left[LETTERS], *left[OTHERS]}
    assert arrived == {*dead[: len(arrived)]}
