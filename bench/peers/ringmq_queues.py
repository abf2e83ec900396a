"""Queues of a cluster of ours, by the hundred: `ringmq_queues.py declare|remove SEEDS QUEUE...`.

Run as a program by the Python of the tree that is measured, so it uses that tree's client and
nothing else. (A command for each queue would take longer than what is measured.) `remove` prints
the queues that lack a synchronised replica, and deletes all.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence

import ringmq

NODES = 3
AT_ONCE = 32


async def declare(client: ringmq.Client, queue: str) -> None:
    await client.declare_queue(queue)


async def remove(client: ringmq.Client, queue: str) -> str | None:
    info = await client.queue(queue)
    synchronised = sum(replica.synchronised for replica in info.ring)
    await client.delete_queue(queue)
    if synchronised == NODES:
        return None
    return f"{queue} is synchronised on {synchronised} of {NODES} nodes"


async def main(verb: str, seeds: str, queues: Sequence[str]) -> None:
    work = {"declare": declare, "remove": remove}[verb]
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(queue: str) -> str | None:
        async with turn:
            return await work(client, queue)

    async with ringmq.connect(seeds) as client:
        found = await asyncio.gather(*map(one, queues))
    print(json.dumps([each for each in found if each is not None]))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
