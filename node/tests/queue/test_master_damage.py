"""`QueueMaster` while bodies are missing: it holds the queue, or puts messages aside."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from node.tests.queue.memory import MemoryQueue
from node.tests.queue.test_master import Scene
from node.tests.queue.test_master_model import SIZES, MasterMachine, Queue

from ringmq_node.queue.consumers import ConsumerTerms, PrefetchUsedError
from ringmq_node.queue.ops import Remove


class DamagedScene(Scene):
    """Bodies of the queue may be lost and found."""

    def lose(self, *positions: int) -> None:
        self.queue.missing.update((at, at) for at in positions)
        self.do(self.master.lost())

    def fill(self, *positions: int) -> None:
        for at in positions:
            self.queue.missing.remove(at, at)
            self.do(self.master.filled(at, at))

    def give_up(self, *positions: int) -> None:
        self.do(self.master.give_up([(at, at) for at in positions]))


def test_messages_before_the_damage_are_delivered_and_none_behind_it() -> None:
    scene = DamagedScene()
    scene.publish(6)
    scene.lose(2, 4)
    scene.all_safe()
    scene.consume(7)
    assert scene.positions(7) == [0, 1]
    assert scene.master.is_held
    # Publishes, confirms and acks go on.
    scene.publish(1)
    scene.ack(7, (0, 1))
    scene.all_safe()
    assert scene.confirmed == [(1, ((1, 6),)), (1, ((7, 7),))]
    assert scene.settled == [(7, ((0, 1),))]
    scene.check()
    scene.fill(2)
    assert scene.positions(7) == [0, 1, 2, 3]
    scene.fill(4)
    assert scene.positions(7) == [0, 1, 2, 3, 4, 5, 6]
    assert not scene.master.is_held
    scene.check()


def test_message_that_no_replica_has_is_put_aside_and_put_back_in_its_place() -> None:
    scene = DamagedScene()
    scene.publish(5)
    scene.lose(0, 2)
    scene.all_safe()
    scene.consume(7, messages=2)
    scene.give_up(0, 2)
    assert scene.positions(7) == [1, 3]
    assert [*scene.master.damaged] == [(0, 0), (2, 2)]
    assert len(scene.master.ready) == 1
    assert len(scene.queue.state.live) == 5
    scene.check()
    scene.fill(2)
    scene.ack(7, (1, 1), (3, 3))
    assert scene.positions(7) == [1, 3, 2, 4]
    assert [*scene.master.damaged] == [(0, 0)]
    scene.check()


def test_damaged_messages_are_removed_only_by_discard() -> None:
    scene = DamagedScene()
    scene.publish(5)
    scene.lose(1, 3)
    scene.give_up(1, 3)
    scene.all_safe()
    count, effects = scene.master.purge(8)
    assert count == 3
    scene.do(effects)
    scene.all_safe()
    assert [*scene.queue.state.live] == [(1, 1), (3, 3)]
    count, effects = scene.master.discard_damaged(9)
    assert count == 2
    scene.do(effects)
    scene.check()
    scene.all_safe()
    assert (9, ((1, 1), (3, 3))) in scene.settled
    assert not scene.queue.state.live
    assert scene.master.discard_damaged(10) == (0, [])
    scene.check()


def test_lost_while_a_consumer_has_it() -> None:
    """The message stays with its consumer. Acked, it is removed; requeued, it is damaged, and
    holds up no other."""
    scene = DamagedScene()
    scene.publish(3, size=10)
    scene.all_safe()
    scene.consume(7, size=30)
    assert scene.positions(7) == [0, 1, 2]
    scene.lose(0, 1)
    scene.give_up(0, 1)
    assert not scene.master.damaged
    assert scene.master.unacknowledged_bytes == 10
    scene.ack(7, (0, 0))
    scene.requeue(7, (1, 2))
    assert scene.positions(7) == [0, 1, 2, 2]
    assert [*scene.master.damaged] == [(1, 1)]
    scene.check()
    scene.fill(1)
    assert scene.got[7][-1] == (1, True)
    assert scene.master.unacknowledged_bytes == 20
    scene.check()


def test_found_again_while_a_consumer_has_it() -> None:
    scene = DamagedScene()
    scene.publish(2, size=10)
    scene.all_safe()
    scene.consume(7, size=20)
    scene.lose(0)
    assert scene.master.unacknowledged_bytes == 10
    scene.fill(0)
    assert scene.master.unacknowledged_bytes == 20
    scene.check()
    scene.ack(7, (0, 1))
    assert scene.master.unacknowledged_bytes == 0


@pytest.mark.parametrize("first", [0, 1])
def test_take_and_peek_stop_at_the_damage(first: int) -> None:
    scene = DamagedScene()
    scene.publish(4)
    scene.all_safe()
    scene.lose(first)
    peeked = scene.master.peek(10, 100)
    taken, effects = scene.master.take(9, 10, 100)
    assert [run.first_position for run in peeked] == [*range(first)]
    assert [run.first_position for run in taken] == [*range(first)]
    scene.do(effects)
    assert scene.master.is_held
    scene.give_up(first)
    assert not scene.master.is_held
    assert scene.master.peek(1, 100)[0].first_position == first + 1
    scene.check()


def test_removed_while_it_timed_out() -> None:
    scene = DamagedScene()
    scene.publish(2)
    scene.all_safe()
    scene.consume(7)
    scene.lose(0)
    scene.give_up(0)
    scene.ack(7, (0, 0))
    scene.check()
    assert scene.log[-1] == Remove(((0, 0),))


def test_who_pulls_nothing_is_not_told_that_it_has_no_room() -> None:
    scene = DamagedScene()
    scene.publish(1)
    scene.all_safe()
    scene.do(scene.master.consumer_opened(7, ConsumerTerms(1, 1, pulls=True)))
    scene.do(scene.master.consumer_begun(7))
    assert scene.master.pull(7, 0, 0) == ([], [])
    [run], _ = scene.master.pull(7, 1, 0)
    assert run.positions == (0, 0)
    scene.publish(1)
    scene.all_safe()
    with pytest.raises(PrefetchUsedError):
        scene.master.pull(7, 1, 0)


class DamageMachine(MasterMachine):
    """Bodies go missing, come back, or are given up, at any time; see `test_master_model`."""

    def make_queue(self) -> Queue:
        self.memory = MemoryQueue()
        return self.memory

    @initialize(sizes=st.lists(SIZES, min_size=10, max_size=20), prefetch=st.integers(1, 9))
    def begin(self, sizes: list[int], prefetch: int) -> None:
        """Begins with messages, some with a consumer: else most runs have none to lose."""
        self.publish(sizes, transient=False, producer=b"", again=0, publisher=-1)
        self.open_consumer(prefetch, 10_000)
        self.all_is_safe()

    @precondition(lambda self: len(self.bodies) > len(self.missing))
    @rule(which=st.lists(st.integers(0, 30), min_size=1, max_size=3))
    def lose(self, which: list[int]) -> None:
        there = sorted(set(self.bodies) - self.missing)
        lost = {there[place % len(there)] for place in which}
        self.missing |= lost
        self.memory.missing.update((at, at) for at in sorted(lost))
        self.do(self.master.lost())

    @precondition(lambda self: self.missing)
    @rule(which=st.integers(0, 30), count=st.integers(1, 3))
    def fill(self, which: int, count: int) -> None:
        missing = sorted(self.missing)
        first = last = missing[which % len(missing)]
        while last + 1 in self.missing and last + 1 - first < count:
            last += 1
        found = set(range(first, last + 1))
        self.missing -= found
        self.memory.missing.remove(first, last)
        self.out_of_order |= self.given_up & found
        self.given_up -= found
        self.ready |= self.damaged & found
        self.damaged -= found
        self.do(self.master.filled(first, last))

    @rule()
    def give_up(self) -> None:
        self.given_up |= self.missing
        self.damaged |= self.ready & self.missing
        self.ready -= self.missing
        self.do(self.master.give_up([*self.memory.missing]))

    @rule()
    def discard(self) -> None:
        taker = self.next_id()
        count, effects = self.master.discard_damaged(taker)
        assert count == len(self.damaged)
        self.want_removed(taker, sorted(self.damaged))
        if self.damaged:
            self.takers[taker] = set(self.damaged)
        self.damaged.clear()
        self.do(effects)

    def drain(self) -> None:
        while self.missing:
            self.fill(0, 100)
        super().drain()


DamageMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMasterWithDamage = DamageMachine.TestCase
