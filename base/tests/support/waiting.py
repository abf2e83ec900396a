"""Waiting for a condition that nothing announces; the error names the condition it missed.

Tests share their machine, and a bound of time is a figure of a machine that nobody else uses. So
`make test` gives each bound some leeway, which is little beside what its test is to find: a wait
that never ends, a time without service as long as the fault. `make evidence` runs the tests whose
bounds are figures of the product on a quiet machine, and holds them to the letter.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

POLL_S = 0.01
LEEWAY = 1.0 if os.environ.get("RINGMQ_EXHAUSTIVE") else 3.0


class TooLateError(AssertionError):
    """Something has not come about in its time: because it never will, or the machine is slow."""


def leeway(bound_s: float) -> float:
    """`bound_s`, a figure of a machine that nobody else uses, for the machine of this run."""
    return bound_s * LEEWAY


async def until(
    condition: Callable[[], Awaitable[bool]] | Callable[[], bool],
    what: str = "",
    *,
    within_s: float = 20.0,
    poll_s: float = POLL_S,
) -> None:
    """Returns when `condition` holds; `TooLateError` with `what` after `leeway(within_s)`."""
    loop = asyncio.get_running_loop()
    within_s = leeway(within_s)
    deadline = loop.time() + within_s
    while True:
        holds = condition()
        if not isinstance(holds, bool):
            holds = await holds
        if holds:
            return
        if loop.time() >= deadline:
            raise TooLateError(f"not within {within_s:g} s: {what or condition}")
        await asyncio.sleep(poll_s)
