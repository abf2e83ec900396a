"""Tests of the client on every loop that an application may use, in a bounded time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine

import loops
import pytest
from waiting import leeway

from ringmq.errors import RingMQError

DEADLINE_S = 20.0
# Runs a test's coroutine on the loop that the fixture `run` was made for.
Run = Callable[[Callable[[], Coroutine[None, None, None]]], None]


def run_on(factory: loops.LoopFactory, test: Callable[[], Coroutine[None, None, None]]) -> None:
    loops.run(asyncio.wait_for(test(), leeway(DEADLINE_S)), on=factory)
    # A publisher or consumer that was closed leaves no task behind.
    assert not [name for name in loops.left_tasks if name.startswith("ringmq-")]


async def seconds(work: Awaitable[object]) -> float:
    start = time.monotonic()
    await work
    return time.monotonic() - start


async def error_in_time(
    call: Callable[[float], Awaitable[object]],
    enough: Callable[[RingMQError], bool],
    *,
    deadline_s: float,
) -> RingMQError:
    """What `call(deadline_s)` raises. On a busy machine a short deadline may have passed before
    anybody was asked: then again with a longer one, until it was `enough`."""
    while True:
        with pytest.raises(RingMQError) as caught:
            await call(deadline_s)
        if enough(caught.value):
            return caught.value
        deadline_s *= 3


def bodies(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]
