"""A producer that keeps its id: it is restarted, and the master changes, and nothing is in twice.

The first program loses its memory of what was confirmed. The second asks the queue how far the
first one was (`last_sequence`) and goes on behind that.
"""

from __future__ import annotations

import asyncio

from nodes import SEEDS

import ringmq

QUEUE = "example.ledger"
PRODUCER = b"ledger-writer"
ENTRIES = [b"entry %d" % number for number in range(1, 101)]


async def write(client: ringmq.Client, up_to: int) -> None:
    async with client.publisher(QUEUE, producer_id=PRODUCER) as publisher:
        known = publisher.last_sequence
        print(f"the queue has {known} entries of this producer")
        await publisher.publish_batch(ENTRIES[known:up_to])


async def fail_over(client: ringmq.Client) -> None:
    """As an operator would; a node that dies has the same effect."""
    info = await client.queue(QUEUE)
    mirror = next(each.node for each in info.ring[1:] if each.synchronised)
    await client.promote_mirror(QUEUE, mirror)
    print("the master has changed")


async def main() -> None:
    async with ringmq.connect(SEEDS) as client:
        await client.declare_queue(QUEUE)
        try:
            await write(client, up_to=40)
            await fail_over(client)
            await write(client, up_to=100)
            batch = await client.get_messages(QUEUE, 1000)
            print(f"{len(batch)} entries, in order: {list(batch.bodies) == ENTRIES}")
        finally:
            await client.delete_queue(QUEUE)


if __name__ == "__main__":
    asyncio.run(main())
