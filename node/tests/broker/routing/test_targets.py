"""`TargetBatches` against a list of what is unanswered."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ringmq.v1 import common_pb2 as common
from ringmq_base.ranges import Range
from ringmq_node.broker.routing.stamp import KEYS_MAX, STAMP_BYTES_MAX, stamped
from ringmq_node.broker.routing.targets import SubBatch, TargetBatches

SPANS = st.tuples(st.integers(0, 60), st.integers(0, 8)).map(lambda s: (s[0], s[0] + s[1]))


class TargetsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.batches = TargetBatches()
        # In the order in which they came; and the sequences of each that are unanswered.
        self.kept: list[SubBatch] = []
        self.open: dict[int, set[int]] = {}
        self.sent: list[SubBatch] = []

    @rule(first=st.integers(1, 50), count=st.integers(1, 4))
    def add(self, first: int, count: int) -> None:
        """In any order, as dead letters come."""
        if any(set(range(first, first + count)) & left for left in self.whole().values()):
            return
        batch = SubBatch(first, [b"x"] * count, (), count)
        self.batches.add(batch)
        self.kept.append(batch)
        self.open[first] = set(range(first, first + count))

    def whole(self) -> dict[int, set[int]]:
        return {each.first: set(range(each.first, each.last + 1)) for each in self.kept}

    @precondition(lambda self: len(self.sent) < len(self.kept))
    @rule()
    def send(self) -> None:
        batch = self.batches.next()
        assert batch is next(each for each in self.kept if each not in self.sent)
        assert batch is not None
        self.sent.append(batch)

    @rule(spans=st.lists(SPANS, max_size=2))
    def answer(self, spans: list[Range]) -> None:
        self.batches.answered(spans)
        for first, last in spans:
            for left in self.open.values():
                left -= set(range(first, last + 1))
        self.kept = [each for each in self.kept if self.open[each.first]]
        self.sent = [each for each in self.sent if each in self.kept]

    @rule()
    def stream_ends(self) -> None:
        self.batches.stream_ended()
        self.sent = []

    @invariant()
    def same(self) -> None:
        self.batches.check()
        assert self.batches.is_idle == (not self.kept)
        if len(self.sent) == len(self.kept):
            assert self.batches.next() is None

    def teardown(self) -> None:
        left = {n for first, last in self.batches.take_all() for n in range(first, last + 1)}
        assert left == {n for each in self.kept for n in self.open[each.first]}
        assert self.batches.is_idle


TestTargets = TargetsMachine.TestCase
TestTargets.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("exchange", ["", "logs", "é" * 120])
@pytest.mark.parametrize("key", ["", "a.b", "k" * 255])
@pytest.mark.parametrize("cc", [(), ("", "more"), ("k" * 255,) * (KEYS_MAX - 1)])
def test_exchange_and_keys_are_appended_without_parsing(
    exchange: str, key: str, cc: tuple[str, ...]
) -> None:
    wire = common.Properties(
        message_id="m",
        headers={"h": common.FieldValue(text="1")},
        exchange="its own",
        routing_key="x",
    )
    for published in ((), (wire.SerializeToString(),), (b"", wire.SerializeToString())):
        found = stamped(published, exchange, (key, *cc))
        assert len(found) == max(1, len(published))
        for index, data in enumerate(found):
            read = common.Properties.FromString(data)
            # Whatever the publisher has set itself.
            assert (read.exchange, read.routing_key, (*read.cc,)) == (exchange, key, cc)
            size = len(published[index]) if published else 0
            assert len(data) <= STAMP_BYTES_MAX + size
            if size:
                assert read.headers == wire.headers
