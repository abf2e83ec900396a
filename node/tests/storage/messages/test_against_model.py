"""A message store against a dictionary: any order of calls, restarts and steps of compaction."""

from __future__ import annotations

import random

import pytest
from node.tests.storage.messages.verbs import SMALL, block_of, commit, open_store
from node.tests.storage.simulated_disk import SimulatedDisk

from ringmq_node.queue.block import Block
from ringmq_node.storage.format.references import RecordLocation
from ringmq_node.storage.limits import StoreLimits
from ringmq_node.storage.messages import CompactionJob, compact

CACHED = StoreLimits(
    store_file_bytes_max=4096,
    compaction_piece_bytes_max=500,
    store_cache_bytes_max=3000,
    recent_ids_max=8,
)


class Model:
    """The index of a queue, as a list: each reference with the block that it stands for."""

    def __init__(self, seed: int, limits: StoreLimits) -> None:
        self.rng = random.Random(seed)
        self.limits = limits
        self.disk = SimulatedDisk()
        self.store = open_store(self.disk, limits)
        self.store.start_collecting()
        self.references: list[tuple[RecordLocation, Block]] = []
        self.ids: list[tuple[bytes, Block]] = []
        self.job: CompactionJob | None = None
        self.number = 0
        self.now = 0.0
        self.restarts = 0
        # Every map that was written.
        self.maps: list[str] = []

    def run(self, steps: int) -> None:
        acts = [
            (30, self.put),
            (8, self.put_again),
            (6, self.share),
            (34, self.release),
            (8, self.commit),
            (30, self.plan),
            (30, self.compact),
            (10, self.read),
            (1, self.restart),
        ]
        for _ in range(steps):
            (act,) = self.rng.choices([act for _, act in acts], [w for w, _ in acts])
            act()
            self.store.check()
        self.restart()

    def put(self) -> None:
        self.number += 1
        size = self.rng.choice([30, 200, 200, 600, 5000 if self.rng.random() < 0.1 else 900])
        block = block_of(self.number, size)
        message_id = self.rng.choice([b"", self.number.to_bytes(16, "big")])
        location, kept = self.store.put(block, message_id)
        assert kept is block
        assert all(location != other for other, _ in self.references)
        self.references.append((location, block))
        if message_id:
            self.ids = [*self.ids[-5:], (message_id, block)]

    def put_again(self) -> None:
        if self.ids:
            message_id, block = self.rng.choice(self.ids)
            location, kept = self.store.put(Block(block.data), message_id)
            assert kept.data == block.data
            self.references.append((location, block))

    def share(self) -> None:
        if self.references:
            location, block = self.rng.choice(self.references)
            self.store.share(location)
            self.references.append((location, block))

    def release(self) -> None:
        most = 6 if len(self.references) > 60 else 2
        for _ in range(self.rng.randrange(most) if self.references else 0):
            # Mostly old ones, as a consumer would. Some stay for long, and are moved often.
            index = int(len(self.references) * self.rng.random() ** 3)
            location, _ = self.references[index]
            if location.ordinal != 1 or self.rng.random() < 0.1:
                del self.references[index]
                self.store.release(location)
            if not self.references:
                return

    def commit(self) -> None:
        commit(self.store, self.disk)
        assert all(self.store.is_durable(location) for location, _ in self.references)

    def plan(self) -> None:
        if self.job is None:
            self.now += 1.0
            self.job = self.store.plan(self.now)

    def compact(self) -> None:
        if self.job is not None:
            compact(self.disk, self.job)
            if self.rng.random() < 0.5:
                # Time goes by between the thread's end and the loop's hearing of it.
                self.release()
                self.put()
            self.read()
            self.store.done(self.job)
            self.job = None
            self.read()

    def read(self) -> None:
        for location, block in self.rng.sample(self.references, min(5, len(self.references))):
            assert self.store.read(location).data == block.data

    def restart(self) -> None:
        self.restarts += 1
        self.commit()
        self.job = None
        self.ids = []
        self.maps += [call.new.name for call in self.disk.log if call.new is not None]
        self.disk = self.disk.copy()
        self.store = open_store(self.disk, self.limits)
        half = len(self.references) // 2
        for location, _ in self.references[:half]:
            self.store.share(location)
        # A queue may put messages before all other queues are opened and have shared theirs.
        self.put()
        for location, _ in self.references[half:-1]:
            self.store.share(location)
        self.store.start_collecting()
        self.store.check()
        for location, block in self.references:
            assert self.store.read(location).data == block.data
        held = {location: len(block.data) for location, block in self.references}
        statistics = self.store.statistics()
        assert statistics.records_now == len(held)
        assert statistics.live_bytes_now == sum(location.length for location in held)


@pytest.mark.parametrize("limits", [SMALL, CACHED], ids=["no cache", "cache"])
@pytest.mark.parametrize("seed", range(6))
def test_store_agrees_with_the_model(seed: int, limits: StoreLimits) -> None:
    model = Model(seed, limits)
    model.run(900)


@pytest.mark.slow
@pytest.mark.compute
@pytest.mark.parametrize("seed", range(100, 108))
def test_store_agrees_with_the_model_for_long(seed: int) -> None:
    model = Model(seed, SMALL if seed % 2 else CACHED)
    model.run(4000)
    assert model.restarts > 5


def test_the_model_compacts_again_what_was_compacted() -> None:
    """Else the tests above would not show much."""
    model = Model(1, SMALL)
    model.run(3000)
    assert len({*model.maps}) > 30
    assert len(model.maps) - len({*model.maps}) > 5, "no map was written a second time"
