"""The event loop on which tests run coroutines: the product's.

    def test_a_ring_closes() -> None:
        async def scenario() -> None: ...

        run(scenario())

Nodes and the command line run on uvloop, and uvloop is not asyncio: the handle of a timer has no
`when` once its moment is past, a transport closes one turn later, other errors come out of a dead
socket. A test on asyncio's loop shows nothing about either. So this module is the only one in the
tests that makes loops; `cluster-tests/tidy/test_loops.py` refuses all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import uvloop

R = TypeVar("R")
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def _is_late(loop: asyncio.AbstractEventLoop, callback: object) -> bool:
    """grpc.aio has one thread for all loops of a process, and a test's loop is one of many. The
    completion of a call may come when the call's loop is closed. Then the loop of a later test
    takes it from that thread, hands it on, and would fail in the middle of its own completions."""
    of_grpc = str(getattr(callback, "__module__", "")).startswith("grpc.")
    return of_grpc and loop.is_closed()


class _UvLoop(uvloop.Loop):
    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        if not _is_late(self, callback):
            return super().call_soon_threadsafe(callback, *args, context=context)
        return None


class _AsyncioLoop(asyncio.SelectorEventLoop):
    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        if not _is_late(self, callback):
            return super().call_soon_threadsafe(callback, *args, context=context)
        return None


# The client is a library: it runs on the loop of its user, which may be either.
LOOPS: dict[str, LoopFactory] = {
    "uvloop": _UvLoop,
    "asyncio": _AsyncioLoop,
}

# The names of the tasks that were still alive when the last `run` ended. The runner cancels them
# a moment later, so a fixture that looks for leftovers can't see them by itself.
left_tasks: list[str] = []


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop of the product's kind, for a test that drives it step by step and closes it."""
    return _UvLoop()


def run(work: Coroutine[Any, Any, R], *, on: LoopFactory = _UvLoop) -> R:
    """As `asyncio.run`, on a new loop of the product's kind; `on` names another kind."""
    with asyncio.Runner(loop_factory=on) as runner:
        try:
            return runner.run(work)
        finally:
            left_tasks[:] = [task.get_name() for task in asyncio.all_tasks(runner.get_loop())]


@asynccontextmanager
async def turns_beside() -> AsyncIterator[Callable[[], int]]:
    """How often another task had its turn so far, while the work within goes on."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    try:
        yield lambda: turns
    finally:
        beside.cancel()
