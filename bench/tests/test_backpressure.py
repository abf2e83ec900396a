"""What fails a run of `bench backpressure`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench.backpressure import (
    ALARMED,
    FULL_DISK,
    NO_CONSUMER,
    PHASES,
    SLOW_MIRROR,
    STOPPED_CONSUMER,
    WATERMARK_BYTES,
    Course,
    Sample,
    judge,
)
from bench.measure import BenchError

TOLD = {SLOW_MIRROR: ["ring full"], FULL_DISK: ["disk"]}


def good() -> list[Sample]:
    """One sample of each phase; the alarm holds the other queue's publisher, too."""
    return [
        Sample(
            at_s=at,
            phase=phase,
            memory_bytes=[WATERMARK_BYTES // 2] * 3,
            confirmed=at * 100,
            other_confirmed=at * 10,
            other_gap_s=15.0 if phase in ALARMED else 0.1,
            blocked=TOLD.get(phase, []),
        )
        for at, phase in enumerate(PHASES)
    ]


def test_a_run_in_which_an_alarm_alone_holds_the_other_queue() -> None:
    judge(good())


@pytest.mark.parametrize(
    ("phase", "changes", "error"),
    [
        (NO_CONSUMER, {"memory_bytes": [0, WATERMARK_BYTES * 2, 0]}, "the watermark is"),
        (FULL_DISK, {"blocked": []}, "never told that the disk is full"),
        (SLOW_MIRROR, {"blocked": []}, r"of the slow mirror the publisher was told \[\]"),
        (SLOW_MIRROR, {"blocked": ["disk"]}, r"was told \['disk'\]"),
        (SLOW_MIRROR, {"other_gap_s": 1.2}, "slow mirror: the other queue's.* 1.20 s"),
        (STOPPED_CONSUMER, {"other_gap_s": 9.0}, "consumer stopped: the other queue's"),
    ],
)
def test_a_run_that_fails(phase: str, changes: dict[str, object], error: str) -> None:
    samples = [
        replace(each, **changes) if each.phase == phase else each  # type: ignore[arg-type]
        for each in good()
    ]
    with pytest.raises(BenchError, match=error):
        judge(samples)


@pytest.mark.parametrize(("late_s", "fails"), [(2.5, False), (3.5, True)])
def test_a_full_disk_that_is_told_late(late_s: float, fails: bool) -> None:
    samples = good()
    (full,) = (each for each in samples if each.phase == FULL_DISK)
    before = replace(full, at_s=full.at_s - late_s, blocked=[])
    samples.insert(samples.index(full), before)
    if not fails:
        judge(samples)
        return
    with pytest.raises(BenchError, match=r"told after 3\.5 s that the disk is full"):
        judge(samples)


def test_the_longest_gap_counts_also_while_it_goes_on() -> None:
    course = Course()
    course.other_confirmed_at_s -= 5.0
    assert course.longest_gap_s() >= 5.0
    course.other_confirms()
    course.other_confirms()
    assert (course.longest_gap_s() >= 5.0, course.other_confirmed) == (True, 2)
    course.other_gap_s = 0.0
    assert course.longest_gap_s() < 5.0
