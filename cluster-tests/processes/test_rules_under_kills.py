"""All rules of a queue at once, while nodes are killed and come back in an order that a seed draws.

A topic exchange, priorities, two times to live, a length, a delivery limit and a dead-letter
exchange; three consumers that ack, nack, reject and go away with messages in hand. The other tests
of these rules kill a master while nothing is under way. Here everything is.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from loops import run
from nemesis import Cluster, until
from waiting import leeway

import ringmq
from ringmq import ExchangeType, QueueMode, QueueRules

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

QUEUE, DEAD, TOPICS, LETTERS = "work", "dead", "topics", "letters"
RULES = QueueRules(
    max_priority=5,
    delivery_limit=4,
    dead_letter_exchange=LETTERS,
    message_ttl_ms=20_000,
    max_length=1500,
)
TTLS_MS = (None, None, 300, 5000)
CONSUMERS = 3


class Load:
    """What was confirmed, and what became of it as far as the client can know."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng
        self._published = 0
        self.stopping = False
        self.confirmed: set[bytes] = set()
        # The ack is as safe as a confirm.
        self.acked: Counter[bytes] = Counter()
        # An ack was sent; nobody has said what became of it.
        self.perhaps_acked: set[bytes] = set()
        self.rejected: set[bytes] = set()

    async def publish(self, client: ringmq.Client) -> None:
        async with client.publisher(exchange=TOPICS, window_messages=300) as publisher:
            while not self.stopping:
                count = self._rng.randint(1, 15)
                bodies = [b"%d" % (self._published + each) for each in range(count)]
                self._published += count
                await publisher.publish_batch(
                    bodies,
                    routing_key=f"a.{self._rng.randint(0, 9)}",
                    mandatory=True,
                    priority=self._rng.randint(0, 7),
                    ttl_ms=self._rng.choice(TTLS_MS),
                )
                self.confirmed.update(bodies)
                # Else the length would drop all that priorities and consumers have a say in.
                await asyncio.sleep(0.02)

    async def consume(self, client: ringmq.Client, priority: int) -> None:
        while not self.stopping:
            prefetch = self._rng.choice([1, 5, 40])
            async with client.consumer(QUEUE, prefetch=prefetch, priority=priority) as consumer:
                for _ in range(40):
                    batch = await consumer.next_batch(timeout_s=1.0)
                    if self.stopping:
                        return
                    if batch is not None and not await self._settle(consumer, batch):
                        break

    async def _settle(self, consumer: ringmq.Consumer, batch: ringmq.Batch) -> bool:
        """Whether the consumer goes on."""
        bodies = [message.body for message in batch]
        draw = self._rng.random()
        if draw < 0.6:
            self.perhaps_acked.update(bodies)
            if await consumer.ack(batch, wait=True):
                self.acked.update(bodies)
        elif draw < 0.8:
            await consumer.nack(batch)
        elif draw < 0.9:
            # False: the stream has ended, and they come again.
            if await consumer.reject(batch, wait=True):
                self.rejected.update(bodies)
        elif draw < 0.95:
            return False
        else:
            self.perhaps_acked.update(bodies)
            await consumer.ack(batch)
        return True

    async def kill_some(self, seconds: float) -> int:
        killed = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(self._rng.uniform(1.0, 4.0))
            victim = self._rng.choice(self._cluster.nodes)
            self._cluster.kill(victim)
            killed += 1
            await asyncio.sleep(self._rng.uniform(0.0, 1.5))
            await self._cluster.start(victim)
            # The next kill may take the master again, but never the last whole replica.
            for queue in (QUEUE, DEAD):
                await self._cluster.wait_synchronised(queue)
        return killed


async def declare(client: ringmq.Client, mode: QueueMode) -> None:
    await client.topology.declare_exchange(TOPICS, ExchangeType.TOPIC)
    await client.topology.declare_exchange(LETTERS, ExchangeType.FANOUT)
    await client.declare_queue(QUEUE, rules=RULES, mode=mode)
    await client.declare_queue(DEAD)
    await client.topology.bind(TOPICS, QUEUE, "a.#")
    await client.topology.bind(LETTERS, DEAD)


async def taken(client: ringmq.Client, queue: str) -> Counter[bytes]:
    """Everything that is in the queue, which is empty afterwards."""
    found: Counter[bytes] = Counter()
    while messages := await client.get_messages(queue, 1000, remove=True):
        found.update(message.body for message in messages)
    return found


async def story(cluster: Cluster, seed: int, seconds: float) -> None:
    rng = random.Random(seed)
    async with cluster.client(deadline_s=60.0) as client:
        await declare(client, rng.choice([QueueMode.LAZY, QueueMode.DEFAULT]))
        for queue in (QUEUE, DEAD):
            await cluster.wait_synchronised(queue)
        load = Load(cluster, rng)
        async with asyncio.TaskGroup() as group:
            group.create_task(load.publish(client))
            for number in range(CONSUMERS):
                group.create_task(load.consume(client, number))
            killed = await load.kill_some(seconds)
            load.stopping = True
        assert killed >= 2

        async def no_letter_is_under_way() -> bool:
            info = await client.queue(QUEUE)
            return not (info.messages_dead_lettering or info.messages_unacknowledged)

        await until(no_letter_is_under_way, "all dead letters have arrived", within_s=30)
        for queue in (QUEUE, DEAD):
            await cluster.wait_same_bodies(queue)
        # What expires from now on becomes a letter: first what is left, then the letters.
        left = await taken(client, QUEUE)
        await until(no_letter_is_under_way, "the last ones have arrived", within_s=30)
        dead = await taken(client, DEAD)

    # All of it came about.
    assert min(map(len, (load.confirmed, load.acked, load.rejected, dead))) > 10
    lost = load.confirmed - {*left} - {*dead} - load.perhaps_acked
    assert not lost, (seed, sorted(lost)[:10])
    assert not load.rejected - {*dead}, (seed, "rejected, and no letter of it")
    acked = {*load.acked}
    assert not acked & ({*left} | {*dead}), (seed, "acked, and there all the same")
    assert not [body for body, times in load.acked.items() if times > 1], seed
    assert not [body for body, times in (left + dead).items() if times > 1], seed


def play(folder: Path, seed: int, seconds: float) -> None:
    async def told() -> None:
        async with Cluster(folder) as cluster, asyncio.timeout(leeway(seconds + 90)):
            await story(cluster, seed, seconds)

    run(told())


def test_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    play(tmp_path, 1, 6.0)


@pytest.mark.compute
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_nothing_is_lost_or_doubled_for_longer(tmp_path: Path, seed: int) -> None:
    play(tmp_path, seed, 30.0)
