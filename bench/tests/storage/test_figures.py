"""Figures and counts, from observations made by hand."""

from __future__ import annotations

import pytest
from bench.storage.driver import KnownBodies, joined
from bench.storage.figures import backlog_figures, garbage_figures
from bench.storage.observations import Observations, rate_between
from bench.storage.round_result import thinned
from bench.storage.variants import scaled
from bench.tests.storage.observed import event, phase, sample


def test_a_rate_is_taken_between_shares_of_the_messages_not_of_the_time() -> None:
    # 100/s for the first half of the messages, 50/s for the second.
    progress = [(10.0, 0), (11.0, 100), (15.0, 500), (17.0, 600), (25.0, 1000)]
    assert rate_between(progress, 0, 0.1) == pytest.approx(100)
    assert rate_between(progress, 0.9, 1) == pytest.approx(50)
    assert rate_between(progress, 0, 1) == pytest.approx(1000 / 15)


def test_a_rate_is_reckoned_with_no_more_than_begin_and_end() -> None:
    assert rate_between([(0.0, 0), (4.0, 100)], 0.9, 1) == pytest.approx(25)


def test_cpu_of_a_phase_is_what_it_said_or_what_was_seen_at_its_edges() -> None:
    observed = Observations(
        [event("begin", "fill", 1), event("end", "fill", 3)],
        [sample(0.9, "", 5), sample(2, "fill", 6), sample(3.01, "fill", 7.5)],
    )
    assert observed.cpu_s("fill") == 2.5
    observed.events[1] = event("end", "fill", 3, cpu_s=1.25)
    assert observed.cpu_s("fill") == 1.25


def test_figures_of_a_backlog() -> None:
    fill = phase("fill", 100, [(1, 200), (9, 900), (10, 950), (11, 1000)])
    drain = phase("drain", 111, [(4, 1000)])
    observed = Observations(
        fill + drain,
        [
            sample(100, "fill", 1, disk=1000),
            sample(111, "fill", 3, disk=5_000_000),
            sample(115, "drain", 4, disk=2_000_000),
        ],
        rss_peak_bytes=64 << 20,
    )
    figures = backlog_figures(observed, 1000)
    assert figures["publish_per_s"] == pytest.approx(1000 / 11)
    assert figures["publish_last_to_first"] == pytest.approx(50 / 200)
    assert figures["publish_cpu_s_per_million"] == pytest.approx(2000)
    assert figures["drain_per_s"] == 250
    assert figures["drain_to_publish"] == pytest.approx(2.75)
    assert (figures["rss_peak_mib"], figures["disk_most_mb"], figures["disk_end_mb"]) == (64, 5, 2)


def test_garbage_is_what_of_the_disk_is_not_live_but_for_the_start() -> None:
    observed = Observations(
        [
            event("begin", "churn", 0),
            event("progress", "churn", 1, live_bytes=10),
            event("progress", "churn", 5, live_bytes=100),
            event("end", "churn", 10, live_bytes=100),
            event("begin", "after", 10),
            event("end", "after", 12, live_bytes=100),
        ],
        [
            sample(1.5, "churn", 0, disk=1000),  # 99 %, but before a fifth of the time
            sample(6, "churn", 0, disk=400),
            sample(10.01, "churn", 0, disk=200),
            sample(12, "after", 0, disk=125),
        ],
    )
    figures = garbage_figures(observed)
    assert figures["garbage_most"] == pytest.approx(0.75)
    assert figures["garbage_end"] == pytest.approx(0.2)


def test_a_thinned_series_keeps_its_ends() -> None:
    assert thinned([*range(10)], 4) == [0, 3, 6, 9]
    assert thinned([*range(11)], 4) == [0, 3, 6, 9, 10]
    assert thinned([1], 4) == [1]
    empty: list[int] = []
    assert thinned(empty, 4) == []


def test_counts_scale_to_whole_batches_and_never_to_none() -> None:
    assert scaled(5_000_000, 0.02, 5000) == 100_000
    assert scaled(1000, 0.0001, 16) == 16
    assert scaled(10, 0.25) == 2


def test_ranges_that_touch_become_one() -> None:
    assert joined([(1, 2), (3, 3), (5, 9), (10, 11)]) == ((1, 3), (5, 11))
    assert joined([]) == ()


def test_bodies_tell_a_wrong_one() -> None:
    bodies = KnownBodies(5, 64)
    block = bodies.block(3, 4)
    assert block.count == 4
    for place, body in enumerate(block.bodies()):
        bodies.check(3 + place, body)
    with pytest.raises(AssertionError, match="wrong body at 4"):
        bodies.check(4, block.bodies()[0])
