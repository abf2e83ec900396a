"""The disk monitor's decisions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmq_node.resources.disk import (
    ALARMED_LOOK_S,
    LOOK_S_MAX,
    LOOK_S_MIN,
    WRITE_BYTES_PER_S,
    DiskMonitor,
)

MB = 1_000_000
LIMIT = 50 * MB


def looked(*free: int, step_s: float = 1.0) -> DiskMonitor:
    monitor = DiskMonitor(LIMIT)
    for number, each in enumerate(free):
        monitor.step(each, now=number * step_s)
    return monitor


@pytest.mark.parametrize(
    ("free", "alarm"),
    [
        ((50 * MB,), False),
        ((50 * MB - 1,), True),
        ((0,), True),
        ((49 * MB, 50 * MB), True),
        ((49 * MB, 55 * MB - 1), True),
        ((49 * MB, 55 * MB), False),
        ((49 * MB, 55 * MB, 50 * MB), False),
        ((49 * MB, 55 * MB, 49 * MB), True),
    ],
)
def test_the_alarm_ends_a_tenth_above_where_it_begins(free: tuple[int, ...], alarm: bool) -> None:
    assert looked(*free).state.alarmed is alarm


@pytest.mark.parametrize(
    ("free", "look_s"),
    [
        ((10**12,), LOOK_S_MAX),
        ((LIMIT + 5000 * MB,), LOOK_S_MAX),
        ((LIMIT + 250 * MB,), 0.5),
        ((LIMIT + 50 * MB,), LOOK_S_MIN),
        ((LIMIT,), LOOK_S_MIN),
        ((LIMIT - 1,), ALARMED_LOOK_S),
        ((0,), ALARMED_LOOK_S),
        # Seen to fall faster than a middling disk: 1 GB in a second, and another is left.
        ((LIMIT + 2000 * MB, LIMIT + 1000 * MB), 0.5),
        ((LIMIT + 1100 * MB, LIMIT + 1000 * MB), LOOK_S_MAX),
        ((LIMIT + 1000 * MB, LIMIT + 5000 * MB), LOOK_S_MAX),
    ],
)
def test_looks_come_closer_before_the_limit(free: tuple[int, ...], look_s: float) -> None:
    assert looked(*free).state.look_s == pytest.approx(look_s)


def test_no_limit_is_no_alarm() -> None:
    monitor = DiskMonitor(0)
    assert not monitor.step(0, now=0.0).alarmed


frees = st.integers(0, 20 * LIMIT)


@given(st.lists(st.tuples(frees, st.floats(0, 20)), max_size=30), st.integers(0, 3 * LIMIT))
def test_invariants_hold(looks: list[tuple[int, float]], limit: int) -> None:
    monitor = DiskMonitor(limit)
    now = 0.0
    for free, waited in looks:
        now += waited
        monitor.step(free, now=now)
        monitor.check()


@given(st.lists(frees, max_size=10), st.tuples(frees, frees))
def test_less_free_never_means_a_later_look_or_no_alarm(
    before: list[int], free: tuple[int, int]
) -> None:
    less, more = (looked(*before, each).state for each in (min(free), max(free)))
    assert less.alarmed >= more.alarmed
    if less.alarmed == more.alarmed:
        assert less.look_s <= more.look_s


@given(st.lists(st.integers(50 * MB, 55 * MB - 1), max_size=50), st.booleans())
def test_between_its_marks_the_alarm_stays_as_it_was(free: list[int], alarm: bool) -> None:
    assert looked(0 if alarm else 10**9, *free).state.alarmed is alarm


@given(
    before=st.lists(st.integers(LIMIT, 10**15), min_size=1, max_size=5),
    left=st.integers(0, LIMIT - 1),
    taken_after_s=st.floats(0.0, 60.0),
)
def test_room_that_one_call_takes_is_missed_within_a_second(
    before: list[int], left: int, taken_after_s: float
) -> None:
    """A file of any size is reserved at once, however much room there was."""
    monitor = DiskMonitor(LIMIT)
    now = 0.0
    for free in before:
        now += monitor.step(free, now=now).look_s
    free, taken_at = before[-1], now + taken_after_s
    while not monitor.step(left if now >= taken_at else free, now=now).alarmed:
        now += monitor.state.look_s
    assert taken_at <= now <= taken_at + 1.0


@given(speed=st.integers(MB, WRITE_BYTES_PER_S), free=st.integers(LIMIT, 100 * LIMIT))
def test_a_disk_that_fills_is_noticed_before_it_is_full(speed: int, free: int) -> None:
    """At any speed up to that of a middling disk, and after any looks before."""
    monitor = DiskMonitor(LIMIT)
    now, left = 0.0, float(free)
    while not monitor.state.alarmed:
        look_s = monitor.step(int(left), now=now).look_s
        if not monitor.state.alarmed:
            now += look_s
            left -= speed * look_s
    assert left >= LIMIT - WRITE_BYTES_PER_S * LOOK_S_MIN
    assert left > 0
