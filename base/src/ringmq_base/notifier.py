"""Waking everybody who waits for a state to change, each time that it does.

An `asyncio.Event` stays set: a waiter that loops until its condition holds would spin. A
`Notifier` has no state of its own, so the waiter's loop decides:

    while not condition():
        await notifier.wait()
"""

from __future__ import annotations

import asyncio


class Notifier:
    """Used on one event loop's thread."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """Returns at the next `notify`; earlier ones don't count."""
        await self._event.wait()

    def notify(self) -> None:
        """Wakes every task that waits now."""
        # A new event for the next waiters: clearing the old one before its waiters have run
        # would be right today, but only because asyncio wakes them through futures.
        event, self._event = self._event, asyncio.Event()
        event.set()
