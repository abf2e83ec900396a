"""Consumers with a share of a window: what they are given, and when they are told to be short."""

from __future__ import annotations

import random
from collections import deque

import pytest
from node.tests.queue.ring_of_one import Scene

from ringmq_base.window import ChangeShare, Share, SharedWindow
from ringmq_node.queue.effects import DeliverRuns, Effect, TellShort


class Shared(Scene):
    def share(self, consumer: int, messages: int, size_bytes: int = 1000) -> None:
        self.master.consumers.change_share(consumer, Share(messages, size_bytes))
        self.do(self.master.deliver_more())

    def shorts(self) -> list[tuple[int, bool, int]]:
        told, self.short = self.short, []
        self.master.check()
        return [(each.consumer, each.short, each.needs_bytes) for each in told]


def test_it_takes_no_more_than_its_share_and_says_that_more_is_there() -> None:
    scene = Shared()
    scene.open(1, shares_window=True)
    assert scene.shorts() == []
    scene.publish(b"one", b"two", b"three", b"four")
    assert (scene.take(), scene.shorts()) == ([], [(1, True, 3)])
    scene.share(1, 2)
    assert scene.take() == [(1, 0), (1, 1)]
    assert scene.shorts() == [], "it knows"
    scene.do(scene.master.settle(1, acked=[(0, 0)]))
    assert (scene.take(), scene.shorts()) == ([(1, 2)], [])
    scene.share(1, 100)
    assert (scene.take(), scene.shorts()) == ([(1, 3)], [(1, False, 0)]), "nothing is left"
    scene.share(1, 1)
    scene.publish(b"five")
    assert (scene.take(), scene.shorts()) == ([], [(1, True, 4)])


def test_its_prefetch_holds_beside_its_share() -> None:
    scene = Shared()
    scene.open(1, messages=2, shares_window=True)
    scene.publish(b"1", b"2", b"3")
    scene.share(1, 1)
    assert (scene.take(), scene.shorts()) == ([(1, 0)], [(1, True, 1)])
    scene.share(1, 9)
    assert (scene.take(), scene.shorts()) == ([(1, 1)], [(1, False, 0)]), "its prefetch is full"
    scene.do(scene.master.consumer_cancelled(1))
    assert scene.shorts() == []


def test_a_message_larger_than_its_share_waits_and_its_size_is_told() -> None:
    scene = Shared()
    scene.open(1, shares_window=True)
    scene.share(1, 10, 5)
    scene.publish(b"123")
    scene.publish(b"1234567")
    scene.publish(b"12345678")
    assert (scene.take(), scene.shorts()) == ([(1, 0)], [(1, True, 7)])
    scene.do(scene.master.settle(1, acked=[(0, 0)]))
    assert (scene.take(), scene.shorts()) == ([], [])
    scene.share(1, 1, 7)
    assert (scene.take(), scene.shorts()) == ([(1, 1)], [])
    scene.do(scene.master.settle(1, acked=[(1, 1)]))
    assert (scene.take(), scene.shorts()) == ([], [(1, True, 8)])


def test_its_prefetch_in_bytes_holds_also_for_the_first_messages_that_it_takes() -> None:
    """Found by a plan of `fuzz_queue`, seed 137: it got as many bytes as its share had."""
    scene = Shared()
    scene.open(1, shares_window=True)
    scene.do(scene.master.prefetch_changed(1, 100, 5))
    scene.share(1, 10, 1000)
    scene.publish(b"1234", b"1234", b"1234")
    assert scene.take() == [(1, 0)]


def test_it_is_told_again_of_a_message_that_comes_back() -> None:
    """Its share is too small for the message, which another consumer takes and lets go of (seed
    1489): it stayed parked, and its window never knew that it wanted more."""
    scene = Shared()
    scene.open(1, shares_window=True)
    scene.share(1, 10, 3)
    scene.publish(b"1234")
    assert (scene.take(), scene.shorts()) == ([], [(1, True, 4)])
    scene.open(2)
    assert (scene.take(), scene.shorts()) == ([(2, 0)], [(1, False, 0)])
    scene.do(scene.master.consumer_closed(2))
    assert (scene.take(), scene.shorts()) == ([], [(1, True, 4)])


def test_it_is_told_of_a_smaller_message_behind_one_that_its_prefetch_kept_from_it() -> None:
    scene = Shared()
    scene.open(1, shares_window=True)
    scene.do(scene.master.prefetch_changed(1, 100, 6))
    scene.share(1, 10, 3)
    scene.publish(b"1")
    scene.publish(b"123456")
    scene.publish(b"1234")
    assert (scene.take(), scene.shorts()) == ([(1, 0)], []), "its prefetch is too small"
    scene.open(2, messages=1)
    assert (scene.take(), scene.shorts()) == ([(2, 1)], [(1, True, 4)])


def test_one_that_waits_behind_the_active_one_is_not_short() -> None:
    scene = Shared()
    scene.follow(single_active_consumer=True)
    scene.open(1, shares_window=True)
    scene.open(2, shares_window=True)
    scene.publish(b"1", b"2")
    assert scene.shorts() == [(1, True, 1)]
    scene.do(scene.master.consumer_closed(1))
    assert scene.shorts() == [(2, True, 1)]


class Program:
    """A window over the consumers of some queues, whose masters are real. What either side says
    arrives later, in order for each queue."""

    def __init__(self, window: SharedWindow, queues: int) -> None:
        self.window = window
        self.queues = [Shared() for _ in range(queues)]
        self.down: list[deque[Share | int]] = [deque() for _ in self.queues]
        self.up: list[deque[Effect | Share]] = [deque() for _ in self.queues]
        self.held: list[deque[tuple[int, int]]] = [deque() for _ in self.queues]
        self.size_of: list[dict[int, int]] = [{0: 0} for _ in self.queues]
        for number, queue in enumerate(self.queues):
            queue.open(1, shares_window=True)
            self.carry_out(window.opened(number))

    def publish(self, number: int, *bodies: bytes) -> None:
        queue = self.queues[number]
        first = queue.queue.state.next_position
        self.size_of[number] |= {first + at: len(body) for at, body in enumerate(bodies)}
        queue.publish(*bodies)
        self.gather(number)

    def gather(self, number: int) -> None:
        """What the master has said. Deliveries first: of a turn, they are before what is short."""
        queue = self.queues[number]
        for consumer, position in queue.take():
            if consumer == 1:
                size = self.size_of[number][position]
                self.up[number].append(DeliverRuns(position, ()))
                assert size >= 0
            else:
                queue.do(queue.master.settle(consumer, acked=[(position, position)]))
        self.up[number].extend(queue.short)
        queue.short.clear()

    def carry_out(self, changes: list[ChangeShare]) -> None:
        for change in changes:
            share = Share(change.share.messages, change.share.size_bytes)
            self.down[change.stream].append(share)
        self.window.check()
        sizes = [size for held in self.held for _, size in held]
        limit = self.window.limit
        fits = len(sizes) <= limit.messages and sum(sizes) <= limit.size_bytes
        assert fits or len(sizes) <= 1, (sizes, limit)

    def master_hears(self, number: int) -> None:
        said, queue = self.down[number].popleft(), self.queues[number]
        if isinstance(said, Share):
            queue.share(1, said.messages, said.size_bytes)
            self.gather(number)
            self.up[number].append(said)
        else:
            queue.do(queue.master.settle(1, acked=[(said, said)]))
            self.gather(number)

    def program_hears(self, number: int) -> None:
        match self.up[number].popleft():
            case TellShort(_, short, needs_bytes):
                told = self.window.short(number, is_short=short, needs_bytes=needs_bytes)
                self.carry_out(told)
            case DeliverRuns(position, _):
                size = self.size_of[number][position]
                self.held[number].append((position, size))
                self.carry_out(self.window.delivered(number, 1, size))
            case _:
                self.carry_out(self.window.answered(number))

    def settle(self, number: int) -> None:
        position, size = self.held[number].popleft()
        self.down[number].append(position)
        self.carry_out(self.window.settled(number, 1, size))


@pytest.mark.parametrize("seed", range(12))
def test_a_window_over_real_masters_is_kept_and_nothing_starves(seed: int) -> None:
    draw = random.Random(seed)
    window = SharedWindow(draw.choice((1, 2, 3, 10)), draw.choice((0, 5, 40)))
    program = Program(window, draw.randrange(1, 4))
    published = 0
    for _ in range(500):
        number = draw.randrange(len(program.queues))
        match draw.randrange(8):
            case 0:
                sizes = [draw.choice((0, 1, 2, 9, 60)) for _ in range(draw.randrange(1, 4))]
                program.publish(number, *[b"x" * size for size in sizes])
                published += len(sizes)
            case 1 if draw.random() < 0.3 and 2 not in program.queues[number].master.consumers:
                program.queues[number].open(2, messages=draw.choice((1, 5)))
                program.gather(number)
            case 2 | 3 if program.held[number]:
                program.settle(number)
            case 4 | 5 if program.up[number]:
                program.program_hears(number)
            case _ if program.down[number]:
                program.master_hears(number)
    for _ in range(20 * published):
        if not any((*program.down, *program.up, *program.held)):
            break
        for number in range(len(program.queues)):
            if program.down[number]:
                program.master_hears(number)
            if program.up[number]:
                program.program_hears(number)
            elif program.held[number]:
                program.settle(number)
    assert [queue.master.messages for queue in program.queues] == [0] * len(program.queues)
