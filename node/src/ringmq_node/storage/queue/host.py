"""The store, as each of its queues sees it."""

from __future__ import annotations

from typing import Protocol, TypeVar

from ringmq_node.storage.queue.pager import PagerHost
from ringmq_node.storage.queue.read_ahead import ReadAheadHost

Q_contra = TypeVar("Q_contra", contravariant=True)


class QueueHost(PagerHost, ReadAheadHost, Protocol[Q_contra]):
    """What a queue asks of its store, beside what its parts ask for."""

    def check_writable(self) -> None:
        """Raises `StoreFailedError` if nothing can be written any more."""

    def mark_dirty(self, queue: Q_contra) -> None:
        """The queue has something for the next round."""

    def mark_flushable(self, queue: Q_contra) -> None:
        """The queue has a sealed journal to flush, or a segment to delete."""

    async def wait_room(self) -> None:
        """Waits for what isn't durable if that is many bytes."""
