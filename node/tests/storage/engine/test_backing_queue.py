"""RabbitMQ's `backing_queue_SUITE`, for queue index and variable queue, asked of our engine.

Each test runs with bodies in the index and in the message store, and where it matters in a lazy
queue. Segments have 16 positions here. The model of `machine` looks at every message that is read:
its bytes, properties, order and `redelivered`. At the end it drains the queue.

Left out: `msg_store` with its confirms (`storage/messages` has them; ours are per round),
`delete_msg_store_files_callback` (no queue holds a descriptor), timeouts
(there is no idle timer to be told of), and the file scanners of 3.13 (`test_recovery`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from node.tests.storage.engine.hand import by_hand
from node.tests.storage.engine.machine import Engine
from node.tests.storage.engine.model import Queue

from ringmq_node.storage import StoreLimits
from ringmq_node.storage.queue.paging import Chain

SEGMENT = 16
INFINITY = float("inf")
EMBEDDED, STORED = 1 << 20, 0
both = pytest.mark.parametrize(
    "engine", [EMBEDDED, STORED], indirect=True, ids=["embedded", "stored"]
)
modes = pytest.mark.parametrize("lazy", [False, True], ids=["default", "lazy"])


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    limits = StoreLimits(
        journal_entries_max=4,
        sync_in_place_bytes_max=0,
        embed_below=request.param,
        store_file_bytes_max=2_000,
        idle_ticks_max=1,
        idle_journal_bytes_min=1,
        store_cache_bytes_max=0,
    )
    with by_hand(segment_positions=SEGMENT) as hand:
        engine = Engine(hand, limits, random.Random(1))
        yield engine
        engine.check()
        engine.drain()
        engine.end()


def publish_each(engine: Engine, count: int, *, transient: bool = False) -> None:
    for at in range(count):
        engine.publish(["a"], [20 + at % 3], transient=transient)


def flushed(engine: Engine) -> Queue:
    """All that has been published is in segments."""
    engine.settle()
    for _ in range(4):
        engine.pass_time(1.0)
        engine.settle()
    queue = engine.queues["a"]
    assert not queue.store.sealed_count
    return queue


def segments_of(queue: Queue) -> list[int]:
    return sorted(queue.store.bodies.segments)


def in_memory(queue: Queue) -> int:
    return queue.store.bodies.index.messages_in_memory


# -- the index


@both
def test_segment_is_deleted_when_all_of_it_is_acked(engine: Engine) -> None:
    publish_each(engine, 2 * SEGMENT + 8)
    queue = flushed(engine)
    assert segments_of(queue) == [0, 1, 2]
    engine.take("a", SEGMENT - 1)
    assert segments_of(flushed(engine)) == [0, 1, 2]
    engine.take("a", 1)
    assert segments_of(flushed(engine)) == [1, 2]
    names = [path.name for path in engine.disk.files()]
    assert names.count("0.idx") == 0
    assert names.count("1.idx") == 1


@both
def test_half_a_segment_is_acked_before_the_next_begins(engine: Engine) -> None:
    publish_each(engine, SEGMENT // 2)
    flushed(engine)
    assert len(engine.take("a", SEGMENT // 2)) == SEGMENT // 2
    publish_each(engine, SEGMENT)
    queue = flushed(engine)
    assert 1 in segments_of(queue)
    engine.take("a", 3 * SEGMENT)
    assert segments_of(flushed(engine)) == []


@both
def test_old_segment_is_acked_after_moving_on(engine: Engine) -> None:
    publish_each(engine, SEGMENT + 8)
    flushed(engine)
    consumer = engine.consume("a", 1000)
    engine.settle_messages("a", consumer, range(SEGMENT, SEGMENT + 8))
    flushed(engine)
    publish_each(engine, SEGMENT)
    flushed(engine)
    engine.settle_messages("a", consumer, range(SEGMENT))
    queue = flushed(engine)
    assert 0 not in segments_of(queue)
    assert sorted(queue.messages) == [*range(SEGMENT + 8, 2 * SEGMENT + 8)]


@both
@pytest.mark.parametrize("stop", ["none", "clean", "kill"])
@pytest.mark.parametrize("moved", range(8), ids="{:03b}".format)
def test_publish_deliver_and_ack_each_in_segment_or_journal(
    engine: Engine, moved: int, stop: str
) -> None:
    """Read, and through a restart: bit 0 the publish, bit 1 the deliver, bit 2 the ack is
    flushed, or still in the journal."""
    engine.publish(["a"], [50] * 5, properties=2)
    engine.settle()
    if moved & 1:
        flushed(engine)
    consumer = engine.consume("a", 3)
    engine.settle_messages("a", consumer, [], [1])
    engine.settle()
    if moved & 2:
        flushed(engine)
    engine.settle_messages("a", consumer, [0])
    engine.settle()
    if moved & 4:
        flushed(engine)
    if stop != "none":
        engine.stop() if stop == "clean" else engine.kill()
        assert all(message.redelivered for message in engine.queues["a"].messages.values())
    assert sorted(engine.queues["a"].messages) == [1, 2, 3, 4]
    engine.browse("a", 0, 10)


@both
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "kill"])
def test_transient_are_gone_after_a_restart_and_persistent_redelivered(
    engine: Engine, clean: bool
) -> None:
    for _ in range(SEGMENT):
        engine.publish(["a"], [30, 30])
        engine.publish(["a"], [30], transient=True)
    engine.remember(0.0)
    flushed(engine)
    engine.stop() if clean else engine.kill()
    messages = engine.queues["a"].messages
    assert len(messages) == 2 * SEGMENT
    assert all(message.redelivered and not message.transient for message in messages.values())


@both
def test_two_segments_are_recovered_after_a_kill_and_stay_folded(engine: Engine) -> None:
    publish_each(engine, 2 * SEGMENT)
    flushed(engine)
    engine.kill()
    chain = engine.queues["a"].store.pager.chain()
    assert chain == Chain(0, 0, 0, delta=2 * SEGMENT, q2=0, q1=0)


@both
def test_reads_and_writes_are_told_in_bytes_of_bodies(engine: Engine) -> None:
    for _ in range(2 * SEGMENT):
        engine.publish(["a"], [30])
    engine.settle()
    engine.publish(["a"], [100])
    engine.purge("a")
    for _ in range(2 * SEGMENT):
        engine.publish(["a"], [30])
    engine.publish(["a"], [50] * 2, transient=True)
    flushed(engine)
    engine.remember(0.0)
    engine.settle()
    said = engine.queues["a"].store.statistics()
    assert said.body_bytes_written == 4 * SEGMENT * 30 + 2 * 50
    assert said.body_bytes_elided == 100
    assert said.body_bytes_read == said.segments_loaded == said.blocks_read == 0
    engine.kill()
    # The first positions of the first segment have been purged.
    assert engine.queues["a"].store.pager.chain().delta == 2 * SEGMENT
    engine.browse("a", 0, 5 * SEGMENT)
    said = engine.queues["a"].store.statistics()
    assert said.body_bytes_read == 2 * SEGMENT * 30
    assert said.segments_loaded == 3
    assert said.body_bytes_written == said.body_bytes_elided == 0


@both
def test_properties_survive(engine: Engine) -> None:
    engine.publish(["a"], [10] * 4, properties=2)
    engine.publish(["a"], [10] * 4, properties=1)
    flushed(engine)
    engine.stop()
    assert {message.properties for message in engine.queues["a"].messages.values()} == {
        *(b"p%d" % at for at in range(4))
    }
    engine.browse("a", 0, 7)


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "kill"])
def test_journal_of_publishes_and_acks_only(clean: bool) -> None:
    """2100 messages, at the size that segments really have; nothing ever reaches one."""
    with by_hand() as hand:
        engine = Engine(hand, StoreLimits(), random.Random(1))
        for _ in range(21):
            engine.publish(["a"], [5] * 100)
            engine.settle()
            assert len(engine.take("a", 100)) == 100
        engine.settle()
        engine.stop() if clean else engine.kill()
        queue = flushed(engine)
        assert not queue.messages
        assert queue.store.state.next_position == 2100
        assert segments_of(queue) == []
        assert engine.events["segment_bytes_written"] == 0
        engine.end()


# -- the variable queue


@both
def test_duration_changes_under_churn(engine: Engine) -> None:
    taken = 0
    for duration_s in (5.0, 1.0, 0.0, 1.0, 5.0, INFINITY, 0.0, INFINITY):
        for _ in range(6):
            engine.publish(["a"], [30, 20])
            engine.publish(["a"], [10], transient=True)
            engine.work(3)
            taken += len(engine.take("a", 2))
            engine.pass_time(0.3)
            engine.check()
        engine.remember(duration_s)
        engine.check()
    engine.settle()
    assert taken > 80
    assert len(engine.queues["a"].messages) == 8 * 6 * 3 - taken


@both
def test_one_segment_and_parts_at_target_0(engine: Engine) -> None:
    """The segment at the head stays, the one that is written to can't be folded."""
    publish_each(engine, 2 * SEGMENT + 8)
    queue = flushed(engine)
    engine.remember(0.0)
    engine.settle()
    assert queue.store.pager.chain() == Chain(0, 0, SEGMENT, SEGMENT, 8, 0)
    engine.publish(["a"], [20])
    assert queue.store.pager.chain() == Chain(0, 0, SEGMENT, SEGMENT, 8, 1)
    flushed(engine)
    assert queue.store.pager.chain() == Chain(0, 0, SEGMENT, SEGMENT, 9, 0)
    engine.take("a", SEGMENT)
    engine.settle()
    chain = queue.store.pager.chain()
    assert (chain.pending, chain.delta) == (0, 0)
    assert chain.q4 + chain.q3 + chain.q2 + chain.q1 == SEGMENT + 9


@both
@modes
def test_all_the_bits_persistent_and_transient_through_a_dirty_restart(
    engine: Engine, lazy: bool
) -> None:
    engine.set_lazy("a", lazy)
    for at in range(2 * SEGMENT):
        engine.publish(["a"], [40], transient=at % 2 == 1)
    engine.remember(0.0)
    flushed(engine)
    consumer = engine.consume("a", SEGMENT)
    assert len(engine.queues["a"].clients[consumer]) == SEGMENT
    engine.kill()
    messages = engine.queues["a"].messages
    assert sorted(messages) == [*range(0, 2 * SEGMENT, 2)]
    assert all(message.redelivered for message in messages.values())
    assert engine.store.statistics().messages_transient.records_now == 0


@both
@modes
def test_transient_messages_that_were_requeued_are_gone(engine: Engine, lazy: bool) -> None:
    engine.set_lazy("a", lazy)
    publish_each(engine, 4, transient=True)
    engine.settle()
    consumer = engine.consume("a", 4)
    engine.settle_messages("a", consumer, [], range(4))
    engine.remember(0.0)
    engine.settle()
    engine.stop()
    assert not engine.queues["a"].messages
    assert engine.take("a", 1) == []


@both
@modes
def test_drop(engine: Engine, lazy: bool) -> None:
    engine.set_lazy("a", lazy)
    assert engine.take("a", 1) == []
    publish_each(engine, 1)
    engine.settle()
    consumer = engine.consume("a", 1)
    engine.settle_messages("a", consumer, [], [0])
    engine.disconnect("a", consumer)
    assert engine.take("a", 1) == [0]
    assert engine.take("a", 1) == []


def head_size(queue: Queue) -> int:
    """Bytes of the message that is next; 0 if there is none."""
    runs = queue.master.peek(1, 1 << 30)
    return sum(queue.store.bytes_in(at, at) for at in queue.seen(runs)) if runs else 0


@both
@modes
def test_fetched_and_dropped_while_a_predicate_holds(engine: Engine, lazy: bool) -> None:
    """As expiry does: the first messages, as long as the next one fulfils the predicate."""
    engine.set_lazy("a", lazy)
    engine.publish(["a"], [20] * 5 + [30] * 7 + [20] * 3)
    flushed(engine)
    queue = engine.queues["a"]
    for duration_s in (0.0, INFINITY):
        engine.remember(duration_s)
        engine.settle()
        assert head_size(queue) == 20  # a predicate that takes nothing leaves all as it is
        assert len(queue.ready) == 15
    fetched = engine.consume("a", 5)
    assert queue.clients[fetched] == {*range(5)}
    engine.disconnect("a", fetched)
    dropped = []
    while head_size(queue) == 20:
        dropped += engine.take("a", 1)
    assert dropped == [*range(5)]
    engine.settle()
    assert engine.take("a", 20) == [*range(5, 15)]
    assert head_size(queue) == 0


@both
@modes
def test_message_on_disk_that_is_with_a_consumer_can_be_browsed(engine: Engine, lazy: bool) -> None:
    engine.set_lazy("a", lazy)
    publish_each(engine, 3)
    engine.consume("a", 2)
    flushed(engine)
    engine.remember(0.0)
    engine.settle()
    queue = engine.queues["a"]
    assert in_memory(queue) == 0
    assert queue.master.unacknowledged == 2
    engine.browse("a", 0, 2)


@both
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "kill"])
def test_drop_of_a_few_and_a_restart(engine: Engine, clean: bool) -> None:
    for _ in range(20):
        engine.publish(["a"], [10] * 50)
    flushed(engine)
    engine.take("a", 5)
    engine.settle()
    engine.stop() if clean else engine.kill()
    assert len(engine.queues["a"].messages) == 995


@both
@modes
def test_purge_leaves_what_is_with_consumers(engine: Engine, lazy: bool) -> None:
    engine.set_lazy("a", lazy)
    publish_each(engine, 10)
    engine.settle()
    consumer = engine.consume("a", 6)
    engine.purge("a")
    assert len(engine.queues["a"].messages) == 6
    engine.settle_messages("a", consumer, [0, 1, 2, 3])
    engine.disconnect("a", consumer)
    engine.settle()
    assert sorted(engine.queues["a"].messages) == [4, 5]


@both
@modes
def test_ack_limiting(engine: Engine, lazy: bool) -> None:
    """1024 messages, half of them with a consumer: at target 0 none is in memory, but for those
    that are read ahead."""
    engine.set_lazy("a", lazy)
    for _ in range(256):
        engine.publish(["a"], [10] * 4)
    flushed(engine)
    engine.consume("a", 512)
    engine.remember(0.0)
    flushed(engine)
    # The monitor repeats its target: then blocks that were read ahead leave memory, too.
    for _ in range(4):
        engine.remember(0.0)
        flushed(engine)
    queue = engine.queues["a"]
    assert len(queue.clients[1]) == 512
    held = [entry for entry in queue.store.bodies.index if entry.block is not None]
    assert all(512 <= entry.first < 512 + SEGMENT for entry in held)
    # All that may be folded is: ready, and whole segments behind the one at the head.
    chain = queue.store.pager.chain()
    assert (chain.pending, chain.q4 + chain.q3, chain.delta) == (512, SEGMENT, 512 - SEGMENT)


@both
@modes
def test_requeue_into_holes_of_every_part(engine: Engine, lazy: bool) -> None:
    engine.set_lazy("a", lazy)
    publish_each(engine, 3 * SEGMENT)
    flushed(engine)
    consumer = engine.consume("a", 3 * SEGMENT)
    publish_each(engine, 8)
    engine.remember(0.0)
    flushed(engine)
    # Every third is acked, and the others go back one by one, from the last to the first.
    engine.queues["a"].master.consumer_cancelled(consumer)
    has = sorted(engine.queues["a"].clients[consumer])
    engine.settle_messages("a", consumer, has[::3])
    for position in sorted(engine.queues["a"].clients[consumer], reverse=True):
        engine.settle_messages("a", consumer, [], [position])
        engine.check()
    flushed(engine)
    queue = engine.queues["a"]
    expected = sorted({*range(3 * SEGMENT + 8)} - {*has[::3]})
    assert sorted(queue.ready) == expected
    flags = [queue.messages[at].redelivered for at in expected]
    assert flags == [at < 3 * SEGMENT for at in expected]
    assert engine.take("a", 1000) == expected


@both
@pytest.mark.parametrize("seed", range(4))
def test_mode_is_switched_after_each_step(engine: Engine, seed: int) -> None:
    """Pending messages are requeued in between others that were paged out meanwhile."""
    rng = random.Random(seed)

    def switch() -> None:
        engine.work(rng.randint(0, 4))
        engine.set_lazy("a", rng.random() < 0.5)
        engine.check()

    publish_each(engine, 2 * SEGMENT + 4)
    flushed(engine)
    switch()
    consumer = engine.consume("a", SEGMENT + 2)
    switch()
    publish_each(engine, 3)
    switch()
    engine.queues["a"].master.consumer_cancelled(consumer)
    for position in (*range(0, SEGMENT, 2), *range(1, SEGMENT, 2)):
        engine.settle_messages("a", consumer, [], [position])
        switch()
    engine.remember(rng.choice([0.0, INFINITY]))
    switch()
    engine.settle()
    assert engine.take("a", SEGMENT) == [*range(SEGMENT)]


@both
@modes
@pytest.mark.parametrize("messages_max", [1, 2, 20, 39, 40, 41, 80])
def test_fold_over_ready_and_unacked_that_stops_early(
    engine: Engine, lazy: bool, messages_max: int
) -> None:
    engine.set_lazy("a", lazy)
    publish_each(engine, 40)
    flushed(engine)
    engine.consume("a", 7)
    engine.remember(0.0)
    engine.settle()
    queue = engine.queues["a"]
    runs = queue.store.read(0, 1000, bytes_max=1 << 30, messages_max=messages_max)
    assert queue.seen(runs) == [*range(min(messages_max, 40))]


@both
@modes
def test_batches_that_wait_and_batches_that_are_delivered_at_once(
    engine: Engine, lazy: bool
) -> None:
    engine.set_lazy("a", lazy)
    engine.publish(["a"], [30] * SEGMENT)
    engine.settle()
    queue = engine.queues["a"]
    assert (len(queue.ready), queue.master.unacknowledged) == (SEGMENT, 0)
    assert len(engine.take("a", SEGMENT)) == SEGMENT
    consumer = engine.consume("a", 1000)
    engine.publish(["a"], [30] * SEGMENT)
    engine.settle()
    assert (len(queue.ready), queue.master.unacknowledged) == (0, SEGMENT)
    assert queue.clients[consumer] == {*range(SEGMENT, 2 * SEGMENT)}


@both
def test_four_switches_keep_what_is_ready_in_order(engine: Engine) -> None:
    for lazy in (True, False, True, False):
        publish_each(engine, 9)
        engine.publish(["a"], [5] * 4, transient=True)
        engine.set_lazy("a", lazy)
        engine.work(4)
        engine.check()
    engine.settle()
    assert engine.take("a", 1000) == [*range(4 * 13)]
