"""Two workers share a queue. One leaves in the middle; the other gets what it had, flagged."""

from __future__ import annotations

import asyncio

from nodes import SEEDS

import ringmq

QUEUE = "example.work"
TASKS = 100


async def work(client: ringmq.Client, name: str, done: list[bytes], leave_after: int) -> int:
    """Returns how many tasks came a second time."""
    again = 0
    # With a small prefetch, a slow worker doesn't hold tasks that another one could do.
    async with client.consumer(QUEUE, prefetch=10) as consumer:
        while len(set(done)) < TASKS:
            batch = await consumer.next_batch(timeout_s=0.2)
            for message in batch or ():
                if leave_after == 0:
                    print(f"{name} leaves with unfinished tasks")
                    return again
                leave_after -= 1
                again += message.redelivered
                done.append(message.body)
                await consumer.ack(message)
    return again


async def main() -> None:
    async with ringmq.connect(SEEDS) as client:
        await client.declare_queue(QUEUE)
        try:
            async with client.publisher(QUEUE) as publisher:
                await publisher.publish_batch([b"task %d" % number for number in range(TASKS)])
            done: list[bytes] = []
            _, again = await asyncio.gather(
                work(client, "anna", done, leave_after=20), work(client, "ben", done, TASKS)
            )
            print(f"{len(set(done))} tasks are done, {again} were flagged as redelivered")
        finally:
            await client.delete_queue(QUEUE)


if __name__ == "__main__":
    asyncio.run(main())
