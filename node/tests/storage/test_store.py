"""One data directory: its owner, a disk that fails, and the group commit."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from children import child_environment
from expected_logs import DAMAGE
from node.tests.storage.queue.test_queue_store import append, publish
from node.tests.storage.simulated_disk import Kept, SimulatedDisk
from node.tests.storage.workload import LIMITS, QUEUE, ROOT, bodies, open_store, run_store
from waiting import until

from ringmq_node.queue.ops import Remove
from ringmq_node.storage import (
    CorruptError,
    DirectoryInUseError,
    DiskFullError,
    ForeignDirectoryError,
    QueueStore,
    Store,
    StoreClosedError,
    StoreError,
    StoreFailedError,
    StoreLimits,
    UnsupportedFormatError,
)
from ringmq_node.storage.disk.data_directory import folder_name
from ringmq_node.storage.format import formats

CHILD = Path(__file__).with_name("killed_child.py")


def open_real(directory: Path, *, cluster_id: str = "c", node: str = "n1") -> Store:
    return Store.open(directory, cluster_id=cluster_id, node=node)


# -- whose directory


def test_directory_that_is_open_is_refused_with_the_process_that_has_it(tmp_path: Path) -> None:
    store = open_real(tmp_path)
    with pytest.raises(DirectoryInUseError, match=str(os.getpid())):
        open_real(tmp_path)
    store.close()
    open_real(tmp_path).close()


def test_directory_open_in_another_process_is_refused(tmp_path: Path) -> None:
    child = start_child(tmp_path)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(DirectoryInUseError, match=str(child.pid)):
            open_real(tmp_path)
    finally:
        child.kill()
        child.wait(10)
        assert child.stdout is not None
        child.stdout.close()


@pytest.mark.parametrize(("cluster_id", "node"), [("other", "n1"), ("c", "n2")])
def test_directory_of_another_is_refused(tmp_path: Path, cluster_id: str, node: str) -> None:
    open_real(tmp_path).close()
    with pytest.raises(ForeignDirectoryError, match="belongs to node 'n1' of cluster 'c'"):
        open_real(tmp_path, cluster_id=cluster_id, node=node)
    # A refusal leaves nothing locked.
    open_real(tmp_path).close()


def test_directory_with_queues_and_nothing_to_say_whose_is_refused(tmp_path: Path) -> None:
    store = open_real(tmp_path)
    publish(store.open_queue(QUEUE), [b"x"])
    store.close()
    (tmp_path / "store.meta").unlink()
    with pytest.raises(ForeignDirectoryError, match=r"no store\.meta that names their owner"):
        open_real(tmp_path)


def test_damaged_meta_is_refused(tmp_path: Path) -> None:
    open_real(tmp_path).close()
    (tmp_path / "store.meta").write_bytes(b"RINGMQ-M" + bytes(20))
    with pytest.raises(CorruptError, match=r"store\.meta"):
        open_real(tmp_path)


@pytest.mark.parametrize(
    ("name", "known"),
    [("store.meta", 1), ("queue.name", 1), ("journal.jif", formats.JOURNAL.version)],
)
def test_other_format_version_is_refused_with_both_versions(name: str, known: int) -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    publish(store.open_queue(QUEUE), [b"x"])
    store.close()
    path = next(path for path in disk.files() if path.name == name)
    content = disk.content(path)
    content[8] = 9
    fix_header_checksum(content)
    with pytest.raises(
        UnsupportedFormatError, match=rf"version 9, this RingMQ supports version {known}\b"
    ):
        open_store(disk).open_queue(QUEUE)


def fix_header_checksum(content: bytearray) -> None:
    import zlib

    if bytes(content[:8]) in (b"RINGMQ-M", b"RINGMQ-N"):
        crc = zlib.crc32(content[18:], zlib.crc32(content[:14]))
        content[14:18] = crc.to_bytes(4, "little")
    else:
        owner = int.from_bytes(content[28:32], "little")
        content[24:28] = zlib.crc32(content[:24], owner).to_bytes(4, "little")


# -- queues


@pytest.mark.parametrize(
    "name", ["a", "/", "..", "ü" * 127, "x" * 255, "a\0b", "a/b\\c", " ", "\n"], ids=repr
)
def test_any_name_is_a_queue(tmp_path: Path, name: str) -> None:
    store = open_real(tmp_path)
    queue = store.open_queue(name)
    publish(queue, [b"x"])
    store.close()
    store = open_real(tmp_path)
    assert store.queue_names() == [name]
    assert bodies(store.open_queue(name)) == {0: b"x"}
    store.close()


@pytest.mark.parametrize("name", ["", "x" * 256, "ü" * 128], ids=len)
def test_name_out_of_bounds_is_refused(tmp_path: Path, name: str) -> None:
    store = open_real(tmp_path)
    with pytest.raises(ValueError, match="1 to 255"):
        store.open_queue(name)
    assert store.queue_names() == []
    store.close()


def test_open_queue_gives_the_same_object_twice(tmp_path: Path) -> None:
    store = open_real(tmp_path)
    assert store.open_queue("a") is store.open_queue("a")
    store.close()


def test_deleted_queue_is_gone_and_its_name_is_free(tmp_path: Path) -> None:
    store = open_real(tmp_path)

    async def work() -> None:
        queue = store.open_queue("a")
        for _ in range(50):
            publish(queue, [b"x" * 1000] * 10)
        # With a round on its way, and more gathered behind it.
        await asyncio.sleep(0)
        publish(queue, [b"y"])
        store.delete_queue("a")
        assert store.queue_names() == []
        with pytest.raises(StoreClosedError, match="'a' was deleted"):
            publish(queue, [b"z"])
        fresh = store.open_queue("a")
        assert fresh.state.next_position == 0
        assert store.statistics().queue_memory_bytes_now == 0
        publish(fresh, [b"new"])
        await store.sync()

    run_store(store, work)
    store = open_real(tmp_path)
    assert bodies(store.open_queue("a")) == {0: b"new"}
    assert [path.name for path in (tmp_path / "queues").iterdir()] == [folder_name("a")]
    store.close()


@pytest.mark.parametrize("kept", ["nothing", "everything"])
def test_power_cut_within_a_delete_leaves_all_of_the_queue_or_nothing(kept: Kept) -> None:
    import random

    disk = SimulatedDisk()
    store = open_store(disk)
    queue = store.open_queue(QUEUE)
    publish(queue, [b"x"])
    store.close()
    before = len(disk.log)
    store = open_store(disk)
    opened = len(disk.log)
    store.delete_queue(QUEUE)
    assert opened > before
    replayed = SimulatedDisk()
    for writes, call in enumerate(disk.log):
        if writes >= opened:
            left = replayed.power_cut(kept, random.Random(1))
            after = open_store(left)
            if after.queue_names():
                assert bodies(after.open_queue(QUEUE)) == {0: b"x"}
        replayed.do(call)
    assert open_store(replayed.power_cut("nothing", random.Random(1))).queue_names() == []


@pytest.mark.logs(DAMAGE)
def test_queue_whose_name_is_lost_is_reported_and_left_alone() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    publish(store.open_queue(QUEUE), [b"x"])
    store.close()
    name = next(path for path in disk.files() if path.name == "queue.name")
    disk.content(name)[20] ^= 1
    store = open_store(disk)
    assert store.queue_names() == []
    assert [report.what for report in store.corruptions] == ["the queue's name is lost"]
    assert (name.parent / "journal.jif") in [*disk.files()]


# -- group commit


def test_one_round_is_for_all_dirty_queues() -> None:
    store = open_store(SimulatedDisk())
    queues = [store.open_queue(f"q{i}") for i in range(20)]
    durable: list[QueueStore] = []
    store.on_durable = durable.append

    async def work() -> None:
        before = store.statistics().rounds
        for queue in queues:
            publish(queue, [b"a"])
            publish(queue, [b"b"])
        await store.sync()
        assert store.statistics().rounds == before + 1
        await asyncio.sleep(0)
        assert sorted(queue.queue for queue in durable) == sorted(q.queue for q in queues)
        assert all(queue.durable_number == 2 for queue in queues)

    run_store(store, work)


def test_very_many_queues_are_in_several_rounds() -> None:
    """No round takes more than its limit, and `sync` waits for all that were dirty before it."""
    store = open_store(SimulatedDisk(), replace(LIMITS, round_queues_max=20))
    queues = [store.open_queue(f"q{i}") for i in range(50)]
    durable: list[list[str]] = []

    def note(queue: QueueStore) -> None:
        if store.counters.rounds > len(durable):
            durable.append([])
        durable[-1].append(queue.queue)

    store.on_durable = note

    async def work() -> None:
        for queue in queues:
            publish(queue, [b"a"])
        syncs = [asyncio.create_task(store.sync()) for _ in range(2)]
        await asyncio.sleep(0)
        # It comes behind the others, as its first append is in a round already.
        publish(queues[0], [b"b"])
        await asyncio.gather(*syncs)
        assert all(queue.durable_number >= 1 for queue in queues)
        await store.sync()
        assert queues[0].durable_number == 2
        await asyncio.sleep(0)
        assert [len(round) for round in durable] == [20, 20, 11]
        publish(queues[1], [b"deleted before its round"])
        assert store.counters.unsynced_bytes > 0
        store.delete_queue("q1")
        assert store.counters.unsynced_bytes == 0

    run_store(store, work)


def test_what_comes_during_a_round_is_in_the_next() -> None:
    store = open_store(SimulatedDisk(), replace(LIMITS, sync_in_place_bytes_max=0))
    queue = store.open_queue(QUEUE)
    numbers: list[int] = []
    store.on_durable = lambda queue: numbers.append(queue.durable_number)

    async def work() -> None:
        publish(queue, [b"a"])
        await asyncio.sleep(0)
        publish(queue, [b"b"])
        assert queue.durable_number == 0
        await store.sync()
        await asyncio.sleep(0)
        assert numbers[-1] == queue.durable_number == 2

    run_store(store, work)


def test_a_small_round_on_a_fast_disk_is_done_in_place() -> None:
    store = open_store(SimulatedDisk())
    queue = store.open_queue(QUEUE)

    async def work() -> None:
        publish(queue, [b"a"])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert queue.durable_number == 1

    run_store(store, work)


def test_sync_with_nothing_appended_returns_at_once() -> None:
    store = open_store(SimulatedDisk())
    store.open_queue(QUEUE)

    async def work() -> None:
        rounds = store.statistics().rounds
        await store.sync()
        assert store.statistics().rounds == rounds

    run_store(store, work)


def test_close_makes_durable_what_no_round_has_taken() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    publish(store.open_queue(QUEUE), [b"x"])
    store.close()
    store.close()
    import random

    left = disk.power_cut("nothing", random.Random(1))
    assert bodies(open_store(left).open_queue(QUEUE)) == {0: b"x"}


def test_closed_store_takes_nothing_more() -> None:
    store = open_store(SimulatedDisk())
    queue = store.open_queue(QUEUE)
    store.close()
    with pytest.raises(StoreClosedError):
        publish(queue, [b"x"])
    with pytest.raises(StoreClosedError):
        store.open_queue("other")


# -- a disk that fails


@pytest.mark.parametrize(
    ("code", "expected"),
    [(errno.ENOSPC, DiskFullError), (errno.EDQUOT, DiskFullError), (errno.EIO, StoreFailedError)],
)
@pytest.mark.parametrize("what", ["write", "sync"])
def test_failed_disk_closes_the_store_for_writes_and_loses_nothing_durable(
    what: str, code: int, expected: type[StoreError]
) -> None:
    disk = SimulatedDisk()
    store = open_store(disk, StoreLimits(queue_memory_bytes_max=0))
    queue = store.open_queue(QUEUE)
    failures: list[StoreError] = []
    store.on_failed = failures.append

    async def work() -> None:
        publish(queue, [b"durable"] * 3)
        await store.sync()
        disk.failure = code
        if what == "write":
            disk.writes_left = 0
        else:
            disk.syncs_left = 0
        publish(queue, [b"not any more"] * 3)
        with pytest.raises(expected):
            await store.sync()
        assert [type(failure) for failure in failures] == [expected]
        assert queue.durable_number == 1
        # Also when the disk has room again: nobody knows which bytes the failed write has left.
        disk.writes_left = disk.syncs_left = None
        number = queue.state.last_number
        with pytest.raises(expected):
            append(queue, Remove(((0, 0),)))
        assert queue.state.last_number == number
        with pytest.raises(expected):
            await store.sync()
        assert len(failures) == 1
        assert store.statistics().failed_now
        runs = queue.read(0, 5, bytes_max=1000, messages_max=10)
        assert [body for run in runs for body in run.block.bodies()][:3] == [b"durable"] * 3

    run_store(store, work)
    found = bodies(open_store(disk.copy()).open_queue(QUEUE))
    assert [found[at] for at in range(3)] == [b"durable"] * 3


def test_failed_flush_closes_the_store_as_well() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, StoreLimits(journal_entries_max=5))
    queue = store.open_queue(QUEUE)
    failed = asyncio.Event()
    store.on_failed = lambda _: failed.set()

    async def work() -> None:
        publish(queue, [b"x"] * 10)
        # The round's two writes are allowed, the segment's is not.
        disk.writes_left = 2
        async with asyncio.timeout(30):
            await failed.wait()
        assert isinstance(store.failure, DiskFullError)

    run_store(store, work)
    assert len(bodies(open_store(disk.copy()).open_queue(QUEUE))) == 10


@pytest.mark.slow
def test_real_file_size_limit_is_a_full_disk(tmp_path: Path) -> None:
    child = start_child(tmp_path, "2000000")
    output, _ = child.communicate(timeout=30)
    lines = output.decode().split("\n")
    assert "failed DiskFullError" in lines
    durable = max(int(line.split()[1]) for line in lines if line.startswith("durable"))
    check_child_survived(tmp_path, durable)


# -- a process that is killed


def start_child(directory: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(directory), *arguments],
        stdout=subprocess.PIPE,
        env=child_environment(),
    )


def check_child_survived(directory: Path, durable: int) -> None:
    """See `killed_child`: op n publishes 20 messages, and removes 10 of them later."""
    store = open_real(directory)
    queue = store.open_queue("q")
    queue.check()
    assert not queue.corruptions
    assert not queue.missing
    assert not queue.damaged
    assert queue.state.last_number >= durable
    found = bodies(queue)
    assert all(body.startswith(b"%d:" % at) for at, body in found.items())
    assert len(found) == len(queue.state.live)
    # Published in pairs of ops: of the last pair only the first may be there.
    published = (queue.state.last_number + 1) // 2 * 20
    assert queue.state.next_position == published
    assert all((at in found) == (at % 20 >= 10) for at in range(published - 20))
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 5, 40, 150, pytest.param(400, marks=pytest.mark.compute)])
def test_what_was_durable_survives_kill_9_in_the_middle_of_writing(
    tmp_path: Path, rounds: int
) -> None:
    durable = 0
    for _ in range(2):
        child = start_child(tmp_path)
        assert child.stdout is not None
        for _ in range(rounds):
            line = child.stdout.readline().decode().split()
            durable = int(line[1])
        os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read().decode().split("\n")
        child.wait(10)
        child.stdout.close()
        for text in rest[:-1]:
            durable = int(text.split()[1])
        check_child_survived(tmp_path, durable)


def test_root_is_where_the_simulated_queues_are() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    publish(store.open_queue(QUEUE), [b"x"])
    store.close()
    assert ROOT / "queues" / folder_name(QUEUE) / "journal.jif" in [*disk.files()]


# -- folders, and marks of partial replicas


def syncs_since(disk: SimulatedDisk, calls: int) -> list[Path]:
    return [call.path for call in disk.log[calls:] if call.name == "sync"]


@pytest.mark.parametrize("queues", [1, 30], ids=["one", "many"])
def test_a_queue_gets_its_folder_with_its_first_op(queues: int) -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    names = [f"q{number}" for number in range(queues)]

    async def work() -> None:
        opened = [store.open_queue(name, label=f"label of {name}") for name in names]
        assert disk.list(ROOT / "queues") == {}
        before = len(disk.log)
        for queue in opened:
            publish(queue, [b"x"])
        await store.sync()
        for kept in ("nothing", "everything"):
            after = disk.power_cut(kept, random.Random(1))
            again = open_store(after)
            assert again.queue_names() == sorted(names)
            assert all(bodies(again.open_queue(name)) == {0: b"x"} for name in names)
        # Of each queue, its journal and the journal's name; the folders have theirs in common.
        assert len(syncs_since(disk, before)) <= 2 * queues + 4

    run_store(store, work)


def test_a_queue_that_was_not_opened_on_an_untrusted_disk_is_partial_later() -> None:
    """It may have a format that only a newer RingMQ knows. The disk is trusted then."""
    disk = SimulatedDisk()
    for name in ("one", "two"):
        store = open_store(disk)

        async def work(store: Store = store, name: str = name) -> None:
            publish(store.open_queue(name), [b"x"])
            await store.sync()

        run_store(store, work)
    store = open_store(disk)

    async def mark() -> None:
        store.open_queue("one", partial=True)
        await store.sync_marks()

    run_store(store, mark)
    again = open_store(disk.power_cut("nothing", random.Random(1)))
    assert [again.open_queue(name).partial for name in ("one", "two", "three")] == [
        True,
        True,
        False,
    ]


def test_marks_of_many_queues_share_a_sync_and_go_in_a_thread() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    names = [f"q{number}" for number in range(30)]

    def partial_after(kept: Kept) -> list[bool]:
        again = open_store(disk.power_cut(kept, random.Random(1)))
        return [again.open_queue(name).partial for name in names]

    async def work() -> None:
        before = len(disk.log)
        opened = [store.open_queue(name, partial=True) for name in names]
        assert not syncs_since(disk, before)
        await store.sync_marks()
        assert all(partial_after("nothing"))
        for queue in opened:
            store.mark_whole(queue)
        # A deleted queue doesn't stop the removal of the others' marks.
        store.delete_queue(names.pop())
        await until(lambda: not any(partial_after("everything")), "the marks are removed")

    run_store(store, work)
    assert not any(partial_after("nothing"))
