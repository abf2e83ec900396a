"""Cases that the model test has found, as short as they could be made; each was a fault once.

The steps are those of `Engine`; after each scenario everything is drained and counted.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from node.tests.storage.engine.hand import by_hand
from node.tests.storage.engine.machine import Engine

from ringmq_node.queue.ops import Remove, encode
from ringmq_node.storage import StoreLimits
from ringmq_node.storage.queue.changes import BodyChanges

# Every batch goes to the message store, every other one seals the journal.
SMALL = StoreLimits(
    journal_entries_max=20,
    journal_bytes_max=1_500,
    sync_in_place_bytes_max=0,
    sync_threads=1,
    idle_ticks_max=1,
    embed_below=0,
    store_file_bytes_max=700,
)


@pytest.fixture
def unchecked() -> Iterator[Engine]:
    """Of which only the stores are used: the model wouldn't know of it."""
    with by_hand(segment_positions=8) as hand:
        engine = Engine(hand, SMALL, random.Random(1))
        yield engine
        engine.end()


@pytest.fixture
def engine(unchecked: Engine) -> Iterator[Engine]:
    """At its end all messages are drained, and nothing is left of them."""
    yield unchecked
    unchecked.check()
    unchecked.drain()


def with_deltas(engine: Engine, names: tuple[str, ...] = ("a",), *, count: int = 40) -> None:
    """Queues of which all but the first segment or two are folded."""
    for _ in range(count // 4):
        engine.publish(names, [40] * 4)
    engine.settle()
    engine.remember(0.0)
    engine.settle()
    for name in names:
        assert len(engine.queues[name].store.bodies.index.deltas) >= 2


def test_publish_after_a_restart_continues_a_segment_that_was_folded(engine: Engine) -> None:
    engine.publish(["a"], [40] * 21)
    engine.settle()
    engine.kill()
    engine.settle()
    engine.stop()
    engine.publish(["a"], [40] * 5)


def test_queue_is_declared_while_bodies_of_another_are_written(engine: Engine) -> None:
    engine.publish(["a"], [900])
    engine.hand.turn()
    engine.publish(["a"], [200, 200])
    engine.delete("b")


def test_journal_of_a_queue_deleted_meanwhile_is_not_written_to_its_successor(
    engine: Engine,
) -> None:
    engine.publish(["a"], [900])
    engine.hand.turn()
    assert engine.hand.waiting
    # The bodies are written, the round's journals are still to come.
    engine.delete("a")
    engine.publish(["a"], [3])
    engine.settle()
    engine.stop()


def test_delta_that_dies_of_several_ranges_gives_all_its_bodies_back(engine: Engine) -> None:
    with_deltas(engine)
    consumer = engine.consume("a", 1000)
    has = engine.queues["a"].clients[consumer]
    engine.settle_messages("a", consumer, [at for at in has if at % 8 == 3])
    engine.disconnect("a", consumer)
    engine.settle()
    engine.stop()
    assert engine.queues["a"].store.bodies.index.deltas
    engine.settle()
    engine.purge("a")


def test_deltas_of_a_deleted_queue_give_their_bodies_back(engine: Engine) -> None:
    with_deltas(engine, ("a", "b"))
    engine.delete("a")


def test_queue_is_deleted_while_it_is_read_ahead(engine: Engine) -> None:
    with_deltas(engine)
    engine.take("a", 1)
    engine.hand.turn()
    assert [item.worker for item in engine.hand.waiting].count("ringmq-read") == 1
    engine.delete("a")


def test_paged_messages_in_two_segments_keep_their_order(engine: Engine) -> None:
    """Bodies are let go of from the newest to the oldest, and flushed in that order."""
    for _ in range(3):
        engine.publish(["a"], [40] * 6, transient=True)
    engine.remember(0.0)
    engine.publish(["a"], [900, 900])
    engine.settle()
    assert engine.take("a", 4) == [0, 1, 2, 3]


def test_engine_with_room_for_nothing(engine: Engine) -> None:
    engine.stop()
    engine.limits = replace(
        SMALL, queue_memory_bytes_max=0, read_ahead_bytes=0, store_cache_bytes_max=0
    )
    engine.stop()
    engine.publish(["a", "b"], [40, 900] * 10)
    engine.settle()
    engine.pass_time(5.0)
    assert engine.store.statistics().queue_memory_bytes_now < 20_000


def test_what_was_removed_and_filled_in_again_is_read_from_where_it_was_filled_in(
    engine: Engine,
) -> None:
    """The ring's log parted from ours before a removal. The body that it removed is gone."""
    engine.publish(["a"], [40] * 4)
    engine.publish(["a"], [900] * 4)
    engine.settle()
    engine.take("a", 4)
    engine.settle()
    engine.catch_up("a", cut=0, more=0, revived=4)
    engine.settle()
    engine.kill()
    engine.pass_time(5.0)
    engine.settle()
    engine.browse("a", 0, 7)


def test_queue_is_deleted_while_a_round_is_to_release_its_bodies(engine: Engine) -> None:
    engine.publish(["a", "b"], [0])
    engine.settle()
    engine.publish(["a"], [3])
    engine.take("b", 1)
    engine.hand.turn()
    engine.delete("b")


def test_segments_that_an_installed_state_empties_stay_until_it_is_durable(engine: Engine) -> None:
    for _ in range(5):
        engine.publish(["a"], [40] * 5)
    engine.settle()
    assert engine.queues["a"].store.bodies.segments
    # Parts with all that was there before; the flush goes on, the round doesn't.
    engine.catch_up("a", cut=30, more=2, revived=0)
    flushing = [item for item in engine.hand.waiting if item.worker == "ringmq-flush"]
    for item in flushing:
        engine.hand.let_go(item)
    engine.cut_power("anything")


def test_what_was_removed_and_is_to_be_filled_in_again_is_missing_after_a_power_cut(
    engine: Engine,
) -> None:
    engine.publish(["a"], [40] * 4)
    engine.publish(["a"], [900] * 4)
    engine.settle()
    engine.take("a", 4)
    engine.pass_time(5.0)
    engine.settle()
    engine.install("a", cut=0, more=0, revived=4)
    engine.settle()
    engine.kill()
    engine.browse("a", 0, 7)


def test_ack_that_is_carried_out_while_an_install_is_computed_is_of_the_state_given_up(
    engine: Engine,
) -> None:
    """A master goes on until the install. The new state has the message that it removes."""
    engine.publish(["t"], [40] * 6)
    consumer = engine.consume("t", 6)
    engine.settle()
    engine.settle_messages("t", consumer, [0])
    # This ack waits for the round of the one before.
    engine.settle_messages("t", consumer, [3])
    assert 3 in engine.queues["t"].messages
    # The changes are computed before the install, and the round ends meanwhile.
    engine.rng.seed(2)
    engine.unrest = 1.0
    engine.install("t", cut=0, more=0, revived=0)
    assert engine.events["changes of a state: outdated"] == 1
    assert sorted(engine.queues["t"].messages) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("times", range(1, 7))
def test_segment_that_is_folded_while_an_install_is_computed_loses_what_the_state_has_removed(
    unchecked: Engine, times: int
) -> None:
    """It counted the messages until it was unfolded, and nobody gave their bodies back. It is
    folded again each time that it was unfolded, in the first steps."""
    with_deltas(unchecked)
    queue = unchecked.queues["a"].store
    deltas = queue.bodies.index.deltas
    queue.bodies.unfold(deltas[1])
    state = queue.state.copy()
    state.apply(state.last_number + 1, Remove(((8, 11), (33, 33))))
    changes = BodyChanges(queue.bodies, state, 40, durable=True)
    for step, _ in enumerate(changes.steps()):
        if step < times:
            queue.pager.fold()
            assert 1 in deltas
    # After two of these steps nothing is unfolded any more, and another fold is noticed.
    assert changes.are_current(state, 40) == (times <= 2)
    queue.install(state, keep_below=40, changes=changes)
    queue.check()
    drop_all(unchecked, "a")


def test_message_that_goes_into_the_transient_store_before_an_install_gives_its_place_back(
    unchecked: Engine,
) -> None:
    unchecked.publish(["a"], [40] * 4, transient=True)
    queue = unchecked.queues["a"].store
    state = queue.state.copy()
    state.apply(state.last_number + 1, Remove(((0, 3),)))
    changes = BodyChanges(queue.bodies, state, 4, durable=True)
    changes.compute()
    (entry,) = queue.bodies.index
    queue.pager.let_go(entry)
    assert entry.location is not None
    assert changes.are_current(state, 4)
    queue.install(state, keep_below=4, changes=changes)
    queue.check()
    drop_all(unchecked, "a")


def drop_all(engine: Engine, name: str) -> None:
    """Removes all messages; then no record of a message store is referred to any more."""
    queue = engine.queues[name].store
    if live := queue.state.live.ranges():
        op = Remove(tuple(live))
        queue.append(queue.state.last_number + 1, op, encode(op))
    assert not queue.live_bytes
    engine.hand.settle()
    for transient in (False, True):
        assert not engine.store.messages(transient=transient).statistics().records_now


def test_segment_of_a_dead_delta_is_not_folded_again(engine: Engine) -> None:
    """It is referred to until its references have been read, and has no entry."""
    with_deltas(engine)
    queue = engine.queues["a"].store
    consumer = engine.consume("a", 12)
    engine.purge("a")
    assert queue.bodies.condemned
    engine.remember(0.0)
    engine.settle_messages("a", consumer, range(12))


def let_only(engine: Engine, worker: str) -> None:
    """Lets some threads go on, as far as they get, and the others not."""
    for _ in range(30):
        engine.hand.turn()
        for item in [item for item in engine.hand.waiting if item.worker.startswith(worker)]:
            engine.hand.let_go(item)


def test_journal_whose_messages_have_died_stays_until_that_is_durable(engine: Engine) -> None:
    engine.publish(["a"], [40] * 25)
    engine.publish(["a"], [40] * 25)
    let_only(engine, "ringmq-sync")
    assert engine.queues["a"].store.sealed_count == 2
    consumer = engine.consume("a", 50)
    engine.settle_messages("a", consumer, range(25, 50))
    # The first journal goes into segments; of the second nothing lives, as far as memory knows.
    let_only(engine, "ringmq-flush")
    engine.cut_power("nothing")
    assert sorted(engine.queues["a"].messages) == [*range(50)]


def test_bodies_of_a_dead_delta_stay_until_that_is_durable(engine: Engine) -> None:
    with_deltas(engine)
    engine.purge("a")
    for _ in range(3):
        let_only(engine, "ringmq-flush")
        let_only(engine, "ringmq-compact")
        engine.pass_time(2.0)
    engine.cut_power("nothing")
    assert sorted(engine.queues["a"].messages) == [*range(40)]
    engine.browse("a", 0, 39)
