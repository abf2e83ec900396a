"""`trigger_message_store_compaction` of RabbitMQ's queue_parallel_SUITE: each node compacts the
files of its message store while the queue is in use, also if the master is killed before it has
done so.

A case of its own and not one of `test_queue_suites`: it has to fill three files of 16 MiB, and
looks at all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from halves import bodies_of, numbered, take
from loops import run
from nemesis import Cluster, until

import ringmq
from ringmq_node.storage.limits import StoreLimits
from ringmq_node.storage.messages.files import MAP_SUFFIX, SUFFIX

# As in RabbitMQ's case: of these, all but the ends are acknowledged.
COUNT = 12_000
BODY_BYTES = 5000
KEPT_FIRST = 500
KEPT_LAST = 800
FILE_BYTES = StoreLimits().store_file_bytes_max


def files_of(cluster: Cluster, node: str) -> dict[str, int]:
    """Those of a node's store of persistent bodies, with their sizes."""
    sizes: dict[str, int] = {}
    for path in (cluster.data(node) / "messages" / "persistent").iterdir():
        # The node, which runs, removes files between the listing and the look.
        with contextlib.suppress(FileNotFoundError):
            if path.suffix in (SUFFIX, MAP_SUFFIX):
                sizes[path.name] = path.stat().st_size
    return sizes


def is_compacted(before: dict[str, int], after: dict[str, int]) -> bool:
    """The first file's live bodies were moved, a map leads to them, and the file is removed. Those
    in which nothing was left are removed, too."""
    first = min((name for name in before if name.endswith(SUFFIX)), key=len_and_text)
    left = {name for name in before if name in after}
    return (
        first not in after
        and any(name.endswith(MAP_SUFFIX) for name in after)
        and len(left) <= 1
        and sum(after.values()) < 2 * FILE_BYTES
    )


def len_and_text(name: str) -> tuple[int, str]:
    """Sorts numbers without leading zeros."""
    return len(name), name


async def has_counts(client: ringmq.Client, ready: int) -> bool:
    info = await client.queue("q")
    return (info.messages_ready, info.messages_unacknowledged) == (ready, 0)


async def trigger_message_store_compaction(cluster: Cluster, *, kills: bool) -> None:
    async with cluster.client("a") as client:
        await client.declare_queue("q", master_locator=ringmq.MasterLocator.CLIENT_LOCAL)
    await cluster.wait_synchronised("q")
    padding = bytes(BODY_BYTES - 5)
    large = [body + padding for body in numbered(COUNT)]
    async with cluster.client(deadline_s=30.0) as client:
        async with client.publisher("q") as publisher:
            await publisher.publish_batch(large)
        filled = {node: files_of(cluster, node) for node in cluster.nodes}
        for files in filled.values():
            assert sum(size > FILE_BYTES * 0.9 for size in files.values()) >= 3, filled
        async with client.consumer("q", prefetch=COUNT, prefetch_bytes=1 << 27) as consumer:
            held = await take(consumer, COUNT)
            assert bodies_of(held) == large
            first, last = held[KEPT_FIRST], held[-KEPT_LAST - 1]
            assert await consumer.ack(first.position, last.position, wait=True)
        if kills:
            cluster.kill("a")
            await cluster.wait_synchronised("q", 2)
            await cluster.start("a")
            await cluster.wait_synchronised("q")

        def all_are_compacted() -> bool:
            return all(
                is_compacted(filled[node], files_of(cluster, node)) for node in cluster.nodes
            )

        await until(all_are_compacted, "each node has moved what is left")
        left = large[:KEPT_FIRST] + large[-KEPT_LAST:]
        await until(lambda: has_counts(client, len(left)), "those that nobody has acknowledged")
        await cluster.wait_same_bodies("q")
        async with client.consumer("q", prefetch=COUNT) as consumer:
            assert bodies_of(await take(consumer, len(left))) == left
        await until(lambda: has_counts(client, len(left)), "all are back")
        assert await client.purge_queue("q") == len(left)

        def all_are_empty() -> bool:
            # But for the file that is still written to.
            found = [files_of(cluster, node) for node in cluster.nodes]
            return all(sum(files.values()) <= FILE_BYTES for files in found)

        await until(all_are_empty, "no file is left of which nothing lives")
    await cluster.wait_equal("q")


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("kills", [False, True], ids=["quiet", "master killed"])
def test_trigger_message_store_compaction(tmp_path: Path, kills: bool) -> None:
    async def story() -> None:
        async with Cluster(tmp_path) as cluster, asyncio.timeout(120):
            await trigger_message_store_compaction(cluster, kills=kills)

    run(story())
