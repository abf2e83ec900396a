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
        # There is one only while somebody waits. An event is three objects and 700 bytes, and each
        # queue has several notifiers that nobody waits for.
        self._event: asyncio.Event | None = None

    async def wait(self) -> None:
        """Returns at the next `notify`; earlier ones don't count."""
        event = self._event
        if event is None:
            event = self._event = asyncio.Event()
        await event.wait()

    def notify(self) -> None:
        """Wakes every task that waits now."""
        # The next waiters get a new event. To set and clear one event would be right today, but
        # only because asyncio wakes waiters through futures and not by looking at the flag again.
        event, self._event = self._event, None
        if event is not None:
            event.set()
