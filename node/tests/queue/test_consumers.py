"""The messages that consumers have: `Subscriptions` alone."""

from __future__ import annotations

import pytest
from node.tests.queue.memory import MemoryQueue

from ringmq_base.ranges import Range, RangeSet
from ringmq_node.queue.block import Block
from ringmq_node.queue.consumers import (
    ConsumerTerms,
    NotOutstandingError,
    Subscription,
    Subscriptions,
)
from ringmq_node.queue.ops import Publish

TERMS = ConsumerTerms(100, 1000)


class Scene:
    """A queue of messages of ten bytes, some of them with consumer 7."""

    def __init__(self, messages: int, delivered: Range) -> None:
        self.queue = MemoryQueue()
        self.queue.append(Publish(0, Block.of([b"x" * 10] * messages)))
        self.consumers = Subscriptions(self.queue)
        self.open(7)
        self.deliver(7, *delivered)

    def open(self, consumer: int, terms: ConsumerTerms = TERMS) -> None:
        self.consumers.open(consumer, terms)
        self.consumers.begin(consumer)

    def of(self, consumer: int) -> Subscription:
        return next(one for one in self.consumers if one.id == consumer)

    def deliver(self, consumer: int, first: int, last: int) -> None:
        runs = self.queue.read(first, last, bytes_max=1000, messages_max=100)
        self.consumers.deliver(self.of(consumer), runs)

    def turn(self) -> int | None:
        """Who is next, and has had its turn then."""
        one = self.consumers.next_turn()
        if one is not None:
            self.consumers.deliver(one, [])
        return one.id if one else None

    def check(self) -> None:
        self.consumers.check(self.queue.state.next_position)


def test_room_is_what_the_prefetch_leaves() -> None:
    scene = Scene(5, (0, 2))
    one = scene.of(7)
    assert (one.room_messages, one.room_bytes) == (97, 970)
    assert (scene.consumers.unacknowledged, scene.consumers.unacknowledged_bytes) == (3, 30)
    scene.consumers.settle(7, [(0, 2)])
    assert (one.room_messages, one.room_bytes) == (100, None)
    scene.consumers.cancel(7)
    assert one.room_messages == 0
    scene.check()


@pytest.mark.parametrize(
    "ranges",
    [
        pytest.param([(0, 3)], id="more than it has"),
        pytest.param([(4, 4)], id="none that it has"),
        pytest.param([(0, 1), (1, 2)], id="one of them twice"),
    ],
)
def test_settling_is_all_or_nothing(ranges: list[Range]) -> None:
    scene = Scene(5, (0, 2))
    with pytest.raises(NotOutstandingError) as caught:
        scene.consumers.settle(7, ranges)
    assert (caught.value.first, caught.value.last) == ranges[-1]
    assert scene.of(7).outstanding.ranges() == [(0, 2)]
    scene.check()


def test_a_consumer_that_was_never_opened_has_nothing() -> None:
    scene = Scene(1, (0, 0))
    with pytest.raises(NotOutstandingError):
        scene.consumers.settle(8, [(0, 0)])


def test_turns_go_around_and_a_closed_consumer_has_none() -> None:
    scene = Scene(4, (0, 0))
    scene.open(8)
    scene.open(9)
    assert [scene.turn() for _ in range(4)] == [7, 8, 9, 7]
    assert scene.consumers.close(7) == (RangeSet([(0, 0)]), [])
    assert [scene.turn() for _ in range(3)] == [8, 9, 8]
    assert scene.consumers.unacknowledged_bytes == 0
    scene.check()


def test_bodies_that_are_missing_do_not_count_until_they_are_back() -> None:
    scene = Scene(3, (0, 2))
    scene.queue.missing.add(1, 1)
    scene.consumers.recount()
    assert (scene.of(7).outstanding_bytes, scene.of(7).had_more) == (20, True)
    scene.check()
    scene.queue.missing.remove(1, 1)
    scene.consumers.filled(1, 1)
    assert scene.consumers.unacknowledged_bytes == 30
    scene.check()


def test_a_body_that_went_missing_a_moment_ago_is_settled_without_a_negative_count() -> None:
    """The loss is told a turn of the loop later: until then the count is too high, never low."""
    scene = Scene(3, (0, 2))
    scene.queue.missing.add(1, 1)
    scene.consumers.settle(7, [(0, 2)])
    assert scene.of(7).outstanding_bytes == 10
    scene.consumers.recount()
    assert scene.consumers.unacknowledged_bytes == 0
    scene.check()
