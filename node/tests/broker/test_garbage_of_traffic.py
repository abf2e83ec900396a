"""Of messages that come and go nothing is left to the garbage collector, however many they are.

What a node has frozen (`ringmq_node.resources.garbage`) stays in memory for good once it is in a
cycle that nobody refers to.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cycles import collected_by_hand, in_cycles
from node.tests.broker.test_deleting import with_node
from node.tests.nodes import replica_of
from waiting import until

import ringmq
from ringmq_node.node import Node

# The index keeps some dozens of entries that have died, and they their journal.
BATCHES = 100
BATCH = 10
# Calls and streams: `node/tests/doors/test_no_cycles.py`.
OF_MESSAGES = ("ringmq_node.queue", "ringmq_node.storage", "ringmq_gm")


@pytest.fixture(autouse=True)
def only_by_hand() -> Iterator[None]:
    with collected_by_hand():
        yield


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
            assert not in_cycles(*OF_MESSAGES)

    with_node(tmp_path, work)
