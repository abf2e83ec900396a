"""Leftovers are looked for, and removed, while queues come and go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from loops import run
from node.tests.nodes import lone_node, replica_of
from waiting import until

import ringmq
from ringmq_gm import ring_key
from ringmq_gm.registry.base import Delete, Put
from ringmq_gm.registry.url import open_registry
from ringmq_node.node import Node
from ringmq_node.replica import leftovers as leftovers_module
from ringmq_node.storage import opening
from ringmq_node.storage.queue.recovery import Recovered


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Node]:
    node = await lone_node(folder)
    async with asyncio.timeout(20):
        await node.start()
        try:
            yield node
        finally:
            await node.stop()


async def declare(node: Node) -> None:
    async with ringmq.connect(node.address) as client:
        await client.declare_queue("q")
        async with client.publisher("q") as publisher:
            await publisher.publish(b"confirmed")


@pytest.mark.may_log("ring '.*' at a#1 has failed|queue q is '.*': quarantined")
@pytest.mark.parametrize("is_failed", [False, True], ids=["a replica", "a quarantined one"])
def test_a_replica_that_is_being_deleted_is_no_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_failed: bool
) -> None:
    """A node that starts looks for leftovers when a deletion waits for the registry's answer. The
    leftover was gone a moment later, and its removal after a day ended the node."""
    monkeypatch.setattr(opening, "ASIDE_BYTES_MIN", 1)
    monkeypatch.setattr(leftovers_module, "LOOK_S", 0.02)
    reached, go = asyncio.Event(), asyncio.Event()

    async def main() -> None:
        async with serving(tmp_path) as node:
            await declare(node)
            record = node.catalogue.record_of("q")
            if is_failed:
                replica_of(node).ring.fail(RuntimeError("a bug"))
                await until(lambda: bool(node.hosting.failed), "it has failed")
            close_ring = node.group.close_ring

            async def slow(ring: str) -> None:
                reached.set()
                await go.wait()
                await close_ring(ring)

            cast(Any, node.group).close_ring = slow
            await node.registry.commit([], [Delete(record.key), Delete(ring_key(record.id))])
            await reached.wait()
            await node._drop_leftovers()
            assert node.hosting.leftovers.describe() == ()
            go.set()
            await until(lambda: not node.store.queue_names(), "q is deleted")

    run(main())


@pytest.mark.may_log("is named by no record|in use again")
def test_a_leftover_that_a_record_names_again_is_not_removed_before_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry was put back in time, and thousands of replicas take a while to open."""
    monkeypatch.setattr(leftovers_module, "LOOK_S", 0.02)
    reached, go = asyncio.Event(), asyncio.Event()

    async def main() -> None:
        async with serving(tmp_path) as node:
            await declare(node)
            record = node.catalogue.record_of("q")
        registry = open_registry(node.config.registry)
        ring, entry = await registry.get(ring_key(record.id)), await registry.get(record.key)
        assert ring is not None
        assert entry is not None
        await registry.commit([], [Delete(record.key), Delete(ring.key)])
        await registry.close()
        async with serving(tmp_path) as node:
            assert len(node.hosting.leftovers.describe()) == 1
            recover = node.store.recover

            async def slow(queue: str) -> Recovered | None:
                reached.set()
                await go.wait()
                return await recover(queue)

            cast(Any, node.store).recover = slow
            puts = [Put(entry.key, entry.value), Put(ring.key, ring.value)]
            await node.registry.commit([], puts)
            await reached.wait()
            cast(Any, node.hosting.leftovers)._now = lambda: time.time() + 1e6
            # Many looks.
            await asyncio.sleep(0.3)
            go.set()
            await until(lambda: bool(node.hosting.replicas), "it is opened")
            assert len(replica_of(node).store.state.live) == 1

    run(main())
