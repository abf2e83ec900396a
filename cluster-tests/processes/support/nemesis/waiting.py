"""Waiting for a condition, with a deadline that names the condition it missed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

POLL_S = 0.02


async def until(
    condition: Callable[[], Awaitable[bool]] | Callable[[], bool],
    what: str,
    *,
    within_s: float = 10.0,
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
        assert loop.time() < deadline, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(POLL_S)
