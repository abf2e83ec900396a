"""A queue under load, and a plain model beside it that remembers every moment.

`Workload` appends ops to a real `QueueStore` and to a dict. After each op it takes a `Picture` of
the queue that a restart at this moment brings back (without transient messages). So the queue that
a crash leaves can be looked up: is it one of these moments, and a late enough one?
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import loops

from ringmq_base.ranges import RangeSet
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove, Requeue
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage import Disk, QueueStore, Store, StoreLimits

ROOT = Path("/data")
QUEUE = "orders"
# So small that a short workload seals, flushes, and deletes segments.
LIMITS = StoreLimits(
    queue_memory_bytes_max=40_000,
    journal_entries_max=1_500,
    journal_bytes_max=25_000,
    flush_piece_bytes_max=8_000,
    sync_threads=2,
)


def open_store(disk: Disk, limits: StoreLimits = LIMITS) -> Store:
    return Store.open(ROOT, cluster_id="c", node="n1", disk=disk, limits=limits)


def run_store(store: Store, work: Callable[[], Awaitable[None]], *, timeout_s: float = 60) -> None:
    """Runs `work` beside `store.run`, then closes the store."""

    async def main() -> None:
        async with asyncio.timeout(timeout_s):
            running = asyncio.create_task(store.run())
            await asyncio.sleep(0)
            try:
                await work()
            finally:
                store.close()
                await running

    loops.run(main())


def bodies(queue: QueueStore, *, bytes_max: int = 5_000) -> dict[int, bytes]:
    """Everything that can be read, by position."""
    found: dict[int, bytes] = {}
    position = 0
    while runs := queue.read(position, 1 << 62, bytes_max=bytes_max, messages_max=700):
        for run in runs:
            positions = range(run.first_position, run.last_position + 1)
            found.update(zip(positions, run.block.bodies(), strict=True))
            assert all((run.redelivered == (p in queue.state.redelivered)) for p in positions)
        position = runs[-1].last_position + 1
    return found


@dataclass(frozen=True)
class Picture:
    """The queue that a restart brings back, if it brings back this moment."""

    timeline: int
    number: int
    epoch: int
    next_position: int
    live: tuple[tuple[int, int], ...]
    redelivered: tuple[tuple[int, int], ...]
    producers: tuple[tuple[bytes, int], ...]
    missing: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, state: ReplicatedState, missing: RangeSet, timeline: int) -> Picture:
        sets = [state.live.copy(), state.redelivered.copy(), missing.copy()]
        for ranges in sets:
            ranges.subtract(state.transient)
        live, redelivered, lacking = (tuple(ranges) for ranges in sets)
        return cls(
            timeline,
            state.last_number,
            state.epoch,
            state.next_position,
            live,
            redelivered,
            tuple(state.producers.items()),
            lacking,
        )

    def agrees_with(self, other: Picture) -> bool:
        """Whether they differ in missing positions only."""
        return replace(self, missing=()) == replace(other, missing=())


@dataclass
class Workload:
    """Random ops from one seed. `pictures` are all moments, in order."""

    queue: QueueStore
    rng: random.Random
    body_bytes: int = 20
    batch_max: int = 1500
    timeline: int = 0
    # (timeline, position) -> body; a position is given out again in another timeline.
    bodies: dict[tuple[int, int], bytes] = field(default_factory=dict)
    origin: dict[int, int] = field(default_factory=dict)
    pictures: list[Picture] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._take()

    def _take(self) -> None:
        self.pictures.append(Picture.of(self.queue.state, self.queue.missing, self.timeline))

    def _append(self, op: Op) -> None:
        self.queue.append(self.queue.state.last_number + 1, op, ops.encode(op))
        self._take()

    def begin_epoch(self) -> None:
        self.queue.begin_epoch(self.queue.state.epoch + 1)
        self._take()

    def publish(self, count: int, *, transient: bool = False) -> None:
        first = self.queue.state.next_position
        batch = [self.new_body(position) for position in range(first, first + count)]
        producer = self.rng.choice([b"", b"p1", b"p2"])
        self._append(Publish(first, Block.of(batch), transient, producer, first))

    def new_body(self, position: int) -> bytes:
        body = f"{self.timeline}:{position}:".encode().ljust(self.rng.randint(8, self.body_bytes))
        self.bodies[self.timeline, position] = body
        self.origin[position] = self.timeline
        return body

    def body(self, position: int) -> bytes:
        return self.bodies[self.origin[position], position]

    def remove(self, *ranges: tuple[int, int]) -> None:
        self._append(Remove(ranges))

    def requeue(self, *ranges: tuple[int, int]) -> None:
        self._append(Requeue(ranges))

    def random_op(self) -> None:
        """Publishes, or removes from the head; at times removes with gaps, or requeues."""
        live = self.queue.state.live
        choice = self.rng.random()
        if choice < 0.5 or not live:
            size = self.rng.choice([1, 3, 40, self.batch_max])
            self.publish(self.rng.randint(1, size), transient=self.rng.random() < 0.15)
        elif choice < 0.8:
            self.remove((live.first, live.first + self.rng.randint(0, self.batch_max)))
        elif choice < 0.9:
            first = self.rng.randint(live.first, live.last)
            self.remove(*((at, at) for at in range(first, first + 30, 2)))
        else:
            first = self.rng.randint(live.first, live.last)
            self.requeue((first, first + self.rng.randint(0, 50)))

    def install(self, *, cut: int) -> None:
        """The ring agreed on a log that parted from ours `cut` positions ago."""
        old = self.queue.state
        keep_below = max(0, old.next_position - cut)
        state = ReplicatedState(
            last_number=old.last_number + self.rng.randint(-3, 3) + 5,
            next_position=keep_below,
            epochs=[*old.epochs],
            live=RangeSet(old.live.intersection(0, keep_below - 1) if keep_below else ()),
        )
        self.timeline += 1
        count = self.rng.randint(1, 2 * cut)
        state.live.add(keep_below, keep_below + count - 1)
        state.next_position += count
        state.begin_epoch(old.epoch + 1)
        for position in range(keep_below, keep_below + count):
            self.new_body(position)
        self.queue.install(state, keep_below=keep_below)
        self._take()

    def fill(self, count_max: int) -> None:
        """Fetches some bodies that are missing, and some that aren't."""
        missing = self.queue.missing
        first = max(0, missing.first - 2)
        stop = min(missing.last + 1, first + count_max)
        if any(position not in self.origin for position in range(first, stop)):
            first = missing.first
        block = Block.of([self.body(position) for position in range(first, stop)])
        self.queue.fill(first, block, transient=False)
        self._take()


def check_bodies(queue: QueueStore, load: Workload, timeline: int) -> None:
    """Each body that is there is the one that was published there, in this timeline."""
    found = bodies(queue)
    expected = queue.state.live.copy()
    expected.subtract(queue.missing)
    assert len(found) == len(expected)
    for position, body in found.items():
        assert position in expected
        newest = max(t for t in range(timeline + 1) if (t, position) in load.bodies)
        assert body == load.bodies[newest, position], position
