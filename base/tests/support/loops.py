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


def _outlived_by_grpc(kind: Any) -> LoopFactory:
    """Loops of this kind, which drop completions of grpc.aio that come when they are closed.

    grpc.aio has one thread for all loops of a process, and a test's loop is one of many. Whichever
    loop takes a completion from that thread hands it to the loop of its call. If that is an earlier
    test's, it fails with it, in the middle of its own completions."""

    class Loop(kind):  # type: ignore[misc]
        def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
            of_grpc = str(getattr(callback, "__module__", "")).startswith("grpc.")
            if of_grpc and self.is_closed():
                return None
            return super().call_soon_threadsafe(callback, *args, context=context)

    return Loop


# The client is a library: it runs on the loop of its user, which may be either.
LOOPS: dict[str, LoopFactory] = {
    "uvloop": _outlived_by_grpc(uvloop.Loop),
    "asyncio": _outlived_by_grpc(asyncio.SelectorEventLoop),
}

# The names of the tasks that were still alive when the last `run` ended. The runner cancels them
# a moment later, so a fixture that looks for leftovers can't see them by itself.
left_tasks: list[str] = []


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop of the product's kind, for a test that drives it step by step and closes it."""
    return LOOPS["uvloop"]()


def run(work: Coroutine[Any, Any, R], *, on: LoopFactory = LOOPS["uvloop"]) -> R:
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
