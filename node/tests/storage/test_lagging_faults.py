"""Journals that lag behind the commit log, when the disk fails, when the power is cut, and when the
store stops in the middle of a round."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import loops
import pytest
from node.tests.storage.simulated_disk import Kept, SimulatedDisk
from node.tests.storage.test_lagging import LATE, NAMES, HeldDisk, found, journals, publish
from node.tests.storage.workload import ROOT, open_store, run_store
from waiting import until

from ringmq_node.storage import Store, StoreError, StoreFailedError, StoreLimits, commit_log
from ringmq_node.storage import store as store_module
from ringmq_node.storage.commit_log import LOG_NAMES, SETTLED_HEAD
from ringmq_node.storage.redo import redo


@pytest.fixture(autouse=True)
def no_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "TICK_S", 3600.0)


class GaplessDisk(HeldDisk):
    """Notes each write of a journal that begins behind the file's end."""

    def __init__(self) -> None:
        super().__init__()
        self.gaps: list[tuple[Path, int]] = []

    def write(
        self, path: Path, offset: int, buffers: Sequence[bytes | memoryview], *, sync: bool = False
    ) -> None:
        if path.suffix == ".jif" and offset > self.list(path.parent).get(path.name, 0):
            self.gaps.append((path, offset))
        super().write(path, offset, buffers, sync=sync)


@dataclass
class Load:
    """Publishes to four queues of a store, and notes what was reported durable."""

    store: Store
    rng: random.Random
    # In order, and how many of them were reported durable.
    published: dict[str, list[bytes]] = field(default_factory=lambda: {name: [] for name in NAMES})
    durable: Counter[str] = field(default_factory=Counter)

    def publish(self, name: str, size_bytes: int) -> None:
        bodies = self.published[name]
        body = f"{name} {len(bodies)}".encode().ljust(size_bytes, b".")
        bodies.append(body)
        publish(self.store.open_queue(name), body)

    async def sync(self) -> None:
        await self.store.sync()
        self.durable.update(
            {name: len(each) - self.durable[name] for name, each in self.published.items()}
        )

    async def step(self) -> None:
        """A round: of several queues as a rule, of one, of large bodies, of a sealed journal."""
        rng = self.rng
        for name in rng.sample(NAMES, rng.choice([1, 2, 3, 4, 4, 4])):
            self.publish(name, rng.choice([10, 10, 10, 10, 200, 5000]))
        if rng.random() < 0.1:
            self.store.open_queue(rng.choice(NAMES)).seal()
        if rng.random() < 0.1:
            self.store._commit.tick()
        await self.sync()

    def check(self, disk: SimulatedDisk, durable: Counter[str] | None = None) -> None:
        """Each queue has a beginning of what was published, with all that was durable."""
        durable = self.durable if durable is None else durable
        left = found(disk)
        for name in NAMES:
            bodies = left.get(name, [])
            assert len(bodies) >= durable[name], (name, len(bodies), durable)
            assert bodies == self.published[name][: len(bodies)], name


# Logs that fill in a few rounds, journals that are written at once, in some rounds, or never.
WAYS = {
    "behind": LATE,
    "at once": replace(LATE, write_behind_bytes_max=0),
    "in turns": replace(LATE, commit_log_bytes_max=1_000),
    "in turns and at once": replace(LATE, commit_log_bytes_max=1_000, write_behind_bytes_max=0),
    "some": replace(LATE, commit_log_bytes_max=3_000, write_behind_bytes_max=500),
}
ways = pytest.mark.parametrize("limits", WAYS.values(), ids=WAYS)
KEPT: list[Kept] = ["nothing", "anything", "everything"]


@ways
@pytest.mark.parametrize("in_place", [False, True], ids=["in threads", "in place"])
def test_no_journal_ever_has_a_gap(limits: StoreLimits, in_place: bool) -> None:
    """What a start can't put there, because its log is lost, would look like damage."""
    disk = GaplessDisk()
    store = open_store(disk, limits if in_place else replace(limits, sync_in_place_bytes_max=0))
    load = Load(store, random.Random(5))

    async def work() -> None:
        for _ in range(60):
            await load.step()

    run_store(store, work)
    assert disk.gaps == []
    load.check(disk)


@pytest.mark.slow
@ways
@pytest.mark.parametrize("held", [".rdq", ".log", ".jif"], ids=["bodies", "the log", "a journal"])
def test_the_power_is_cut_while_a_store_stops_in_the_middle_of_a_round(
    held: str, limits: StoreLimits
) -> None:
    """The stop waits for the threads, and does the rest of the round itself."""
    disk = GaplessDisk()
    store = open_store(disk, replace(limits, sync_in_place_bytes_max=0))
    load = Load(store, random.Random(3))
    begun: list[int] = []

    async def work() -> None:
        for _ in range(6):
            for name in NAMES:
                load.publish(name, 20)
            await load.sync()
        disk.held = held
        # Of several queues, one of which is sealed; and one with a body for the message store. The
        # sealed journal is written, whether it lacks anything or not.
        load.publish("two", 30)
        store.open_queue("two").seal()
        for name in NAMES:
            load.publish(name, 5000 if (held, name) == (".rdq", "one") else 30)
        await until(disk.reached.is_set)
        # Of the next round.
        load.publish("three", 40)
        begun.append(len(disk.log))
        threading.Timer(0.02, disk.go.set).start()

    run_store(store, work)
    assert disk.gaps == []
    load.check(disk, Counter({name: len(each) for name, each in load.published.items()}))
    cut_after_each_change(load, disk, begun[0])


@pytest.mark.parametrize("again", [False, True], ids=["closed", "run again"])
def test_a_store_that_was_cancelled_while_its_logs_take_turns_keeps_what_both_have(
    again: bool,
) -> None:
    """Nobody syncs the full log's journals then but the stop. Not all of them are in this round."""
    disk = HeldDisk()
    # One round fills a log.
    store = open_store(disk, replace(LATE, commit_log_bytes_max=500, sync_in_place_bytes_max=0))
    load = Load(store, random.Random(1))

    async def main() -> None:
        running = asyncio.create_task(store.run())
        await asyncio.sleep(0)
        for names in (NAMES, NAMES):
            for name in names:
                load.publish(name, 20)
            await load.sync()
        disk.held = LOG_NAMES[1]
        for name in NAMES[2:]:
            load.publish(name, 20)
        await until(disk.reached.is_set)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        if again:
            await go_on()
        threading.Timer(0.02, disk.go.set).start()
        store.close()

    async def go_on() -> None:
        disk.go.set()
        await until(lambda: store.counters.rounds == 3)
        running = asyncio.create_task(store.run())
        for _ in range(3):
            for name in NAMES[2:]:
                load.publish(name, 20)
            await load.sync()
            load.check(disk.power_cut("nothing", random.Random(1)))
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    loops.run(main())
    assert not any(path.suffix == ".log" for path in disk.files())
    all_of_it = Counter({name: len(each) for name, each in load.published.items()})
    load.check(disk.power_cut("nothing", random.Random(1)), all_of_it)


def test_a_disk_that_fails_as_a_queue_is_given_up_fails_the_store() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, LATE)
    store.on_failed = lambda error: None
    load = Load(store, random.Random(1))

    async def work() -> None:
        for _ in range(3):
            for name in NAMES:
                load.publish(name, 20)
            await load.sync()
        disk.writes_left = 0
        store.abandon(store.open_queue("two"))
        assert isinstance(store.failure, StoreFailedError)

    run_store(store, work)
    # The logs stay, and have it.
    load.check(disk.copy())


@pytest.mark.parametrize("one_by_one", [0, 1000], ids=["by one call", "one by one"])
def test_all_journals_of_a_full_log_are_synced(
    one_by_one: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "_SYNCED_ONE_BY_ONE_MAX", one_by_one)
    disk = SimulatedDisk()
    store = open_store(disk, WAYS["in turns"])
    load = Load(store, random.Random(2))

    async def work() -> None:
        for _ in range(30):
            await load.step()
            load.check(disk.power_cut("nothing", random.Random(1)))

    run_store(store, work)
    load.check(disk.power_cut("nothing", random.Random(1)))


class BodilessDisk(HeldDisk):
    """Fails to write a message store, once `go` is set."""

    def write(
        self, path: Path, offset: int, buffers: Sequence[bytes | memoryview], *, sync: bool = False
    ) -> None:
        if path.suffix == ".rdq":
            self.reached.set()
            assert self.go.wait(20)
            raise OSError(errno.EIO, "simulated", str(path))
        super().write(path, offset, buffers, sync=sync)


def test_a_stop_writes_no_records_of_bodies_that_could_not_be_written() -> None:
    disk = BodilessDisk()
    store = open_store(disk, LATE)
    store.on_failed = lambda error: None
    load = Load(store, random.Random(1))
    begun: list[int] = []

    async def work() -> None:
        for _ in range(3):
            for name in NAMES:
                load.publish(name, 20)
            await load.sync()
        for name in NAMES:
            load.publish(name, 5000)
        await until(disk.reached.is_set)
        begun.append(len(disk.log))
        threading.Timer(0.02, disk.go.set).start()

    run_store(store, work)
    assert "simulated" in str(store.failure)
    assert journals(disk, begun[0]) == []
    load.check(disk)


def cut_after_each_change(load: Load, disk: SimulatedDisk, begun: int) -> None:
    """Cuts the power after each change of the disk from `begun` on. `load` has what was durable."""
    rng = random.Random(1)
    replayed = SimulatedDisk()
    for changes, call in enumerate(disk.log):
        if changes >= begun:
            for kept in KEPT:
                load.check(replayed.power_cut(kept, rng))
        replayed.do(call)


def failing(
    limits: StoreLimits, what: str, calls: int, failure: int, seed: int
) -> tuple[Load, SimulatedDisk]:
    """A store whose disk takes so many more writes, or syncs, after the first round."""
    disk = GaplessDisk()
    disk.failure = failure
    store = open_store(disk, limits)
    store.on_failed = lambda error: None
    load = Load(store, random.Random(seed))

    async def work() -> None:
        for name in NAMES:
            load.publish(name, 10)
        await load.sync()
        setattr(disk, what, calls)
        with suppress(StoreError):
            for _ in range(20):
                await load.step()

    with suppress(StoreError):
        run_store(store, work)
    assert disk.gaps == []
    return load, disk


@pytest.mark.slow
@ways
@pytest.mark.parametrize(
    ("what", "failure"),
    [("writes_left", errno.ENOSPC), ("syncs_left", errno.EIO)],
    ids=["full", "syncs fail"],
)
def test_a_disk_that_fails_at_any_call_loses_nothing_that_was_durable(
    limits: StoreLimits, what: str, failure: int
) -> None:
    """Also in the midst of what several journals lack: the log has it until they are synced."""
    failed = 0
    for calls in range(0, 45, 3):
        load, disk = failing(limits, what, calls, failure, seed=calls)
        failed += isinstance(load.store.failure, StoreFailedError)
        for kept in KEPT:
            left = disk.power_cut(kept, random.Random(calls))
            if calls % 9 == 0:
                fail_starts(left, failure)
            load.check(left)
    assert failed > 10


class UnsettledDisk(SimulatedDisk):
    """Fails in the midst of the write that says of a log that nobody needs it."""

    def write(
        self, path: Path, offset: int, buffers: Sequence[bytes | memoryview], *, sync: bool = False
    ) -> None:
        if [*buffers] == [SETTLED_HEAD]:
            super().write(path, offset, [SETTLED_HEAD[: len(SETTLED_HEAD) // 2]])
            raise OSError(errno.EIO, "simulated", str(path))
        super().write(path, offset, buffers, sync=sync)


def test_a_log_that_is_settled_by_half_is_not_damaged() -> None:
    """Every replica of the node would be taken for partial, and none may begin its ring then."""
    disk = UnsettledDisk()
    store = open_store(disk, WAYS["in turns"])
    store.on_failed = lambda error: None
    load = Load(store, random.Random(1))

    async def work() -> None:
        with suppress(StoreError):
            for _ in range(50):
                await load.step()

    run_store(store, work)
    assert "simulated" in str(store.failure)
    assert redo(disk.copy(), ROOT) == []
    load.check(disk)


def fail_starts(disk: SimulatedDisk, failure: int) -> None:
    """Starts on it that get no further than their first writes."""
    disk.failure = failure
    for writes in range(4):
        disk.writes_left = writes
        with suppress(OSError):
            open_store(disk)
    disk.writes_left = None
