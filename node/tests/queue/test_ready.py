"""Messages that nobody has: `Ready` alone. Its way with visible messages is in the model."""

from __future__ import annotations

import pytest
from node.tests.queue.memory import MemoryQueue

from ringmq_node.queue.block import Block
from ringmq_node.queue.ops import Publish
from ringmq_node.queue.ready import Ready


class Scene:
    """Messages of these sizes, all of them live and ready."""

    def __init__(self, *sizes: int) -> None:
        self.queue = MemoryQueue()
        self.queue.append(Publish(0, Block.of([b"x" * size for size in sizes])))
        self.ready = Ready(self.queue.state.live, self.queue)

    def lose(self, *positions: int) -> None:
        for at in positions:
            self.queue.missing.add(at, at)
        self.ready.recount()

    def take(
        self, below: int, messages: int = 100, size: int = 1000, first: int | None = None
    ) -> list[int]:
        runs = self.ready.take(below, messages_max=messages, bytes_max=size, first_bytes_max=first)
        self.ready.check()
        return [run.first_position for run in runs]


def test_takes_visible_messages_in_order() -> None:
    scene = Scene(1, 1, 1, 1)
    assert scene.take(0) == []
    assert scene.take(3, messages=2) == [0, 1]
    assert scene.take(3) == [2]
    assert (scene.ready.positions.ranges(), scene.ready.body_bytes) == ([(3, 3)], 1)


@pytest.mark.parametrize(
    ("size", "first", "taken"),
    [(10, None, [0]), (10, 29, []), (10, 30, [0]), (1000, 30, [0, 1, 2]), (45, 45, [0, 1])],
)
def test_the_first_message_has_a_limit_of_its_own(
    size: int, first: int | None, taken: list[int]
) -> None:
    assert Scene(30, 5, 20).take(3, size=size, first=first) == taken


def test_a_missing_message_holds_those_behind_it_until_it_is_given_up() -> None:
    scene = Scene(1, 1, 1)
    scene.lose(1)
    assert scene.take(3) == [0]
    assert scene.ready.is_held(3)
    # Below the message that is missing nothing is visible: nothing is held up either.
    assert not scene.ready.is_held(1)
    scene.ready.give_up([(1, 1)])
    assert not scene.ready.is_held(3)
    assert scene.take(3) == [2]
    assert scene.ready.damaged.ranges() == [(1, 1)]


def test_a_damaged_message_whose_body_turns_up_is_ready_again() -> None:
    scene = Scene(1, 7, 1)
    scene.lose(1)
    scene.ready.give_up([(1, 1)])
    scene.queue.missing.clear()
    scene.ready.filled(1, 1)
    assert scene.ready.body_bytes == 9
    assert scene.take(3) == [0, 1, 2]


def test_a_message_that_timed_out_while_a_consumer_had_it_comes_back_as_damaged() -> None:
    """Nobody repairs it any more: as a ready one it would hold the queue for ever."""
    scene = Scene(1, 1)
    assert scene.take(1) == [0]
    scene.lose(0)
    scene.ready.give_up([(0, 0)])
    assert scene.ready.damaged.ranges() == []
    scene.ready.put_back([(0, 0)])
    assert scene.ready.damaged.ranges() == [(0, 0)]
    assert scene.take(2) == [1]


def test_a_removed_message_is_not_given_up_any_more() -> None:
    scene = Scene(1)
    scene.lose(0)
    scene.ready.give_up([(0, 0)])
    assert scene.ready.take_damaged() == [(0, 0)]
    scene.queue.missing.clear()
    scene.ready.removed([(0, 0)])
    scene.ready.check()


def test_a_reader_without_the_body_of_a_message_that_is_there_is_a_bug() -> None:
    scene = Scene(1)
    scene.queue.read_messages_max = 0
    with pytest.raises(AssertionError, match="ready position 0 has no body"):
        scene.take(1)
