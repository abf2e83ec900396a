"""Orders go to queues by patterns; what no pattern wants goes to the alternate exchange."""

from __future__ import annotations

import asyncio

from nodes import SEEDS

import ringmq

ORDERS, REST = "example.orders", "example.orders.rest"
# By queue. `*` is one word, `#` any number of words.
PATTERNS = {"example.europe": "order.eu.*", "example.paid": "order.#.paid"}
UNWANTED = "example.unwanted"


async def main() -> None:
    async with ringmq.connect(SEEDS) as client:
        topology = client.topology
        await topology.declare_exchange(REST, ringmq.ExchangeType.FANOUT)
        await topology.declare_exchange(ORDERS, ringmq.ExchangeType.TOPIC, alternate_exchange=REST)
        try:
            for queue, pattern in PATTERNS.items():
                await client.declare_queue(queue)
                await topology.bind(ORDERS, queue, pattern)
            await client.declare_queue(UNWANTED)
            await topology.bind(REST, UNWANTED)
            async with client.publisher(exchange=ORDERS) as publisher:
                for key in ("order.eu.new", "order.eu.paid", "order.us.paid", "order.us.new"):
                    # Confirmed when all of its queues have it.
                    await publisher.publish(key.encode(), routing_key=key)
            for queue in (*PATTERNS, UNWANTED):
                batch = await client.get_messages(queue, 10, remove=True)
                print(f"{queue} has {', '.join(body.decode() for body in batch.bodies)}")
            await topology.delete_exchange(REST)
            async with client.publisher(exchange=ORDERS) as publisher:
                try:
                    await publisher.publish(b"lost", routing_key="order.us.new", mandatory=True)
                except ringmq.UnroutableError as error:
                    print(f"nobody wants it any more: {error}")
        finally:
            for queue in (*PATTERNS, UNWANTED):
                await client.delete_queue(queue)
            await topology.delete_exchange(ORDERS)


if __name__ == "__main__":
    asyncio.run(main())
