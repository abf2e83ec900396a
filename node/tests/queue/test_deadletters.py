"""Dead letters: `QueueMaster` with a target beside it, case by case, and over its masters' crashes.

The target keeps what a queue keeps of a producer: the last sequence. It takes a letter that comes
twice for a repeat, and a letter that comes behind a later one as well, as a queue does.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from node.tests.queue.memory import MemoryQueue
from node.tests.queue.test_master import Scene
from node.tests.queue.test_master_model import ranges_of

from ringmq_base.ranges import Range
from ringmq_node.model.deaths import DeathReason
from ringmq_node.queue import backlog, deadletters, ops
from ringmq_node.queue.block import Block
from ringmq_node.queue.consumers import ConsumerTerms
from ringmq_node.queue.doomed import Doomed, DoomedRun
from ringmq_node.queue.effects import (
    DeliverMore,
    DeliverRuns,
    Effect,
    Letters,
    MulticastOp,
    SendLetters,
)
from ringmq_node.queue.leaving import LeaveReason, Leaving
from ringmq_node.queue.master import QueueMaster
from ringmq_node.queue.ops import AskedOp, Doom, Op, Publish, Requeue

REJECTED = DeathReason.REJECTED


class LetterScene(Scene):
    def __init__(self, *, has_dead_letters: bool = True) -> None:
        super().__init__()
        self.sent: list[Letters] = []
        self.master = QueueMaster(self.queue.state, self.queue, has_dead_letters=has_dead_letters)

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendLetters):
                self.sent += effect.letters
            else:
                super().do([effect])

    def reject(self, consumer: int, *ranges: Range) -> None:
        self.do(self.master.settle(consumer, rejected=ranges))

    def arrive(self, *ranges: Range, arrived: bool = True) -> None:
        self.do(self.master.departures.letters_gone(ranges, arrived=arrived))

    def letters(self) -> list[tuple[int, int]]:
        """The letter and the position of each that was sent."""
        return [
            (each.first_letter + i, each.run.first_position + i)
            for each in self.sent
            for i in range(each.run.block.count)
        ]

    def doomed(self) -> list[Range]:
        found = self.queue.state.doomed
        return [] if found is None else found.positions.ranges()

    def take_over(self) -> None:
        live = self.queue.state.live
        self.send(Requeue(((live.first, live.last),)))
        self.got.clear()
        self.held.clear()
        self.sent.clear()
        self.master = QueueMaster(self.queue.state, self.queue, has_dead_letters=True)


def with_consumer(count: int) -> LetterScene:
    scene = LetterScene()
    scene.publish(count)
    scene.all_safe()
    scene.consume(7)
    return scene


def test_a_letter_goes_its_way_and_each_step_waits_for_the_one_before() -> None:
    scene = with_consumer(5)
    scene.reject(7, (1, 2))
    assert scene.log[-1] == Doom(REJECTED, ((1, 2),))
    # The op isn't safe: another master may not know of it.
    assert scene.sent == []
    assert scene.settled == []
    scene.check()
    number = scene.queue.state.last_number
    scene.marks(number, number)
    assert scene.settled == [(7, ((1, 2),))]
    assert scene.letters() == [(1, 1), (2, 2)]
    assert [each.reason for each in scene.sent] == [REJECTED] * 2
    # On its way it is live, and nobody's.
    assert scene.queue.state.live.contains_all(0, 4)
    assert scene.master.messages == 5
    assert scene.master.departures.letters == 2
    assert scene.master.unacknowledged == 3
    scene.check()
    scene.arrive((1, 1))
    assert scene.removes() == [((1, 1),)]
    scene.all_safe()
    scene.arrive((2, 2))
    scene.all_safe()
    assert scene.doomed() == []
    assert [*scene.queue.state.live] == [(0, 0), (3, 4)]
    assert scene.master.departures.letters == 0
    assert scene.master.departures.letters_arrived_total == 2
    scene.check()


def test_without_a_dead_letter_exchange_a_rejected_message_is_removed() -> None:
    scene = LetterScene(has_dead_letters=False)
    scene.publish(2)
    scene.all_safe()
    scene.consume(7)
    scene.reject(7, (0, 0))
    assert scene.removes() == [((0, 0),)]
    scene.all_safe()
    assert scene.settled == [(7, ((0, 0),))]
    assert scene.queue.state.doomed is None
    scene.check()


def test_an_exchange_that_is_taken_away_drops_what_was_not_sent() -> None:
    scene = with_consumer(3)
    scene.reject(7, (0, 0))
    scene.all_safe()
    scene.reject(7, (2, 2))
    scene.do(scene.master.departures.dead_letter(enabled=False))
    scene.all_safe()
    # The first one is on its way; whether it arrives is for its target to say.
    assert [*scene.queue.state.live] == [(0, 1)]
    assert scene.master.departures.letters_dropped_total == 1
    scene.arrive((0, 0))
    scene.all_safe()
    assert [*scene.queue.state.live] == [(1, 1)]
    scene.check()


def test_a_letter_without_a_target_is_dropped_and_counted() -> None:
    scene = with_consumer(2)
    scene.reject(7, (0, 1))
    scene.all_safe()
    scene.arrive((0, 1), arrived=False)
    scene.all_safe()
    assert not scene.queue.state.live
    assert (
        scene.master.departures.letters_arrived_total,
        scene.master.departures.letters_dropped_total,
    ) == (0, 2)
    scene.check()


def test_letters_have_numbers_in_the_order_in_which_they_were_doomed() -> None:
    scene = with_consumer(6)
    scene.reject(7, (4, 4))
    scene.all_safe()
    scene.reject(7, (1, 1), (0, 0))
    scene.all_safe()
    assert scene.letters() == [(1, 4), (2, 0), (3, 1)]


def test_a_new_master_sends_again_what_is_doomed_and_gives_it_to_no_consumer() -> None:
    scene = with_consumer(5)
    scene.reject(7, (3, 3))
    scene.reject(7, (1, 1))
    scene.all_safe()
    assert scene.letters() == [(1, 3), (2, 1)]
    scene.arrive((3, 3))
    scene.take_over()
    scene.consume(8)
    assert scene.sent == []
    scene.all_safe()
    # The first one's `Remove` was applied, and is behind it.
    assert scene.letters() == [(2, 1)]
    assert scene.positions(8) == [0, 2, 4]
    scene.reject(8, (0, 0))
    scene.all_safe()
    assert scene.letters() == [(2, 1), (3, 0)]
    assert scene.master.ready_bytes == 0
    scene.check()


def test_a_new_master_sends_in_the_order_of_letters_and_not_of_positions() -> None:
    """The other way round a target would take the second one for a repeat."""
    scene = with_consumer(5)
    scene.reject(7, (3, 3))
    scene.all_safe()
    scene.reject(7, (1, 1))
    scene.all_safe()
    scene.take_over()
    scene.all_safe()
    assert scene.letters() == [(1, 3), (2, 1)]
    scene.check()


def test_letters_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In messages, and in bytes; one letter passes, however large."""
    monkeypatch.setattr(deadletters, "UNDER_WAY_MESSAGES_MAX", 3)
    monkeypatch.setattr(deadletters, "UNDER_WAY_BYTES_MAX", 100)
    scene = LetterScene()
    for size in (1, 1, 1, 1, 500, 60, 60):
        scene.publish(size=size)
    scene.all_safe()
    scene.consume(7)
    scene.reject(7, (0, 6))
    scene.all_safe()
    assert [at for _, at in scene.letters()] == [0, 1, 2]
    scene.arrive((0, 0))
    assert [at for _, at in scene.letters()] == [0, 1, 2, 3]
    scene.arrive((1, 2))
    assert [at for _, at in scene.letters()] == [0, 1, 2, 3]
    scene.arrive((3, 3))
    assert [at for _, at in scene.letters()] == [0, 1, 2, 3, 4]
    scene.arrive((4, 4))
    assert [at for _, at in scene.letters()] == [0, 1, 2, 3, 4, 5]
    scene.arrive((5, 5))
    scene.arrive((6, 6))
    scene.all_safe()
    assert not scene.queue.state.live
    # Consumers go on all the time.
    scene.publish(1)
    scene.all_safe()
    assert scene.positions(7)[-1] == 7
    scene.check()


def test_a_stuck_letter_lets_those_behind_it_go_as_far_as_a_target_remembers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Further away a target would not know what a new master sends again."""
    monkeypatch.setattr(deadletters, "UNDER_WAY_MESSAGES_MAX", 4)
    scene = with_consumer(9)
    scene.reject(7, (0, 8))
    scene.all_safe()
    for at in range(1, 9):
        assert scene.letters() == [(n + 1, n) for n in range(4)]
        scene.arrive((at, at))
        scene.check()
    scene.arrive((0, 0))
    assert scene.letters() == [(n + 1, n) for n in range(8)]


def test_a_letter_that_its_target_may_have_forgotten_gets_another_number() -> None:
    scene = with_consumer(3)
    scene.reject(7, (0, 2))
    scene.all_safe()
    scene.do(scene.master.departures.letters_forgotten([(1, 1)]))
    scene.check()
    scene.all_safe()
    assert scene.letters() == [(1, 0), (2, 1), (3, 2), (4, 1)]
    scene.arrive((0, 2))
    scene.all_safe()
    assert not scene.queue.state.live
    scene.check()


def test_a_missing_letter_holds_those_behind_it_and_a_given_up_one_is_put_aside() -> None:
    scene = with_consumer(4)
    scene.reject(7, (0, 3))
    scene.queue.missing.add(1, 1)
    scene.do(scene.master.lost())
    scene.all_safe()
    assert [at for _, at in scene.letters()] == [0]
    scene.do(scene.master.give_up([(1, 1)]))
    assert scene.letters() == [(1, 0), (3, 2), (4, 3)]
    scene.check()
    # Found after all: its own number would be taken for a repeat.
    scene.queue.missing.remove(1, 1)
    scene.do(scene.master.filled(1, 1))
    scene.check()
    scene.all_safe()
    assert scene.letters()[-1] == (5, 1)
    scene.arrive((0, 3))
    scene.all_safe()
    assert not scene.queue.state.live
    scene.check()


def test_a_letter_that_was_put_aside_is_discarded_with_the_damaged_messages() -> None:
    scene = with_consumer(3)
    scene.reject(7, (0, 0), (2, 2))
    scene.queue.missing.add(2, 2)
    scene.do(scene.master.lost())
    scene.do(scene.master.give_up([(2, 2)]))
    scene.all_safe()
    count, effects = scene.master.discard_damaged(9)
    assert count == 1
    scene.do(effects)
    scene.check()
    scene.all_safe()
    assert [*scene.queue.state.live] == [(0, 1)]
    scene.check()


def test_refused_messages_leave_as_letters_and_no_consumer_sees_them() -> None:
    """queue_length_limits: reject-publish-dlx."""
    scene = with_consumer(1)
    op = Publish(1, Block.of([b"a", b"b"]), born_doomed=True)
    scene.do(scene.master.refused(scene.send(op), op))
    scene.check()
    scene.publish(1)
    scene.all_safe()
    assert scene.positions(7) == [0, 3]
    assert [(each.reason.value, each.run.positions) for each in scene.sent] == [
        ("maxlen", (1, 1)),
        ("maxlen", (2, 2)),
    ]
    scene.arrive((1, 2))
    scene.all_safe()
    assert [*scene.queue.state.live] == [(0, 0), (3, 3)]
    # Nobody waits for a confirm of them.
    assert [each for _, each in scene.confirmed] == [((1, 1),), ((4, 4),)]
    scene.check()


def test_a_new_master_delivers_no_message_that_was_refused() -> None:
    """The publisher has heard QUEUE_FULL. One op says that the messages are there and doomed, so no
    master has them ready, however little of the log of the one before it has."""
    scene = LetterScene()
    scene.publish(1)
    op = Publish(1, Block.of([b"a", b"b"]), born_doomed=True)
    scene.do(scene.master.refused(scene.send(op), op))
    assert scene.log[-1] == op
    scene.take_over()
    scene.consume(8)
    scene.all_safe()
    assert scene.positions(8) == [0]
    assert scene.letters() == [(1, 1), (2, 2)]
    assert scene.master.messages == 3
    scene.check()


def test_letters_of_refused_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "REFUSED_MESSAGES_MAX", 3)
    monkeypatch.setattr(backlog, "REFUSED_BYTES_MAX", 100)
    scene = LetterScene()

    def refuse(*bodies: bytes) -> None:
        op = Publish(scene.queue.state.next_position, Block.of(bodies), born_doomed=True)
        scene.do(scene.master.refused(scene.send(op), op))
        scene.all_safe()

    def has_room() -> bool:
        return scene.master.departures.refused.has_room

    refuse(b"a", b"b")
    assert has_room()
    refuse(b"c", b"d")
    assert not has_room()
    scene.arrive((0, 0))
    scene.all_safe()
    assert not has_room()
    scene.take_over()
    scene.all_safe()
    # What the master before has left counts, too.
    assert not has_room()
    scene.arrive((1, 3))
    scene.all_safe()
    assert has_room()
    refuse(b"x" * 100)
    assert not has_room()


# --- any crash, at any step ---


class LetterMachine(RuleBasedStateMachine):
    """Masters die at any moment; of the ops that weren't safe the next one has some or none.

    What a dead master had sent may still reach the target later. Every message ends in one place,
    once: with a consumer that has acknowledged it, or in the target.
    """

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(ops, "RANGES_SENT_MAX", 2)
        self.patch.setattr(deadletters, "UNDER_WAY_MESSAGES_MAX", 3)
        self.patch.setattr(deadletters, "PIECE_MESSAGES_MAX", 2)
        self.log: list[Op] = []
        self.published = 0
        # Bodies that the queue had no room for.
        self.refused: set[bytes] = set()
        # The target: its last sequence, and the bodies that it has.
        self.known = 0
        self.target: list[bytes] = []
        self.queue = MemoryQueue()
        self.persisted = 0
        # Sent by masters that are dead: it may arrive later, or never.
        self.strays: list[tuple[int, bytes]] = []
        self.begin()

    def begin(self) -> None:
        self.master = QueueMaster(self.queue.state, self.queue, has_dead_letters=True)
        self.held: list[AskedOp] = []
        self.has: set[int] = set()
        # In the order of their sending: (letter, position, body).
        self.under_way: list[tuple[int, int, bytes]] = []
        # The target has them, and this master hasn't heard of it.
        self.unheard: list[int] = []
        self.do(self.master.consumer_opened(1, ConsumerTerms(100, 10_000)))
        self.do(self.master.consumer_begun(1))

    def append(self, op: Op) -> int:
        self.log.append(op)
        return self.queue.append(op)

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case MulticastOp(op):
                    self.held.append(op)
                    self.send_held()
                case DeliverRuns(_, runs):
                    for run in runs:
                        self.has.update(range(run.first_position, run.last_position + 1))
                        assert not self.refused.intersection(run.block.bodies())
                case DeliverMore():
                    self.do(self.master.deliver_more())
                case SendLetters(letters):
                    self.send(letters)

    def send(self, letters: tuple[Letters, ...]) -> None:
        for each in letters:
            for at, body in enumerate(each.run.block.bodies()):
                letter, position = each.first_letter + at, each.run.first_position + at
                self.under_way.append((letter, position, body))

    def send_held(self) -> None:
        while self.held:
            op = self.held.pop(0)
            self.do(self.master.applied(self.append(op), op))

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        first = self.queue.state.next_position
        bodies = [b"%d" % (self.published + i) for i in range(count)]
        self.published += count
        op = Publish(first, Block.of(bodies))
        self.do(self.master.published(self.append(op), op, -1))

    @rule(count=st.integers(1, 3))
    def refuse(self, count: int) -> None:
        first = self.queue.state.next_position
        bodies = [b"%d" % (self.published + i) for i in range(count)]
        self.published += count
        self.refused.update(bodies)
        op = Publish(first, Block.of(bodies), born_doomed=True)
        self.do(self.master.refused(self.append(op), op))

    @precondition(lambda self: self.has)
    @rule(
        which=st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True),
        verb=st.sampled_from(["acked", "requeued", "rejected", "rejected"]),
    )
    def settle(self, which: list[int], verb: str) -> None:
        has = sorted(self.has)
        picked = sorted({has[at % len(has)] for at in which})
        self.has.difference_update(picked)
        verbs: dict[str, list[Range]] = {"acked": [], "requeued": [], "rejected": []}
        verbs[verb] = ranges_of(picked)
        self.do(self.master.settle(1, **verbs))

    @rule(reason=st.sampled_from([LeaveReason.EXPIRED, LeaveReason.MAX_LENGTH]))
    def let_go_of_the_first(self, reason: LeaveReason) -> None:
        """As expiry and length limits do it: out of `ready`."""
        if self.master.ready and self.master.ready.first not in self.has:
            runs = self.master._ready.take(
                1 << 60, messages_max=1, bytes_max=1000, first_bytes_max=None
            )
            self.master.leave(Leaving(reason, tuple(run.positions for run in runs)))
            self.do(self.master.departures.next_ops())

    @rule(behind=st.integers(0, 3))
    def watermarks(self, behind: int) -> None:
        self.persisted = max(self.persisted, self.queue.state.last_number - behind)
        self.do(self.master.watermarks(self.persisted, self.persisted))

    # --- the target ---

    def take(self, letter: int, body: bytes) -> None:
        if letter > self.known:
            self.known = letter
            self.target.append(body)

    @precondition(lambda self: self.under_way)
    @rule(count=st.integers(1, 3))
    def target_takes(self, count: int) -> None:
        for letter, position, body in self.under_way[:count]:
            self.take(letter, body)
            self.unheard.append(position)
        del self.under_way[:count]

    @precondition(lambda self: self.unheard)
    @rule(which=st.lists(st.integers(0, 9), min_size=1, max_size=3))
    def target_confirms(self, which: list[int]) -> None:
        heard = {self.unheard[at % len(self.unheard)] for at in which}
        self.unheard = [at for at in self.unheard if at not in heard]
        self.do(self.master.departures.letters_gone(ranges_of(sorted(heard)), arrived=True))

    @precondition(lambda self: self.strays)
    @rule()
    def a_stray_arrives(self) -> None:
        self.take(*self.strays.pop(0))

    # --- crashes ---

    @rule(keeps=st.integers(0, 6))
    def master_dies(self, keeps: int) -> None:
        """The next one has all that is safe, and `keeps` of the ops behind."""
        self.strays += [(letter, body) for letter, _, body in self.under_way]
        kept = self.log[: self.persisted + keeps]
        self.log, self.queue = [], MemoryQueue()
        for op in kept:
            self.append(op)
        live = self.queue.state.live
        if live:
            self.append(Requeue(((live.first, live.last),)))
        self.begin()

    @invariant()
    def sound(self) -> None:
        self.master.check()
        self.queue.state.check()
        assert len(self.target) == len(set(self.target)), "a letter arrived twice"

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            self.patch.undo()

    def drain(self) -> None:
        for _ in range(3 * self.queue.state.next_position + 10):
            self.watermarks(0)
            if self.under_way:
                self.target_takes(3)
            if self.unheard:
                self.target_confirms([*range(len(self.unheard))])
            if self.has:
                self.settle([0, 1, 2, 3], "rejected")
        self.watermarks(0)
        self.sound()
        assert not self.queue.state.live
        assert self.master.messages == 0
        doomed = self.ever_doomed()
        assert sorted(self.target) == sorted(self.queue.bodies[at] for at in doomed)

    def ever_doomed(self) -> set[int]:
        """What the log as it is has doomed while it was live."""
        state = MemoryQueue()
        found: set[int] = set()
        for op in self.log:
            state.append(op)
            if state.state.doomed is not None:
                found.update(
                    at
                    for first, last in state.state.doomed.positions
                    for at in range(first, last + 1)
                )
        return found


LetterMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLettersOverCrashes = LetterMachine.TestCase


def test_messages_that_are_doomed_one_by_one_are_one_run() -> None:
    doomed = Doomed()
    for at in range(10):
        doomed.doom([(at, at)], DeathReason.REJECTED)
    doomed.doom([(10, 10)], DeathReason.EXPIRED)
    doomed.check()
    assert doomed.runs == [
        DoomedRun(1, 0, 9, DeathReason.REJECTED),
        DoomedRun(11, 10, 10, DeathReason.EXPIRED),
    ]
    assert doomed.since(8) == [DoomedRun(8, 7, 9, DeathReason.REJECTED), doomed.runs[1]]
