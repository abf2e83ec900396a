"""The one event loop, in a daemon thread, of all clients without asyncio of a process.

A thread doesn't survive a fork, so a forked process begins a loop of its own. What its parent had
on the loop is of no use there, and stays untouched: the sockets are the parent's as well.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Generic, TypeVar

import uvloop

from ringmq.errors import ClosedError

R = TypeVar("R")
T = TypeVar("T")

# Without it two threads that connect at once would start two loops.
_starting = threading.Lock()
# What lives on the loop.
_living: weakref.WeakSet[object] = weakref.WeakSet()
# In a forked process: the loops of those before it, and what lived there. If their handles were
# freed here, the parent's loop would watch its sockets no more: the two share one epoll.
_inherited: list[object] = []


def _loop() -> asyncio.AbstractEventLoop:
    with _starting:
        return _start_loop()


@functools.cache
def _start_loop() -> asyncio.AbstractEventLoop:
    # The thread is ours, so no program minds which loop it is.
    loop = uvloop.new_event_loop()
    threading.Thread(target=loop.run_forever, name="ringmq-sync", daemon=True).start()
    return loop


def _forked() -> None:
    """In the child, where the loop's thread isn't."""
    global _starting  # Another thread may have held it.
    _starting = threading.Lock()
    _inherited.extend(_living)
    _living.clear()
    if _start_loop.cache_info().currsize:
        _inherited.append(_start_loop())
        _start_loop.cache_clear()


os.register_at_fork(after_in_child=_forked)


class OnLoop(Generic[T]):
    """A caller's own object, for what lives on the loop: a client, a publisher, a consumer."""

    def __init__(self, calls: T) -> None:
        self._calls = calls
        self._process = os.getpid()
        _living.add(calls)

    @property
    def is_inherited(self) -> bool:
        """Whether another process has made it, which has forked this one."""
        return os.getpid() != self._process

    @property
    def calls(self) -> T:
        if self.is_inherited:
            raise ClosedError("it belongs to the process that has forked this one: connect again")
        return self._calls


def is_loops_own_thread() -> bool:
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return False
    return running is _loop()


def start_on_loop(work: Coroutine[object, object, R]) -> concurrent.futures.Future[R]:
    """Begins `work` on the loop. What one thread starts in this way begins in that order; but, as
    a task takes its first step a turn later, behind the next `begin_on_loop` or `await_on_loop`."""
    return asyncio.run_coroutine_threadsafe(work, _loop())


def run_on_loop(work: Coroutine[object, object, R]) -> R:
    """Runs `work` on the loop and waits for it; an interrupt here cancels it there."""
    if is_loops_own_thread():
        work.close()
        raise RuntimeError("a callback of a client can't call it: it would wait for itself")
    future = start_on_loop(work)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def begin_on_loop(start: Callable[[], asyncio.Future[R]]) -> concurrent.futures.Future[R]:
    """Calls `start` on the loop, before anything that this thread begins there next, and doesn't
    wait: the outcome, or the error that `start` raises, comes with the future that it returns.

    A cancel of that future prevents a `start` that hasn't begun; one that has begun goes on.
    """
    outcome: concurrent.futures.Future[R] = concurrent.futures.Future()

    def begin() -> None:
        if outcome.cancelled():
            outcome.set_running_or_notify_cancel()
            return
        try:
            future = start()
        except Exception as error:
            if outcome.set_running_or_notify_cancel():
                outcome.set_exception(error)
            return
        hand_on(future, outcome)

    _loop().call_soon_threadsafe(begin)
    return outcome


def hand_on(future: asyncio.Future[R], outcome: concurrent.futures.Future[R]) -> None:
    """Has `outcome` end as `future` does. Called on the loop, while the thread that has `outcome`
    may cancel it at any moment: then nothing is handed on, and `future` is left alone."""

    def done(ended: asyncio.Future[R]) -> None:
        # Asked for in any case: asyncio logs a failure that nobody has asked for.
        failure = None if ended.cancelled() else ended.exception()
        if ended.cancelled():
            outcome.cancel()
        # From here on a cancel by the other thread does nothing.
        if not outcome.set_running_or_notify_cancel():
            return
        if failure is None:
            outcome.set_result(ended.result())
        else:
            outcome.set_exception(failure)

    future.add_done_callback(done)


def await_on_loop(start: Callable[[], asyncio.Future[R]]) -> R:
    """Calls `start` on the loop and waits for its future; an interrupt here cancels that.

    For what happens once for each message. It needs neither a task nor the loop's turns for one:
    it takes 20 us of processor time, `run_on_loop` 32.
    """
    if is_loops_own_thread():
        raise RuntimeError("a callback of a client can't call it: it would wait for itself")
    loop = _loop()
    ended = threading.Lock()
    ended.acquire()
    futures: list[asyncio.Future[R]] = []
    refusals: list[Exception] = []

    def begin() -> None:
        try:
            future = start()
        except Exception as error:
            refusals.append(error)
            ended.release()
            return
        futures.append(future)
        future.add_done_callback(lambda _: ended.release())

    def cancel() -> None:
        for future in futures:
            future.cancel()

    try:
        loop.call_soon_threadsafe(begin)
        ended.acquire()
    except BaseException:
        loop.call_soon_threadsafe(cancel)
        raise
    # Taken out: an error's traceback has this frame, which would keep the error.
    if refusals:
        raise refusals.pop()
    return futures.pop().result()
