"""Three nodes in this process, one of which has a disk that stops answering."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from loops import run
from node.tests.nodes import running_nodes

import ringmq
from ringmq_gm import Group
from ringmq_node.node import Node
from ringmq_node.resources import Alarm
from ringmq_node.storage.disk.disk import FileDisk
from ringmq_node.storage.errors import DiskHangsError

NAMES = ("a", "b", "c")
UNSYNCED_BYTES_MAX = 1 << 20


class Hang:
    """Writes below a folder wait, in threads, until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder: Path | None = None
        self.over = threading.Event()
        write = FileDisk.write

        def hanging(
            disk: FileDisk,
            path: Path,
            offset: int,
            buffers: Sequence[bytes | memoryview],
            *,
            sync: bool = False,
        ) -> None:
            on_loop = threading.current_thread() is threading.main_thread()
            if self.folder is not None and self.folder in path.parents and not on_loop:
                self.over.wait()
            write(disk, path, offset, buffers, sync=sync)

        monkeypatch.setattr(FileDisk, "write", hanging)


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1], ids=["the master's", "a mirror's"])
@pytest.mark.logs(r"the store has failed, this node leaves its rings: .* has not come back for 1 s")
def test_a_ring_goes_on_without_the_node_whose_disk_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    hang = Hang(monkeypatch)
    held: list[tuple[str, bool]] = []
    hold_credit = Group.hold_credit

    def spied(group: Group, on: bool) -> None:
        held.append((group.me.node, on))
        hold_credit(group, on)

    monkeypatch.setattr(Group, "hold_credit", spied)

    async def story(nodes: dict[str, Node]) -> None:
        async with ringmq.connect([node.address for node in nodes.values()]) as client:
            info = await client.declare_queue("q")
            while sum(one.synchronised for one in info.ring) < len(NAMES):
                await asyncio.sleep(0.02)
                info = await client.queue("q")
            async with client.publisher("q") as publisher:
                await publisher.publish(b"before")
                victim = nodes[info.ring[place].node]
                hang.folder = Path(victim.config.data)
                await publisher.publish_batch([bytes(20_000)] * 100)
            assert isinstance(victim.gate.failure, DiskHangsError)
            assert "has not come back for 1 s" in str(victim.gate.failure)
            assert victim.alarms == {Alarm.STORE}
            others = [node.address for node in nodes.values() if node is not victim]
        # Until then it gave the others no credit for more.
        assert [on for name, on in held if name == victim.me.node] == [True]
        async with ringmq.connect(others) as client:
            ring = (await client.queue("q")).ring
            assert victim.me.node not in [one.node for one in ring]

    async def main() -> None:
        cluster = running_nodes(
            tmp_path,
            NAMES,
            unsynced_bytes_max=UNSYNCED_BYTES_MAX,
            disk_timeout_s=1.0,
            lease_s=1.0,
        )
        try:
            # The thread hangs yet while the nodes stop, and keeps nobody.
            async with asyncio.timeout(40), cluster as nodes:
                await story(nodes)
        finally:
            hang.over.set()

    run(main())
