"""Wakes the tasks that wait for a state to change, each time that it changes.

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
        # The next waiters get a new event. To set and clear one event would be right today, but
        # only because asyncio wakes waiters through futures and not by looking at the flag again.
        event, self._event = self._event, asyncio.Event()
        event.set()
