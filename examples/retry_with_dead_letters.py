"""Work that fails waits a while and is tried again; after three tries it is parked.

    tasks --rejected--> waiting (a TTL) --expired--> tasks

The history of a message (`deaths`) says how often it was rejected. Nothing is lost on the way: a
message leaves one queue when the next one has it on the disks that count.
"""

from __future__ import annotations

import asyncio

from nodes import SEEDS

import ringmq

TASKS, WAITING, PARKED = "example.tasks", "example.tasks.waiting", "example.tasks.parked"
PAUSE_MS = 200
TRIES_MAX = 3


async def declare(client: ringmq.Client) -> None:
    # "" is the default exchange: the routing key is the name of a queue.
    to_waiting = ringmq.QueueRules(dead_letter_exchange="", dead_letter_routing_key=WAITING)
    to_tasks = ringmq.QueueRules(
        message_ttl_ms=PAUSE_MS, dead_letter_exchange="", dead_letter_routing_key=TASKS
    )
    await client.declare_queue(TASKS, rules=to_waiting)
    await client.declare_queue(WAITING, rules=to_tasks)
    await client.declare_queue(PARKED)


def rejections(message: ringmq.Message) -> int:
    deaths = message.properties.deaths
    return sum(death.count for death in deaths if death.reason == "rejected")


async def work(client: ringmq.Client) -> None:
    """Every task but `hopeless` succeeds, `flaky` the second time."""
    done = 0
    async with client.consumer(TASKS) as consumer, client.publisher(PARKED) as parked:
        while done < 3:
            for message in await anext(consumer):
                tries = rejections(message) + 1
                task = message.body.decode()
                if task == "easy" or (task == "flaky" and tries > 1):
                    print(f"{task} is done at try {tries}")
                elif tries < TRIES_MAX:
                    await consumer.reject(message)
                    continue
                else:
                    print(f"{task} is parked after {tries} tries")
                    await parked.publish(message.body)
                await consumer.ack(message)
                done += 1


async def main() -> None:
    async with ringmq.connect(SEEDS) as client:
        await declare(client)
        try:
            async with client.publisher(TASKS) as publisher:
                await publisher.publish_batch([b"easy", b"flaky", b"hopeless"])
            await work(client)
        finally:
            for queue in (TASKS, WAITING, PARKED):
                await client.delete_queue(queue)


if __name__ == "__main__":
    asyncio.run(main())
