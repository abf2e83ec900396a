"""Counts of references, against a dictionary."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from ringmq_node.storage.messages.counts import Counts


@given(st.integers(0, 2**32))
def test_counts_agree_with_a_dictionary(seed: int) -> None:
    rng = random.Random(seed)
    counts = Counts()
    model: dict[int, int] = {}
    for _ in range(60):
        index = rng.choice([0, 1, 2, 300])
        burst = rng.choice([1, 1, 100, 254, 255, 256, 600])
        for _ in range(burst):
            if rng.random() < 0.5 and model.get(index, 0):
                model[index] -= 1
                assert counts.drop(index) == model[index]
            else:
                model[index] = model.get(index, 0) + 1
                assert counts.add(index) == model[index]
    assert all(counts.get(index) == model.get(index, 0) for index in (0, 1, 2, 3, 300, 5000))
    assert counts.nonzero() == sum(count > 0 for count in model.values())
    chosen = counts.select([300, 2, 7, 0])
    assert [chosen.get(index) for index in range(5)] == [
        model.get(index, 0) for index in (300, 2, 7, 0, 9999)
    ]
    for index in model:
        while counts.get(index):
            model[index] -= 1
            assert counts.drop(index) == model[index]
