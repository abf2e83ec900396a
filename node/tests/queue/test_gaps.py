"""`SequenceGaps` against sets of sequences, and the bounds."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ringmq_node.queue import gaps as gaps_module
from ringmq_node.queue.block import Block
from ringmq_node.queue.gaps import SequenceGaps, SequenceStanding
from ringmq_node.queue.ops import Publish
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage.format import checkpoint
from ringmq_node.storage.format.checkpoint import Checkpoint

IDS = [b"a", b"b"]


def standings(
    state: ReplicatedState, producer: bytes, first: int, last: int
) -> list[SequenceStanding]:
    known = state.producers.get(producer, 0)
    return [
        standing
        for low, high, standing in state.gaps.judge(producer, known, first, last)
        for _ in range(low, high + 1)
    ]


class GapsMachine(RuleBasedStateMachine):
    """A queue that enqueues what it judges to be absent, as its master does. With small bounds it
    forgets; but it never errs."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(gaps_module, "PRODUCER_GAPS_MAX", 3)
        self.patch.setattr(gaps_module, "GAPS_MAX", 4)
        self.state = ReplicatedState()
        self.stored: dict[bytes, set[int]] = {key: set() for key in IDS}
        self.forgotten: dict[bytes, set[int]] = {key: set() for key in IDS}

    def teardown(self) -> None:
        self.patch.undo()

    @rule(producer=st.sampled_from(IDS), first=st.integers(1, 40), count=st.integers(1, 5))
    def publish(self, producer: bytes, first: int, count: int) -> None:
        last = first + count - 1
        known = self.state.producers.get(producer, 0)
        for low, high, standing in [*self.state.gaps.judge(producer, known, first, last)]:
            sequences = set(range(low, high + 1))
            if standing is SequenceStanding.STORED:
                assert sequences <= self.stored[producer]
            elif standing is SequenceStanding.ABSENT:
                assert not sequences & self.stored[producer]
                block = Block.of([b"x"] * len(sequences))
                op = Publish(self.state.next_position, block, False, producer, low)
                self.state.apply(self.state.last_number + 1, op)
                self.stored[producer] |= sequences
            else:
                self.forgotten[producer] |= sequences

    @rule(producer=st.sampled_from(IDS))
    def forget(self, producer: bytes) -> None:
        self.state.producers.pop(producer, None)
        self.state.producer_times.pop(producer, None)
        self.state.gaps.forget(producer)
        self.stored[producer].clear()
        self.forgotten[producer].clear()

    @invariant()
    def knows_the_rest(self) -> None:
        self.state.check()
        for producer in IDS:
            found = standings(self.state, producer, 1, 50)
            floor = found.count(SequenceStanding.FORGOTTEN)
            assert set(found[:floor]) <= {SequenceStanding.FORGOTTEN}
            for sequence in range(floor + 1, 51):
                is_stored = sequence in self.stored[producer]
                assert (found[sequence - 1] is SequenceStanding.STORED) is is_stored

    @invariant()
    def travels(self) -> None:
        packed = self.state.gaps.pack()
        assert SequenceGaps.unpack(packed) == self.state.gaps == self.state.gaps.copy()
        again = checkpoint.decode(checkpoint.encode(Checkpoint(1, self.state)))
        assert again.state.is_same(self.state)
        assert again.state.digest() == self.state.digest()


TestGaps = GapsMachine.TestCase
TestGaps.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_a_producer_without_gaps_has_no_entry() -> None:
    state = ReplicatedState()
    for n, first in enumerate((1, 3, 5)):
        state.apply(n + 1, Publish(2 * n, Block.of([b"x", b"y"]), False, b"p", first))
    assert not state.gaps
    assert b"p" not in state.gaps
    state.apply(4, Publish(6, Block.of([b"z"]), False, b"p", 8))
    assert standings(state, b"p", 6, 9) == [
        SequenceStanding.STORED,
        SequenceStanding.ABSENT,
        SequenceStanding.STORED,
        SequenceStanding.ABSENT,
    ]
    # A gap that is filled leaves nothing.
    state.apply(5, Publish(7, Block.of([b"w"]), False, b"p", 7))
    assert not state.gaps
    assert state.producers[b"p"] == 8


@pytest.mark.parametrize("data", [b"", bytes(7), bytes(8) + b"x", b"\1" + bytes(7), b"\xff" * 30])
def test_bytes_that_are_no_gaps_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="gaps"):
        SequenceGaps.unpack(data)
