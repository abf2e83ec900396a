"""The disk of the master alone is slow: the publishers go at its pace, and memory is bounded."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from loops import run
from node.tests.nodes import running_nodes

import ringmq
from ringmq_base.limits import KIB, MIB
from ringmq_node.node import Node
from ringmq_node.storage.disk.disk import FileDisk

NAMES = ("a", "b", "c")
BODY = bytes(64 * KIB)
BODIES = 768
# Of the client's.
BATCH_BYTES = 2 * MIB
QUEUES = ("p", "q", "r")
UNSYNCED_BYTES_MAX = 2 * MIB
PUBLISH_BYTES_MAX = 4 * MIB
DISK_BYTES_PER_S = 24 * MIB


class SlowDisk:
    """Writes below a folder take their time, in threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder: Path | None = None
        write = FileDisk.write

        def slowly(
            disk: FileDisk,
            path: Path,
            offset: int,
            buffers: Sequence[bytes | memoryview],
            *,
            sync: bool = False,
        ) -> None:
            on_loop = threading.current_thread() is threading.main_thread()
            if self.folder is not None and self.folder in path.parents and not on_loop:
                time.sleep(sum(map(len, buffers)) / DISK_BYTES_PER_S)
            write(disk, path, offset, buffers, sync=sync)

        monkeypatch.setattr(FileDisk, "write", slowly)


class Watched:
    """The most bytes that were under way on a node, and in its store, looked at again and again."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.under_way_bytes_max = self.unsynced_bytes_max = self.held_max = 0

    async def look(self) -> None:
        budget, counters = self._node.budget, self._node.store.counters
        while True:
            self.under_way_bytes_max = max(self.under_way_bytes_max, budget.under_way_bytes)
            self.unsynced_bytes_max = max(self.unsynced_bytes_max, counters.unsynced_bytes)
            self.held_max = max(self.held_max, budget.waiting)
            await asyncio.sleep(0)


async def publish(client: ringmq.Client, queue: str) -> None:
    async with client.publisher(queue, window_bytes=64 * MIB) as publisher:
        await publisher.publish_batch([BODY] * (BODIES // len(QUEUES)))


@pytest.mark.slow
def test_publishers_go_at_the_pace_of_the_masters_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirrors take everything at once, so no ring is ever full."""
    disk = SlowDisk(monkeypatch)

    async def story(nodes: dict[str, Node]) -> None:
        async with ringmq.connect([node.address for node in nodes.values()]) as client:
            for queue in QUEUES:
                info = await client.declare_queue(queue)
                while info.master != "a" or sum(one.synchronised for one in info.ring) < len(NAMES):
                    if info.master != "a" and len(info.ring) == len(NAMES):
                        await client.promote_mirror(queue, "a")
                    await asyncio.sleep(0.02)
                    info = await client.queue(queue)
            disk.folder = tmp_path / "a"
            watched = Watched(nodes["a"])
            looking = asyncio.create_task(watched.look())
            await asyncio.gather(*(publish(client, queue) for queue in QUEUES))
            looking.cancel()
            for queue in QUEUES:
                assert (await client.queue(queue)).messages_ready == BODIES // len(QUEUES)
        # All streams may be admitted in one turn of the loop, with a batch each.
        turn = len(QUEUES) * BATCH_BYTES
        assert watched.held_max > 0
        assert watched.unsynced_bytes_max <= UNSYNCED_BYTES_MAX + turn
        # And the doors hold another one each.
        assert watched.under_way_bytes_max <= PUBLISH_BYTES_MAX + 2 * turn

    async def main() -> None:
        cluster = running_nodes(
            tmp_path,
            NAMES,
            publish_bytes_max=PUBLISH_BYTES_MAX,
            unsynced_bytes_max=UNSYNCED_BYTES_MAX,
        )
        async with asyncio.timeout(60), cluster as nodes:
            try:
                await story(nodes)
            finally:
                disk.folder = None

    run(main())
