"""The power is cut after every call that changes the disk: each durable, live record is there.

The test plays the index: it knows, at each moment, which locations a durable index refers to.
It adds one when the job that it is in has been committed, and releases one only after it has
struck it off, as the queues do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from node.tests.storage.messages.verbs import (
    DIRECTORY,
    block_of,
    collect,
    names,
    open_store,
    put_all,
)
from node.tests.storage.simulated_disk import Kept, SimulatedDisk

from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.limits import StoreLimits
from ringmq_node.storage.messages import compact, write
from ringmq_node.storage.messages.steps import PublishJob

LIMITS = StoreLimits(
    store_file_bytes_max=3000,
    compaction_piece_bytes_max=900,
    store_cache_bytes_max=0,
    compaction_bytes_per_s_max=1 << 40,
)


@dataclass
class Recording:
    """A workload; and the locations in a durable index, after each number of calls."""

    seed: int
    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    number: int = 0
    live: dict[RecordLocation, int] = field(default_factory=dict)
    # Put, but not durable yet.
    fresh: dict[RecordLocation, int] = field(default_factory=dict)
    history: list[tuple[int, dict[RecordLocation, int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        # The data directory itself is the node's.
        self.disk.write(DIRECTORY.parent.parent / "store.meta", 0, [b"whose"], sync=True)
        for directory in (DIRECTORY.parent.parent, DIRECTORY.parent.parent.parent):
            self.disk.sync(directory)
        self.store = open_store(self.disk, LIMITS)
        self.store.start_collecting()
        self.remember()

    def remember(self) -> None:
        self.history.append((len(self.disk.log), dict(self.live)))

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.put()
            self.release()
            for _ in range(self.rng.randrange(4)):
                self.step()

    def put(self) -> None:
        for _ in range(self.rng.randrange(5)):
            self.number += 1
            block = block_of(self.number, self.rng.choice([100, 600, 900]))
            self.fresh[self.store.put(block)[0]] = self.number
        if self.fresh and self.rng.random() < 0.3:
            location = self.rng.choice([*self.fresh])
            del self.fresh[location]
            self.store.release(location)
        job = self.store.take()
        if job is not None:
            if not self.lives_through(partial(write, self.disk, job)):
                return
            self.store.committed(job)
        self.live |= self.fresh
        self.fresh = {}
        self.remember()

    def release(self) -> None:
        excess = len(self.live) - 12
        for location in self.rng.sample([*self.live], max(0, excess)):
            if location.ordinal == 0 and self.rng.random() < 0.9:
                continue
            # First the index, durably, then the store.
            del self.live[location]
            self.remember()
            self.store.release(location)

    def step(self) -> None:
        job = self.store.plan(1e9)
        if job is not None and self.lives_through(partial(compact, self.disk, job)):
            self.store.done(job)
            self.store.check()

    def lives_through(self, work: Callable[[], None]) -> bool:
        """Does it, unless the process is killed in the middle; then it is started again."""
        if self.rng.random() < 0.1:
            self.disk.writes_left = self.rng.randrange(4)
            self.disk.syncs_left = self.rng.randrange(5)
        try:
            work()
        except OSError:
            self.disk.writes_left = self.disk.syncs_left = None
            self.fresh = {}
            self.restart()
            return False
        self.disk.writes_left = self.disk.syncs_left = None
        return True

    def restart(self) -> None:
        """A process was killed: its writes stay, synced or not; its memory is gone."""
        self.store = open_store(self.disk, LIMITS)
        for location in self.live:
            self.store.share(location)
        self.store.start_collecting()

    def moment_after(self, calls: int) -> int:
        """The last place in the history at which the durable index stood by then."""
        return max(place for place, (at, _) in enumerate(self.history) if at <= calls)


def check_cut(disk: SimulatedDisk, live: dict[RecordLocation, int], story: str) -> None:
    """Starts twice: a start, and the collection after it, change the disk as well."""
    try:
        for again in range(2):
            store = open_store(disk, LIMITS)
            assert not store.corruptions
            for location in live:
                store.share(location)
            store.start_collecting()
            for _ in range(2):
                for location, number in live.items():
                    assert store.read(location).bodies()[0][:8] == number.to_bytes(8, "little")
                location, _ = store.put(block_of(1))
                assert all(location.file > old.file for old in live), "a number is used twice"
                job = store.take()
                assert job is not None
                write(disk, job)
                store.committed(job)
                store.release(location)
                collect(store, disk)
            assert not store.corruptions
            if not again:
                disk = disk.power_cut("nothing", random.Random(0))
    except Exception as error:
        raise AssertionError(f"{story}: {error}") from error


def cut_everywhere(recording: Recording, stride: int, kept: list[Kept]) -> None:
    replayed = SimulatedDisk()
    rng = random.Random(recording.seed)
    # What a check reads: the files, and which records are live.
    seen: set[tuple[bytes, int]] = set()
    for calls, call in enumerate(recording.disk.log):
        if calls % stride == 0 and calls >= recording.history[0][0]:
            moment = recording.moment_after(calls)
            for what in kept:
                left = replayed.power_cut(what, rng)
                case = (left.identity(), moment)
                if case not in seen:
                    seen.add(case)
                    story = f"seed {recording.seed}, {calls} calls, {what} kept"
                    check_cut(left, recording.history[moment][1], story)
        replayed.do(call)


def recorded(seed: int, rounds: int) -> Recording:
    recording = Recording(seed)
    recording.run(rounds)
    changed = [call.name for call in recording.disk.log]
    assert changed.count("rename") > rounds // 20
    assert changed.count("remove") > rounds // 10
    return recording


def test_power_cut_after_some_calls() -> None:
    cut_everywhere(recorded(3, 80), 4, ["nothing", "anything"])


@pytest.mark.slow
@pytest.mark.compute
@pytest.mark.parametrize("seed", range(10, 13))
def test_power_cut_after_every_call(seed: int) -> None:
    kept: list[Kept] = ["nothing", "everything", "anything", "anything"]
    cut_everywhere(recorded(seed, 120), 1, kept)


def test_killed_between_a_new_map_and_its_sync_then_the_power_goes() -> None:
    """A start makes the names that it finds durable before it removes a file because of them.

    1. A record is moved to file V, a map leads there. It is moved again, from V to W.
    2. The process is killed when the map to W has its name, but the directory isn't synced.
    3. The next process finds the map to W, sees nothing that refers to V, and removes V.
    4. The power goes. If the map's new name is lost, and V's removal is not, the body is lost.
    """
    disk = SimulatedDisk()
    disk.write(DIRECTORY.parent.parent / "store.meta", 0, [b"whose"], sync=True)
    for directory in (DIRECTORY.parent.parent, DIRECTORY.parent.parent.parent):
        disk.sync(directory)
    limits = replace(LIMITS, store_garbage_fraction=0.2)
    store = open_store(disk, limits)
    store.start_collecting()
    places = put_all(store, disk, [block_of(number, 900) for number in range(12)])
    for number in (1, 2, 4, 5, 7, 8):
        store.release(places[number])
    collect(store, disk)
    assert names(disk) == ["1.map", "2.map", "3.map", "4.rdq", "5.rdq"]
    store.release(places[0])
    store.release(places[3])
    while not isinstance(job := store.plan(1e9), PublishJob):
        assert job is not None, "nothing is moved again"
        compact(disk, job)
        store.done(job)
    disk.syncs_left = 3
    with pytest.raises(OSError, match="simulated"):
        compact(disk, job)
    disk.syncs_left = None

    store = open_store(disk, LIMITS)
    store.share(places[6])
    store.start_collecting()
    before = len(disk.log)
    collect(store, disk)
    removals = disk.log[before:]
    assert "5.rdq" in [call.path.name for call in removals if call.name == "remove"]
    replayed = SimulatedDisk()
    for calls, call in enumerate(disk.log):
        replayed.do(call)
        for seed in range(8 if calls >= before else 0):
            left = replayed.power_cut("anything", random.Random(seed))
            check_cut(left, {places[6]: 6}, f"{calls} calls, seed {seed}")
