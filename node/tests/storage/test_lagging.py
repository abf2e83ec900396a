"""Journals that get their bytes later than the commit log."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from node.tests.storage.simulated_disk import SimulatedDisk
from node.tests.storage.workload import ROOT, bodies, open_store, run_store
from waiting import until

from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Publish, Remove
from ringmq_node.storage import QueueStore, Store, StoreLimits
from ringmq_node.storage import store as store_module
from ringmq_node.storage.commit_log import LOG_NAMES
from ringmq_node.storage.queue import journal
from ringmq_node.storage.redo import redo
from ringmq_node.storage.scrub import Scrub

NAMES = ("one", "two", "three", "four")
LOGS = {ROOT / name for name in LOG_NAMES}
# No round writes what journals lack, and no tick comes.
LATE = StoreLimits(write_behind_bytes_max=1 << 30)


@pytest.fixture(autouse=True)
def no_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "TICK_S", 3600.0)


def publish(queue: QueueStore, body: bytes) -> None:
    op = Publish(queue.state.next_position, Block.of([body]))
    queue.append(queue.state.last_number + 1, op, ops.encode(op))


def remove(queue: QueueStore, first: int, last: int) -> None:
    op = Remove(((first, last),))
    queue.append(queue.state.last_number + 1, op, ops.encode(op))


async def rounds(store: Store, numbers: range) -> None:
    for number in numbers:
        for name in NAMES:
            publish(store.open_queue(name), f"{name} {number}".encode())
        await store.sync()


def expected(numbers: range) -> dict[str, list[bytes]]:
    return {name: [f"{name} {number}".encode() for number in numbers] for name in NAMES}


def found(disk: SimulatedDisk) -> dict[str, list[bytes]]:
    store = open_store(disk)
    return {name: [*bodies(store.open_queue(name)).values()] for name in store.queue_names()}


def journals(disk: SimulatedDisk, begun: int = 0) -> list[Path]:
    """Of the writes since then, in order."""
    calls = disk.log[begun:]
    return [call.path for call in calls if call.name == "write" and ".jif" in call.path.name]


def on_disk(disk: SimulatedDisk, queue: QueueStore) -> int:
    return len(disk.content(queue.on_disk()[-1].path))


def test_rounds_of_several_queues_write_the_log_alone() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, LATE)

    async def work() -> None:
        await rounds(store, range(1))
        begun = len(disk.log)
        await rounds(store, range(1, 9))
        assert journals(disk, begun) == []
        assert found(disk.power_cut("nothing", random.Random(1))) == expected(range(9))

    run_store(store, work)
    assert found(disk) == expected(range(9))


def test_one_write_gives_a_journal_the_bytes_of_many_rounds() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, replace(LATE, write_behind_bytes_max=2_000))

    async def work() -> None:
        await rounds(store, range(1))
        begun = len(disk.log)
        while not journals(disk, begun):
            await rounds(store, range(1, 2))
        written = journals(disk, begun)
        assert len(written) == len({*written}) == len(NAMES)
        # The round that wrote them is not among them.
        waiting = [queue.on_disk()[-1].unwritten for queue in map(store.open_queue, NAMES)]
        assert all(0 < each < 200 for each in waiting), waiting

    run_store(store, work)


def test_a_tick_has_journals_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "TICK_S", 0.01)
    disk = SimulatedDisk()
    store = open_store(disk, LATE)

    async def work() -> None:
        await rounds(store, range(3))
        queues = [store.open_queue(name) for name in NAMES]
        await until(lambda: not any(queue.on_disk()[-1].unwritten for queue in queues))
        assert all(on_disk(disk, queue) == queue.on_disk()[-1].end for queue in queues)

    run_store(store, work)


def test_a_tick_has_nothing_written_of_what_was_deleted_since() -> None:
    """Its round would have no work for a thread, and would never end."""
    disk = SimulatedDisk()
    store = open_store(disk, LATE)

    async def work() -> None:
        await rounds(store, range(3))
        store._commit.tick()
        for name in NAMES:
            store.delete_queue(name)
        await asyncio.sleep(0.01)
        publish(store.open_queue("one"), b"new")
        await store.sync()

    run_store(store, work)
    assert found(disk) == {"one": [b"new"]}


def test_a_direct_write_comes_behind_what_the_journal_lacks() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, LATE)

    async def work() -> None:
        await rounds(store, range(5))
        one = store.open_queue("one")
        publish(one, b"alone")
        await store.sync()
        assert on_disk(disk, one) == one.on_disk()[-1].end
        assert on_disk(disk, store.open_queue("two")) < store.open_queue("two").on_disk()[-1].end
        left = disk.power_cut("nothing", random.Random(1))
        assert found(left) == expected(range(5)) | {"one": [*expected(range(5))["one"], b"alone"]}

    run_store(store, work)


def test_a_body_stays_in_memory_until_its_journal_has_it() -> None:
    """However short memory is: it can't be read back."""
    disk = SimulatedDisk()
    store = open_store(disk, replace(LATE, queue_memory_bytes_max=0))

    async def work() -> None:
        await rounds(store, range(4))
        one, two = store.open_queue("one"), store.open_queue("two")
        assert [*bodies(one).values()] == expected(range(4))["one"]
        in_memory = one.bodies.index.messages_in_memory
        assert in_memory >= 3
        publish(one, b"alone")
        await store.sync()
        assert one.bodies.index.messages_in_memory == 0
        assert two.bodies.index.messages_in_memory == in_memory
        assert [*bodies(one).values()] == [*expected(range(4))["one"], b"alone"]

    run_store(store, work)


def test_a_sealed_journal_has_all_of_its_bytes() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, LATE)

    async def work() -> None:
        await rounds(store, range(5))
        one = store.open_queue("one")
        file = one.on_disk()[-1]
        one.seal()
        publish(one, b"in the next one")
        await store.sync()
        assert file.unwritten == 0
        await until(lambda: not store.statistics().journals_sealed_now)
        one.bodies.check()

    run_store(store, work)
    assert found(disk)["one"] == [*expected(range(5))["one"], b"in the next one"]


def test_a_deleted_queue_gets_nothing_more() -> None:
    """A write would make its folder again, or reach the journal of the next queue of that name."""
    disk = SimulatedDisk()
    store = open_store(disk, LATE)

    async def work() -> None:
        await rounds(store, range(5))
        folder = store.open_queue("two").directory
        store.delete_queue("two")
        store.delete_queue("three")
        publish(store.open_queue("two"), b"new")
        begun = len(disk.log)
        await store.sync()
        for name in ("one", "four"):
            publish(store.open_queue(name), b"alone")
            await store.sync()
        assert {path.parent for path in journals(disk, begun)} == {
            folder,
            *(store.open_queue(name).directory for name in ("one", "four")),
        }

    run_store(store, work)
    assert found(disk) == {
        "one": [*expected(range(5))["one"], b"alone"],
        "two": [b"new"],
        "four": [*expected(range(5))["four"], b"alone"],
    }


def test_a_queue_that_timed_out_gets_its_bytes() -> None:
    """Its files stay for the next start, which has no log after a clean stop."""
    disk = SimulatedDisk()
    store = open_store(disk, LATE)

    async def work() -> None:
        await rounds(store, range(5))
        store.abandon(store.open_queue("two"))
        await rounds_of(store, ("one", "three", "four"))

    run_store(store, work)
    assert found(disk)["two"] == expected(range(5))["two"]
    assert not LOGS & {*disk.files()}


async def rounds_of(store: Store, names: tuple[str, ...]) -> None:
    for name in names:
        publish(store.open_queue(name), b"more")
    await store.sync()


def test_a_queue_that_timed_out_and_deleted_gets_nothing() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, LATE)
    folders: list[Path] = []

    async def work() -> None:
        await rounds(store, range(5))
        two = store.open_queue("two")
        folders.append(two.directory)
        store.abandon(two)
        store.delete_queue("two")
        left = weakref.ref(two)
        del two
        await rounds_of(store, ("one", "three"))
        gc.collect()
        assert left() is None

    run_store(store, work)
    assert not any(path.parent == folders[0] for path in disk.files())


class HeldDisk(SimulatedDisk):
    """Holds the next write of a file whose name ends like `held`, until `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.held = ""
        self.reached = threading.Event()
        self.go = threading.Event()

    def write(
        self, path: Path, offset: int, buffers: Sequence[bytes | memoryview], *, sync: bool = False
    ) -> None:
        if self.held and path.name.endswith(self.held):
            self.held = ""
            self.reached.set()
            assert self.go.wait(20)
        super().write(path, offset, buffers, sync=sync)


@pytest.mark.parametrize(
    ("held", "names"), [(".log", NAMES), (".jif", NAMES[1:])], ids=["the log", "a journal"]
)
def test_a_queue_that_is_deleted_while_a_thread_writes_gets_nothing_more(
    held: str, names: tuple[str, ...]
) -> None:
    """The round before has left bytes for its journal, and this round writes them."""
    disk = HeldDisk()
    store = open_store(disk, replace(LATE, write_behind_bytes_max=0, sync_in_place_bytes_max=0))
    folders: list[Path] = []

    async def work() -> None:
        await rounds(store, range(3))
        folders.append(store.open_queue("one").directory)
        disk.held = held
        for name in names:
            publish(store.open_queue(name), b"in the held round")
        synced = asyncio.create_task(store.sync())
        await until(disk.reached.is_set)
        store.delete_queue("one")
        disk.go.set()
        await synced
        await rounds_of(store, ("two", "three"))
        await rounds_of(store, ("two", "three"))

    run_store(store, work)
    assert not any(path.parent == folders[0] for path in disk.files())
    assert found(disk).keys() == {"two", "three", "four"}


@pytest.mark.parametrize(
    ("held", "names"), [(".log", NAMES), (".jif", NAMES[1:])], ids=["the log", "a journal"]
)
@pytest.mark.parametrize("again", [False, True], ids=["gone", "opened again at once"])
def test_a_queue_that_is_given_up_and_deleted_while_a_thread_writes_gets_nothing_more(
    held: str, names: tuple[str, ...], again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread would make its folder again, without a name. The next start would take it for a
    damaged queue, and collect nothing of the message store."""
    disk = HeldDisk()
    store = open_store(disk, replace(LATE, write_behind_bytes_max=0, sync_in_place_bytes_max=0))
    folders: list[Path] = []

    async def work() -> None:
        await rounds(store, range(3))
        one = store.open_queue("one")
        folders.append(one.directory)
        disk.held = held
        for name in names:
            publish(store.open_queue(name), b"in the held round")
        synced = asyncio.create_task(store.sync())
        await until(disk.reached.is_set)
        store.abandon(one)
        # Whatever it has failed by.
        monkeypatch.setattr(one, "delete", lambda: pytest.fail("nothing of it is asked any more"))
        store.delete_queue("one")
        assert not store.knows("one")
        if again:
            # This waits for the thread.
            threading.Timer(0.05, disk.go.set).start()
            publish(store.open_queue("one"), b"new")
        disk.go.set()
        await synced
        await rounds_of(store, ("two", "three"))

    run_store(store, work)
    assert any(path.parent == folders[0] for path in disk.files()) == again
    left = found(disk)
    assert left.pop("one", None) == ([b"new"] if again else None)
    assert left.keys() == {"two", "three", "four"}


def test_a_scrub_reads_what_the_journal_has() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, LATE)
    scrub = Scrub(store, store.queues, rate_bytes=1 << 30, pause_s=0.0)

    async def work() -> None:
        await rounds(store, range(5))
        await scrub.pass_once()
        assert store.counters.scrub_faults == 0
        publish(store.open_queue("one"), b"alone")
        await store.sync()
        before = store.counters.scrub_bytes
        await scrub.pass_once()
        assert store.counters.scrub_bytes > 2 * before - 1_000
        assert store.counters.scrub_faults == 0

    run_store(store, work)


def played(seed: int, limits: StoreLimits, monkeypatch: pytest.MonkeyPatch) -> SimulatedDisk:
    """A disk at a moment of a random workload, as a power cut leaves it; the same for each limits.

    Markers and rounds are the same from run to run, so journals are comparable byte for byte.
    """
    markers = count(0x01020304)
    monkeypatch.setattr(journal, "new_marker", lambda: next(markers))
    rng = random.Random(seed)
    disk = SimulatedDisk()
    store = open_store(disk, limits)
    left: list[SimulatedDisk] = []

    async def work() -> None:
        for number in range(60):
            for name in rng.sample(NAMES, rng.choice([1, 1, 2, 3, 4])):
                step(store.open_queue(name), number)
            await store.sync()
        left.append(disk.power_cut("nothing", random.Random(seed)))

    def step(queue: QueueStore, number: int) -> None:
        live = queue.state.live
        if live and rng.random() < 0.3:
            first = rng.randint(live.first, live.last)
            remove(queue, first, first + rng.randint(0, 3))
        elif rng.random() < 0.03:
            queue.seal()
        else:
            publish(queue, f"{number}".encode() * rng.choice([1, 5, 40]))

    run_store(store, work)
    return left[0]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("log_bytes_max", [700, 5_000, 1 << 20])
def test_journals_are_the_same_however_late_they_are_written(
    seed: int, log_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The direct way syncs each journal by itself, and has no log. A start makes them the same.

    Only the current ones are compared: the flush removes sealed ones at a time of its own.
    """
    slow = played(seed, replace(LATE, commit_log_queues_min=1 << 30), monkeypatch)
    for late in (0, 300, 3_000, 1 << 30):
        limits = replace(LATE, commit_log_bytes_max=log_bytes_max, write_behind_bytes_max=late)
        quick = played(seed, limits, monkeypatch)
        assert LOGS & {*quick.files()}
        redo(quick, ROOT)
        assert current(quick) == current(slow), late
        assert found(quick) == found(slow), late


def current(disk: SimulatedDisk) -> dict[Path, bytes]:
    return {path: bytes(disk.content(path)) for path in disk.files() if path.name == "journal.jif"}
