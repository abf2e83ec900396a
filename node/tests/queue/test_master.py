"""`QueueMaster` scenario by scenario, with replicas of its state beside it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from node.tests.queue.memory import MemoryQueue

from ringmq_base.ranges import Range
from ringmq_node.queue import deliveries, ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.consumers import ConsumerTerms, NotOutstandingError
from ringmq_node.queue.effects import (
    ConfirmSequences,
    DeliverMore,
    DeliverRuns,
    Effect,
    MulticastOp,
    ReportBarrier,
    ReportSettled,
)
from ringmq_node.queue.master import QueueMaster
from ringmq_node.queue.ops import AskedOp, Op, Publish, Remove, Requeue
from ringmq_node.queue.run import Run
from ringmq_node.queue.state import ReplicatedState

MANY = 10_000


class Scene:
    """A master, two more replicas of its state, and all that its clients are told."""

    def __init__(self, queue: MemoryQueue | None = None) -> None:
        self.queue = queue or MemoryQueue()
        self.log: list[Op] = []
        self.mirrors = [ReplicatedState(), ReplicatedState()]
        self.master = QueueMaster(self.queue.state, self.queue)
        self.refusing = False
        self.held: list[AskedOp] = []
        # By consumer, in order: (position, redelivered).
        self.got: dict[int, list[tuple[int, bool]]] = {}
        self.confirmed: list[tuple[int, tuple[Range, ...]]] = []
        self.settled: list[tuple[int, tuple[Range, ...]]] = []
        self.reached: list[int] = []

    def send(self, op: Op) -> int:
        number = self.queue.append(op)
        self.log.append(op)
        for mirror in self.mirrors:
            mirror.apply(number, ops.decode(ops.encode(op)))
        return number

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case MulticastOp(op):
                    self.held.append(op)
                    self.send_held()
                case DeliverRuns(consumer, runs):
                    self.got.setdefault(consumer, []).extend(spread(runs))
                case DeliverMore():
                    self.do(self.master.deliver_more())
                case ConfirmSequences(publisher, sequences):
                    self.confirmed.append((publisher, sequences))
                case ReportSettled(consumer, positions):
                    self.settled.append((consumer, positions))
                case ReportBarrier(waiter):
                    self.reached.append(waiter)

    def send_held(self) -> None:
        while self.held and not self.refusing:
            op = self.held.pop(0)
            number = self.send(op)
            self.do(self.master.applied(number, op))

    def publish(
        self,
        count: int = 1,
        *,
        size: int = 1,
        transient: bool = False,
        publisher: int = 1,
        priority: int = 0,
    ) -> int:
        position = self.queue.state.next_position
        block = Block.of([b"x" * size] * count)
        op = Publish(position, block, transient, b"p", position + 1, priority=priority)
        number = self.send(op)
        self.do(self.master.published(number, op, publisher))
        return number

    def marks(self, received: int, persisted: int) -> None:
        self.do(self.master.watermarks(received, persisted))

    def all_safe(self) -> None:
        """All ops are persisted by all, and those that follow from it, until none follows."""
        for _ in range(4):
            self.marks(self.queue.state.last_number, self.queue.state.last_number)

    def consume(self, consumer: int, messages: int = MANY, size: int = MANY) -> None:
        self.do(self.master.consumer_opened(consumer, ConsumerTerms(messages, size)))
        self.do(self.master.consumer_begun(consumer))

    def ack(self, consumer: int, *ranges: Range) -> None:
        self.do(self.master.settle(consumer, acked=ranges, requeued=()))

    def requeue(self, consumer: int, *ranges: Range) -> None:
        self.do(self.master.settle(consumer, acked=(), requeued=ranges))

    def positions(self, consumer: int) -> list[int]:
        return [position for position, _ in self.got.get(consumer, [])]

    def removes(self) -> list[tuple[Range, ...]]:
        return [op.ranges for op in self.log if isinstance(op, Remove)]

    def check(self) -> None:
        self.master.check()
        digests = {state.digest() for state in (self.queue.state, *self.mirrors)}
        assert len(digests) == 1


def spread(runs: Sequence[Run]) -> list[tuple[int, bool]]:
    return [
        (position, run.redelivered)
        for run in runs
        for position in range(run.first_position, run.first_position + run.block.count)
    ]


# --- visible, confirmed ---


def test_message_is_delivered_when_its_publish_is_confirmed_and_not_before() -> None:
    scene = Scene()
    scene.consume(7)
    number = scene.publish(3)
    scene.marks(number, number - 1)
    assert scene.got == {}
    assert scene.confirmed == []
    scene.marks(number, number)
    assert scene.positions(7) == [0, 1, 2]
    assert scene.confirmed == [(1, ((1, 3),))]
    scene.check()


def test_transient_message_is_safe_when_received_but_does_not_overtake() -> None:
    scene = Scene()
    scene.consume(7)
    scene.publish(1, transient=True)
    scene.marks(1, 0)
    assert scene.positions(7) == [0]
    scene.publish(1)
    scene.publish(1, transient=True)
    scene.marks(3, 1)
    # Its publisher is told; a consumer has to see the message before it first.
    assert scene.confirmed == [(1, ((1, 1),)), (1, ((3, 3),))]
    assert scene.positions(7) == [0]
    scene.marks(3, 3)
    assert scene.positions(7) == [0, 1, 2]


def test_confirms_of_publishers_are_ranges_of_their_own() -> None:
    scene = Scene()
    for publisher in (1, 2, 1, 1):
        scene.publish(2, publisher=publisher)
    scene.marks(4, 3)
    assert scene.confirmed == [(1, ((1, 2), (5, 6))), (2, ((3, 4),))]
    scene.marks(4, 4)
    assert scene.confirmed[2:] == [(1, ((7, 8),))]


def test_repeat_is_confirmed_with_the_last_op() -> None:
    scene = Scene()
    scene.publish(3)
    scene.do(scene.master.repeated(2, (1, 3), transient=False))
    assert scene.confirmed == []
    scene.marks(1, 1)
    assert scene.confirmed == [(1, ((1, 3),)), (2, ((1, 3),))]
    scene.do(scene.master.repeated(3, (2, 2), transient=False))
    assert scene.confirmed[2:] == [(3, ((2, 2),))]


@pytest.mark.parametrize("transient", [False, True])
def test_publish_whose_watermark_came_first_is_confirmed_and_delivered(transient: bool) -> None:
    """In a ring of one, `multicast` returns after the watermark that the op brought about."""
    scene = Scene()
    scene.consume(7)
    op = Publish(0, Block.of([b"x"]), transient, b"p", 1)
    number = scene.send(op)
    scene.marks(number, number)
    scene.do(scene.master.published(number, op, 1))
    assert scene.confirmed == [(1, ((1, 1),))]
    assert scene.positions(7) == [0]
    scene.check()


# --- prefetch ---


def test_one_message_passes_prefetch_whatever_its_size() -> None:
    scene = Scene()
    scene.publish(1, size=500)
    scene.publish(1, size=500)
    scene.all_safe()
    scene.consume(7, size=100)
    assert scene.positions(7) == [0]
    scene.ack(7, (0, 0))
    assert scene.positions(7) == [0, 1]
    scene.check()


def test_large_message_waits_until_it_fits_or_is_alone() -> None:
    """Else a consumer with 60 of its 100 bytes would be given a message of a megabyte."""
    scene = Scene()
    scene.publish(2, size=30)
    scene.publish(1, size=50)
    scene.all_safe()
    scene.consume(7, size=100)
    assert scene.positions(7) == [0, 1]
    scene.check()
    scene.ack(7, (0, 0))
    assert scene.positions(7) == [0, 1, 2]
    scene.check()


def test_large_message_in_another_range_waits_too() -> None:
    scene = Scene()
    scene.publish(2, size=30)
    scene.publish(1, size=10)
    scene.publish(1, size=500)
    scene.all_safe()
    scene.consume(8, messages=3)
    scene.do(scene.master.settle(8, acked=((2, 2),), requeued=((0, 1),)))
    scene.master.consumer_cancelled(8)
    scene.do(scene.master.consumer_closed(8))
    # Ready are 0 and 1, and, behind a gap, the large one.
    scene.consume(7, size=100)
    assert scene.positions(7) == [0, 1]
    scene.check()


def test_other_consumer_takes_the_message_that_does_not_fit_the_first() -> None:
    scene = Scene()
    scene.publish(1, size=60)
    scene.publish(1, size=60)
    scene.all_safe()
    scene.consume(7, size=100)
    scene.consume(8, size=100)
    assert (scene.positions(7), scene.positions(8)) == ([0], [1])


def test_message_larger_than_a_turn_is_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "TURN_BYTES_MAX", 10)
    scene = Scene()
    scene.publish(1, size=5)
    scene.publish(1, size=50)
    scene.all_safe()
    scene.consume(7)
    assert scene.positions(7) == [0, 1]


def test_empty_messages_count_as_messages() -> None:
    scene = Scene()
    scene.publish(5, size=0)
    scene.all_safe()
    scene.consume(7, messages=3, size=1)
    assert scene.positions(7) == [0, 1, 2]


# --- acks ---


def test_acks_gather_while_a_remove_is_on_its_way() -> None:
    scene = Scene()
    scene.publish(10)
    scene.all_safe()
    scene.consume(7)
    scene.ack(7, (0, 1))
    for position in (2, 3, 4, 6):
        scene.ack(7, (position, position))
    assert scene.removes() == [((0, 1),)]
    scene.check()
    scene.marks(2, 1)
    # The next op leaves when this one is received; it is settled when it is persisted.
    assert scene.removes() == [((0, 1),), ((2, 4), (6, 6))]
    assert scene.settled == []
    scene.marks(3, 2)
    assert scene.settled == [(7, ((0, 1),))]
    scene.marks(3, 3)
    assert scene.settled[1:] == [(7, ((2, 4), (6, 6)))]


def test_acks_of_many_ranges_leave_in_several_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many acks gather, an op is bounded: a ring takes no op above its own limit."""
    monkeypatch.setattr(ops, "RANGES_SENT_MAX", 3)
    scene = Scene()
    scene.publish(20)
    scene.all_safe()
    scene.consume(7)
    scene.ack(7, *((position, position) for position in range(0, 20, 2)))
    scene.all_safe()
    assert [len(ranges) for ranges in scene.removes()] == [3, 3, 3, 1]
    settled = [pair for _, ranges in scene.settled for pair in ranges]
    assert settled == [(position, position) for position in range(0, 20, 2)]
    scene.check()


def test_ack_of_unknown_position_is_refused_as_a_whole() -> None:
    scene = Scene()
    scene.publish(6)
    scene.all_safe()
    scene.consume(7, messages=4)
    for removed, requeued in (
        ([(0, 0), (4, 4)], []),
        ([(0, 0), (3, 4)], []),
        ([(0, 0), (0, 0)], []),
        ([(0, 1)], [(1, 2)]),
        ([(0, 1)], [(9, 9)]),
    ):
        with pytest.raises(NotOutstandingError) as caught:
            scene.master.settle(7, acked=removed, requeued=requeued)
        assert (caught.value.first, caught.value.last) == [*removed, *requeued][-1]
    assert scene.master.unacknowledged == 4
    assert scene.removes() == []
    scene.ack(7, (0, 3))
    scene.check()


def test_ack_of_a_consumer_who_is_gone_is_refused() -> None:
    scene = Scene()
    scene.publish(2)
    scene.all_safe()
    scene.consume(7)
    scene.do(scene.master.consumer_closed(7))
    with pytest.raises(NotOutstandingError):
        scene.ack(7, (0, 0))


def test_acks_of_a_consumer_who_closes_then_still_count() -> None:
    scene = Scene()
    scene.publish(4)
    scene.all_safe()
    scene.consume(7)
    scene.ack(7, (0, 0))
    scene.ack(7, (1, 1))
    scene.do(scene.master.consumer_closed(7))
    scene.all_safe()
    assert [*scene.queue.state.live] == [(2, 3)]
    assert [*scene.queue.state.redelivered] == [(2, 3)]
    scene.check()


# --- requeue ---


def test_consumer_closes_and_its_messages_are_back_in_place() -> None:
    scene = Scene()
    scene.publish(6)
    scene.all_safe()
    scene.consume(7, messages=4)
    scene.ack(7, (1, 1))
    scene.do(scene.master.consumer_closed(7))
    scene.consume(8)
    assert scene.got[8] == [(0, True), (2, True), (3, True), (4, True), (5, False)]
    scene.check()


def test_requeued_message_comes_before_those_behind_it() -> None:
    scene = Scene()
    scene.publish(5)
    scene.all_safe()
    scene.consume(7, messages=1)
    scene.requeue(7, (0, 0))
    assert scene.got[7] == [(0, False), (0, True)]
    scene.ack(7, (0, 0))
    assert scene.positions(7) == [0, 0, 1]


def test_requeued_messages_wait_while_the_ring_refuses() -> None:
    """Another consumer must not get it before every replica knows that it may be a repeat."""
    scene = Scene()
    scene.publish(3)
    scene.all_safe()
    scene.consume(7)
    scene.refusing = True
    scene.do(scene.master.consumer_closed(7))
    scene.consume(8)
    scene.publish(1)
    scene.all_safe()
    assert scene.positions(8) == [3]
    scene.check()
    scene.refusing = False
    scene.send_held()
    assert scene.got[8] == [(3, False), (0, True), (1, True), (2, True)]
    scene.check()


def test_acks_that_gather_are_merged() -> None:
    """Without a quorum no op leaves, and a consumer may go on to ack message by message."""
    scene = Scene()
    scene.publish(1000)
    scene.all_safe()
    scene.consume(7)
    scene.refusing = True
    scene.ack(7, (0, 0))
    for position in (*range(1, 999, 2), *range(2, 999, 2)):
        scene.ack(7, (position, position))
    assert scene.master._removals._gathered[7].ranges() == [(1, 998)]
    scene.check()
    scene.refusing = False
    scene.send_held()
    scene.all_safe()
    assert scene.removes() == [((0, 0),), ((1, 998),)]
    assert scene.settled == [(7, ((0, 0),)), (7, ((1, 998),))]
    scene.check()


def test_many_requeues_leave_in_several_ops_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two of them the ring may refuse, and the caller may go on with something else."""
    monkeypatch.setattr(ops, "REQUEUED_RANGES_MAX", 2)
    scene = Scene()
    scene.publish(10)
    scene.all_safe()
    scene.consume(7)
    scene.ack(7, *((position, position) for position in range(1, 10, 2)))
    scene.refusing = True
    scene.do(scene.master.consumer_closed(7))
    scene.consume(8)
    scene.publish(2)
    scene.all_safe()
    assert scene.positions(8) == []
    scene.refusing = False
    scene.send_held()
    assert [len(op.ranges) for op in scene.log if isinstance(op, Requeue)] == [2, 2, 1]
    assert scene.positions(8) == [0, 2, 4, 6, 8, 10, 11]
    scene.check()


def test_nothing_overtakes_an_urgent_message_that_is_still_on_its_way_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ops, "REQUEUED_RANGES_MAX", 1)
    scene = Scene()
    for priority in (5, 0, 5):
        scene.publish(priority=priority)
    scene.all_safe()
    scene.consume(7, messages=2)
    assert scene.positions(7) == [0, 2]
    scene.refusing = True
    scene.do(scene.master.consumer_closed(7))
    scene.consume(8)
    scene.refusing = False
    scene.send_held()
    # When 0 is back and 2 isn't, 1 is ready, and in front of 2 in the queue.
    assert scene.positions(8) == [0, 2, 1]
    scene.check()


def test_very_many_runs_are_delivered_in_pieces_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At 30 000 ranges one piece took the loop a second."""
    monkeypatch.setattr(deliveries, "PIECE_RUNS_MAX", 2)
    scene = Scene()
    scene.publish(10)
    scene.all_safe()
    scene.consume(7)
    scene.ack(7, *((position, position) for position in range(1, 10, 2)))
    scene.do(scene.master.consumer_closed(7))
    scene.do(scene.master.consumer_opened(8, ConsumerTerms(100, 1000)))
    effects = scene.master.consumer_begun(8)
    given = [len(effect.runs) for effect in effects if isinstance(effect, DeliverRuns)]
    assert sum(given) == 2
    assert effects[-1] == DeliverMore()
    scene.do(effects)
    assert scene.positions(8) == [0, 2, 4, 6, 8]
    scene.check()


def test_many_bytes_are_delivered_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that is full says so when it has got a piece: a queue of 100 MiB was given to
    streams that may hold 16 MiB, in one turn of the loop."""
    monkeypatch.setattr(deliveries, "TURN_BYTES_MAX", 20)
    monkeypatch.setattr(deliveries, "PIECE_BYTES_MAX", 50)
    scene = Scene()
    scene.publish(20, size=10)
    scene.all_safe()
    scene.do(scene.master.consumer_opened(7, ConsumerTerms(100, 1000)))
    effects = scene.master.consumer_begun(7)
    given = [run for effect in effects if isinstance(effect, DeliverRuns) for run in effect.runs]
    assert sum(run.block.body_bytes() for run in given) == 60
    assert effects[-1] == DeliverMore()
    assert scene.master.consumer_held(7, held=True) == []
    scene.do(effects)
    assert scene.positions(7) == [*range(6)]
    scene.do(scene.master.consumer_held(7, held=False))
    assert scene.positions(7) == [*range(20)]
    scene.check()


# --- several consumers ---


def test_two_consumers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "TURN_MESSAGES_MAX", 2)
    scene = Scene()
    scene.consume(7)
    scene.consume(8)
    scene.publish(8)
    scene.all_safe()
    assert scene.positions(7) == [0, 1, 4, 5]
    assert scene.positions(8) == [2, 3, 6, 7]
    # And over several publishes.
    for _ in range(2):
        scene.publish(1)
        scene.all_safe()
    assert {scene.positions(7)[-1], scene.positions(8)[-1]} == {8, 9}


def test_cancelled_consumer_keeps_its_messages() -> None:
    scene = Scene()
    scene.publish(3)
    scene.all_safe()
    scene.consume(7, messages=2)
    scene.master.consumer_cancelled(7)
    scene.ack(7, (0, 0))
    assert scene.positions(7) == [0, 1]
    scene.consume(8)
    assert scene.positions(8) == [2]
    scene.ack(7, (1, 1))
    scene.all_safe()
    assert [*scene.queue.state.live] == [(2, 2)]


# --- without a subscription ---


def test_taking_from_an_empty_queue_asks_nothing_of_the_ring() -> None:
    scene = Scene()
    assert scene.master.take(9, 10, 1000) == ([], [])
    assert scene.master.purge(10) == (0, [])
    scene.publish(1)
    scene.all_safe()
    assert scene.removes() == []


def test_purge_of_many_ranges_is_settled_when_the_last_is_safe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ops, "RANGES_SENT_MAX", 2)
    scene = Scene()
    scene.publish(10)
    scene.all_safe()
    scene.consume(7)
    odd = [(position, position) for position in range(1, 10, 2)]
    scene.master.consumer_cancelled(7)
    scene.requeue(7, *odd)
    count, effects = scene.master.purge(9)
    assert count == 5
    scene.do(effects)
    for sent in (1, 2, 3):
        assert len(scene.removes()) == sent
        assert scene.settled == []
        last = scene.queue.state.last_number
        scene.marks(last, last)
    assert scene.settled == [(9, tuple(odd))]
    scene.check()


def test_purge_removes_hidden_messages_and_their_publisher_is_confirmed() -> None:
    scene = Scene()
    scene.publish(3)
    count, effects = scene.master.purge(9)
    assert count == 3
    scene.do(effects)
    scene.consume(7)
    scene.all_safe()
    assert scene.got == {}
    assert scene.confirmed == [(1, ((1, 3),))]
    assert scene.settled == [(9, ((0, 2),))]


def test_peek_stops_where_its_bytes_end() -> None:
    """A message in the next range that would fit must not be seen before one that did not."""
    scene = Scene()
    scene.publish(3, size=40)
    scene.publish(1, size=1)
    scene.publish(1, size=5)
    scene.all_safe()
    scene.consume(7)
    scene.master.consumer_cancelled(7)
    scene.requeue(7, (0, 2), (4, 4))
    assert [p for p, _ in spread(scene.master.peek(10, 100))] == [0, 1]
    assert [p for p, _ in spread(scene.master.peek(10, 1000))] == [0, 1, 2, 4]
    assert [p for p, _ in spread(scene.master.peek(10, 1))] == [0]
    scene.queue.read_messages_max = 1
    assert [p for p, _ in spread(scene.master.peek(3, 1000))] == [0, 1, 2]


# --- replicas and take-over ---


def test_new_master_delivers_the_unacknowledged_again_and_says_so() -> None:
    scene = Scene()
    scene.publish(10)
    scene.all_safe()
    scene.consume(7, messages=6)
    scene.ack(7, (0, 1), (4, 4))
    scene.all_safe()
    scene.publish(2)
    scene.check()
    mirror = MemoryQueue()
    mirror.state = scene.mirrors[0]
    mirror.bodies = scene.queue.bodies
    live = mirror.state.live
    mirror.append(Requeue(((live.first, live.last),)))
    after = Scene(mirror)
    after.consume(8)
    assert after.got == {}
    after.all_safe()
    assert after.positions(8) == [2, 3, 5, 6, 7, 8, 9, 10, 11]
    assert all(redelivered for _, redelivered in after.got[8])
    # A message that is published after the take-over is not flagged.
    after.mirrors = []
    after.publish(1)
    after.all_safe()
    assert after.got[8][-1] == (12, False)
    after.master.check()


def test_new_master_of_an_empty_queue_confirms_a_repeat_at_its_first_watermark() -> None:
    scene = Scene()
    scene.publish(2)
    scene.all_safe()
    scene.consume(7)
    scene.ack(7, (0, 1))
    scene.all_safe()
    after = Scene(scene.queue)
    after.do(after.master.repeated(1, (1, 2), transient=False))
    assert after.confirmed == []
    after.all_safe()
    assert after.confirmed == [(1, ((1, 2),))]
