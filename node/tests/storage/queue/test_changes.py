"""The changes that a state makes to the bodies of a queue are computed before it is installed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest
from loops import run, turns_beside
from node.tests.storage.simulated_disk import SimulatedDisk
from node.tests.storage.workload import QUEUE, bodies, open_store, run_store

from ringmq_base.pieces import timed_by
from ringmq_base.ranges import RangeSet
from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage import QueueStore, StoreLimits
from ringmq_node.storage.errors import CorruptionReport
from ringmq_node.storage.queue.changes import WINDOW_RANGES, BodyChanges
from ringmq_node.storage.queue.entries import IndexEntry

BATCH = 512
# Seals no journal, so that the entries stay in memory.
LIMITS = StoreLimits(journal_entries_max=1 << 30)


def append(queue: QueueStore, op: Op) -> None:
    queue.append(queue.state.last_number + 1, op, ops.encode(op))


def publish(queue: QueueStore, count: int) -> None:
    first = queue.state.next_position
    append(queue, Publish(first, Block.of([b"%d" % at for at in range(first, first + count)])))


def with_holes(queue: QueueStore, ranges: int, *, batch: int = BATCH) -> None:
    """Of so many ranges of one message each."""
    for _ in range(0, 2 * ranges, batch):
        publish(queue, batch)
    end = queue.state.next_position
    append(queue, Remove(tuple((at, at) for at in range(1, end, 2))))
    assert queue.state.live.range_count == ranges


def without(queue: QueueStore, gone: RangeSet) -> ReplicatedState:
    """The state of another log, that has had these messages removed."""
    state = queue.state.copy()
    state.apply(state.last_number + 1, Remove(tuple(gone)))
    return state


def body_bytes(positions: RangeSet) -> int:
    return sum(len(b"%d" % at) for first, last in positions for at in range(first, last + 1))


def test_each_step_looks_at_a_bounded_part_and_nothing_is_left_for_the_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the ranges are gone. To find which ones took 200 ms of one piece, of 200 000."""
    ranges = 8 * WINDOW_RANGES
    gone = RangeSet((at, at) for at in range(0, 2 * ranges, 4))
    compared, judged = [0], [0]
    changes_to, living = RangeSet.changes_to, IndexEntry.living

    def counted_changes(self: RangeSet, other: RangeSet) -> tuple[RangeSet, RangeSet]:
        compared[-1] += self.range_count + other.range_count
        return changes_to(self, other)

    def counted_living(self: IndexEntry, live: RangeSet) -> tuple[int, int]:
        judged[-1] += self.count
        return living(self, live)

    async def main() -> None:
        queue = open_store(SimulatedDisk(), LIMITS).open_queue(QUEUE)
        with_holes(queue, ranges)
        state = without(queue, gone)
        keep_below = state.next_position - 10
        lost = RangeSet(state.live.intersection(keep_below, state.next_position))
        monkeypatch.setattr(RangeSet, "changes_to", counted_changes)
        monkeypatch.setattr(IndexEntry, "living", counted_living)
        changes = BodyChanges(queue.bodies, state, keep_below, durable=True)
        for _ in changes.steps():
            compared.append(0)
            judged.append(0)
        assert sum(compared) >= ranges * 3 // 2
        assert max(compared) <= 2 * (WINDOW_RANGES + 1)
        assert sum(judged) >= 2 * 2 * ranges - 100
        assert max(judged) <= 2 * BATCH
        bytes_before = queue.live_bytes
        with monkeypatch.context() as patched:
            patched.setattr(RangeSet, "changes_to", None)
            patched.setattr(IndexEntry, "living", None)
            queue.install(state, keep_below=keep_below, changes=changes)
        assert queue.missing == lost
        assert queue.live_bytes == bytes_before - body_bytes(gone) - body_bytes(lost)
        queue.check()

    run(main())


def test_others_run_while_the_changes_are_computed() -> None:
    async def main() -> None:
        queue = open_store(SimulatedDisk(), LIMITS).open_queue(QUEUE)
        with_holes(queue, 4 * WINDOW_RANGES)
        state = without(queue, RangeSet((at, at) for at in range(0, 8 * WINDOW_RANGES, 4)))
        # Each look at the clock ends a piece.
        now = itertools.count()
        async with turns_beside() as turns:
            with timed_by(lambda: next(now)):
                changes = await queue.changes_to(state, keep_below=state.next_position)
        assert turns() >= 8
        assert changes.are_current(state, state.next_position)

    run(main())


def one_more_is_removed(queue: QueueStore, state: ReplicatedState) -> None:
    append(queue, Remove(((8, 8),)))


def one_more_is_published(queue: QueueStore, state: ReplicatedState) -> None:
    publish(queue, 1)


def the_new_state_goes_on(queue: QueueStore, state: ReplicatedState) -> None:
    state.apply(state.last_number + 1, Remove(((10, 10),)))


def a_body_is_lost(queue: QueueStore, state: ReplicatedState) -> None:
    entry = next(iter(queue.bodies.index.overlapping(0, 0)))
    queue.bodies.lose(entry, CorruptionReport("journal.jif", 0, 1, "is damaged"))


def an_entry_is_cut_in_two(queue: QueueStore, state: ReplicatedState) -> None:
    """As by a flush, which leaves out a message that is dead here: the ring still has it."""
    entry = next(iter(queue.bodies.index.overlapping(0, 0)))
    parts: list[IndexEntry] = []
    for first, last in ((0, 2), (4, entry.last)):
        if live := queue.state.live.count_in(first, last):
            parts.append(entry.part(first, last, live))
            parts[-1].block, parts[-1].sizes = entry.block, None
    queue.bodies.replace([entry], parts)


@pytest.mark.parametrize(
    "change",
    [
        one_more_is_removed,
        one_more_is_published,
        the_new_state_goes_on,
        a_body_is_lost,
        an_entry_is_cut_in_two,
    ],
    ids=lambda change: change.__name__,
)
@pytest.mark.parametrize("gone", [range(0, 80, 4), range(1)], ids=["many gone", "one gone"])
@pytest.mark.may_log("journal.jif: 1 bytes at 0: is damaged")
def test_a_change_since_they_were_computed_is_noticed(
    change: Callable[[QueueStore, ReplicatedState], None], gone: range
) -> None:
    async def main() -> None:
        queue = open_store(SimulatedDisk(), LIMITS).open_queue(QUEUE)
        with_holes(queue, 40, batch=20)
        state = without(queue, RangeSet((at, at) for at in gone))
        # Messages that were removed here, and that the ring still has.
        state.live.add(3, 3)
        keep_below = 70
        changes = await queue.changes_to(state, keep_below=keep_below)
        change(queue, state)
        assert not changes.are_current(state, keep_below)
        there = {at for entry in queue.bodies.index for at in range(entry.first, entry.last + 1)}
        queue.install(state, keep_below=keep_below, changes=changes)
        queue.check()
        live = {at for first, last in state.live for at in range(first, last + 1)}
        kept_here = {at for at in live & there if at < keep_below}
        assert set(bodies(queue)) == kept_here
        assert queue.missing == RangeSet((at, at) for at in sorted(live - kept_here))

    run(main())


def test_changes_of_another_install_are_not_taken() -> None:
    async def main() -> None:
        queue = open_store(SimulatedDisk(), LIMITS).open_queue(QUEUE)
        with_holes(queue, 40, batch=20)
        state = without(queue, RangeSet([(0, 9)]))
        other = without(queue, RangeSet([(20, 29)]))
        changes = await queue.changes_to(other, keep_below=80)
        assert not changes.are_current(state, 80)
        assert not changes.are_current(other, 79)
        queue.install(state, keep_below=80, changes=changes)
        queue.check()
        assert not queue.missing
        assert set(bodies(queue)) == set(range(10, 80, 2))

    run(main())


def test_no_flush_begins_while_the_changes_are_computed() -> None:
    """It would move entries that were judged, time and again: the queue of a node that has just
    started flushes the journals that it has found."""
    store = open_store(SimulatedDisk(), StoreLimits(journal_entries_max=100, sync_threads=1))
    queue = store.open_queue(QUEUE)

    async def work() -> None:
        state: ReplicatedState | None = None
        for _ in range(10):
            publish(queue, 60)
        await store.sync()
        state = without(queue, RangeSet([(0, 9)]))
        plans: list[bool] = []
        unfolded = BodyChanges._unfold

        def watched(self: BodyChanges) -> object:
            plans.append(queue.plan_flush() is None)
            return unfolded(self)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(BodyChanges, "_unfold", watched)
            changes = await queue.changes_to(state, keep_below=600)
        assert plans
        assert all(plans)
        queue.install(state, keep_below=600, changes=changes)
        async with asyncio.timeout(20):
            await store.sync()
            while store.statistics().journals_sealed_now:  # noqa: ASYNC110 - has no event
                await asyncio.sleep(0)
        queue.check()
        assert set(bodies(queue)) == set(range(10, 600))

    run_store(store, work)


# -- the settlement: lists and sums of the index, made before the install

Blocks = dict[IndexEntry, Block]


def nothing(queue: QueueStore, blocks: Blocks) -> None:
    pass


def a_block_goes(queue: QueueStore, blocks: Blocks) -> None:
    index = queue.bodies.index
    index.detach(next(entry for entry in index if entry.block is not None))


def a_block_comes(queue: QueueStore, blocks: Blocks) -> None:
    index = queue.bodies.index
    entry = next(entry for entry in index if entry.block is None)
    index.attach(entry, blocks[entry])


def one_comes_and_another_goes(queue: QueueStore, blocks: Blocks) -> None:
    """Of messages that are alike: all sums are what they were. The one that comes dies, or has its
    end cut off."""
    index = queue.bodies.index
    entries = [*index]
    for entry in (entries[0], entries[-1]):
        other = next(each for each in entries if (each.block is None) != (entry.block is None))
        for each in (entry, other):
            if each.block is None:
                index.attach(each, blocks[each])
            else:
                index.detach(each)


def one_message_is_removed(queue: QueueStore, blocks: Blocks) -> None:
    append(queue, Remove(((9, 9),)))


@pytest.mark.parametrize(
    "change",
    [
        nothing,
        a_block_goes,
        a_block_comes,
        one_comes_and_another_goes,
        one_message_is_removed,
    ],
    ids=lambda change: change.__name__,
)
@pytest.mark.parametrize("batch", [1, 20], ids=["single messages", "batches"])
def test_a_change_between_any_two_steps_leaves_the_sums_right(
    change: Callable[[QueueStore, Blocks], None], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`check` counts them anew. Every 4th message is gone, and all from 70 on."""
    monkeypatch.setattr("ringmq_node.storage.queue.changes._ENTRIES_STEP", 7)

    def with_the_change_at(step: int) -> bool:
        """Whether there is such a step."""
        queue = open_store(SimulatedDisk(), LIMITS).open_queue(QUEUE)
        for _ in range(0, 80, batch):
            append(queue, Publish(queue.state.next_position, Block.of([b"alike"] * batch)))
        queue.committed(queue.take())
        blocks = {entry: entry.block for entry in queue.bodies.index if entry.block is not None}
        for entry in [*blocks][::3]:
            queue.bodies.index.detach(entry)
        state = without(queue, RangeSet((at, at) for at in range(0, 80, 4)))
        changes = BodyChanges(queue.bodies, state, 70, durable=True)
        count = 0
        for _ in changes.steps():
            if count == step:
                change(queue, blocks)
            count += 1
        queue.bodies.account()
        queue.install(state, keep_below=70, changes=changes)
        queue.check()
        for _ in changes.let_go():
            queue.check()
        is_lacking = change is one_message_is_removed and step < count and batch == 1
        assert queue.bodies.index.messages == 70 - 18 - is_lacking
        assert all(entry.block is None for entry in blocks if not entry.live)
        (journal,) = {entry.file for entry in blocks}
        assert journal is not None
        assert journal.holders == len(queue.bodies.index)
        return step < count

    steps = next(step for step in itertools.count() if not with_the_change_at(step))
    assert steps > 80 // batch // 7
