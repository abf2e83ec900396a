"""Tells the store's owner which queues have more on disk.

A round of a hundred queues ends in one call of the loop, and each queue is told of once in a turn,
however many rounds have ended since. The owner passes each on to a ring, in some 50 us; so they are
told in pieces, with turns of the loop in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ringmq_base.pieces import Pieces
from ringmq_node.storage.queue.queue_store import QueueStore


class DurableReports:
    """Of one store. `tell` may raise: the loop reports it, and the other queues are told."""

    def __init__(self, tell: Callable[[QueueStore], None]) -> None:
        self._tell = tell
        # A dict, not a set: no order may depend on addresses.
        self._queues: dict[QueueStore, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_due = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_due = False
        self._schedule()

    def stop(self) -> None:
        """Queues that are added from now on wait for the next `start`."""
        self._loop = None

    def clear(self) -> None:
        """Nobody is told of those that wait."""
        self._queues.clear()

    def add(self, queue: QueueStore) -> None:
        """In a later turn of the loop, the owner is told of `queue`."""
        self._queues[queue] = None
        self._schedule()

    def _schedule(self) -> None:
        if self._queues and not self._is_due and self._loop is not None:
            self._is_due = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_due = False
        if len(self._queues) == 1:
            queue, _ = self._queues.popitem()
            self._tell(queue)
            return
        waiting, self._queues = deque(self._queues), {}
        pieces = Pieces()
        try:
            while waiting and not pieces.is_over:
                self._tell(waiting.popleft())
        finally:
            if waiting:
                self._queues = dict.fromkeys((*waiting, *self._queues))
                self._schedule()
