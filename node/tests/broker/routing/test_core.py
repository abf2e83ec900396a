"""`RoutedPublishes` against a plain model: one entry for each sequence."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ringmq_base.ranges import Range, numbers_in
from ringmq_node.broker.routing.core import (
    Answer,
    AnswerConfirmed,
    AnswerRefused,
    AnswerReturned,
    RepeatedSequenceError,
    RoutedPublishes,
    SendPart,
    TargetRun,
)
from ringmq_node.model.reasons import BrokerError, Reason

QUEUES = ["q1", "q2", "q3"]
REFUSED = BrokerError(Reason.LIMIT_EXCEEDED, "full")


class Told:
    """What the publisher has been told, sequence by sequence."""

    def __init__(self) -> None:
        self.confirmed: list[int] = []
        self.returned: list[int] = []
        self.refused: list[int] = []

    def add(self, answers: list[Answer]) -> None:
        for answer in answers:
            match answer:
                case AnswerConfirmed(sequences):
                    self.confirmed += numbers(sequences)
                case AnswerReturned(sequences, Reason.UNROUTABLE):
                    # Before its confirm.
                    assert not set(numbers(sequences)) & set(self.confirmed)
                    self.returned += numbers(sequences)
                case AnswerRefused(sequences, error):
                    assert error is REFUSED
                    self.refused += numbers((sequences,))


def numbers(ranges: tuple[Range, ...]) -> list[int]:
    return [n for first, last in ranges for n in range(first, last + 1)]


RUNS = st.lists(
    st.tuples(st.integers(1, 4), st.lists(st.sampled_from(QUEUES), unique=True).map(tuple)),
    min_size=1,
    max_size=4,
)
SPANS = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda s: (s[0], s[0] + s[1]))


class RoutingMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.core = RoutedPublishes()
        self.told = Told()
        self.next_sequence = 1
        # By sequence: the queues that it waits for, and whether it is mandatory.
        self.waiting: dict[int, set[str]] = {}
        self.mandatory: dict[int, bool] = {}
        self.stored: set[int] = set()
        # What the model says that the publisher was told.
        self.confirmed: set[int] = set()
        self.returned: set[int] = set()
        self.refused: set[int] = set()

    @rule(runs=RUNS, mandatory=st.booleans(), hole=st.integers(0, 2))
    def publish(self, runs: list[tuple[int, tuple[str, ...]]], mandatory: bool, hole: int) -> None:
        first = self.next_sequence + hole
        targets = [TargetRun(count, queues, 10 * count) for count, queues in runs]
        parts, answers = self.core.publish(first, targets, mandatory=mandatory)
        self.told.add(answers)
        sent: dict[str, list[int]] = {}
        for part in parts:
            sent.setdefault(part.queue, []).extend(range(first + part.start, first + part.stop))
        wanted: dict[str, list[int]] = {}
        following = first
        for count, queues in runs:
            for sequence in range(following, following + count):
                self.waiting[sequence] = set(queues)
                self.mandatory[sequence] = mandatory
                for queue in queues:
                    wanted.setdefault(queue, []).append(sequence)
                self.answer_if_done(sequence)
            following += count
        assert sent == wanted
        self.next_sequence = following

    @rule(queue=st.sampled_from(QUEUES), spans=st.lists(SPANS, max_size=3))
    def confirm(self, queue: str, spans: list[Range]) -> None:
        self.told.add(self.core.confirmed(queue, spans))
        for sequence in numbers(tuple(spans)):
            if queue in self.waiting.get(sequence, ()):
                self.waiting[sequence].remove(queue)
                self.stored.add(sequence)
                self.answer_if_done(sequence)

    @rule(queue=st.sampled_from(QUEUES), span=SPANS)
    def refuse(self, queue: str, span: Range) -> None:
        self.told.add(self.core.refused(queue, *span, REFUSED))
        for sequence in numbers((span,)):
            if queue in self.waiting.get(sequence, ()):
                self.waiting[sequence].remove(queue)
                self.refused.add(sequence)

    @rule(queue=st.sampled_from(QUEUES))
    def delete(self, queue: str) -> None:
        self.told.add(self.core.deleted(queue))
        for sequence, waiting in self.waiting.items():
            if queue in waiting:
                waiting.remove(queue)
                self.answer_if_done(sequence)

    @rule(queues=st.frozensets(st.sampled_from(QUEUES)))
    def set_down(self, queues: frozenset[str]) -> None:
        self.core.set_down(queues)

    @precondition(lambda self: any(self.waiting.values()))
    @rule()
    def repeat(self) -> None:
        sequence = next(s for s, waiting in self.waiting.items() if waiting)
        with pytest.raises(RepeatedSequenceError):
            self.core.publish(sequence, [TargetRun(1, ("q1",), 1)], mandatory=False)

    def answer_if_done(self, sequence: int) -> None:
        if self.waiting[sequence] or sequence in self.refused:
            return
        self.confirmed.add(sequence)
        if self.mandatory[sequence] and sequence not in self.stored:
            self.returned.add(sequence)

    @invariant()
    def same(self) -> None:
        self.core.check()
        for told, wanted in (
            (self.told.confirmed, self.confirmed),
            (self.told.returned, self.returned),
            (self.told.refused, self.refused),
        ):
            assert sorted(told) == sorted(wanted)  # and nothing twice
        outstanding = [s for s, waiting in self.waiting.items() if waiting]
        assert self.core.messages == len(outstanding)
        if not outstanding:
            assert (self.core.runs, self.core.size_bytes) == (0, 0)


TestRouting = RoutingMachine.TestCase
TestRouting.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_neighbouring_runs_are_one_part_for_a_queue_that_they_share() -> None:
    core = RoutedPublishes()
    targets = [TargetRun(2, ("q1", "q2"), 2), TargetRun(3, ("q1",), 3), TargetRun(1, ("q2",), 1)]
    parts, answers = core.publish(11, targets, mandatory=True)
    assert parts == [SendPart("q1", 0, 5), SendPart("q2", 0, 2), SendPart("q2", 5, 6)]
    assert answers == []
    # In any order, as ranges.
    assert core.confirmed("q2", [(16, 16)]) == [AnswerConfirmed(((16, 16),))]
    assert core.confirmed("q1", [(11, 15)]) == [AnswerConfirmed(((13, 15),))]
    assert core.confirmed("q2", [(11, 12)]) == [AnswerConfirmed(((11, 12),))]
    assert numbers_in([]) == core.messages == 0


def test_a_mandatory_message_whose_queues_are_deleted_is_returned_and_confirmed() -> None:
    core = RoutedPublishes()
    core.publish(1, [TargetRun(1, ("q1", "q2"), 1)], mandatory=True)
    assert core.deleted("q1") == []
    assert core.deleted("q2") == [
        AnswerReturned(((1, 1),), Reason.UNROUTABLE),
        AnswerConfirmed(((1, 1),)),
    ]


def test_one_refusal_is_told_at_once_and_the_copy_elsewhere_still_counts() -> None:
    core = RoutedPublishes()
    core.publish(1, [TargetRun(4, ("q1", "q2"), 40)], mandatory=False)
    assert core.refused("q1", 2, 3, REFUSED) == [AnswerRefused((2, 3), REFUSED)]
    assert (core.messages, core.size_bytes) == (4, 40)
    assert core.confirmed("q2", [(1, 4)]) == []
    assert core.confirmed("q1", [(1, 1), (4, 4)]) == [AnswerConfirmed(((1, 1), (4, 4)))]
    assert (core.messages, core.size_bytes) == (0, 0)
