"""Whose turn it is, and that a delivery costs the same however many consumers there are."""

from __future__ import annotations

import pytest
from node.tests.queue.ring_of_one import Scene

from ringmq_node.queue.consumers import NotAloneError, Subscription
from ringmq_node.queue.effects import (
    EndReason,
    MulticastOp,
)
from ringmq_node.queue.ready import Ready
from ringmq_node.queue.turns import Turns


def test_idle_consumers_cost_a_delivery_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier version asked each consumer: 10 000 without room held the loop for seconds."""
    scene = Scene()
    asked = 0
    take = Ready.take

    def counted(self: Ready, *args: object, **options: object) -> object:
        nonlocal asked
        asked += 1
        return take(self, *args, **options)  # type: ignore[arg-type]

    for consumer in range(1, 2001):
        scene.open(consumer, messages=1)
    scene.publish(*[b"x"] * 2000)
    assert len(scene.take()) == 2000
    scene.open(9999, messages=10)
    monkeypatch.setattr(Ready, "take", counted)
    scene.publish(*[b"x"] * 20)
    assert [consumer for consumer, _ in scene.take()] == [9999] * 10
    assert asked <= 11
    # One that has settled is served, and nobody else is asked.
    asked = 0
    scene.do(scene.master.settle(5, acked=[(4, 4)]))
    assert scene.take() == [(5, 2010)]
    assert asked == 1


def test_a_consumer_that_is_opened_looks_at_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands open theirs together after a failover. Each looked at all before it."""
    scene = Scene()
    for consumer in range(1, 2001):
        scene.open(consumer)
    looks = 0

    def counted(one: Subscription) -> bool:
        nonlocal looks
        looks += 1
        return not (one.terms.pulls or one.cancelled)

    monkeypatch.setattr(Subscription, "counts", property(counted))
    scene.open(9999)
    # By the check before the consumer is there, and once more as it is opened.
    assert 0 < looks <= 4


def test_a_consumer_whose_bytes_do_not_suffice_waits_for_a_smaller_message() -> None:
    scene = Scene()
    scene.open(1)
    scene.open(2)
    scene.publish(b"x" * 900)
    scene.publish(b"x" * 950)
    assert scene.take() == [(1, 0), (2, 1)]
    scene.publish(b"y" * 80)
    assert scene.take() == [(1, 2)]
    scene.publish(b"z" * 40)
    assert scene.take() == [(2, 3)]
    # Nobody has room for this one. One that has settled takes it, though it isn't the only one.
    scene.publish(b"w" * 200)
    assert scene.take() == []
    scene.do(scene.master.settle(1, acked=[(0, 0)]))
    assert scene.take() == [(1, 4)]


def test_higher_priorities_come_first_as_long_as_they_have_room() -> None:
    scene = Scene()
    scene.open(1, messages=2)
    scene.open(2, messages=2, priority=5)
    scene.open(3, messages=2, priority=5)
    scene.publish(*[b"x"] * 8)
    assert scene.take() == [(2, 0), (2, 1), (3, 2), (3, 3), (1, 4), (1, 5)]
    scene.do(scene.master.settle(3, acked=[(2, 2)]))
    assert scene.take() == [(3, 6)]


def test_equals_take_turns() -> None:
    scene = Scene()
    scene.open(1, messages=3)
    scene.open(2, messages=3)
    for _ in range(6):
        scene.publish(b"x")
    assert [consumer for consumer, _ in scene.take()] == [1, 2, 1, 2, 1, 2]


def test_an_exclusive_consumer_is_alone() -> None:
    scene = Scene()
    scene.open(1, exclusive=True)
    for exclusive in (False, True):
        with pytest.raises(NotAloneError, match="has an exclusive consumer"):
            scene.open(2, exclusive=exclusive)
    scene.do(scene.master.consumer_closed(1))
    scene.open(3)
    with pytest.raises(NotAloneError, match="none can be exclusive"):
        scene.open(4, exclusive=True)
    scene.take()


def test_a_cancelled_consumer_is_none_though_it_holds_messages() -> None:
    """As in RabbitMQ: nobody is kept out by it, and the queue is unused."""
    scene = Scene()
    scene.publish(b"a", b"b")
    scene.open(1, exclusive=True)
    held = scene.take()
    scene.do(scene.master.consumer_cancelled(1))
    assert len(scene.master.consumers) == 0
    scene.do(scene.master.consumer_cancelled(1))
    scene.open(2, exclusive=True)
    assert len(scene.master.consumers) == 1
    scene.do(scene.master.consumer_closed(1))
    assert len(scene.master.consumers) == 1
    assert held
    assert scene.take()
    scene.do(scene.master.consumer_closed(2))
    assert len(scene.master.consumers) == 0


def test_none_is_exclusive_where_one_is_active_at_a_time() -> None:
    scene = Scene()
    scene.follow(single_active_consumer=True)
    with pytest.raises(NotAloneError, match="single_active_consumer, so that none"):
        scene.open(1, exclusive=True)
    # Nothing has changed: the next one is the first.
    scene.open(2)
    with pytest.raises(NotAloneError, match="single_active_consumer, so that none"):
        scene.open(3, exclusive=True)
    scene.publish(b"x")
    assert scene.take() == [(2, 0)]


def test_a_stream_takes_the_place_of_an_older_one_of_the_same_consumer() -> None:
    scene = Scene()
    scene.open(1, exclusive=True, identity=b"me")
    scene.publish(b"x")
    scene.open(2, exclusive=True, identity=b"me")
    assert scene.told == [(1, EndReason.REPLACED)]
    assert scene.take() == [(1, 0), (2, 0)]
    assert scene.counts[0] == 1


def test_the_first_in_line_is_active_and_the_next_one_follows() -> None:
    scene = Scene()
    scene.follow(single_active_consumer=True)
    scene.open(1, messages=2)
    scene.open(2, messages=2)
    scene.open(3, messages=2)
    assert scene.told == [(1, True), (2, False), (3, False)]
    scene.publish(*[b"x"] * 4)
    assert scene.take() == [(1, 0), (1, 1)]
    scene.told.clear()
    # What the old one had comes first, in order.
    scene.do(scene.master.consumer_closed(1))
    assert scene.told == [(2, True)]
    assert scene.take() == [(2, 0), (2, 1)]
    # A cancelled one keeps what it has. The next one is active when that is settled: else it would
    # get what is behind it first.
    scene.do(scene.master.consumer_cancelled(2))
    assert scene.told == [(2, True)]
    scene.do(scene.master.settle(2, acked=[(0, 0)], requeued=[(1, 1)]))
    assert scene.told == [(2, True), (2, False), (3, True)]
    assert scene.take() == [(3, 1), (3, 2)]


def test_the_next_active_one_gets_nothing_before_what_comes_back() -> None:
    scene = Scene()
    scene.follow(single_active_consumer=True)
    scene.open(1, messages=2)
    scene.open(2, messages=2)
    scene.publish(*[b"x"] * 4)
    assert scene.take() == [(1, 0), (1, 1)]
    refused = scene.refused = []
    scene.do(scene.master.consumer_closed(1))
    scene.publish(b"y")
    assert scene.take() == []
    scene.refused = None
    scene.do([MulticastOp(op) for op in refused])
    assert scene.take() == [(2, 0), (2, 1)]


def test_a_prefetch_is_changed_while_consuming() -> None:
    scene = Scene()
    scene.open(1, messages=2)
    scene.publish(*[b"x"] * 6)
    assert scene.take() == [(1, 0), (1, 1)]
    scene.do(scene.master.prefetch_changed(1, 4, 1000))
    assert scene.take() == [(1, 2), (1, 3)]
    scene.do(scene.master.prefetch_changed(1, 1, 1000))
    scene.do(scene.master.settle(1, acked=[(0, 2)]))
    assert scene.take() == []
    scene.do(scene.master.settle(1, acked=[(3, 3)]))
    assert scene.take() == [(1, 4)]


def test_a_consumer_that_holds_a_message_for_too_long_loses_all() -> None:
    scene = Scene()
    scene.follow(consumer_timeout_ms=100)
    scene.open(1, messages=1)
    scene.open(2, messages=2)
    scene.publish(*[b"x"] * 3)
    assert scene.take() == [(1, 0), (2, 1), (2, 2)]
    for now in (1000, 1090):
        scene.do(scene.master.tick(now))
    scene.do(scene.master.settle(2, acked=[(1, 1), (2, 2)]))
    scene.do(scene.master.tick(1100))
    assert scene.told == [(1, EndReason.TIMED_OUT)]
    # It goes to the other one, and counts anew.
    assert scene.take() == [(2, 0)]
    assert scene.counts[0] == 1
    scene.do(scene.master.tick(1150))
    scene.do(scene.master.tick(1249))
    assert scene.take() == []
    assert len(scene.told) == 1
    scene.do(scene.master.tick(1250))
    assert scene.told[1:] == [(2, EndReason.TIMED_OUT)]


def test_a_message_leaves_once_it_has_come_back_too_often() -> None:
    scene = Scene()
    scene.follow(delivery_limit=2)
    scene.open(1)
    scene.publish(b"poison", b"good")
    for count in range(3):
        assert scene.take()[0] == (1, 0)
        assert scene.counts[0] == count
        scene.do(scene.master.settle(1, requeued=[(0, 0)]))
    assert scene.take() == []
    assert scene.queue.state.live.ranges() == [(1, 1)]


def test_parked_consumers_come_back_by_their_room() -> None:
    turns = Turns()
    for consumer, room in ((1, 10), (2, 30), (3, 20)):
        turns.enter(consumer, 0)
        turns.park(consumer, room)
        turns.check()
    assert turns.first() is None
    turns.unpark(25)
    assert turns.first() == 2
    turns.leave(2)
    turns.unpark(31)
    assert turns.first() is None
    turns.leave(1)
    turns.enter(3, -1)
    turns.check()
    assert turns.first() == 3
    assert not turns.has_parked
