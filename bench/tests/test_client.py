"""What `bench client` measures in a process, and how it sets the two clients beside each other."""

from __future__ import annotations

import gc
import io
from collections.abc import Iterator
from dataclasses import replace

import pytest
from bench import client
from bench.client_turns import ASYNC, SYNC, ClientRun, Kept, Peaks, Timed
from rich.console import Console

RUN = ClientRun(ASYNC, 1, 1000.0, 1.0, 2.0, 100.0, 0.0, 5000.0)


@pytest.fixture
def _without_earlier_garbage() -> Iterator[None]:
    """What other tests have left is collected by none of the collections here."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_without_earlier_garbage")
def test_blocks_that_a_turn_leaves_behind_are_counted_and_garbage_is_not() -> None:
    kept, left = Kept(), []
    kept.begin()
    for number in range(10_000):
        kept.handed()
        ring: list[object] = [number]
        ring.append(ring)  # garbage that only a collection finds
        left.append(object())
        kept.confirmed()
    kept.end()
    del ring
    # What earlier tests have left may come or go meanwhile; garbage would be a block or two each.
    assert 9_900 < kept.blocks < 10_100


def test_the_peak_is_of_one_message_above_what_was_taken_before() -> None:
    peaks, left = Peaks(), []
    peaks.begin()
    for size in (100_000, 10_000, 100_000):
        left.append(bytes(50_000))
        peaks.handed()
        bytes(size)
        peaks.confirmed()
    peaks.end()
    for peak, size in zip(peaks.bytes, (100_000, 10_000, 100_000), strict=True):
        assert size <= peak < size + 2000


def test_a_turn_has_a_latency_for_each_message_and_the_time_of_all() -> None:
    timed = Timed()
    timed.begin()
    for _ in range(3):
        timed.handed()
        sum(range(1000))
        timed.confirmed()
    timed.end()
    assert len(timed.latencies_s) == 3
    assert 0 < sum(timed.latencies_s) <= timed.seconds
    assert timed.cpu_s > 0


def test_each_client_goes_first_in_half_of_the_rounds() -> None:
    assert [client.in_turns(number)[0] for number in (1, 2, 3)] == [ASYNC, SYNC, ASYNC]
    assert {*client.in_turns(2)} == {ASYNC, SYNC}


def test_a_short_run_is_one_round_unless_more_is_asked_for() -> None:
    short, plain = client.parse(["--short"]), client.parse([])
    assert (short.rounds, short.count) == (1, client.SHORT_COUNT)
    assert (plain.rounds, plain.count) == (client.ROUNDS, client.COUNT)
    assert client.parse(["--short", "--count", "7"]).count == 7


def test_ratios_are_of_the_rounds_and_kept_blocks_have_none() -> None:
    runs = [
        RUN,
        replace(RUN, kind=SYNC, cpu_us=150.0),
        replace(RUN, kind=SYNC, round=2, cpu_us=600.0),
        replace(RUN, round=2, cpu_us=300.0),
    ]
    said = io.StringIO()
    Console(file=said, width=120).print(client.table(runs, 10))
    lines = said.getvalue().splitlines()
    cpu = next(at for at, line in enumerate(lines) if "client CPU" in line)
    assert lines[cpu].split()[-1] == "1.75"
    assert lines[cpu + 1].split()[-3:] == ["1.50", "-", "2.00"]
    kept = next(line for line in lines if "blocks kept" in line)
    assert kept.split()[-2:] == ["0.000", "0.000"]
