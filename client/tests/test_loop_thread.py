from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import signal
import threading
from collections.abc import Iterator

import pytest
from waiting import leeway

from ringmq.calls.loop_thread import await_on_loop, begin_on_loop, run_on_loop, start_on_loop


def test_a_future_is_awaited_without_a_task() -> None:
    tasks: list[asyncio.Task[object] | None] = []

    def start() -> asyncio.Future[str]:
        loop = asyncio.get_running_loop()
        tasks.append(asyncio.current_task())
        future: asyncio.Future[str] = loop.create_future()
        loop.call_soon(future.set_result, "done")
        return future

    assert await_on_loop(start) == "done"
    assert tasks == [None]


def test_what_start_raises_and_what_its_future_raises_come_to_the_caller() -> None:
    def refuse() -> asyncio.Future[None]:
        raise ValueError("not even begun")

    def fail() -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_exception(KeyError("later"))
        return future

    with pytest.raises(ValueError, match="not even begun"):
        await_on_loop(refuse)
    with pytest.raises(KeyError, match="later"):
        await_on_loop(fail)


@pytest.fixture
def interrupted() -> Iterator[list[int]]:
    """Another thread interrupts this one, once. It may have to send its signal several times: one
    that comes just before this thread begins to wait is only seen when the next one comes."""
    seen: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        seen.append(number)
        if len(seen) == 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield seen
    signal.signal(signal.SIGUSR1, before)


def test_an_interrupt_cancels_the_future(interrupted: list[int]) -> None:
    main = threading.main_thread().ident
    assert main is not None
    started: list[asyncio.Future[None]] = []

    def interrupt() -> None:
        if not interrupted:
            signal.pthread_kill(main, signal.SIGUSR1)
            asyncio.get_running_loop().call_later(0.01, interrupt)

    def start() -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        started.append(loop.create_future())
        loop.call_soon(interrupt)
        return started[0]

    with pytest.raises(KeyboardInterrupt):
        await_on_loop(start)

    async def is_cancelled() -> bool:
        return started[0].cancelled()

    assert run_on_loop(is_cancelled())


def test_the_loops_own_thread_waits_for_nothing_there() -> None:
    """It would wait for ever, and with it every client of the process."""

    async def nothing() -> None: ...

    async def a_callback() -> None:
        run_on_loop(nothing())

    async def another() -> None:
        await_on_loop(asyncio.get_running_loop().create_future)

    for work in (a_callback(), another()):
        with pytest.raises(RuntimeError, match="wait for itself"):
            start_on_loop(work).result(leeway(5))


def test_what_is_begun_without_a_wait_has_begun_before_the_next_call() -> None:
    """As a task it would begin one turn of the loop later, behind a call that begins at once."""
    begun: list[str] = []

    def start(name: str) -> asyncio.Future[str]:
        begun.append(name)
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        future.set_result(name)
        return future

    first = begin_on_loop(lambda: start("first"))
    assert await_on_loop(lambda: start("second")) == "second"
    assert begun == ["first", "second"]
    assert first.result(leeway(5)) == "first"


def test_what_is_begun_tells_how_it_fails() -> None:
    def refuse() -> asyncio.Future[None]:
        raise ValueError("not even begun")

    def end(failure: Exception | None) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if failure is None:
            future.cancel()
        else:
            future.set_exception(failure)
        return future

    with pytest.raises(ValueError, match="not even begun"):
        begin_on_loop(refuse).result(leeway(5))
    with pytest.raises(KeyError, match="later"):
        begin_on_loop(lambda: end(KeyError("later"))).result(leeway(5))
    cancelled = begin_on_loop(lambda: end(None))
    # Also those who wait for several futures hear of it.
    done, _ = concurrent.futures.wait([cancelled], leeway(5))
    assert cancelled in done
    assert cancelled.cancelled()


def test_a_cancel_before_the_begin_prevents_it_and_afterwards_has_no_effect_there() -> None:
    begun: list[asyncio.Future[None]] = []
    held, reached = threading.Event(), threading.Event()

    def start() -> asyncio.Future[None]:
        begun.append(asyncio.get_running_loop().create_future())
        return begun[-1]

    async def hold() -> None:
        reached.set()
        held.wait(leeway(5))

    async def finish() -> None:
        begun[0].set_result(None)

    begun_first = begin_on_loop(start)
    holding = start_on_loop(hold())
    assert reached.wait(leeway(5))
    assert begun_first.cancel()
    never = begin_on_loop(start)
    assert never.cancel()
    held.set()
    holding.result(leeway(5))
    run_on_loop(finish())
    assert (len(begun), begun_first.cancelled(), never.cancelled()) == (1, True, True)


def test_a_failure_that_nobody_waits_for_any_more_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun: list[asyncio.Future[None]] = []

    def start() -> asyncio.Future[None]:
        begun.append(asyncio.get_running_loop().create_future())
        return begun[-1]

    async def fail() -> None:
        begun.pop().set_exception(KeyError("late"))

    outcome = begin_on_loop(start)
    run_on_loop(asyncio.sleep(0))
    assert outcome.cancel()
    run_on_loop(fail())
    run_on_loop(asyncio.sleep(0))
    gc.collect()
    assert caplog.messages == []
