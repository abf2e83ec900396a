"""A queue that is closed leaves nothing for the garbage collector, which doesn't look at it again.

Its objects were frozen when it was opened (`ringmq_node.resources.garbage`). In a cycle they would
stay in memory for good, some 20 KiB for each queue that was ever deleted.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from node.tests.broker.test_deleting import with_node
from node.tests.nodes import replica_of
from waiting import until

import ringmq
from ringmq_node.node import Node


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def parts_of(node: Node) -> dict[str, weakref.ref[Any]]:
    """Those that others refer to. If they go, so does what only they have."""
    replica = replica_of(node)
    mastership = replica.mastership
    assert mastership is not None
    parts = {
        "replica": replica,
        "store": replica.store,
        "bodies": replica.store.bodies,
        "ring": replica.ring,
        "mastership": mastership,
        "queue": mastership.queue,
    }
    return {name: weakref.ref(part) for name, part in parts.items()}


@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
def test_a_deleted_queue_leaves_no_cycle(tmp_path: Path, used: bool) -> None:
    async def use(client: ringmq.Client) -> None:
        async with client.publisher("q") as publisher:
            await publisher.publish_batch([b"x" * 100] * 50)
            await publisher.publish_batch([b"y" * 10_000] * 5)
        async with client.consumer("q", prefetch=20) as consumer:
            async for batch in consumer:
                for message in batch:
                    await consumer.ack(message)
                break

    async def work(node: Node, client: ringmq.Client) -> None:
        if used:
            await use(client)
        parts = parts_of(node)
        gc.collect(1)
        gc.freeze()
        await client.delete_queue("q")
        # Tasks and calls that had to do with it are cycles of their own, and go to the collector.
        left = {*parts}

        def all_gone() -> bool:
            nonlocal left
            gc.collect(1)
            left = {name for name, part in parts.items() if part() is not None}
            return not left

        await until(all_gone, "no part of the queue is left", within_s=5)

    with_node(tmp_path, work)
