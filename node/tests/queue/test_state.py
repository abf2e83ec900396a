"""`ReplicatedState` against dicts and sets, and replicas against each other."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ringmq_base.ranges import Range
from ringmq_node.model.deaths import DeathReason
from ringmq_node.queue import state as state_module
from ringmq_node.queue.block import Block
from ringmq_node.queue.doomed import Doomed
from ringmq_node.queue.leases import ChangeLease, LeaseAction
from ringmq_node.queue.ops import (
    Doom,
    NoteGone,
    NoteTime,
    Op,
    Publish,
    Remove,
    Requeue,
    decode,
    encode,
)
from ringmq_node.queue.state import EPOCHS_MAX, ReplicatedState

POSITIONS = st.integers(0, 80)
RANGES = st.lists(
    st.tuples(POSITIONS, POSITIONS).map(lambda pair: (min(pair), max(pair))), max_size=3
).map(tuple)


def numbers(ranges: object) -> set[int]:
    return {n for first, last in ranges for n in range(first, last + 1)}  # type: ignore[attr-defined]


class StateMachine(RuleBasedStateMachine):
    """One state gets the ops, another their bytes; a model is kept beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ReplicatedState()
        self.replica = ReplicatedState()
        self.live: set[int] = set()
        self.redelivered: set[int] = set()
        self.transient: set[int] = set()
        self.producers: dict[bytes, int] = {}
        # By position: the letter and the reason.
        self.letters: dict[int, tuple[int, DeathReason]] = {}
        self.next_letter = 1
        self.next_position = 0
        self.expiries: dict[int, int] = {}
        self.priorities: dict[int, int] = {}

    def apply(self, op: Op) -> list[Range]:
        number = self.state.last_number + 1
        gone = self.state.apply(number, op)
        assert self.replica.apply(number, decode(encode(op))) == gone
        return gone

    @rule(
        count=st.integers(1, 10),
        transient=st.booleans(),
        producer=st.sampled_from([b"", b"a", b"b"]),
        sequence=st.integers(0, 1000),
        expires_at_ms=st.none() | st.integers(0, 2),
        priority=st.integers(0, 2),
    )
    def publish(
        self,
        count: int,
        transient: bool,
        producer: bytes,
        sequence: int,
        expires_at_ms: int | None,
        priority: int,
    ) -> None:
        first = self.next_position
        op = Publish(
            *(first, Block.of([b"x"] * count), transient, producer, sequence),
            expires_at_ms=expires_at_ms,
            priority=priority,
        )
        gone = self.apply(op)
        if expires_at_ms is not None:
            self.expiries |= dict.fromkeys(range(first, first + count), expires_at_ms)
        if priority:
            self.priorities |= dict.fromkeys(range(first, first + count), priority)
        assert gone == []
        added = set(range(first, first + count))
        self.live |= added
        self.transient |= added if transient else set()
        self.next_position += count
        if producer:
            known = self.producers.pop(producer, 0)
            self.producers[producer] = max(known, sequence + count - 1)

    @rule(ranges=RANGES)
    def remove(self, ranges: tuple[Range, ...]) -> None:
        gone = self.apply(Remove(ranges))
        assert numbers(gone) == self.live & numbers(ranges)
        assert sum(last - first + 1 for first, last in gone) == len(numbers(gone))
        for kept in (self.live, self.redelivered, self.transient):
            kept -= numbers(ranges)
        for position in numbers(ranges):
            self.letters.pop(position, None)

    @rule(ranges=RANGES, reason=st.sampled_from(DeathReason))
    def doom(self, ranges: tuple[Range, ...], reason: DeathReason) -> None:
        assert self.apply(Doom(reason, ranges)) == []
        for position in sorted(self.live & numbers(ranges)):
            self.letters[position] = (self.next_letter, reason)
            self.next_letter += 1

    @rule(ranges=RANGES)
    def requeue(self, ranges: tuple[Range, ...]) -> None:
        assert self.apply(Requeue(ranges)) == []
        self.redelivered |= self.live & numbers(ranges)

    @rule(step=st.integers(1, 3))
    def begin_epoch(self, step: int) -> None:
        epoch = self.state.epoch + step
        self.state.begin_epoch(epoch)
        self.replica.begin_epoch(epoch)
        start = self.state.epochs[-1]
        assert start.first_number == self.state.last_number + 1
        assert start.first_position == self.next_position

    @invariant()
    def same(self) -> None:
        self.state.check()
        assert numbers(self.state.live) == self.live
        assert numbers(self.state.redelivered) == self.redelivered
        assert numbers(self.state.transient) == self.transient
        for position in self.live:
            marks = self.state.expiries.parts(position, position)
            assert [value for _, _, value in marks] == [
                self.expiries[at] for at in (position,) if at in self.expiries
            ]
            assert self.state.priorities.at(position) == self.priorities.get(position, 0)
        assert [*self.state.producers.items()] == [*self.producers.items()]
        assert self.state.next_position == self.next_position
        doomed = self.state.doomed
        runs = [] if doomed is None else doomed.runs
        letters = {
            run.first + i: (run.letter + i, run.reason) for run in runs for i in range(run.count)
        }
        assert letters == self.letters
        assert doomed is None or doomed.next_letter == self.next_letter
        copy = self.state.copy()
        assert copy.is_same(self.state)
        assert copy.digest() == self.state.digest() == self.replica.digest()
        if doomed is not None:
            assert Doomed.unpack(doomed.next_letter, doomed.pack()) == doomed
        assert self.state.digest() == self.replica.digest()
        assert len(self.state.epochs) <= EPOCHS_MAX


TestState = StateMachine.TestCase


@given(st.lists(RANGES, min_size=1, max_size=4))
def test_removing_twice_is_removing_once(removes: list[tuple[Range, ...]]) -> None:
    once, twice = ReplicatedState(), ReplicatedState()
    for state in (once, twice):
        state.apply(1, Publish(0, Block.of([b"x"] * 50)))
    for ranges in removes:
        once.apply(once.last_number + 1, Remove(ranges))
        twice.apply(twice.last_number + 1, Remove(ranges))
        assert twice.apply(twice.last_number + 1, Remove(ranges)) == []
        assert once.live == twice.live


@pytest.mark.parametrize("ranges", [*permutations(((5, 6), (1, 2), (2, 3)))])
def test_letters_go_by_positions_in_whatever_order_an_op_has_them(
    ranges: tuple[Range, ...],
) -> None:
    """A dead-letter target has them in the order of the queue."""
    state = ReplicatedState()
    state.apply(1, Publish(0, Block.of([b"body"] * 8)))
    state.apply(2, Doom(DeathReason.REJECTED, ranges))
    assert state.doomed is not None
    assert [(run.letter, run.first, run.last) for run in state.doomed.runs] == [
        (1, 1, 3),
        (4, 5, 6),
    ]


def test_digest_sees_every_part_of_the_state() -> None:
    def state(*ops: Op) -> ReplicatedState:
        made = ReplicatedState()
        for number, op in enumerate(ops, 1):
            made.apply(number, op)
        return made

    block = Block.of([b"a", b"b"])
    states = [
        state(Publish(0, block)),
        state(Publish(0, block, True)),
        state(Publish(0, block, False, b"p")),
        state(Publish(0, block, False, b"p", 7)),
        state(Publish(0, block, expires_at_ms=0)),
        state(Publish(0, block, expires_at_ms=7)),
        state(Publish(0, block, priority=7)),
        state(Publish(0, block, priority=8)),
        state(Publish(0, block), Remove(((0, 0),))),
        state(Publish(0, block), Remove(((1, 1),))),
        state(Publish(0, block), Requeue(((0, 0),))),
        state(Publish(0, block), Requeue(((5, 5),))),
        state(Publish(0, block), Doom(DeathReason.REJECTED, ((0, 0),))),
        state(Publish(0, block), Doom(DeathReason.EXPIRED, ((0, 0),))),
        state(Publish(0, block), Doom(DeathReason.EXPIRED, ((1, 1),))),
        state(Publish(0, block), Doom(DeathReason.EXPIRED, ((5, 5),))),
        state(Publish(0, block), Doom(DeathReason.EXPIRED, ((0, 1),))),
        state(
            Publish(0, block),
            Doom(DeathReason.EXPIRED, ((1, 1),)),
            Doom(DeathReason.EXPIRED, ((0, 0),)),
        ),
        state(Publish(0, block), NoteTime(7)),
        state(Publish(0, block, False, b"p"), NoteTime(7)),
        state(NoteTime(7), Publish(0, block, False, b"p")),
        state(Publish(0, block), NoteGone(acked_end=2)),
        state(Publish(0, block), NoteGone(purged_end=2)),
        state(Publish(0, block), ChangeLease(LeaseAction.ACQUIRE, "l", 1, "a", b"i", 0, 9)),
        state(Publish(0, block), ChangeLease(LeaseAction.ACQUIRE, "l", 1, "b", b"i", 0, 9)),
        state(Publish(0, block, False, b"p", 1), Publish(2, block, False, b"p", 5)),
        state(Publish(0, block, False, b"p", 3), Publish(2, block, False, b"p", 5)),
    ]
    assert len({made.digest() for made in states}) == len(states)


def test_op_out_of_order_is_a_bug_and_changes_nothing() -> None:
    state = ReplicatedState()
    state.apply(1, Publish(0, Block.of([b"a"])))
    before = state.digest()
    refused: list[tuple[int, Op]] = [
        (1, Remove(())),
        (3, Remove(())),
        (2, Publish(5, Block.of([b"a"]))),
    ]
    for number, op in refused:
        with pytest.raises(AssertionError):
            state.apply(number, op)
        assert state.digest() == before


def test_producer_silent_longest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "PRODUCERS_MAX", 3)
    state = ReplicatedState()
    for number, producer in enumerate([b"a", b"b", b"c", b"a", b"d"], 1):
        state.apply(number, Publish(number - 1, Block.of([b"x"]), False, producer, number))
    assert [*state.producers] == [b"c", b"a", b"d"]


def test_only_so_many_epochs_are_remembered() -> None:
    state = ReplicatedState()
    for epoch in range(1, EPOCHS_MAX + 10):
        state.begin_epoch(epoch)
    assert len(state.epochs) == EPOCHS_MAX
    assert state.epochs[0].epoch == 10
    with pytest.raises(AssertionError):
        state.begin_epoch(state.epoch)
