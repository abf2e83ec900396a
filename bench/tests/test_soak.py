from __future__ import annotations

import pytest
from bench.measure import BenchError
from bench.soak import Sample, memory_line


def samples(memory: list[int]) -> list[Sample]:
    return [Sample(float(n), [each, 0, 0], 0, 0) for n, each in enumerate(memory)]


def test_what_grows_before_the_warm_up_is_over_is_no_rise() -> None:
    line = memory_line(samples([10, 500, *[1000] * 6]))
    assert (line.begin_bytes, line.rise) == (1000, 0)


def test_a_leak_shows_through_what_goes_up_and_down() -> None:
    line = memory_line(samples([1000 + 10 * n + (50 if n % 2 else -50) for n in range(400)]))
    assert line.begin_bytes == pytest.approx(2000, rel=0.02)
    assert line.rise == pytest.approx(1.5, rel=0.02)


def test_a_run_too_short_for_a_line_says_so() -> None:
    with pytest.raises(BenchError, match="2 looks"):
        memory_line(samples([1, 1]))
