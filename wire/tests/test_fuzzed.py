"""Two cores and a bad network between them, from fixed seeds: `fuzz_wire` goes on with others."""

from __future__ import annotations

from collections import Counter

import pytest
from wire.tests.fuzz_wire import STEPS, Plan, run

SEEDS = 120


@pytest.mark.parametrize("first", range(0, SEEDS, 40))
def test_nothing_that_comes_breaks_an_end(first: int) -> None:
    events: Counter[str] = Counter()
    for seed in range(first, first + 40):
        failure = run(Plan.of(seed, STEPS), events)
        assert failure is None, f"seed {seed}, step {failure.at}: {failure.story}"
    # It has looked at something: messages that came, and connections that ended with a reason.
    assert events["messages"] > 50, events
    for name in ("ended OK", "ended ABORTED", "PROTOCOL_ERROR", "FRAME_SIZE_ERROR"):
        assert events[name], events


def test_a_seed_is_always_the_same_plan() -> None:
    assert Plan.of(7, STEPS) == Plan.of(7, STEPS)
    assert Plan.of(7, STEPS) != Plan.of(8, STEPS)
