"""Bodies that are removed before their round starts never reach the disk."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from expected_logs import DAMAGE
from node.tests.storage.simulated_disk import Call, SimulatedDisk
from node.tests.storage.workload import QUEUE, bodies, open_store, run_store

from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Op, Publish, Remove, Requeue
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage import QueueStore, Store, StoreLimits

EMBEDDED = StoreLimits(embed_below=1 << 20)
# Two messages of 40 bytes in each record of the message store.
STORED = StoreLimits(embed_below=0, store_block_bytes_max=110, store_cache_bytes_max=0)
BOTH = pytest.mark.parametrize("limits", [EMBEDDED, STORED], ids=["embedded", "stored"])


def append(queue: QueueStore, op: Op) -> None:
    queue.append(queue.state.last_number + 1, op, ops.encode(op))


def publish(queue: QueueStore, name: str, count: int = 6) -> None:
    first = queue.state.next_position
    batch = [f"{name}-{first + at}".encode().ljust(40, b".") for at in range(count)]
    append(queue, Publish(first, Block.of(batch), False, b"p", first))


@dataclass(frozen=True)
class Round:
    """A round, behind one that has positions 0 and 1 in it."""

    store: Store
    queue: QueueStore
    before: SimulatedDisk
    after: SimulatedDisk
    # When the store was closed.
    ended: SimulatedDisk
    calls: list[Call]

    @property
    def written(self) -> bytes:
        return b"".join(call.data for call in self.calls if call.name == "write")


def in_one_round(limits: StoreLimits, act: Callable[[QueueStore], None]) -> Round:
    disk = SimulatedDisk()
    store = open_store(disk, limits)
    queue = store.open_queue(QUEUE)
    made: list[Round] = []

    async def work() -> None:
        publish(queue, "before", 2)
        await store.sync()
        before, log = disk.copy(), len(disk.log)
        act(queue)
        queue.check()
        await store.sync()
        queue.check()
        made.append(Round(store, queue, before, disk.copy(), disk, disk.log[log:]))

    run_store(store, work)
    return made[0]


def opened(disk: SimulatedDisk, limits: StoreLimits) -> QueueStore:
    queue = open_store(disk, limits).open_queue(QUEUE)
    queue.check()
    assert not queue.corruptions
    assert not queue.damaged
    assert not queue.missing
    return queue


def publish_and_remove_among_others(queue: QueueStore) -> None:
    publish(queue, "first")
    publish(queue, "gone")
    append(queue, Requeue(((4, 5), (8, 9))))
    publish(queue, "second")
    append(queue, Remove(((8, 10), (12, 13))))
    publish(queue, "gone")
    queue.begin_epoch(7)
    append(queue, Remove(((0, 0), (11, 11), (20, 25))))
    publish(queue, "third", 1)


@BOTH
def test_what_is_removed_in_its_round_never_reaches_the_disk(limits: StoreLimits) -> None:
    made = in_one_round(limits, publish_and_remove_among_others)
    assert b"gone-" not in made.written
    for name in (b"first-2", b"second-19", b"third-26"):
        assert made.written.count(name) == 1, name
    found = made.store.statistics()
    assert found.messages_elided == 12
    assert found.body_bytes_elided == made.queue.written.elided_bytes == 12 * 40
    assert found.messages.holes == (6 if limits is STORED else 0)
    again = opened(made.after, limits)
    assert again.state.digest() == made.queue.state.digest()
    assert again.state.producers == made.queue.state.producers
    kept = bodies(again)
    assert [*kept] == [*range(1, 8), *range(14, 20), 26]
    assert kept[26].startswith(b"third-26")


@BOTH
def test_removed_bodies_cost_their_headers_only(limits: StoreLimits) -> None:
    def act(queue: QueueStore) -> None:
        publish(queue, "gone", 1000)
        append(queue, Remove(((2, 1001),)))

    made = in_one_round(limits, act)
    # In the message store 500 headers of holes.
    assert len(made.written) < (23_000 if limits is STORED else 200)
    # The two checkpoints that it begins with, and two records; the bodies were 40 kB.
    assert made.store.counters.journal_bytes < 650


@BOTH
@pytest.mark.slow
def test_round_torn_anywhere_leaves_no_message_without_its_body(limits: StoreLimits) -> None:
    """With each beginning of a round's write to the journal, the state is that of an op."""
    states: dict[int, str] = {}

    def act(queue: QueueStore) -> None:
        steps: list[Callable[[], None]] = [
            lambda: None,
            lambda: publish(queue, "first"),
            lambda: publish(queue, "gone"),
            lambda: append(queue, Remove(((2, 2), (8, 13)))),
            lambda: publish(queue, "second"),
        ]
        for step in steps:
            step()
            states[queue.state.last_number] = queue.state.digest()

    made = in_one_round(limits, act)
    at = next(at for at, call in enumerate(made.calls) if call.path.name == "journal.jif")
    call = made.calls[at]
    seen: set[int] = set()
    for size in range(len(call.data) + 1):
        left = made.before.copy()
        for earlier in made.calls[:at]:
            left.do(earlier)
        left.write(call.path, call.offset, [call.data[:size]])
        left = left.power_cut("everything", random.Random(0))
        for _ in range(2):
            found = opened(left, limits)
            number = found.state.last_number
            seen.add(number)
            assert found.state.digest() == states[number], size
            assert len(bodies(found)) == len(found.state.live)
    # The publish whose bodies are not there counts with all of its round only.
    assert seen == {1, 2, 5}


@BOTH
def test_positions_of_a_round_that_did_not_count_are_given_out_again(limits: StoreLimits) -> None:
    def act(queue: QueueStore) -> None:
        publish(queue, "gone")
        append(queue, Remove(((2, 7),)))
        publish(queue, "lost")

    made = in_one_round(limits, act)
    journal = made.calls[-2]
    assert (journal.name, journal.path.name) == ("write", "journal.jif")
    left = made.before.copy()
    for call in made.calls[:-2]:
        left.do(call)
    left.write(journal.path, journal.offset, [journal.data[:-1]])
    store = open_store(left, limits)
    queue = store.open_queue(QUEUE)
    assert queue.torn_bytes == len(journal.data) - 1
    assert queue.state.next_position == 2

    async def work() -> None:
        publish(queue, "again", 12)
        await store.sync()

    run_store(store, work)
    found = bodies(opened(left, limits))
    assert [*found] == [*range(14)]
    assert all(found[at].startswith(b"again-") for at in range(2, 14))


@BOTH
@pytest.mark.logs(DAMAGE)
def test_durable_round_that_is_damaged_is_damage_and_not_a_torn_tail(limits: StoreLimits) -> None:
    def act(queue: QueueStore) -> None:
        publish(queue, "gone")
        append(queue, Remove(((2, 7),)))

    made = in_one_round(limits, act)
    # The remove; the end record behind it proves that it was durable.
    content = made.ended.content(made.queue.directory / "journal.jif")
    round_end = next(call for call in made.calls if call.path.name == "journal.jif")
    content[round_end.offset + len(round_end.data) - 1] ^= 1
    found = open_store(made.ended, limits).open_queue(QUEUE)
    assert len(found.corruptions) == 1
    assert found.damaged
    assert [*found.missing] == [(2, 7)]
    assert [*bodies(found)] == [0, 1]


@BOTH
def test_what_lives_in_part_or_was_taken_before_is_written_whole(limits: StoreLimits) -> None:
    def act(queue: QueueStore) -> None:
        publish(queue, "part")
        append(queue, Remove(((0, 6),)))

    made = in_one_round(limits, act)
    assert all(b"part-%d" % at in made.written for at in range(2, 8))
    assert made.store.statistics().messages_elided == 0
    assert made.store.statistics().messages.holes == 0
    assert [*bodies(opened(made.after, limits))] == [7]


def test_what_was_sealed_or_replaced_before_its_remove_is_written_whole() -> None:
    """Its record is in another file than the remove, and may be there without it."""

    def seal(queue: QueueStore) -> None:
        publish(queue, "sealed")
        queue.seal_if_large()
        append(queue, Remove(((2, 7),)))

    def install(queue: QueueStore) -> None:
        publish(queue, "kept")
        state = ReplicatedState(next_position=8, last_number=9)
        state.live.add(0, 7)
        queue.install(state, keep_below=8)
        append(queue, Remove(((2, 7),)))

    limits = StoreLimits(idle_journal_bytes_min=1)
    for act, name in ((seal, b"sealed-"), (install, b"kept-")):
        made = in_one_round(limits, act)
        assert made.store.statistics().messages_elided == 0
        assert made.written.count(name) == 6
        assert [*bodies(opened(made.after, limits))] == [0, 1]


def test_body_that_another_queue_wants_is_written() -> None:
    """A fan-out: one record in the message store, and two references."""
    store = open_store(SimulatedDisk(), STORED)
    queues = [store.open_queue(name) for name in ("a", "b")]
    block = Block.of([b"shared".ljust(90)])

    async def work() -> None:
        for queue in queues:
            append(queue, Publish(0, block, False, message_id=b"m" * 16))
        append(queues[0], Remove(((0, 0),)))
        await store.sync()
        found = store.statistics()
        assert (found.messages_elided, found.messages.holes) == (1, 0)
        assert [*bodies(queues[1]).values()] == [b"shared".ljust(90)]
        assert found.messages.records_now == 1

    run_store(store, work)
