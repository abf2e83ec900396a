"""A producer that keeps its id: the queue's master is killed under it, and it is restarted, and
nothing is in twice.

The first program writes while the master dies: the client sends what is unconfirmed again, and the
next master recognises what it has. Then the program loses its memory of what was confirmed. The
second one asks the queue how far the first one was (`last_sequence`) and goes on behind that.

The master is a node of `make cluster`: `ringmq cluster kill` ends its process, `ringmq cluster up`
starts it again. Of another cluster, whose nodes are named on the command line, kill it yourself.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys

from nodes import SEEDS

import ringmq

QUEUE = "example.ledger"
PRODUCER = b"ledger-writer"
# After the failover, and after the restart.
MORE = 30


def entry(number: int) -> bytes:
    return b"entry %d" % number


async def command(*words: str) -> int:
    """Runs `ringmq` as in a shell, and returns its exit code."""
    line = [sys.executable, "-m", "ringmq_node.cli", *words]
    return (await asyncio.to_thread(subprocess.run, line, check=False)).returncode


async def master_of(client: ringmq.Client) -> ringmq.NodeInfo | None:
    master = (await client.queue(QUEUE)).master
    nodes = (await client.cluster_status()).nodes
    return next((each for each in nodes if each.node == master), None)


async def fail_over(client: ringmq.Client) -> None:
    """Returns when there is another master."""
    before = await master_of(client)
    assert before is not None
    if await command("cluster", "kill", before.address):
        print(f"node {before.node} isn't of `make cluster`: kill its process now")
    while True:
        after = await master_of(client)
        if after is not None and after.node != before.node:
            break
        await asyncio.sleep(0.1)
    print(f"the master {before.node} was killed, {after.node} has followed it")


async def write_over_a_failover(client: ringmq.Client) -> int:
    """Returns how many entries it has written."""
    async with client.publisher(QUEUE, producer_id=PRODUCER) as publisher:
        failing_over: asyncio.Task[None] | None = None
        for number in itertools.count(1):
            await publisher.publish(entry(number))
            if number == MORE:
                failing_over = asyncio.create_task(fail_over(client))
            if failing_over is not None and failing_over.done():
                failing_over.result()
                break
            await asyncio.sleep(0.01)
    return number


async def write_more(client: ringmq.Client) -> int:
    async with client.publisher(QUEUE, producer_id=PRODUCER) as publisher:
        known = publisher.last_sequence
        print(f"the queue has {known} entries of this producer")
        await publisher.publish_batch([entry(known + each) for each in range(1, MORE + 1)])
    return known


async def main() -> None:
    async with ringmq.connect(SEEDS) as client:
        await client.declare_queue(QUEUE)
        try:
            written = await write_over_a_failover(client)
            known = await write_more(client)
            found: list[bytes] = []
            while batch := await client.get_messages(QUEUE, 1000, remove=True):
                found += batch.bodies
            expected = [entry(number) for number in range(1, written + MORE + 1)]
            print(f"all confirmed ones were known: {known == written}")
            print(f"{len(found)} entries, each once and in order: {found == expected}")
        finally:
            await client.delete_queue(QUEUE)
    await command("cluster", "up")


if __name__ == "__main__":
    asyncio.run(main())
