"""Publishing under a window: never more unconfirmed messages than it, in order, all counted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import run

from ringmq import OutcomeUnknownError, QueueNotFoundError
from ringmq_node.cli.demo.lines import DAMAGED, Lines
from ringmq_node.cli.load.bodies import FOREIGN, HEADER_BYTES, StampedBodies, times_ns
from ringmq_node.cli.load.latencies import Latencies
from ringmq_node.cli.load.tally import Tally
from ringmq_node.cli.load.windowed import WindowedLoad, lane_sizes


class SlowPublisher:
    """Confirms chunks in order, each one turn of the loop after the chunk before."""

    def __init__(self, fail_at: int | None = None, error: Exception | None = None) -> None:
        self.taken: list[bytes] = []
        self.unconfirmed = 0
        self.unconfirmed_max = 0
        self._fail_at = fail_at
        self._error = error
        self._turn = asyncio.Lock()

    async def publish_batch(self, bodies: Sequence[bytes], /) -> None:
        self.taken += bodies
        self.unconfirmed += len(bodies)
        self.unconfirmed_max = max(self.unconfirmed_max, self.unconfirmed)
        async with self._turn:
            await asyncio.sleep(0)
        self.unconfirmed -= len(bodies)
        if self._error is not None and len(self.taken) >= (self._fail_at or 0):
            raise self._error


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % index for index in range(first, first + count)]


@given(st.integers(1, 5000), st.integers(0, 5000))
def test_lanes_add_up_to_the_window(window: int, batch: int) -> None:
    sizes = lane_sizes(window, batch)
    assert sum(sizes) == window
    assert min(sizes) >= 1
    assert not batch or max(sizes) <= batch


@pytest.mark.parametrize("window", [1, 3, 10, 64])
def test_the_window_is_full_and_never_exceeded(window: int) -> None:
    async def work() -> tuple[WindowedLoad, SlowPublisher]:
        publisher = SlowPublisher()
        load = WindowedLoad(Tally(), numbered, 1000)
        await load.publish(publisher, window=window)
        return load, publisher

    load, publisher = run(work())
    assert publisher.unconfirmed_max == window
    assert publisher.taken == numbered(0, 1000)
    assert list(load.tally.confirmed) == [(0, 999)]


def test_a_failure_ends_it_and_says_what_is_not_confirmed() -> None:
    error = OutcomeUnknownError("gone")
    error.failed = ((1, 1),)

    async def work() -> WindowedLoad:
        load = WindowedLoad(Tally(), numbered, 1000)
        await load.publish(SlowPublisher(fail_at=500, error=error), window=4, batch=4)
        return load

    load = run(work())
    assert load.failure is error
    assert load.failed == 1
    assert load.tally.published == 500
    assert list(load.tally.confirmed) == [(0, 496), (498, 499)]


def test_a_wrong_request_is_raised() -> None:
    async def work() -> None:
        publisher = SlowPublisher(error=QueueNotFoundError("no queue"))
        await WindowedLoad(Tally(), numbered, 10).publish(publisher, window=2)

    with pytest.raises(QueueNotFoundError):
        run(work())


def test_percentiles_are_by_nearest_rank_over_messages() -> None:
    latencies = Latencies()
    assert latencies.summary_ms() is None
    latencies.add(0.001, 98)
    latencies.add(0.5, 1)
    latencies.add(0.25, 1)
    assert latencies.summary_ms() == {"p50": 1.0, "p95": 1.0, "p99": 250.0, "max": 500.0}


def test_bodies_are_read_as_they_were_made() -> None:
    bodies, others = StampedBodies(HEADER_BYTES + 3), StampedBodies(HEADER_BYTES)
    made = list(bodies.make(7, 3))
    assert {len(body) for body in made} == {HEADER_BYTES + 3}
    indexes, sent_ns = bodies.read(made)
    assert list(indexes) == [7, 8, 9]
    assert list(sent_ns) == times_ns(made)
    mixed = [made[0], *others.make(7, 1), b"short"]
    assert list(bodies.read(mixed)[0]) == [7, FOREIGN, FOREIGN]
    assert not StampedBodies(HEADER_BYTES - 1).has_stamp


def test_a_damaged_line_is_found() -> None:
    lines = Lines()
    assert len(lines) > 250
    bodies = lines.bodies(280, 10)
    assert list(lines.indexes(bodies)) == list(range(280, 290))
    damaged = [*bodies[:2], bodies[2] + b"!", b"", bodies[4]]
    assert list(lines.indexes(damaged)) == [280, 281, DAMAGED, DAMAGED, 284]
