"""Transient queues: nothing is waited for, nothing comes back, and memory is bounded all the same.

The engine against its model (`engine/`) has one among its queues, too.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Literal

import pytest
from node.tests.storage.simulated_disk import Kept, SimulatedDisk
from node.tests.storage.workload import ROOT, bodies, open_store, run_store
from waiting import until

from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove
from ringmq_node.storage import DiskFullError, QueueStore, Store, StoreLimits
from ringmq_node.storage import store as store_module
from ringmq_node.storage.offline import DataDirectory, open_offline, verify

QUEUES = ROOT / "queues"
ROOMY = StoreLimits(queue_memory_bytes_max=64 << 20)
TIGHT = StoreLimits(queue_memory_bytes_max=0, store_file_bytes_max=100_000)
COUNT = 40_000


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "TICK_S", 0.02)


def opened(disk: SimulatedDisk, limits: StoreLimits = ROOMY) -> tuple[Store, QueueStore]:
    store = open_store(disk, limits)
    return store, store.open_queue("t", durable=False)


def append(queue: QueueStore, op: Op) -> None:
    queue.append(queue.state.last_number + 1, op, ops.encode(op))


def publish(queue: QueueStore, count: int, *, batch: int = 8) -> None:
    for first in range(queue.state.next_position, queue.state.next_position + count, batch):
        block = Block.of([b"%d" % position for position in range(first, first + batch)])
        append(queue, Publish(first, block, True))


def expected(first: int, last: int) -> dict[int, bytes]:
    return {position: b"%d" % position for position in range(first, last + 1)}


def syncs(disk: SimulatedDisk, since: int) -> list[Path]:
    return [call.path for call in disk.log[since:] if call.name.startswith("sync")]


async def until_folded(queue: QueueStore) -> None:
    """All that may be is in segments, and known by counts only."""
    await until(lambda: queue.pager.chain().delta >= COUNT - 2 * 16_384)


def test_told_in_the_next_turn_of_the_loop_and_nothing_is_synced() -> None:
    disk = SimulatedDisk()
    store, queue = opened(disk)
    told: list[int] = []
    store.on_durable = lambda queue: told.append(queue.durable_number)

    async def work() -> None:
        since = len(disk.log)
        publish(queue, 24)
        assert queue.durable_number == 3
        await asyncio.sleep(0)
        assert told == [3]
        append(queue, Remove(((0, 7),)))
        await asyncio.sleep(0)
        assert told == [3, 4]
        await store.sync()
        assert disk.log[since:] == []
        assert (store.statistics().rounds, store.statistics().files_synced) == (0, 0)
        assert bodies(queue) == expected(8, 23)

    run_store(store, work)


def test_paged_out_and_back_and_no_more_in_memory_than_may_be() -> None:
    disk = SimulatedDisk()
    store, queue = opened(disk, TIGHT)
    since = len(disk.log)

    async def work() -> None:
        publish(queue, COUNT)
        await until_folded(queue)
        queue.check()
        assert len(queue.bodies.segments) == 3
        assert bodies(queue) == expected(0, COUNT - 1)
        half = COUNT // 2
        append(queue, Remove(((0, half - 1),)))
        await until(lambda: len(queue.bodies.segments) <= 2)
        queue.check()
        assert bodies(queue) == expected(half, COUNT - 1)
        assert queue.bodies.index.messages_in_memory == 0
        append(queue, Remove(((0, COUNT),)))
        await until(lambda: not len(queue.bodies.segments))
        await until(lambda: not store.statistics().messages_transient.records_now)
        store.delete_queue("t")

    run_store(store, work)
    assert syncs(disk, since) == []


@pytest.mark.parametrize("kept", ["clean", "nothing", "everything", "anything"])
def test_nothing_comes_back(kept: Kept | Literal["clean"]) -> None:
    """After a clean stop, a kill (everything that was written is there), and a power cut."""
    disk = SimulatedDisk()
    store, queue = opened(disk, TIGHT)
    left: list[SimulatedDisk] = []

    async def work() -> None:
        publish(store.open_queue("other"), 1)
        await store.sync()
        publish(queue, COUNT)
        await until_folded(queue)
        if kept != "clean":
            left.append(disk.power_cut(kept, random.Random(1)))

    run_store(store, work)
    after = left[0] if left else disk
    if kept in ("clean", "everything"):
        there = [name for name in after.list(QUEUES) if name.endswith(".transient")]
        assert len(there) == (kept != "clean")
    again, queue = opened(after, TIGHT)
    assert set(again.queue_names()) == {"other", "t"}
    assert (queue.state.last_number, queue.state.next_position) == (0, 0)
    assert not len(queue.bodies.segments)
    assert again.statistics().messages_transient.file_bytes_now == 0

    async def more() -> None:
        publish(queue, 80)
        assert bodies(queue) == expected(0, 79)

    run_store(again, more)
    assert open_store(after).queue_names() == ["other"]


def test_what_was_there_under_its_name_is_dropped() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, StoreLimits(embed_below=0))
    durable = store.open_queue("t")

    async def work() -> None:
        append(durable, Publish(0, Block.of([b"x" * 5000])))
        await store.sync()

    run_store(store, work)
    again, queue = opened(disk)
    assert not queue.state.live
    assert [name.partition(".")[2] for name in disk.list(QUEUES)] == ["transient"]
    again.close()
    assert open_store(disk).queue_names() == []


@pytest.mark.logs(r"store closed for writes: \[Errno 28\]")
def test_a_full_disk_is_told_when_there_is_something_to_be_written() -> None:
    disk = SimulatedDisk()
    store, queue = opened(disk, TIGHT)
    disk.writes_left = 0

    async def work() -> None:
        publish(queue, 80)
        await until(lambda: store.failure is not None)
        with pytest.raises(DiskFullError):
            publish(queue, 80)
        # Messages in memory can still be read.
        assert bodies(queue) == expected(0, 79)

    run_store(store, work)


def test_all_its_messages_are_kept_as_transient_whatever_the_op_says() -> None:
    """Also messages of an installed state, and bodies that are filled in."""
    disk = SimulatedDisk()
    store, queue = opened(disk)
    since = len(disk.log)

    async def work() -> None:
        append(queue, Publish(0, Block.of([b"x" * 9000])))
        assert [entry.transient for entry in queue.bodies.index] == [True]
        queue.install(queue.state, keep_below=0)
        assert queue.missing.ranges() == [(0, 0)]
        queue.fill(0, Block.of([b"x" * 9000]), False)
        assert [entry.transient for entry in queue.bodies.index] == [True]
        assert queue.fills_durable
        assert queue.durable_number == 1
        queue.check()
        await store.sync()
        assert disk.log[since:] == []

    run_store(store, work)


def test_it_remembers_which_messages_are_persistent() -> None:
    """Their letters are. It remembers it of pages that were folded, too, and of bodies that are
    filled in, whatever their sender says."""
    store, queue = opened(SimulatedDisk(), TIGHT)

    def is_transient(position: int) -> bool:
        return position // 8 % 3 == 1

    def told() -> dict[int, bool]:
        runs = queue.read(0, COUNT, bytes_max=1 << 30, messages_max=COUNT)
        return {
            at: run.transient
            for run in runs
            for at in range(run.first_position, run.last_position + 1)
        }

    async def work() -> None:
        for first in range(0, COUNT, 8):
            block = Block.of([b"%d" % position for position in range(first, first + 8)])
            append(queue, Publish(first, block, is_transient(first)))
        await until_folded(queue)
        assert told() == {at: is_transient(at) for at in range(COUNT)}
        state = queue.state.copy()
        state.begin_epoch(7)
        queue.install(state, keep_below=0)
        queue.fill(0, Block.of([b"%d" % position for position in range(32)]), True)
        assert told() == {at: is_transient(at) for at in range(32)}
        queue.check()

    run_store(store, work)


def test_memory_is_let_go_of_between_two_looks_of_the_monitor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_module, "TICK_S", 3600.0)
    store, queue = opened(SimulatedDisk(), TIGHT)

    async def work() -> None:
        publish(queue, 800)
        await until(lambda: queue.bodies.index.messages_in_memory == 0)
        queue.check()
        assert bodies(queue) == expected(0, 799)

    run_store(store, work)


def test_a_killed_node_s_directory_is_sound(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data", cluster_id="c", node="n1", limits=TIGHT)
    queue = store.open_queue("t", durable=False)

    async def work() -> None:
        publish(queue, COUNT)
        await until_folded(queue)
        shutil.copytree(tmp_path / "data", tmp_path / "killed")

    run_store(store, work)
    with open_offline(tmp_path / "killed") as disk:
        found = verify(DataDirectory(tmp_path / "killed", disk))
    assert found.sound
    assert [note for note in found.notes if "a transient queue, removed" in note]
