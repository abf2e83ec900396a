"""Which queues have had no append for a while: their journals are sealed, if that is worth it.

Otherwise the journal of an idle queue would never be emptied: a start has to read all of it, and
the bodies of acknowledged messages stay on the disk.
"""

from __future__ import annotations

from ringmq_node.storage.queue.queue_store import QueueStore


class IdleQueues:
    """Counts in ticks: calls of `tick`, which the store makes each second."""

    def __init__(self, *, ticks_max: int) -> None:
        self._ticks_max = ticks_max
        self._ticks = 0
        # Queues with an append lately, and the tick in which the last one was.
        self._active: dict[QueueStore, int] = {}

    def appended(self, queue: QueueStore) -> None:
        self._active[queue] = self._ticks

    def forget(self, queue: QueueStore) -> None:
        self._active.pop(queue, None)

    def tick(self) -> None:
        """Seals the journals of queues that have become idle."""
        self._ticks += 1
        active = self._active.items()
        for queue in [queue for queue, tick in active if self._ticks - tick > self._ticks_max]:
            del self._active[queue]
            queue.seal_if_large()
