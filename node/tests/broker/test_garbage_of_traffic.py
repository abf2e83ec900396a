"""Of messages that come and go nothing is left to the garbage collector, however many they are.

What a node has frozen (`ringmq_node.resources.garbage`) stays in memory for good once it is in a
cycle that nobody refers to.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from node.tests.broker.test_deleting import with_node
from node.tests.nodes import replica_of
from waiting import until

import ringmq
from ringmq_node.node import Node

# The index keeps some dozens of entries that have died, and they their journal.
BATCHES = 100
BATCH = 10
# Calls and streams are in cycles, and live shortly.
OF_MESSAGES = ("ringmq_node.queue", "ringmq_node.storage", "ringmq_gm")


@pytest.fixture(autouse=True)
def only_by_hand() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


def in_cycles() -> Counter[str]:
    """The kinds of objects of queues, rings and stores that only the collector finds. They are kept
    until the next call."""
    gc.garbage.clear()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    kinds = [type(each) for each in gc.garbage]
    return Counter(kind.__qualname__ for kind in kinds if kind.__module__.startswith(OF_MESSAGES))


@pytest.mark.parametrize("body_bytes", [100, 10_000], ids=["embedded", "stored"])
def test_traffic_leaves_no_cycles(tmp_path: Path, body_bytes: int) -> None:
    async def work(node: Node, client: ringmq.Client) -> None:
        queue = replica_of(node).store
        async with client.publisher("q") as publisher, client.consumer("q") as consumer:

            async def come_and_go() -> None:
                for _ in range(BATCHES):
                    await publisher.publish_batch([bytes(body_bytes)] * BATCH)
                left = BATCHES * BATCH
                async for batch in consumer:
                    await consumer.ack(batch)
                    left -= len(batch)
                    if not left:
                        break
                queue.seal()
                # Only the journal that was begun then.
                await until(lambda: len(queue.on_disk()) == 1, "all files are gone", within_s=20)

            await come_and_go()
            await come_and_go()
            assert not in_cycles()

    with_node(tmp_path, work)
