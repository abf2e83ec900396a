"""The one event loop, in a daemon thread, of all clients without asyncio of a process."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Coroutine
from typing import TypeVar

import uvloop

R = TypeVar("R")

# Without it two threads that connect at once would start two loops.
_starting = threading.Lock()


@functools.cache
def _start_loop() -> asyncio.AbstractEventLoop:
    # The thread is ours, so no program minds which loop it is.
    loop = uvloop.new_event_loop()
    threading.Thread(target=loop.run_forever, name="ringmq-sync", daemon=True).start()
    return loop


def run_on_loop(work: Coroutine[object, object, R]) -> R:
    """Runs `work` on the loop and waits for it; an interrupt here cancels it there."""
    with _starting:
        loop = _start_loop()
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
