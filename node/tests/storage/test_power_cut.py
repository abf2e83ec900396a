"""After a power cut at any write, all that was reported durable is there, and nothing made up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from node.tests.storage.queue.test_queue_store import publish
from node.tests.storage.simulated_disk import Kept, SimulatedDisk
from node.tests.storage.workload import (
    LIMITS,
    QUEUE,
    Picture,
    Workload,
    bodies,
    check_bodies,
    open_store,
    run_store,
)

from ringmq_base.ranges import RangeSet
from ringmq_node.storage import QueueStore, StoreLimits
from ringmq_node.storage.disk.data_directory import NAME_NAME


class Recording:
    """A workload's writes, and for each of them the ops that were reported durable before it."""

    def __init__(
        self,
        seed: int,
        steps: int,
        act: Callable[[Workload], None],
        limits: StoreLimits = LIMITS,
    ) -> None:
        self.disk = SimulatedDisk()
        self.limits = limits
        store = open_store(self.disk, limits)
        # (writes until then, index of the picture that is durable from there on)
        self.promises: list[tuple[int, int]] = []
        queue = store.open_queue(QUEUE)
        self.created = len(self.disk.log)
        self.load = Workload(queue, random.Random(seed))

        async def work() -> None:
            for _ in range(steps):
                act(self.load)
                if self.load.rng.random() < 0.4:
                    await store.sync()
                    self.promise()
                    if len(self.promises) % 8 == 0:
                        # On a busy machine the flush may lag behind the acks for the whole
                        # workload, and there would be no segment to cut at.
                        while store.statistics().journals_sealed_now:  # noqa: ASYNC110 by threads
                            await asyncio.sleep(0.001)
            await store.sync()
            self.promise()

        run_store(store, work)
        self.statistics = store.statistics()

    def promise(self) -> None:
        self.promises.append((len(self.disk.log), len(self.load.pictures) - 1))

    def promised_after(self, writes: int) -> int:
        return max((picture for after, picture in self.promises if after <= writes), default=0)

    def check_cut(self, disk: SimulatedDisk, writes: int, story: str) -> None:
        """Restarts twice on the disk as a cut has left it, and checks the recovered queue."""
        for _ in range(2):
            store = open_store(disk, self.limits)
            queue = store.open_queue(QUEUE)
            try:
                self.check(queue, writes)
            except AssertionError as error:
                raise AssertionError(f"{story}: {error}") from error
            # Not closed: the next restart is after a crash again.

    def check(self, queue: QueueStore, writes: int) -> None:
        queue.check()
        assert not queue.corruptions, queue.corruptions
        assert not queue.damaged
        candidates = self.load.pictures[self.promised_after(writes) :]
        found = [
            picture
            for picture in candidates
            if Picture.of(queue.state, queue.missing, picture.timeline).agrees_with(picture)
        ]
        assert found, (
            f"after {writes} writes: op {queue.state.last_number}, missing {queue.missing}, "
            f"promised op {candidates[0].number} missing {candidates[0].missing}"
        )
        # Fills between two syncs may each be there or not.
        lacking = RangeSet(found[0].missing)
        assert all(lacking.contains_all(first, last) for first, last in queue.missing)
        check_bodies(queue, self.load, found[-1].timeline)


def publish_and_consume(load: Workload) -> None:
    if load.rng.random() < 0.02:
        load.begin_epoch()
    else:
        load.random_op()


def fall_behind_and_catch_up(load: Workload) -> None:
    choice = load.rng.random()
    if choice < 0.06:
        load.install(cut=load.rng.randint(1, 200))
    elif choice < 0.3 and load.queue.missing:
        load.fill(150)
    else:
        load.random_op()


def cut_at_every_write(recording: Recording, *, stride: int, kept: list[Kept], seed: int) -> None:
    replayed = SimulatedDisk()
    rng = random.Random(seed)
    # What a check reads: the files, and the picture that has to be there at least.
    seen: set[tuple[bytes, int]] = set()
    for writes, call in enumerate(recording.disk.log):
        if writes % stride == 0:
            for what in kept:
                left = replayed.power_cut(what, rng)
                case = (left.identity(), recording.promised_after(writes))
                if case not in seen:
                    seen.add(case)
                    recording.check_cut(left, writes, f"cut after {writes} writes, {what} kept")
        replayed.do(call)


ACTS = [publish_and_consume, fall_behind_and_catch_up]
# The ways of a record to the disk: into its journal, or first into a commit log, so small that the
# two take turns; and the same in shares, of which a round takes few.
LOGGED = replace(LIMITS, commit_log_queues_min=1, commit_log_bytes_max=20_000)
IN_SHARES = {"share_bytes_max": 3_000, "round_bytes_max": 5_000}
WAYS = {
    "direct": LIMITS,
    "commit log": LOGGED,
    "direct, in shares": replace(LIMITS, **IN_SHARES),
    "commit log, in shares": replace(LOGGED, **IN_SHARES),
}


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("limits", WAYS.values(), ids=WAYS)
def test_power_cut_after_some_writes(act: Callable[[Workload], None], limits: StoreLimits) -> None:
    recording = Recording(seed=7, steps=80, act=act, limits=limits)
    assert recording.statistics.journals_sealed > 2
    assert recording.statistics.messages_elided > 0
    cut_at_every_write(recording, stride=5, kept=["nothing", "anything"], seed=1)


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("limits", WAYS.values(), ids=WAYS)
def test_power_cut_after_a_start_takes_back_nothing_of_what_was_found(
    act: Callable[[Workload], None], limits: StoreLimits
) -> None:
    """A killed process leaves readable bytes that are not durable; the next one reads them."""
    recording = Recording(seed=3, steps=60, act=act, limits=limits)
    for writes in range(recording.created, len(recording.disk.log)):
        disk = SimulatedDisk()
        for call in recording.disk.log[:writes]:
            disk.do(call)
        found = open_store(disk, limits).open_queue(QUEUE)
        recording.check(found, writes)
        left = disk.power_cut("nothing", random.Random(0))
        again = open_store(left, limits).open_queue(QUEUE)
        assert again.state.digest() == found.state.digest(), writes
        assert again.missing == found.missing, writes
        assert again.live_bytes == found.live_bytes, writes


WAY_AND_SEED = [
    ("direct", 0),
    ("direct", 1),
    ("commit log", 2),
    ("direct, in shares", 3),
    ("commit log, in shares", 4),
]


@pytest.mark.slow
@pytest.mark.compute
@pytest.mark.parametrize(("way", "seed"), WAY_AND_SEED)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_power_cut_after_every_write(act: Callable[[Workload], None], way: str, seed: int) -> None:
    recording = Recording(seed=seed, steps=100, act=act, limits=WAYS[way])
    assert recording.statistics.segment_bytes_written > 0
    kept: list[Kept] = ["nothing", "everything", "anything", "anything"]
    cut_at_every_write(recording, stride=1, kept=kept, seed=seed)


def test_segments_are_deleted_in_the_workload() -> None:
    """Else the tests above would not cut there."""
    recording = Recording(seed=1, steps=200, act=publish_and_consume)
    assert recording.statistics.segments_deleted > 0
    removed = [call.path.name for call in recording.disk.log if call.name == "remove"]
    assert any(name.endswith(".idx") for name in removed)
    assert any(name.endswith(".jif") for name in removed)


def cuts(disk: SimulatedDisk, first: int) -> Iterator[tuple[str, SimulatedDisk]]:
    """Disks as power cuts leave them, from the call `first` to the end, with stories of them."""
    before = SimulatedDisk()
    for call in disk.log[:first]:
        before.do(call)
    for calls in range(first, len(disk.log) + 1):
        ways: tuple[tuple[Kept, int], ...] = (("nothing", 1), ("everything", 1), ("anything", 20))
        for kept, seeds in ways:
            for seed in range(seeds):
                after = before.copy().power_cut(kept, random.Random(seed))
                yield f"{kept} kept after {calls} calls, seed {seed}", after
        if calls < len(disk.log):
            before.do(disk.log[calls])


@pytest.mark.parametrize("queues", [1, 9], ids=["one", "many at once"])
def test_a_partial_replica_stays_partial_whatever_cuts_the_power(queues: int) -> None:
    """From the moment at which all marks are durable. Its first op wrote its name once more, and
    a cut then lost the name, and with it the folder and the mark."""
    disk = SimulatedDisk()
    store = open_store(disk)
    names = [f"q{number}" for number in range(queues)]
    marked = 0

    async def work() -> None:
        nonlocal marked
        opened = [store.open_queue(name, partial=True, label="orders") for name in names]
        await store.sync_marks()
        marked = len(disk.log)
        for queue in opened:
            publish(queue, [b"x"])
        await store.sync()

    run_store(store, work)
    for story, after in cuts(disk, marked):
        again = open_store(after)
        assert all(again.open_queue(name).partial for name in names), story


@pytest.mark.logs("queue.name: .* the queue's name is lost")
def test_a_mark_keeps_its_folder_whatever_has_become_of_the_name() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)

    async def work() -> None:
        store.open_queue(QUEUE, partial=True)
        await store.sync_marks()

    run_store(store, work)
    (name,) = (path for path in disk.files() if path.name == NAME_NAME)
    disk.content(name)[-1] ^= 1
    damaged = len(disk.log)
    for _ in range(2):
        again = open_store(disk)
        assert [Path(report.file) for report in again.corruptions] == [name]
        assert disk.list(name.parent)
    again.open_queue(QUEUE)
    assert len(disk.log) > damaged


@pytest.mark.logs("queue.name: .* the queue's name is lost")
def test_a_name_that_was_lost_is_written_anew_whatever_cuts_the_power() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)

    async def work() -> None:
        publish(store.open_queue(QUEUE), [b"confirmed"])
        await store.sync()

    run_store(store, work)
    (name,) = (path for path in disk.files() if path.name == NAME_NAME)
    disk.write(name, 0, [b"?"], sync=True)
    damaged = len(disk.log)
    open_store(disk).open_queue(QUEUE)
    for story, after in cuts(disk, damaged):
        again = open_store(after)
        assert bodies(again.open_queue(QUEUE)) == {0: b"confirmed"}, story
        assert NAME_NAME in after.list(name.parent), story
    assert not open_store(disk).corruptions
