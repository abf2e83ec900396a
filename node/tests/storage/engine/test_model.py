"""The whole engine against a plain model: any operations in any order, and every kind of stop in
between. See `model` and `machine` for the oracle, `hand` for how threads are held.

Longer: `fuzz_engine` does the same without hypothesis, or `ENGINE_EXAMPLES=2000 pytest
node/tests/storage/engine/test_model.py --hypothesis-seed=N`.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from node.tests.storage.engine.fuzz_engine import ORDERS, Plan, run
from node.tests.storage.engine.hand import by_hand
from node.tests.storage.engine.machine import NAMES, Engine
from node.tests.storage.simulated_disk import Kept

from ringmq_node.storage import StoreLimits

EXAMPLES = int(os.environ.get("ENGINE_EXAMPLES", "100"))
SIZES = st.sampled_from([0, 3, 40, 200, 900])
NAME = st.sampled_from(NAMES)
LIMITS = st.builds(
    StoreLimits,
    queue_memory_bytes_max=st.sampled_from([0, 3_000, 1 << 28]),
    journal_entries_max=st.sampled_from([20, 200]),
    journal_bytes_max=st.sampled_from([1_500, 20_000]),
    flush_piece_bytes_max=st.sampled_from([300, 1 << 20]),
    round_queues_max=st.sampled_from([1, 2, 200]),
    round_bytes_max=st.sampled_from([300, 4 << 20]),
    share_bytes_max=st.sampled_from([100, 1 << 20]),
    sync_threads=st.sampled_from([1, 3]),
    sync_in_place_bytes_max=st.sampled_from([0, 16 << 10]),
    read_ahead_bytes=st.sampled_from([0, 1_000, 1 << 20]),
    idle_ticks_max=st.just(1),
    idle_journal_bytes_min=st.sampled_from([200, 1 << 20]),
    embed_below=st.sampled_from([0, 0, 64, 1 << 20]),
    store_block_bytes_max=st.sampled_from([100, 64 << 10]),
    store_file_bytes_max=st.sampled_from([700, 4_000]),
    compaction_piece_bytes_max=st.sampled_from([200, 1 << 20]),
    recent_ids_max=st.sampled_from([2, 1000]),
    store_cache_bytes_max=st.sampled_from([0, 2_000, 16 << 20]),
)


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        limits=LIMITS, positions=st.sampled_from([8, 32]), seed=st.integers(0, (1 << 32) - 1)
    )
    def begin(self, limits: StoreLimits, positions: int, seed: int) -> None:
        self.context = by_hand(segment_positions=positions)
        self.engine = Engine(self.context.__enter__(), limits, random.Random(seed))

    # -- clients

    @rule(
        names=st.sampled_from([("a",), ("a",), ("b",), ("t",), NAMES]),
        sizes=st.lists(SIZES, min_size=1, max_size=4),
        copies=st.sampled_from([1, 1, 5]),
        transient=st.sampled_from([False, False, True]),
        properties=st.integers(0, 2),
    )
    def publish(
        self,
        names: tuple[str, ...],
        sizes: list[int],
        copies: int,
        transient: bool,
        properties: int,
    ) -> None:
        self.engine.publish(names, sizes * copies, transient=transient, properties=properties)

    @rule(name=NAME, messages=st.sampled_from([1, 7, 1000]), size=st.sampled_from([100, 1 << 30]))
    def consume(self, name: str, messages: int, size: int) -> None:
        if len(self.engine.queues[name].clients) < 3:
            self.engine.consume(name, messages, size)

    @rule(
        name=NAME,
        which=st.integers(0, 2),
        order=st.sampled_from(ORDERS),
        requeue=st.sampled_from([False, False, True]),
    )
    def settle_messages(self, name: str, which: int, order: str, requeue: bool) -> None:
        if self.engine.queues[name].clients:
            self.engine.settle_some(name, which, order, requeue)

    @rule(name=NAME)
    def disconnect(self, name: str) -> None:
        clients = self.engine.queues[name].clients
        if clients:
            self.engine.disconnect(name, min(clients))

    @rule(name=NAME, messages=st.sampled_from([0, 1, 6, 1000]), size=st.sampled_from([0, 1 << 30]))
    def drop(self, name: str, messages: int, size: int) -> None:
        self.engine.take(name, messages, size)

    @rule(name=NAME)
    def purge(self, name: str) -> None:
        self.engine.purge(name)

    @rule(
        name=NAME,
        first=st.integers(0, 60),
        length=st.sampled_from([0, 5, 100]),
        size=st.sampled_from([0, 300, 1 << 30]),
    )
    def browse(self, name: str, first: int, length: int, size: int) -> None:
        self.engine.browse(name, first, first + length, size)

    @rule(name=NAME)
    def delete_and_declare(self, name: str) -> None:
        self.engine.delete(name)

    # -- the node

    @rule(name=NAME, lazy=st.booleans())
    def set_lazy(self, name: str, lazy: bool) -> None:
        self.engine.set_lazy(name, lazy)

    @rule(duration_s=st.sampled_from([0.0, 0.0, 0.5, 20.0, float("inf")]))
    def set_duration(self, duration_s: float) -> None:
        self.engine.remember(duration_s)

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0]))
    def pass_time(self, seconds: float) -> None:
        self.engine.pass_time(seconds)

    @rule(steps=st.sampled_from([1, 2, 10]))
    def work(self, steps: int) -> None:
        self.engine.work(steps)

    @rule()
    def settle(self) -> None:
        self.engine.settle()

    @rule(
        name=NAME,
        cut=st.sampled_from([0, 3, 30]),
        more=st.sampled_from([0, 2, 12]),
        revived=st.sampled_from([0, 0, 5]),
    )
    def catch_up(self, name: str, cut: int, more: int, revived: int) -> None:
        self.engine.catch_up(name, cut, more, revived)

    @rule()
    def stop(self) -> None:
        self.engine.stop()

    @rule(kept=st.sampled_from(["nothing", "everything", "anything", "anything"]))
    def cut_power(self, kept: Kept) -> None:
        self.engine.cut_power(kept)

    # -- always

    @invariant()
    def same(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        try:
            self.engine.drain()
            self.engine.end()
        finally:
            self.engine.abandon()
            self.context.__exit__(None, None, None)


EngineMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestEngine = pytest.mark.slow(pytest.mark.compute(EngineMachine.TestCase))


@pytest.mark.slow
@pytest.mark.compute
def test_plans_of_the_fuzzer() -> None:
    """Always the same ones, longer than hypothesis makes them; and everything is in them."""
    events: Counter[str] = Counter()
    for seed in range(100):
        failure = run(Plan.of(seed, steps=70), events)
        assert failure is None, f"seed {seed}: {failure and failure.story}"
    assert len(+events) >= 11, events
