"""How much a round takes, and whose: nobody's little waits behind another queue's much."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node.tests.storage.simulated_disk import SimulatedDisk
from node.tests.storage.workload import bodies, open_store, run_store

from ringmq_node.queue import ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Publish, Remove
from ringmq_node.storage import QueueStore, Store, StoreLimits
from ringmq_node.storage.queue.queue_store import CommitJob

LIMITS = StoreLimits()
MIB = 1 << 20
# A round has room for eight queues' even parts of 250 bytes each.
NARROW = replace(LIMITS, round_bytes_max=2_000, share_bytes_max=500, round_queues_max=8)
# To the commit log, or each journal by itself.
WAYS = {"direct": NARROW, "log": replace(NARROW, commit_log_queues_min=1)}


def publish(queue: QueueStore, *texts: bytes) -> None:
    op = Publish(queue.state.next_position, Block.of([*texts]))
    queue.append(queue.state.last_number + 1, op, ops.encode(op))


def remove(queue: QueueStore, first: int, last: int) -> None:
    op = Remove(((first, last),))
    queue.append(queue.state.last_number + 1, op, ops.encode(op))


def written(disk: SimulatedDisk) -> int:
    return sum(len(call.data) for call in disk.log if call.name == "write")


@pytest.mark.parametrize("size_bytes", [1024, 64 * 1024], ids=["embedded", "stored"])
def test_a_small_op_is_in_the_first_round_beside_64_mib_of_another_queue(size_bytes: int) -> None:
    disk = SimulatedDisk()
    store = open_store(disk, LIMITS)
    large, small = store.open_queue("large"), store.open_queue("small")
    body = bytes(size_bytes)
    # At the end of the round with the small op: rounds, ops of the other queue, bytes.
    seen: list[tuple[int, int, int]] = []
    ended = store.round_ended

    def watched(jobs: list[CommitJob]) -> None:
        ended(jobs)
        if small in [job.queue for job in jobs]:
            seen.append((store.statistics().rounds, large.durable_number, written(disk)))

    async def work() -> None:
        for _ in range(256):
            publish(large, *[body] * (256 * 1024 // size_bytes))
        publish(small, b"little")
        await store.sync()
        [(rounds, ops_durable, bytes_written)] = seen
        assert rounds == 1
        assert ops_durable <= 16, "the other queue has its part in that round, and no more"
        assert bytes_written < 5 * MIB
        assert large.durable_number == 256
        # 64 MiB in rounds of 4.
        assert 16 <= store.statistics().rounds <= 18

    with patch.object(store, "round_ended", watched):
        run_store(store, work)


def test_while_there_is_room_a_round_takes_all() -> None:
    store = open_store(SimulatedDisk(), LIMITS)
    queues = [store.open_queue(f"q{number}") for number in range(3)]

    async def work() -> None:
        for queue in queues:
            # More than a share of one of them.
            for _ in range(5 if queue is queues[0] else 1):
                publish(queue, *[bytes(1024)] * 256)
        rounds = store.statistics().rounds
        synced = store.statistics().files_synced
        await store.sync()
        assert store.statistics().rounds == rounds + 1
        assert store.statistics().files_synced == synced + 3

    run_store(store, work)


def test_a_fan_out_takes_one_round() -> None:
    """Its bodies are written once, whatever the queues."""
    store = open_store(SimulatedDisk(), LIMITS)
    queues = [store.open_queue(f"q{number}") for number in range(100)]

    async def work() -> None:
        for queue in queues:
            publish(queue, b"x")
        await store.sync()
        rounds = store.statistics().rounds
        for number in range(9):
            block = Block.of([bytes(64 * 1024)])
            for queue in queues:
                at = queue.state.next_position
                op = Publish(at, block, message_id=number.to_bytes(16, "little"))
                queue.append(queue.state.last_number + 1, op, ops.encode(op))
        await store.sync()
        assert store.statistics().rounds == rounds + 1

    run_store(store, work)


def test_queues_with_much_take_turns() -> None:
    """Each gets something as often as the others, and what each has goes in its order."""
    store = open_store(SimulatedDisk(), NARROW)
    queues = [store.open_queue(f"q{number}") for number in range(4)]
    rounds: list[dict[str, int]] = []
    gathering = store._commit._gathering
    take = gathering.take

    def watched(reach: int) -> list[CommitJob]:
        jobs = take(reach)
        rounds.append({job.queue.queue: job.last_number for job in jobs})
        return jobs

    async def work() -> None:
        for queue in queues:
            # Shares of one op each.
            for number in range(6 if queue is queues[0] else 3):
                publish(queue, b"%d" % number * 600)
        await store.sync()

    with patch.object(gathering, "take", watched):
        run_store(store, work)
    # A round is full with four shares of some 620 bytes.
    together = [{queue.queue: number for queue in queues} for number in (1, 2, 3)]
    assert rounds == [*together, {"q0": 6}]


def test_a_queue_that_never_stops_puts_off_no_sync() -> None:
    store = open_store(SimulatedDisk(), NARROW)
    busy, other = store.open_queue("busy"), store.open_queue("other")

    async def work() -> None:
        def more(queue: QueueStore) -> None:
            if queue is busy:
                for _ in range(6):
                    publish(busy, bytes(700))

        store.on_durable = more
        for _ in range(10):
            publish(busy, bytes(700))
        publish(other, b"x")
        number = busy.state.last_number
        async with asyncio.timeout(10):
            await store.sync()
        assert busy.durable_number >= number
        assert busy.durable_number < busy.state.last_number
        assert other.durable_number == 1
        store.on_durable = lambda queue: None

    run_store(store, work)


def test_a_deleted_queue_leaves_nothing_that_waits() -> None:
    store = open_store(SimulatedDisk(), replace(NARROW, round_bytes_max=20_000))
    gone, kept = store.open_queue("gone"), store.open_queue("kept")

    async def work() -> None:
        publish(kept, b"x")
        publish(gone, bytes(5_000))
        await store.sync()
        for _ in range(9):
            publish(gone, bytes(5_000))
        # Of the remove that is not durable: its body is released with the queue.
        remove(gone, 0, 0)
        waits = asyncio.create_task(store.sync())
        await asyncio.sleep(0)
        store.delete_queue("gone")
        assert store.counters.gathered_bytes == store.counters.closed_bytes == 0
        await waits
        publish(kept, b"y")
        await store.sync()
        assert store.counters.unsynced_bytes == 0
        assert store.statistics().messages.live_bytes_now == 0

    run_store(store, work)


def test_a_store_that_is_closed_has_all_shares() -> None:
    disk = SimulatedDisk()
    store = open_store(disk, NARROW)

    async def work() -> None:
        for number in range(20):
            publish(store.open_queue("q"), b"%d" % number * 300)
        # The first round is on its way, or has ended.
        await asyncio.sleep(0)

    run_store(store, work)
    found = bodies(open_store(disk, NARROW).open_queue("q"))
    assert found == {number: b"%d" % number * 300 for number in range(20)}


# A queue, the size of a body, how many of them; or, if it has any, it removes its oldest range.
STEPS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from([10, 200, 600, 1_500, 4_500]),
        st.integers(1, 4),
        st.booleans(),
    ),
    max_size=25,
)


class Queues:
    """Some queues and, for each op of each, the messages that are live after it."""

    def __init__(self, store: Store) -> None:
        self.queues = [store.open_queue(f"q{number}") for number in range(6)]
        self.live: dict[str, list[dict[int, bytes]]] = {each.queue: [{}] for each in self.queues}
        self.durable: dict[str, dict[int, bytes]] = {}
        store.on_durable = self._durable

    def _durable(self, queue: QueueStore) -> None:
        self.durable[queue.queue] = self.live[queue.queue][queue.durable_number]

    def act(self, number: int, size_bytes: int, count: int, removes: bool) -> None:
        queue = self.queues[number]
        live = dict(self.live[queue.queue][-1])
        if removes and live:
            first, last = next(iter(queue.state.live))
            remove(queue, first, last)
            live = {at: body for at, body in live.items() if at > last}
        else:
            at = queue.state.next_position
            texts = [(b"%d:" % (at + each)).ljust(size_bytes, b".") for each in range(count)]
            publish(queue, *texts)
            live.update(enumerate(texts, at))
        self.live[queue.queue].append(live)


@pytest.mark.parametrize("limits", WAYS.values(), ids=WAYS)
@given(steps=STEPS)
def test_rounds_are_bounded_and_fair_and_in_order_whatever_comes(
    limits: StoreLimits, steps: list[tuple[int, int, int, bool]]
) -> None:
    """Of embedded and stored bodies, and removes. A power cut behind them leaves all that was
    durable."""
    disk = SimulatedDisk()
    store = open_store(disk, limits)
    queues = Queues(store)
    gathering = store._commit._gathering
    take = gathering.take

    def watched(reach: int) -> list[CommitJob]:
        small = [
            queue
            for queue in queues.queues
            if 0 < queue.log.gathered_bytes <= 2_000 // 8
            and queue not in gathering._closed
            and queue.log.needs <= reach
        ]
        jobs = take(reach)
        assert {*small} <= {job.queue for job in jobs}, "who has little goes at once"
        sizes = [job.size_bytes for job in jobs]
        # But for one share, which may be large by its last op.
        assert sum(sizes) <= 2_000 + 500 + 4 * 4_600, sizes
        assert sum(sizes) - max(sizes, default=0) <= 2_000, sizes
        assert all(job.needs <= reach for job in jobs), "a body comes before its record"
        return jobs

    async def work() -> None:
        for at, step in enumerate(steps):
            queues.act(*step)
            if at % 5 == 4:
                await asyncio.sleep(0)
        await store.sync()
        assert store.counters.unsynced_bytes == 0
        for queue in queues.queues:
            assert queue.durable_number == queue.state.last_number
            queue.check()

    with patch.object(gathering, "take", watched):
        run_store(store, work)
    again = open_store(disk.power_cut("nothing", random.Random(0)), NARROW)
    for name, expected in queues.durable.items():
        assert bodies(again.open_queue(name), bytes_max=1 << 20) == expected


def test_a_journal_that_a_closed_share_has_filled_is_sealed_at_once() -> None:
    """Nothing may come to the queue after that: the journal would wait for its flush."""
    limits = replace(NARROW, round_bytes_max=20_000, journal_bytes_max=2_000)
    store = open_store(SimulatedDisk(), limits)
    queue = store.open_queue("q")

    async def work() -> None:
        publish(queue, b"x")
        await store.sync()
        publish(queue, bytes(1_000), bytes(1_000))
        await store.sync()
        assert not queue.log.has_pending
        assert store.statistics().journals_sealed == 1

    run_store(store, work)


def test_a_queue_that_goes_on_waits_only_for_the_bodies_before_its_op() -> None:
    """Each of its ops has a body, behind those of others that wait in the message store. Its share
    is small, and would be closed only after very many of them."""
    limits = replace(NARROW, embed_below=50, share_bytes_max=2_000_000)
    store = open_store(SimulatedDisk(), limits)
    busy, steady = store.open_queue("busy"), store.open_queue("steady")
    # For each op of the second, when it was appended and when it was durable, in rounds.
    begun: list[int] = []
    waits: list[int] = []
    ended = store.round_ended

    def watched(jobs: list[CommitJob]) -> None:
        ended(jobs)
        rounds = store.statistics().rounds
        waits.extend(rounds - at for at in begun[len(waits) : steady.durable_number])
        if rounds < 200:
            # As much as a round has room for: the bodies that wait become no fewer.
            publish(busy, bytes(1_600))
            publish(steady, bytes(60))
            begun.append(rounds)

    async def work() -> None:
        for _ in range(10):
            publish(busy, bytes(1_900))
        await asyncio.sleep(0)
        while store.statistics().rounds < 200:
            await store.sync()
        await store.sync()
        assert len(waits) == len(begun) > 150
        assert max(waits) < 40, "ten rounds for its body, and for the share before"

    with patch.object(store, "round_ended", watched):
        run_store(store, work)
