"""Delivery counts as planes of bits, against a plain counter."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringmq_base.ranges import Range, RangeSet, SummedRangeSet
from ringmq_node.model.rules import DELIVERY_LIMIT_MAX
from ringmq_node.queue import counts as counts_module
from ringmq_node.queue.counts import COUNT_MAX, PLANES_MAX, DeliveryCounts
from ringmq_node.queue.ops import Remove, Requeue, decode, encode
from ringmq_node.queue.state import ReplicatedState
from ringmq_node.storage.format import checkpoint
from ringmq_node.storage.format.checkpoint import Checkpoint

POSITIONS = st.sets(st.integers(0, 30), min_size=1, max_size=12)
STEPS = st.lists(st.tuples(st.sampled_from(["back", "back", "back", "gone"]), POSITIONS))


def ranges_of(positions: set[int]) -> list[Range]:
    return RangeSet((each, each) for each in positions).ranges()


@given(steps=STEPS)
@settings(max_examples=200, deadline=None)
def test_planes_count_as_a_counter_does(steps: list[tuple[str, set[int]]]) -> None:
    counts, model = DeliveryCounts(), Counter[int]()
    for verb, positions in steps:
        if verb == "back":
            counts.came_back(ranges_of(positions))
            model.update(positions)
        else:
            counts.forget(ranges_of(positions))
            for position in positions:
                del model[position]
        counts.check()
        assert {p: counts.count_of(p) for p in range(31)} == {p: model[p] for p in range(31)}
        parts = [*counts.parts(0, 30)]
        assert [p for low, high, _ in parts for p in range(low, high + 1)] == [*range(31)]
        assert all(model[p] == n for low, high, n in parts for p in range(low, high + 1))
        for limit in (0, 1, 2, 5):
            found = RangeSet(counts.at_least(limit, [(0, 30)]))
            assert {p for p in range(31) if p in found} == {
                p for p in range(31) if model[p] >= limit
            }
    assert bool(counts) == any(model.values())
    assert counts == counts.copy()


def test_a_count_stays_at_its_maximum() -> None:
    assert COUNT_MAX == DELIVERY_LIMIT_MAX == 65535
    counts = DeliveryCounts(SummedRangeSet([(3, 4)]) for _ in range(PLANES_MAX))
    counts.came_back([(2, 5)])
    assert [counts.count_of(p) for p in (2, 3, 4, 5)] == [1, COUNT_MAX, COUNT_MAX, 1]
    counts.check()
    assert len(counts.planes) == counts_module.PLANES_MAX


def test_replicas_agree_on_counts_by_ops_alone() -> None:
    """Also over a checkpoint; a queue where nothing has come back pays no byte for it."""
    state = ReplicatedState(next_position=10, live=RangeSet([(0, 9)]))
    plain = state.digest()
    size = len(checkpoint.encode(Checkpoint(1, state)))
    number = 0

    def apply(op: Requeue | Remove) -> None:
        nonlocal number
        number += 1
        again = decode(encode(op))
        assert again == op
        assert isinstance(again, Requeue | Remove)
        state.apply(number, again)
        state.check()

    apply(Requeue(((0, 9),)))
    assert not state.counts, "a take-over counts nothing"
    assert state.redelivered == state.live
    assert len(checkpoint.encode(Checkpoint(1, state))) == size + 16
    assert state.digest() != plain
    before = state.digest()
    apply(Requeue(((2, 5), (4, 7), (20, 30)), counted=True))
    apply(Requeue(((4, 4),), counted=True))
    assert [state.counts.count_of(p) for p in range(11)] == [0, 0, 1, 1, 2, 1, 1, 1, 0, 0, 0]
    assert state.digest() != before
    copy = checkpoint.decode(checkpoint.encode(Checkpoint(1, state))).state
    assert copy.is_same(state)
    assert copy.digest() == state.digest()
    copy.counts.forget([(4, 4)])
    assert not copy.is_same(state)
    assert copy.digest() != state.digest()
    apply(Remove(((0, 9),)))
    assert not state.counts


def test_sets_that_are_the_same_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a take-over, live, redelivered and counted messages may be the same 200 000 ranges."""
    packed: list[RangeSet] = []
    pack = RangeSet.pack

    def counted(ranges: RangeSet) -> bytes:
        packed.append(ranges)
        return pack(ranges)

    monkeypatch.setattr(RangeSet, "pack", counted)
    state = ReplicatedState(next_position=20)
    ranges = [(at, at) for at in range(1, 20, 2)]
    for same in (state.live, state.redelivered):
        same.update(ranges)
    state.counts.came_back(ranges)
    data = checkpoint.encode(Checkpoint(1, state))
    assert sum(each == state.live for each in packed) == 1
    again = checkpoint.decode(data).state
    assert again.live == again.redelivered == RangeSet(ranges)
    assert again.counts == state.counts
