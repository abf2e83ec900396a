"""Deadlines and lengths, case by case; `whole` plays them all together.

Names of RabbitMQ's cases are in the docstrings.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node.tests.queue.test_master import MANY, Scene

from ringmq_base.ranges import RangeSet
from ringmq_node.model.rules import Overflow, QueueRules
from ringmq_node.queue import expiry as expiry_module
from ringmq_node.queue.block import Block
from ringmq_node.queue.expiry import Expiry, deadline
from ringmq_node.queue.limits import first_ones, limits_of
from ringmq_node.queue.marks import Marks
from ringmq_node.queue.master import QueueMaster
from ringmq_node.queue.ops import AT_ONCE, Publish


class RuledScene(Scene):
    def __init__(self, **rules: int | Overflow) -> None:
        super().__init__()
        self.now = 1000
        self.begin(lambda: self.now, QueueRules(**rules))  # type: ignore[arg-type]

    def begin(self, now_ms: Callable[[], int], rules: QueueRules) -> None:
        self.master = QueueMaster(self.queue.state, self.queue, now_ms=now_ms)
        self.do(self.master.follow(rules))

    def publish_until(self, expires_at_ms: int | None, count: int = 1, size: int = 1) -> None:
        position = self.queue.state.next_position
        block = Block.of([b"x" * size] * count)
        op = Publish(position, block, False, b"p", position + 1, expires_at_ms=expires_at_ms)
        number = self.send(op)
        self.do(self.master.published(number, op, 1))
        self.all_safe()

    def ready(self) -> list[int]:
        return [p for first, last in self.master.ready for p in range(first, last + 1)]

    def at(self, now: int) -> None:
        self.now = now
        self.do(self.master.expire())
        self.all_safe()


@given(
    st.integers(0, 2**41), st.none() | st.integers(0, 10**10), st.none() | st.integers(0, 10**10)
)
def test_the_shorter_time_counts_and_is_at_most_a_thousandth_longer(
    now: int, queue_ms: int | None, message_ms: int | None
) -> None:
    found = deadline(now, queue_ms, message_ms)
    ttls = [ttl for ttl in (queue_ms, message_ms) if ttl is not None]
    if not ttls:
        assert found is None
    elif min(ttls) == 0:
        assert found == AT_ONCE
    else:
        assert found is not None
        assert now + min(ttls) <= found <= now + min(ttls) + max(min(ttls) / 1024, 1)


def test_many_messages_of_one_time_to_live_have_few_deadlines() -> None:
    marks = Marks()
    for at in range(20_000):
        marks.add(at, at, deadline(at * 3, 60_000, None) or 0)
    assert len(marks) <= 1100
    assert len(Expiry(marks)._heap) == len(marks)


def test_ranges_of_acknowledged_messages_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry_module, "_GARBAGE_MIN", 10)
    marks, live = Marks(), RangeSet()
    expiry = Expiry(marks)
    for at in range(500):
        marks.add(at, at, 10_000 + at % 7)
        live.add(at, at)
        expiry.add(at, at, 10_000 + at % 7)
        if at:
            live.remove(at - 1, at - 1)
            marks.prune([(at - 1, at - 1)], live)
        expiry.check(live)
    assert expiry._ranges < 20


def test_dropwhile() -> None:
    """variable_queue_dropwhile, _dropfetchwhile: expired ones go from anywhere in the queue."""
    scene = RuledScene()
    for at_ms in (None, 1005, 2000, 1005, None, 1010):
        scene.publish_until(at_ms)
    scene.at(1004)
    assert scene.ready() == [0, 1, 2, 3, 4, 5]
    scene.at(1005)
    assert scene.ready() == [0, 2, 4, 5]
    assert scene.removes() == [((1, 1), (3, 3))]
    scene.at(5000)
    assert scene.ready() == [0, 4]
    scene.check()


def test_nothing_expired_is_delivered_though_the_timer_is_late() -> None:
    scene = RuledScene()
    scene.publish_until(1005)
    scene.publish_until(None)
    scene.now = 1005
    scene.consume(7)
    assert scene.positions(7) == [1]
    assert scene.master.keeping.expired_total == 1


def test_expired_with_a_consumer_goes_when_it_is_back() -> None:
    """It is not outstanding for ever, nor delivered again."""
    scene = RuledScene()
    scene.publish_until(1005)
    scene.consume(7)
    scene.at(2000)
    assert scene.positions(7) == [0]
    assert scene.queue.state.live
    scene.consume(8)
    scene.requeue(7, (0, 0))
    scene.all_safe()
    assert scene.positions(8) == []
    assert not scene.queue.state.live


def test_now_or_never() -> None:
    scene = RuledScene()
    scene.publish_until(AT_ONCE, 3)
    assert scene.ready() == []
    scene.consume(7, 2)
    scene.publish_until(AT_ONCE, 3)
    assert scene.positions(7) == [3, 4]
    assert scene.ready() == []
    scene.all_safe()
    assert [*scene.queue.state.live] == [(3, 4)]


def test_many_expire_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry_module, "PIECE_RANGES_MAX", 2)
    scene = RuledScene()
    for at_ms in (1005, 2000) * 5:
        scene.publish_until(at_ms)
    pieces = 0
    more = scene.do

    def counted(effects: list[object]) -> None:
        nonlocal pieces
        pieces += 1
        more(effects)  # type: ignore[arg-type]

    monkeypatch.setattr(scene, "do", counted)
    scene.at(1005)
    assert scene.ready() == [1, 3, 5, 7, 9]
    assert pieces > 2


@pytest.mark.parametrize("size", [1, 10])
def test_max_length_drop_head(size: int) -> None:
    """max_length_drop_head, max_length_bytes_drop_head: the newest stay, also of one batch that is
    larger than the limit, and each is confirmed."""
    by_bytes = RuledScene(max_length_bytes=3 * size)
    by_number = RuledScene(max_length=3)
    for scene in (by_bytes, by_number):
        scene.publish_until(None, 10, size)
        assert scene.ready() == [7, 8, 9]
        assert sum(b - a + 1 for _, ranges in scene.confirmed for a, b in ranges) == 10
        scene.publish_until(None, 1, size)
        assert scene.ready() == [8, 9, 10]
        assert scene.master.keeping.dropped_total == 8


def test_a_message_that_is_larger_than_the_queue_may_be() -> None:
    scene = RuledScene(max_length_bytes=5)
    scene.publish_until(None, 2, 2)
    scene.publish_until(None, 1, 6)
    assert scene.ready() == []


def test_consumers_come_before_the_limit() -> None:
    """What they have room for isn't dropped, however large the batch."""
    scene = RuledScene(max_length=2)
    scene.consume(7, 4)
    scene.publish_until(None, 10)
    assert scene.positions(7) == [0, 1, 2, 3]
    assert scene.ready() == [8, 9]
    scene.requeue(7, (0, 3))
    scene.all_safe()
    assert scene.positions(7) == [0, 1, 2, 3, 0, 1, 2, 3]


def test_hidden_messages_push_nothing_out() -> None:
    """They may never be confirmed."""
    scene = RuledScene(max_length=3)
    scene.publish_until(None, 3)
    scene.publish(2)
    scene.do(scene.master.follow(QueueRules(max_length=3)))
    assert scene.ready() == [0, 1, 2, 3, 4]
    scene.all_safe()
    assert scene.ready() == [2, 3, 4]


def test_a_shorter_limit_lets_go_at_once() -> None:
    scene = RuledScene()
    scene.publish_until(None, 10)
    scene.do(scene.master.follow(QueueRules(max_length=4)))
    assert scene.ready() == [6, 7, 8, 9]
    scene.do(scene.master.follow(QueueRules(max_length=0)))
    assert scene.ready() == []


@pytest.mark.parametrize(
    ("rules", "ready", "fits"),
    [
        (QueueRules(max_length=3), (9, 9), 4),
        (QueueRules(max_length=3, overflow=Overflow.REJECT_PUBLISH), (0, 0), 3),
        (QueueRules(max_length=3, overflow=Overflow.REJECT_PUBLISH), (3, 0), 0),
        (QueueRules(max_length=3, overflow=Overflow.REJECT_PUBLISH), (9, 0), 0),
        (QueueRules(max_length_bytes=7, overflow=Overflow.REJECT_PUBLISH), (0, 0), 3),
        (QueueRules(max_length_bytes=7, overflow=Overflow.REJECT_PUBLISH), (5, 6), 0),
        (QueueRules(max_length_bytes=8, overflow=Overflow.REJECT_PUBLISH), (5, 6), 1),
        (QueueRules(None, None, 2, 7, Overflow.REJECT_PUBLISH), (0, 0), 2),
        (QueueRules(overflow=Overflow.REJECT_PUBLISH), (9, 9), 4),
    ],
)
def test_max_length_reject(rules: QueueRules, ready: tuple[int, int], fits: int) -> None:
    """Of four messages of two bytes."""
    assert limits_of(rules).fitting(*ready, [b"xx"] * 4) == fits


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(-3, 30), st.integers(-3, 90)
)
def test_the_fewest_that_are_enough(sizes: list[int], messages: int, size_bytes: int) -> None:
    scene = Scene()
    for size in sizes:
        scene.publish(1, size=size)
    found = first_ones([(0, len(sizes) - 1)], messages, size_bytes, scene.queue)
    count = sum(last - first + 1 for first, last in found)
    enough = (n for n in range(len(sizes)) if n >= messages and sum(sizes[:n]) >= size_bytes)
    assert count == next(enough, len(sizes))
    assert count < MANY
