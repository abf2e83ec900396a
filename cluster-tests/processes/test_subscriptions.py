"""A node whose channel consumes queues on three other nodes, one of which is killed.

The fourth node is in this process, as a door would be. It has no replica of the queues.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from nemesis import Cluster, scenario
from waiting import until

import ringmq
from ringmq_base.ranges import Range
from ringmq_node.broker.broker import Broker
from ringmq_node.broker.caller import Caller
from ringmq_node.broker.consuming.channel import ConsumeChannel
from ringmq_node.broker.consuming.subscription import QueueSubscription
from ringmq_node.config import NodeConfig
from ringmq_node.model.reasons import BrokerError
from ringmq_node.node import make_node
from ringmq_node.queue.run import Run

CALLER = Caller(10.0)
MESSAGES = 300
WINDOW = 12


class TakingSubscriber:
    """Acknowledges one message at a time, whenever `go_on` lets it."""

    subscription: QueueSubscription

    def __init__(self) -> None:
        self.generation = 0
        # Of the present stream: bodies by position.
        self.held: dict[int, bytes] = {}
        self.taken: list[bytes] = []
        self.safe: set[bytes] = set()
        self.bodies: dict[int, bytes] = {}
        self.errors: list[BrokerError] = []

    def opened(self, generation: int) -> None:
        self.generation = generation

    def delivered(self, runs: Sequence[Run]) -> None:
        for each in runs:
            self.held.update(enumerate(each.block.bodies(), each.first_position))

    def settled(self, positions: Sequence[Range]) -> None:
        for first, last in positions:
            self.safe.update(self.bodies[number] for number in range(first, last + 1))

    def active_changed(self, *, active: bool) -> None: ...

    def interrupted(self) -> None:
        self.held.clear()

    def ended(self, error: BrokerError) -> None:
        self.errors.append(error)

    def take_one(self) -> None:
        if self.held:
            position = next(iter(self.held))
            body = self.bodies[position] = self.held.pop(position)
            self.taken.append(body)
            assert self.subscription.settle(self.generation, acked=[(position, position)])


@asynccontextmanager
async def fourth_node(cluster: Cluster) -> AsyncIterator[Broker]:
    node = await make_node(
        NodeConfig(
            "z", cluster.registry, str(cluster.folder / "z"), listen="127.0.0.1:0", drain_s=0.1
        )
    )
    try:
        await node.start()
        yield node.broker
    finally:
        await node.stop()


async def subscribe(
    broker: Broker, channel: ConsumeChannel, queue: str, taker: TakingSubscriber
) -> None:
    taker.subscription = await broker.subscribe(channel, queue, taker, CALLER)
    await taker.subscription.open(CALLER.deadline_s)


@scenario(deadline_s=60, queue="")
async def test_a_window_over_three_masters_outlives_the_death_of_one(cluster: Cluster) -> None:
    bodies = [b"%d" % number for number in range(MESSAGES)]
    for name in cluster.nodes:
        async with cluster.client(name) as client:
            locator = ringmq.MasterLocator.CLIENT_LOCAL
            assert (await client.declare_queue(name, master_locator=locator)).master == name
            await cluster.wait_synchronised(name)
            async with client.publisher(name) as publisher:
                await publisher.publish_batch(bodies)
    async with fourth_node(cluster) as broker:
        channel = broker.consuming.channel()
        channel.change_window(WINDOW)
        takers = {name: TakingSubscriber() for name in cluster.nodes}
        for name, taker in takers.items():
            await subscribe(broker, channel, name, taker)
        await until(lambda: sum(len(each.held) for each in takers.values()) == WINDOW)
        victim = cluster.nodes[1]
        safe: set[bytes] = set()
        for step in range(100 * MESSAGES):
            if step == 200:
                safe = {*takers[victim].safe}
                cluster.kill(victim)
            for taker in takers.values():
                taker.take_one()
            assert sum(len(each.held) for each in takers.values()) <= WINDOW
            if all(len({*each.taken}) == MESSAGES for each in takers.values()):
                break
            await asyncio.sleep(0.002)

        async def is_drained() -> bool:
            """Acknowledgements that its master's death has swallowed leave messages for again."""
            takers[victim].take_one()
            info = await cluster.info(victim, cluster.nodes[0])
            return not (info.messages_ready or info.messages_unacknowledged)

        await until(is_drained)
        for name, taker in takers.items():
            assert not taker.errors
            # All of them, in order; and what comes again is what the master's death has caught:
            # nothing of which the acknowledgement was reported.
            assert list(dict.fromkeys(taker.taken)) == bodies, name
            assert (taker.generation > 1) == (name == victim)
            again = Counter(taker.taken) - Counter(bodies)
            if name == victim:
                assert again.keys().isdisjoint(safe)
            else:
                assert not again
                await until(lambda safe=taker.safe: len(safe) == MESSAGES)
        channel.close()
    await cluster.start(victim)
    for name in cluster.nodes:
        info = await cluster.wait_synchronised(name)
        assert (info.messages_ready, info.messages_unacknowledged) == (0, 0), name
        await cluster.wait_equal(name)
