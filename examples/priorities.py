"""Urgent messages are delivered first; among equals the order of publishing counts."""

from __future__ import annotations

import asyncio

from nodes import SEEDS

import ringmq

QUEUE = "example.alerts"


async def main() -> None:
    async with ringmq.connect(SEEDS) as client:
        await client.declare_queue(QUEUE, rules=ringmq.QueueRules(max_priority=5))
        try:
            async with client.publisher(QUEUE) as publisher:
                await publisher.publish_batch([b"report 1", b"report 2"])
                await publisher.publish(b"warning", priority=3)
                await publisher.publish(b"fire", priority=5)
            batch = await client.get_messages(QUEUE, 10, remove=True)
            print(", ".join(body.decode() for body in batch.bodies))
        finally:
            await client.delete_queue(QUEUE)


if __name__ == "__main__":
    asyncio.run(main())
