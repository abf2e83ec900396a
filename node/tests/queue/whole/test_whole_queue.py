"""A queue with all its features, from fixed seeds: `fuzz_queue` goes on with others.

Times to live, priorities, lengths with all overflows, dead letters and their target, delivery
limits, consumers of all terms, time-outs, requeues, purges, take-overs and power cuts, over the
real store.
"""

from __future__ import annotations

from collections import Counter

import pytest
from node.tests.queue.whole.fuzz_queue import Plan, run

SEEDS = 30
STEPS = 60


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_the_queue_is_as_its_model(first: int) -> None:
    events: Counter[str] = Counter()
    for seed in range(first, first + 10):
        failure = run(Plan.of(seed, STEPS), events)
        assert failure is None, f"seed {seed}, step {failure.at}: {failure.story}"
    # It has looked at something.
    assert all(events[name] for name in ("given", "requeued", "letters", "restarts", "refused"))
