"""The memory that the queues of a store take: who lets go of how much, and when.

The node's memory monitor sets for how many seconds each queue may hold messages (`set_duration`).
Between two of its looks the store's own budget holds: `queue_memory_bytes_max`, over all queues.

Of ten thousand queues most stand still. Those in which messages come and go are known
(`mark_moving`), and the looks are at these only, at no more than `LOOKED_AT_MAX` at a time.

Letting go of many blocks takes long, so each queue does it in steps, one step of one queue in each
turn of the event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection
from itertools import islice
from typing import Protocol

from ringmq_node.storage.errors import StoreFailedError
from ringmq_node.storage.limits import Counters, StoreLimits
from ringmq_node.storage.queue.pager import Pager
from ringmq_node.storage.queue.queue_store import QueueStore

# Queues whose rates are updated by one look. Each takes 4 us, and the loop isn't to be held.
LOOKED_AT_MAX = 2_000


class MemoryHost(Protocol):
    """The store, as the keeper of its queues' memory sees it."""

    failure: StoreFailedError | None
    limits: StoreLimits
    counters: Counters


class QueueMemory:
    """Of one store. On the event loop's thread."""

    def __init__(self, host: MemoryHost) -> None:
        self._host = host
        self._loop: asyncio.AbstractEventLoop | None = None
        self._duration_s = math.inf
        # Where messages come or go, and for how many seconds those in memory last; the pagers that
        # were looked at last come last.
        self._moving: dict[Pager, float] = {}
        self._looked_at: float | None = None
        # Pagers with blocks on their way into the transient store.
        self._paging: dict[Pager, None] = {}
        # Pagers with more to let go of than fits one turn of the loop.
        self._reducing: dict[Pager, None] = {}

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def stop(self) -> None:
        self._loop = None

    def opened(self, queue: QueueStore) -> None:
        """`queue` was opened."""
        queue.pager.set_duration(self._duration_s)

    def forget(self, queue: QueueStore) -> None:
        """`queue` is being deleted."""
        self._moving.pop(queue.pager, None)
        self._paging.pop(queue.pager, None)
        self._reducing.pop(queue.pager, None)

    def mark_moving(self, pager: Pager) -> None:
        """A message has come or gone, for the first time in a while."""
        # Its rates begin at the last look: nothing has moved up to then.
        pager.rates.begin(self._looked_at)
        self._moving[pager] = math.inf

    def durations(self, now: float) -> list[float]:
        """For how many seconds the messages in memory last, of each queue in which any move; it may
        be infinite. `now` in seconds."""
        for pager in [*islice(self._moving, LOOKED_AT_MAX)]:
            del self._moving[pager]
            duration_s = pager.tick(now)
            if not pager.rest_if_still():
                self._moving[pager] = duration_s
        self._looked_at = now
        return [*self._moving.values()]

    def set_duration(self, duration_s: float, queues: Collection[QueueStore]) -> None:
        """For how many seconds each queue may hold messages in memory."""
        self._duration_s = duration_s
        for queue in queues:
            queue.pager.set_duration(duration_s)
            if not math.isinf(duration_s):
                queue.seal_for_memory()

    def keep_budget(self, queues: Collection[QueueStore]) -> None:
        """Has the queues let go of blocks, if together they are above the budget."""
        host = self._host
        if host.counters.queue_memory_bytes > host.limits.queue_memory_bytes_max:
            for queue in queues:
                queue.seal_for_memory()
                queue.bodies.forget_recent()
                queue.pager.reduce()
            return
        for pager in self._moving:
            if pager.wants_reducing:
                pager.reduce()

    def mark_paging(self, pager: Pager) -> None:
        """`pager` has put a block into the transient store."""
        self._paging[pager] = None

    def round_ended(self) -> None:
        """A round has written the transient store."""
        if not self._paging:
            return
        paging, self._paging = self._paging, {}
        for pager in paging:
            if pager.page_out_done():
                self._paging[pager] = None

    def mark_reducing(self, pager: Pager) -> None:
        """`pager` has more to let go of than one step does."""
        if self._loop is None:
            # No loop runs, so nobody else wants a turn.
            while pager.reduce_some():
                pass
            return
        if not self._reducing:
            self._loop.call_soon(self._reduce)
        self._reducing[pager] = None

    def _reduce(self) -> None:
        """One step of one queue."""
        if self._loop is None or self._host.failure is not None or not self._reducing:
            return
        pager = next(iter(self._reducing))
        del self._reducing[pager]
        if pager.reduce_some():
            self._reducing[pager] = None
        if self._reducing:
            self._loop.call_soon(self._reduce)
