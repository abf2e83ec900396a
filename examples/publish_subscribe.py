"""News goes to every subscriber. A subscriber's queue is its own, and goes when it leaves."""

from __future__ import annotations

import asyncio

from nodes import SEEDS

import ringmq

EXCHANGE = "example.news"
SUBSCRIBERS = ("anna", "ben", "carl")
NEWS = [b"first", b"second", b"third"]


async def subscribe(client: ringmq.Client, name: str, subscribed: asyncio.Barrier) -> None:
    # The cluster names the queue. It is mirrored as any other: news outlives the death of a node.
    queue = (await client.declare_queue(exclusive=True)).queue
    await client.topology.bind(EXCHANGE, queue)
    async with client.consumer(queue) as consumer:
        await subscribed.wait()
        heard: list[bytes] = []
        while len(heard) < len(NEWS):
            batch = await anext(consumer)
            heard += batch.bodies
            await consumer.ack(batch)
    print(f"{name} heard {b', '.join(heard).decode()}")


async def main() -> None:
    async with ringmq.connect(SEEDS) as client:
        await client.topology.declare_exchange(EXCHANGE, ringmq.ExchangeType.FANOUT)
        try:
            subscribed = asyncio.Barrier(len(SUBSCRIBERS) + 1)
            async with asyncio.TaskGroup() as group:
                for name in SUBSCRIBERS:
                    group.create_task(subscribe(client, name, subscribed))
                await subscribed.wait()
                async with client.publisher(exchange=EXCHANGE) as publisher:
                    await publisher.publish_batch(NEWS, mandatory=True)
        finally:
            await client.topology.delete_exchange(EXCHANGE)


if __name__ == "__main__":
    asyncio.run(main())
