"""An asynchronous generator for a thread: in order, within a bound of bytes, and ended in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator

import pytest
from loops import run
from waiting import leeway, until

from ringmq.calls.loop_thread import start_on_loop
from ringmq.reading.read_ahead import read_ahead


class Counted:
    """Gives `count` items, each its number, and then raises `error`. With 0, it never does."""

    def __init__(self, count: int, error: Exception | None = None, slow: bool = False) -> None:
        self.given = 0
        self.begun, self.closed = threading.Event(), threading.Event()
        self._count, self._error, self._slow = count, error, slow

    async def items(self) -> AsyncGenerator[int, None]:
        self.begun.set()
        try:
            for number in range(self._count):
                if self._slow:
                    await asyncio.sleep(0)
                self.given += 1
                yield number
            if self._error is not None:
                raise self._error
            if self._count == 0:
                await asyncio.get_running_loop().create_future()
        finally:
            self.closed.set()

    def read(self, item_bytes: int = 1, bytes_max: int = 10) -> Generator[int, None, None]:
        return read_ahead(self.items(), lambda _: item_bytes, bytes_max)


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("item_bytes", [0, 1, 3, 10, 100])
def test_all_come_in_order(item_bytes: int, slow: bool) -> None:
    source = Counted(100, slow=slow)
    assert [*source.read(item_bytes)] == [*range(100)]
    assert source.closed.is_set()


def test_it_reads_ahead_up_to_its_bound() -> None:
    source = Counted(100)
    reading = source.read(item_bytes=2, bytes_max=10)
    assert source.given == 0
    for number in range(80):
        assert next(reading) == number
        run(until(lambda got=number + 1: source.given >= got + 5, "five are ready"))
        # And as many were taken at once.
        assert source.given <= number + 1 + 5 + 5
    reading.close()
    assert source.closed.is_set()
    assert source.given < 100


def test_an_item_above_the_bound_comes_alone() -> None:
    source = Counted(5)
    reading = source.read(item_bytes=1000, bytes_max=10)
    for number in range(3):
        assert next(reading) == number
        run(until(lambda got=number + 1: source.given == got + 1, "one is ready"))
    reading.close()
    assert source.given == 4


def test_its_error_comes_behind_its_items() -> None:
    source = Counted(3, ValueError("gone"))
    reading = source.read()
    assert [next(reading) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="gone"):
        next(reading)
    assert source.closed.is_set()


def test_a_caller_that_is_interrupted_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Counted(0)

    def interrupted(self: object) -> list[int]:
        assert source.begun.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr("ringmq.reading.read_ahead._ReadAhead.take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(source.read())
    assert source.closed.is_set()


def test_the_garbage_collector_ends_it_in_the_loops_own_thread() -> None:
    """Which can't wait for itself there: all clients of the process stood still."""
    source = Counted(100)
    reading = source.read()
    assert next(reading) == 0

    async def end() -> None:
        # As the collector does, in whichever thread it runs, if a reading is in a cycle.
        reading.close()

    start_on_loop(end()).result(leeway(5))
    assert source.closed.wait(leeway(5))
