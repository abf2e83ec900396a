"""Waiting for a condition that nothing announces; the error names the condition it missed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

POLL_S = 0.01


async def until(
    condition: Callable[[], Awaitable[bool]] | Callable[[], bool],
    what: str = "",
    *,
    within_s: float = 20.0,
    poll_s: float = POLL_S,
) -> None:
    """Returns when `condition` holds; `AssertionError` with `what` after `within_s`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while True:
        holds = condition()
        if not isinstance(holds, bool):
            holds = await holds
        if holds:
            return
        assert loop.time() < deadline, f"not within {within_s:g} s: {what or condition}"
        await asyncio.sleep(poll_s)
