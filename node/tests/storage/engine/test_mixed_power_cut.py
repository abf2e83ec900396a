"""The power is cut at each write of a mixed workload; all that was reported durable is there.

Two queues: bodies that are embedded and stored, shared by both queues, transient ones;
consumers, requeues, purges, queues deleted and declared again, a mode switched, memory taken
away, another log installed; with the seals, flushes, compactions, folds and unfolds that come
of it (`test_workload_has_everything_in_it`). `hand` makes it the same each time.

After a cut, with any part of the unsynced bytes kept:

* each queue is at a moment that happened before the cut, and none before the last one that
  was reported durable when it came: nothing made up, nothing removed that comes back;
* all bodies of that moment are there, right after the start, and again after everything that
  nobody refers to has been deleted, and files compacted.

    python -m node.tests.storage.engine.test_mixed_power_cut 600

cuts for that many seconds, a new workload from a new seed each time.
"""

from __future__ import annotations

import logging
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

import pytest
from node.tests.storage.engine.hand import Hand, by_hand
from node.tests.storage.engine.machine import (
    NAMES,
    ROOT,
    TRANSIENT,
    Engine,
    check_references,
)
from node.tests.storage.engine.model import Moment, Queue, positions_of
from node.tests.storage.simulated_disk import SimulatedDisk

from ringmq_node.storage import QueueStore, Store, StoreLimits
from ringmq_node.storage.queue.index import RunIndex

LIMITS = StoreLimits(
    queue_memory_bytes_max=6_000,
    journal_entries_max=40,
    journal_bytes_max=4_000,
    flush_piece_bytes_max=1_000,
    sync_threads=2,
    sync_in_place_bytes_max=1_000,
    read_ahead_bytes=1_500,
    idle_ticks_max=1,
    idle_journal_bytes_min=200,
    embed_below=150,
    store_block_bytes_max=1_000,
    store_file_bytes_max=2_500,
    compaction_piece_bytes_max=600,
    recent_ids_max=50,
    store_cache_bytes_max=0,
    commit_log_bytes_max=4_000,
    write_behind_bytes_max=800,
)
# Of odd seeds: what has gathered waits in shares, and a round takes few of them.
IN_SHARES = replace(LIMITS, share_bytes_max=400, round_bytes_max=900)
SEGMENT_POSITIONS = 16
STEPS = 600
SEEDS = (1, 2, 3)
# Torn: all that was written is there, but the last write ends somewhere in its middle.
Left = Literal["nothing", "everything", "anything", "torn"]
ALL: list[Left] = ["nothing", "everything", "anything", "anything", "torn"]


@dataclass(eq=False)
class Life:
    """One queue from its declaration to its deletion, by how many changes the disk had seen."""

    queue: Queue
    begun: int
    declared: int
    deleting: int = 1 << 60
    deleted: int = 1 << 60
    # (changes until then, the moment that is durable from there on, by place in the history)
    promises: list[tuple[int, int]] = field(default_factory=list)
    # When each moment of the history came, until where that has been noted.
    times: list[int] = field(default_factory=list)

    def candidates(self, changes: int) -> list[Moment]:
        """The moments that may come back if the power is cut after so many changes."""
        first = max((at for when, at in self.promises if when <= changes), default=0)
        happened = sum(1 for when in self.times if when <= changes)
        return self.queue.history[first:happened]


class Recorder(Engine):
    """Notes when everything happened."""

    def __post_init__(self) -> None:
        self.lives: list[Life] = []
        super().__post_init__()

    def create(self, name: str) -> None:
        begun = len(self.disk.log)
        super().create(name)
        self.lives.append(Life(self.queues[name], begun, len(self.disk.log)))
        self.note()

    def delete(self, name: str) -> None:
        life = next(life for life in reversed(self.lives) if life.queue.name == name)
        life.deleting = len(self.disk.log)
        self.events["deleted"] += 1
        self.store.delete_queue(name)
        # As making the new one does: a thread may be writing to it, and until it has done so a
        # power cut may bring it back.
        self.store._deletions.wait(name)
        life.deleted = len(self.disk.log)
        self.create(name)

    def durable(self, store: QueueStore) -> None:
        queue = self.queues[store.queue]
        life = next(life for life in self.lives if life.queue is queue)
        queue.promised()
        life.promises.append((len(self.disk.log), len(queue.history) - len(queue.moments)))
        queue.watermarks()
        self.note()

    def note(self) -> None:
        for life in self.lives:
            new = len(life.queue.history) - len(life.times)
            life.times += [len(self.disk.log)] * new

    def work(self, steps: int) -> None:
        self.note()
        super().work(steps)
        self.note()


def random_step(engine: Recorder, rng: random.Random) -> None:
    """Queues that are filled and emptied again, mostly in order."""
    name = rng.choice(NAMES)
    queue = engine.queues[name]
    choice = rng.random()
    if choice < 0.35 and len(queue.messages) < 200:
        sizes = [rng.choice([10, 60, 300, 700])] * rng.choice([1, 2, 8])
        names = rng.choice([(name,), (name,), NAMES])
        engine.publish(names, sizes, transient=rng.random() < 0.15, properties=rng.randint(0, 2))
    elif choice < 0.42:
        if not queue.clients:
            engine.consume(name, rng.choice([5, 40]))
    elif choice < 0.68:
        if queue.clients:
            engine.settle_some(name, 0, rng.choice(["first", "all", "any"]), rng.random() < 0.15)
    elif choice < 0.73:
        engine.take(name, rng.choice([3, 60]))
    elif choice < 0.75:
        # Also messages that are on their way to the transient store, let go of a moment ago.
        engine.remember(0.0)
        engine.purge(name)
    elif choice < 0.77 and queue.clients:
        engine.disconnect(name, min(queue.clients))
    elif choice < 0.84:
        engine.remember(rng.choice([0.0, 0.0, 1.0]))
    elif choice < 0.87:
        first = rng.randrange(queue.store.state.next_position + 1)
        engine.browse(name, first, first + 20)
    elif choice < 0.88:
        engine.set_lazy(name, rng.random() < 0.5)
    elif choice < 0.89:
        engine.catch_up(name, rng.choice([0, 10]), rng.choice([0, 5]), rng.choice([0, 3]))
    elif choice < 0.90 and rng.random() < 0.3:
        engine.delete(name)
    elif choice < 0.93:
        engine.pass_time(1.0)
    elif choice < 0.96:
        engine.settle()
    elif len(queue.messages) < 200:
        # Messages that are removed before their round starts are elided.
        for names in ((name,), NAMES):
            engine.publish(names, [rng.choice([10, 700])] * 2)
        engine.purge(name)
        engine.publish((name,), [rng.choice([10, 700])] * 2)


@dataclass
class Recording:
    disk: SimulatedDisk
    lives: list[Life]
    events: Counter[str]

    @classmethod
    def of(cls, seed: int, steps: int) -> Recording:
        rng = random.Random(seed)
        with (
            by_hand(segment_positions=SEGMENT_POSITIONS) as hand,
            pytest.MonkeyPatch.context() as patch,
        ):
            events: Counter[str] = Counter()
            for name in ("fold", "unfold"):
                patch.setattr(RunIndex, name, counting(events, name))
            engine = Recorder(hand, IN_SHARES if seed % 2 else LIMITS, rng)
            for _ in range(steps):
                random_step(engine, rng)
                engine.note()
                engine.work(rng.choice([0, 1, 3, 10]))
            engine.settle()
            engine.note()
            engine.check()
            changes = len(engine.disk.log)
            engine.count()
            engine.abandon()
            del engine.disk.log[changes:]
            return cls(engine.disk, engine.lives, events + engine.events)

    def cut(
        self,
        *,
        kinds: list[Left],
        seed: int,
        stride: int = 1,
        first: int = 0,
        deadline: float = 1e12,
    ) -> int:
        """Cuts after every `stride`th change, from the `first` on; returns how many cuts."""
        rng = random.Random(seed)
        replayed = SimulatedDisk()
        cuts = 0
        for changes, call in enumerate(self.disk.log):
            if changes % stride == first and time.monotonic() < deadline:
                for left in kinds:
                    story = f"cut after {changes} changes, {left} kept, seed {seed}"
                    try:
                        self.check(cut_now(replayed, left, rng), changes)
                    except Exception as error:
                        raise AssertionError(story) from error
                    cuts += 1
            replayed.do(call)
        return cuts

    def check(self, disk: SimulatedDisk, changes: int) -> None:
        with by_hand(segment_positions=SEGMENT_POSITIONS) as hand:
            store = Store.open(ROOT, cluster_id="c", node="n", disk=disk, limits=LIMITS)
            names = store.queue_names()
            moments: dict[str, list[Moment]] = {}
            assert TRANSIENT not in names
            for name in sorted({*NAMES} - {TRANSIENT}):
                lives = [life for life in self.lives if life.queue.name == name]
                lives = [life for life in lives if life.begun <= changes < life.deleted]
                # One without a folder has to be one to which nothing durable was written.
                if name in names or any(
                    life.declared <= changes <= life.deleting for life in lives
                ):
                    queue = store.open_queue(name)
                    moments[name] = moments_of(queue, lives, changes)
            running = hand.loop.create_task(store.run())
            for _ in range(2):
                for name, found in moments.items():
                    check_bodies(store.open_queue(name), found)
                check_store(store, [store.open_queue(name) for name in moments])
                collect(hand, store)
            running.cancel()
            hand.turn()
            hand.drop()


def counting(events: Counter[str], name: str) -> object:
    real = getattr(RunIndex, name)

    def counted(*arguments: object) -> object:
        events[name] += 1
        return real(*arguments)

    return counted


def cut_now(disk: SimulatedDisk, left: Left, rng: random.Random) -> SimulatedDisk:
    if left != "torn":
        return disk.power_cut(left, rng)
    after = disk.power_cut("everything", rng)
    last = disk.log[-1] if disk.log else None
    if last is not None and last.name == "write" and last.data:
        content = after.content(last.path)
        end = last.offset + len(last.data)
        if len(content) == end:
            del content[last.offset + rng.randrange(len(last.data)) :]
    return after


def moments_of(queue: QueueStore, lives: list[Life], changes: int) -> list[Moment]:
    """The moments that `queue` may be at; none if nobody knows of it yet."""
    queue.check()
    state = queue.state
    assert not queue.corruptions, queue.corruptions
    assert not queue.damaged
    assert not state.transient
    found: list[Moment] = []
    for life in lives:
        candidates = life.candidates(changes)
        found = [moment for moment in candidates if moment.is_state(state)]
        if found:
            return found
    # A queue whose declaration was not reported yet may be there, and empty.
    told = any(life.declared <= changes for life in lives)
    assert not told, f"op {state.last_number}, live {state.live} never was, or was long ago"
    assert state.last_number == 0
    return []


def check_bodies(queue: QueueStore, found: list[Moment]) -> None:
    if not found:
        return
    # They differ in missing positions only: of several fills each may have come or not.
    messages = found[-1].messages
    missing = positions_of(queue.missing)
    assert {*missing} <= max((moment.missing for moment in found), key=len)
    there = sorted(messages.keys() - {*missing})
    position = 0
    read: list[int] = []
    while runs := queue.read(position, 1 << 62, bytes_max=2_000, messages_max=50):
        for run in runs:
            for at, body in enumerate(run.block.bodies(), run.first_position):
                assert body == messages[at].body, at
                assert run.redelivered == messages[at].redelivered, at
                read.append(at)
        position = runs[-1].last_position + 1
    assert read == there


def check_store(store: Store, queues: list[QueueStore]) -> None:
    for transient in (False, True):
        store.messages(transient=transient).check()
    for queue in queues:
        queue.check()
    check_references(store, queues)


def collect(hand: Hand, store: Store) -> None:
    """Has the message store delete files without references, and compact those with garbage."""
    hand.settle()
    for _ in range(3):
        hand.pass_time(2.0)
        hand.settle()
    assert store.failure is None


@cache
def recording(seed: int, steps: int) -> Recording:
    return Recording.of(seed, steps)


@pytest.mark.slow
def test_workload_has_everything_in_it() -> None:
    """Else the cuts below would not be in the midst of it."""
    recordings = [recording(seed, STEPS) for seed in SEEDS]
    events = sum((made.events for made in recordings), Counter[str]())
    removed = [call.path.name for call in recordings[0].disk.log if call.name == "remove"]
    for event in (
        "journals_sealed",
        "messages_elided",
        "segments_deleted",
        "compactions",
        "files_deleted",
        "holes",
        "records_shared",
        "paged",
        "blocks_read",
        "deleted",
        "fold",
        "unfold",
    ):
        assert events[event] > 0, event
    for suffix in (".jif", ".idx", ".rdq", ".map"):
        assert any(name.endswith(suffix) for name in removed), suffix


@pytest.mark.slow
def test_power_cut_after_some_changes() -> None:
    recording(1, STEPS).cut(kinds=["nothing", "anything", "torn"], seed=3, stride=47)


@pytest.mark.slow
@pytest.mark.compute
def test_power_cut_after_every_change() -> None:
    """Each prefix of the writes; from one to the next, other unsynced bytes are kept."""
    made = recording(1, STEPS)
    cuts = sum(
        made.cut(kinds=[left], seed=5, stride=len(ALL), first=first)
        for first, left in enumerate(ALL)
    )
    assert cuts == len(made.disk.log) > 2000


@pytest.mark.slow
@pytest.mark.compute
@pytest.mark.parametrize("seed", SEEDS[1:])
def test_power_cut_after_many_changes(seed: int) -> None:
    assert recording(seed, STEPS).cut(kinds=ALL, seed=seed, stride=11) > 300


def main() -> int:
    logging.disable(logging.CRITICAL)
    deadline = time.monotonic() + float(sys.argv[1] if len(sys.argv) > 1 else 60)
    first = seed = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    cuts = 0
    events: Counter[str] = Counter()
    while time.monotonic() < deadline:
        made = Recording.of(seed, STEPS)
        events += made.events
        # Another part of the writes each time.
        cuts += made.cut(kinds=ALL, seed=seed, stride=1 + seed % 5, deadline=deadline)
        seed += 1
    print(f"{cuts} cuts of {seed - first} workloads", dict(events))
    return 0


if __name__ == "__main__":
    sys.exit(main())
