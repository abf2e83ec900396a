"""The watch of the event loop: long pieces of work are named, and nothing else is."""

from __future__ import annotations

import asyncio
import linecache
import logging
import time
from collections.abc import Awaitable, Callable

import pytest
from loops import run

from ringmq_node.resources.loop_watch import BEAT_S, LoopWatch


def work_for(seconds: float) -> None:
    """Of CPU time: on a busy machine it takes longer."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(200))


def watched(story: Callable[[], Awaitable[None]]) -> LoopWatch:
    # On a busy machine a story may take longer than the usual time between two warnings.
    watch = LoopWatch(warn_s=3600)

    async def main() -> None:
        running = asyncio.create_task(watch.run())
        await asyncio.sleep(0.05)
        await story()
        await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.wait({running})

    run(main())
    return watch


def test_a_long_piece_is_told_with_what_ran(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        work_for(0.15)

    with caplog.at_level(logging.WARNING):
        watch = watched(story)
    assert watch.pieces == 1
    # Of CPU time before the moment at which the idle loop's beat was due nothing is counted.
    assert watch.longest_s >= 0.15 - BEAT_S
    (record,) = caplog.records
    assert "the event loop was held for at least 1" in record.message
    assert "work_for" in record.message


def test_a_sample_reads_no_file(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it read the files of the stack for their lines, the piece ended without a sample."""
    read: list[str] = []

    def note(file: str, _: object = None) -> list[str]:
        read.append(file)
        return []

    monkeypatch.setattr(linecache, "updatecache", note)
    linecache.clearcache()

    async def story() -> None:
        work_for(0.15)

    with caplog.at_level(logging.WARNING):
        watched(story)
    assert "work_for" in caplog.records[0].message
    assert read == []


def test_long_pieces_in_a_row_are_one_warning_and_a_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        for _ in range(4):
            work_for(0.1)
            await asyncio.sleep(0.03)

    with caplog.at_level(logging.WARNING):
        watch = watched(story)
    assert watch.pieces == 4
    assert len(caplog.records) == 1


def test_short_pieces_and_a_sleeping_thread_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        for _ in range(30):
            work_for(0.01)
            await asyncio.sleep(0)
        # As on a machine where somebody else has the processor.
        time.sleep(0.1)  # noqa: ASYNC251  # that is the point

    with caplog.at_level(logging.WARNING):
        watch = watched(story)
    assert watch.pieces == 0
    assert not caplog.records


def test_many_short_pieces_of_a_busy_loop_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """Two beats lie further apart than one of its pieces takes."""

    async def story() -> None:
        for _ in range(20):
            work_for(0.04)
            await asyncio.sleep(0)

    with caplog.at_level(logging.WARNING):
        watch = watched(story)
    assert watch.pieces == 0, watch.longest_s
    # Nor are they overlooked: a piece is told as at most one busy beat shorter.
    assert watch.longest_s >= 0.04 - BEAT_S
